// Package rlockmigrate gives a database driver of golang-migrate a lock of rlock in place of its own.
package rlockmigrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4/database"

	"github.com/go-rlock/rlock"
)

// DefaultWait is how long Lock of a [Driver] waits by default: less than migrate.DefaultLockTimeout, which is 15 s.
const DefaultWait = 10 * time.Second

// Driver is a database driver of golang-migrate, with the lock of rlock in place of its own.
//
// Before each migration, and before a version is written, it looks at the lease: after a loss these fail with
// rlock.ErrLeaseLost, and golang-migrate stops. A statement that is under way runs on. As golang-migrate marks the
// version as dirty before a migration, a process that is killed inside one leaves it dirty: the next one refuses to go
// on, which is no matter of the lock.
type Driver struct {
	database.Driver
	lock rlock.Locker
	wait time.Duration

	ctx    context.Context // of waits; Close ends it
	cancel context.CancelFunc

	mu    sync.Mutex // guards what follows; not held while Redis is asked
	busy  bool       // from Lock to Unlock
	lease *rlock.Lease
}

// New returns the driver with that lock. All programs that migrate the same database give it the same name.
//
// wait is how long Lock waits for another process, DefaultWait if it is 0. It must be shorter than LockTimeout of the
// migrate.Migrate: golang-migrate gives up at that time, and does not unlock what it gets later. For a longer wait
// raise both. To outlast a process that was killed it has to be longer than the lease, which is 30 s by default.
//
// The error matches rlock.ErrInvalidArgument if the driver or the lock is nil or wait is negative.
func New(driver database.Driver, lock rlock.Locker, wait time.Duration) (*Driver, error) {
	switch {
	case driver == nil:
		return nil, fmt.Errorf("rlockmigrate: %w: the driver is nil", rlock.ErrInvalidArgument)
	case lock == nil:
		return nil, fmt.Errorf("rlockmigrate: %w: the lock is nil", rlock.ErrInvalidArgument)
	case wait < 0:
		return nil, fmt.Errorf("rlockmigrate: %w: wait is %v", rlock.ErrInvalidArgument, wait)
	case wait == 0:
		wait = DefaultWait
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Driver{Driver: driver, lock: lock, wait: wait, ctx: ctx, cancel: cancel}, nil
}

// Open opens the driver inside, and returns it with the same lock.
func (d *Driver) Open(url string) (database.Driver, error) {
	opened, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return New(opened, d.lock, d.wait)
}

// Lock takes the lock of rlock, and not the inner driver's. While another has it, the error matches
// database.ErrLocked and rlock.ErrNotAcquired; other errors are those that rlock.Locker's Lock returns.
func (d *Driver) Lock() error {
	d.mu.Lock()
	if d.busy {
		d.mu.Unlock()
		return database.ErrLocked
	}
	d.busy = true
	d.mu.Unlock()

	lease, err := d.lock.Lock(d.ctx, rlock.WithWait(d.wait))
	d.mu.Lock()
	if d.ctx.Err() != nil { // Close has come, and frees nothing more
		d.mu.Unlock()
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		return errors.Join(errClosed, err)
	}
	defer d.mu.Unlock()
	d.lease, d.busy = lease, err == nil
	if errors.Is(err, rlock.ErrNotAcquired) {
		return errors.Join(database.ErrLocked, err)
	}
	return err
}

// Unlock releases the lock. It returns the error of rlock.Lease's Unlock, which matches database.ErrNotLocked if the lock
// was not held. After an error golang-migrate takes the Migrate for locked: make a new one.
func (d *Driver) Unlock() error {
	d.mu.Lock()
	lease := d.lease
	d.lease, d.busy = nil, d.busy && lease == nil
	d.mu.Unlock()
	if lease == nil {
		return database.ErrNotLocked
	}
	return lease.Unlock(context.Background())
}

var errClosed = errors.New("rlockmigrate: the driver is closed")

// Close ends a wait of Lock, closes the driver inside, and frees the lock if it is held still: a migration that was
// broken off, or a Lock that golang-migrate did not wait for, leaves none behind.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.cancel() // under the mutex: Lock keeps no lease after that
	lease := d.lease
	d.lease = nil
	d.mu.Unlock()
	err := d.Driver.Close() // before another may migrate
	if lease == nil {
		return err
	}
	return errors.Join(err, lease.Unlock(context.Background()))
}

// held returns what has ended the lease, if there is one: golang-migrate reads and forces versions without a lock too.
func (d *Driver) held() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return errClosed
	}
	if d.lease == nil {
		return nil
	}
	return d.lease.Err()
}

// Run runs a migration, unless the lease was lost.
func (d *Driver) Run(migration io.Reader) error {
	if err := d.held(); err != nil {
		_, _ = io.Copy(io.Discard, migration) // the writer waits for that
		return err
	}
	return d.Driver.Run(migration)
}

// SetVersion writes the version, unless the lease was lost.
func (d *Driver) SetVersion(version int, dirty bool) error {
	if err := d.held(); err != nil {
		return err
	}
	return d.Driver.SetVersion(version, dirty)
}

// Drop deletes everything in the database, unless the lease was lost.
func (d *Driver) Drop() error {
	if err := d.held(); err != nil {
		return err
	}
	return d.Driver.Drop()
}

// Package rlockgoose is a lock.Locker of goose on a lock of rlock: of several processes that migrate when they start, one
// does, and the others wait. It needs no advisory locks of the database, and works behind PgBouncer.
package rlockgoose

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/pressly/goose/v3/lock"

	"github.com/go-rlock/rlock"
)

// ErrInUse: the Locker holds its lock. A Provider migrates once at a time, so give each a Locker of its own.
var ErrInUse = errors.New("rlockgoose: the Locker is in use: one for each Provider")

// Locker implements lock.Locker, for goose.WithLocker.
type Locker struct {
	lock rlock.Locker
	opts []rlock.AcquireOption

	mu    sync.Mutex // guards what follows; not held while Redis is asked
	busy  bool       // from Lock to Unlock
	lease *rlock.Lease
}

var _ lock.Locker = (*Locker)(nil)

// New returns a Locker on a lock, which is held with these options, such as rlock.WithWait. All programs that migrate
// the same database give it the same name. The error matches rlock.ErrInvalidArgument if the lock is nil.
//
// goose cannot be notified of a loss: the migrations run on, and only Unlock reports it. To have their context
// to end with the lease calls provider.Up in the function of rlock.Do, and needs no Locker.
func New(l rlock.Locker, opts ...rlock.AcquireOption) (*Locker, error) {
	if l == nil {
		return nil, fmt.Errorf("rlockgoose: %w: the lock is nil", rlock.ErrInvalidArgument)
	}
	return &Locker{lock: l, opts: opts}, nil
}

// Lock waits until it has the lock, as Lock of an rlock.Locker, whose errors it returns. It does not use the database.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	l.mu.Lock()
	if l.busy {
		l.mu.Unlock()
		return ErrInUse
	}
	l.busy = true
	l.mu.Unlock()

	lease, err := l.lock.Lock(ctx, l.opts...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease, l.busy = lease, err == nil
	return err
}

// Unlock releases the lock, also if ctx has ended. It returns the errors of rlock.Lease's Unlock: after
// rlock.ErrLeaseLost another process may have migrated at the same time.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	l.mu.Lock()
	lease := l.lease
	l.lease, l.busy = nil, l.busy && lease == nil
	l.mu.Unlock()
	return lease.Unlock(ctx)
}

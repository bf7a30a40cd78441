// Package named has two shapes of a lock that programs often have already: Lock(ctx, key) and Unlock(ctx, key) of one
// struct ([Locks]), and sync.Locker ([Mutex]). Each gives something up, as its comment says. New code is better off with
// rlock.Do, or with the lease in hand.
package named

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"github.com/go-rlock/rlock"
)

// Locks are locks by key, to replace a helper without touching its callers. They are renewed until Unlock.
//
// What it gives up, as it hands out no lease:
//   - A loss is not reported before Unlock. Where the work can be passed as a function, [Locks.Do] gives it a context
//     that ends with the lease, and the fencing token.
//   - Any goroutine of the process that knows the key can unlock, also by mistake.
//   - There is no re-entry: a goroutine that locks a key twice waits for itself, until its context ends.
//
// It is safe for concurrent use.
type Locks struct {
	client *rlock.Client
	prefix string
	opts   []rlock.AcquireOption

	mu     sync.Mutex // guards leases; not held while Redis is asked
	leases map[string][]*rlock.Lease
}

// New returns the locks whose names begin with a prefix, such as "lock:". The options apply to each Lock and Do, such
// as rlock.WithWait. The error matches rlock.ErrInvalidArgument if the client or an option is nil.
func New(client *rlock.Client, prefix string, opts ...rlock.AcquireOption) (*Locks, error) {
	if client == nil {
		return nil, fmt.Errorf("named: %w: the client is nil", rlock.ErrInvalidArgument)
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("named: %w: an option is nil", rlock.ErrInvalidArgument)
		}
	}
	return &Locks{client: client, prefix: prefix, opts: opts, leases: map[string][]*rlock.Lease{}}, nil
}

// Name is the name of the lock of a key: the prefix and the key, which is escaped as in the query of a URL. It may come
// from input, and be anything but empty: different keys have different locks, and a long one is hashed.
func (l *Locks) Name(key string) string {
	if escaped := url.QueryEscape(key); len(escaped) <= 200 {
		return l.prefix + escaped
	}
	sum := sha256.Sum256([]byte(key))
	return l.prefix + "sha256:" + hex.EncodeToString(sum[:]) // no other key has this name: a colon is escaped
}

func (l *Locks) lock(key string) (*rlock.Lock, error) {
	if key == "" {
		return nil, fmt.Errorf("named: %w: the key is empty", rlock.ErrInvalidArgument)
	}
	return l.client.NewLock(l.Name(key)), nil
}

// Lock waits until it has the lock of the key. It returns the errors of rlock.Locker's Lock; after one it does not have the lock.
func (l *Locks) Lock(ctx context.Context, key string) error {
	lock, err := l.lock(key)
	if err != nil {
		return err
	}
	lease, err := lock.Lock(rlock.WithoutOwner(ctx), l.opts...)
	return l.keep(key, lease, err)
}

// TryLock takes the lock if nobody has it. While another has it, it returns false and no error.
func (l *Locks) TryLock(ctx context.Context, key string) (bool, error) {
	lock, err := l.lock(key)
	if err != nil {
		return false, err
	}
	opts := append(append([]rlock.AcquireOption(nil), l.opts...), rlock.WithWait(0))
	lease, err := lock.Lock(rlock.WithoutOwner(ctx), opts...)
	if errors.Is(err, rlock.ErrNotAcquired) && ctx.Err() == nil {
		return false, nil
	}
	err = l.keep(key, lease, err)
	return err == nil, err
}

func (l *Locks) keep(key string, lease *rlock.Lease, err error) error {
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.leases[key] = append(l.leases[key], lease)
	}
	return err
}

// Unlock releases the lock of the key, also if ctx has ended. It returns the errors of rlock.Lease's Unlock: after
// rlock.ErrLeaseLost another may have had the lock at the same time; rlock.ErrNotHeld: this process does not have it.
//
// If a hold was lost, and another goroutine has the lock since, the first Unlock counts for the hold that was lost. So
// none is released before its own Unlock.
func (l *Locks) Unlock(ctx context.Context, key string) error {
	l.mu.Lock()
	var lease *rlock.Lease // nil: not held
	if all := l.leases[key]; len(all) > 1 {
		lease, l.leases[key] = all[0], all[1:]
	} else if len(all) == 1 {
		lease = all[0]
		delete(l.leases, key)
	}
	l.mu.Unlock()
	return lease.Unlock(ctx)
}

// Do is rlock.Do for the lock of the key: the context of fn ends when the lease is lost, and rlock.LeaseFrom has it. It
// gives up nothing. In fn, Lock of the same key waits for itself.
func (l *Locks) Do(ctx context.Context, key string, fn func(ctx context.Context) error) error {
	lock, err := l.lock(key)
	if err != nil {
		return errors.Join(rlock.ErrNotRun, err)
	}
	return rlock.Do(ctx, lock, fn, l.opts...)
}

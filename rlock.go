package rlock

import (
	"context"
	"reflect"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// Locker is what every lock can do, and what a [MultiLock] needs of its members.
type Locker interface {
	// Name is the name of the lock, with the client's prefix.
	Name() string
	// Lock waits until it has the lock and returns a lease. Waiters of one client get it in the order of their calls;
	// among clients the type decides. The error matches
	//   - ErrNotAcquired, if another had the lock or went first: [Error] tells who, maybe this client, and for how
	//     long; or too few replicas confirmed (WithReplicaAck);
	//   - ErrUnreachable (a RedLock: ErrNoQuorum too), if Redis gave no answer for a watchdog lease, or until the end
	//     of the wait; ErrRefused, if it replied with an error, which Lock waits out for as long if it may pass soon;
	//   - ErrLeaseLost, ErrReentrant or ErrUpgrade, if ctx descends from a hold of this lock that is lost and not
	//     unlocked, from one WithNonReentrant, or from a read hold and this is the write side;
	//   - ErrForeignKey, if the lock's key holds something else, ErrClosed or ErrInvalidArgument;
	//   - ctx.Err(), if ctx ended: beside one of the first three, or alone if nothing was seen.
	//
	// After an error no hold and no place in a queue is left; a grant that was under way is given back, or runs out
	// with its lease. Details: https://go-rlock.github.io/rlock/latest/locks/#when-an-acquire-fails
	Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error)
	// TryLock takes the lock if it is free, or if ctx descends from its hold, and does not wait for another holder.
	// Errors are those of Lock; for Redis it waits only the command timeout, to which WithReplicaAck adds its own.
	TryLock(ctx context.Context, opts ...TryOption) (*Lease, error)
}

// Inspector looks at a lock, and frees it for an operator, without a lease. The context and the command
// timeout bound that, and all else that only looks. Errors match ErrUnreachable, ErrNoQuorum,
// ErrRefused, ctx.Err(), ErrClosed or ErrInvalidArgument.
type Inspector interface {
	State(ctx context.Context) (State, error)   // who holds the lock, as Redis shows it now
	IsLocked(ctx context.Context) (bool, error) // whether anybody holds the lock, or this side
	HoldCount(ctx context.Context) (int, error) // how often the hold that ctx descends from was entered; 0: it is gone
	// ForceUnlock frees the lock, or all holds of this side, whoever holds it, and reports whether it was held. The
	// holder learns of it (ErrRemoved or ErrTakenOver) with its next renewal, with a fixed lease by Extend, Unlock or
	// its end. After ErrUnreachable or ctx.Err() the outcome is unknown.
	ForceUnlock(ctx context.Context) (bool, error)
	// ForceUnlockIf does that only for the hold with this id (Lease.HoldID, Holder.HoldID). A newer hold has another
	// id, unless it was handed over (WithHandOver). An empty id is refused.
	ForceUnlockIf(ctx context.Context, holdID string) (bool, error)
}

// ReleaseRequester asks holders to release a lock.
type ReleaseRequester interface {
	// RequestRelease asks whoever keeps others out, and returns whether there was anybody to ask. The holder decides:
	// see [Lease.ReleaseRequested]. After ErrUnreachable, ErrNoQuorum or ctx.Err() it is unknown whether anybody was
	// asked. See https://go-rlock.github.io/rlock/latest/locks/#asking-holders-to-release
	RequestRelease(ctx context.Context) (asked bool, err error)
}

var _ interface {
	Locker
	Inspector
	ReleaseRequester
} = (*Lock)(nil)

// Lock is a reentrant lock without an order among clients, the counterpart of Redisson's RLock. Details:
// https://go-rlock.github.io/rlock/latest/locks/#lock
type Lock struct{ locker }

// NewLock returns the lock of a name. It sends nothing; the first call reports invalid arguments, a nil
// Client or option among them. A name is any string of 1 to [MaxNameLength] bytes, except for some with
// braces. Use one type for each. See https://go-rlock.github.io/rlock/latest/locks/#names
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	cfg, err := lockOptions(lockConfig{}, opts, LockOption.optionOfNewLock)
	l, names := newCore(c, protocol.HashFamily, name, cfg, err)
	l.proto = protocol.NewLock(&l.c.site, names)
	return &Lock{locker{l}}
}

// Name is the name, with the prefix of its client.
func (l *core) Name() string {
	if l == nil {
		return ""
	}
	return l.name()
}

// locker is a core that is acquired by Lock and TryLock. Types that are acquired in other ways embed the core, which has
// all other methods.
type locker struct{ *core }

// Lock waits until it has the lock, and returns a lease of it: see [Locker].
func (l locker) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return lock(ctx, l.core, true, opts)
}

// TryLock takes the lock if nobody holds it, and does not wait: see [Locker].
func (l locker) TryLock(ctx context.Context, opts ...TryOption) (*Lease, error) {
	return lock(ctx, l.core, false, opts)
}

// isNil reports whether there is no lock at all.
func isNil(l any) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Do holds the lock while fn runs, with the context of the lease ([Lease.Context]), and releases it,
// also if fn panics. The error joins those of fn and of Unlock, so it is no *Error. It matches, in this
// order, also of calls of Do inside each other:
//   - ErrNotRun: fn was not called; the error is that of Lock;
//   - ErrUnconfirmed: fn returned nil, and Redis did not confirm the release;
//   - ErrLeaseLost: the lock was lost while fn ran, whatever fn returned, which it matches too;
//   - else what fn returned, or ErrClosed if that is the end of its context because the client shuts
//     down.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	switch {
	case isNil(l):
		return notRun{&Error{Err: invalid("Do needs a lock and a function")}}
	case fn == nil:
		return notRun{&Error{Lock: l.Name(), Err: invalid("Do needs a function")}}
	}
	lease, err := l.Lock(ctx, opts...)
	if err != nil {
		return notRun{err}
	}
	cut, err, unlock := lease.under(ctx, fn)
	return cut.result(err, unlock)
}

func init() {
	seam.Waiters = func(lock any) int {
		return lock.(hasCore).cored().waiters()
	}
}

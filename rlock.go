package rlock

import (
	"context"
	"errors"
)

// Locker is what every lock type can do.
type Locker interface {
	// Name is the name of the lock, with the client's prefix.
	Name() string
	// Lock waits until the lock is held, ctx ends, or WithWait is over.
	Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error)
	// TryLock looks once. If another holds the lock, the error matches
	// ErrNotAcquired.
	TryLock(ctx context.Context, opts ...AcquireOption) (*Lease, error)
}

var _ Locker = (*Lock)(nil)

// Lock is a reentrant, unfair lock, the counterpart of Redisson's RLock: it
// excludes all other owners, in this process, in other processes, and in Java
// processes that use the same name.
//
// A Lock is a name, not a hold: it keeps no state, and any number of goroutines
// may share one. Each acquire that is not a re-entry is an owner of its own, so
// they exclude each other.
type Lock struct{ core *core }

// NewLock returns the lock of a name. It sends nothing; what is wrong with the
// arguments is reported by the first call.
//
// A name is any string of at most MaxNameLength bytes that is not empty; Java
// clients need UTF-8. In a cluster, a part in braces decides the slot, so
// "{orders}:1" and "{orders}:2" are on one node. A name with a brace but
// without such a part is refused.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	return &Lock{newCore(c, name, opts)}
}

// Name implements Locker.
func (l *Lock) Name() string { return l.core.name }

// Lock waits until it has the lock and returns a lease.
//
// It fails with an error that matches
//   - ErrNotAcquired, if ctx ended (then it matches ctx.Err() too), WithWait
//     was over, or too few replicas confirmed (WithReplicaAck);
//   - ErrLeaseLost, if the owner in ctx has lost its hold of this lock and not
//     yet unlocked it;
//   - ErrReentrant, if that owner holds the lock, made with WithNonReentrant;
//   - ErrUnreachable, if Redis gave no answer for as long as a watchdog lease;
//   - ErrClosed or ErrInvalidArgument;
//   - or with an error of Redis, such as NOPERM or OOM.
//
// Whatever the error, no hold is left behind: a grant that was under way is
// given back, by the watchdog if Redis cannot be reached at once, and leaves a
// tombstone for a minute. Should the process end before that, the grant runs
// out with its lease.
//
// Waiters of one client get the lock in the order of their calls; among
// clients there is no order.
func (l *Lock) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return l.core.lock(ctx, true, opts)
}

// TryLock takes the lock if it is free, or held by the owner in ctx. Its errors
// are those of Lock. It returns ErrUnreachable if Redis does not answer within
// the command time-out (WithReplicaAck adds its own).
func (l *Lock) TryLock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return l.core.lock(ctx, false, opts)
}

// IsLocked reports whether anybody holds the lock. Its bounds and errors are
// those of State.
func (l *Lock) IsLocked(ctx context.Context) (bool, error) {
	s, err := l.State(ctx)
	return s.Locked(), err
}

// State returns who holds the lock, as Redis shows it now. It is bounded by ctx
// and the command time-out. It fails with an error that matches ErrUnreachable,
// if Redis did not answer in time, ctx.Err(), ErrClosed or ErrInvalidArgument
// (the name), or with an error of Redis.
func (l *Lock) State(ctx context.Context) (State, error) { return l.core.state(ctx) }

// HeldBy returns how often the owner in ctx holds the lock according to Redis:
// 0 if ctx has no owner or it does not hold the lock. An owner that has no hold
// in this process costs no request. Bounds and errors are those of State.
func (l *Lock) HeldBy(ctx context.Context) (int, error) { return l.core.heldBy(ctx) }

// ForceUnlock frees the lock whoever holds it, and reports whether it was held.
// The holder learns of it with its next renewal, as ErrRemoved (or
// ErrTakenOver, if another was quicker); with a fixed lease only when it calls
// Extend or Unlock, or at the end of the lease.
//
// It is bounded by ctx and the command time-out; before the first acquire in a
// cluster, finding out how to publish may take as long again. It fails with an
// error that matches ErrUnreachable, ctx.Err(), ErrClosed or ErrInvalidArgument,
// or with an error of Redis. A request that may have run is not sent again: after
// ErrUnreachable or ctx.Err() it is open whether the lock was freed.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) { return l.core.forceUnlock(ctx, "") }

// ForceUnlockIf is ForceUnlock for one hold: it frees the lock only if the
// owner with this id holds it (Lease.Owner, Holder.Owner). The id belongs to
// that hold alone, so a newer one cannot be hit. It is the owner and not the
// fencing token that names the hold, because the shared wire has no place for
// the token.
//
// Bounds and errors are those of ForceUnlock, and ErrInvalidArgument if owner is
// empty. The request may be sent again: if a reply was lost and the repeated
// request finds nothing, the error matches ErrUnreachable, and the outcome is
// unknown.
func (l *Lock) ForceUnlockIf(ctx context.Context, owner string) (bool, error) {
	if owner == "" {
		return false, l.core.error(invalid("ForceUnlockIf needs an owner"))
	}
	return l.core.forceUnlock(ctx, owner)
}

// Do holds the lock while fn runs. If the lock is not acquired, fn is not
// called, and the error is that of Lock. fn gets a context that ends with the lease
// and with ctx, and that lets it enter the lock again. Do returns the errors
// of fn and of Unlock, joined; the latter matches ErrLeaseLost if fn ran on
// without the lock. The joined error is not an *Error; errors.Is and errors.As
// look into it. The lock is released if fn panics.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	lease, err := l.Lock(ctx, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if unlockErr := lease.Unlock(ctx); unlockErr != nil {
			err = errors.Join(err, unlockErr)
		}
	}()
	return fn(lease.Context(ctx))
}

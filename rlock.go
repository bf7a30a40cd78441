package rlock

import (
	"context"
	"reflect"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// Locker is what every lock type can do, and what a [MultiLock] needs of its members: see also
// [Inspector] and [ReleaseRequester].
type Locker interface {
	// Name is the name of the lock, with the client's prefix.
	Name() string
	// Lock waits until it has the lock and returns a lease. Waiters of one client get it in the order
	// of their calls; among clients the type decides. The error matches
	//   - ErrNotAcquired, if another had the lock or went first, or too few replicas confirmed
	//     (WithReplicaAck); Error.HolderID, Error.Process and Error.Left tell who has it, maybe this
	//     client, and for how long;
	//   - ErrUnreachable (a RedLock: ErrNoQuorum too), if Redis gave no answer for a watchdog lease, or
	//     until the end of the wait;
	//   - ErrRefused, if Redis replied with an error. Lock waits out those of a server that may soon
	//     serve again, such as LOADING or READONLY, and returns others at once;
	//   - ErrLeaseLost, ErrReentrant or ErrUpgrade, if ctx descends from a hold of this lock that is
	//     lost and not unlocked, from one WithNonReentrant, or from a read hold and this is the write
	//     side;
	//   - ErrForeignKey, if the lock's key holds something else, ErrClosed or ErrInvalidArgument;
	//   - ctx.Err(), if ctx ended: beside one of the first three, or alone if nothing was seen.
	//
	// After an error no hold and no place in a queue is left. A grant that was under way is given back,
	// in the background if need be, or runs out with its lease. Details: docs/locks.md.
	Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error)
	// TryLock takes the lock if it is free, or if ctx descends from its hold, and does not wait for
	// another holder. Errors are those of Lock; for Redis it waits only the command time-out, to which
	// WithReplicaAck adds its own.
	TryLock(ctx context.Context, opts ...TryOption) (*Lease, error)
}

// Inspector looks at a lock, and frees it for an operator, without a lease. The context and the command
// time-out bound it. Errors match ErrUnreachable, ErrNoQuorum, ErrRefused, ctx.Err(), ErrClosed or
// ErrInvalidArgument.
type Inspector interface {
	// State returns who holds the lock, as Redis shows it now.
	State(ctx context.Context) (State, error)
	// IsLocked reports whether anybody holds the lock, or this side. Its cost does not depend on the
	// number of holders.
	IsLocked(ctx context.Context) (bool, error)
	// HoldCount returns how often the hold that ctx descends from has been entered, according to Redis:
	// 0 if it is gone, or there is none.
	HoldCount(ctx context.Context) (int, error)
	// ForceUnlock frees the lock, or all holds of this side, whoever holds it, and reports whether it
	// was held. The holder learns of it (ErrRemoved or ErrTakenOver) with its next renewal, with a
	// fixed lease by Extend, Unlock or its end. After ErrUnreachable or ctx.Err() the outcome is
	// unknown. The first call in a cluster may take the command time-out twice.
	ForceUnlock(ctx context.Context) (bool, error)
	// ForceUnlockIf does that only for the hold with this id (Lease.HoldID, Holder.HoldID). A newer
	// hold has another id, unless it was handed over (WithHandOver). An empty id is refused.
	ForceUnlockIf(ctx context.Context, holdID string) (bool, error)
}

// ReleaseRequester asks holders to release a lock.
type ReleaseRequester interface {
	// RequestRelease asks whoever keeps others out: the holder; for the write side the writer and all
	// readers, for the read side the writer. It returns whether there was anybody to ask. The holder
	// decides: see [Lease.ReleaseRequested]. Java does not listen. A request is for these holds, never
	// for a later one, and stands for ten minutes. After ErrUnreachable, ErrNoQuorum or ctx.Err() it is
	// unknown whether anybody was asked; asking again does no harm.
	RequestRelease(ctx context.Context) (asked bool, err error)
}

var _ interface {
	Locker
	Inspector
	ReleaseRequester
} = (*Lock)(nil)

// Lock is a reentrant lock without an order among clients, the counterpart of Redisson's RLock. It is a
// name without state, not a hold. It excludes all other owners of the name, in this process, in others
// and in Java.
type Lock struct{ *core }

// NewLock returns the lock of a name. It sends nothing; the first call reports invalid arguments, a nil
// Client or option among them.
//
// A name is any string of 1 to MaxNameLength bytes; Java clients need UTF-8. In a cluster a part in
// braces decides the slot: "{orders}:1" and "{orders}:2" are on one node. A name with a brace but
// without such a part is refused, and so are names all in braces or in the form of a key beside another
// lock (docs/locks.md). Use one type for each name.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	cfg, err := lockOptions(opts, LockOption.lock)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewLock(&l.c.site, names)
	return &Lock{l}
}

// core has the methods of Locker, which says what they promise, for every type.

func (l *core) Name() string {
	if l == nil {
		return ""
	}
	return l.name()
}

func (l *core) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return lock(ctx, l, true, opts)
}

func (l *core) TryLock(ctx context.Context, opts ...TryOption) (*Lease, error) {
	return lock(ctx, l, false, opts)
}

// isNil reports whether there is no lock at all.
func isNil(l Locker) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Do holds the lock while fn runs, with the context of the lease ([Lease.Context]). If the lock is not
// acquired, it returns the error of Lock. If fn panics, it releases the lock.
//
// Do joins the errors of fn and of Unlock, so the result is no *Error. In this order:
//   - ErrNotRun: fn was not called; the error is that of Lock;
//   - ErrUnconfirmed: fn returned nil, and Redis did not confirm the release;
//   - ErrLeaseLost: the lock was lost while fn ran, whatever fn returned, which the error matches too;
//   - else fn failed, with the error that it matches. It is ErrClosed if fn returned the error of its
//     context because the client shuts down: not context.Canceled then, unless ctx had ended before.
//
// That holds for calls of Do inside each other. Details: docs/locks.md.
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
		if l, ok := lock.(interface{ core() *core }); ok {
			return l.core().waiters()
		}
		return lock.(interface{ cored() *core }).cored().waiters()
	}
}

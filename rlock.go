package rlock

import (
	"context"
	"reflect"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// Locker is what every lock can do, and what a [MultiLock] needs of its members. It is no sync.Locker: a
// lock is unlocked by its [Lease].
type Locker interface {
	// Name is the name of the lock, with the client's prefix.
	Name() string
	// Lock waits until it has the lock and returns a lease. Waiters of one client get it in the order of their calls;
	// among clients the type decides. The error matches
	//   - ErrNotAcquired, if another had the lock or went first: [Error] says who, maybe this client, and for how
	//     long; or too few replicas confirmed (WithReplicaAck);
	//   - ErrUnreachable (a RedLock: ErrNoQuorum too), if Redis gave no answer for a watchdog lease, or until the end
	//     of the wait; ErrRefused, if it replied with an error, which Lock waits out for as long if it may pass soon;
	//   - ErrLeaseLost, ErrReentrant or ErrUpgrade, if ctx descends from a hold of this lock that is lost and not
	//     unlocked, from one WithNonReentrant, or from a read hold and this is the write side;
	//   - ErrForeignKey, if the lock's key holds something else, ErrClosed or ErrInvalidArgument;
	//   - ctx.Err(), if ctx ended: together with one of the first three, or alone if there was no reply.
	//
	// After an error no hold and no place in a queue is left; a grant that was under way is given back, or runs out
	// with its lease. Details: https://go-rlock.github.io/rlock/latest/errors/#when-an-acquire-fails
	Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error)
	// TryLock takes the lock if it is free, or if ctx descends from its hold, and does not wait for another holder.
	// Errors are as from Lock; for Redis it waits only the command timeout, to which WithReplicaAck adds its own.
	TryLock(ctx context.Context, opts ...TryOption) (*Lease, error)
}

// Inspector shows who holds a lock, and frees it for an operator, without a lease: see [Inspection]. The context
// and the command timeout bound each call, as they bound every call that only reads. Errors match
// ErrUnreachable, ErrNoQuorum, ErrRefused, ErrForeignKey, ctx.Err(), ErrClosed or ErrInvalidArgument.
type Inspector interface {
	State(ctx context.Context) (State, error)                       // the holders of the lock
	IsLocked(ctx context.Context) (bool, error)                     // whether the lock has a holder
	HoldCount(ctx context.Context) (int, error)                     // how often the owner of ctx has entered
	ForceUnlock(ctx context.Context) (bool, error)                  // ends all holds
	ForceUnlockIf(ctx context.Context, holdID string) (bool, error) // ends one hold
}

// ReleaseRequester asks holders to release a lock: see [Inspection.RequestRelease].
type ReleaseRequester interface {
	RequestRelease(ctx context.Context) (asked bool, err error) // whether there was a holder to ask
}

var _ interface {
	Locker
	Inspector
	ReleaseRequester
} = (*Lock)(nil)

var _ interface {
	Inspector
	ReleaseRequester
} = Inspection{}

// Lock is a reentrant lock without an order among clients, the counterpart of Redisson's RLock. Other
// methods: [Inspection]. Details: https://go-rlock.github.io/rlock/latest/locks/#lock
type Lock struct{ locker }

// NewLock returns the lock of a name. Like all constructors it sends nothing; the first call reports
// invalid arguments, a nil Client or option among them. A name is any string of 1 to [MaxNameLength] bytes,
// except for some with braces. Use one type for each. See
// https://go-rlock.github.io/rlock/latest/using-a-lock/#names
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	cfg, err := lockOptions(lockConfig{}, opts, LockOption.optionOfNewLock)
	l, names := newCore(c, protocol.HashFamily, name, cfg, err)
	l.proto = protocol.NewLock(&l.c.site, names)
	return &Lock{newLocker(l)}
}

// locker is a core that is acquired by Lock and TryLock. Types that are acquired in other ways embed inspected, which has
// all other methods. Both hide the Inspection from literals of users.
type locker struct{ Inspection }

func newLocker(l *core) locker { return locker{Inspection{l}} }

// inspected is an Inspection of a type that is no Locker.
type inspected struct{ Inspection }

func newInspected(l *core) inspected { return inspected{Inspection{l}} }

// Lock waits until it has the lock, and returns a [Lease]: work with [Lease.Context], then call
// [Lease.Unlock]. The hold is renewed until then, except [WithLease]. ctx and [WithWait] bound the wait.
// The error matches ErrNotAcquired if another owner has the lock ([Error] says who), ErrUnreachable if
// Redis does not answer, ErrRefused if it replies with an error. All errors: [Locker].
func (l locker) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return lock(ctx, l.core, true, opts)
}

// TryLock is Lock, but fails with ErrNotAcquired if another owner has the lock, and waits for Redis up to
// the command timeout (3 s). See [Locker].
func (l locker) TryLock(ctx context.Context, opts ...TryOption) (*Lease, error) {
	return lock(ctx, l.core, false, opts)
}

// isNil reports whether there is no lock at all.
func isNil(l any) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Do holds the lock while fn runs, with the context of the lease ([Lease.Context]), and releases it,
// also if fn panics. The error joins the errors of fn and Unlock, so it is no *Error. It matches, in this
// order, also of calls of Do inside each other:
//   - ErrNotRun: fn was not called; the error is as from Lock;
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

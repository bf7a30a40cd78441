package rlock

import (
	"context"
	"errors"
	"reflect"

	"github.com/go-rlock/rlock/internal/protocol"
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
// may share one: they exclude each other. An acquire enters again only a hold that
// its context descends from ([Lease.Context], [Do], [WithOwner]). Any other is a new
// owner.
type Lock struct{ *core }

// MaxNameLength is the longest lock name, in bytes, prefix included. Redis
// takes far longer keys; a name travels in every request, so a very long one
// is more likely a mistake.
const MaxNameLength = protocol.MaxNameLength

// NewLock returns the lock of a name. It sends nothing; what is wrong with the
// arguments, a nil Client or option among them, is reported by the first call.
//
// A name is any string of at most MaxNameLength bytes that is not empty; Java
// clients need UTF-8. In a cluster, a part in braces decides the slot, so
// "{orders}:1" and "{orders}:2" are on one node. A name with a brace but
// without such a part is refused.
//
// Use one type for a name: Lock, FairLock, SpinLock and FencedLock exclude each
// other, but do not wake each other's waiters in time.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	cfg, err := lockOptions(opts)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewLock(&l.c.site, names)
	return &Lock{l}
}

// Name is the name of the lock, with the client's prefix.
func (l *core) Name() string {
	if l == nil {
		return ""
	}
	return l.name
}

// Lock waits until it has the lock and returns a lease.
//
// It fails with an error that matches
//   - ErrNotAcquired, if ctx ended (then it matches ctx.Err() too), WithWait
//     was over, or too few replicas confirmed (WithReplicaAck);
//   - ErrLeaseLost, if ctx descends from a hold of this lock that is lost and not
//     yet unlocked;
//   - ErrReentrant, if ctx descends from a hold of this lock, made with
//     WithNonReentrant;
//   - ErrUpgrade, if ctx descends from a read hold and asks for the write lock;
//   - ErrUnreachable, if Redis gave no answer for as long as a watchdog lease;
//   - ErrForeignKey, if something stands at the lock's key that is not a lock;
//   - ErrClosed or ErrInvalidArgument;
//   - or with an error of Redis, such as NOPERM or OOM.
//
// An error that matches ErrNotAcquired says what was seen at the last look at the
// lock: who held it, and how much was left of the lease (Error.Holder, Error.Left);
// or that Redis did not answer. Then it matches ErrUnreachable too, or ErrNoQuorum. A
// look did not get an answer if it failed; or if it was cut off by the end of the
// wait, a tenth of a second has passed since it was sent, and the request that takes
// it back was not answered either. A look that was cut off earlier than that counts
// for nothing. Waiters behind others in this client are told what the first of them
// has seen.
//
// Whatever the error, no hold and no place in a queue is left behind: a grant
// that was under way is given back, by the watchdog if Redis cannot be reached
// at once, and leaves a tombstone for a minute. Should the process end before
// that, the grant runs out with its lease.
//
// Waiters of one client get the lock in the order of their calls. Among clients
// there is no order, unless the type says so.
func (l *core) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return l.lock(ctx, true, opts)
}

// TryLock takes the lock if it is free, or if ctx descends from its hold. Its errors
// are those of Lock. It returns ErrUnreachable if Redis does not answer within
// the command time-out (WithReplicaAck adds its own).
func (l *core) TryLock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return l.lock(ctx, false, opts)
}

// isNil reports whether there is no lock at all.
func isNil(l Locker) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Do holds the lock while fn runs. If the lock is not acquired, fn is not
// called, and the error is that of Lock. fn gets the context of the lease
// ([Lease.Context]): it ends with the lease and with ctx, and lets fn enter the lock
// again. Goroutines that fn starts exclude each other from all other locks. Do returns
// the errors of fn and of Unlock, joined; the latter matches ErrLeaseLost if fn ran on
// without the lock. The joined error is not an *Error; errors.Is and errors.As
// look into it. The lock is released if fn panics.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	if isNil(l) || fn == nil {
		return &Error{Err: invalid("Do needs a lock and a function")}
	}
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

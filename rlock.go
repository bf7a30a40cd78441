package rlock

import (
	"context"
	"reflect"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Locker is what every lock type can do, and what a MultiLock needs of its members: see also
// [Inspector] and [ReleaseRequester].
type Locker interface {
	// Name is the name of the lock, with the client's prefix.
	Name() string

	// Lock waits until it has the lock and returns a lease. The error matches
	//   - ErrNotAcquired, if another had the lock, or went first, until ctx ended (then it
	//     matches ctx.Err() too) or WithWait was over; or too few replicas confirmed
	//     (WithReplicaAck);
	//   - ErrUnreachable (ErrNoQuorum too, of a RedLock), if Redis gave no answer for as
	//     long as a watchdog lease, or until then; it is not ErrNotAcquired then;
	//   - ErrRefused, if Redis replied with an error;
	//   - only ctx.Err(), if ctx ended before anything was seen;
	//   - ErrLeaseLost, if ctx descends from a hold of this lock that is lost and
	//     not yet unlocked;
	//   - ErrReentrant, if ctx descends from a hold of a lock WithNonReentrant;
	//   - ErrUpgrade, if ctx descends from a read hold and this is the write side;
	//   - ErrForeignKey, if the lock's key holds something that is not such a lock;
	//   - ErrClosed or ErrInvalidArgument.
	//
	// Some error replies are those of a server that serves nobody now and soon may, as after
	// a restart, in a failover, or while a script or a failed save blocks it: LOADING,
	// BUSY, MISCONF, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, and too many clients. Lock
	// waits them out, as any outage, and TryLock asks again for the command time-out. Any
	// other reply refuses this very request, and is returned at once, to waiters too: NOPERM,
	// and OOM, with which Redis goes on renewing and releasing locks, and grants none until somebody
	// makes room. The Limiter of a go-redis client counts as no answer; TryLock returns its
	// error at once.
	//
	// An error that matches ErrNotAcquired says what the last look at the lock saw:
	// who held it, maybe this very client, and how much of the lease was left (Error.HolderID,
	// Error.Left).
	//
	// After an error no hold and no place in a queue is left behind. A grant that was
	// under way is given back, by the watchdog if Redis cannot be reached at once, and
	// leaves a tombstone for a minute. If the process ends before that, the grant runs
	// out with its lease. Waiters of one client get the lock in the order of their
	// calls. Among clients there is no order, unless the type says so.
	Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error)

	// TryLock takes the lock if it is free, or if ctx descends from its hold, and does
	// not wait for another holder. Its errors are those of Lock, and ErrUnreachable if
	// Redis does not answer within the command time-out (WithReplicaAck adds its own). For
	// as long, it goes on trying for a RedLock of which it has seen no holder, but others
	// that try at the same time.
	TryLock(ctx context.Context, opts ...TryOption) (*Lease, error)
}

// Inspector looks at a lock, and frees it for an operator, without a lease. Every lock
// type, and each side of a read-write lock, is one. Its methods are bounded by their
// context and the command time-out. The error matches ErrUnreachable if Redis did not
// answer in time, ErrRefused if it replied with an error, ctx.Err(), ErrClosed or ErrInvalidArgument.
// That of a RedLock matches ErrNoQuorum too while the votes that could not be read decide
// whether the lock is held.
type Inspector interface {
	// State returns who holds the lock, as Redis shows it now.
	State(ctx context.Context) (State, error)

	// IsLocked reports whether anybody holds the lock, or this side of a read-write
	// lock. Its cost does not depend on the number of holders.
	IsLocked(ctx context.Context) (bool, error)

	// HoldCount returns how often the hold that ctx descends from has been entered,
	// according to Redis: 0 if it is gone, or if ctx descends from none, which costs
	// no request. Its cost does not depend on the number of holders.
	HoldCount(ctx context.Context) (int, error)

	// ForceUnlock frees the lock whoever holds it, and reports whether it was held. On
	// a side of a read-write lock it ends the holds of that side: all readers, or the
	// writer. The holder learns of it with its next renewal, as ErrRemoved (or
	// ErrTakenOver, if another acquired first); with a fixed lease only when it calls
	// Extend or Unlock, or at the end of the lease. A request that may have run is not
	// sent again: after ErrUnreachable or ctx.Err() it is unknown whether the lock was
	// freed. The first call in a cluster may take the command time-out once more.
	ForceUnlock(ctx context.Context) (bool, error)

	// ForceUnlockIf is ForceUnlock for one hold: it frees the lock only if the hold
	// with this id has it (Lease.HoldID, Holder.HoldID). A newer hold has another id,
	// unless it was handed over (WithHandOver). The request may be sent again: if a
	// reply was lost and the repeated one finds nothing, the error matches
	// ErrUnreachable, and the outcome is unknown. An empty id is refused.
	ForceUnlockIf(ctx context.Context, holdID string) (bool, error)
}

// ReleaseRequester has others asked to release a lock. Every lock type, and each side of a
// read-write lock, is one.
type ReleaseRequester interface {
	// RequestRelease asks whoever keeps others out of the lock to release it: its holder;
	// for the write side of a read-write lock the writer and all readers, for the read side
	// the writer. It returns whether there was anybody to ask. The holder decides: it hears
	// the request by [Lease.ReleaseRequested], if it listens, which nobody else can see. Java
	// processes do not. A request concerns these holds, never a later one, however late
	// or often it arrives, and stands for ten minutes, for a holder who listens later. It
	// takes two commands. After ErrUnreachable, ErrNoQuorum or ctx.Err() it is unknown
	// whether anybody was asked; to ask again does no harm.
	RequestRelease(ctx context.Context) (asked bool, err error)
}

var _ interface {
	Locker
	Inspector
	ReleaseRequester
} = (*Lock)(nil)

// Lock is a reentrant, unfair lock, the counterpart of Redisson's RLock. It excludes all
// other owners in this process, in other processes, and in Java processes that use the
// same name. It is a name without state, not a hold.
type Lock struct{ *core }

// NewLock returns the lock of a name. It sends nothing; invalid arguments, a nil Client
// or option among them, are reported by the first call.
//
// A name is any string of 1 to MaxNameLength bytes; Java clients need UTF-8. In a
// cluster, a part in braces decides the slot: "{orders}:1" and "{orders}:2" are on one
// node. A name with a brace but without such a part is refused. So is one that, with the
// prefix of the client, has the form of a key or channel beside another lock (such as
// "{orders}:timeout"; docs/keys.md lists them), or that is all in braces: the lock "{orders}"
// would have the same keys beside it as "orders". README.md says how to make names from
// input. Use one type for a name: Lock, FairLock, SpinLock and FencedLock exclude each
// other, but do not wake each other's waiters in time.
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

// Do holds the lock while fn runs. If the lock is not acquired, it does not call fn and
// returns the error of Lock. fn gets the context of the lease ([Lease.Context]): it ends
// with the lease and with ctx, lets fn enter the lock again, and has the lease with its
// fencing token at hand ([LeaseFrom]). Goroutines that fn starts exclude each other from
// all other locks. Do releases the lock if fn panics.
//
// Do joins the errors of fn and of Unlock. The end of the lease comes first: the error
// matches ErrLeaseLost if the lock was lost while fn ran, and ErrClosed if fn returned the
// error of its context because the client shuts down. It does not match context.Canceled
// then, unless ctx had ended before the lease: a loss does not look like a caller that has
// gone away. If that was all that fn returned, or fn returned the cause, the end of the lease is
// all that Do returns. A joined error is no *Error; use errors.Is and errors.As.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	switch {
	case isNil(l):
		return &Error{Err: invalid("Do needs a lock and a function")}
	case fn == nil:
		return &Error{Lock: l.Name(), Err: invalid("Do needs a function")}
	}
	lease, err := l.Lock(ctx, opts...)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // a panic
			_ = lease.Unlock(ctx)
		}
	}()
	inside := lease.Context(ctx)
	err = fn(inside)
	returned = true
	cut := cutOffOf(ctx, inside)
	return cut.result(err, lease.Unlock(ctx))
}

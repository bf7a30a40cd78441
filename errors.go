package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/wire"
)

// Errors, for errors.Is. An acquire that has failed matches one at the most of ErrNotAcquired,
// ErrUnreachable and ErrRefused, so a handler can ask in any order. What counts is what the last look saw:
//
//	what it saw                                 matches           a handler answers
//	another has the lock, or goes first         ErrNotAcquired    409
//	no answer, or none of a quorum              ErrUnreachable    503
//	an error that Redis replied                 ErrRefused        503, and tells an operator
//	nothing yet, when the context ended         only ctx.Err()    499
//
// If the context ended the wait, the error matches ctx.Err() too; that of a wait that WithWait ended
// matches no error of a context. The types all do so, and so do methods that do not wait. Waiters behind
// others in their client have seen what the first of them has.
var (
	// ErrNotAcquired: another owner holds the lock, or has a claim before this one: it is reserved
	// for a waiter, a quarantine is not over, too few replicas confirmed, or another call of this owner is
	// under way. No hold is left in Redis; a tombstone may be, for a minute.
	ErrNotAcquired = errors.New("not acquired")

	// ErrUnreachable: Redis gave no usable answer in time. If the request waited in this
	// process behind too many others, and was never sent, the message says so. A look that the end of the
	// context cut off counts only after a tenth of a second, and if the request that undoes it was not
	// answered either. As the cause of a loss it means that no renewal got through before the deadline.
	ErrUnreachable = wire.ErrUnreachable

	// ErrNoQuorum: too few masters of a RedLock could vote. It is a case of ErrUnreachable, which it matches
	// too. The message has the outcome of each node, and errors.As finds what they have replied; but the error
	// does not match ErrRefused.
	ErrNoQuorum = quorum.ErrNoQuorum

	// ErrRefused: Redis answered with an error, which errors.As finds as a redis.Error, and
	// redis.HasErrorPrefix tells by its code. At once: NOPERM (docs/acl.md), WRONGPASS, NOAUTH, and
	// OOM, with which Redis grants nothing until somebody makes room. Or after it was asked again for the
	// command time-out, by Lock for a watchdog lease: READONLY, LOADING, BUSY, MISCONF, MASTERDOWN,
	// CLUSTERDOWN, TRYAGAIN, NOREPLICAS, and too many clients. As the cause of a loss it is what
	// Redis replied to the last renewal.
	ErrRefused = wire.ErrRefused

	// ErrNotSet: no permits were set, or the semaphore was deleted. Nothing waits for that.
	ErrNotSet = errors.New("no permits were set")

	// ErrTotalUnknown: how many permits a Semaphore has, free or not, is not known: Java has set
	// them, or more are free than were set. SetPermits changes nothing then.
	ErrTotalUnknown = errors.New("how many permits there are is not known")

	// ErrLeaseLost: the hold ended before it was unlocked. The error matches one of the
	// causes below too. Another owner may use the resource since; only fencing tokens
	// protect it from work that was under way.
	ErrLeaseLost = errors.New("lease lost")

	ErrUnlocked = errors.New("already unlocked") // this Lease was unlocked before
	ErrNotHeld  = errors.New("not held")         // the lease is nil or zero

	// ErrReentrant: the context descends from a hold of this lock, which is made
	// WithNonReentrant.
	ErrReentrant = errors.New("already held by this owner, and not reentrant")

	// ErrUpgrade: the context of an acquire of the write side descends from a read
	// hold. It would wait for itself.
	ErrUpgrade = errors.New("a read lock cannot be upgraded to a write lock")

	// ErrUnconfirmed: Redis did not confirm a release. It gave no answer (then the
	// error matches ErrUnreachable too), answered with an error (ErrRefused), or the
	// go-redis client is closed (redis.ErrClosed). The lease has ended all the same.
	// The lock may stay in Redis until the lease runs out there; until then the
	// release is repeated in the background. Or a reply was lost, and the release that was
	// sent again found the hold gone: ended by the first one, or lost before it. Or the
	// release has ended a RedLock of which nobody knows whether it was lost before.
	ErrUnconfirmed = errors.New("release not confirmed")

	// ErrClosed: the Client shuts down, or has. The holder of a lease that ended with
	// it should leave, and holds the lock until it calls Unlock. (A closed go-redis
	// client returns redis.ErrClosed instead.)
	ErrClosed = errors.New("the rlock.Client is closed")

	// ErrForeignKey: the lock's key has another type, as with other lock libraries, or
	// is a hash of other data. It is not changed. Or, for a PriorityLock and a
	// FairReadWriteLock: another type of lock of this name is held; for a Semaphore, a
	// PermitSemaphore and a CountDownLatch: the number is that of another of the three.
	ErrForeignKey = wire.ErrForeignKey

	// ErrFailed: another caller ran the function of a Once, and it failed while this one waited.
	// The error matches the function's too if both are of one Client; otherwise it has its text.
	ErrFailed = errors.New("the function has failed")

	ErrNoLeader = errors.New("nobody leads") // of an Election

	// ErrInvalidArgument: refused before anything was sent; or by Redis, if there would be
	// more permits than MaxPermits. Nothing was changed.
	ErrInvalidArgument = quorum.ErrInvalidArgument
)

// Causes of a loss. An error that matches ErrLeaseLost matches one of these, ErrUnreachable
// or ErrRefused.
var (
	// ErrExpired: the lease ran out. A renewed lease does so only if this process was
	// stopped for most of it.
	ErrExpired = errors.New("lease ran out")

	// ErrRemoved: the lock is gone from Redis before its time.
	ErrRemoved = errors.New("removed from Redis: by a force-unlock, a flush, an eviction, a failover or a restart")

	ErrTakenOver = errors.New("taken over by another owner") // Redis shows another holder
	ErrMaxHold   = errors.New("longest hold time reached")   // that of WithMaxHold
)

// Error is the error of the methods of locks and leases. Use errors.Is with the
// variables of this package, or errors.As to get at the fields.
type Error struct {
	Lock   string // name of the lock
	HoldID string // id of the hold, as Redis shows it; empty if there was none

	// HolderID is the id of the hold that had the lock at the last look of an acquire that was
	// refused, or whose wait ended: one of several; empty if unknown.
	HolderID string
	Left     time.Duration // of the holder's lease; 0 if unknown or without end

	Err error // what happened
}

func (e *Error) Error() string { return "rlock: " + e.text() }

func (e *Error) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.200q", e.Lock)
	if e.HoldID != "" {
		fmt.Fprintf(&b, " (hold %s)", e.HoldID)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// onlyClosed reports whether a lease that ended with err is still held: its client shuts
// down, and it was neither unlocked nor lost.
func onlyClosed(err error) bool {
	return errors.Is(err, ErrClosed) && !errors.Is(err, ErrLeaseLost)
}

// because joins a sentinel and its cause in one line of text; both match.
func because(what, why error) error { return wire.Because(what, why) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidArgument, fmt.Sprintf(format, args...))
}

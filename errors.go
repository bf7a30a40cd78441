package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/wire"
)

// Errors, for errors.Is.
var (
	// ErrNotAcquired: another owner holds the lock or goes first, the wait was over,
	// or too few replicas confirmed. No hold is left in Redis; a tombstone may be, for
	// a minute. If the context ended the wait, the error matches the context's error
	// too; if Redis did not answer at its end, ErrUnreachable or ErrNoQuorum.
	ErrNotAcquired = errors.New("not acquired")

	// ErrNotSet: no permits were set, or the semaphore was deleted. Nothing waits for that.
	ErrNotSet = errors.New("no permits were set")

	// ErrTotalUnknown: how many permits a Semaphore has, free or not, is not known: Java has set
	// them, or more are free than were set. SetPermits changes nothing then.
	ErrTotalUnknown = errors.New("how many permits there are is not known")

	// ErrUnreachable: Redis gave no usable answer in time. If the request waited in this
	// process behind too many others, and was never sent, the message says so. As the cause of a
	// loss it means that no renewal got through before the deadline.
	ErrUnreachable = wire.ErrUnreachable

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
	// error matches ErrUnreachable too), answered with an error such as NOPERM, or the
	// go-redis client is closed (redis.ErrClosed). The lease has ended all the same.
	// The lock may stay in Redis until the lease runs out there; until then the
	// release is repeated in the background. Or a reply was lost, and the release that was
	// sent again found the hold gone: ended by the first one, or lost before it. Or the
	// release has ended a RedLock of which nobody knows whether it was lost before.
	ErrUnconfirmed = errors.New("release not confirmed")

	// ErrNoQuorum: too few masters of a RedLock could vote. The message has the outcome
	// of each, and the error matches the errors of all of them.
	ErrNoQuorum = quorum.ErrNoQuorum

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

// Causes of a loss. An error that matches ErrLeaseLost matches one of these, or
// ErrUnreachable.
var (
	// ErrExpired: the lease ran out. A renewed lease does so only if this process was
	// stopped for most of it.
	ErrExpired = errors.New("lease ran out")

	// ErrRemoved: the lock is gone from Redis before its time: force-unlocked, flushed,
	// evicted, or lost in a restart.
	ErrRemoved = errors.New("removed from Redis")

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

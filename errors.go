package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/wire"
)

// What can go wrong, for errors.Is.
var (
	// ErrNotAcquired: the lock was not taken, because another owner holds it or
	// goes first, the wait was over, or too few replicas confirmed it. No hold is left
	// behind in Redis; a tombstone may be, for a minute. When the context ended
	// the wait, the error matches the context's error too; when Redis did not
	// answer at the end of the wait, ErrUnreachable or ErrNoQuorum.
	ErrNotAcquired = errors.New("not acquired")

	// ErrUnreachable: Redis gave no usable answer in time. As the cause of a
	// loss it means that no renewal got through before the deadline.
	ErrUnreachable = wire.ErrUnreachable

	// ErrLeaseLost: the hold ended before it was unlocked. It wraps one of the
	// causes below. Whatever the lock protects may since be in use by another
	// owner; only fencing tokens protect what was already under way.
	ErrLeaseLost = errors.New("lease lost")

	// ErrUnlocked: this Lease was unlocked before.
	ErrUnlocked = errors.New("already unlocked")

	// ErrNotHeld: there is no hold to work on.
	ErrNotHeld = errors.New("not held")

	// ErrReentrant: the context descends from a hold of this lock, which
	// was made with WithNonReentrant.
	ErrReentrant = errors.New("already held by this owner, and not reentrant")

	// ErrUpgrade: the context descends from a read hold and asks for the write
	// lock, which would wait for itself.
	ErrUpgrade = errors.New("a read lock cannot be upgraded to a write lock")

	// ErrUnconfirmed: Redis did not confirm the release of a lease: it gave no answer
	// (then the error matches ErrUnreachable too), answered with an error such as
	// NOPERM, or the go-redis client is closed (redis.ErrClosed). The lease has ended
	// all the same. The lock may stand in Redis until its lease has run out; until then
	// the release is repeated in the background.
	ErrUnconfirmed = errors.New("release not confirmed")

	// ErrNoQuorum: too few masters of a RedLock could vote. The message says what
	// became of each, and the errors of all of them match too.
	ErrNoQuorum = quorum.ErrNoQuorum

	// ErrClosed: the Client shuts down, or has. Of a lease: its holder should leave,
	// and still holds the lock until it calls Unlock. It is not redis.ErrClosed, which
	// comes from a go-redis client that is closed.
	ErrClosed = errors.New("the rlock.Client is closed")

	// ErrForeignKey: the lock's key in Redis is in use for something that is not a
	// lock of this kind: another type of key, as other lock libraries use, or a hash
	// of other data. It is left as it is. Or, of a PriorityLock and FairReadWriteLock:
	// another type of lock of this name is held, which does not exclude them.
	ErrForeignKey = wire.ErrForeignKey

	// ErrInvalidArgument: refused before anything was sent.
	ErrInvalidArgument = quorum.ErrInvalidArgument
)

// Causes of a loss. An error that matches ErrLeaseLost matches one of these,
// or ErrUnreachable.
var (
	// ErrExpired: the lease ran out. A fixed lease does so by itself; a renewed
	// one only if this process was stopped for most of a lease.
	ErrExpired = errors.New("lease ran out")

	// ErrTakenOver: Redis shows another holder.
	ErrTakenOver = errors.New("taken over by another owner")

	// ErrRemoved: the lock vanished from Redis before its time: it was
	// force-unlocked, flushed, evicted, or the server restarted without it.
	ErrRemoved = errors.New("removed from Redis")

	// ErrMaxHold: the hold reached the time given with WithMaxHold.
	ErrMaxHold = errors.New("longest hold time reached")
)

// Error is what the methods of locks and leases return: which lock and owner
// it is about, and why. Use errors.Is with the variables above, or errors.As
// to get at the fields.
type Error struct {
	Lock  string // name of the lock
	Owner string // id of the hold, as Redis shows it; empty if there was none

	// Of an acquire that was refused, or whose wait has ended: who held the lock
	// when Redis was last asked, as far as is known. Of several holders it is one.
	Holder string
	// Left is what was left then of the holder's lease; 0 if that is not known or
	// the lease has no end.
	Left time.Duration

	Err error // what happened
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rlock: %.200q", e.Lock)
	if e.Owner != "" {
		fmt.Fprintf(&b, " (owner %s)", e.Owner)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap gives errors.Is and errors.As the cause.
func (e *Error) Unwrap() error { return e.Err }

// onlyClosed reports whether a lease that ended with err is still held: its client
// shuts down, and it was neither unlocked nor lost.
func onlyClosed(err error) bool {
	return errors.Is(err, ErrClosed) && !errors.Is(err, ErrLeaseLost)
}

// because joins a sentinel and its cause in one line of text; both match.
func because(what, why error) error { return wire.Because(what, why) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidArgument, fmt.Sprintf(format, args...))
}

package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/wire"
)

// Errors, for errors.Is. The error of an acquire matches at most one of the first three. What to do about each:
// https://go-rlock.github.io/rlock/latest/errors/
var (
	// ErrNotAcquired: another owner holds the lock or goes first, a quarantine is not over, too few replicas confirmed,
	// another call of this owner is under way, or WithWait ended sooner than Redis can answer (0.1 s, or a few round trips).
	ErrNotAcquired = errors.New("not acquired")
	// ErrUnreachable: Redis gave no usable answer in time; of a loss: no renewal got through before the deadline.
	ErrUnreachable = wire.ErrUnreachable
	// ErrRefused: Redis replied with an error, or something unexpected; of a loss, to the last renewal. It is a redis.Error.
	ErrRefused = wire.ErrRefused
	// ErrNoQuorum: too few masters of a RedLock could vote. It matches ErrUnreachable, or ErrRefused if so many refuse
	// for good that waiting does not help. The message has the outcome of each node.
	ErrNoQuorum = quorum.ErrNoQuorum
	// ErrLeaseLost: the hold ended before it was unlocked; the error matches its cause too. Another owner may use the
	// resource since: only fencing tokens protect it from work that was under way.
	ErrLeaseLost = errors.New("lease lost")
	// ErrUnconfirmed: the lease has ended, but Redis did not confirm the release, which is repeated in the background,
	// or a reply was lost and it is unknown whether the hold was lost before. See [Lease.Unlock].
	ErrUnconfirmed = errors.New("release not confirmed")
	// ErrForeignKey: the key of the lock holds other data, or another type that has this name. It is not changed.
	ErrForeignKey = wire.ErrForeignKey
	// ErrFailed: another caller ran the function of a Once, and it failed while this one waited. The error matches the
	// function's too if both are of one Client; otherwise it has its text.
	ErrFailed = errors.New("the function has failed")
	// ErrNotRun: the function given to Do, Once, CronJob or Election.Run was not called, for the reason that the error
	// matches too. The error of a function that ran matches neither it nor ErrUnconfirmed.
	ErrNotRun = errors.New("the function has not run")
	// ErrClosed: the Client shuts down, or has. A holder should leave, and holds the lock until it calls Unlock.
	ErrClosed = errors.New("the rlock.Client is closed") // a closed go-redis client returns redis.ErrClosed
	// ErrInvalidArgument: refused before anything was sent, or by Redis above MaxPermits. Nothing was changed.
	ErrInvalidArgument = quorum.ErrInvalidArgument

	ErrReentrant    = errors.New("already held by this owner, and not reentrant")  // a lock WithNonReentrant
	ErrUpgrade      = errors.New("a read lock cannot be upgraded to a write lock") // it would wait for itself
	ErrUnlocked     = errors.New("already unlocked")                               // by an earlier call
	ErrNotHeld      = errors.New("not held")                                       // the lease is nil or zero, or the hold of a handle has ended
	ErrNotSet       = errors.New("no permits are set: make the semaphore WithPermits, or call TrySetPermits")
	ErrTotalUnknown = errors.New("how many permits there are is not known") // see Semaphore.SetPermits
	ErrNoLeader     = errors.New("nobody leads")                            // of an Election
)

// Causes of a loss. The others are ErrUnreachable and ErrRefused.
var (
	ErrExpired   = errors.New("lease ran out")                                                                        // if it was renewed: this process was stopped for most of it
	ErrRemoved   = errors.New("removed from Redis: by a force-unlock, a flush, an eviction, a failover or a restart") // ErrForeignKey too: by other data
	ErrTakenOver = errors.New("taken over by another owner")                                                          // Redis shows another holder
	ErrMaxHold   = errors.New("longest hold time reached")                                                            // see WithMaxHold
)

// errOverwritten is the cause of a loss to other data at the key of the hold.
var errOverwritten error = overwritten{}

type overwritten struct{}

func (overwritten) Error() string        { return "removed from Redis: " + ErrForeignKey.Error() }
func (overwritten) Is(target error) bool { return target == ErrRemoved || target == ErrForeignKey }

// Error is the error of the methods of locks and leases.
type Error struct {
	Lock     string        // name of the lock
	HoldID   string        // id of the hold, as Redis shows it; empty if there was none
	HolderID string        // a hold that had the lock when this acquire was refused or gave up; empty if unknown
	Process  Process       // process of that hold; zero if unknown
	Left     time.Duration // rest of the holder's lease; 0 if unknown or without end
	Err      error         // what happened
}

// Error has the lock, the hold if there is one, and what happened.
func (e *Error) Error() string { return "rlock: " + e.text() }

func (e *Error) text() string {
	var b strings.Builder
	if e.Lock != "" { // empty if the error is about no lock, or about a handle that cannot be parsed
		fmt.Fprintf(&b, "%.200q", e.Lock)
		if e.HoldID != "" {
			fmt.Fprintf(&b, " (hold %s)", e.HoldID)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// onlyClosed reports whether the hold of a lease that ended with err still exists: its client shuts
// down, and the lease was neither unlocked nor lost.
func onlyClosed(err error) bool {
	return errors.Is(err, ErrClosed) && !errors.Is(err, ErrLeaseLost)
}

// because joins a sentinel and its cause in one line of text; both match.
func because(what, why error) error { return wire.Because(what, why) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidArgument, fmt.Sprintf(format, args...))
}

// The error of Do, Lease.Do, Once.Do, CronJob.Do and Election.Run joins the errors of a function that ran under a lease and
// of the lease. Such calls nest: a caller of the outer one must not mistake the error of an inner lock for the error of
// its own.

// notRun wraps the error of a call whose function was not called.
type notRun struct{ error }

func (e notRun) Unwrap() error        { return e.error }
func (e notRun) Is(target error) bool { return target == ErrNotRun }

// unlike is an error that matches what err matches, except not.
type unlike struct {
	err error
	not [2]error
}

func (e unlike) Error() string { return e.err.Error() }
func (e unlike) Is(target error) bool {
	return target != e.not[0] && target != e.not[1] && errors.Is(e.err, target)
}
func (e unlike) As(target any) bool { return errors.As(e.err, target) }

// asFailed returns the error of a function that ran. It may come from a call inside the function: ErrNotRun and
// ErrUnconfirmed would be about that call, so the error does not match them.
func asFailed(err error) error {
	if errors.Is(err, ErrNotRun) || errors.Is(err, ErrUnconfirmed) {
		return unlike{err, [2]error{ErrNotRun, ErrUnconfirmed}}
	}
	return err
}

// cutOff records why the context of such a function had ended when the function returned, before Unlock ended it.
type cutOff struct {
	lease       error // why the lease ended, if that came first; nil otherwise
	callerEnded bool  // the caller's context ended first
}

// cutOffOf returns why inside has ended, the context of a function under a lease: its cause is the first one,
// the end of the lease or of the caller's context.
func cutOffOf(caller, inside context.Context) cutOff {
	why, _ := context.Cause(inside).(*Error)
	theirs, _ := context.Cause(caller).(*Error) // for example, the error of an outer lease
	if why != nil && why != theirs {
		return cutOff{lease: why}
	}
	return cutOff{callerEnded: caller.Err() != nil}
}

// result joins the errors of the function and of the Unlock after it. If the lease had ended, its error comes
// first, and the result does not match context.Canceled unless the caller's context ended before: that would mean that
// the caller has gone away.
func (c cutOff) result(err, unlock error) error {
	var end error
	well := err == nil
	switch {
	case errors.Is(unlock, ErrLeaseLost), errors.Is(unlock, ErrUnlocked), errors.Is(unlock, ErrNotHeld):
		end, unlock = unlock, nil
	case errors.Is(err, context.Canceled):
		end = c.lease // the client shuts down; the lock was held until Unlock
	}
	if end != nil && !c.callerEnded {
		err = withoutCancel(err, end)
	}
	if well {
		return joined(end, unlock)
	}
	return asFailed(joined(end, err, unlock))
}

// withoutCancel returns err without the parts that only repeat that the lease has ended: nil, or an error that does not match
// context.Canceled.
func withoutCancel(err, end error) error {
	failed, _ := err.(*Error) // from context.Cause or Lease.Err
	ended, _ := end.(*Error)
	switch {
	case err == context.Canceled, failed != nil && ended != nil && *failed == *ended:
		return nil
	case errors.Is(err, context.Canceled):
		return unlike{err, [2]error{context.Canceled}}
	}
	return err
}

// onlyUnconfirmed returns the error of an Unlock, or nil if the error says only that the lease had ended.
func onlyUnconfirmed(err error) error {
	if errors.Is(err, ErrUnconfirmed) {
		return err
	}
	return nil
}

// joined is errors.Join that leaves a single error as it is.
func joined(errs ...error) (one error) {
	n := 0
	for _, err := range errs {
		if err != nil {
			one = err
			n++
		}
	}
	if n > 1 {
		return errors.Join(errs...)
	}
	return one
}

package telemetry

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

// Values of rlock.outcome.
const (
	Acquired    = "acquired"
	NotAcquired = "not_acquired" // refused, or waited without success
	Cancelled   = "cancelled"    // the caller has ended the wait, or the client has shut down
	Failed      = "error"        // with an error.type
)

// Values of rlock.end.
const (
	Unlocked = "unlocked"
	Lost     = "lost"
)

// OtherError is the error.type of all other errors.
const OtherError = "_OTHER"

// kinds name errors. An error may match several: the first counts.
var kinds = []struct {
	err  error
	name string
}{
	{rlock.ErrFailed, "failed"}, // it matches what the function has returned, too
	{rlock.ErrForeignKey, "foreign_key"},
	{rlock.ErrNoQuorum, "no_quorum"},
	{rlock.ErrUnreachable, "unreachable"},
	{rlock.ErrRefused, "refused"},
	{rlock.ErrLeaseLost, "lease_lost"},
	{rlock.ErrInvalidArgument, "invalid_argument"},
	{rlock.ErrReentrant, "reentrant"},
	{rlock.ErrUpgrade, "upgrade"},
	{rlock.ErrNotSet, "not_set"},
	{rlock.ErrUnconfirmed, "unconfirmed"},
}

// causes name why a hold was lost.
var causes = []struct {
	err  error
	name string
}{
	{rlock.ErrTakenOver, "taken_over"},
	{rlock.ErrRemoved, "removed"},
	{rlock.ErrMaxHold, "max_hold"},
	{rlock.ErrNoQuorum, "no_quorum"},
	{rlock.ErrUnreachable, "unreachable"},
	{rlock.ErrRefused, "refused"},
	{rlock.ErrExpired, "expired"},
}

// ErrorType is the error.type of an error.
func ErrorType(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return OtherError
}

// Cause is the rlock.cause of a loss.
func Cause(err error) string {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return OtherError
}

// Outcome returns the rlock.outcome of an acquire, and the error.type if the outcome is Failed. An outage never counts as a
// held lock, or as a caller that has left.
func Outcome(err error) (outcome, errorType string) {
	if err == nil {
		return Acquired, ""
	}
	if kind := ErrorType(err); kind != OtherError {
		return Failed, kind
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, rlock.ErrClosed):
		return Cancelled, ""
	case errors.Is(err, rlock.ErrNotAcquired): // also by a deadline, which bounds the wait as WithWait does
		return NotAcquired, ""
	case errors.Is(err, context.DeadlineExceeded):
		return Cancelled, ""
	}
	return Failed, OtherError
}

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrUnreachable: Redis gave no usable answer in time.
	ErrUnreachable = errors.New("no answer from Redis")

	// ErrRefused: Redis answered with an error.
	ErrRefused = errors.New("Redis refused")

	// ErrForeignKey: a key is in use for something else. Nothing was changed.
	ErrForeignKey = errors.New("the name is in use for something else")
)

// Because joins a sentinel and its cause in one line of text; both match.
func Because(what, why error) error { return fmt.Errorf("%w: %w", what, why) }

// notSent is the error of a request that waited in this process until its time was over, while the
// server answered others: the server works, but has too many requests. It matches ErrUnreachable.
type notSent struct{ within time.Duration }

func (e *notSent) Error() string {
	return fmt.Sprintf("not sent within %v: it waited in this process behind other requests, which Redis answers", Rounded(e.within))
}

func (*notSent) Is(target error) bool { return target == ErrUnreachable }

// sentLate is the error of a request without a reply that waited in this process for a part of its time: it might
// have got a reply if it had been sent immediately.
type sentLate struct {
	error
	queued time.Duration
}

func (e *sentLate) Error() string {
	return fmt.Sprintf("%v, for %v of which it waited in this process behind other requests, which Redis answers", e.error, Rounded(e.queued))
}

func (e *sentLate) Unwrap() error { return e.error }

// Ended reports whether an error is the end of a context.
func Ended(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// CutOff reports whether the end of a context may have caused an error. Such an error proves nothing
// about Redis.
func CutOff(err error) bool {
	var timeout net.Error
	return Ended(err) || errors.As(err, &timeout) && timeout.Timeout()
}

// cut is the error of a context that has ended a request after a copy of it had failed.
type cut struct {
	error
	last error // latest failure of a copy
}

func (e *cut) Unwrap() error { return e.error }

// Cut adds the latest failure of a copy, unless it is nil, to the error of the context that has ended the request.
func Cut(ended, last error) error {
	if last == nil {
		return ended
	}
	return &cut{ended, last}
}

// LastFailure returns the failure that Cut has added, or nil.
func LastFailure(err error) error {
	if !Ended(err) {
		return nil
	}
	if e := (*cut)(nil); errors.As(err, &e) {
		return e.last
	}
	return nil
}

// notNow has the codes of errors of a server that did not run the command: it may run the command later,
// or it names another server that will.
var notNow = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "NOSCRIPT", "BUSY", "MISCONF", "max number of clients"}

// Transient reports whether a request that ended in err may be sent again.
func Transient(err error) bool {
	switch {
	case errors.Is(err, redis.ErrClosed), errors.Is(err, ErrForeignKey), Panicked(err):
		return false
	case IsReply(err):
		return refused(err)
	}
	return true
}

// IsReply reports whether an error is an error reply of Redis.
func IsReply(err error) bool {
	if err == nil {
		return false
	}
	var reply redis.Error
	return errors.As(err, &reply)
}

func refused(err error) bool {
	for _, code := range notNow {
		if isPrefixed(err, code) {
			return true
		}
	}
	return false
}

// lacks reports whether an error reply means that this user may not send a command, or that the server does not have it.
func lacks(err error, command string) bool {
	if !IsReply(err) {
		return false
	}
	text := strings.ToLower(said(err))
	return (strings.HasPrefix(text, "noperm") || strings.Contains(text, "unknown command")) &&
		(strings.Contains(text, "'"+command+"'") || strings.Contains(text, "`"+command+"`"))
}

// Lacking returns the command for scripts, EVALSHA or EVAL, that an error reply refuses, or "". missing reports that the
// server does not have the command at all.
func Lacking(err error) (command string, missing bool) {
	for _, command := range []string{"evalsha", "eval"} {
		if lacks(err, command) {
			return strings.ToUpper(command), !redis.HasErrorPrefix(err, "NOPERM")
		}
	}
	return "", false
}

// NeverRan reports whether an error reply means that the script did not begin, or changed nothing: this
// user may not run scripts, or the key is not a lock.
func NeverRan(err error) bool {
	barred := redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "WRONGPASS")
	return errors.Is(err, ErrForeignKey) || barred && !strings.Contains(said(err), " script")
}

// MayHaveRun reports whether a script that ended in err may have begun: it may have
// failed half-way.
func MayHaveRun(err error) bool { return IsReply(err) && !NeverRan(err) }

// NotExecuted reports whether the server certainly did not run the request. All other failures of the
// connection leave that open, and so do errors of the context, which go-redis can return after a
// command that ran.
func NotExecuted(err error) bool {
	return refused(err) || notDialed(err) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// notDialed reports whether dialing has failed.
func notDialed(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// barred reports whether the Limiter of go-redis, such as an open circuit breaker, may have refused a
// request: it was not sent, and the error is not one of the network. Another copy would get the same
// error.
func (d *Deployment) barred(a *Answer) bool {
	var network net.Error
	return d.hasLimiter && a.unsent && !IsReply(a.Err) && !CutOff(a.Err) && !errors.As(a.Err, &network) &&
		!errors.Is(a.Err, io.EOF) && !strings.HasPrefix(a.Err.Error(), "redis: ")
}

// IsWrongType reports whether Redis says that a key is of another type.
func IsWrongType(err error) bool {
	// Redis 6 and miniredis put text before the code.
	return err != nil && strings.Contains(err.Error(), "WRONGTYPE")
}

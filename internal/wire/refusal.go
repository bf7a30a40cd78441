package wire

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// NoAnswer returns the error of a request that has not succeeded within its time. last is the last
// failure; if that is the end of a time limit, it must not match the end of the caller's context. The
// error matches ErrRefused if last is an error reply of Redis, and ErrUnreachable otherwise.
func NoAnswer(within time.Duration, last error) error {
	if Ended(last) {
		last = nil // the text already contains the time
	}
	return failure(last, "within", within)
}

// Failure is NoAnswer for a request that is not repeated.
func Failure(last error) error { return failure(last, "", 0) }

// Tried returns the error of the last of several tries. since is the time since the first try began.
func Tried(err error, since time.Duration) error {
	switch e := err.(type) {
	case *silence:
		return failure(e.last, "for", since)
	case *refusal:
		return failure(e.reply, "for", since)
	}
	return fmt.Errorf("tried for %v: %w", Rounded(since), err)
}

// ErrReply returns the error of a reply of an unexpected form, perhaps from a proxy or a hook of go-redis. It matches
// ErrRefused, and the request may have run.
func ErrReply(v any) error { return &unreadable{v} }

type unreadable struct{ reply any }

func (e *unreadable) Error() string {
	return fmt.Sprintf("unexpected reply from Redis: %.100s", fmt.Sprint(e.reply))
}
func (*unreadable) Is(target error) bool { return target == ErrRefused }
func (*unreadable) RedisError()          {}

// Unreadable reports whether an error is one of ErrReply.
func Unreadable(err error) bool { return errors.As(err, new(*unreadable)) }

// Refused makes an error match ErrRefused if it is a reply of Redis other than ErrForeignKey.
func Refused(err error) error {
	if err == nil {
		return nil // without an allocation
	}
	if r := reply(err); r != nil {
		return &refusal{reply: r}
	}
	return err
}

// final makes the error of a request that is not repeated match ErrRefused or ErrUnreachable, unless it is
// ErrForeignKey.
func final(err error) error {
	if err == nil || errors.Is(err, ErrForeignKey) || errors.Is(err, ErrUnreachable) {
		return err
	}
	return Failure(err)
}

func failure(last error, how string, d time.Duration) error {
	if r := reply(last); r != nil {
		return &refusal{r, how, d}
	}
	return &silence{last, how, d}
}

// reply returns the error reply of Redis in err, without its wrappers, or nil.
func reply(err error) error {
	var r redis.Error
	switch {
	case err == nil || errors.Is(err, ErrForeignKey) || errors.Is(err, ErrUnreachable) || !errors.As(err, &r):
		return nil
	case r == redis.Nil: // no script replies with nil
		return ErrReply(nil)
	}
	return r
}

// said returns the text of an error reply as Redis sent it, or the text of another error.
func said(err error) string {
	var r redis.Error
	if errors.As(err, &r) {
		return r.Error()
	}
	return err.Error()
}

// silence is the error of a request without a reply.
type silence struct {
	last error // last failure, or nil
	how  string
	d    time.Duration
}

func (e *silence) Error() string {
	text := ErrUnreachable.Error() + lasting(e.how, e.d)
	if e.last != nil {
		text += ": " + e.last.Error()
	}
	return text
}

// Is does not match the end of a context, by which callers find out whether their own context has ended. In last it is
// the end of a time limit of this package or of go-redis, whose dial errors match it too.
func (e *silence) Is(target error) bool {
	return target == ErrUnreachable || target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.last, target)
}
func (e *silence) As(target any) bool { return errors.As(e.last, target) }

// refusal is the error of a request to which Redis replied with an error.
type refusal struct {
	reply error
	how   string
	d     time.Duration
}

func (e *refusal) Error() string {
	text := e.reply.Error()
	if _, rest, ok := strings.Cut(text, ": -"); ok { // Redis 6
		text = rest
	}
	text = inScript.ReplaceAllString(text, "")
	return ErrRefused.Error() + lasting(e.how, e.d) + ": " + text + e.remedy()
}

func (*refusal) Is(target error) bool { return target == ErrRefused }
func (e *refusal) Unwrap() error      { return e.reply }

// inScript matches the part of an error text about the place in a script: Redis adds the script and the line in which a
// command failed, and miniredis a stack trace.
var inScript = regexp.MustCompile(`(?s) script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.?|\s*stack traceback:.*`)

// remedy returns advice about a refusal that a retry does not remove, or "".
func (e *refusal) remedy() string {
	switch {
	case isPrefixed(e.reply, "OOM"):
		return " (raise maxmemory or make room; keep maxmemory-policy noeviction: any other evicts locks)"
	case Denied(e.reply):
		return " (docs/acl.md has a user for each type)"
	case isPrefixed(e.reply, "NOAUTH"), isPrefixed(e.reply, "WRONGPASS"), isPrefixed(e.reply, "Protocol error: unauthenticated"):
		return " (user and password are those of the go-redis client)"
	}
	return ""
}

// Denied reports whether an error reply means that the user lacks a permission. For a command in a script, Redis 7.0 has
// a second text, and Redis 7.2 and Valkey have a third.
func Denied(err error) bool {
	text := err.Error()
	return strings.Contains(text, "NOPERM ") || strings.Contains(text, "The user executing the script") || strings.Contains(text, "ACL failure in script")
}

func lasting(how string, d time.Duration) string {
	if d = Rounded(d); how == "" || d == 0 {
		return ""
	}
	return fmt.Sprintf(" %s %v", how, d)
}

// Rounded rounds a duration for an error text.
func Rounded(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

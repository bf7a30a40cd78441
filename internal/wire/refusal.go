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

// NoAnswer is the error of a request that was not done within its time; last is its last
// failure. That may be the end of our own time limit, which must not look like the end of the
// caller's context. It matches ErrRefused if Redis has answered that, and ErrUnreachable otherwise.
func NoAnswer(within time.Duration, last error) error {
	if Ended(last) {
		last = nil // the text says it
	}
	return failure(last, "within", within)
}

// Failure is NoAnswer for a request that is not repeated.
func Failure(last error) error { return failure(last, "", 0) }

// Tried is the error of the last of several tries, of which the first began so long ago.
func Tried(err error, since time.Duration) error {
	switch e := err.(type) {
	case *silence:
		return failure(e.last, "for", since)
	case *refusal:
		return failure(e.reply, "for", since)
	}
	return fmt.Errorf("tried for %v: %w", Rounded(since), err)
}

// ErrReply is the error of a reply of an unexpected form, perhaps of a proxy or of a hook of go-redis. It
// counts as a reply that refuses the request, which may have run.
func ErrReply(v any) error { return &unreadable{v} }

type unreadable struct{ reply any }

func (e *unreadable) Error() string {
	return fmt.Sprintf("unexpected reply from Redis: %.100s", fmt.Sprint(e.reply))
}
func (*unreadable) Is(target error) bool { return target == ErrRefused }
func (*unreadable) RedisError()          {}

// Unreadable reports whether an error is one of ErrReply.
func Unreadable(err error) bool { return errors.As(err, new(*unreadable)) }

// Refused makes an error match ErrRefused if it is a reply of Redis, and does not say that a key is
// in use for something else.
func Refused(err error) error {
	if err == nil {
		return nil // without the room that reply needs
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

// reply is the error in which Redis refuses, without what was put around it; nil: it is none.
func reply(err error) error {
	var r redis.Error
	switch {
	case err == nil || errors.Is(err, ErrForeignKey) || errors.Is(err, ErrUnreachable) || !errors.As(err, &r):
		return nil
	case r == redis.Nil: // no script replies that
		return ErrReply(nil)
	}
	return r
}

// said is the text of a reply as Redis sent it, or that of another error.
func said(err error) string {
	var r redis.Error
	if errors.As(err, &r) {
		return r.Error()
	}
	return err.Error()
}

// silence is the error of a request without an answer.
type silence struct {
	last error // nil: none but that
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

// Is does not match the end of a context: that is a time limit of ours or of go-redis, whose dialer
// matches it too, and a caller that asks for it wants to know whether its own has ended.
func (e *silence) Is(target error) bool {
	return target == ErrUnreachable || target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.last, target)
}
func (e *silence) As(target any) bool { return errors.As(e.last, target) }

// refusal is the error of a request that Redis has answered with an error.
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

// inScript is where Redis says in which script a command failed, and miniredis in which of its lines.
var inScript = regexp.MustCompile(`(?s) script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.?|\s*stack traceback:.*`)

// remedy says what to do about a refusal that does not pass by itself.
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

// Denied reports whether Redis says that the user may not do what was asked. About a command in a script Redis 7.0 says
// it in another way, and Redis 7.2 and Valkey in a third.
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

// Rounded is a duration as a text has it.
func Rounded(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/wire"
)

// Exit statuses, in addition to the command's: as in flock, and in sysexits.h.
const (
	exitBusy        = 1
	exitUsage       = 64
	exitForeign     = 65
	exitUnavailable = 69
	exitInternal    = 70
	exitOutput      = 74
	exitLost        = 75
	exitRefused     = 77
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // and the number of the signal
)

// A failure is an exit status, and the line that explains it.
type failure struct {
	code int
	text string
	busy bool
	more *holding // state of a lock that others hold
}

func (f *failure) Error() string { return f.text }

// MarshalJSON returns the failure in fields, for programs.
func (f *failure) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Error string   `json:"error"`
		Exit  int      `json:"exit"`
		Busy  bool     `json:"busy,omitempty"`
		State *holding `json:"state,omitempty"`
	}{f.text, f.code, f.busy, f.more})
}

// ended returns a failure without a line, for a command that has written its messages itself.
func ended(code int) error {
	if code == 0 {
		return nil
	}
	return &failure{code: code}
}

func usage(format string, args ...any) error {
	return &failure{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

// counted makes a wrong number of arguments a usage error.
func counted(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, all []string) error {
		if err := args(cmd, all); err != nil {
			return usage("%v: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// interrupted is the cause with which a signal ends a wait.
type interrupted struct{ signal os.Signal }

func (i interrupted) Error() string { return i.signal.String() }

// failure returns the failure for an error, or nil without one.
func (a *app) failure(err error) (f *failure) {
	if err != nil && !errors.As(err, &f) {
		f = a.failed(err)
	}
	return f
}

// failed finds the exit status of an error of the library. It first checks whether Redis answered: an outage must never
// look like a held lock.
func (a *app) failed(err error) *failure {
	var sig interrupted
	var never silence
	text := plain(err)
	switch {
	case errors.As(err, &sig):
		return &failure{code: signalCode(sig.signal)}
	case errors.As(err, &never):
		return &failure{code: exitUnavailable, text: a.links.explained("no lock from Redis: " + text)}
	case errors.Is(err, rlock.ErrInvalidArgument):
		return &failure{code: exitUsage, text: text}
	case errors.Is(err, rlock.ErrForeignKey):
		return &failure{code: exitForeign, text: text}
	case errors.Is(err, rlock.ErrRefused) && forbidden(err):
		return &failure{code: exitRefused, text: "the user of Redis may not do this: " + text + " (rlock check tells what it lacks)"}
	case errors.Is(err, rlock.ErrUnreachable), errors.Is(err, rlock.ErrNotAcquired) && a.links != nil && !a.links.answered():
		return &failure{code: exitUnavailable, text: a.links.explained("no lock from Redis: " + text)}
	case errors.Is(err, rlock.ErrRefused):
		return &failure{code: exitUnavailable, text: "no lock from Redis: " + text}
	case errors.Is(err, rlock.ErrLeaseLost):
		return &failure{code: exitLost, text: text}
	case errors.Is(err, rlock.ErrNotAcquired):
		return &failure{code: a.busyCode(), text: text, busy: true}
	case errors.Is(err, context.Canceled):
		return &failure{code: exitInternal, text: text}
	}
	return &failure{code: exitInternal, text: text}
}

// forbidden reports whether Redis refuses the user: it lacks a permission, or is unknown.
func forbidden(err error) bool {
	for _, code := range []string{"NOAUTH", "WRONGPASS"} {
		if redis.HasErrorPrefix(err, code) || strings.Contains(err.Error(), code+" ") {
			return true
		}
	}
	return wire.Denied(err)
}

// plain returns an error in one line, without the name of the library, because each line begins with that name.
func plain(err error) string {
	return strings.ReplaceAll(strings.ReplaceAll(err.Error(), "rlock: ", ""), "\n", "; ")
}

func (a *app) busyCode() int {
	if a.busySet {
		return a.busy
	}
	return exitBusy
}

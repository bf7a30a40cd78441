package wire

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// panicError is a panic in code of the user's that the library has called from a
// goroutine of its own: a hook of the go-redis client, a dialer, an Observer, a
// log handler. There it would end the process, with every hold that it has. So it
// becomes an error: that of the request, which may or may not have run.
type panicError struct {
	where string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.where, e.value) }

// Unwrap is for a panic with an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// Panicked reports whether a request ended in a panic. It is not sent again at
// once: the next would end the same way.
func Panicked(err error) bool {
	var p *panicError
	return errors.As(err, &p)
}

// GoRedis is where the code of a user runs inside of go-redis, for Caught.
const GoRedis = "go-redis, its hooks or its dialer"

// Panics makes errors of panics in code of the user's, and reports the first one of
// each place.
type Panics struct {
	// Report is told of it; it must not panic itself.
	Report func(where string, err error, stack string)

	seen sync.Map // places
}

// Caught is deferred around code of the user's. It makes an error of a panic, if
// somebody wants it.
func (s *Panics) Caught(where string, err *error) {
	value := recover()
	if value == nil {
		return
	}
	p := &panicError{where, value}
	if err != nil {
		*err = p
	}
	if _, seen := s.seen.LoadOrStore(where, true); !seen {
		s.Report(where, p, string(debug.Stack()))
	}
}

// Safely calls go-redis, and makes an error of a panic.
func (d *Deployment) Safely(fn func() error) (err error) {
	defer d.cfg.Panics.Caught(GoRedis, &err)
	return fn()
}

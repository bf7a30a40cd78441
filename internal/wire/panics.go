package wire

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// panicError is a panic in the user's code on a goroutine of the library: in a hook of the go-redis
// client, a dialer, an Observer, a log handler. It would end the process, and all its holds. So the
// panic becomes an error of the request, which may or may not have run.
type panicError struct {
	where string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.where, e.value) }

// Unwrap returns the value of the panic if that is an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// Panicked reports whether a request ended in a panic. Such a request is not sent again immediately:
// the next copy would end the same way.
func Panicked(err error) bool {
	var p *panicError
	return errors.As(err, &p)
}

// GoRedis names the user's code inside go-redis, for Caught.
const GoRedis = "go-redis, its hooks or its dialer"

// Panics turns panics in the user's code into errors, and reports the first one of each
// place.
type Panics struct {
	// Report gets the first panic of each place. It must not panic itself.
	Report func(where string, err error, stack string)

	seen sync.Map // places that have panicked
}

// Caught is deferred around the user's code. It turns a panic into an error, and stores it in
// err, unless err is nil.
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

// Safely calls go-redis, and turns a panic into an error.
func (d *Deployment) Safely(fn func() error) (err error) {
	defer d.cfg.Panics.Caught(GoRedis, &err)
	return fn()
}

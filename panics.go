package rlock

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// panicError is a panic in code of the user's that the library has called from a
// goroutine of its own: a hook of the go-redis client, a dialer, an Observer, a
// log handler. There it would end the process, with every hold that it has, so it
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

// panicked reports whether a request ended in a panic. It is not sent again at
// once: the next would end the same way.
func panicked(err error) bool {
	var p *panicError
	return errors.As(err, &p)
}

// goRedis is where the code of a user runs inside of go-redis.
const goRedis = "go-redis, its hooks or its dialer"

// safely calls go-redis.
func (c *Client) safely(fn func() error) (err error) {
	defer c.caught(goRedis, &err)
	return fn()
}

// caught is deferred around code of the user's. It makes an error of a panic, if
// somebody wants it, and logs the first one of each place with its stack.
func (c *Client) caught(where string, err *error) {
	value := recover()
	if value == nil {
		return
	}
	p := &panicError{where, value}
	if err != nil {
		*err = p
	}
	if _, seen := c.panics.LoadOrStore(where, true); seen {
		return
	}
	stack := string(debug.Stack())
	c.tell(func() {
		c.cfg.logger.Error("rlock: panic in code that the library has called", "where", where, "error", p, "stack", stack)
	})
}

// observer is the user's, without its panics: a lease that has been granted is
// handed out whatever an Observer does.
type observer struct {
	c  *Client
	to Observer
}

var _ Observer = observer{}

func (o observer) AcquireStart(ctx context.Context, lock string) (out context.Context) {
	defer func() {
		if out == nil {
			out = ctx
		}
	}()
	defer o.c.caught("Observer.AcquireStart", nil)
	return o.to.AcquireStart(ctx, lock)
}

func (o observer) AcquireEnd(ctx context.Context, e AcquireEvent) {
	defer o.c.caught("Observer.AcquireEnd", nil)
	o.to.AcquireEnd(ctx, e)
}

func (o observer) Contended(lock string) {
	defer o.c.caught("Observer.Contended", nil)
	o.to.Contended(lock)
}

func (o observer) Renewed(lock, owner string) {
	defer o.c.caught("Observer.Renewed", nil)
	o.to.Renewed(lock, owner)
}

func (o observer) Lost(e LossEvent) {
	defer o.c.caught("Observer.Lost", nil)
	o.to.Lost(e)
}

func (o observer) Unlocked(e UnlockEvent) {
	defer o.c.caught("Observer.Unlocked", nil)
	o.to.Unlocked(e)
}

func (o observer) Retry(operation string, err error) {
	defer o.c.caught("Observer.Retry", nil)
	o.to.Retry(operation, err)
}

func (o observer) Subscription(channel string, on bool) {
	defer o.c.caught("Observer.Subscription", nil)
	o.to.Subscription(channel, on)
}

func (o observer) Dropped(events int) {
	defer o.c.caught("Observer.Dropped", nil)
	o.to.Dropped(events)
}

func (o observer) Unpublished(err error) {
	defer o.c.caught("Observer.Unpublished", nil)
	o.to.Unpublished(err)
}

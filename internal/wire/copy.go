package wire

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentCopy is one copy of a request on its way through go-redis: the command, its context
// and its arguments in one block of memory. It is never used again: go-redis or a hook may
// keep it for longer than the request takes.
type sentCopy struct {
	redis.Cmd // go-redis must not repeat it: see once
	io        ioContext
	room      [12]any // for the arguments of most scripts
}

func (*sentCopy) NoRetry() bool { return true }

// newCopy returns a copy of the request of a call.
func newCopy(c *call) *sentCopy {
	s := &sentCopy{io: ioContext{Context: c.ctx, deadline: c.deadline, over: c.over}}
	// NewCmd's result does not leave this line, so it is not allocated.
	s.Cmd = *redis.NewCmd(&s.io, c.r.words(s.room[:0], false)...)
	if c.r.Script != nil {
		s.SetFirstKeyPos(3)
	}
	return s
}

// ioContext is the context of one copy of a request. It has the values of the caller's, and
// ends when the call returns without the answer. A context.WithTimeout would cost several
// times what the rest of a call does.
type ioContext struct {
	context.Context // the caller's
	deadline        time.Time
	over            <-chan struct{}
}

// Deadline implements context.Context.
func (c *ioContext) Deadline() (time.Time, bool) {
	if at, ok := c.Context.Deadline(); ok && at.Before(c.deadline) {
		return at, true
	}
	return c.deadline, true
}

// Done implements context.Context.
func (c *ioContext) Done() <-chan struct{} { return c.over }

// Err implements context.Context.
func (c *ioContext) Err() error {
	select {
	case <-c.over:
	default:
		return nil
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	if time.Now().Before(c.deadline) {
		return context.Canceled
	}
	return context.DeadlineExceeded
}

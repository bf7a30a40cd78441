package wire

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// flight records whether a copy of a request may have left this process. go-redis calls Args of a
// command when it writes the command. Its errors do not show whether it has written: a dial, a handshake
// or the wait for a connection may have failed or taken too long. If a hook or the router of a cluster
// calls Args earlier, the copy counts as written.
type flight struct{ state atomic.Uint32 }

const (
	atHome    = iota // Args was not called
	written          // the words may have been sent
	withdrawn        // the words must not be sent any more
)

// leave is called by Args, and reports whether the words may be sent.
func (f *flight) leave() bool {
	return f.state.CompareAndSwap(atHome, written) || f.state.Load() == written
}

// withdraw makes a copy that has not left the process stay there for ever, and reports whether it does.
func (f *flight) withdraw() bool {
	return f.state.CompareAndSwap(atHome, withdrawn) || f.state.Load() == withdrawn
}

// grounded is the flight of a copy that was withdrawn before it was made.
var grounded = new(flight)

// void returns the words that are sent in place of a withdrawn script: a script that does
// nothing, in the same form, because hooks may rely on the form.
func void(words []any) []any {
	if len(words) < 3 {
		return words // a command that only reads
	}
	return append([]any{"eval", "return nil"}, words[2:]...)
}

// sentCopy is one copy of a request on its way through go-redis: the command, its context and its
// arguments in one allocation. It is never reused, because go-redis or a hook may keep it for longer
// than the request takes.
type sentCopy struct {
	redis.Cmd // go-redis must not repeat it: see once
	flight    flight
	io        ioContext
	room      [12]any // enough for the arguments of most scripts
}

func (*sentCopy) NoRetry() bool { return true }

// Args implements redis.Cmder.
func (s *sentCopy) Args() []any {
	words := s.Cmd.Args()
	if s.flight.leave() {
		return words
	}
	return void(words)
}

// Clone implements redis.Cmder. A hook may send the clone.
func (s *sentCopy) Clone() redis.Cmder { return redis.NewCmd(context.Background(), s.Args()...) }

// newCopy returns a copy of a request, with the text of its script (whole) or its hash. Its context has the values of
// ctx, and ends at the deadline, or when abandoned is closed.
func newCopy(ctx context.Context, r *Request, whole bool, deadline time.Time, abandoned <-chan struct{}) *sentCopy {
	s := &sentCopy{io: ioContext{Context: ctx, deadline: deadline, abandoned: abandoned}}
	// The result of NewCmd does not escape, so it is not allocated.
	s.Cmd = *redis.NewCmd(&s.io, r.words(s.room[:0], whole)...)
	if r.Script != nil {
		s.SetFirstKeyPos(3)
	}
	return s
}

// packed is a parcel on its way through go-redis. Args leaves out the requests that were withdrawn.
type packed struct {
	redis.Cmd
	which   []int                           // requests of the parcel
	flights []flight                        // flights of the batch; nil if no request can be withdrawn
	some    func(which []int) (words []any) // words for some of the requests

	mu       sync.Mutex // guards the rest
	words    []any      // words that Args has returned
	kept     []int      // requests in these words
	isSealed bool       // Args returns no request any more
}

func (*packed) NoRetry() bool { return true }

// Args implements redis.Cmder.
func (c *packed) Args() []any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.words != nil {
		return c.words
	}
	c.words = c.Cmd.Args()
	switch c.kept = c.leaveLocked(); len(c.kept) {
	case len(c.which):
	case 0:
		c.words = void(c.words)
	default:
		c.words = c.some(c.kept)
	}
	return c.words
}

func (c *packed) leaveLocked() []int {
	if c.isSealed {
		return nil
	} else if c.flights == nil {
		return c.which
	}
	return slices.DeleteFunc(slices.Clone(c.which), func(i int) bool { return !c.flights[i].leave() })
}

// Clone implements redis.Cmder. A hook may send the clone.
func (c *packed) Clone() redis.Cmder { return redis.NewCmd(context.Background(), c.Args()...) }

// sent returns the requests that may have been sent, or were answered by a hook. The others will never be sent.
func (c *packed) sent() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSealed = true; c.words == nil && c.Err() == nil {
		return c.which
	}
	return c.kept
}

// ioContext is the context of one copy of a request. It has the values of the caller's context, and
// ends when the call returns without a reply. A context.WithTimeout would cost several times as much as
// the rest of a call.
type ioContext struct {
	context.Context // context of the caller
	deadline        time.Time
	abandoned       <-chan struct{}
}

// Deadline implements context.Context.
func (c *ioContext) Deadline() (time.Time, bool) {
	if at, ok := c.Context.Deadline(); ok && at.Before(c.deadline) {
		return at, true
	}
	return c.deadline, true
}

// Done implements context.Context.
func (c *ioContext) Done() <-chan struct{} { return c.abandoned }

// Err implements context.Context.
func (c *ioContext) Err() error {
	select {
	case <-c.abandoned:
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

// callersContext is the context of a pipeline for several callers. It has the values of the first
// caller's context, but ends with the pipeline.
type callersContext struct {
	context.Context // bounds the pipeline
	values          context.Context
	all             []context.Context
}

func forCallers(bounded context.Context, all []context.Context) *callersContext {
	return &callersContext{bounded, context.WithoutCancel(all[0]), all}
}

type callersKey struct{}

// Value implements context.Context.
func (c *callersContext) Value(key any) any {
	if key == (callersKey{}) {
		return c.all
	}
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// Callers returns the contexts of the callers whose requests share a pipeline, or nil if ctx is not the
// context of such a pipeline.
func Callers(ctx context.Context) []context.Context {
	all, _ := ctx.Value(callersKey{}).([]context.Context)
	return all
}

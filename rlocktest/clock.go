package rlocktest

import (
	"bytes"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// clock is the real clock plus an offset that only grows. All clients of a
// server share it.
type clock struct {
	mu     sync.RWMutex // guards the rest
	offset time.Duration
	timers map[*timer]struct{} // those that are armed, or have fired since
}

// timer is a real timer that goes along with the jumps of its clock.
type timer struct {
	clock *clock
	real  *time.Timer

	// Guarded by clock.mu.
	at     time.Time // when it fires, on the clock
	ignore bool      // it has fired and its owner is busy: do not wait for it
}

var _ seam.Clock = (*clock)(nil)

func newClock() *clock { return &clock{timers: map[*timer]struct{}{}} }

// Now keeps the monotonic reading of time.Now.
func (c *clock) Now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.nowLocked()
}

func (c *clock) nowLocked() time.Time { return time.Now().Add(c.offset) }

func (c *clock) NewTimer(d time.Duration) seam.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{clock: c, at: c.nowLocked().Add(d), real: time.NewTimer(d)}
	c.timers[t] = struct{}{}
	return t
}

func (t *timer) C() <-chan time.Time { return t.real.C }

func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.timers, t)
	return t.real.Stop()
}

func (t *timer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.at, t.ignore = t.clock.nowLocked().Add(d), false
	t.clock.timers[t] = struct{}{}
	return t.real.Reset(d)
}

// jump moves the clock to a time, and along with it what forward moves. Nobody
// can look at the clock in between: who has seen the new time finds that the
// TTLs in Redis have gone along, so a lease that is set after the jump is not
// shortened by it.
func (c *clock) jump(to time.Time, forward func(time.Duration)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := to.Sub(c.nowLocked())
	if d <= 0 {
		return
	}
	c.offset += d
	forward(d)
	now := c.nowLocked()
	for t := range c.timers {
		if t.real.Stop() { // it has not fired
			t.real.Reset(max(t.at.Sub(now), 0))
		}
	}
}

// next is when the next timer fires, or end if none does before; then there is
// no more to come.
func (c *clock) next(end time.Time) (at time.Time, more bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	at = end
	for t := range c.timers {
		if !t.ignore && t.at.Before(at) {
			at, more = t.at, true
		}
	}
	return at, more
}

// due reports whether a timer has fired, or is about to, and its owner has not
// dealt with that: it stops the timer, or sets it anew, when it has.
func (c *clock) due() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	now := c.nowLocked()
	for t := range c.timers {
		if !t.ignore && !t.at.After(now) {
			return true
		}
	}
	return false
}

// forget stops waiting for the owners of the timers that are due.
func (c *clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.nowLocked()
	for t := range c.timers {
		t.ignore = t.ignore || !t.at.After(now)
	}
}

const library = "github.com/go-rlock/rlock."

var (
	// commands are the functions that start a goroutine for commands: a round
	// of renewals, which ends when each hold has been told the answer, and a
	// single command.
	commands = [][]byte{
		[]byte("created by " + library + "(*watchdog).run"),
		[]byte("created by " + library + "(*watchdog).round"),
		[]byte("created by " + library + "(*Client).call"),
	}
	// sleepers are the goroutines that wait in a select for something to do: a
	// watchdog and a waiter.
	sleepers = [][]byte{
		[]byte("created by " + library + "(*watchdog).add"),
		[]byte("\n" + library + "(*attempt).wait("),
	}
)

// working are the goroutines, by name, that have commands under way, deal with
// the answers, or are about to look what there is to do. The library has no
// other way to tell, so this looks at the stacks, as leak checkers do.
func working() map[string]struct{} {
	stacks := make([]byte, 64<<10)
	for {
		n := runtime.Stack(stacks, true)
		if n < len(stacks) {
			stacks = stacks[:n]
			break
		}
		stacks = make([]byte, 2*len(stacks))
	}
	busy := map[string]struct{}{}
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		in := func(function []byte) bool { return bytes.Contains(stack, function) }
		name, state, _ := bytes.Cut(stack, []byte(" [")) // "goroutine 7 [select, 2 minutes]:"
		asleep := bytes.HasPrefix(state, []byte("select"))
		if slices.ContainsFunc(commands, in) || !asleep && slices.ContainsFunc(sleepers, in) {
			busy[string(name)] = struct{}{}
		}
	}
	return busy
}

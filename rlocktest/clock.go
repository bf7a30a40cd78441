package rlocktest

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// clock is the real clock plus an offset that only grows. All clients of a
// server share it.
type clock struct {
	bubble bool // the clock belongs to a synctest bubble

	mu     sync.RWMutex // guards the rest
	offset time.Duration
	timers map[*timer]struct{} // timers that are armed, or have fired and were not stopped
}

// timer is a real timer that follows the jumps of its clock.
type timer struct {
	clock *clock
	real  *time.Timer

	// Guarded by clock.mu.
	at     time.Time // when it fires, on the clock
	ignore bool      // the timer has fired and its owner is busy: do not wait for it
	short  int       // how often in a row the timer was set to a short time
}

const (
	// A timer that was set to less than shortPause manyPauses times in a row belongs
	// to a goroutine that polls. A step of the clock continues to skipPauses beyond
	// it, unless something else is due earlier.
	shortPause = 250 * time.Millisecond
	manyPauses = 20
	skipPauses = 5 * time.Second
)

var _ seam.Clock = (*clock)(nil)

func newClock() *clock { return &clock{bubble: bubbled(), timers: map[*timer]struct{}{}} }

// bubbled reports whether the goroutine is in a synctest bubble: there time.Now has no monotonic
// reading, and everywhere else it has.
func bubbled() bool { return isOfBubble(time.Now()) }

func isOfBubble(now time.Time) bool { return now == now.Round(0) }

// ofBubble reports whether t is what synctest.Test gives to its function.
func ofBubble(t testing.TB) (is bool) {
	d, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return true // a wrapper: not known
	}
	defer func() { is = recover() != nil }() // it has no deadline, as the bubble has a clock of its own
	_, _ = d.Deadline()
	return false
}

// wrongBubble is the message with which a program panics that would otherwise wait forever.
const wrongBubble = "rlocktest: this server belongs outside of the synctest bubble in which it is used, or to another one: call rlocktest.New inside of the bubble, with its *testing.T"

// Now keeps the monotonic reading of time.Now.
func (c *clock) Now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.nowLocked()
}

func (c *clock) nowLocked() time.Time {
	now := time.Now()
	if isOfBubble(now) != c.bubble {
		panic(wrongBubble)
	}
	return now.Add(c.offset)
}

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
	if t.short++; d >= shortPause {
		t.short = 0
	}
	t.clock.timers[t] = struct{}{}
	return t.real.Reset(d)
}

// jump moves the clock to a time, and sets the time of Redis by tell, as one step:
// a goroutine that reads the new time finds that the TTLs in Redis have followed, so
// the jump does not shorten a lease that is set after it.
func (c *clock) jump(to time.Time, tell func(time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := to.Sub(c.nowLocked())
	if d <= 0 {
		return
	}
	c.offset += d
	now := c.nowLocked()
	tell(now)
	for t := range c.timers {
		if t.real.Stop() { // the timer had not fired
			t.real.Reset(max(t.at.Sub(now), 0))
		}
	}
}

// show sets the time of Redis by tell.
func (c *clock) show(tell func(time.Time)) {
	c.mu.Lock() // so that these times only grow
	defer c.mu.Unlock()
	tell(c.nowLocked())
}

// next returns when the next timer fires, or end if none fires before (more is false).
// At end all timers have fired; on the way, timers of goroutines that poll very often
// are skipped.
func (c *clock) next(end time.Time) (at time.Time, more bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	at = end
	for t := range c.timers {
		when := t.at
		if t.short >= manyPauses {
			when = when.Add(skipPauses)
		}
		if !t.ignore && when.Before(at) {
			at, more = when, true
		}
	}
	return at, more
}

// due reports whether a timer has fired, or is about to, and its owner has not handled
// that yet: it then stops the timer, or sets it again.
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

// hold keeps all timers from firing until release is called. It fails if a timer has fired, or is
// about to, and its owner has not handled that yet.
func (c *clock) hold() (release func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.nowLocked()
	for t := range c.timers {
		if !t.ignore && !t.at.After(now) {
			return func() {}, false
		}
	}
	var held []*timer
	for t := range c.timers {
		if t.real.Stop() {
			held = append(held, t)
		}
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		now := c.nowLocked()
		for _, t := range held {
			if _, armed := c.timers[t]; armed {
				t.real.Reset(max(t.at.Sub(now), 0))
			}
		}
	}, true
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

// works has the work that is under way in the clients: commands, the handling of
// their replies, and serving what is due.
type works struct {
	mu   sync.Mutex // guards the rest
	last int
	now  map[int]struct{}
}

// begin implements Work of seam.Env.
func (w *works) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now == nil {
		w.now = map[int]struct{}{}
	}
	w.last++
	n := w.last
	w.now[n] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.now, n)
	}
}

// underWay returns the work that has not ended.
func (w *works) underWay() map[int]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.now)
}

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
	bubble bool // it is that of a synctest bubble

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
	short  int       // how often in a row it was set to a short time
}

const (
	// A timer that was set to less than shortPause for manyPauses times in a row
	// belongs to somebody who looks again and again. A step of the clock goes on to
	// skipPauses beyond it, unless something else is due earlier.
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
		return true // a wrapper: nobody knows
	}
	defer func() { is = recover() != nil }() // it has no deadline, as the bubble has a clock of its own
	_, _ = d.Deadline()
	return false
}

// wrongBubble is why a program that would wait forever stops at once.
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

// jump moves the clock to a time, and tells it to Redis. Nobody can look at the
// clock in between: who has seen the new time finds that the TTLs in Redis have
// gone along, so a lease that is set after the jump is not shortened by it.
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
		if t.real.Stop() { // it has not fired
			t.real.Reset(max(t.at.Sub(now), 0))
		}
	}
}

// show tells the time to Redis.
func (c *clock) show(tell func(time.Time)) {
	c.mu.Lock() // so that the times that are told only grow
	defer c.mu.Unlock()
	tell(c.nowLocked())
}

// next is when the next timer fires, or end if none does before; then there is
// no more to come. All timers have fired at end; on the way there the looks of
// those who look very often are left out.
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

// hold keeps all timers from firing until release is called. It holds none if one has fired, or is
// about to, and its owner has not dealt with that.
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

// works are what the clients have under way: commands, what follows from their
// answers, and looks at what is due.
type works struct {
	mu   sync.Mutex // guards the rest
	last int
	now  map[int]struct{}
}

// begin is the seam.Env's Work.
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

// underWay is what has begun and not ended.
func (w *works) underWay() map[int]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.now)
}

package locktest

import (
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// Clock is a clock that a test puts forward, so that renewals fall due and leases end without
// a wait, and leases can be long enough for any machine. Leases, renewals and polls of clients
// follow it; Redis, contexts and time-outs do not.
type Clock struct {
	mu     sync.Mutex // guards the rest
	ahead  time.Duration
	timers []*clockTimer
}

type clockTimer struct {
	*time.Timer
	clock *Clock
	at    time.Time // guarded by clock.mu
}

// Option has a client follow the clock.
func (c *Clock) Option() rlock.Option { return seam.Option(seam.Env{Clock: c}).(rlock.Option) }

// Forward puts the clock forward.
func (c *Clock) Forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
	for _, t := range c.timers {
		if t.Stop() {
			t.Timer.Reset(max(t.at.Sub(c.nowLocked()), 0))
		}
	}
}

// Now implements seam.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *Clock) nowLocked() time.Time { return time.Now().Add(c.ahead) }

// NewTimer implements seam.Clock.
func (c *Clock) NewTimer(d time.Duration) seam.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &clockTimer{Timer: time.NewTimer(d), clock: c, at: c.nowLocked().Add(d)}
	c.timers = append(c.timers, t)
	return t
}

// C implements seam.Timer.
func (t *clockTimer) C() <-chan time.Time { return t.Timer.C }

// Reset implements seam.Timer.
func (t *clockTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.at = t.clock.nowLocked().Add(d)
	return t.Timer.Reset(d)
}

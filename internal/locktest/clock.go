package locktest

import (
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/seam"
)

// Clock is a clock that a test puts forward, so that renewals fall due and leases end without
// a wait, and leases can be long enough for any machine. Leases, renewals and polls of clients
// follow it, and the servers of EachClocked; other servers, contexts and timeouts do not.
type Clock struct {
	mu      sync.Mutex // guards the rest
	ahead   time.Duration
	timers  []*clockTimer
	servers []func(ahead time.Duration) // set their clocks
	atWork  int                         // goroutines of clients that do not sleep
}

type clockTimer struct {
	*time.Timer
	clock *Clock
	at    time.Time // guarded by clock.mu
}

// EachClocked is EachRedis on servers whose clock the test puts forward: keys expire by it. Only some machines can
// do that with a real one, so it is that which is left to CI.
func EachClocked(t *testing.T, scenario func(t *testing.T, b *Backend, clock *Clock)) {
	t.Helper()
	Beside(t, "miniredis", func(t *testing.T) {
		b := OnMiniredis(t)
		scenario(t, b, &Clock{servers: []func(time.Duration){func(ahead time.Duration) { b.Mini.SetTime(time.Now().Add(ahead)) }}})
	})
	Beside(t, "standalone", func(t *testing.T) {
		Thorough(t)
		s := redistest.StartClocked(t, 1)[0]
		scenario(t, At(s.Server), &Clock{servers: []func(time.Duration){s.SetClock}})
	})
}

// Option has a client follow the clock.
func (c *Clock) Option() rlock.Option {
	return seam.Option(seam.Env{Clock: c, Work: c.Work}).(rlock.Option)
}

// Work is the Work of the client in a seam.Env of the test's own.
func (c *Clock) Work() (end func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.atWork += n
	}
	add(1)
	return func() { add(-1) }
}

// Rest waits until the clients sleep, so that the timers are set that Forward is to fire.
func (c *Clock) Rest(t testing.TB) {
	t.Helper()
	Eventually(t, "all clients of the clock sleep", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.atWork == 0
	})
}

// Skip puts the clock forward for clients alone, and fires no timer before the next Forward: a caller that reads the clock
// can come before whatever the timers are for.
func (c *Clock) Skip(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// Forward puts the clock forward, for clients and servers in one moment.
func (c *Clock) Forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
	for _, set := range c.servers {
		set(c.ahead)
	}
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

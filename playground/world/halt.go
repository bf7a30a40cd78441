package world

import (
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// halt stops a process, as SIGSTOP does: its timers do not fire, and its code goes no further than the next point
// where it waits. The time goes on.
type halt struct {
	mu      sync.Mutex    // guards the rest
	resumed chan struct{} // closed when the process continues; nil while it runs
	timers  map[*timer]struct{}
}

func newHalt() *halt { return &halt{timers: map[*timer]struct{}{}} }

// pause reports whether the process ran.
func (h *halt) pause() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resumed != nil {
		return false
	}
	h.resumed = make(chan struct{})
	for t := range h.timers {
		if !t.real.Stop() { // it has fired
			delete(h.timers, t)
		}
	}
	return true
}

// resume reports whether the process was stopped. Timers that were due in the meantime fire.
func (h *halt) resume() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resumed == nil {
		return false
	}
	close(h.resumed)
	h.resumed = nil
	for t := range h.timers {
		t.real.Reset(max(time.Until(t.at), 0))
	}
	return true
}

// wait waits while the process is stopped. It is the gate of seam.Env.
func (h *halt) wait(string) {
	for {
		h.mu.Lock()
		resumed := h.resumed
		h.mu.Unlock()
		if resumed == nil {
			return
		}
		<-resumed
	}
}

func (h *halt) stopped() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resumed != nil
}

// Now implements seam.Clock.
func (h *halt) Now() time.Time { return time.Now() }

// NewTimer implements seam.Clock.
func (h *halt) NewTimer(d time.Duration) seam.Timer {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &timer{halt: h, real: time.NewTimer(d)}
	t.disarm()
	t.arm(d)
	return t
}

// timer is a real timer that does not fire while its process is stopped.
type timer struct {
	halt *halt
	real *time.Timer
	at   time.Time // guarded by halt.mu
}

func (t *timer) C() <-chan time.Time { return t.real.C }

func (t *timer) Stop() bool {
	t.halt.mu.Lock()
	defer t.halt.mu.Unlock()
	return t.disarm()
}

func (t *timer) Reset(d time.Duration) bool {
	t.halt.mu.Lock()
	defer t.halt.mu.Unlock()
	armed := t.disarm()
	t.arm(d)
	return armed
}

// disarm reports whether the timer would have fired. The caller holds halt.mu, here and below.
func (t *timer) disarm() bool {
	_, held := t.halt.timers[t]
	delete(t.halt.timers, t)
	return t.real.Stop() || held && t.halt.resumed != nil
}

func (t *timer) arm(d time.Duration) {
	t.at = time.Now().Add(d)
	t.halt.timers[t] = struct{}{}
	if t.halt.resumed == nil {
		t.real.Reset(d)
	}
}

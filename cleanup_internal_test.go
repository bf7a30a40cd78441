package rlock

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/wire"
)

// Clean-ups that an outage has held up come at most a thousand in a second, and none is
// left out. One that comes alone later does not wait.
func TestHeldUpCleanUpsTakeTurns(t *testing.T) {
	const n = 5_000
	var s cleanups
	now := clock.Instant(time.Hour)
	turns := map[clock.Instant]int{}
	for range n {
		turns[s.turnAfter(now)]++
	}
	for at, many := range turns {
		if many > wire.RoundSize || at.Before(now) || at.Sub(now)%turnEvery != 0 || at.Sub(now) > n*time.Millisecond {
			t.Errorf("%d after %v", many, at.Sub(now))
		}
	}
	if later := now.Add(time.Minute); s.turnAfter(later) != later {
		t.Error("one that comes alone waits")
	}
}

// A clean-up that was held up is sent in its turn, once for each copy that is not answered.
func TestHeldUpCleanUpIsSentInItsTurn(t *testing.T) {
	c := unserved(t)
	defer c.watchdog.close()
	now := c.now()
	l := c.NewLock("a").core
	u := &cleanup{of: c.cleanups, task: l.asks.Abandon(l.asks.NewID().ID, true), until: now.Add(time.Hour), done: make(chan struct{}), pause: time.Second}
	for i, held := range []bool{false, true, true} {
		u.held = held
		if held {
			for range wire.RoundSize {
				c.cleanups.turnAfter(now)
			}
			for range 2 {
				if do, next := u.due(now, 0); do.task != nil || next != now.Add(turnEvery) {
					t.Fatalf("copy %d: %v, due after %v", i, do.task, next.Sub(now))
				}
			}
			now = now.Add(turnEvery)
		}
		do, next := u.due(now, 0)
		if do.task == nil {
			t.Fatalf("copy %d: not sent", i)
		}
		now, u.copies = next, 0 // it was answered
	}
}

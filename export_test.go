package rlock

import (
	"runtime"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
)

// BackoffPause is how long a waiter sleeps after a look.
func BackoffPause(b Backoff, seed uint64, who int64, look int) time.Duration {
	return b.pause(seed, who, look)
}

// MostInRow is how many releases in a row grant a lock to one that stands by.
const MostInRow = mostInRow

// Listens reports whether the line of a lock is subscribed, and that is confirmed.
func Listens(l *Lock) bool { return l.c.hub.Listening(l.names.Channel(), "") }

// ListensForGrants reports whether the line of a lock is subscribed to grants, and that is confirmed.
func SubscribedToGrants(l *Lock) bool {
	return l.c.lines.SubscribedToGrants(l.line("")) && l.c.hub.Listening(l.names.Channel()+":", l.c.id)
}

// HeadSleeps reports whether the first waiter of a lock in its client has looked at the
// lock and sleeps, so that it can be given a hold; or that nobody waits.
func HeadSleeps(l *Lock) bool {
	sleeps, _ := l.c.lines.Head(l.line(""))
	return sleeps
}

// Idle reports whether Shutdown need not wait for anything.
func Idle(c *Client) bool { return c.watchdog.Idle() && c.calls.None() }

// InLine is how many of a client wait for a lock.
func InLine(l Locker) int {
	switch l := l.(type) {
	case *Lock:
		return l.c.lines.Waiting(l.line(""))
	case *FencedLock:
		return l.c.lines.Waiting(l.line(""))
	case *SpinLock:
		return l.c.lines.Waiting(l.line(""))
	}
	panic("a type that keeps its waiters in Redis")
}

// Renewing begins n holds of a client, and returns a function that has the watchdog renew each of them once and
// reports whether all were confirmed within a while.
func Renewing(c *Client, n int) (renew func() bool) {
	var all []*hold
	for i := range n {
		h := &hold{core: c.NewLock("renewed:" + strconv.Itoa(i)).core, number: int64(i + 1)}
		h.start(c.now(), c.now(), acquireConfig{lease: c.cfg.watchdogLease})
		all = append(all, h)
	}
	confirmed := func(h *hold, after clock.Instant) bool {
		h.lock()
		defer h.unlock()
		return h.attempts == 0 && h.renewAt.After(after)
	}
	return func() bool {
		now := c.now()
		for _, h := range all {
			h.lock()
			h.renewAt = now
			h.unlock()
		}
		for _, h := range all {
			c.watchdog.Move(&h.Entry, now)
		}
		end := time.Now().Add(10 * time.Second)
		for _, h := range all {
			for !confirmed(h, now) {
				if time.Now().After(end) {
					return false
				}
				runtime.Gosched()
			}
		}
		return true
	}
}

// Given reports whether the head of the line of a lock was given a hold that it has not taken yet.
func Given(l *Lock) bool {
	_, given := l.c.lines.Head(l.line(""))
	return given
}

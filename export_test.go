package rlock

import (
	"strconv"
	"time"
)

// BackoffPause is how long a waiter sleeps after a look.
func BackoffPause(b Backoff, seed uint64, who int64, look int) time.Duration {
	return b.pause(seed, who, look)
}

// MostInRow is how many releases in a row grant a lock to one that stands by.
const MostInRow = mostInRow

// Listens reports whether the line of a lock is subscribed, and that is confirmed.
func Listens(l *Lock) bool { return l.c.hub.Listening(l.names.Channel(), "") }

// HearsTurns reports whether the line of a lock listens for turns, and that is confirmed.
func HearsTurns(l *Lock) bool {
	return l.c.lines.hearsTurns(l.line("")) && l.c.hub.Listening(l.names.Channel()+":", l.c.id)
}

// HeadSleeps reports whether the first waiter of a lock in its client has looked at the
// lock and sleeps, so that it can be given a hold; or that nobody waits.
func HeadSleeps(l *Lock) bool {
	q := &l.c.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.byKey[l.line("")]
	if line == nil || line.waiters.Len() == 0 {
		return true
	}
	w := q.takerLocked(line.key)
	// A waiter that has been woken, and is about to say so, has not looked since then.
	return w != nil && !line.quiet && len(w.wake) == 0 && w.saw == line.news
}

// Idle reports whether Shutdown need not wait for anything.
func Idle(c *Client) bool { return c.watchdog.left.None() && c.calls.None() }

// InLine is how many of a client wait for a lock.
func InLine(l Locker) int {
	switch l := l.(type) {
	case *Lock:
		return l.c.lines.waiting(l.line(""))
	case *FencedLock:
		return l.c.lines.waiting(l.line(""))
	case *SpinLock:
		return l.c.lines.waiting(l.line(""))
	}
	panic("a type that keeps its waiters in Redis")
}

// Renewing begins n holds of a client that has none, and returns a function that renews each of
// them once and reports whether all were confirmed.
func Renewing(c *Client, n int) (renew func() bool) {
	w := c.watchdog
	w.ended = make(chan struct{}) // the caller takes the turns
	close(w.ended)
	var all []*hold
	for i := range n {
		h := &hold{core: c.NewLock("renewed:" + strconv.Itoa(i)).core, number: int64(i + 1)}
		h.begin(c.now(), c.now(), acquireConfig{lease: c.cfg.watchdogLease})
		all = append(all, h)
	}
	var room []*entry
	return func() bool {
		now := c.now()
		for _, h := range all {
			h.renewAt = now
			w.move(&h.entry, now)
		}
		var sends []sending
		sends, room = w.turn(now, room)
		w.send(sends)
		for _, h := range all {
			if h.attempts > 0 || !h.renewAt.After(now) {
				return false
			}
		}
		return true
	}
}

// Given reports whether the head of the line of a lock was given a hold that it has not taken yet.
func Given(l *Lock) bool {
	q := &l.c.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.byKey[l.line("")]
	return line != nil && line.head() != nil && line.head().given.grant != nil
}

package rlock

import "time"

// BackoffPause is how long a waiter sleeps after a look.
func BackoffPause(b Backoff, seed uint64, who int64, look int) time.Duration {
	return b.pause(seed, who, look)
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

package rlock

import "time"

// batch is what the hand-overs of one grant share. It is nil if nobody waited when the
// lock was granted. Only the holder uses it, or who gives the lock to the next holder.
type batch struct {
	tokens int64   // how many tokens are left
	last   int64   // the last of them; all were drawn at once
	until  instant // no hand-over after that: other clients wait too

	// Where Redis keeps the order of waiters: see queue.go.
	behind []turn   // who comes next
	left   []string // the ids under which those wait in Redis that the hold was handed over to
}

// next draws a token.
func (b *batch) next() int64 {
	b.tokens--
	return b.last - b.tokens
}

// pass is a hold on its way to its next owner.
type pass struct {
	*batch
	token  int64
	number int64 // of the id
	unsure bool

	deadline, expires, renewAt, asked instant
}

// grant is a hold that Redis has granted to a waiter at the release of the one before.
type grant struct {
	to     *waiter
	asked  int64   // serial number of the release among the news of lines
	sent   instant // when it was
	token  int64
	behind []turn // who comes next, and may have the hold handed over
	unsure bool   // a copy of it may be under way
}

// gift is a hold that a waiter is given while it waits, or nothing.
type gift struct {
	pass  *pass
	grant *grant
}

// passAlarm is how long the first waiter sleeps behind a holder of its own client: as
// long as the lock changes hands, there is no need to look. Then it looks at Redis and
// waits like the waiters of other clients.
const passAlarm = 20 * time.Millisecond

// give hands a hold over to the head of a line, or to the next of the batch where Redis keeps the
// order, if it sleeps and takes it.
func (q *lines) give(key lineKey, p *pass, seen sight) bool {
	q.mu.Lock()
	w := q.takerLocked(key)
	if w == nil {
		w = q.nextLocked(key.lock, p.batch)
	}
	if w == nil {
		q.mu.Unlock()
		return false
	}
	w.takes, w.given.pass = false, p
	w.line.seen = seen
	ends := q.takeOutLocked(w, true)
	if w.line.waiters.Len() > 0 {
		q.quietLocked(w.line)
	}
	w.poke()
	q.mu.Unlock()
	for _, end := range ends {
		end()
	}
	return true
}

// takerLocked is the head of a line, if it can be given a hold now.
func (q *lines) takerLocked(key lineKey) *waiter {
	if line := q.byKey[key]; line != nil {
		if w := line.head(); w != nil && w.takes {
			return w
		}
	}
	return nil
}

// sleeps notes that a waiter is about to sleep, and whether it takes a hold that is
// handed over meanwhile.
func (q *lines) sleeps(w *waiter, takes bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.takes = takes
}

// awake notes that a waiter has slept, and returns the hold that it was given meanwhile.
func (q *lines) awake(w *waiter) gift {
	q.mu.Lock()
	defer q.mu.Unlock()
	got := w.given
	w.takes, w.given = false, gift{}
	return got
}

// quietLocked lets the head sleep until the alarm, as the hold before it may be handed
// over.
func (q *lines) quietLocked(l *line) {
	l.quiet = true
	if l.alarm != nil {
		l.alarm.Reset(passAlarm)
		return
	}
	l.alarm = time.AfterFunc(passAlarm, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.quiet {
			l.quiet = false
			l.head().poke()
		}
	})
}

// loudLocked ends what quietLocked began.
func (l *line) loudLocked() {
	if l.quiet {
		l.quiet = false
		l.alarm.Stop()
	}
}

// yield makes the head of a line let waiters of other clients go first, if more
// connections than its own listen.
func (q *lines) yield(key lineKey, heard int, until instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.byKey[key]
	if line == nil {
		return
	}
	if line.unsub != nil {
		heard--
	}
	if heard > 0 {
		line.yields = until
	}
}

// yieldsFor is for how long w still lets others go first.
func (q *lines) yieldsFor(w *waiter, now instant) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.yields.Sub(now)
}

// othersBehind reports whether w is not alone in its line.
func (q *lines) othersBehind(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.waiters.Len() > 1
}

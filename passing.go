package rlock

import "time"

// passAlarm is how long the first waiter sleeps behind a holder of its own client: as
// long as the lock changes hands, there is no need to look. Then it looks at Redis and
// waits like the waiters of other clients.
const passAlarm = 20 * time.Millisecond

// give hands a hold over to the head of a line, if it sleeps and takes it.
func (q *lines) give(key lineKey, p *pass, seen sight) bool {
	q.mu.Lock()
	w := q.takerLocked(key)
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

package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/seam"
)

// permitsLeft means that the previous head has left too few permits of a semaphore for the next one. If it leaves more,
// as many waiters behind it poll immediately as there are permits for.
//
// Why no waiter sleeps while enough permits are free for it: the next in line becomes the head. It polls if enough are
// left, or if there was news, such as a release, after the poll of the previous head. Otherwise it sleeps until there is
// news. News clears permitsLeft if the new head has not read it yet.
type permitsLeft struct {
	timeline *clock.Timeline
	until    clock.Instant // when the first lease of other holders expires
}

// Alive implements predecessor.
func (r *permitsLeft) Alive() bool { return r.timeline.Now().Before(r.until) }

// RestOfLease implements predecessor.
func (r *permitsLeft) RestOfLease() time.Duration { return max(r.until.Sub(r.timeline.Now()), 1) }

// admitLocked wakes the waiters for which enough permits are free. It subtracts the permits of waiters that poll already,
// because Redis may not have granted these yet. w is the head that leaves.
func (q *Lines) admitLocked(line *line, w *Waiter, got *Left) {
	left := got.Permits
	first := line.head()
	if first == nil {
		return
	}
	if left < first.demand.need && w.demand.newsAtLook == line.news {
		first.pending.previous = &permitsLeft{q.cfg.Timeline, got.Until}
	}
	first.poke()
	for e := line.waiters.Front(); e != nil; e = e.Next() {
		next := e.Value.(*Waiter)
		if left -= next.demand.need; left < 0 {
			return
		}
		if next != first && !next.demand.looking {
			next.pending.admitted, next.demand.looking = true, true
			next.poke()
		}
	}
}

// needs records how many permits a waiter needs.
func (q *Lines) needs(w *Waiter, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.demand.need = n
}

// lookBegins records that a poll begins, which answers all news so far.
func (q *Lines) lookBegins(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.demand.newsAtLook = w.line.news
}

// refused records that a poll was refused.
func (q *Lines) refused(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.demand.looking = false
}

// serveLocked is called when the head leaves with something other than a hold. Others have that too, or poll for it, as
// many as permits are free for. leave pokes the new head in any case, so no wake-up is lost with a waiter that leaves.
func (q *Lines) serveLocked(l *line, got *Left) (ends []func()) {
	for w := l.head(); w != nil && w.number <= got.UpTo; w = l.head() {
		w.pending.served = true
		ends = append(ends, q.takeOutLocked(w, true)...)
		w.poke()
	}
	// Permits that others have taken since the poll may be among the permits that it found free: a
	// waiter that needs more than are left must not be overtaken.
	free := got.Free - (l.taken - got.Taken)
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*Waiter)
		if free -= max(w.demand.need, 1); free < 0 {
			break
		}
		w.pending.admitted = true
		w.poke()
	}
	return ends
}

// SoFar returns the number of the latest waiter in the line of w, and how many permits were taken there.
func (q *Lines) SoFar(w *Waiter) (joined, taken int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.joined, w.line.taken
}

// permitsFreed is called with a message that n permits are free: see crowd.
func (q *Lines) permitsFreed(l *line, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.head() == nil || n < 1 { // 0: the semaphore was deleted
		q.newsLocked(l)
		return
	}
	if l.crowd == nil {
		l.crowd = &crowd{}
	}
	later := l.crowd.delay(n, q.cfg.Seed)
	if later <= 0 {
		l.crowd.lookNow(false)
		q.newsLocked(l)
		return
	}
	l.crowd.postpone(later, func(serial int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.crowd.due != nil && l.crowd.postponed == serial {
			l.crowd.lookNow(true)
			q.newsLocked(l)
		}
	})
}

// permitsTaken is called with a message that permits were taken, and how many are left.
func (q *Lines) permitsTaken(l *line, left int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if head := l.head(); head == nil || left < max(head.demand.need, 1) {
		l.crowd.stop()
	}
}

// CrowdAt reports whether other clients may wait for the permits of a line. A call that takes permits then publishes
// how many are left.
func (q *Lines) CrowdAt(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && l.crowd != nil && l.unsubExtra != nil
}

// answersMessage is called by the head of a line before a poll. It reports whether a message has caused the poll.
func (q *Lines) answersMessage(w *Waiter) (woken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.crowd.beginLook()
}

// lookEnds records the result of a poll of the head of a line. It reports whether the line should subscribe now to
// messages about permits that are left.
func (q *Lines) lookEnds(w *Waiter, woken, vain bool, took time.Duration) (listen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := w.line
	if l.crowd == nil {
		return false
	}
	l.crowd.estimate(woken, vain, took)
	return woken && vain && l.unsubExtra == nil && l.unsub != nil
}

// crowd decides when a client polls after a message that permits of a semaphore are free. All waiting clients get the
// message, and few of them can enter. So each postpones its poll by a random time, which is the longer the more clients
// seem to wait. It drops the poll if a message before that says that too few permits are left: a client that takes
// permits from a crowd publishes how many are left. The number of waiting clients is an estimate. Each client doubles it
// after a poll that was refused, and halves it after a postponed poll that was not. A poll that was neither postponed nor
// refused does not change the estimate: otherwise clients that have just got permits would go first again.
//
// A postponed poll is sent unless a later message says that too few permits are left. In any case, the head of a line
// polls at the longest poll.
type crowd struct {
	size      int           // how many clients seem to wait, a power of 2
	lookTime  time.Duration // how long a poll takes
	messages  int           // how many messages have come
	due       *time.Timer   // timer of the postponed poll, or nil
	at        time.Time     // when that poll is due
	postponed int           // how many polls were postponed
	woken     bool          // a message causes the next poll
	late      bool          // that poll was postponed
}

// mostCrowd and longestLookTime bound for how long a poll is postponed.
const (
	mostCrowd       = 128
	longestLookTime = 10 * time.Millisecond
)

// delay returns for how long a poll is postponed after a message that n permits are free; not at all if it is 0 or less.
func (c *crowd) delay(n int64, seed uint64) time.Duration {
	c.messages++
	return seam.Jitter(seed, 0, c.messages, time.Duration(c.size)*c.lookTime) - time.Duration(n+1)*c.lookTime
}

// postpone calls look later, with the serial number of the postponed poll. The timer may have fired when it is stopped,
// so look checks that number.
func (c *crowd) postpone(later time.Duration, look func(serial int)) {
	at := time.Now().Add(later)
	if c.due != nil && c.at.Before(at) {
		return // a poll is due sooner
	}
	c.stop()
	c.postponed++
	serial := c.postponed
	c.due, c.at = time.AfterFunc(later, func() { look(serial) }), at
}

// stop drops the postponed poll.
func (c *crowd) stop() {
	if c != nil && c.due != nil {
		c.due.Stop()
		c.due = nil
	}
}

// lookNow records that a message causes the next poll, postponed or not.
func (c *crowd) lookNow(late bool) {
	c.stop()
	c.woken, c.late = true, late
}

// beginLook records that a poll begins, which answers all messages so far. It reports whether there was one.
func (c *crowd) beginLook() (woken bool) {
	if c == nil {
		return false
	}
	c.stop()
	woken, c.woken = c.woken, false
	return woken
}

// estimate updates the estimates after a poll that took a time.
func (c *crowd) estimate(woken, vain bool, took time.Duration) {
	c.lookTime = min(max(took, time.Millisecond), longestLookTime)
	switch {
	case !woken:
	case vain:
		c.size = min(max(2*c.size, 2), mostCrowd)
	case c.late:
		c.size /= 2
	}
}

package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// admitLocked wakes the waiters behind w, which leaves with got: the new head, and as many of the others as can enter
// too. These poll although they are not the head.
//
// Why no waiter sleeps while there is enough for it: the next in line becomes the head. It polls if enough is left for
// it, or if there was news, such as a release, after the poll of the previous head began. Otherwise it sleeps until there
// is news, or until the first lease of others ends. News clears nothingBefore if the new head has not read it yet. Behind
// an exclusive hold, news is of the releases before that hold, and the next message comes when it ends.
//
// Waiters that poll already may have been granted a part of what the poll of w found free, or may be granted it yet. So
// their needs are subtracted too; the needs of those that have left are in line.taken. Whatever that makes too small is
// made up for when the new head leaves.
func (q *Lines) admitLocked(l *line, w *Waiter, got *Left) {
	more := got.More
	if more < Unlimited {
		more -= l.taken - w.poll.taken
	}
	head := l.head()
	switch {
	case got.Hold != nil:
		head.pending.previous = got.Hold
	case got.Until != 0 && got.More < head.need && w.poll.news == l.news:
		head.pending.previous = &nothingBefore{q.cfg.Timeline, got.Until}
	}
	head.poke()
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		next := e.Value.(*Waiter)
		// A waiter that needs more than is left must not be overtaken.
		if more -= next.need; more < 0 {
			return
		}
		if next.pending.round == protocol.NoRound {
			next.pending.round = got.Round
		}
		if next != head && !next.admitted {
			next.admitted = true
			next.poke()
		}
	}
}

// nothingBefore means that the previous head has left too little for the next one, and that nothing is given back until
// then without a message.
type nothingBefore struct {
	timeline *clock.Timeline
	until    clock.Instant
}

// Alive implements predecessor.
func (r *nothingBefore) Alive() bool { return r.timeline.Now().Before(r.until) }

// RestOfLease implements predecessor.
func (r *nothingBefore) RestOfLease() time.Duration { return max(r.until.Sub(r.timeline.Now()), 1) }

// pollBegins records that a poll begins, which answers all news so far.
func (q *Lines) pollBegins(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.poll = poll{w.line.news, w.line.joined, w.line.taken}
}

// refused records that the poll of an admitted waiter was refused.
func (q *Lines) refused(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.admitted = false
}

// serveLocked removes the waiters with a number up to last from the line: they have what they wait for. leave pokes the
// new head in any case, so no wake-up is lost with them.
func (q *Lines) serveLocked(l *line, last int64) (ends []func()) {
	for w := l.head(); w != nil && w.number <= last; w = l.head() {
		w.pending.served = true
		ends = append(ends, q.takeOutLocked(w, true)...)
		w.poke()
	}
	return ends
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
	if head := l.head(); head == nil || left < head.need {
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

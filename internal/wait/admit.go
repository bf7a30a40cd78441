package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
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

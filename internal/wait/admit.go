package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// admitLocked wakes waiters behind w, which leaves with got: the new head, and as many others as can enter with it. The
// others poll too, although they are not the head.
//
// Why no waiter sleeps while there are enough permits for it: the new head polls if enough are left for it, or if an
// event, such as a release, came after the poll of the previous head began. Otherwise it sleeps until the next event, or
// until the first lease of held permits ends. An event clears a noReleaseBefore that the new head has not read yet.
// Behind an exclusive hold, events come from releases before that hold; the next message comes when that hold ends.
//
// Admitted waiters that still poll may have got, or may get, permits that the poll of w counted as free. So their needs
// are subtracted; line.taken has the needs of admitted waiters that have left. If the result is too small, fewer
// waiters enter now, and the others when the new head leaves.
func (q *Lines) admitLocked(l *line, w *Waiter, got *Exit) {
	more := got.Remaining
	if more < Unlimited {
		more -= l.taken - w.poll.taken
	}
	head := l.head()
	switch {
	case got.Hold != nil:
		head.pending.previous = got.Hold
	case got.Until != 0 && got.Remaining < head.need && w.poll.event == l.event:
		head.pending.previous = &noReleaseBefore{q.cfg.Timeline, got.Until}
	}
	head.poke()
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		follower := e.Value.(*Waiter)
		// A waiter that needs more than is left must not be overtaken.
		if more -= follower.need; more < 0 {
			return
		}
		if follower.pending.sinceRound == protocol.NoRound {
			follower.pending.sinceRound = got.Round
		}
		if follower != head && !follower.admitted {
			follower.admitted = true
			follower.poke()
		}
	}
}

// noReleaseBefore is the predecessor of a head that needs more permits than the previous head left. Before until, permits
// are given back only with a message.
type noReleaseBefore struct {
	timeline *clock.Timeline
	until    clock.Instant
}

// Alive implements predecessor.
func (r *noReleaseBefore) Alive() bool { return r.timeline.Now().Before(r.until) }

// RestOfLease implements predecessor.
func (r *noReleaseBefore) RestOfLease() time.Duration { return max(r.until.Sub(r.timeline.Now()), 1) }

// notePoll records that a poll begins, which answers all events so far.
func (q *Lines) notePoll(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.poll = poll{w.line.event, w.line.joined, w.line.taken}
}

// noteRefusal records that the poll of an admitted waiter was refused.
func (q *Lines) noteRefusal(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.admitted = false
}

// serveLocked removes the waiters with a number up to last from the line, because the reply to the head is the answer to
// them too. leave pokes the new head in any case, so no wake-up is lost.
func (q *Lines) serveLocked(l *line, last int64) (ends []func()) {
	for w := l.head(); w != nil && w.number <= last; w = l.head() {
		w.pending.isServed = true
		ends = append(ends, q.takeOutLocked(w, true)...)
		w.poke()
	}
	return ends
}

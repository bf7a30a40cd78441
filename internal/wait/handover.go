package wait

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
)

// ErrTooLate is the error of a waiter that was given a hold whose lease was over.
var ErrTooLate = errors.New("the lease was over before the waiter had it")

// handOverTime is how long the head sleeps without polling behind a holder of its own client, which may hand the hold
// over. Then the head polls, and waits like the waiters of other clients.
const handOverTime = 20 * time.Millisecond

// Give hands a hold over to the head of a line, and reports whether the head sleeps and can take it: see Taker.
func (q *Lines) Give(key Key, hold any, seen Status) bool {
	q.mu.Lock()
	w := q.takerLocked(key)
	if w == nil {
		q.mu.Unlock()
		return false
	}
	w.acceptsHold, w.givenHold = false, hold
	w.line.status = seen
	ends := q.takeOutLocked(w, true)
	if w.line.waiters.Len() > 0 {
		q.suppressWakeLocked(w.line)
	}
	w.poke()
	q.mu.Unlock()
	endAll(ends)
	return true
}

// takerLocked returns the head of a line if it can take a hold now, or nil.
func (q *Lines) takerLocked(key Key) *Waiter {
	if line := q.byKey[key]; line != nil {
		if w := line.head(); w != nil && w.acceptsHold {
			return w
		}
	}
	return nil
}

// Sleeps records that a waiter is about to sleep, whether it accepts a hold that is handed over meanwhile, and how it
// stands by. It reports whether the line should subscribe to grants now: the line is subscribed to releases, and one of
// its waiters has got the lock before.
func (q *Lines) Sleeps(w *Waiter, accepts bool, as StandBy) (subscribe bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.acceptsHold, w.standBy = accepts, as
	l := w.line
	if g, is := w.givenHold.(*Grant); is && g.poll != as.Poll {
		w.givenHold = nil // a later poll found another holder; the waiter was poked, and polls again
	}
	if as.ID != "" && as.ID == l.granted.ID && as.Poll == l.granted.Poll {
		w.grantLocked(&l.granted) // the message came between that poll and now
	}
	return l.hasServed && l.unsub != nil && l.unsubExtra == nil && l.head() == w
}

// Lasts reports whether a wait has lasted for a longest poll.
func (q *Lines) Lasts(w *Waiter) bool {
	return q.cfg.Env.Clock.Now().Sub(w.joinedAt) >= q.cfg.LongestPoll
}

// Identify calls subscribe, if the waiter is the head of a line that is subscribed to releases and has not identified its
// client: see protocol.Identified.
func (q *Lines) Identify(w *Waiter, subscribe func() (end func())) {
	q.mu.Lock()
	due := w.line.unsub != nil && w.line.unsubOwn == nil && w.line.head() == w
	q.mu.Unlock()
	if due {
		q.add(w, subscribe(), func(l *line) *func() { return &l.unsubOwn })
	}
}

// takeGiven records that a waiter is awake, and returns the hold that it was given while it slept.
func (q *Lines) takeGiven(w *Waiter) (got any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	got = w.givenHold
	w.acceptsHold, w.givenHold = false, nil
	return got
}

// suppressWakeLocked lets the head sleep for handOverTime, because the current hold may be handed over to it.
func (q *Lines) suppressWakeLocked(l *line) {
	l.wakeSuppressed = true
	if l.wakeTimer != nil {
		l.wakeTimer.Reset(handOverTime)
		return
	}
	l.wakeTimer = time.AfterFunc(handOverTime, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.wakeSuppressed {
			l.wakeSuppressed = false
			l.head().poke()
		}
	})
}

// allowWakeLocked ends what suppressWakeLocked began.
func (l *line) allowWakeLocked() {
	if l.wakeSuppressed {
		l.wakeSuppressed = false
		l.wakeTimer.Stop()
	}
}

// yieldTime returns how long w still yields to waiters of other clients.
func (q *Lines) yieldTime(w *Waiter, now clock.Instant) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.yieldUntil.Sub(now)
}

// OthersBehind reports whether w is not alone in its line.
func (q *Lines) OthersBehind(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.waiters.Len() > 1
}

// AddSubscription adds a second subscription, to another channel, to the line of w. end ends the subscription.
func (q *Lines) AddSubscription(w *Waiter, end func()) {
	q.add(w, end, func(l *line) *func() { return &l.unsubExtra })
}

// add adds a subscription to the line of w, at a place that is nil without one.
func (q *Lines) add(w *Waiter, end func(), place func(l *line) *func()) {
	q.mu.Lock()
	if l := w.line; end != nil && q.byKey[l.key] == l && l.unsub != nil && *place(l) == nil {
		*place(l), end = end, nil
	}
	q.mu.Unlock()
	if end != nil { // w was given a hold meanwhile: its line is gone, or the next head has added a subscription
		end()
	}
}

// NoteEvent records a reason to poll for the line of w.
func (q *Lines) NoteEvent(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.noteEventLocked(w.line)
}

// NoteListeners records how many connections received the message of a release, and returns how many of them belong to
// other clients: their waiters may stand by at the next release. With keep, it makes and keeps a line for the record.
func (q *Lines) NoteListeners(key Key, n int, keep bool) (others int) {
	if n == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l != nil && l.unsub != nil {
		n-- // the connection of this client
	}
	switch {
	case n == 0 || q.isClosed:
		return n
	case l != nil:
		if l.place != nil && l.unsub == nil { // the line is kept only for this record
			l.keptSince = time.Now()
			q.kept.MoveToBack(l.place)
		}
	case !keep || q.kept.Len() >= q.cfg.MostKept: // the new line would replace a subscribed line
		return n
	default:
		l = q.makeLocked(key)
		q.keepLocked(l)
	}
	l.othersAt, l.otherListeners = time.Now(), n
	return n
}

// Yield makes this client yield to waiters of other clients until a time.
func (q *Lines) Yield(key Key, until clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		l.yieldUntil = until
	}
}

// Crowded reports whether several other clients were subscribed at a recent release by this client.
func (q *Lines) Crowded(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.otherListeners > 1 && time.Since(w.line.othersAt) < q.cfg.Keep
}

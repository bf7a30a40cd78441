package wait

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
)

// ErrTooLate is why a hold that a waiter was given is of no use.
var ErrTooLate = errors.New("the lease was over before the waiter had it")

// handOverTime is how long the head sleeps behind a holder of its own client without polling: it expects to be handed
// the hold. After that it polls, and waits like the waiters of other clients.
const handOverTime = 20 * time.Millisecond

// Give hands a hold over to the head of a line, if the head sleeps and can take it: see Taker.
func (q *Lines) Give(key Key, hold any, seen Seen) bool {
	q.mu.Lock()
	w := q.takerLocked(key)
	if w == nil {
		q.mu.Unlock()
		return false
	}
	w.takes, w.given = false, hold
	w.line.seen = seen
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
		if w := line.head(); w != nil && w.takes {
			return w
		}
	}
	return nil
}

// Sleeps records that a waiter is about to sleep, whether it takes a hold that is handed over meanwhile, and how it
// stands by. It reports whether its line should subscribe to grants now: the line is subscribed to releases, and a
// waiter has got the lock there before.
func (q *Lines) Sleeps(w *Waiter, takes bool, as StandBy) (listen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.takes, w.standBy = takes, as
	l := w.line
	if g, is := w.given.(*Grant); is && g.look != as.Look {
		w.given = nil // a later poll has found another holder; the waiter was poked, and polls again
	}
	if as.ID != "" && as.ID == l.granted.ID && as.Look == l.granted.Look {
		w.grantLocked(&l.granted) // the message came between that poll and now
	}
	return l.served && l.unsub != nil && l.unsubExtra == nil && l.head() == w
}

// awake records that a waiter has slept, and returns the hold that it was given meanwhile.
func (q *Lines) awake(w *Waiter) (got any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	got = w.given
	w.takes, w.given = false, nil
	return got
}

// suppressWakeLocked lets the head sleep for handOverTime, as it may be handed the hold before it.
func (q *Lines) suppressWakeLocked(l *line) {
	l.suppressed = true
	if l.wakeTimer != nil {
		l.wakeTimer.Reset(handOverTime)
		return
	}
	l.wakeTimer = time.AfterFunc(handOverTime, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.suppressed {
			l.suppressed = false
			l.head().poke()
		}
	})
}

// allowWakeLocked ends what suppressWakeLocked began.
func (l *line) allowWakeLocked() {
	if l.suppressed {
		l.suppressed = false
		l.wakeTimer.Stop()
	}
}

// yieldsFor returns how long w still yields to waiters of other clients.
func (q *Lines) yieldsFor(w *Waiter, now clock.Instant) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.yields.Sub(now)
}

// OthersBehind reports whether w is not alone in its line.
func (q *Lines) OthersBehind(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.waiters.Len() > 1
}

// AddSubscription gives the line of w a second subscription, to another channel, which the function end ends.
func (q *Lines) AddSubscription(w *Waiter, end func()) {
	q.mu.Lock()
	if l := w.line; end != nil && q.byKey[l.key] == l && l.unsub != nil && l.unsubExtra == nil {
		l.unsubExtra, end = end, nil
	}
	q.mu.Unlock()
	if end != nil { // w was given a hold meanwhile, and its line is gone, or the next head has subscribed it
		end()
	}
}

// NewsFor records news for the line of w.
func (q *Lines) NewsFor(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.newsLocked(w.line)
}

// NoteListeners records how many connections have received the message of a release, and returns how many of them belong
// to other clients: their waiters may stand by at the next release. With keeps, a line is made and kept for that.
func (q *Lines) NoteListeners(key Key, n int, keeps bool) (others int) {
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
	case n == 0 || q.closed:
		return n
	case l != nil:
		if l.place != nil && l.unsub == nil { // the line is kept only to remember this
			l.since = time.Now()
			q.kept.MoveToBack(l.place)
		}
	case !keeps || q.kept.Len() >= q.cfg.MostKept: // it would replace a line that is subscribed
		return n
	default:
		l = q.makeLocked(key)
		q.keepLocked(l)
	}
	l.othersAt, l.otherListeners = time.Now(), n
	return n
}

// Yield makes this client yield to waiters of other clients until then.
func (q *Lines) Yield(key Key, until clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		l.yields = until
	}
}

// Crowded reports whether several other clients were subscribed at a release of this one not long ago.
func (q *Lines) Crowded(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.otherListeners > 1 && time.Since(w.line.othersAt) < q.cfg.Keep
}

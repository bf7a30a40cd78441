package wait

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// Grant is a hold that Redis has granted to a waiter that stands by, in the script that released the previous hold.
type Grant struct {
	Sent     clock.Instant // when the waiter's last poll before the release was sent: the lease counts from then
	Token    int64
	Reserved int64 // how many tokens were drawn for hand-overs
	InRow    int   // how many releases in a row have granted the lock
	look     int   // number of that last poll
}

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

// A waiter that is woken by the message of a release needs one more round trip, for its poll. So if several clients wait
// for a Lock again and again, the release itself grants it. The poll of a waiter that finds the lock held records in
// Redis that the waiter stands by. The release of the holder makes that waiter the holder in the same script, and
// publishes the grant on a channel of the waiter's client. See scripts/lock/stand_by.lua and release_next.lua.
//
// Why a hold has one owner, and a grant is not lost:
//   - It is a grant like any other: the waiter has its own id, lease and token. Redis grants it
//     after the poll that the message names, so the deadline counts from when that poll was sent: a
//     message that comes late, or to a process that was stopped, promises no more than what is left.
//     If much of the lease is over, or another poll was sent since, the waiter polls, and finds out
//     what has become of its hold.
//   - Only the run of the release that ends a hold grants the next one.
//   - A waiter that leaves without a hold abandons its id. If Redis runs that first, the waiter does
//     not stand by any more; otherwise the hold ends. The same happens if it leaves with a hold that
//     was handed over to it. If that hold comes too late, the waiter waits for one with another id,
//     because a copy of the request that abandons the first id may be late too.
//   - A waiter that gets the lock by a poll does not stand by any more, by the same script.
//   - A waiter that polls while the message is under way finds its hold. It leaves the line with one
//     lease, and drops a grant that comes later.
//   - If Redis refuses a later poll than the message names, the granted hold has ended: the waiter
//     drops the grant. A poll with two copies has the number 0, which no message names: the first
//     copy may have been granted, and the second refused.
//   - If the waiter that a message names does not sleep in line, the head polls: the named waiter may
//     be about to join. If the message is lost with its connection, the head polls when it is
//     subscribed again. In any case, a poll or a glance comes in time.
//   - A waiter whose client has died since its poll stands by only for a moment, and Redis does not
//     grant it the lock if the connection of its client is closed.
//
// Such a release wakes other waiters too, which stand by then. Clients of Redisson never stand by. So that they get
// the lock as well, a release grants it to no waiter after mostInRow releases that did.

// StandBy is how a waiter stands by.
type StandBy struct {
	ID   string        // id of its future hold; empty if it does not stand by
	Look int           // number of its last poll, which Redis has refused
	Sent clock.Instant // when that poll was sent
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

// Granted gives the head of the line of a waiter the hold that a release of another client has granted. If the message
// names another waiter, or an older poll than the last one, or a poll that was sent more than fresh ago, the head polls,
// and finds out what has become of its hold.
func (q *Lines) Granted(of *Waiter, g *protocol.Grant, now clock.Instant, fresh time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := of.line
	l.granted = *g
	w := l.head()
	if w == nil || w.standBy.ID != g.ID || w.standBy.Look != g.Look || now.Sub(w.standBy.Sent) > fresh {
		q.newsLocked(l)
		return
	}
	w.grantLocked(g)
}

// grantLocked gives a waiter the hold that a release has granted it after its last poll.
func (w *Waiter) grantLocked(g *protocol.Grant) {
	w.given = &Grant{Sent: w.standBy.Sent, Token: g.Token, Reserved: g.Reserved, InRow: g.InRow, look: g.Look}
	w.line.granted.Look = -1 // it is given only once
	w.poke()
}

// InRow returns how many releases in a row have granted a lock, up to the one that began the hold with this id; 0 if
// unknown.
func (q *Lines) InRow(key Key, id string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil && l.granted.ID == id {
		return l.granted.InRow
	}
	return 0
}

// ListensForGrants reports whether a line is subscribed to grants, so that its head may stand by.
func (q *Lines) ListensForGrants(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && l.unsubExtra != nil
}

// OthersMayStandBy reports whether waiters of other clients may stand by for a lock: its line is subscribed to grants
// itself, or other clients were subscribed at a release of this one not long ago.
func (q *Lines) OthersMayStandBy(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && (l.unsubExtra != nil || time.Since(l.othersAt) < q.cfg.Keep)
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

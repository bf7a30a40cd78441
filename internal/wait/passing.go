package wait

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// Grant is a hold that Redis has granted to a waiter at the release of the one before.
type Grant struct {
	Sent   clock.Instant // when the release was
	Token  int64
	Unsure bool // a copy of it may be under way

	// If another client has released it:
	look     int   // the last of the waiter before that
	Reserved int64 // how many tokens were drawn for hand-overs
	InRow    int   // how many releases in a row have granted the lock
}

// ErrTooLate is why a hold that a waiter was given is of no use.
var ErrTooLate = errors.New("the lease was over before the waiter had it")

// passAlarm is how long the first waiter sleeps behind a holder of its own client: as
// long as the lock changes hands, there is no need to look. Then it looks at Redis and
// waits like the waiters of other clients.
const passAlarm = 20 * time.Millisecond

// Give hands a hold over to the head of a line, if it sleeps and takes it: see Taker.
func (q *Lines[S]) Give(key Key, hold any, seen S) bool {
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
		q.quietLocked(w.line)
	}
	w.poke()
	q.mu.Unlock()
	endAll(ends)
	return true
}

// takerLocked is the head of a line, if it can be given a hold now.
func (q *Lines[S]) takerLocked(key Key) *Waiter[S] {
	if line := q.byKey[key]; line != nil {
		if w := line.head(); w != nil && w.takes {
			return w
		}
	}
	return nil
}

// Sleeps notes that a waiter is about to sleep, whether it takes a hold that is handed over
// meanwhile, and how it stands by. It reports whether its line should listen for turns, and does
// not yet: it is subscribed, and a waiter has got the lock there before.
func (q *Lines[S]) Sleeps(w *Waiter[S], takes bool, as StandBy) (listen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.takes, w.standsBy = takes, as
	l := w.line
	if g, is := w.given.(*Grant); is && g.look != as.Look {
		w.given = nil // a later look has found another holder; and it looks again, as it was poked
	}
	if as.ID != "" && as.ID == l.turn.ID && as.Look == l.turn.Look {
		w.grantLocked(&l.turn) // it came between that look and now
	}
	return l.served && l.unsub != nil && l.turns == nil && l.head() == w
}

// awake notes that a waiter has slept, and returns the hold that it was given meanwhile.
func (q *Lines[S]) awake(w *Waiter[S]) (got any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	got = w.given
	w.takes, w.given = false, nil
	return got
}

// quietLocked lets the head sleep until the alarm, as the hold before it may be handed
// over.
func (q *Lines[S]) quietLocked(l *line[S]) {
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
func (l *line[S]) loudLocked() {
	if l.quiet {
		l.quiet = false
		l.alarm.Stop()
	}
}

// yieldsFor is for how long w still lets others go first.
func (q *Lines[S]) yieldsFor(w *Waiter[S], now clock.Instant) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.yields.Sub(now)
}

// OthersBehind reports whether w is not alone in its line.
func (q *Lines[S]) OthersBehind(w *Waiter[S]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.waiters.Len() > 1
}

// A release that is published costs the next waiter a round trip more: it has to look. So a Lock for
// which several clients wait again and again is granted by the release itself. The look that finds
// it held notes in Redis that its waiter stands by. The release of the holder makes that waiter the
// holder in the same script, and tells its client, on a channel of its own. See
// scripts/lock/stand_by.lua and release_next.lua.
//
// Why a hold has one owner, and a grant is not lost:
//   - It is a grant like any other: the waiter has its own id, lease and token. Redis grants it
//     after the look that the message names has run, so the deadline counts from when that look
//     was sent: a message that comes late, or to a process that was stopped, promises no more
//     than is left. If much of the lease is over, or another look was sent since, the waiter
//     looks, and finds what has become of its hold.
//   - Only the run of the release that ends a hold grants the next one.
//   - A waiter that leaves with nothing abandons its id. If Redis runs that first, the waiter
//     does not stand by any more; otherwise the hold ends. The same if it leaves with a hold
//     that was handed over to it. If that comes too late to be of use, the waiter waits for
//     another hold: a copy of what abandons its id may be late too.
//   - A waiter that gets the lock by a look does not stand by any more, by the same script.
//   - A waiter that looks while the message is under way finds its hold. It leaves the line
//     with one lease, and does not take what it is given later.
//   - If Redis refuses a later look than the message names, the granted hold has ended: the waiter
//     drops the grant. A look of which two copies were sent has the number 0, which no message names:
//     the first copy may have been granted, and the second refused.
//   - If the waiter that a message names does not sleep in line, the head looks: that waiter may be
//     about to join. If the message is lost with its connection, the head looks when it is subscribed
//     again. Whatever happens to the message, a look or a glance comes in time.
//   - A waiter whose client has died since it looked stands by for a moment only, and Redis does
//     not grant it the lock if the connection of its client is closed.
//
// Others are woken by such a release too, to stand by. So that clients that never do get the lock
// as well, as those of Redisson, a release grants it to nobody after mostInRow that did.

// StandBy is the part of a waiter that stands by.
type StandBy struct {
	ID   string        // of its hold to be; empty: it does not stand by
	Look int           // its last look that Redis refused,
	Sent clock.Instant // and when that was sent
}

// HearTurns notes that the line of w listens for turns, until end is called.
func (q *Lines[S]) HearTurns(w *Waiter[S], end func()) {
	q.mu.Lock()
	if l := w.line; end != nil && q.byKey[l.key] == l && l.unsub != nil && l.turns == nil {
		l.turns, end = end, nil
	}
	q.mu.Unlock()
	if end != nil { // w was given a hold meanwhile, and its line is gone or listens by the next one
		end()
	}
}

// NewsFor notes news for the line of w.
func (q *Lines[S]) NewsFor(w *Waiter[S]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.newsLocked(w.line)
}

// Turn gives the head of the line of a waiter what a release of another client has granted it. A look that was sent less
// than fresh ago is not needed.
func (q *Lines[S]) Turn(of *Waiter[S], t *protocol.Turn, now clock.Instant, fresh time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := of.line
	l.turn = *t
	w := l.head()
	if w == nil || w.standsBy.ID != t.ID || w.standsBy.Look != t.Look || now.Sub(w.standsBy.Sent) > fresh {
		q.newsLocked(l) // it looks what has become of its hold
		return
	}
	w.grantLocked(t)
}

// grantLocked gives a waiter what a release has granted it after its last look.
func (w *Waiter[S]) grantLocked(t *protocol.Turn) {
	w.given = &Grant{Sent: w.standsBy.Sent, Token: t.Token, Reserved: t.Reserved, InRow: t.InRow, look: t.Look}
	w.line.turn.Look = -1 // once
	w.poke()
}

// InRow is how many releases in a row have granted a lock, including the one that began the hold with an id; 0: not
// known.
func (q *Lines[S]) InRow(key Key, id string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil && l.turn.ID == id {
		return l.turn.InRow
	}
	return 0
}

// HearsTurns reports whether a line listens for turns, so that a look may stand by.
func (q *Lines[S]) HearsTurns(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && l.turns != nil
}

// Sought reports whether waiters of other clients may stand by for a lock: its line listens for
// turns itself, or others have listened to a release of this client not long ago.
func (q *Lines[S]) Sought(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && (l.turns != nil || time.Since(l.others) < q.cfg.Keep)
}

// Heard notes how many connections have listened to a release, and returns how many of them are of
// other clients. If there are any, their waiters may stand by at the next one. The line is made and
// kept for that, if keeps says so.
func (q *Lines[S]) Heard(key Key, n int, keeps bool) (others int) {
	if n == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l != nil && l.unsub != nil {
		n-- // its own
	}
	switch {
	case n == 0 || q.closed:
		return n
	case l != nil:
		if l.place != nil && l.unsub == nil { // it is kept for this only
			l.since = time.Now()
			q.kept.MoveToBack(l.place)
		}
	case !keeps || q.kept.Len() >= q.cfg.MostKept: // those that are subscribed are worth more
		return n
	default:
		l = q.makeLocked(key)
		q.keepLocked(l)
	}
	l.others, l.rivals = time.Now(), n
	return n
}

// Yield makes this client let waiters of others go first, until then.
func (q *Lines[S]) Yield(key Key, until clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		l.yields = until
	}
}

// Crowded reports whether several other clients have listened to a release of this one not long ago.
func (q *Lines[S]) Crowded(w *Waiter[S]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.rivals > 1 && time.Since(w.line.others) < q.cfg.Keep
}

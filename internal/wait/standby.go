package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

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

// Grant is a hold that Redis has granted to a waiter that stands by, in the script that released the previous hold.
type Grant struct {
	Sent     clock.Instant // when the waiter's last poll before the release was sent: the lease counts from then
	Token    int64
	Reserved int64 // how many tokens were drawn for hand-overs
	InRow    int   // how many releases in a row have granted the lock
	look     int   // number of that last poll
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

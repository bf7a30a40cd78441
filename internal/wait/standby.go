package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// A waiter that is woken by the message of a release needs one more round trip, for its poll. So if several clients wait
// for a Lock again and again, the release itself grants it. A poll that finds the lock held records in Redis that its
// waiter stands by. The release of the holder makes that waiter the holder in the same script, and publishes the grant on
// a channel of the waiter's client. See scripts/lock/stand_by.lua and release_next.lua.
//
// Why a hold has one owner, and a grant is not lost:
//   - The grant is like any other: the waiter has its own id, lease and token. The message names the
//     waiter's last poll. Redis grants the lock after that poll, so the deadline counts from when the
//     poll was sent: a message that comes late, or to a process that was stopped, promises only the
//     rest of the lease. If much of the lease is over, or another poll was sent since, the waiter
//     polls, and the reply shows whether it still has the hold.
//   - Only the run of the release that ends a hold grants the next one.
//   - A waiter that leaves without a hold abandons its id. If Redis runs that request before the
//     release, the waiter does not stand by any more; otherwise the granted hold ends. The same
//     happens if the waiter leaves with a hold that was handed over to it. If the lease of that
//     handed-over hold has ended, the waiter continues with another id, because a copy of the request
//     that abandons the first id may be late.
//   - A poll that is granted the lock removes the waiter from those that stand by, in the same script.
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
// Such a release also wakes other waiters, which then stand by. Clients of Redisson never stand by. So that they get the
// lock too, the release after mostInRow releases with a grant grants the lock to no waiter.

// StandBy describes how a waiter stands by.
type StandBy struct {
	ID   string        // id of the waiter's future hold; empty if the waiter does not stand by
	Poll int           // number of the waiter's last poll, which Redis has refused
	Sent clock.Instant // when that poll was sent
}

// Grant is a hold that Redis has granted to a waiter that stands by, in the script that released the previous hold.
type Grant struct {
	Sent     clock.Instant // when the waiter's last poll before the release was sent: the lease counts from then
	Token    int64
	Reserved int64 // number of tokens drawn for hand-overs
	InRow    int   // consecutive releases that granted the lock, including this one
	poll     int   // number of the waiter's last poll before the release
}

// Granted gives the head of the line of waiter the hold that a release of another client has granted. If the message names
// another waiter, a poll before the last one, or a poll that was sent more than maxAge ago, the head polls instead: the
// reply shows whether it has a hold.
func (q *Lines) Granted(waiter *Waiter, g *protocol.Grant, now clock.Instant, maxAge time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := waiter.line
	l.granted = *g
	w := l.head()
	if w == nil || w.standBy.ID != g.ID || w.standBy.Poll != g.Poll || now.Sub(w.standBy.Sent) > maxAge {
		q.noteEventLocked(l)
		return
	}
	w.grantLocked(g)
}

// grantLocked gives a waiter the hold that a release granted to it after its last poll.
func (w *Waiter) grantLocked(g *protocol.Grant) {
	w.givenHold = &Grant{Sent: w.standBy.Sent, Token: g.Token, Reserved: g.Reserved, InRow: g.InRow, poll: g.Poll}
	w.line.granted.Poll = -1 // the hold is given only once
	w.poke()
}

// InRow returns how many consecutive releases granted a lock, up to the one that began the hold with this id; 0 if not
// known.
func (q *Lines) InRow(key Key, id string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil && l.granted.ID == id {
		return l.granted.InRow
	}
	return 0
}

// SubscribedToGrants reports whether a line is subscribed to grants, so that its head may stand by.
func (q *Lines) SubscribedToGrants(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && l.unsubExtra != nil
}

// OthersMayStandBy reports whether waiters of other clients may stand by for a lock: the line of this client is subscribed
// to grants, or other clients were subscribed at a recent release by this client.
func (q *Lines) OthersMayStandBy(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && (l.unsubExtra != nil || time.Since(l.othersAt) < q.cfg.Keep)
}

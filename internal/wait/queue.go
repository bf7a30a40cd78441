package wait

import (
	"cmp"
	"slices"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// Where Redis keeps the order of waiters too, a waiter that is woken by the message of a release needs one more round
// trip. If the next waiter is of the client that releases, the release makes it the holder in the same script. For that
// the release names the successor: the waiter of its client that Redis has ranked first. Redis decides whether the
// successor is the next of all waiters. Otherwise it wakes the next one, as any release does. So the order among
// clients is kept.
//
// Why a hold has one owner, and a grant is not lost:
//   - It is a grant like any other: the waiter has its own id, lease and token. Its deadline
//     counts from when the release was sent, before Redis began the lease, on one clock.
//   - A waiter that leaves before it is given its hold abandons that, as every waiter that may have a
//     place in Redis does. If Redis runs that first, the waiter is not in the queue any more;
//     otherwise the hold ends.
//   - A waiter that looks while the release is under way may be granted the same hold by its
//     look too. It leaves the line with one lease, and drops a grant that comes later.
//   - If the release is not answered, the waiter looks, and finds what has become of it.
//   - A copy of the release that comes late finds its hold gone, and grants nothing.
//   - A waiter that is given its hold too late, since the process was stopped, looks again.
//
// Redis wakes only the first waiter of a queue. So a waiter need not look when its subscription is
// confirmed while another waiter of its client is in front of it. When the one in front leaves with a
// hold that was granted by a release sent after the confirmation, nothing was missed. Otherwise the
// waiter looks.

// queueEntry is the place of a waiter in Redis.
type queueEntry struct {
	rank      int64              // 0: not known
	successor protocol.Successor // names the waiter in a release

	// subscribed is the serial number of the confirmation after which the waiter did not look, since another waiter
	// was in front; 0: it looked. grantedBy is that of the release that granted it its hold; 0: none did.
	subscribed, grantedBy int64
}

// queue is the waiters of this client for a lock whose order Redis keeps, in that order.
type queue[S comparable] []*Waiter[S]

func (q *queue[S]) add(w *Waiter[S]) {
	i, _ := q.find(w.rank + 1)
	*q = slices.Insert(*q, i, w)
}

func (q *queue[S]) remove(w *Waiter[S]) {
	i, _ := q.find(w.rank)
	for (*q)[i] != w { // priorities can make ranks equal
		i++
	}
	if i == 0 {
		(*q)[0] = nil
		*q = (*q)[1:]
	} else {
		*q = slices.Delete(*q, i, i+1)
	}
}

func (q *queue[S]) find(rank int64) (int, bool) {
	return slices.BinarySearchFunc(*q, rank, func(w *Waiter[S], rank int64) int { return cmp.Compare(w.rank, rank) })
}

// SetQueueEntry notes that a waiter has a place in Redis, and which.
func (q *Lines[S]) SetQueueEntry(w *Waiter[S], rank int64, as protocol.Successor) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lock := w.line.key.Lock
	all := q.queues[lock]
	switch {
	case w.rank == rank:
		return
	case w.rank != 0: // it has lost its place, and has another
		all.remove(w)
		w.rank, w.successor = rank, as
		all.add(w)
		q.frontLocked(all, 0)
		return
	case all == nil:
		all = &queue[S]{}
		if q.queues == nil {
			q.queues = map[protocol.LockID]*queue[S]{}
		}
		q.queues[lock] = all
	}
	w.rank, w.successor = rank, as
	all.add(w)
}

// dequeueLocked is called when a waiter that has a rank leaves its line, with a hold or without.
func (q *Lines[S]) dequeueLocked(w *Waiter[S], got bool) {
	lock := w.line.key.Lock
	all := q.queues[lock]
	all.remove(w)
	w.rank = 0
	if !got {
		w.grantedBy = 0
	}
	if len(*all) == 0 {
		delete(q.queues, lock)
	} else {
		q.frontLocked(all, w.grantedBy)
	}
}

// frontLocked has the first waiter look, if it may have missed a message. grantedBy is the serial number of the release
// that granted the waiter in front of it a hold; 0: none did.
func (q *Lines[S]) frontLocked(all *queue[S], grantedBy int64) {
	w := (*all)[0]
	if w.subscribed > grantedBy {
		q.newsLocked(w.line)
	}
	w.subscribed = 0
}

// Offer calls release with the first waiter for a lock that has a place in Redis, and gives that waiter the hold that
// the release has granted, unless the waiter has left its line: then it has the hold already, or abandons it. If the
// release was not answered, the waiter looks. Without such a waiter, release is not called.
func (q *Lines[S]) Offer(lock protocol.LockID, release func(to protocol.Successor) (sent clock.Instant, r protocol.Result[protocol.Released])) (r protocol.Result[protocol.Released], offered bool) {
	w, to, serial := q.firstInQueue(lock)
	if w == nil {
		return r, false
	}
	sent, r := release(to)
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.place == nil || r.Err == nil && r.Outcome.Token == 0 {
		return r, true
	}
	if r.Err == nil {
		w.given, w.grantedBy = &Grant{Sent: sent, Token: r.Outcome.Token, LateCopies: r.Unsure}, serial
	}
	w.poke()
	return r, true
}

// firstInQueue is the first of the waiters for a lock that have a place in Redis (nil: there is none), and the serial
// number of the release that will name it.
func (q *Lines[S]) firstInQueue(lock protocol.LockID) (w *Waiter[S], as protocol.Successor, serial int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.queues[lock]
	if all == nil {
		return nil, as, 0
	}
	w = (*all)[0]
	q.serial++
	return w, w.successor, q.serial
}

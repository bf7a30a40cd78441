package rlock

import (
	"container/heap"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Where Redis keeps the order of waiters, a release that is published costs the next waiter
// a round trip more. If it is of the same client, the release makes it the holder in the same
// script. The release names the waiter that Redis has ranked first among those of the client,
// its heir. Redis decides whether it is the next of all, and otherwise wakes the next one, as
// any release does; so the order among clients is kept.
//
// Why a hold has one owner, and a grant is not lost:
//   - It is a grant like any other: the waiter has its own id, lease and token. Its deadline
//     counts from when the release was sent, before Redis began the lease, on one clock.
//   - A waiter that leaves before it is told abandons its hold, as every waiter that may have a
//     place in Redis does. If Redis runs that first, the waiter is not in the queue any more;
//     otherwise the hold ends.
//   - A waiter that looks while the release is under way may be granted the same hold by its
//     look too. It leaves the line with one lease, and does not take what it is given later.
//   - If the release is not answered, the waiter looks, and finds what has become of it.
//   - A copy of the release that comes late finds its hold gone, and grants nothing.
//   - A waiter that is told too late, since the process was stopped, looks again.

// standing is the place of a waiter in Redis.
type standing struct {
	rank  int64 // 0: not known
	index int   // in the queue of this client
	heir  protocol.Heir
}

// queue is the waiters of this client for a lock whose order Redis keeps, in that order: a
// heap by rank.
type queue []*waiter

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].rank < q[j].rank }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	w := x.(*waiter)
	w.index = len(*q)
	*q = append(*q, w)
}

func (q *queue) Pop() any {
	old := *q
	n := len(old) - 1
	w := old[n]
	old[n] = nil
	*q = old[:n]
	return w
}

// stands notes that a waiter has a place in Redis, and which.
func (q *lines) stands(w *waiter, rank int64, as protocol.Heir) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lock := w.line.key.lock
	all := q.queues[lock]
	switch {
	case w.rank == rank:
		return
	case w.rank != 0:
		w.rank, w.heir = rank, as
		heap.Fix(all, w.index)
		return
	case all == nil:
		all = &queue{}
		if q.queues == nil {
			q.queues = map[lockID]*queue{}
		}
		q.queues[lock] = all
	}
	w.rank, w.heir = rank, as
	heap.Push(all, w)
}

// standsNoMoreLocked is called when a waiter leaves its line.
func (q *lines) standsNoMoreLocked(w *waiter) {
	if w.rank == 0 {
		return
	}
	lock := w.line.key.lock
	all := q.queues[lock]
	heap.Remove(all, w.index)
	w.rank = 0
	if all.Len() == 0 {
		delete(q.queues, lock)
	}
}

// heir returns the first of the waiters for a lock that have a place in Redis; nil: there is
// none.
func (q *lines) heir(lock lockID) (*waiter, protocol.Heir) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.queues[lock]
	if all == nil {
		return nil, protocol.Heir{}
	}
	w := (*all)[0]
	return w, w.heir
}

// tell gives a grant to the waiter, unless it has left its line: then it knows, or abandons
// it. With nil the waiter finds out by itself.
func (q *lines) tell(w *waiter, g *grant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.place == nil {
		return
	}
	if g != nil {
		w.given.grant = g
	}
	w.poke()
}

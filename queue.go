package rlock

import (
	"container/list"
	"sync"
	"time"
)

// queues are the waiters of a client, by lock. Those who wait for one lock
// stand in line here, first come, first served, and only the head of the line
// talks to Redis: traffic and herds grow with the number of processes, not of
// goroutines. The two sides of a read-write lock have a line each. Where Redis
// keeps the order of waiters, each stands in a line of its own here.
//
// This is also where a hold could be passed on inside the process without a
// round trip.
type queues struct {
	mu    sync.Mutex // guards the rest and the queues
	byKey map[lineKey]*queue
}

// lineKey says who stands in a line.
type lineKey struct {
	lock lockID
	side side
	stay string // if each waiter has its own line
}

// queue is one line. It exists while somebody waits.
type queue struct {
	key     lineKey
	waiters list.List // of *waiter; the head is the one that asks Redis
	unsub   func()    // ends the subscription, if there is one
	seen    sight     // by the head; or the hold that the head before it has got
}

// waiter is a place in a line.
type waiter struct {
	queue *queue
	place *list.Element
	since time.Time // when it joined
	// wake (capacity 1) is poked when the waiter becomes the head, is admitted or
	// should leave, and while it is the head whenever it should look at the
	// lock. Pokes may be spurious or collapse into one; see turn.
	wake chan struct{}

	// Guarded by queues.mu. behind is the hold that the head before this one
	// got: no need to ask Redis while that lasts. It is nil if that one left
	// without the lock, perhaps with a wake-up in its pocket: then the new head
	// looks at once.
	behind   *hold
	admitted bool  // the head has got what can be shared: look too
	round    int64 // the waiter counts as having waited since then; see attempt.round
	err      error // why it should leave
}

// join puts a waiter at the end of the line, and reports whether it is the
// head.
func (q *queues) join(key lineKey, now time.Time) (w *waiter, head bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.byKey[key]
	if line == nil {
		line = &queue{key: key}
		if q.byKey == nil {
			q.byKey = map[lineKey]*queue{}
		}
		q.byKey[key] = line
	}
	w = &waiter{queue: line, wake: make(chan struct{}, 1), since: now, round: noRound}
	w.place = line.waiters.PushBack(w)
	return w, line.waiters.Len() == 1
}

// waiting is how many stand in line.
func (q *queues) waiting(key lineKey) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len()
	}
	return 0
}

// leave takes a waiter out of the line. got is the hold it leaves with, if
// any, and round the one in which it was refused: those behind it count as
// refused then too. It was refused itself: were it enough that it counts as such,
// newcomers would go first for as long as somebody stands in line. The last one to
// leave ends the subscription.
func (q *queues) leave(w *waiter, got *hold, round int64) {
	var seen sight
	if got != nil {
		seen = sight{held: true, known: true, holder: got.stay, until: got.core.c.clock.Now().Add(got.restOfLease())}
	}
	q.mu.Lock()
	line := w.queue
	wasHead := line.waiters.Front() == w.place
	if wasHead && got != nil {
		line.seen = seen
	}
	line.waiters.Remove(w.place)
	var unsub func()
	if front := line.waiters.Front(); front == nil {
		delete(q.byKey, line.key)
		unsub, line.unsub = line.unsub, nil
	} else if wasHead && got != nil && got.core.side == shared {
		// What one can read all can: they need not come in one by one.
		for e := front; e != nil; e = e.Next() {
			next := e.Value.(*waiter)
			next.admitted = true
			if next.round == noRound {
				next.round = round
			}
			next.poke()
		}
	} else if wasHead {
		next := front.Value.(*waiter)
		next.behind = got
		next.poke()
	}
	q.mu.Unlock()
	if unsub != nil {
		unsub()
	}
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wake tells those who are the heads of a lock's lines to look at it.
func (q *queues) wake(lock lockID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, side := range []side{exclusive, shared} {
		q.byKey[lineKey{lock: lock, side: side}].pokeHead()
	}
}

// wakeHead tells the head of one line to look at the lock.
func (q *queues) wakeHead(key lineKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.byKey[key].pokeHead()
}

func (q *queue) pokeHead() {
	if q == nil {
		return
	}
	if front := q.waiters.Front(); front != nil {
		front.Value.(*waiter).poke()
	}
}

// subscribe makes sure that the line hears of releases. It returns at once:
// the head is poked when the subscription is confirmed, and looks again then.
func (q *queues) subscribe(w *waiter, open func(notify func()) (end func())) {
	q.mu.Lock()
	line := w.queue
	have := line.unsub != nil
	q.mu.Unlock()
	if have {
		return
	}
	// Only the head subscribes, so nobody else does it in between.
	unsub := open(func() { q.wakeHead(line.key) })
	q.mu.Lock()
	line.unsub = unsub
	q.mu.Unlock()
}

// fail tells everybody who has waited since before the given time what w has
// found out in that time: that Redis gives no answer. Without it each would
// find out for itself, one after the other.
func (q *queues) fail(w *waiter, since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// Those who become the head meanwhile may have seen the poke already and
	// find out for themselves: w is the head now, so that is at most the next.
	for e := w.queue.waiters.Front(); e != nil; e = e.Next() {
		if other := e.Value.(*waiter); other != w && !other.since.After(since) {
			other.err = err
			other.poke()
		}
	}
}

// news is what a waiter that was behind others learns when it is poked: that it
// should leave; that it is the head now, and behind which hold; or that it is
// admitted all the same, once.
type news struct {
	err      error
	head     bool
	behind   *hold
	admitted bool
	round    int64 // if admitted
}

func (q *queues) turn(w *waiter) news {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := news{w.err, w.queue.waiters.Front() == w.place, w.behind, w.admitted, w.round}
	w.admitted = false
	return n
}

// saw tells those who stand behind w what it has seen.
func (q *queues) saw(w *waiter, s sight) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.queue.seen = s
}

// seen is what was seen by the head of the line in which w stands; own if it has
// not looked yet.
func (q *queues) seen(w *waiter, own sight) sight {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := w.queue.seen; s != (sight{}) {
		return s
	}
	return own
}

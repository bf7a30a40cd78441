package rlock

import (
	"container/list"
	"sync"
	"time"
)

// queues are the waiters of a client, by lock. Those who wait for one lock
// stand in line here, first come, first served, and only the head of the line
// talks to Redis: traffic and herds grow with the number of processes, not of
// goroutines.
//
// This is also where a hold could be passed on inside the process without a
// round trip.
type queues struct {
	mu    sync.Mutex // guards the rest and the queues
	byKey map[string]*queue
}

// queue is one line. It exists while somebody waits.
type queue struct {
	key     string
	waiters list.List // of *waiter; the head is the one that asks Redis
	sub     *subscription
}

// waiter is a place in a line.
type waiter struct {
	queue *queue
	place *list.Element
	// wake (capacity 1) is poked when the waiter becomes the head, and while it
	// is the head whenever it should look at the lock. A poke says no more
	// than "look": pokes may be spurious or collapse into one.
	wake chan struct{}
	// behind, set before the poke that makes the waiter the head, is the hold
	// that the head before it got: no need to ask Redis while that lasts. It is
	// nil if that one left without the lock, perhaps with a wake-up in its
	// pocket: then the new head looks at once. Guarded by queues.mu: fail may
	// have poked the waiter before.
	behind *hold

	since time.Time // when it joined
	err   error     // guarded by queues.mu: why it should leave
}

// join puts a waiter at the end of the line, and reports whether it is the
// head.
func (q *queues) join(key string, now time.Time) (w *waiter, head bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.byKey[key]
	if line == nil {
		line = &queue{key: key}
		if q.byKey == nil {
			q.byKey = map[string]*queue{}
		}
		q.byKey[key] = line
	}
	w = &waiter{queue: line, wake: make(chan struct{}, 1), since: now}
	w.place = line.waiters.PushBack(w)
	return w, line.waiters.Len() == 1
}

// waiting is how many stand in line.
func (q *queues) waiting(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len()
	}
	return 0
}

// leave takes a waiter out of the line. got is the hold it leaves with, if
// any. The last one to leave ends the subscription.
func (q *queues) leave(w *waiter, got *hold) {
	q.mu.Lock()
	line := w.queue
	wasHead := line.waiters.Front() == w.place
	line.waiters.Remove(w.place)
	var sub *subscription
	if front := line.waiters.Front(); front == nil {
		delete(q.byKey, line.key)
		sub, line.sub = line.sub, nil
	} else if wasHead {
		next := front.Value.(*waiter)
		next.behind = got
		next.poke()
	}
	q.mu.Unlock()
	if sub != nil {
		sub.close()
	}
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wake tells the head of a line to look at the lock.
func (q *queues) wake(key string) {
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
func (q *queues) subscribe(w *waiter, open func(notify func()) *subscription) {
	q.mu.Lock()
	line := w.queue
	have := line.sub != nil
	q.mu.Unlock()
	if have {
		return
	}
	// Only the head subscribes, so nobody else does it in between.
	sub := open(func() { q.wake(line.key) })
	q.mu.Lock()
	line.sub = sub
	q.mu.Unlock()
}

// fail tells everybody who has waited since before the given time what w has
// found out in that time: that Redis gives no answer. Without it each would
// find out for itself, one after the other.
func (q *queues) fail(w *waiter, since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := w.queue.waiters.Front(); e != nil; e = e.Next() {
		if other := e.Value.(*waiter); other != w && !other.since.After(since) {
			other.err = err
			other.poke()
		}
	}
}

// called tells a waiter that was poked why: it should leave, with an error, or
// it is the head, behind the hold that the head before it got, if any.
func (q *queues) called(w *waiter) (behind *hold, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.behind, w.err
}

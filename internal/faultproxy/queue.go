package faultproxy

import "sync"

// queue is an unbounded channel.
type queue[T any] struct {
	mu     sync.Mutex // guards the rest
	filled *sync.Cond
	items  []T
	closed bool
}

func newQueue[T any]() *queue[T] {
	q := &queue[T]{}
	q.filled = sync.NewCond(&q.mu)
	return q
}

// push does nothing once the queue is closed.
func (q *queue[T]) push(v T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.items = append(q.items, v)
	q.filled.Signal()
}

// pop waits for an item, and returns false when the queue is closed and empty.
func (q *queue[T]) pop() (v T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed {
		q.filled.Wait()
	}
	if len(q.items) == 0 {
		return v, false
	}
	v, q.items = q.items[0], q.items[1:]
	return v, true
}

// close ends the queue after the items it holds, abort immediately.
func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}

func (q *queue[T]) abort() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = nil
	q.closed = true
	q.filled.Broadcast()
}

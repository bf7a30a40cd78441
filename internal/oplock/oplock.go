// Package oplock admits one operation at a time, in order.
package oplock

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// Lock admits one operation at a time at a hold, so that two re-entries, or a re-entry and a release,
// cannot overtake each other on their way to Redis. Waiting operations are admitted in order. The zero
// value is free.
type Lock struct {
	mu         sync.Mutex // guards the rest
	isTaken    bool       // an operation is under way
	isEntering bool       // that operation waits for the distributed lock
	queue      *list.List // of *waiter; nil before the first wait
}

// waiter is a waiting operation. It leaves the queue when it is decided.
type waiter struct {
	decided        chan struct{} // closed when the operation is admitted, or refused with err
	err            error
	unlessEntering bool
}

// TakeWithin is Take with a bound, without a timer in most cases. A shutdown of the client does not
// end it, because Unlock uses it.
func (t *Lock) TakeWithin(ctx context.Context, d time.Duration) error {
	if t.TryTake() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return t.Take(ctx, nil, false)
}

// TryTake takes the lock if it is free, and reports whether it did.
func (t *Lock) TryTake() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isTaken {
		return false
	}
	t.isTaken = true
	return true
}

// Give lets the next operation begin. The operation that ends calls it.
func (t *Lock) Give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil || t.queue.Len() == 0 {
		t.isTaken = false
		return
	}
	// It stays taken, so that no new operation overtakes the next one.
	t.decideLocked(t.queue.Front(), nil)
}

// Why an operation is not admitted: another one waits for the distributed lock, or the client closes.
var (
	ErrEntering = errors.New("another call of its owner waits for it")
	ErrClosing  = errors.New("closing")
)

// SetEntering marks that the operation waits for the distributed lock, perhaps for long, so that a
// TryLock of the same owner need not wait for it.
func (t *Lock) SetEntering(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isEntering = on
	if !on || t.queue == nil {
		return
	}
	for at := t.queue.Front(); at != nil; {
		next := at.Next()
		if at.Value.(*waiter).unlessEntering {
			t.decideLocked(at, ErrEntering)
		}
		at = next
	}
}

func (t *Lock) decideLocked(at *list.Element, err error) {
	w := t.queue.Remove(at).(*waiter)
	w.err = err
	close(w.decided)
}

// Take waits until no other operation is under way. With unlessEntering, for a caller that does not wait for the
// distributed lock, it fails if another operation of the owner waits for that lock, or begins to.
func (t *Lock) Take(ctx context.Context, closing <-chan struct{}, unlessEntering bool) error {
	t.mu.Lock()
	if !t.isTaken {
		t.isTaken = true
		t.mu.Unlock()
		return nil
	}
	if unlessEntering && t.isEntering {
		t.mu.Unlock()
		return ErrEntering
	}
	if t.queue == nil {
		t.queue = list.New()
	}
	w := &waiter{decided: make(chan struct{}), unlessEntering: unlessEntering}
	at := t.queue.PushBack(w)
	t.mu.Unlock()

	var stopped error
	select {
	case <-w.decided:
		return w.err
	case <-ctx.Done():
		stopped = ctx.Err()
	case <-closing:
		stopped = ErrClosing
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.decided: // in the same moment: if admitted, the caller has to call Give
		return w.err
	default:
		t.queue.Remove(at)
		return stopped
	}
}

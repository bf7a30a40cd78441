package rlock

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// opLock admits one operation at a time at a hold, so that two re-entries, or a re-entry
// and a release, cannot overtake each other on their way to Redis. Those that wait are
// admitted in order. Its zero value is free.
type opLock struct {
	mu       sync.Mutex // guards the rest
	taken    bool       // an operation is under way
	entering bool       // it waits for the lock
	queue    *list.List // of *opWaiter; nil: nothing has waited yet
}

// opWaiter is an operation that waits. It leaves the queue when it is decided.
type opWaiter struct {
	decided        chan struct{} // closed when it is admitted, or refused with err
	err            error
	unlessEntering bool
}

// take waits until no other operation is under way; give lets the next one begin.
func (t *opLock) take(ctx context.Context, closing <-chan struct{}) error {
	return t.wait(ctx, closing, false)
}

// takeWithin is take with a bound, for which most calls need no timer. A shutdown of the
// client does not end it: it is for Unlock.
func (t *opLock) takeWithin(ctx context.Context, d time.Duration) error {
	if t.tryTake() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return t.take(ctx, nil)
}

// takeUnlessEntering is take for a caller that does not wait for the lock: it fails if
// another operation of the owner waits for the lock, or begins to.
func (t *opLock) takeUnlessEntering(ctx context.Context, closing <-chan struct{}) error {
	return t.wait(ctx, closing, true)
}

func (t *opLock) tryTake() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		return false
	}
	t.taken = true
	return true
}

func (t *opLock) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil || t.queue.Len() == 0 {
		t.taken = false
		return
	}
	// It stays taken: nothing that comes now goes first.
	t.decideLocked(t.queue.Front(), nil)
}

var errEntering = errors.New("another call of its owner waits for it")

// setEntering marks that the operation waits for the lock, perhaps for long, so
// that a TryLock of the same owner need not wait for it.
func (t *opLock) setEntering(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entering = on
	if !on || t.queue == nil {
		return
	}
	for at := t.queue.Front(); at != nil; {
		next := at.Next()
		if at.Value.(*opWaiter).unlessEntering {
			t.decideLocked(at, because(ErrNotAcquired, errEntering))
		}
		at = next
	}
}

func (t *opLock) decideLocked(at *list.Element, err error) {
	w := t.queue.Remove(at).(*opWaiter)
	w.err = err
	close(w.decided)
}

func (t *opLock) wait(ctx context.Context, closing <-chan struct{}, unlessEntering bool) error {
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return nil
	}
	if unlessEntering && t.entering {
		t.mu.Unlock()
		return because(ErrNotAcquired, errEntering)
	}
	if t.queue == nil {
		t.queue = list.New()
	}
	w := &opWaiter{decided: make(chan struct{}), unlessEntering: unlessEntering}
	at := t.queue.PushBack(w)
	t.mu.Unlock()

	var stopped error
	select {
	case <-w.decided:
		return w.err
	case <-ctx.Done():
		stopped = ctx.Err()
	case <-closing:
		stopped = ErrClosed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.decided: // in the same moment: what it was given it has to give back, later
		return w.err
	default:
		t.queue.Remove(at)
		return stopped
	}
}

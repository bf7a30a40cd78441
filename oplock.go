package rlock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// opLock admits one operation at a time at a hold, so that two re-entries, or a re-entry
// and a release, cannot overtake each other on their way to Redis.
type opLock struct {
	item chan struct{} // holds one while an operation is under way

	mu       sync.Mutex // guards the rest
	entering bool       // the operation waits for the lock
	// entered is closed when entering becomes true. The first that needs it makes it.
	entered chan struct{}
}

func newOpLock() *opLock { return &opLock{item: make(chan struct{}, 1)} }

// take waits until no other operation is under way; give lets the next one begin.
func (t *opLock) take(ctx context.Context, closing <-chan struct{}) error {
	if t.tryTake() {
		return nil
	}
	select {
	case t.item <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return ErrClosed
	}
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

func (t *opLock) tryTake() bool {
	select {
	case t.item <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t *opLock) give() { <-t.item }

// setEntering marks that the operation waits for the lock, perhaps for long, so
// that a TryLock of the same owner need not wait for it.
func (t *opLock) setEntering(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entering = on
	if on && t.entered != nil {
		close(t.entered)
		t.entered = nil
	}
}

var errEntering = errors.New("another call of its owner waits for it")

// takeUnlessEntering is take for a caller that does not wait for the lock: it fails if
// another operation of the owner waits for the lock, or begins to.
func (t *opLock) takeUnlessEntering(ctx context.Context, closing <-chan struct{}) error {
	if t.tryTake() {
		return nil
	}
	t.mu.Lock()
	if t.entering {
		t.mu.Unlock()
		return because(ErrNotAcquired, errEntering)
	}
	if t.entered == nil {
		t.entered = make(chan struct{})
	}
	entered := t.entered
	t.mu.Unlock()
	select {
	case t.item <- struct{}{}:
		return nil
	case <-entered:
		return because(ErrNotAcquired, errEntering)
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return ErrClosed
	}
}

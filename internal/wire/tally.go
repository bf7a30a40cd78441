package wire

import (
	"context"
	"sync"
	"sync/atomic"
)

// Tally counts operations under way, and lets a caller wait until there are none. Unlike a
// sync.WaitGroup, it may grow again during a wait, and a context bounds the wait. The zero value is
// ready to use.
type Tally struct {
	n atomic.Int64

	mu   sync.Mutex    // guards zero
	zero chan struct{} // closed when n falls to 0; nil if nothing waits
}

// Add changes the count by n.
func (t *Tally) Add(n int) {
	if t.n.Add(int64(n)) != 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// None reports whether nothing is under way.
func (t *Tally) None() bool {
	return t.n.Load() == 0
}

// Wait waits until nothing is under way, or returns the error of ctx.
func (t *Tally) Wait(ctx context.Context) error {
	if t.None() {
		return nil
	}
	t.mu.Lock()
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	if t.None() { // it may have fallen to 0 before zero was made
		return nil
	}
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

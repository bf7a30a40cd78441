package wire

import (
	"context"
	"sync"
)

// Tally counts operations under way, and lets a caller wait until there are none. Unlike a
// sync.WaitGroup it may grow again during a wait, and ctx bounds a wait. Its zero value
// counts nothing.
type Tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n falls to 0; nil: nothing waits
}

// Add changes the count by n.
func (t *Tally) Add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// None reports whether nothing is under way.
func (t *Tally) None() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}

// Wait waits until nothing is under way, or returns the error of ctx.
func (t *Tally) Wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

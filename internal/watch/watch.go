// Package watch polls the state of locks for callers that want each change. [Pollers.Show] begins a watch. All watches
// of a lock in a client share a goroutine, which polls after each message, and from time to time. The package does not
// depend on locks: it compares states of type S, and passes them on.
//
// A state that lasts for less than the shortest pause between two polls may be skipped. When Redis does not answer,
// the watch continues, and shows the next state that a poll returns.
package watch

import (
	"context"
	"sync"
)

// Audience gets the states of a watch, from one caller at a time.
type Audience[S any] interface {
	Update(s *S) // must not keep s
	End()
}

// watch is a watch under way.
type watch[S any] struct {
	poller   *poller[S]
	audience Audience[S]

	mu          sync.Mutex  // guards the rest, and the audience
	hasState    bool        // the audience has received a state
	hasEnded    bool        // End was called
	stopWaiting func() bool // stops waiting for the end of the context
}

// until calls leave when the context ends, if the watch has not ended before.
func (w *watch[S]) until(ctx context.Context, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.hasEnded {
		w.stopWaiting = context.AfterFunc(ctx, leave)
	}
}

// update shows a state, if it has changed or is the first.
func (w *watch[S]) update(s *S, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hasEnded || w.hasState && !changed {
		return
	}
	w.hasState = true
	w.audience.Update(s)
}

// waits reports whether the audience has not received a state yet.
func (w *watch[S]) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.hasState
}

func (w *watch[S]) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hasEnded {
		return
	}
	w.hasEnded = true
	w.audience.End()
	if w.stopWaiting != nil {
		w.stopWaiting()
	}
}

// Latest is a channel of capacity 1 that keeps only the latest value. Only one goroutine may send.
type Latest[T any] chan T

// Send sends v, and replaces a value that was not read.
func (c Latest[T]) Send(v T) {
	select {
	case <-c:
	default:
	}
	c <- v // there is room
}

// End closes the channel.
func (c Latest[T]) End() { close(c) }

// Package watch polls the state of locks for callers that want each change. [Pollers.Show] begins a watch. All watches
// of a lock in a client share a goroutine, which polls after each message, and from time to time. The package knows no
// locks: it compares states of type S, and passes them on.
//
// A state that lasts for less than the shortest pause between two polls may be skipped. When Redis does not answer,
// the watch goes on, and shows the next state that it gets.
package watch

import (
	"context"
	"sync"
)

// Audience gets the states of a watch, from one caller at a time.
type Audience[S any] interface {
	Tell(s *S) // must not keep s
	End()
}

// watch is a watch under way.
type watch[S any] struct {
	poller   *poller[S]
	audience Audience[S]

	mu     sync.Mutex  // guards the rest, and the audience
	some   bool        // the audience has got a state
	ended  bool        // the audience has got the end
	forget func() bool // stops waiting for the end of the context
}

// until calls leave when the context ends, if the watch has not ended before.
func (w *watch[S]) until(ctx context.Context, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.forget = context.AfterFunc(ctx, leave)
	}
}

// tell shows a state, if it has changed or is the first.
func (w *watch[S]) tell(s *S, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.some && !changed {
		return
	}
	w.some = true
	w.audience.Tell(s)
}

// waits reports whether the audience has got no state yet.
func (w *watch[S]) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.some
}

func (w *watch[S]) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	w.audience.End()
	if w.forget != nil {
		w.forget()
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

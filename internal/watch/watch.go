// Package watch looks at something for those who want to see each change of it: in one goroutine for all of them, as
// often as it is announced, and now and then. [Pollers.Show] begins a watch. It knows no locks: what is
// seen, an S, is compared and handed on.
package watch

import (
	"context"
	"sync"
)

// Audience is told what there is to see, by one caller at a time.
type Audience[S any] interface {
	Tell(s *S) // must not keep s
	End()
}

// watch is one that is under way.
type watch[S any] struct {
	poller   *poller[S]
	audience Audience[S]

	mu     sync.Mutex  // guards the rest, and the audience
	some   bool        // it was told something
	ended  bool        // and the end
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

// tell tells what is news to the watch.
func (w *watch[S]) tell(s *S, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.some && !changed {
		return
	}
	w.some = true
	w.audience.Tell(s)
}

// waits reports whether the watch was told nothing yet.
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

// Latest is a channel, of capacity 1, that has the latest of what was sent if it was not
// read yet. Only one may send.
type Latest[T any] chan T

// Send sends v, in place of what was not read.
func (c Latest[T]) Send(v T) {
	select {
	case <-c:
	default:
	}
	c <- v // there is room
}

// End closes the channel.
func (c Latest[T]) End() { close(c) }

// Package notify tells an observer and a logger what happens: in order, by a goroutine of its own, so that who
// has something to tell does not wait for them.
package notify

import (
	"log/slog"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// Most is how many events wait for a slow observer.
const Most = 1000

// Config is what a Queue needs.
type Config struct {
	Logger   *slog.Logger
	Listens  bool            // there is an observer or a logger: else nothing is queued
	UnderWay *wire.Tally     // counts while there is something to deliver: a shutdown waits for it
	Dropped  func(n int)     // is told how many events were dropped
	Go       func(fn func()) // runs the goroutine of the queue; may be set later, before the first event
}

// Queue has events that wait for a slow observer. It also reports panics of code that it or the library has
// called.
type Queue struct {
	wire.Panics
	Config

	mu      sync.Mutex // guards the rest
	events  []func()
	dropped int  // events, since the queue is full
	running bool // the goroutine runs
}

// New returns a queue in which nothing waits.
func New(c Config) *Queue {
	q := &Queue{Config: c}
	q.Report = func(where string, err error, stack string) {
		q.Later(func() {
			q.Logger.Error("rlock: panic in code that the library has called", "where", where, "error", err, "stack", stack)
		})
	}
	return q
}

// Later has another goroutine call fn soon, or drops it if the queue is full.
func (q *Queue) Later(fn func()) { q.add(fn, false) }

// Surely is Later for events that must not be dropped. There are few per hold.
func (q *Queue) Surely(fn func()) { q.add(fn, true) }

func (q *Queue) add(fn func(), always bool) {
	if !q.Listens {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= Most && !always {
		q.dropped++
		return
	}
	q.events = append(q.events, fn)
	if q.running {
		return
	}
	q.running = true
	q.UnderWay.Add(1)
	q.Go(q.deliver)
}

// deliver calls what is in the queue until that is empty.
func (q *Queue) deliver() {
	defer q.UnderWay.Add(-1)
	for {
		events, dropped := q.take()
		if len(events) == 0 {
			return
		}
		for _, fn := range events {
			q.Call(fn)
		}
		if dropped > 0 {
			q.Dropped(dropped)
			q.Call(func() {
				q.Logger.Warn("rlock: the Observer or Logger is too slow, events were dropped", "events", dropped)
			})
		}
	}
}

func (q *Queue) take() (events []func(), dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events, dropped = q.events, q.dropped
	q.events, q.dropped = nil, 0
	q.running = len(events) > 0
	return events, dropped
}

// Call calls fn, and catches its panic.
func (q *Queue) Call(fn func()) {
	defer q.Caught("the handler of the Logger", nil)
	fn()
}

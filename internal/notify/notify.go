// Package notify delivers events to an Observer, and lines to a logger, in order and on a separate goroutine, so that
// no caller waits for them. If they are too slow, events are dropped and counted, except the few of each hold that
// must not be (Always). Panics of their code are caught and logged.
package notify

import (
	"log/slog"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// Most is how many events wait for a slow observer.
const Most = 1000

// Config configures a Queue.
type Config struct {
	Logger      *slog.Logger
	HasReceiver bool            // there is an Observer or a logger; otherwise nothing is queued
	UnderWay    *wire.Tally     // counts the goroutine of the queue: a shutdown waits for it
	Dropped     func(n int)     // called with the number of dropped events
	Go          func(fn func()) // runs the goroutine of the queue; set before the first event
}

// Queue has the events that are not delivered yet. It also logs panics of code that it or the library calls.
type Queue struct {
	wire.Panics
	Config

	mu      sync.Mutex // guards the rest
	events  []func()
	dropped int  // events dropped since the queue is full
	running bool // the goroutine runs
}

// New returns an empty queue.
func New(c Config) *Queue {
	q := &Queue{Config: c}
	q.Report = func(where string, err error, stack string) {
		q.Later(func() {
			q.Logger.Error("rlock: panic in code that the library has called", "where", where, "error", err, "stack", stack)
		})
	}
	return q
}

// Later queues fn, which another goroutine calls soon, or drops it if the queue is full.
func (q *Queue) Later(fn func()) { q.add(fn, false) }

// Always is Later for events that must not be dropped. Each hold has only a few.
func (q *Queue) Always(fn func()) { q.add(fn, true) }

func (q *Queue) add(fn func(), always bool) {
	if !q.HasReceiver {
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

// deliver calls what is queued until the queue is empty.
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

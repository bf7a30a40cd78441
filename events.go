package rlock

import (
	"context"
	"log/slog"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// events tells the Observer and the logger what happens. Events under a mutex or in the
// watchdog, which must not wait for them, go into a queue that a goroutine delivers in
// order.
type events struct {
	wire.Panics
	Observer // the user's, without its panics
	logger   *slog.Logger
	listens  bool            // there is an Observer or a logger
	underWay *wire.Tally     // Shutdown waits for it
	goOn     func(fn func()) // runs the queue's goroutine
	muted    sync.Once       // of reporting that nothing can be published

	mu      sync.Mutex // guards the rest
	queue   []func()
	dropped int  // events, since the queue is full
	running bool // the goroutine runs
}

var _ wire.Events = (*events)(nil)

// eventQueue is how many events wait for a slow observer.
const eventQueue = 1000

func newEvents(o Observer, logger *slog.Logger, underWay *wire.Tally) *events {
	e := &events{logger: logger, underWay: underWay}
	_, nop := o.(NopObserver)
	e.listens = !nop || logger.Handler() != slog.DiscardHandler
	e.Observer = o
	if !nop {
		e.Observer = safeObserver{&e.Panics, o}
	}
	e.Report = func(where string, err error, stack string) {
		e.later(func() {
			e.logger.Error("rlock: panic in code that the library has called", "where", where, "error", err, "stack", stack)
		})
	}
	return e
}

// later has another goroutine call fn soon, or drops it if the queue is full.
func (e *events) later(fn func()) { e.add(fn, false) }

// surely is later for events that must not be dropped. There are few per hold.
func (e *events) surely(fn func()) { e.add(fn, true) }

func (e *events) add(fn func(), always bool) {
	if !e.listens {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) >= eventQueue && !always {
		e.dropped++
		return
	}
	e.queue = append(e.queue, fn)
	if e.running {
		return
	}
	e.running = true
	e.underWay.Add(1)
	e.goOn(e.deliver)
}

// deliver calls what is in the queue until that is empty. If what it calls ends the goroutine,
// another one goes on with the next.
func (e *events) deliver() {
	var queue []func()
	over := false
	defer func() {
		if over {
			e.underWay.Add(-1)
			return
		}
		e.mu.Lock()
		e.queue = append(queue, e.queue...)
		e.mu.Unlock()
		e.goOn(e.deliver)
	}()
	for {
		var dropped int
		if queue, dropped = e.take(); len(queue) == 0 {
			over = true
			return
		}
		for len(queue) > 0 {
			fn := queue[0]
			queue = queue[1:]
			e.call(fn)
		}
		if dropped > 0 {
			e.Dropped(dropped)
			e.call(func() {
				e.logger.Warn("rlock: the Observer or Logger is too slow, events were dropped", "events", dropped)
			})
		}
	}
}

func (e *events) take() (queue []func(), dropped int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue, dropped = e.queue, e.dropped
	e.queue, e.dropped = nil, 0
	e.running = len(queue) > 0
	return queue, dropped
}

func (e *events) call(fn func()) {
	defer e.Caught("the handler of the Logger", nil)
	fn()
}

// Retried implements wire.Events.
func (e *events) Retried(request string, err error) { e.Retry(request, err) }

// Unpublished implements wire.Events: it reports, once, that Redis does not permit the
// client to publish.
func (e *events) Unpublished(why error) {
	e.muted.Do(func() {
		e.surely(func() {
			e.Observer.Unpublished(why)
			e.logger.Warn("rlock: Redis does not permit to publish: locks are released, but waiters are not woken", "error", why)
		})
	})
}

// safeObserver is the user's Observer without its panics: a lease that has been
// granted is handed out whatever an Observer does.
type safeObserver struct {
	panics *wire.Panics
	to     Observer
}

func (o safeObserver) AcquireStart(ctx context.Context, lock string) (out context.Context) {
	defer func() {
		if out == nil {
			out = ctx
		}
	}()
	defer o.panics.Caught("Observer.AcquireStart", nil)
	return o.to.AcquireStart(ctx, lock)
}

func (o safeObserver) AcquireEnd(ctx context.Context, e AcquireEvent) {
	defer o.panics.Caught("Observer.AcquireEnd", nil)
	o.to.AcquireEnd(ctx, e)
}

func (o safeObserver) Contended(lock string) {
	defer o.panics.Caught("Observer.Contended", nil)
	o.to.Contended(lock)
}

func (o safeObserver) Renewed(lock, holdID string) {
	defer o.panics.Caught("Observer.Renewed", nil)
	o.to.Renewed(lock, holdID)
}

func (o safeObserver) Lost(e LossEvent) {
	defer o.panics.Caught("Observer.Lost", nil)
	o.to.Lost(e)
}

func (o safeObserver) Leadership(e LeadershipEvent) {
	defer o.panics.Caught("Observer.Leadership", nil)
	o.to.Leadership(e)
}

func (o safeObserver) Unlocked(e UnlockEvent) {
	defer o.panics.Caught("Observer.Unlocked", nil)
	o.to.Unlocked(e)
}

func (o safeObserver) Retry(operation string, err error) {
	defer o.panics.Caught("Observer.Retry", nil)
	o.to.Retry(operation, err)
}

func (o safeObserver) Subscription(channel string, on bool) {
	defer o.panics.Caught("Observer.Subscription", nil)
	o.to.Subscription(channel, on)
}

func (o safeObserver) Dropped(events int) {
	defer o.panics.Caught("Observer.Dropped", nil)
	o.to.Dropped(events)
}

func (o safeObserver) Unpublished(err error) {
	defer o.panics.Caught("Observer.Unpublished", nil)
	o.to.Unpublished(err)
}

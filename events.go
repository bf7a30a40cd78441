package rlock

import (
	"context"
	"log/slog"
	"reflect"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// events tells the Observer and the logger what happens. Events under a mutex or in the
// watchdog, which must not wait for them, go into a queue that a goroutine delivers in
// order.
type events struct {
	wire.Panics
	observers
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
	e := &events{logger: logger, underWay: underWay, observers: observersOf(o)}
	e.listens = o != nil || logger.Handler() != slog.DiscardHandler
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
	dropped, over := 0, false
	defer func() {
		if over {
			e.underWay.Add(-1)
			return
		}
		e.mu.Lock()
		e.queue = append(queue, e.queue...)
		e.dropped += dropped
		e.mu.Unlock()
		e.goOn(e.deliver)
	}()
	for {
		if queue, dropped = e.take(); len(queue) == 0 {
			over = true
			return
		}
		for len(queue) > 0 {
			fn := queue[0]
			queue = queue[1:]
			e.call(fn)
		}
		if n := dropped; n > 0 {
			dropped = 0 // once, even if that ends the goroutine
			e.droppedSome(n)
			e.call(func() {
				e.logger.Warn("rlock: the Observer or Logger is too slow, events were dropped", "events", n)
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
func (e *events) Retried(ctx context.Context, request string, err error) {
	if e.retries != nil {
		e.retry(ctx, retried(ctx, request, err))
	}
}

// Unpublished implements wire.Events: it reports, once, that Redis does not permit the
// client to publish.
func (e *events) Unpublished(why error) {
	e.muted.Do(func() {
		e.surely(func() {
			e.unpublished(why)
			e.logger.Warn("rlock: Redis does not permit to publish: locks are released, but waiters are not woken", "error", why)
		})
	})
}

// observers are what the user's Observer implements; nil: it does not, or there is none.
type observers struct {
	observer      Observer
	contention    ContentionObserver
	renewals      RenewalObserver
	leaderships   LeadershipObserver
	retries       RetryObserver
	subscriptions SubscriptionObserver
	publishing    PublishObserver
	drops         DropObserver
}

func observersOf(o Observer) (all observers) {
	all.observer = o
	all.contention, _ = o.(ContentionObserver)
	all.renewals, _ = o.(RenewalObserver)
	all.leaderships, _ = o.(LeadershipObserver)
	all.retries, _ = o.(RetryObserver)
	all.subscriptions, _ = o.(SubscriptionObserver)
	all.publishing, _ = o.(PublishObserver)
	all.drops, _ = o.(DropObserver)
	return all
}

// neverCalled returns a method of an Observer that has the name of one of an optional interface, such as
// RenewalObserver, but other parameters; or "".
func neverCalled(o Observer) (method string) {
	of := reflect.TypeOf(o)
	for _, optional := range []reflect.Type{
		reflect.TypeFor[ContentionObserver](), reflect.TypeFor[RenewalObserver](), reflect.TypeFor[LeadershipObserver](),
		reflect.TypeFor[RetryObserver](), reflect.TypeFor[SubscriptionObserver](), reflect.TypeFor[PublishObserver](),
		reflect.TypeFor[DropObserver](),
	} {
		if m := optional.Method(0); !of.Implements(optional) {
			if _, has := of.MethodByName(m.Name); has {
				return m.Name
			}
		}
	}
	return ""
}

// What follows calls the user's Observer, and catches its panics: a lease that has been granted is
// handed out whatever an Observer does.

// acquireStart needs an Observer, as acquireEnd, lost and unlocked do.
func (e *events) acquireStart(ctx context.Context, ev StartEvent) (out context.Context) {
	defer func() {
		if out == nil {
			out = ctx
		}
	}()
	defer e.Caught("Observer.AcquireStart", nil)
	return e.observer.AcquireStart(ctx, ev)
}

func (e *events) acquireEnd(ctx context.Context, ev AcquireEvent) {
	defer e.Caught("Observer.AcquireEnd", nil)
	e.observer.AcquireEnd(ctx, ev)
}

func (e *events) lost(ctx context.Context, ev LossEvent) {
	defer e.Caught("Observer.Lost", nil)
	e.observer.Lost(ctx, ev)
}

func (e *events) unlocked(ctx context.Context, ev UnlockEvent) {
	defer e.Caught("Observer.Unlocked", nil)
	e.observer.Unlocked(ctx, ev)
}

func (e *events) contended(ctx context.Context, ev ContentionEvent) {
	if e.contention != nil {
		defer e.Caught("Observer.Contended", nil)
		e.contention.Contended(ctx, ev)
	}
}

// renewed needs a RenewalObserver.
func (e *events) renewed(ctx context.Context, ev RenewalEvent) {
	defer e.Caught("Observer.Renewed", nil)
	e.renewals.Renewed(ctx, ev)
}

// leadership needs a LeadershipObserver.
func (e *events) leadership(ctx context.Context, ev LeadershipEvent) {
	defer e.Caught("Observer.Leadership", nil)
	e.leaderships.Leadership(ctx, ev)
}

func (e *events) retry(ctx context.Context, ev RetryEvent) {
	if e.retries != nil {
		defer e.Caught("Observer.Retry", nil)
		e.retries.Retry(ctx, ev)
	}
}

func (e *events) subscription(channel string, on bool) {
	if e.subscriptions != nil {
		defer e.Caught("Observer.Subscription", nil)
		e.subscriptions.Subscription(SubscriptionEvent{channel, on})
	}
}

func (e *events) unpublished(err error) {
	if e.publishing != nil {
		defer e.Caught("Observer.Unpublished", nil)
		e.publishing.Unpublished(err)
	}
}

func (e *events) droppedSome(n int) {
	if e.drops != nil {
		defer e.Caught("Observer.Dropped", nil)
		e.drops.Dropped(n)
	}
}

// subjectKey marks what the requests of a context are about: something that has an Event, or how
// many locks.
type subjectKey struct{}

// about returns a context whose requests are about something, for retries of them.
func (e *events) about(ctx context.Context, subject any) context.Context {
	if e.retries == nil {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, subject)
}

// retried is the retry of a request of a context.
func retried(ctx context.Context, request string, err error) RetryEvent {
	e := RetryEvent{Operation: request, Err: err}
	switch of := ctx.Value(subjectKey{}).(type) {
	case interface{ event() Event }:
		e.Event, e.Locks = of.event(), 1
	case int:
		e.Locks = of
	}
	return e
}

package rlock

import (
	"context"
	"log/slog"
	"reflect"
	"sync"

	"github.com/go-rlock/rlock/internal/notify"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// events tells the Observer and the logger what happens. Events under a mutex or in the
// watchdog, which must not wait for them, go into the queue.
type events struct {
	*notify.Queue
	observers
	muted sync.Once // of reporting that nothing can be published
}

var _ wire.Events = (*events)(nil)

func newEvents(o Observer, logger *slog.Logger, underWay *wire.Tally) *events {
	e := &events{observers: observersOf(o)}
	e.Queue = notify.New(notify.Config{
		Logger: logger, Listens: o != nil || logger.Handler() != slog.DiscardHandler,
		UnderWay: underWay, Dropped: e.droppedSome,
	})
	return e
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
		e.Surely(func() {
			e.unpublished(why)
			e.Logger.Warn("rlock: Redis does not permit to publish: locks are released, but waiters are not woken", "error", why)
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
// many locks. See events.about.
type subjectKey struct{}

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

// cleanUpFailed tells that the end of a hold of a lock is repeated.
func (e *events) cleanUpFailed(of any, operation string, err error) {
	if e.retries == nil {
		return
	}
	retry := RetryEvent{Operation: operation, Locks: 1, Err: err}
	if lock, ok := of.(protocol.LockID); ok {
		retry.Lock = lock.Name
	}
	e.Later(func() { e.retry(context.Background(), retry) })
}

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

// events calls the Observer and the logger. Events under a mutex or in the watchdog, which must not wait for them, go
// through the queue.
type events struct {
	*notify.Queue
	observer Observer  // nil without an Observer
	muted    sync.Once // limits Unpublished to one report
}

var _ wire.Events = (*events)(nil)

func newEvents(o Observer, logger *slog.Logger, underWay *wire.Tally) *events {
	e := &events{observer: o}
	e.Queue = notify.New(notify.Config{
		Logger: logger, HasReceiver: o != nil || logger.Handler() != slog.DiscardHandler,
		UnderWay: underWay, Dropped: e.droppedSome,
	})
	return e
}

// Retried implements wire.Events.
func (e *events) Retried(ctx context.Context, request string, err error) {
	if observes[RetryObserver](e) {
		e.retry(ctx, retried(ctx, request, err))
	}
}

// Unpublished implements wire.Events: it reports, once, that Redis does not permit the
// client to publish.
func (e *events) Unpublished(why error) {
	e.muted.Do(func() {
		e.Always(func() {
			callObserver(e, "Observer.Unpublished", func(o PublishObserver) { o.Unpublished(why) })
			e.Logger.Warn("rlock: Redis does not permit to publish: locks are released, but waiters are not woken", "error", why)
		})
	})
}

// neverCalled returns a method of an Observer that has the name of one of an optional interface, such as
// RenewalObserver, but other parameters; or "".
//
// MethodByName gets constants: with a variable, the linker would keep each exported method of all types of a
// program, and the clients of go-redis have thousands.
func neverCalled(o Observer) (method string) {
	typ := reflect.TypeOf(o)
	_, contended := typ.MethodByName("Contended")
	_, renewed := typ.MethodByName("Renewed")
	_, leadership := typ.MethodByName("Leadership")
	_, retry := typ.MethodByName("Retry")
	_, subscription := typ.MethodByName("Subscription")
	_, unpublished := typ.MethodByName("Unpublished")
	_, dropped := typ.MethodByName("Dropped")
	for _, optional := range []struct {
		name     string
		has      bool
		observer reflect.Type
	}{
		{"Contended", contended, reflect.TypeFor[ContentionObserver]()},
		{"Renewed", renewed, reflect.TypeFor[RenewalObserver]()},
		{"Leadership", leadership, reflect.TypeFor[LeadershipObserver]()},
		{"Retry", retry, reflect.TypeFor[RetryObserver]()},
		{"Subscription", subscription, reflect.TypeFor[SubscriptionObserver]()},
		{"Unpublished", unpublished, reflect.TypeFor[PublishObserver]()},
		{"Dropped", dropped, reflect.TypeFor[DropObserver]()},
	} {
		if optional.has && !typ.Implements(optional.observer) {
			return optional.name
		}
	}
	return ""
}

// callObserver calls a method of the Observer, if it has that method. It catches a panic, so that the caller gets its
// lease in any case.
func callObserver[O any](e *events, method string, call func(o O)) {
	if o, has := e.observer.(O); has {
		defer e.Caught(method, nil)
		call(o)
	}
}

// observes reports whether there is an Observer that implements O.
func observes[O any](e *events) bool {
	_, has := e.observer.(O)
	return has
}

// acquireStart reports the start of an acquire, and returns the context that the Observer gives to it.
func (e *events) acquireStart(ctx context.Context, ev StartEvent) context.Context {
	var out context.Context
	callObserver(e, "Observer.AcquireStart", func(o Observer) { out = o.AcquireStart(ctx, ev) })
	if out == nil { // it has panicked, or returned nothing
		return ctx
	}
	return out
}

func (e *events) acquireEnd(ctx context.Context, ev AcquireEvent) {
	callObserver(e, "Observer.AcquireEnd", func(o Observer) { o.AcquireEnd(ctx, ev) })
}

func (e *events) lost(ctx context.Context, ev LossEvent) {
	callObserver(e, "Observer.Lost", func(o Observer) { o.Lost(ctx, ev) })
}

func (e *events) unlocked(ctx context.Context, ev UnlockEvent) {
	callObserver(e, "Observer.Unlocked", func(o Observer) { o.Unlocked(ctx, ev) })
}

func (e *events) contended(ctx context.Context, ev ContentionEvent) {
	callObserver(e, "Observer.Contended", func(o ContentionObserver) { o.Contended(ctx, ev) })
}

func (e *events) renewed(ctx context.Context, ev RenewalEvent) {
	callObserver(e, "Observer.Renewed", func(o RenewalObserver) { o.Renewed(ctx, ev) })
}

func (e *events) leadership(ctx context.Context, ev LeadershipEvent) {
	callObserver(e, "Observer.Leadership", func(o LeadershipObserver) { o.Leadership(ctx, ev) })
}

func (e *events) retry(ctx context.Context, ev RetryEvent) {
	callObserver(e, "Observer.Retry", func(o RetryObserver) { o.Retry(ctx, ev) })
}

func (e *events) subscription(channel string, on bool) {
	callObserver(e, "Observer.Subscription", func(o SubscriptionObserver) { o.Subscription(SubscriptionEvent{channel, on}) })
}

func (e *events) droppedSome(n int) {
	callObserver(e, "Observer.Dropped", func(o DropObserver) { o.Dropped(n) })
}

// subjectKey is the key of the subject of a context's requests: a value with an Event, or a number of locks. See
// events.withSubject.
type subjectKey struct{}

// retried returns the event for a retry of a request with a context.
func retried(ctx context.Context, request string, err error) RetryEvent {
	e := RetryEvent{Operation: request, Err: err}
	switch subject := ctx.Value(subjectKey{}).(type) {
	case interface{ event() Event }:
		e.Event, e.Locks = subject.event(), 1
	case int:
		e.Locks = subject
	}
	return e
}

// cleanUpFailed reports to the Observer that a clean-up has failed, and is repeated.
func (e *events) cleanUpFailed(subject any, operation string, err error) {
	if !observes[RetryObserver](e) {
		return
	}
	retry := RetryEvent{Operation: operation, Locks: 1, Err: err}
	if lock, ok := subject.(protocol.LockID); ok {
		retry.Lock = lock.Name
	}
	e.Later(func() { e.retry(context.Background(), retry) })
}

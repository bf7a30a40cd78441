package rlock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-rlock/rlock/internal/clock"
)

// observed is one acquire, and the hold that it begins, if any, for the Observer; nil: there is no Observer.
type observed struct {
	of      *core
	ctx     context.Context // what AcquireStart has returned
	began   clock.Instant
	permits int

	// Only the goroutine of the acquire uses these.
	holder     string // the last hold that kept it out
	contended  bool
	handedOver bool // the hold was handed over by another owner of this client

	open    bool  // AcquireEnd has returned: guarded by mu
	entries int32 // of the hold: guarded as the hold is
	mu      sync.Mutex
	early   []func() // events of the hold that came before AcquireEnd has returned: guarded by mu
}

// observe begins an acquire. ctx is from then on that of its requests.
func (l *core) observe(ctx context.Context, permits int) (context.Context, *observed) {
	events := l.c.events
	if events.observer == nil {
		return ctx, nil
	}
	o := &observed{of: l, began: l.c.now(), permits: permits}
	o.ctx = events.about(events.acquireStart(ctx, StartEvent{o.event()}), l)
	return o.ctx, o
}

// event is an Event about the lock itself.
func (l *core) event() Event {
	return Event{Lock: l.name(), Type: l.typeName(), Side: l.sideName()}
}

func (o *observed) event() Event {
	e := o.of.event()
	e.Permits = o.permits
	return e
}

// contends tells the Observer, once, that the acquire begins to wait.
func (o *observed) contends() {
	if o != nil && !o.contended {
		o.contended = true
		o.of.c.events.contended(o.ctx, ContentionEvent{o.event()})
	}
}

// noteHolder notes who holds the lock.
func (o *observed) noteHolder(s *snapshot) {
	if o != nil && s.holder != "" {
		o.holder = s.holder
	}
}

// end tells the Observer of the end of the acquire; e has the result. Call it through Lease.granted if there is a lease.
func (o *observed) end(e AcquireEvent) {
	if o == nil {
		return
	}
	defer o.opens()
	of := o.event()
	of.HoldID, of.Token, of.Entry = e.HoldID, e.Token, e.Entry
	e.Event, e.Wait, e.Contended = of, o.of.c.now().Sub(o.began), o.contended
	e.HandedOver = o.handedOver && e.Err == nil
	if e.HolderID = o.holder; e.HandedOver {
		e.HolderID = e.HoldID // both holds have it
	}
	if e.Err != nil {
		var found interface{ hasResult() bool } // of a Once
		if errors.As(e.Err, &found) && found.hasResult() {
			e.Err = nil
		}
	}
	o.of.c.events.acquireEnd(o.ctx, e)
}

// opens has events of the hold delivered from now on.
func (o *observed) opens() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open = true
	for _, fn := range o.early {
		o.of.c.events.Surely(fn)
	}
	o.early = nil
}

// tell has an event of the hold delivered, but not before AcquireEnd has returned.
func (o *observed) tell(deliver func(fn func()), fn func()) {
	if o == nil {
		deliver(fn)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open {
		o.early = append(o.early, fn)
		return
	}
	deliver(fn)
}

// about returns a context whose requests are about something, for retries of them.
func (e *events) about(ctx context.Context, subject any) context.Context {
	if !tells[RetryObserver](e) {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, subject)
}

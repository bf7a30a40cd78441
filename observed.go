package rlock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
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

// observe begins an acquire. It returns the context of the acquire's requests.
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

// contends reports to the Observer, once, that the acquire begins to wait.
func (o *observed) contends() {
	if o != nil && !o.contended {
		o.contended = true
		o.of.c.events.contended(o.ctx, ContentionEvent{o.event()})
	}
}

// noteHolder notes who holds the lock.
func (o *observed) noteHolder(s *wait.Seen) {
	if o != nil && s.Holder != "" {
		o.holder = s.Holder
	}
}

// end reports the end of the acquire to the Observer; e has the result. Call it through Lease.granted if there is a lease.
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
		var found interface{ Found() bool } // of a Once or a CronJob
		if errors.As(e.Err, &found) && found.Found() {
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

// event returns an event about a hold. entry is the entry of the lease that it is about, or 0.
func (h *hold) event(entry int32) Event {
	e := h.core.event()
	e.HoldID, e.Token, e.Entry, e.Permits = h.id(), h.token, int(entry), protocol.Takes(h.core.proto)
	return e
}

func (h *hold) enteredLocked(l *Lease) {
	if o := h.observed; o != nil {
		o.entries++
		l.entry = o.entries
	}
}

func (h *hold) tellLoss(now clock.Instant, cause error) {
	h.core.c.totals.losses.Add(1)
	events, o := h.core.c.events, h.observed
	e := LossEvent{Event: h.event(0), Held: now.Sub(h.first.since), Cause: cause}
	o.tell(events.Surely, func() {
		if o != nil {
			events.lost(o.ctx, e)
		}
		attrs := []any{"lock.name", e.Lock, "lock.hold_id", e.HoldID, "fence", e.Token}
		h.core.c.watchdog.losses.log(attrs, e.Cause)
	})
}

// tellRenewalLocked reports the answer to a renewal to the Observer, before the answer has an effect.
func (h *hold) tellRenewalLocked(sent, now clock.Instant, err error) {
	o, events := h.observed, h.core.c.events
	if o == nil || !tells[RenewalObserver](events) { // very many holds are renewed
		return
	}
	left := h.deadline.Sub(now)
	o.tell(events.Later, func() {
		events.renewed(o.ctx, RenewalEvent{Event: h.event(0), Left: left, Took: now.Sub(sent), Err: err})
	})
}

func (h *hold) tellRetry(operation string, err error) {
	o, events := h.observed, h.core.c.events
	if o == nil || !tells[RetryObserver](events) {
		return
	}
	o.tell(events.Later, func() {
		events.retry(o.ctx, RetryEvent{Event: h.event(0), Operation: operation, Locks: 1, Err: err})
	})
}

// tellUnlocked reports the result of an Unlock to the Observer.
func (h *hold) tellUnlocked(l *Lease, err error) {
	o := h.observed
	if o == nil {
		return
	}
	since := l.since
	ends := l.ends && !errors.Is(err, ErrLeaseLost) // otherwise Lost ends it
	if ends {
		since = h.first.since
	}
	h.core.c.events.unlocked(o.ctx, UnlockEvent{
		Event: h.event(l.entry), Ends: ends, HandedOver: l.handedOver, Held: h.core.c.now().Sub(since), Err: err,
	})
}

// about returns a context whose requests are about something, for retries of them.
func (e *events) about(ctx context.Context, subject any) context.Context {
	if !tells[RetryObserver](e) {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, subject)
}

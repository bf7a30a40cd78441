package rlock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
)

// observed reports one acquire, and the hold that it begins, to the Observer. It is nil without an Observer.
type observed struct {
	core    *core
	ctx     context.Context // result of AcquireStart
	began   clock.Instant
	permits int

	// Only the goroutine of the acquire uses the next three fields.
	holder     string // latest hold that kept the acquire out
	contended  bool
	handedOver bool // the hold was handed over by another owner of this client

	acquireEnded bool  // AcquireEnd has returned; guarded by mu
	entries      int32 // entries of the hold; guarded by the guard of the hold
	mu           sync.Mutex
	early        []func() // events of the hold before AcquireEnd has returned; guarded by mu
}

// observe begins an acquire. It returns the context of the acquire's requests.
func (l *core) observe(ctx context.Context, permits int) (context.Context, *observed) {
	events := l.c.events
	if events.observer == nil {
		return ctx, nil
	}
	o := &observed{core: l, began: l.c.now(), permits: permits}
	o.ctx = events.withSubject(events.acquireStart(ctx, StartEvent{o.event()}), l)
	return o.ctx, o
}

// event returns an Event about the lock, not about a hold.
func (l *core) event() Event {
	return Event{Lock: l.name(), Type: l.typeName(), Side: l.sideName()}
}

func (o *observed) event() Event {
	e := o.core.event()
	e.Permits = o.permits
	return e
}

// reportContention reports to the Observer, once, that the acquire begins to wait.
func (o *observed) reportContention() {
	if o != nil && !o.contended {
		o.contended = true
		o.core.c.events.contended(o.ctx, ContentionEvent{o.event()})
	}
}

// noteHolder records who holds the lock.
func (o *observed) noteHolder(s *wait.Status) {
	if o != nil && s.Holder != "" {
		o.holder = s.Holder
	}
}

// end reports the end of the acquire to the Observer; e has the result. Call it through Lease.granted if there is a lease.
func (o *observed) end(e AcquireEvent) {
	if o == nil {
		return
	}
	defer o.deliverEarly()
	event := o.event()
	event.HoldID, event.Token, event.Entry = e.HoldID, e.Token, e.Entry
	e.Event, e.Wait, e.Contended = event, o.core.c.now().Sub(o.began), o.contended
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
	o.core.c.events.acquireEnd(o.ctx, e)
}

// deliverEarly delivers the early events of the hold. Later events are delivered without delay.
func (o *observed) deliverEarly() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquireEnded = true
	for _, fn := range o.early {
		o.core.c.events.Always(fn)
	}
	o.early = nil
}

// deliver delivers an event of the hold, but not before AcquireEnd has returned.
func (o *observed) deliver(deliver func(fn func()), fn func()) {
	if o == nil {
		deliver(fn)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.acquireEnded {
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

func (h *hold) reportLoss(now clock.Instant, cause error) {
	h.core.c.totals.losses.Add(1)
	events, o := h.core.c.events, h.observed
	e := LossEvent{Event: h.event(0), Held: now.Sub(h.first.since), Cause: cause}
	o.deliver(events.Always, func() {
		if o != nil {
			events.lost(o.ctx, e)
		}
		attrs := []any{"lock.name", e.Lock, "lock.hold_id", e.HoldID, "fence", e.Token}
		h.core.c.watchdog.losses.log(attrs, e.Cause)
	})
}

// reportRenewalLocked reports the answer to a renewal to the Observer, before the answer has an effect.
func (h *hold) reportRenewalLocked(sent, now clock.Instant, err error) {
	o, events := h.observed, h.core.c.events
	if o == nil || !observes[RenewalObserver](events) { // very many holds are renewed
		return
	}
	left := h.deadline.Sub(now)
	o.deliver(events.Later, func() {
		events.renewed(o.ctx, RenewalEvent{Event: h.event(0), Left: left, Took: now.Sub(sent), Err: err})
	})
}

func (h *hold) reportRetry(operation string, err error) {
	o, events := h.observed, h.core.c.events
	if o == nil || !observes[RetryObserver](events) {
		return
	}
	o.deliver(events.Later, func() {
		events.retry(o.ctx, RetryEvent{Event: h.event(0), Operation: operation, Locks: 1, Err: err})
	})
}

// reportUnlocked reports the result of an Unlock to the Observer.
func (h *hold) reportUnlocked(l *Lease, err error) {
	o := h.observed
	if o == nil {
		return
	}
	since := l.since
	ends := l.endsHold && !errors.Is(err, ErrLeaseLost) // otherwise the hold has ended by a loss
	if ends {
		since = h.first.since
	}
	h.core.c.events.unlocked(o.ctx, UnlockEvent{
		Event: h.event(l.entry), Ends: ends, HandedOver: l.handedOver, Held: h.core.c.now().Sub(since), Err: err,
	})
}

// withSubject returns a context that has the subject of its requests, for the events of their retries.
func (e *events) withSubject(ctx context.Context, subject any) context.Context {
	if !observes[RetryObserver](e) {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, subject)
}

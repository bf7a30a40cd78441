package rlock

import "errors"

// What an Observer, and the logger, are told of a hold.

// observed is nil if there is no Observer. It does not change once the hold is in service.
func (h *hold) observed() *observed {
	if h.core.c.events.observer == nil || h.seldom == nil {
		return nil
	}
	return h.seldom.observed
}

// event is what is known of a hold. entry is that of a lease that it is about, or 0.
func (h *hold) event(entry int32) Event {
	e := h.core.event()
	e.HoldID, e.Token, e.Entry, e.Permits = h.id(), h.token, int(entry), h.core.asks.Takes()
	return e
}

// enteredLocked counts a lease.
func (h *hold) enteredLocked(l *Lease) {
	if o := h.observed(); o != nil {
		o.entries++
		l.entry = int32(o.entries)
	}
}

func (h *hold) tellLoss(now instant, cause error) {
	h.core.c.totals.losses.Add(1)
	events, o := h.core.c.events, h.observed()
	e := LossEvent{Event: h.event(0), Held: now.Sub(h.first.since), Cause: cause}
	o.tell(events.surely, func() {
		if o != nil {
			events.lost(o.ctx, e)
		}
		attrs := []any{"lock.name", e.Lock, "lock.hold_id", e.HoldID, "fence", e.Token}
		if errors.Is(e.Cause, ErrAdopted) { // as its holder has wanted
			events.logger.Info("rlock: hold adopted by another client", attrs...)
			return
		}
		events.logger.Warn("rlock: lease lost", append(attrs, "cause", e.Cause)...)
	})
}

// tellRenewalLocked tells of the answer to a renewal, before it counts.
func (h *hold) tellRenewalLocked(sent, now instant, err error) {
	o, events := h.observed(), h.core.c.events
	if o == nil || events.renewals == nil { // very many holds are renewed
		return
	}
	left := h.deadline.Sub(now)
	o.tell(events.later, func() {
		events.renewed(o.ctx, RenewalEvent{Event: h.event(0), Left: left, Took: now.Sub(sent), Err: err})
	})
}

func (h *hold) tellRetry(operation string, err error) {
	o, events := h.observed(), h.core.c.events
	if o == nil || events.retries == nil {
		return
	}
	o.tell(events.later, func() {
		events.retry(o.ctx, RetryEvent{Event: h.event(0), Operation: operation, Locks: 1, Err: err})
	})
}

// tellUnlocked implements holding.
func (h *hold) tellUnlocked(l *Lease, err error) {
	o := h.observed()
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

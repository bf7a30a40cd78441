package rlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wire"
)

var _ timers.Task = (*hold)(nil)

// extra is what a few holds need of the watchdog beside renewals: a holder listens for requests to release
// (revocation.go), a fixed lease is guarded (below). The guard of the hold guards
// it.
type extra interface {
	// nextLocked is when the watchdog has to send something for it; zero: there is nothing to send.
	nextLocked() clock.Instant
	// dueLocked returns what to send for it.
	dueLocked(now clock.Instant) protocol.Task
	// answeredLocked is called with the answer. It reports whether the hold is gone.
	answeredLocked(now clock.Instant, r protocol.Result[protocol.Kept]) (gone bool)
	// overLocked is called when the hold has ended.
	overLocked()
}

// addLocked gives the hold an extra. The Kind of a task is the place of its extra in the list, from 1; that of a
// renewal is 0.
func (s *rare) addLocked(e extra) { s.extras = append(s.extras, e) }

// periodic is what extras have in common: the watchdog asks Redis about the hold again and again, and at once when
// there may have been a message.
type periodic struct {
	h     *hold
	next  clock.Instant // when it asks
	found bool          // what it listens for has happened
	end   func()        // ends the subscription; nil: there is none
}

// listensLocked reports whether it is not over.
func (e *periodic) listensLocked() bool { return !e.found && e.h.state == held }

func (e *periodic) nextLocked() clock.Instant {
	if !e.listensLocked() {
		return 0
	}
	return e.next
}

// answeredLocked is for a request whether the hold is there.
func (e *periodic) answeredLocked(now clock.Instant, r protocol.Result[protocol.Kept]) (gone bool) {
	if r.Err != nil || r.TooFew != nil {
		e.next = min(e.next, now.Add(e.h.core.retryAfter()))
		return false
	}
	return r.Outcome != protocol.Done
}

// keepSubscription notes how the subscription is ended, or ends it, if it is not needed any more.
func (e *periodic) keepSubscription(end func()) {
	e.h.lock()
	if e.listensLocked() {
		e.end, end = end, nil
	}
	e.h.unlock()
	if end != nil {
		end()
	}
}

// askSoon has the watchdog ask Redis at once.
func (e *periodic) askSoon() {
	e.h.lock()
	defer e.h.unlock()
	if e.listensLocked() {
		e.next = e.h.core.c.now()
		e.h.core.c.watchdog.Hurry(&e.h.Entry)
	}
}

func (e *periodic) overLocked() {
	if e.end != nil {
		e.end()
		e.end = nil
	}
}

// nextLocked is when the watchdog must look at the hold again.
func (h *hold) nextLocked() clock.Instant {
	next := h.deadline
	if h.renewed > 0 {
		if h.renewAt.Before(next) {
			next = h.renewAt
		}
		if m := h.maxHoldAt(); !m.IsZero() && m.Before(next) {
			next = m
		}
	}
	if h.rare != nil {
		for _, e := range h.extras {
			if at := e.nextLocked(); !at.IsZero() && at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// Due implements timers.Task.
func (h *hold) Due(now clock.Instant, slack time.Duration) (do timers.Do, next clock.Instant) {
	h.lock()
	defer h.unlock()
	h.checkLocked(now)
	if h.state != held {
		return timers.Do{}, 0
	}
	if h.renewed > 0 && !h.renewAt.After(now.Add(slack)) {
		do.Task = h.core.proto.Renew(h.id(), h.core.c.cfg.watchdogLease)
		if h.attempts > 0 {
			// No answer yet to the last one, which may hang for as long as
			// go-redis waits: perhaps another node has the slot by now.
			h.core.c.wire.RefreshTopology()
		}
		h.attempts++
		h.renewAt = now.Add(h.core.retryAfter()) // if no answer comes
	} else if h.rare != nil {
		for i, e := range h.extras {
			if at := e.nextLocked(); !at.IsZero() && !at.After(now.Add(slack)) {
				do = timers.Do{Task: e.dueLocked(now), Kind: uint8(i + 1)}
				break
			}
		}
	}
	return do, h.nextLocked()
}

// Answered implements timers.Task.
func (h *hold) Answered(did timers.Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	renews := did.Kind == 0
	if renews && r.OfQuorum { // for other holds, watchdog.renewed counts each pipeline
		h.core.c.watchdog.renewals(h.core.family, nil, r.Err == nil, r.Err)
	}
	h.lock()
	defer h.unlock()
	now := h.core.c.now()
	h.checkLocked(now) // a deadline that has passed stays passed
	if h.state != held {
		return 0 // a release came first, and the answer may be its effect
	}
	if !renews {
		if h.extras[did.Kind-1].answeredLocked(now, r) {
			h.loseLocked(now, absence(r.Outcome))
			return 0
		}
		return h.nextLocked()
	}
	err := r.Err
	if err == nil && r.TooFew != nil {
		err = r.TooFew
	}
	if err != nil || r.Outcome == protocol.Done {
		h.core.c.totals.renewed(err)
		h.tellRenewalLocked(sent, now, cmp.Or(err, r.Doubt))
	}
	switch {
	case err != nil:
		h.retryLocked(now, err, r.Err == nil || !wire.Transient(r.Err))
	case r.Outcome != protocol.Done:
		h.loseLocked(now, absence(r.Outcome))
		return 0
	default:
		h.confirmLocked(sent, h.core.c.cfg.watchdogLease)
		h.doubtLocked(r.Doubt)
	}
	return h.nextLocked()
}

// guarded is a fixed lease that the watchdog restores. When Redisson
// renews one hold of a shared lock, it cuts the TTL of the lock to its watchdog timeout:
// the longer leases of others would end with it if it died then. The watchdog restores
// them each third of a watchdog lease, assuming that Redisson's is as long.
type guarded struct{ periodic }

// guardLocked has a fixed lease guarded that was confirmed, if it needs that.
func (h *hold) guardLocked(lease time.Duration) {
	if lease <= h.core.c.cfg.watchdogLease || !protocol.Is[protocol.Guarded](h.core.proto) {
		return
	}
	s := h.rareLocked()
	if s.guarded == nil {
		s.guarded = &guarded{periodic{h: h}}
		s.addLocked(s.guarded)
	}
	s.guarded.next = h.renewAt
}

func (g *guarded) nextLocked() clock.Instant {
	if g.h.renewed > 0 || !g.next.Add(g.h.core.c.cfg.watchdogLease).Before(g.h.expires) {
		return 0
	}
	return g.next
}

func (g *guarded) dueLocked(now clock.Instant) protocol.Task {
	g.next = now.Add(g.h.core.c.cfg.watchdogLease / 3)
	return g.h.core.proto.Renew(g.h.id(), 0)
}

// doubtLocked logs, once, that a hold goes on although it may have been lost meanwhile.
func (h *hold) doubtLocked(doubt error) {
	if was := h.rare != nil && h.doubted; was == (doubt != nil) {
		return
	}
	h.rareLocked().doubted = doubt != nil
	if doubt != nil {
		c := h.core.c
		c.events.Later(func() {
			c.events.Logger.Warn("rlock: another owner may have had the lock meanwhile, the hold goes on", "lock.name", h.core.name(), "lock.hold_id", h.id(), "error", doubt)
		})
	}
}

// retryLocked schedules the repetition of a failed renewal. The watchdog logs, for all
// holds, that a node does not answer; other failures are logged here.
func (h *hold) retryLocked(now clock.Instant, err error, logged bool) {
	logged = logged && h.failureLocked() == nil
	h.rareLocked().failure = err
	c, retry := h.core.c, h.core.retryAfter()
	pause := min(retry, time.Duration(h.attempts)*retry/8)
	// Renewals of very many holds that failed together are not repeated together.
	h.renewAt = now.Add(pause - seam.Jitter(c.seed, h.number, int(h.attempts), pause/2))
	if logged {
		c.events.Later(func() {
			c.events.Logger.Info("rlock: renewal failed, trying again", "lock.name", h.core.name(), "lock.hold_id", h.id(), "error", err)
		})
	}
}

func (h *hold) renewNow() {
	h.lock()
	defer h.unlock()
	if h.state == held {
		h.renewAt = h.core.c.now()
		h.core.c.watchdog.Hurry(&h.Entry)
	}
}

// Drain implements timers.Task: the client shuts down. It ends the leases. The holder may still work, so it keeps the
// lock until it unlocks.
func (h *hold) Drain() {
	h.lock()
	defer h.unlock()
	h.closing = true
	for l := h.leases; l != nil; l = l.next {
		l.endLocked(ErrClosed)
	}
}

func (h *hold) askNow() {
	c := h.core.c
	r := h.core.proto.Renew(h.id(), 0).Do(c.wire.Context(), c.cfg.commandTimeout)
	h.lock()
	defer h.unlock()
	now := c.now()
	h.checkLocked(now)
	if r.Err == nil && r.TooFew == nil && r.Outcome != protocol.Done && h.state == held {
		h.loseLocked(now, absence(r.Outcome))
	}
	if h.state == held {
		c.watchdog.Move(&h.Entry, h.nextLocked())
	}
}

// event is what is known of a hold. entry is that of a lease that it is about, or 0.
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

// tellRenewalLocked tells the Observer of the answer to a renewal, before the answer has an effect.
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

// tellUnlocked implements holding.
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

// extend implements holding.
func (h *hold) extend(ctx context.Context, l *Lease, d time.Duration) error {
	if most := h.core.longestLease(); most > 0 && d > most {
		return h.error(invalid("Extend(%v): longer than the longest lease of the lock, %v", d, most))
	}
	c := h.core.c
	began, sent := c.env.Clock.Now(), h.noteRequest(d)
	r := h.core.proto.Renew(h.id(), d).Do(c.events.about(ctx, h.core), c.cfg.commandTimeout)
	err := confirmed(&r, ErrUnreachable)
	if err != nil { // before the guard is locked: the Err of a context may lock it too
		err = h.core.cutShort(ctx, err, r.Last, r.OfQuorum, began)
	}
	h.lock()
	defer h.unlock()
	if err != nil {
		if l.err != nil { // the end of the lease may have cut the request off
			err = l.err
		}
		return h.error(err)
	}
	if h.state == held && l.err == nil {
		h.checkLocked(c.now()) // a deadline that has passed stays passed
		if r.Outcome != protocol.Done {
			h.loseLocked(c.now(), absence(r.Outcome))
		}
	}
	if l.err != nil {
		return h.error(l.err)
	}
	renewAt, attempts, failure := h.renewAt, h.attempts, h.failure // noteRequest has made h.rare
	h.confirmLocked(sent, d)
	if d < c.cfg.watchdogLease {
		// A short extension does not put off the next renewal.
		h.renewAt, h.attempts, h.failure = renewAt, attempts, failure
	}
	c.watchdog.Move(&h.Entry, h.nextLocked())
	return nil
}

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

// What the watchdog sends a request of a hold for.
const (
	toRenew uint8 = 1 << iota // to confirm a watchdog lease
	toHear                    // to find out whether the holder was asked to release the lock
	toLook                    // to find out whether another client has adopted the hold
	knowing                   // it was sent after the handle was made known: its answer tells of an adoption
)

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
	} else if h.guardsLocked() && h.guardLocked().Before(next) {
		next = h.guardLocked()
	}
	if h.listensLocked() && h.hears.next.Before(next) {
		next = h.hears.next
	}
	if h.isKnownLocked() && h.known.next.Before(next) {
		next = h.known.next
	}
	return next
}

// guardsLocked reports whether the watchdog must restore a fixed lease. When Redisson
// renews one hold of a shared lock, it cuts the TTL of the lock to its watchdog time-out:
// the longer leases of others would end with it if it died then. The watchdog restores
// them each third of a watchdog lease, assuming that Redisson's is as long.
func (h *hold) guardsLocked() bool {
	return protocol.GuardsFixedLease(h.core.asks) && h.guardLocked().Add(h.core.c.cfg.watchdogLease).Before(h.expires)
}

// guardLocked is when a fixed lease is restored next.
func (h *hold) guardLocked() clock.Instant {
	if h.seldom != nil && h.guardAt != 0 {
		return h.guardAt
	}
	return h.renewAt
}

// Due implements timers.Task.
func (h *hold) Due(now clock.Instant, slack time.Duration) (do timers.Do, next clock.Instant) {
	h.lock()
	defer h.unlock()
	h.checkLocked(now)
	if h.state != held {
		return timers.Do{}, 0
	}
	lease := h.core.c.cfg.watchdogLease
	if h.renewed > 0 && !h.renewAt.After(now.Add(slack)) {
		do = timers.Do{Task: h.renewalLocked(lease), Kind: toRenew}
		if h.attempts > 0 {
			// No answer yet to the last one, which may hang for as long as
			// go-redis waits: perhaps another node has the slot by now.
			h.core.c.wire.RefreshTopology()
		}
		h.attempts++
		h.renewAt = now.Add(h.core.retryAfter()) // if no answer comes
	} else if h.renewed == 0 && h.guardsLocked() && !h.guardLocked().After(now.Add(slack)) {
		do = timers.Do{Task: h.renewalLocked(0)}
		h.seldomLocked().guardAt = now.Add(lease / 3)
	} else if h.isKnownLocked() && !h.known.next.After(now.Add(slack)) {
		do = timers.Do{Task: h.renewalLocked(0), Kind: toLook}
	} else if h.listensLocked() && !h.hears.next.After(now.Add(slack)) {
		do = h.askLocked(now)
	}
	if do.Task != nil && do.Kind&toHear == 0 && h.isKnownLocked() {
		h.known.next = now.Add(lease / 3)
		do.Kind |= knowing
	}
	return do, h.nextLocked()
}

// Answered implements timers.Task.
func (h *hold) Answered(did timers.Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	renews := did.Kind&toRenew != 0
	if renews && r.OfQuorum { // of other servers the pipelines tell
		h.core.c.watchdog.renewals(h.core.family, nil, r.Err == nil, r.Err)
	}
	h.lock()
	defer h.unlock()
	now := h.core.c.now()
	h.checkLocked(now) // a deadline that has passed stays passed
	if h.state != held {
		return 0 // a release came first: the answer may mean that
	}
	if did.Kind&toHear != 0 {
		h.toldLocked(now, r)
		return h.nextLocked()
	}
	err := r.Err
	if err == nil && r.TooFew != nil {
		err = r.TooFew
	}
	if renews && (err != nil || r.Outcome == protocol.Done) {
		h.core.c.totals.renewed(err)
		h.tellRenewalLocked(sent, now, cmp.Or(err, r.Doubt))
	}
	switch {
	case err == nil && r.Outcome != protocol.Done && did.Kind&knowing == 0 && h.isKnownLocked():
		h.known.next = now // it was sent before the handle was made known, and does not tell of an adoption
	case err == nil && r.Outcome != protocol.Done:
		h.loseLocked(now, absence(r.Outcome))
		return 0
	case renews && err == nil:
		h.confirmLocked(sent, h.core.c.cfg.watchdogLease)
		h.doubtLocked(r.Doubt)
	case renews:
		h.retryLocked(now, err, r.Err == nil || !wire.Transient(r.Err))
	case did.Kind&toLook != 0 && err != nil:
		h.known.next = min(h.known.next, now.Add(h.core.retryAfter()))
	case err != nil:
		h.seldomLocked().guardAt = now.Add(h.core.retryAfter())
	}
	return h.nextLocked()
}

// doubtLocked logs that a hold goes on which may have been lost before, once until that is known.
func (h *hold) doubtLocked(doubt error) {
	if was := h.seldom != nil && h.doubted; was == (doubt != nil) {
		return
	}
	h.seldomLocked().doubted = doubt != nil
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
	h.seldomLocked().failure = err
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

// renewNow has the watchdog renew the hold at once.
func (h *hold) renewNow() {
	h.lock()
	defer h.unlock()
	if h.state == held {
		h.renewAt = h.core.c.now()
		h.core.c.watchdog.Hurry(&h.Entry)
	}
}

// Drain implements timers.Task: the client shuts down. It tells the holder, which keeps the lock
// until it unlocks, because it may still work.
func (h *hold) Drain() {
	h.lock()
	defer h.unlock()
	h.closing = true
	for l := h.leases; l != nil; l = l.next {
		l.endLocked(ErrClosed)
	}
}

// askNow asks Redis whether the hold is still there.
func (h *hold) askNow() {
	c := h.core.c
	sent := c.now()
	h.lock()
	look, did := h.renewalLocked(0), timers.Do{}
	if h.isKnownLocked() {
		did.Kind = knowing
	}
	h.unlock()
	r := look.Do(c.wire.Context(), c.cfg.commandTimeout)
	c.watchdog.Move(&h.Entry, h.Answered(did, sent, r))
}

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
	e.HoldID, e.Token, e.Entry, e.Permits = h.id(), h.token, int(entry), protocol.Takes(h.core.asks)
	return e
}

// enteredLocked counts a lease.
func (h *hold) enteredLocked(l *Lease) {
	if o := h.observed(); o != nil {
		o.entries++
		l.entry = int32(o.entries)
	}
}

func (h *hold) tellLoss(now clock.Instant, cause error) {
	h.core.c.totals.losses.Add(1)
	events, o := h.core.c.events, h.observed()
	e := LossEvent{Event: h.event(0), Held: now.Sub(h.first.since), Cause: cause}
	o.tell(events.Surely, func() {
		if o != nil {
			events.lost(o.ctx, e)
		}
		attrs := []any{"lock.name", e.Lock, "lock.hold_id", e.HoldID, "fence", e.Token}
		if errors.Is(e.Cause, ErrAdopted) { // as its holder has wanted
			events.Logger.Info("rlock: hold adopted by another client", attrs...)
			return
		}
		events.Logger.Warn("rlock: lease lost", append(attrs, "cause", e.Cause)...)
	})
}

// tellRenewalLocked tells of the answer to a renewal, before it counts.
func (h *hold) tellRenewalLocked(sent, now clock.Instant, err error) {
	o, events := h.observed(), h.core.c.events
	if o == nil || events.renewals == nil { // very many holds are renewed
		return
	}
	left := h.deadline.Sub(now)
	o.tell(events.Later, func() {
		events.renewed(o.ctx, RenewalEvent{Event: h.event(0), Left: left, Took: now.Sub(sent), Err: err})
	})
}

func (h *hold) tellRetry(operation string, err error) {
	o, events := h.observed(), h.core.c.events
	if o == nil || events.retries == nil {
		return
	}
	o.tell(events.Later, func() {
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

// extend implements holding.
func (h *hold) extend(ctx context.Context, l *Lease, d time.Duration) error {
	if most := h.core.longestLease(); most > 0 && d > most {
		return h.error(invalid("Extend(%v): longer than the longest lease of the lock, %v", d, most))
	}
	c := h.core.c
	began, sent := c.env.Clock.Now(), h.noteAsked(d)
	r := h.renewal(d).Do(c.events.about(ctx, h.core), c.cfg.commandTimeout)
	h.reconsider(&r)
	err := confirmed(&r, ErrUnreachable)
	if err != nil { // before the guard is locked, which the Err of the context may lock too
		err = cutShort(ctx, err, r.Last, r.OfQuorum, began, c.env.Clock.Now())
	}
	h.lock()
	defer h.unlock()
	if err != nil {
		if l.err != nil { // it has ended meanwhile, which may have cut the request off
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
	renewAt, attempts, failure := h.renewAt, h.attempts, h.failure // noteAsked has made h.seldom
	h.confirmLocked(sent, d)
	if d < c.cfg.watchdogLease {
		// A short extension does not put off the next renewal.
		h.renewAt, h.attempts, h.failure = renewAt, attempts, failure
	}
	c.watchdog.Move(&h.Entry, h.nextLocked())
	return nil
}

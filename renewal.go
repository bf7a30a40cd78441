package rlock

import (
	"cmp"
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wire"
)

var _ timers.Task = (*hold)(nil)

// The kinds of requests that a hold sends, in timers.Do.
const (
	renews       uint8 = iota // renew the lease of the hold
	restores                  // restore the leases of other holds of the lock: see guarded
	pollsRequest              // poll for a request to release: see revocation.go
)

// nextLocked returns when the watchdog must call the hold again.
func (h *hold) nextLocked() clock.Instant {
	next := h.deadline
	if h.renewedCount > 0 {
		if h.renewAt.Before(next) {
			next = h.renewAt
		}
		if m := h.maxHoldAt(); !m.IsZero() && m.Before(next) {
			next = m
		}
	}
	r := h.rareState()
	if r.guarded != nil {
		next = sooner(next, r.guarded.nextLocked())
	}
	if r.revocation != nil {
		next = sooner(next, r.revocation.nextLocked())
	}
	return next
}

// sooner returns the earlier of two times. A zero at stands for never.
func sooner(next, at clock.Instant) clock.Instant {
	if at.IsZero() {
		return next
	}
	return min(next, at)
}

// Due implements timers.Task.
func (h *hold) Due(now clock.Instant, slack time.Duration) (do timers.Do, next clock.Instant) {
	h.lock()
	defer h.unlock()
	h.checkLocked(now)
	if h.state != held {
		return timers.Do{}, 0
	}
	r, soon := h.rareState(), now.Add(slack)
	switch {
	case h.renewedCount > 0 && !h.renewAt.After(soon):
		do = timers.Do{Task: h.core.proto.Renew(h.id(), h.core.c.cfg.watchdogLease), Kind: renews}
		if h.attempts > 0 {
			// The last renewal has no answer yet, and may hang for as long as
			// go-redis waits. Another node may have the slot by now.
			h.core.c.wire.RefreshTopology()
		}
		h.attempts++
		h.renewAt = now.Add(h.core.retryAfter()) // if there is no answer
	case r.guarded != nil && isDue(r.guarded.nextLocked(), soon):
		do = timers.Do{Task: r.guarded.dueLocked(now), Kind: restores}
	case r.revocation != nil && isDue(r.revocation.nextLocked(), soon):
		do = timers.Do{Task: r.revocation.dueLocked(now), Kind: pollsRequest}
	}
	return do, h.nextLocked()
}

// isDue reports whether a time is set and has come.
func isDue(at, now clock.Instant) bool { return !at.IsZero() && !at.After(now) }

// Answered implements timers.Task.
func (h *hold) Answered(did timers.Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	if did.Kind == renews && h.core.ofQuorum() { // for other holds, watchdog.renewed counts each pipeline
		h.core.c.watchdog.renewals(h.core.family, nil, r.Err == nil, r.Err)
	}
	h.lock()
	defer h.unlock()
	now := h.core.c.now()
	h.checkLocked(now) // a renewal after the deadline does not undo the loss
	if h.state != held {
		return 0 // a release was sent first, and the answer may reflect it
	}
	switch did.Kind {
	case restores:
		h.rare.guarded.answeredLocked(now, r)
		return h.nextLocked()
	case pollsRequest:
		h.rare.revocation.answeredLocked(now, r)
		return h.nextLocked()
	}
	err := r.Err
	if err == nil && r.TooFew != nil {
		err = r.TooFew
	}
	if err != nil || r.Outcome == protocol.Done {
		h.core.c.totals.renewed(err)
		h.reportRenewalLocked(sent, now, cmp.Or(err, r.Doubt))
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

// guarded is a hold whose fixed leases the watchdog restores. When Redisson
// renews one hold of a shared lock, it cuts the TTL of the lock to its watchdog timeout.
// If that process died then, the longer leases of others would end with that TTL. The watchdog
// restores them each third of a watchdog lease, on the assumption that Redisson's is as long.
type guarded struct {
	h         *hold
	restoreAt clock.Instant // when the watchdog restores the leases
}

// guardLocked makes the watchdog restore a confirmed fixed lease, if the type of lock needs that.
func (h *hold) guardLocked(lease time.Duration) {
	if lease <= h.core.c.cfg.watchdogLease || !protocol.Is[protocol.Guarded](h.core.proto) {
		return
	}
	r := h.rareLocked()
	if r.guarded == nil {
		r.guarded = &guarded{h: h}
	}
	r.guarded.restoreAt = h.renewAt
}

// nextLocked returns when the next request is due; zero for never.
func (g *guarded) nextLocked() clock.Instant {
	if g.h.renewedCount > 0 || !g.restoreAt.Add(g.h.core.c.cfg.watchdogLease).Before(g.h.expires) {
		return 0
	}
	return g.restoreAt
}

func (g *guarded) dueLocked(now clock.Instant) protocol.Task {
	g.restoreAt = now.Add(g.h.core.c.cfg.watchdogLease / 3)
	return g.h.core.proto.Renew(g.h.id(), 0)
}

func (g *guarded) answeredLocked(now clock.Instant, r protocol.Result[protocol.Kept]) {
	switch {
	case r.Err != nil || r.TooFew != nil:
		g.restoreAt = min(g.restoreAt, now.Add(g.h.core.retryAfter()))
	case r.Outcome != protocol.Done:
		g.h.loseLocked(now, absence(r.Outcome))
	}
}

// doubtLocked logs, once, that a hold continues although it may have been lost meanwhile.
func (h *hold) doubtLocked(doubt error) {
	if h.rareState().mayBeLost == (doubt != nil) {
		return
	}
	h.rareLocked().mayBeLost = doubt != nil
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
	logged = logged && h.rareState().failure == nil
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
	h.isClosing = true
	for l := h.leases; l != nil; l = l.nextOpen {
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

// extend is Lease.Extend.
func (h *hold) extend(ctx context.Context, l *Lease, d time.Duration) error {
	if most := h.core.longestLease(); most > 0 && d > most {
		return h.error(invalid("Extend(%v): longer than the longest lease of the lock, %v", d, most))
	}
	c := h.core.c
	began, sent := c.env.Clock.Now(), h.noteRequest(d)
	r := h.core.proto.Renew(h.id(), d).Do(c.events.withSubject(ctx, h.core), c.cfg.commandTimeout)
	err := confirmed(&r, ErrUnreachable)
	if err != nil { // checked before the guard is locked, because the Err of a context may lock it too
		err = h.core.cutShort(ctx, err, began)
	}
	h.lock()
	defer h.unlock()
	if err != nil {
		if l.err != nil { // the end of the lease may have canceled the request
			err = l.err
		}
		return h.error(err)
	}
	if h.state == held && l.err == nil {
		h.checkLocked(c.now()) // a renewal after the deadline does not undo the loss
		if r.Outcome != protocol.Done {
			h.loseLocked(c.now(), absence(r.Outcome))
		}
	}
	if l.err != nil {
		return h.error(l.err)
	}
	rare := h.rareLocked()
	renewAt, attempts, failure := h.renewAt, h.attempts, rare.failure
	h.confirmLocked(sent, d)
	if d < c.cfg.watchdogLease {
		// A short extension does not put off the next renewal.
		h.renewAt, h.attempts, rare.failure = renewAt, attempts, failure
	}
	c.watchdog.Move(&h.Entry, h.nextLocked())
	return nil
}

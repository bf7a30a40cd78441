package rlock

import (
	"cmp"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

var _ duty = (*hold)(nil)

// nextLocked is when the watchdog must look at the hold again.
func (h *hold) nextLocked() instant {
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
	return h.core.asks.GuardsFixedLease() && h.guardLocked().Add(h.core.c.cfg.watchdogLease).Before(h.expires)
}

// guardLocked is when a fixed lease is restored next.
func (h *hold) guardLocked() instant {
	if h.seldom != nil && h.guardAt != 0 {
		return h.guardAt
	}
	return h.renewAt
}

// due implements duty.
func (h *hold) due(now instant, slack time.Duration) (do chore, next instant) {
	h.lock()
	defer h.unlock()
	h.checkLocked(now)
	if h.state != held {
		return chore{}, 0
	}
	lease := h.core.c.cfg.watchdogLease
	if h.renewed > 0 && !h.renewAt.After(now.Add(slack)) {
		do = chore{task: h.renewalLocked(lease), renews: true}
		if h.attempts > 0 {
			// No answer yet to the last one, which may hang for as long as
			// go-redis waits: perhaps another node has the slot by now.
			h.core.c.wire.RefreshTopology()
		}
		h.attempts++
		h.renewAt = now.Add(h.core.retryAfter()) // if no answer comes
	} else if h.renewed == 0 && h.guardsLocked() && !h.guardLocked().After(now.Add(slack)) {
		do = chore{task: h.renewalLocked(0)}
		h.seldomLocked().guardAt = now.Add(lease / 3)
	} else if h.isKnownLocked() && !h.known.next.After(now.Add(slack)) {
		do = chore{task: h.renewalLocked(0), looks: true}
	} else if h.listensLocked() && !h.hears.next.After(now.Add(slack)) {
		do = h.askLocked(now)
	}
	if do.task != nil && !do.asks && h.isKnownLocked() {
		h.known.next = now.Add(lease / 3)
		do.known = true
	}
	return do, h.nextLocked()
}

// answered implements duty.
func (h *hold) answered(did chore, sent instant, r protocol.Result[protocol.Kept]) instant {
	h.lock()
	defer h.unlock()
	now := h.core.c.now()
	h.checkLocked(now) // a deadline that has passed stays passed
	if h.state != held {
		return 0 // a release came first: the answer may mean that
	}
	if did.asks {
		h.toldLocked(now, r)
		return h.nextLocked()
	}
	err := r.Err
	if err == nil && r.TooFew != nil {
		err = r.TooFew
	}
	if did.renews && (err != nil || r.Outcome == protocol.Done) {
		h.core.c.totals.renewed(err)
		h.tellRenewalLocked(sent, now, cmp.Or(err, r.Doubt))
	}
	switch {
	case err == nil && r.Outcome != protocol.Done && !did.known && h.isKnownLocked():
		h.known.next = now // it was sent before the handle was made known, and does not tell of an adoption
	case err == nil && r.Outcome != protocol.Done:
		h.loseLocked(now, absence(r.Outcome))
		return 0
	case did.renews && err == nil:
		h.confirmLocked(sent, h.core.c.cfg.watchdogLease)
		h.doubtLocked(r.Doubt)
	case did.renews:
		h.retryLocked(now, err, r.Err == nil || !wire.Transient(r.Err))
	case did.looks && err != nil:
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
		c.events.later(func() {
			c.events.logger.Warn("rlock: another owner may have had the lock meanwhile, the hold goes on", "lock.name", h.core.name(), "lock.hold_id", h.id(), "error", doubt)
		})
	}
}

// retryLocked schedules the repetition of a failed renewal. The watchdog logs, for all
// holds, that a node does not answer; other failures are logged here.
func (h *hold) retryLocked(now instant, err error, logged bool) {
	logged = logged && h.failureLocked() == nil
	h.seldomLocked().failure = err
	c, retry := h.core.c, h.core.retryAfter()
	pause := min(retry, time.Duration(h.attempts)*retry/8)
	// Renewals of very many holds that failed together are not repeated together.
	h.renewAt = now.Add(pause - seam.Jitter(c.seed, h.number, int(h.attempts), pause/2))
	if logged {
		c.events.later(func() {
			c.events.logger.Info("rlock: renewal failed, trying again", "lock.name", h.core.name(), "lock.hold_id", h.id(), "error", err)
		})
	}
}

// renewNow has the watchdog renew the hold at once.
func (h *hold) renewNow() {
	h.lock()
	defer h.unlock()
	if h.state == held {
		h.renewAt = h.core.c.now()
		h.core.c.watchdog.hurry(&h.entry)
	}
}

// drain implements duty: the client shuts down. It tells the holder, which keeps the lock
// until it unlocks, because it may still work.
func (h *hold) drain() {
	h.lock()
	defer h.unlock()
	h.closing = true
	for l := h.leases; l != nil; l = l.next {
		l.endLocked(ErrClosed)
	}
}

// holds implements duty.
func (h *hold) holds() (lock string, number, token int64) {
	return h.core.name(), h.number, h.token
}

// nodes implements duty.
func (h *hold) nodes() string { return h.core.family }

// askNow asks Redis whether the hold is still there.
func (h *hold) askNow() {
	c := h.core.c
	sent := c.now()
	h.lock()
	look, known := h.renewalLocked(0), h.isKnownLocked()
	h.unlock()
	r := look.Do(c.wire.Context(), c.cfg.commandTimeout)
	c.watchdog.move(&h.entry, h.answered(chore{known: known}, sent, r))
}

package rlock

import (
	"errors"
	"slices"
	"time"
)

// hold is one stay of an owner at a lock: what stands in Redis under one id,
// however often the owner has entered. Each entry is a Lease.
//
// It ends in one of two ways, and each ends its leases first: the last Unlock
// (before the release is sent), or a loss (at the deadline, or when Redis says
// so). What has ended never comes back. Shutdown ends the leases, but not the
// hold: it is renewed until its owner has unlocked it.
type hold struct {
	entry // the hold is a duty of the watchdog

	core   *core
	turn   *turn  // of what is done at it
	owned  *owned // by the owner of WithOwner; nil: it has none
	stay   string
	number int64 // of the stay
	token  int64
	since  time.Time

	guard    // of the rest
	state    state
	cause    error     // why it ended
	leases   []*Lease  // open ones: not yet unlocked
	renewed  int       // how many of them are to be renewed
	deadline time.Time // local end of validity
	expires  time.Time // when the lease may run out in Redis, by our clock
	renewAt  time.Time // next renewal, if renewed > 0
	attempts int       // renewals since the last that was confirmed
	failure  error     // of the latest of them
	asked    time.Time // when a lease may run out that was asked for, whether that was answered or not
	keepAt   time.Time // next look after a fixed lease, if it needs one; see keepsLocked
	lent     bool      // its id also stands for a hold of the other side
	unsure   bool      // copies of the first acquire may be under way
	closing  bool      // the client shuts down: the leases have ended with ErrClosed
}

var _ holding = (*hold)(nil)

func (h *hold) client() *Client           { return h.core.c }
func (h *hold) lockName() string          { return h.core.name }
func (h *hold) ownerID() string           { return h.stay }
func (h *hold) fence() int64              { return h.token }
func (h *hold) chain(up *chain) *chain    { return up.with(h) }
func (h *hold) deadlineLocked() time.Time { return h.deadline }

func (h *hold) error(err error) error {
	return &Error{Lock: h.core.name, Owner: h.stay, Err: err}
}

// lease makes a lease of the hold.
func (h *hold) lease(since time.Time, renewed bool) *Lease {
	return &Lease{of: h, g: &h.guard, since: since, renewed: renewed}
}

// ask notes, before it is sent, that a lease is asked for, and returns the time.
func (h *hold) ask(lease time.Duration) (sent time.Time) {
	h.lock()
	defer h.unlock()
	sent = h.core.c.clock.Now()
	if end := sent.Add(lease + h.core.c.cfg.commandTimeout); end.After(h.asked) {
		h.asked = end
	}
	return sent
}

// untilLocked is for how long a clean-up of the hold is worth repeating: until
// whatever was asked for has run out, and late copies with it.
func (h *hold) untilLocked() time.Time {
	until := h.core.c.clock.Now()
	for _, t := range []time.Time{h.expires, h.asked} {
		if t.After(until) {
			until = t
		}
	}
	return until.Add(tombstoneTTL)
}

type state int

const (
	held      state = iota
	releasing       // the last Unlock is under way
	over
)

// begin puts a fresh hold into service. The grant was asked for at sent.
func (h *hold) begin(sent time.Time, a acquireConfig) *Lease {
	h.duty = h
	l := h.lease(sent, !a.hasLease)
	h.lock()
	h.addLocked(l)
	if l.renewed {
		h.renewed++
	}
	h.confirmLocked(sent, a.lease)
	at := h.nextLocked()
	h.unlock()
	h.owned.set(h)
	h.core.c.watchdog.add(&h.entry, at)
	return l
}

// addLocked adds a lease. One that was on its way when the client began to shut
// down has ended already, and still has to be unlocked.
func (h *hold) addLocked(l *Lease) {
	h.leases = append(h.leases, l)
	if h.closing {
		l.endLocked(ErrClosed)
	}
}

// confirmLocked notes that Redis confirmed a lease in answer to a request sent
// at sent. The deadline counts from the sending: the reply may have been late.
func (h *hold) confirmLocked(sent time.Time, lease time.Duration) {
	cfg := &h.core.c.cfg
	if d := sent.Add(h.core.validity(lease)); d.After(h.deadline) {
		h.deadline = d
	}
	if e := sent.Add(lease); e.After(h.expires) {
		h.expires = e
	}
	h.renewAt = sent.Add(cfg.watchdogLease / 3)
	h.keepAt = h.renewAt
	h.attempts, h.failure = 0, nil
}

// maxHoldAt is when the hold gets too old; zero: never.
func (h *hold) maxHoldAt() time.Time {
	if d := h.core.opts.maxHold; d > 0 {
		return h.since.Add(d)
	}
	return time.Time{}
}

// nextLocked is when the watchdog must look at the hold again.
func (h *hold) nextLocked() time.Time {
	next := h.deadline
	if h.renewed > 0 {
		if h.renewAt.Before(next) {
			next = h.renewAt
		}
		if m := h.maxHoldAt(); !m.IsZero() && m.Before(next) {
			next = m
		}
	} else if h.keepsLocked() && h.keepAt.Before(next) {
		next = h.keepAt
	}
	return next
}

// keepsLocked reports whether a fixed lease needs looking after. Redisson, when
// it renews one hold of a lock that several share, cuts the time of the lock to
// its watchdog time-out: the longer leases of others would end with it if it
// died then. Those are put back each third of a watchdog lease, which is taken
// to be like Redisson's.
func (h *hold) keepsLocked() bool {
	return h.core.kept && h.keepAt.Add(h.core.c.cfg.watchdogLease).Before(h.expires)
}

// checkLocked ends the hold if its time is over. Every look at a hold goes
// through it, so a process that was stopped past the deadline sees the loss
// before the watchdog has come round to it.
func (h *hold) checkLocked(now time.Time) {
	if h.state != held {
		return
	}
	if m := h.maxHoldAt(); h.renewed > 0 && !m.IsZero() && !now.Before(m) {
		h.loseLocked(now, ErrMaxHold)
		return
	}
	if now.Before(h.deadline) {
		return
	}
	cause := ErrExpired
	if h.renewed > 0 && h.attempts > 0 {
		cause = ErrUnreachable
		if h.failure != nil {
			cause = because(ErrUnreachable, h.failure)
		}
	}
	h.loseLocked(now, cause)
}

// loseLocked ends the hold as lost.
func (h *hold) loseLocked(now time.Time, cause error) {
	if h.state != held {
		return
	}
	h.endLocked(over, because(ErrLeaseLost, cause))
	c := h.core.c
	if h.unsure {
		// A late copy of the acquire could still take the lock for a stay that
		// nobody is at. If our own clock says that it is lost, the copy is
		// stopped when the lease is over, not before: until then the rest of the
		// lease is the margin between us and the next holder.
		from := h.expires
		if !byOurClock(cause) || now.After(from) {
			from = now
		}
		c.cleanUp(h.core.abandon(h.stay, true), from, h.untilLocked())
	}
	h.tellLoss(now, cause)
}

func (h *hold) tellLoss(now time.Time, cause error) {
	c := h.core.c
	e := LossEvent{Lock: h.core.name, Owner: h.stay, Token: h.token, Held: now.Sub(h.since), Cause: cause}
	c.tellAll(func() {
		c.cfg.observer.Lost(e)
		c.cfg.logger.Warn("rlock: lease lost", "lock.name", e.Lock, "lock.owner", e.Owner, "fence", e.Token, "cause", e.Cause)
	})
}

// byOurClock reports whether a loss was found by looking at the clock, so that
// the hold may still stand in Redis. That h.expires has passed does not exclude
// it: an Extend, renewal or re-entry that was not answered may have run.
func byOurClock(cause error) bool {
	return errors.Is(cause, ErrMaxHold) || errors.Is(cause, ErrExpired) || errors.Is(cause, ErrUnreachable)
}

// endLocked ends the leases and leaves the watchdog.
func (h *hold) endLocked(s state, cause error) {
	h.state, h.cause = s, cause
	for _, l := range h.leases {
		l.endLocked(cause)
	}
	h.core.c.watchdog.remove(&h.entry)
	if s == over {
		h.core.c.queues.wake(h.core.id)
	}
}

// due implements duty.
func (h *hold) due(now time.Time, slack time.Duration) (*request, time.Time) {
	h.lock()
	defer h.unlock()
	h.checkLocked(now)
	if h.state != held {
		return nil, time.Time{}
	}
	var r *request
	if h.renewed > 0 && !h.renewAt.After(now.Add(slack)) {
		r = h.core.acked(h.core.renew(h.stay, h.core.c.cfg.watchdogLease))
		if h.attempts > 0 {
			// No answer yet to the last one, which may hang for as long as
			// go-redis waits: perhaps another node has the slot by now.
			h.core.c.refreshTopology()
		}
		h.attempts++
		h.renewAt = now.Add(h.core.retryAfter()) // if no answer comes
	} else if h.renewed == 0 && h.keepsLocked() && !h.keepAt.After(now.Add(slack)) {
		r = h.core.renew(h.stay, 0)
		h.keepAt = now.Add(h.core.c.cfg.watchdogLease / 3)
	}
	return r, h.nextLocked()
}

// answered implements duty.
func (h *hold) answered(r *request, sent time.Time, a answer) time.Time {
	c := h.core.c
	h.lock()
	defer h.unlock()
	now := c.clock.Now()
	h.checkLocked(now) // a deadline that has passed stays passed
	if h.state != held {
		return time.Time{} // a release has come in between: the answer may mean that
	}
	n, err := a.int()
	if a.err != nil {
		err = a.err
	} else if n == 1 && a.acks < r.acks {
		err = errAcks(r, a)
	}
	switch {
	case r.lease == 0 && n == 1:
	case r.lease == 0 && err != nil:
		h.keepAt = now.Add(h.core.retryAfter())
	case err != nil:
		// That a node does not answer is logged by watchdog.renewals.
		first := h.failure == nil && (a.err == nil || !transient(a.err))
		h.failure = err
		pause := min(h.core.retryAfter(), time.Duration(h.attempts)*h.core.retryAfter()/8)
		// Renewals of very many holds that have failed at once do not all come back
		// at once.
		h.renewAt = now.Add(pause - jitter(c.seed, h.number, h.attempts, pause/2))
		c.tell(func() {
			c.cfg.observer.Retry("renew", err)
			if first {
				c.cfg.logger.Info("rlock: renewal failed, trying again", "lock.name", h.core.name, "lock.owner", h.stay, "error", err)
			}
		})
	case n == 1:
		h.confirmLocked(sent, r.lease)
		c.tell(func() { c.cfg.observer.Renewed(h.core.name, h.stay) })
	default:
		h.loseLocked(now, absence(n))
		return time.Time{}
	}
	return h.nextLocked()
}

// drain implements duty: the client shuts down. The holder is told, and keeps
// the lock until it unlocks: it may be at work.
func (h *hold) drain() {
	h.lock()
	defer h.unlock()
	h.closing = true
	for _, l := range h.leases {
		l.endLocked(ErrClosed)
	}
}

// absence is the cause of a loss that Redis tells: 0 no such lock, -1 another's.
func absence(reply int64) error {
	if reply == 0 {
		return ErrRemoved
	}
	return ErrTakenOver
}

// releaseLocked is the request that leaves n entries of the hold. The last one
// also stops late copies, if there may be any.
func (h *hold) releaseLocked(n int) *request {
	if n == 0 && h.unsure {
		return h.core.abandon(h.stay, true)
	}
	return h.core.release(h.stay, n)
}

// alive reports whether the hold lasts.
func (h *hold) alive() bool {
	h.lock()
	defer h.unlock()
	h.checkLocked(h.core.c.clock.Now())
	return h.state == held
}

// entered reports whether any lease of the hold is not yet unlocked. It may be lost.
func (h *hold) entered() bool {
	h.lock()
	defer h.unlock()
	return len(h.leases) > 0
}

// restOfLease is for how long Redis keeps the hold unless it is renewed or
// released, by our clock; at least 1 ns.
func (h *hold) restOfLease() time.Duration {
	h.lock()
	defer h.unlock()
	return max(h.expires.Sub(h.core.c.clock.Now()), 1)
}

// closeLocked forgets a lease that was unlocked. When none is left the owner
// has left the lock.
func (h *hold) closeLocked(l *Lease) {
	if i := slices.Index(h.leases, l); i >= 0 {
		h.leases = slices.Delete(h.leases, i, i+1)
		if l.renewed {
			h.renewed--
		}
	}
}

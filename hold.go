package rlock

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/oplock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wire"
)

// hold is an owner's time at a lock: what is recorded in Redis under one hold id,
// however often the owner has entered. Each entry is a Lease.
//
// It ends in one of two ways, and each ends its leases first: the last Unlock
// (before the release is sent; see unlocking), or a loss (at the deadline, or when
// Redis says so). What has ended never comes back. Shutdown ends the leases, but not
// the hold: it is renewed until its owner has unlocked it.
type hold struct {
	timers.Entry // among the timers: see watchdog.go

	core     *core
	owned    *owned      // by the owner of WithOwner; nil: it has none
	observed *observed   // the acquire that began it; nil: there is no Observer
	own      oplock.Lock // see ops
	number   int64       // see id
	twin     *hold       // another of this number: see watchdog, whose mutex guards it
	token    int64

	guard                    // of the rest
	leases     *Lease        // open ones: not yet unlocked; linked by Lease.next
	deadline   clock.Instant // local end of validity
	expires    clock.Instant // when the lease may run out in Redis, by our clock
	renewAt    clock.Instant // next renewal, if renewed > 0; otherwise see guarded
	open       int32         // how many leases are open
	renewed    int32         // how many of them the watchdog renews
	attempts   int32         // renewals since the last that was confirmed
	state      state
	lent       bool  // a hold of the other side has the same id
	lateCopies bool  // a copy of the acquire may still arrive
	closing    bool  // the client shuts down: the leases have ended with ErrClosed
	rare       *rare // nil: none of it was needed yet; see rareLocked

	first Lease // most holds have no other
}

// deadlineLocked is when the leases end if nothing prolongs them.
func (h *hold) deadlineLocked() time.Time {
	end := h.deadline
	if m := h.maxHoldAt(); h.renewed > 0 && !m.IsZero() && m.Before(end) {
		end = m
	}
	return h.core.c.timeline.Time(end)
}

// id is the id of the hold in Redis. It is made anew each time, so that a held lock has only its number in memory.
func (h *hold) id() string { return h.core.c.holdID(h.number) }

func (h *hold) error(err error) error {
	return &Error{Lock: h.core.name(), HoldID: h.id(), Err: err}
}

// batch is what the hand-overs of one grant share. It is nil if nobody waited when the
// lock was granted. Only the holder uses it, or who gives the lock to the next holder.
type batch struct {
	tokens int64         // how many tokens are left
	last   int64         // the last of them; all were drawn together
	until  clock.Instant // no hand-over after that: other clients wait too
}

// next draws a token.
func (b *batch) next() int64 {
	b.tokens--
	return b.last - b.tokens
}

// rare is the state that few holds ever need.
type rare struct {
	cause        error         // why it is over
	failure      error         // of the latest renewal since the last that was confirmed
	requestedEnd clock.Instant // when the latest requested lease may run out, answered or not

	batch      *batch              // to hand the hold over inside the client; nil: it is released
	inRow      int                 // how many releases in a row have granted the lock, with the one that granted this hold
	revocation *revocationListener // nil: the holder listens for no requests to release the lock
	guarded    *guarded            // nil: no fixed lease needs it
	miscounted bool                // a re-entry or a partial release was not confirmed
	doubted    bool                // the latest renewal could not tell whether the lock was lost before
}

// rareLocked is the rare state, to be changed.
func (h *hold) rareLocked() *rare {
	if h.rare == nil {
		h.rare = &rare{}
	}
	return h.rare
}

// rareState is a copy of the rare state. The guard is locked, unless nobody else knows the hold yet.
func (h *hold) rareState() (r rare) {
	if h.rare != nil {
		r = *h.rare
	}
	return r
}

func (h *hold) causeLocked() error {
	if h.state == releasing {
		return ErrUnlocked
	}
	return h.rareState().cause
}

type state uint8

const (
	held      state = iota
	releasing       // the last Unlock is under way
	over
)

// ops admits one operation at a time at the hold. An owner of WithOwner has one for all that
// it does at the lock, its first entry included.
func (h *hold) ops() *oplock.Lock {
	if h.owned != nil {
		return &h.owned.ops
	}
	return &h.own
}

func (h *hold) handsOver() bool {
	h.lock()
	defer h.unlock()
	return h.rareState().batch != nil
}

// begin puts a new hold into service, which was granted at since. Its lease counts from when the request was sent.
func (h *hold) begin(sent, since clock.Instant, a acquireConfig) *Lease {
	h.confirmLocked(sent, a.lease) // nobody else knows the hold yet
	// Holds that were acquired in a burst are not renewed in one. But the holds of a pipeline stay together: renewed in
	// another order than they were made, 100,000 of them took a tenth more of the processor.
	c := h.core.c
	h.renewAt = h.renewAt.Add(-seam.Jitter(c.seed, h.number/wire.RoundSize, 0, c.cfg.watchdogLease/40))
	return h.serve(since, !a.hasLease)
}

// serve makes the first lease of a hold, and has the watchdog look after both.
func (h *hold) serve(since clock.Instant, renewed bool) *Lease {
	l := &h.first
	*l = Lease{hold: h, since: since, renewed: renewed}
	h.lock()
	h.addLocked(l)
	if renewed {
		h.renewed++
	}
	at := h.nextLocked()
	h.unlock()
	h.Task = h
	h.core.c.watchdog.watch(h, at)
	h.owned.set(h)
	h.core.c.presence.Use()
	if renewed {
		h.core.proto.Prepare()
	}
	return l
}

// addLocked adds a lease. If its acquire was under way when the client began to shut
// down, the lease has ended already, and still has to be unlocked.
func (h *hold) addLocked(l *Lease) {
	l.next, h.leases = h.leases, l
	h.open++
	h.enteredLocked(l)
	if h.closing {
		l.endLocked(ErrClosed)
	}
}

// noteRequest notes that a request for a lease is about to be sent, and returns the time.
func (h *hold) noteRequest(lease time.Duration) (sent clock.Instant) {
	h.lock()
	defer h.unlock()
	sent = h.core.c.now()
	s := h.rareLocked()
	s.requestedEnd = max(s.requestedEnd, sent.Add(lease+h.core.c.cfg.commandTimeout))
	return sent
}

// confirmLocked notes that Redis confirmed a lease in answer to a request sent
// at sent. The deadline counts from the sending: the reply may have been late.
func (h *hold) confirmLocked(sent clock.Instant, lease time.Duration) {
	if d := sent.Add(h.core.validity(lease)); d.After(h.deadline) {
		h.deadline = d
	}
	if e := sent.Add(lease); e.After(h.expires) {
		h.expires = e
	}
	h.renewAt = sent.Add(h.core.c.cfg.watchdogLease / 3)
	h.attempts = 0
	if h.rare != nil {
		h.rare.failure = nil
	}
	h.guardLocked(lease)
}

// reentered handles the result of a re-entry. It returns a lease, or why there is none.
func (h *hold) reentered(r *protocol.Result[protocol.Kept], sent clock.Instant, a acquireConfig) (*Lease, error) {
	cfg := &h.core.c.cfg
	h.lock()
	defer h.unlock()
	h.checkLocked(h.core.c.now()) // first: otherwise a lease that ran out meanwhile would count as removed
	if r.Err == nil && r.Outcome != protocol.Done {
		h.loseLocked(h.core.c.now(), absence(r.Outcome))
	}
	switch {
	case r.Err != nil:
		h.rareLocked().miscounted = true
		return nil, r.Err
	case h.state != held:
		return nil, h.causeLocked()
	case r.TooFew != nil:
		h.rareLocked().miscounted = true
		return nil, confirmed(r, ErrNotAcquired)
	}
	lease := &Lease{hold: h, since: sent, renewed: !a.hasLease}
	h.addLocked(lease)
	renewAt := h.renewAt
	if a.hasLease || h.core.ofQuorum() || cfg.acks == 0 { // else the replicas may not know
		h.confirmLocked(sent, a.lease)
	} else if !renewAt.Before(h.deadline) {
		h.renewAt = sent // the lease on the replicas ends before a renewal would be due
	}
	switch {
	case lease.renewed:
		h.renewed++
	case h.renewed > 0 && a.lease < cfg.watchdogLease:
		h.renewAt = renewAt // a short fixed lease does not put off the next renewal
	}
	h.core.c.watchdog.Move(&h.Entry, h.nextLocked())
	return lease, nil
}

// openLeases is how many leases are not yet unlocked, and why they are lost if they are.
func (h *hold) openLeases() (n int, cause error) {
	h.lock()
	defer h.unlock()
	h.checkLocked(h.core.c.now())
	if h.state != held {
		cause = h.causeLocked()
	}
	return int(h.open), cause
}

// entered reports whether any lease of the hold is not yet unlocked. It may be lost.
func (h *hold) entered() bool {
	h.lock()
	defer h.unlock()
	return h.open > 0
}

// lend reports whether a hold of the other side may have the same id: one only.
func (h *hold) lend() bool {
	h.lock()
	defer h.unlock()
	first := !h.lent
	h.lent = true
	return first
}

func (h *hold) Alive() bool {
	h.lock()
	defer h.unlock()
	h.checkLocked(h.core.c.now())
	return h.state == held
}

// RestOfLease returns how long Redis keeps the hold if it is neither renewed nor released, by
// our clock; at least 1 ns.
func (h *hold) RestOfLease() time.Duration {
	h.lock()
	defer h.unlock()
	return max(h.expires.Sub(h.core.c.now()), 1)
}

// maxHoldAt is when WithMaxHold ends the hold; zero: never.
func (h *hold) maxHoldAt() clock.Instant {
	if d := h.core.opts.maxHold; d > 0 {
		return h.first.since.Add(d)
	}
	return 0
}

// checkLocked ends the hold if its time is over. Everything that reads the state calls it first, so a
// process that was stopped past the deadline finds the loss before the watchdog does.
func (h *hold) checkLocked(now clock.Instant) {
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
		if err := h.rareState().failure; noAnswer(err) {
			cause = err
		} else if err != nil {
			cause = wire.Failure(err)
		}
	}
	h.loseLocked(now, cause)
}

// isGone ends a hold that a request has not found in Redis, and returns the cause.
func (h *hold) isGone(k protocol.Kept) error {
	h.lock()
	defer h.unlock()
	now := h.core.c.now()
	h.checkLocked(now) // otherwise a lease that ran out meanwhile would count as removed
	h.loseLocked(now, absence(k))
	return h.causeLocked()
}

// absence is the cause of a loss that Redis reported.
func absence(k protocol.Kept) error {
	switch k {
	case protocol.TakenOver:
		return ErrTakenOver
	case protocol.Overwritten:
		return errOverwritten
	}
	return ErrRemoved
}

func (h *hold) loseLocked(now clock.Instant, cause error) {
	if h.state != held {
		return
	}
	c := h.core.c
	c.calls.Add(1) // or a shutdown that waits for this hold ends before the clean-up begins
	defer c.end()
	h.endLocked(over, because(ErrLeaseLost, cause))
	if h.lateCopies {
		// A late copy of the acquire could still take the lock for a hold that no
		// caller owns. If our clock found the loss, the copy is stopped when the
		// lease is over, not before: until then the rest of the lease is the margin
		// between this holder and the next.
		from := h.expires
		if !mayBeLeft(cause) || now.After(from) {
			from = now
		}
		c.cleanUp(h.core.id(), h.core.proto.Abandon(h.id(), true), from, h.untilLocked(), nil)
	}
	h.tellLoss(now, cause)
}

// mayBeLeft reports whether a lost hold may still be in Redis. It may if only our clock says that it is over, even
// after h.expires: an unanswered Extend, renewal or re-entry may have run. And it may if a script found other data
// under its key: on a master that was just demoted, a script reads such data before a write is refused.
func mayBeLeft(cause error) bool {
	return errors.Is(cause, errOverwritten) || errors.Is(cause, ErrMaxHold) || errors.Is(cause, ErrExpired) || noAnswer(cause)
}

// untilLocked is until when a clean-up of the hold is repeated: then each lease that was requested
// has run out, and no late copy of a request can arrive any more.
func (h *hold) untilLocked() clock.Instant {
	return max(h.core.c.now(), h.expires, h.rareState().requestedEnd).Add(protocol.TombstoneTTL)
}

// endLocked ends the leases and leaves the watchdog.
func (h *hold) endLocked(s state, cause error) {
	h.state = s
	if s == over {
		h.rareLocked().cause = cause
	}
	for l := h.leases; l != nil; l = l.next {
		l.endLocked(cause)
	}
	h.core.c.watchdog.forget(h)
	if e := h.rareState().revocation; e != nil {
		e.endLocked()
	}
	if s == over {
		h.core.c.lines.Wake(h.core.id())
	}
}

// closeLocked forgets a lease that was unlocked.
func (h *hold) closeLocked(l *Lease) {
	for at := &h.leases; *at != nil; at = &(*at).next {
		if *at != l {
			continue
		}
		*at, l.next = l.next, nil
		h.open--
		if l.renewed {
			h.renewed--
		}
		return
	}
}

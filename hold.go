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

// hold is an owner's time at a lock, from the first entry to the last Unlock. Redis records it under one hold id. Each
// entry is a Lease.
//
// A hold ends by the last Unlock (before the release is sent; see unlocking), or by a loss (at the deadline, or when a
// reply reports it). Both end its leases first. A hold that has ended never comes back. Shutdown ends the leases, but not
// the hold: it is renewed until its owner has unlocked it.
type hold struct {
	timers.Entry // entry in the timers: see watchdog.go

	core     *core
	owned    *owned      // record of the owner of WithOwner; nil without one
	observed *observed   // the acquire that began the hold; nil without an Observer
	ownOps   oplock.Lock // see ops
	number   int64       // see id
	twin     *hold       // another hold with this number: see watchdog, whose mutex guards the field
	token    int64

	guard                      // guards the rest
	leases       *Lease        // open leases, which are not unlocked; linked by Lease.nextOpen
	deadline     clock.Instant // local end of validity
	expires      clock.Instant // when the lease may run out in Redis, by the local clock
	renewAt      clock.Instant // next renewal, if renewedCount > 0; otherwise see guarded
	openCount    int32         // number of open leases
	renewedCount int32         // number of open leases that the watchdog renews
	attempts     int32         // renewals since the last confirmed one
	state        state
	isLent       bool  // the id was lent to a hold of the other side
	lateCopies   bool  // a copy of the acquire may still arrive
	isClosing    bool  // the client shuts down: the leases have ended with ErrClosed
	rare         *rare // nil until it is needed; see rareLocked

	first Lease // first lease; most holds have only this one
}

// deadlineLocked returns when the leases end unless they are prolonged.
func (h *hold) deadlineLocked() time.Time {
	end := h.deadline
	if m := h.maxHoldAt(); h.renewedCount > 0 && !m.IsZero() && m.Before(end) {
		end = m
	}
	return h.core.c.timeline.Time(end)
}

// id returns the id of the hold in Redis. It is made anew each time, so that a held lock keeps only the number in memory.
func (h *hold) id() string { return h.core.c.holdID(h.number) }

func (h *hold) error(err error) error {
	return &Error{Lock: h.core.name(), HoldID: h.id(), Err: err}
}

// batch is the state that the hand-overs of one grant share. It is nil if no tokens were drawn ahead: the client had no
// other waiter, and the attempt did not stand by. Only the holder uses it, or the goroutine that hands the hold over.
type batch struct {
	tokens int64         // number of tokens left
	last   int64         // last token of the batch; all were drawn together
	until  clock.Instant // no hand-over from then on: other clients wait too
}

// nextToken draws a token.
func (b *batch) nextToken() int64 {
	b.tokens--
	return b.last - b.tokens
}

// rare is state that few holds need.
type rare struct {
	cause        error         // why the hold has ended
	failure      error         // error of the latest failed renewal since the last confirmed one
	requestedEnd clock.Instant // when the latest of all requested leases may run out, answered or not

	batch           *batch              // for hand-overs inside the client; nil if the hold must be released
	inRow           int                 // consecutive releases that granted the lock, including the grant of this hold
	revocation      *revocationListener // nil if the holder is not subscribed to requests to release
	guarded         *guarded            // nil if no fixed lease needs it
	mayBeMiscounted bool                // a re-entry or a partial release was not confirmed
	mayBeLost       bool                // the latest renewal did not show whether the lock was lost before
}

// rareLocked returns the rare state for a change.
func (h *hold) rareLocked() *rare {
	if h.rare == nil {
		h.rare = &rare{}
	}
	return h.rare
}

// rareState returns a copy of the rare state. The guard is locked, unless no other goroutine has the hold yet.
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
	ended
)

// ops returns the lock that admits one operation at a time at the hold. An owner of WithOwner has one such lock for all
// its operations at the lock, including the first entry.
func (h *hold) ops() *oplock.Lock {
	if h.owned != nil {
		return &h.owned.ops
	}
	return &h.ownOps
}

func (h *hold) handsOver() bool {
	h.lock()
	defer h.unlock()
	return h.rareState().batch != nil
}

// start puts a new hold, which was granted at since, into service. Its lease counts from when the request was sent.
func (h *hold) start(sent, since clock.Instant, a acquireConfig) *Lease {
	h.confirmLocked(sent, a.lease) // no other goroutine has the hold yet
	// Spread the renewals of holds that were acquired in a burst. But the holds of a pipeline stay together: 100,000 holds
	// renewed in another order than they were made took a tenth more of the processor.
	c := h.core.c
	h.renewAt = h.renewAt.Add(-seam.Jitter(c.seed, h.number/wire.RoundSize, 0, c.cfg.watchdogLease/40))
	return h.serve(since, !a.hasLease)
}

// serve makes the first lease of a hold, and adds the hold to the watchdog.
func (h *hold) serve(since clock.Instant, renewed bool) *Lease {
	l := &h.first
	*l = Lease{hold: h, since: since, isRenewed: renewed}
	h.lock()
	h.addLocked(l)
	if renewed {
		h.renewedCount++
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
	l.nextOpen, h.leases = h.leases, l
	h.openCount++
	h.enteredLocked(l)
	if h.isClosing {
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
		h.rareLocked().mayBeMiscounted = true
		return nil, r.Err
	case h.state != held:
		return nil, h.causeLocked()
	case r.TooFew != nil:
		h.rareLocked().mayBeMiscounted = true
		return nil, confirmed(r, ErrNotAcquired)
	}
	lease := &Lease{hold: h, since: sent, isRenewed: !a.hasLease}
	h.addLocked(lease)
	renewAt := h.renewAt
	if a.hasLease || h.core.ofQuorum() || cfg.acks == 0 { // otherwise the replicas may not have the lease
		h.confirmLocked(sent, a.lease)
	} else if !renewAt.Before(h.deadline) {
		h.renewAt = sent // the lease on the replicas ends before a renewal would be due
	}
	switch {
	case lease.isRenewed:
		h.renewedCount++
	case h.renewedCount > 0 && a.lease < cfg.watchdogLease:
		h.renewAt = renewAt // a short fixed lease does not put off the next renewal
	}
	h.core.c.watchdog.Move(&h.Entry, h.nextLocked())
	return lease, nil
}

// openLeases returns the number of open leases, and the cause if they are lost.
func (h *hold) openLeases() (n int, cause error) {
	h.lock()
	defer h.unlock()
	h.checkLocked(h.core.c.now())
	if h.state != held {
		cause = h.causeLocked()
	}
	return int(h.openCount), cause
}

// entered reports whether the hold has an open lease. The hold may be lost.
func (h *hold) entered() bool {
	h.lock()
	defer h.unlock()
	return h.openCount > 0
}

// lend reports whether a new hold of the other side may have the same id. Only the first call returns true.
func (h *hold) lend() bool {
	h.lock()
	defer h.unlock()
	first := !h.isLent
	h.isLent = true
	return first
}

func (h *hold) Alive() bool {
	h.lock()
	defer h.unlock()
	h.checkLocked(h.core.c.now())
	return h.state == held
}

// RestOfLease returns how long Redis keeps the hold if it is neither renewed nor released, by the local clock; at least
// 1 ns.
func (h *hold) RestOfLease() time.Duration {
	h.lock()
	defer h.unlock()
	return max(h.expires.Sub(h.core.c.now()), 1)
}

// maxHoldAt returns when WithMaxHold ends the hold; zero for never.
func (h *hold) maxHoldAt() clock.Instant {
	if d := h.core.opts.maxHold; d > 0 {
		return h.first.since.Add(d)
	}
	return 0
}

// checkLocked ends the hold if its time is over. Each reader of the state calls it first, so a process that was stopped
// past the deadline detects the loss before the watchdog does.
func (h *hold) checkLocked(now clock.Instant) {
	if h.state != held {
		return
	}
	if m := h.maxHoldAt(); h.renewedCount > 0 && !m.IsZero() && !now.Before(m) {
		h.loseLocked(now, ErrMaxHold)
		return
	}
	if now.Before(h.deadline) {
		return
	}
	cause := ErrExpired
	if h.renewedCount > 0 && h.attempts > 0 {
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
	c.calls.Add(1) // otherwise a shutdown that waits for this hold could end before the clean-up begins
	defer c.endCall()
	h.endLocked(ended, because(ErrLeaseLost, cause))
	if h.lateCopies {
		// A late copy of the acquire could still take the lock for a hold that no caller owns. If the local clock detected
		// the loss, the copy is stopped only when the lease is over: until then the rest of the lease is the margin between
		// this holder and the next.
		from := h.expires
		if !mayBeLeft(cause) || now.After(from) {
			from = now
		}
		c.cleanUp(h.core.id(), h.core.proto.Abandon(h.id(), true), from, h.untilLocked(), nil)
	}
	h.reportLoss(now, cause)
}

// mayBeLeft reports whether a lost hold may still be in Redis. It may if only the local clock says that the lease is over,
// even after h.expires: an unanswered Extend, renewal or re-entry may have run. It also may if a script found other data
// at its key: on a master that was just demoted, a script reads such data before a write is refused.
func mayBeLeft(cause error) bool {
	return errors.Is(cause, errOverwritten) || errors.Is(cause, ErrMaxHold) || errors.Is(cause, ErrExpired) || noAnswer(cause)
}

// untilLocked returns until when a clean-up of the hold is repeated. By then each requested lease has run out, and no late
// copy of a request can arrive any more.
func (h *hold) untilLocked() clock.Instant {
	return max(h.core.c.now(), h.expires, h.rareState().requestedEnd).Add(protocol.TombstoneTTL)
}

// endLocked ends the leases, and removes the hold from the watchdog.
func (h *hold) endLocked(s state, cause error) {
	h.state = s
	if s == ended {
		h.rareLocked().cause = cause
	}
	for l := h.leases; l != nil; l = l.nextOpen {
		l.endLocked(cause)
	}
	h.core.c.watchdog.forget(h)
	if e := h.rareState().revocation; e != nil {
		e.endLocked()
	}
	if s == ended {
		h.core.c.lines.Wake(h.core.id())
	}
}

// closeLocked removes an unlocked lease from the open leases.
func (h *hold) closeLocked(l *Lease) {
	for at := &h.leases; *at != nil; at = &(*at).nextOpen {
		if *at != l {
			continue
		}
		*at, l.nextOpen = l.nextOpen, nil
		h.openCount--
		if l.isRenewed {
			h.renewedCount--
		}
		return
	}
}

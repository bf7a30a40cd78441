package rlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-rlock/rlock/internal/protocol"
)

// enterAgain adds a lease to a hold at which no other operation is under way. It
// returns nothing if all its leases are unlocked.
func (l *core) enterAgain(ctx, caller context.Context, a *attempt, h *hold) (*Lease, error) {
	n, cause := h.openLeases()
	a.reentry = n > 0
	switch {
	case n == 0:
		return nil, nil
	case cause != nil:
		// Never a new hold here: the outer section would continue without knowing that
		// it did not hold the lock for a while.
		return nil, h.error(cause)
	case l.opts.nonReentrant:
		return nil, h.error(ErrReentrant)
	}
	a.Tries++
	a.looks()
	sent := h.noteAsked(a.opts.lease)
	// Through the lock that made the hold: another type of the same name may not know
	// everything about it.
	r := h.core.asks.(protocol.Reentrant).Reenter(h.id(), a.opts.lease, n+1, a.opts.hasLease).Do(ctx, l.c.cfg.commandTimeout)
	h.reconsider(&r)
	lease, err := h.reentered(&r, sent, a.opts)
	switch {
	case lease != nil:
		return lease, nil
	case errors.Is(err, ErrUnlocked):
		// An Unlock that could not wait any longer for this operation has unlocked its
		// last lease.
		a.reentry = false
		return nil, nil
	}
	if failed := confirmed(&r, ErrNotAcquired); failed != nil {
		// Redis may have counted it, unlike this process: the next operation corrects
		// the count.
		a.sees(&protocol.Result[protocol.Entered]{Err: failed, Last: r.Last, OfQuorum: r.OfQuorum}, a.opts.hasLease)
		a.seen.settle(l.c.env.Clock.Now(), false)
		refused := a.error(a.interrupted(caller, failed))
		refused.HoldID = h.id()
		return nil, refused
	}
	return nil, h.error(err)
}

// checkOtherSide checks what the caller holds on the other side. A writer may read: its new
// hold has the same id. A reader that asks to write would wait for itself.
func (a *attempt) checkOtherSide() error {
	l := a.core
	h := holdOf(a.chain.held(l, l.side.Other()))
	if h == nil {
		return nil
	}
	n, cause := h.openLeases()
	switch {
	case n == 0:
		return nil // all unlocked
	case cause != nil:
		return h.error(cause) // as with a re-entry: never a new hold here
	case l.side == protocol.Exclusive:
		return h.error(ErrUpgrade)
	}
	a.outer, a.Outer = h, h.id()
	if h.lend() {
		// Once only: a late copy of the release of one read hold could end the next one
		// if that had the same id.
		a.ID, a.Number = h.id(), h.number
	}
	return nil
}

// outerHoldLost handles the reply that the outer hold, under which the attempt was to
// enter, is gone. If it was unlocked meanwhile, the attempt continues as a new owner.
func (a *attempt) outerHoldLost(e *protocol.Entered) error {
	h := a.outer
	if h == nil {
		return fmt.Errorf("unexpected reply from Redis: an outer hold is lost, but there is none")
	}
	cause := protocol.Removed
	if e.TakenOver {
		cause = protocol.TakenOver
	}
	err := h.isGone(cause)
	if errors.Is(err, ErrUnlocked) {
		a.outer, a.Outer = nil, ""
		a.HoldID = h.core.asks.NewID()
		return nil
	}
	return err
}

package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// finish ends a hold by another task than a release.
type finish struct {
	task func(id string, lateCopies bool) protocol.Task
	// traceTime is how long Redis keeps evidence that an earlier copy of the task ended the hold.
	traceTime time.Duration
}

// unlockLimit returns the deadline of an Unlock that begins now, by the real clock, because it bounds commands.
func (c *Client) unlockLimit() time.Time { return time.Now().Add(c.cfg.unlockTimeout) }

// endLease ends a lease. See Lease.end for by.
func (h *hold) endLease(ctx context.Context, l *Lease, called clock.Instant, by *finish) error {
	limit := h.core.c.unlockLimit()
	// Wait for other operations at this hold: a re-entry under way must not run after this release has set the count.
	alone := h.ops().TakeWithin(ctx, h.core.c.cfg.unlockTimeout) == nil
	d := h.beginUnlock(l, called, alone)
	if by != nil && d.task != nil && d.rest == 0 {
		d.task, d.traceTime, d.isFinish = by.task(d.id, h.lateCopies), by.traceTime, true
	}
	return d.complete(ctx, limit)
}

// unlocking is the Unlock of one lease of a hold.
type unlocking struct {
	h          *hold
	lease      *Lease
	id         string        // id of h, made only once
	isAlone    bool          // no other operation is under way at the hold
	rest       int           // number of leases left
	batch      *batch        // batch of the hold; nil if the hold is not handed over
	inRow      int           // see rare
	task       protocol.Task // task to send to Redis, or nil
	err        error         // the result if there is no task
	grantsNext bool          // the release grants the lock to a waiter that stands by, if there is one
	took       time.Duration // time until task was answered
	traceTime  time.Duration // see finish
	isFinish   bool          // task is the task of a finish
}

// beginUnlock ends a lease of the hold, in this process.
func (h *hold) beginUnlock(l *Lease, called clock.Instant, alone bool) unlocking {
	c := h.core.c
	h.lock()
	defer h.unlock()
	h.checkLocked(called)
	h.closeLocked(l)
	d := h.unlockingLocked()
	d.lease, d.isAlone, d.rest = l, alone, int(h.openCount)
	switch {
	case h.state != held:
		d.err = h.causeLocked()
		if d.rest == 0 && h.state == ended && mayBeLeft(d.err) {
			// The holder has left: there is no need to let the lease run out.
			c.cleanUp(h.core.id(), h.releaseLocked(d.id, 0), c.now(), h.untilLocked(), nil)
		}
		return d
	case d.rest > 0:
		l.endLocked(ErrUnlocked)
		c.watchdog.Move(&h.Entry, h.nextLocked())
	default:
		l.endsHold = true
		l.endLocked(ErrUnlocked)
		h.endLocked(releasing, ErrUnlocked)
	}
	d.task = h.releaseLocked(d.id, d.rest)
	return d
}

// unlockingLocked returns an unlocking with a copy of what it needs of the hold.
func (h *hold) unlockingLocked() unlocking {
	r := h.rareState()
	return unlocking{h: h, id: h.id(), batch: r.batch, inRow: r.inRow}
}

// end lets other operations at the hold begin.
func (d *unlocking) end() {
	if d.rest == 0 && (d.isAlone || d.task != nil) {
		d.h.owned.clear(d.h)
	}
	if d.isAlone {
		d.h.ops().Give()
	}
}

// releaseLocked returns the task that lowers the count of the hold to n. With 0 the task also stops late copies of the
// acquire.
func (h *hold) releaseLocked(id string, n int) protocol.Task {
	if n == 0 && h.lateCopies {
		return h.core.proto.Abandon(id, true)
	}
	return h.core.proto.Release(id, n)
}

// complete hands the hold over to a waiter of the client, or sends the task.
func (d *unlocking) complete(ctx context.Context, limit time.Time) error {
	defer d.end()
	switch {
	case d.task == nil:
		return d.err
	case d.handOver():
		d.lease.handedOver = true
		return nil
	}
	r := d.send(ctx, limit)
	if d.rest > 0 {
		return d.h.partlyReleased(&r)
	}
	return d.released(&r)
}

// send sends the task.
func (d *unlocking) send(ctx context.Context, limit time.Time) protocol.Result[protocol.Kept] {
	c := d.h.core.c
	sent := c.now()
	r := d.sendTo(c.events.withSubject(ctx, d.h.core), limit)
	d.took = c.now().Sub(sent)
	return r
}

// partlyReleased handles the result of a release that lowers the count in Redis to the number of open leases. If it has
// failed, the count is too high until the next operation, which sets the absolute count: no repair is needed.
func (h *hold) partlyReleased(r *protocol.Result[protocol.Kept]) error {
	switch {
	case r.Err != nil:
		h.lock()
		h.rareLocked().mayBeMiscounted = true
		h.unlock()
		return unanswered(r.Err)
	case r.Outcome == protocol.Done:
		return nil
	}
	if err := h.isGone(r.Outcome); !errors.Is(err, ErrUnlocked) {
		return err
	}
	return nil // the owner's last Unlock was quicker
}

// released handles the result of the last release of a hold, which frees the lock.
func (d *unlocking) released(r *protocol.Result[protocol.Kept]) error {
	h, c := d.h, d.h.core.c
	d.yieldToOthers(r.Receivers, h.core.ofQuorum() || protocol.StandByOf(h.core.proto) != nil)
	if protocol.Takes(h.core.proto) == 0 || r.Receivers == 0 { // otherwise the message of the release wakes the waiters
		c.lines.Wake(h.core.id())
	}
	switch {
	case r.Err != nil:
		d.cleanUp(d.task)
		return because(ErrUnconfirmed, unanswered(r.Err))
	case r.Outcome == protocol.Done:
		return nil
	case r.Unsure && d.took >= d.traceTime:
		// Another copy of this release may have ended the hold. Or that copy has not arrived, and the hold was lost before:
		// the deadline proves nothing, because a failure that makes a server lose a hold also breaks connections. The
		// present holder may have had the lock for long.
		found := errGone
		if r.Outcome == protocol.TakenOver {
			found = fmt.Errorf("%w: another owner has the lock", errGone)
		}
		return because(ErrUnconfirmed, because(ErrUnreachable, found))
	case !c.now().Before(h.deadline):
		// The lease ran out before this release arrived.
		h.reportLoss(c.now(), ErrExpired)
		return because(ErrLeaseLost, ErrExpired)
	}
	h.reportLoss(c.now(), absence(r.Outcome))
	return because(ErrLeaseLost, absence(r.Outcome))
}

// cleanUp repeats a task in the background while the hold may exist in Redis.
func (d *unlocking) cleanUp(t protocol.Task) {
	h, c := d.h, d.h.core.c
	h.lock()
	until := h.untilLocked()
	h.unlock()
	c.cleanUp(h.core.id(), t, c.now(), until, nil)
}

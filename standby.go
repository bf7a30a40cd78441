package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
)

// An attempt that stands by can be granted the lock by the release of another client: see internal/wait/standby.go. It
// offers to stand by with each poll. If the poll is refused, it stands by until a later poll is granted, or until a
// message grants the hold.

// mostInRow is how many consecutive releases may grant the lock to a waiter that stands by.
const mostInRow = 8

// offerStandBy sets the request's offer to stand by, before the request is sent.
func (a *attempt) offerStandBy() {
	if a.StandBy = a.mayStandBy(); !a.StandBy {
		return
	}
	a.Placed = true
	if a.takesHandOver() { // other waiters may come behind the attempt
		a.Reserve = a.core.opts.handOverBounds().passes
	}
}

// mayStandBy reports whether the next request may make the attempt stand by, or end its standing by.
func (a *attempt) mayStandBy() bool {
	l := a.core
	return protocol.StandByOf(l.proto) != nil && (a.Placed || a.Wait && a.Leads && !a.opts.hasLease &&
		a.Lines.SubscribedToGrants(a.Line()) && l.c.hub.Listening(l.names.Channel()+":", l.c.id))
}

// noteStandBy records whether the attempt stands by, when Redis has refused a request.
func (a *attempt) noteStandBy(r *protocol.Result[protocol.Entered], sent clock.Instant) {
	if !a.StandBy {
		return
	}
	a.Placed, a.asStandBy = r.Outcome.Stands || a.lateCopies, wait.StandBy{ID: a.ID, Poll: a.Tries, Sent: sent}
	if r.Unsure {
		// An earlier copy of this request may have stood by. A release may have granted it a hold, and this copy found that
		// hold ended. The message of the grant names this request, and must be ignored: no message names number 0.
		a.asStandBy.Poll = 0
	}
}

// noteGranted records the streak of grants by releases, when Redis has granted a request: a release may have granted the
// hold before that request.
func (a *attempt) noteGranted(e *protocol.Entered) {
	if !a.StandBy {
		return
	}
	a.inRow = a.Lines.InRow(a.Line(), a.ID)
	if e.Found && a.inRow == 0 {
		// The message with the number has not come yet, or is lost. With the highest number, the next release grants
		// the lock to no waiter.
		a.inRow = mostInRow
	}
}

// currentStandBy returns how the attempt stands by while it sleeps.
func (a *attempt) currentStandBy() wait.StandBy {
	if !a.Placed || a.asStandBy.ID != a.ID { // the attempt does not stand by any more
		return wait.StandBy{}
	}
	return a.asStandBy
}

// subscribeToGrants subscribes the line of w to grants by releases of other clients.
func (a *attempt) subscribeToGrants(w *wait.Waiter, proto protocol.StandBy) {
	c := a.core.c
	a.Lines.AddSubscription(w, proto.SubscribeToGrants(func(g protocol.Grant) {
		c.lines.Granted(w, &g, c.now(), c.cfg.watchdogLease/3)
	}))
}

// granted makes a lease of a hold that the release of the previous hold granted. If the wait has ended meanwhile, with the
// error why, giveUp ends the hold.
func (a *attempt) granted(ctx context.Context, g *wait.Grant, why error) (*Lease, error) {
	a.core.c.env.Stop("passed")
	if why == nil {
		why = ctx.Err()
	}
	if why != nil {
		return nil, why
	}
	a.inRow = g.InRow
	lease, err := a.accept(g.Sent, a.core.c.now(), &protocol.Result[protocol.Entered]{
		Outcome: protocol.Entered{Verdict: protocol.Granted, Token: g.Token, Handed: protocol.Handed{Reserved: g.Reserved}},
	})
	if worthRepeating(err) {
		err = wait.ErrTooLate
	}
	return lease, err
}

// releaseTask returns the task that releases the hold. If a waiter may stand by, the task also grants it the lock.
func (d *unlocking) releaseTask() protocol.Task {
	l := d.h.core
	standBy := protocol.StandByOf(l.proto)
	if standBy == nil || d.inRow >= mostInRow || !l.c.lines.OthersMayStandBy(l.line("")) {
		return d.task
	}
	d.grantsNext = true
	return standBy.ReleaseNext(d.id, d.h.token, d.inRow+1)
}

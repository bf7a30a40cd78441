package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
)

// How an attempt stands by for a hold that the release of another client grants: see internal/wait/standby.go. An attempt
// offers to stand by with each poll; it stands by if the poll is refused, until its next poll is granted, or it is given
// the hold by a message.

// mostInRow is how many releases in a row may grant the lock to a waiter that stands by.
const mostInRow = 8

// offersToStandBy is called before a request.
func (a *attempt) offersToStandBy() {
	if a.StandBy = a.mayStandBy(); !a.StandBy {
		return
	}
	a.Placed = true
	if a.takesHandOver() { // others may come to wait behind it
		a.Reserve = a.core.opts.handOverBounds().passes
	}
}

// mayStandBy reports whether the next request may let the attempt stand by, or end that: see internal/wait/standby.go.
func (a *attempt) mayStandBy() bool {
	l := a.core
	return protocol.StandByOf(l.proto) != nil && (a.Placed || a.Wait && a.Leads && !a.opts.hasLease &&
		a.Lines.ListensForGrants(a.Line()) && l.c.hub.Listening(l.names.Channel()+":", l.c.id))
}

// standsBy is called when Redis has refused a request.
func (a *attempt) standsBy(r *protocol.Result[protocol.Entered], sent clock.Instant) {
	if !a.StandBy {
		return
	}
	a.Placed, a.asStandBy = r.Outcome.Stands || a.lateCopies, wait.StandBy{ID: a.ID, Look: a.Tries, Sent: sent}
	if r.Unsure {
		// Another copy of this request may have stood by before, and a release may have granted the hold, which this copy
		// then found ended. The message of that grant must not be taken: it names this request, and none names number 0.
		a.asStandBy.Look = 0
	}
}

// standsNoMore is called when Redis has granted a request; a release may have granted the hold before.
func (a *attempt) standsNoMore(e *protocol.Entered) {
	if !a.StandBy {
		return
	}
	a.inRow = a.Lines.InRow(a.Line(), a.ID)
	if e.Found && a.inRow == 0 {
		a.inRow = mostInRow // the number comes with a later message: the next release grants the lock to no waiter
	}
}

// sleepsBy returns how the attempt stands by while it sleeps.
func (a *attempt) sleepsBy() wait.StandBy {
	if !a.Placed || a.asStandBy.ID != a.ID { // it does not stand by any more
		return wait.StandBy{}
	}
	return a.asStandBy
}

// listenForGrants subscribes the line of w to grants by releases of other clients.
func (a *attempt) listenForGrants(w *wait.Waiter, proto protocol.StandBy) {
	c := a.core.c
	a.Lines.AddSubscription(w, proto.ListenForGrants(func(g protocol.Grant) {
		c.lines.Granted(w, &g, c.now(), c.cfg.watchdogLease/3)
	}))
}

// granted makes a lease of a hold that Redis has granted at the release of the hold before. If the wait has ended
// meanwhile, with the error why, giveUp ends the hold.
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

// grantsNext returns the task that releases the hold, and grants the lock to a waiter that stands by, if one may.
func (d *unlocking) grantsNext() protocol.Task {
	l := d.h.core
	next := protocol.StandByOf(l.proto)
	if next == nil || d.inRow >= mostInRow || !l.c.lines.OthersMayStandBy(l.line("")) {
		return d.task
	}
	d.grants = true
	return next.ReleaseNext(d.id, d.h.token, d.inRow+1)
}

package rlock

import (
	"context"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wait"
)

// Line returns the line of this client in which the attempt waits. An attempt whose caller holds the other side gets a
// separate line: the others may wait for the end of that hold. So does an attempt that needs more permits than exist:
// calls that need fewer do not wait behind it.
func (a *attempt) Line() wait.Key {
	key := a.core.line(a.ID)
	switch {
	case a.outer != nil:
		key.ID = a.ID
	case a.Oversized && key.ID == "":
		key.ID = strconv.Itoa(protocol.Takes(a.core.proto)) // attempts with the same need share a line
	}
	return key
}

// Poll implements wait.Poller.
func (a *attempt) Poll(ctx context.Context) (exit *wait.Exit, rest time.Duration, err error) {
	a.Leads, a.Reserve = a.Place != nil, 0
	if a.Place != nil && a.takesHandOver() && a.Lines.OthersBehind(a.Place) {
		a.Reserve = a.core.opts.handOverBounds().passes
	}
	done := a.beginPoll(a.Line())
	lease, rest, err := a.try(ctx)
	if done != nil && err == nil {
		done(lease != nil)
	}
	return a.leavesWith(lease), rest, err
}

// leavesWith records the lease of the attempt, and returns the Exit from its line; nil without a lease.
func (a *attempt) leavesWith(lease *Lease) (exit *wait.Exit) {
	a.lease = lease
	if lease == nil {
		return nil
	}
	h := lease.hold
	exit = &wait.Exit{Round: a.lastReply.refused}
	until := a.c.env.Clock.Now().Add(h.RestOfLease())
	switch {
	case protocol.Takes(a.core.proto) > 0:
		exit.Remaining, exit.Until = a.lastReply.permits, a.lastReply.until
		until = a.c.timeline.Time(exit.Until)
	case a.core.side == protocol.Shared:
		exit.Remaining = wait.Unlimited
	default:
		exit.Hold, exit.HandsOver = h, h.handsOver()
	}
	exit.Status = ownStatus(h.id(), until)
	return exit
}

// Sleeps implements wait.Taker.
func (a *attempt) Sleeps(w *wait.Waiter, poked bool) {
	a.observed.reportContention()
	a.noteStatus() // the status of the previous head, if the attempt has just become the head
	if a.Oversized {
		a.listenForMore(w)
	}
	if a.Lines.Sleeps(w, poked && a.takesHandOver(), a.currentStandBy()) {
		if proto := protocol.StandByOf(a.core.proto); proto != nil {
			a.subscribeToGrants(w, proto)
		}
	}
	if a.Lines.Lasts(w) {
		a.Lines.Identify(w, func() (end func()) { return protocol.Identify(a.core.proto) })
	}
}

// Given implements wait.Taker.
func (a *attempt) Given(ctx context.Context, given any, why error) (*wait.Exit, error) {
	var lease *Lease
	switch g := given.(type) {
	case *handOver:
		lease, why = a.receive(ctx, g, why)
	case *wait.Grant:
		lease, why = a.granted(ctx, g, why)
	}
	return a.leavesWith(lease), why
}

// Withdraw implements wait.Poller. An unanswered poll, or a late copy of it, may have been granted a hold. Withdraw ends
// that hold before the attempt waits behind others, which could wait for its end. It also ends standing by, which is for
// heads of lines, and gives up a place among waiting readers: when Redis admits the readers, writers wait until each
// reader has entered, and waiters in front of the attempt may wait for the writers. The next request is for a new hold.
func (a *attempt) Withdraw() {
	if !a.lateCopies && !a.Granted && !(a.Placed && (a.core.side == protocol.Shared || protocol.StandByOf(a.core.proto) != nil)) {
		return
	}
	a.giveUp()
	a.newID()
	a.lateCopies, a.Granted, a.Placed = false, false, false
}

// newID gives the attempt a new hold id for its next request.
func (a *attempt) newID() {
	a.HoldID = a.core.proto.NewID()
	a.Who = a.Number
}

// Subscribe implements wait.Poller.
func (a *attempt) Subscribe(notify func()) (end func()) {
	if a.crowded != nil {
		return a.c.crowds.subscribe(a.Line(), a.crowded, notify)
	}
	return a.core.proto.Listen(a.ID, notify)
}

// Hesitates implements wait.Taker.
func (a *attempt) Hesitates(w *wait.Waiter) time.Duration {
	return protocol.Hesitation(a.core.proto, a.Clashes, a.Lines.Crowded(w))
}

// noteRequest records that a request is sent.
func (a *attempt) noteRequest() {
	a.snapshot.Pending = a.core.c.env.Clock.Now()
	a.share()
}

// noteAnswer records the outcome of a request. acked reports whether replicas had to confirm it.
func (a *attempt) noteAnswer(r *protocol.Result[protocol.Entered], acked bool) {
	var within time.Duration
	if acked {
		within = a.core.c.cfg.ackTimeout
	}
	a.snapshot.noteAnswer(r, a.core.ofQuorum(), a.core.c.env.Clock.Now(), within)
	a.share()
}

// listenForMore subscribes the line of w to permits that are added. A waiter that needs more permits than exist is not in
// the queue in Redis, so no other message wakes it.
func (a *attempt) listenForMore(w *wait.Waiter) {
	if proto, is := a.core.proto.(protocol.Growing); is && !a.subscribedToMore {
		lines := a.Lines
		end := proto.ListenForMore(func() { lines.NoteEvent(w) })
		a.subscribedToMore = end != nil
		lines.AddSubscription(w, end)
	}
}

// Pause implements wait.Poller.
func (a *attempt) Pause(w *wait.Waiter, n int, rest time.Duration, err error) time.Duration {
	l, cfg := a.core, &a.core.c.cfg
	if err == nil && a.Lines.Relieve(w, protocol.GlancedOf(l.proto), rest) {
		return seam.FarAway
	}
	pause := min(cfg.longestPoll, protocol.LongestPause(l.proto, a.Number, n))
	if protocol.KeepsPlace(l.proto) {
		// Never later than a third of the waiter lease. The jitter spreads the polls of waiters that came together.
		pause = min(pause, cfg.waiterLease/3-a.jitter(n, cfg.waiterLease/12))
	}
	if rest >= 0 {
		// Redis drops a key in the millisecond after its last one. The jitter spreads the polls of many processes.
		pause = min(pause, rest+time.Millisecond+a.jitter(n, 2*time.Millisecond))
	}
	return pause
}

// jitter returns a random part of d, which depends on the attempt and on n, the number of its request.
func (a *attempt) jitter(n int, d time.Duration) time.Duration {
	return seam.Jitter(a.core.c.seed, a.Number, n, d)
}

// takesHandOver reports whether the attempt can be given a hold of its client. It needs a separate hold for a fixed
// lease, under a hold of the other side, or if one of its requests may have been granted and has to be undone.
func (a *attempt) takesHandOver() bool {
	return a.core.handsOver() && !a.opts.hasLease && a.outer == nil && !a.lateCopies && !a.Granted
}

// receive makes a lease of a hold that was handed over. If the wait has ended meanwhile, with the error why, receive hands
// the hold over to the next waiter, or releases it.
func (a *attempt) receive(ctx context.Context, p *handOver, why error) (*Lease, error) {
	c, l := a.core.c, a.core
	c.env.Stop("passed")
	switch {
	case why != nil:
	case ctx.Err() != nil:
		why = ctx.Err()
	case c.isClosing():
		why = ErrClosed
	case !c.now().Before(p.deadline):
		why = wait.ErrTooLate // the process was stopped
	}
	if a.Placed { // the attempt stands by
		// The next release of another client must not grant the attempt a second hold.
		c.cleanUp(l.id(), l.proto.Abandon(a.ID, false), c.now(), c.now().Add(a.opts.lease+protocol.TombstoneTTL), nil)
		a.Placed = false
	}
	h := p.hold(l, a.owned, a.observed)
	if why == nil {
		return h.serve(c.now(), true), nil
	}
	d := h.unlockingLocked() // no other goroutine has the hold
	d.isAlone = true
	d.task = h.releaseLocked(d.id, 0)
	if !d.handOver() {
		a.undo(d.task, h.untilLocked())
	}
	if why == wait.ErrTooLate {
		// The attempt needs a new id: a late copy of the Abandon above would end a hold with the old one.
		a.newID()
	}
	return nil, why
}

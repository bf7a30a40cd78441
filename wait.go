package rlock

import (
	"context"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wait"
)

// Line is where the attempt waits in this client. An attempt whose caller holds the other side does not wait behind
// others: they may wait for the end of that hold. No call waits behind an attempt that needs more permits than
// there are.
func (a *attempt) Line() wait.Key {
	key := a.core.line(a.ID)
	switch {
	case a.outer != nil:
		key.ID = a.ID
	case a.Oversized && key.ID == "":
		key.ID = strconv.Itoa(protocol.Takes(a.core.proto)) // attempts that need as many share a line
	}
	return key
}

// Look implements wait.Asker.
func (a *attempt) Look(ctx context.Context) (left *wait.Left, rest time.Duration, err error) {
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

// leavesWith notes the lease that the attempt has got, and returns how it leaves its line; nil: it has no lease.
func (a *attempt) leavesWith(lease *Lease) (left *wait.Left) {
	a.lease = lease
	if lease == nil {
		return nil
	}
	h := lease.hold
	left = &wait.Left{Round: a.last.refused}
	until := a.c.env.Clock.Now().Add(h.RestOfLease())
	switch {
	case protocol.Takes(a.core.proto) > 0:
		left.More, left.Until = a.last.permits, a.last.until
		until = a.c.timeline.Time(left.Until)
	case a.core.side == protocol.Shared:
		left.More = wait.Unlimited
	default:
		left.Hold, left.HandsOver = h, h.handsOver()
	}
	left.Seen = seenOwn(h.id(), until)
	return left
}

// Sleeps implements wait.Taker.
func (a *attempt) Sleeps(w *wait.Waiter, poked bool) {
	a.observed.contends()
	a.noteSeen() // what the previous head has seen, if the attempt has just become the head
	if a.Oversized {
		a.listenForMore(w)
	}
	if a.Lines.Sleeps(w, poked && a.takesHandOver(), a.sleepsBy()) {
		if proto := protocol.StandByOf(a.core.proto); proto != nil {
			a.listenForGrants(w, proto)
		}
	}
}

// Given implements wait.Taker.
func (a *attempt) Given(ctx context.Context, given any, why error) (*wait.Left, error) {
	var lease *Lease
	switch g := given.(type) {
	case *handOver:
		lease, why = a.receive(ctx, g, why)
	case *wait.Grant:
		lease, why = a.granted(ctx, g, why)
	}
	return a.leavesWith(lease), why
}

// Withdraw implements wait.Asker. An unanswered look, or a late copy of it, may have been granted a hold: Withdraw ends
// that before the attempt waits behind others, who may wait for that hold to end. It also gives up a place among the
// readers: once Redis admits those, writers wait until each of them has come, and waiters in front of the attempt may
// wait for the writers. The next request is for a new hold.
func (a *attempt) Withdraw() {
	if !a.lateCopies && !a.Granted && !(a.Placed && (a.core.side == protocol.Shared || protocol.StandByOf(a.core.proto) != nil)) {
		return
	}
	a.giveUp()
	a.newID()
	a.lateCopies, a.Granted, a.Placed = false, false, false
}

// newID has the attempt ask for another hold.
func (a *attempt) newID() {
	a.HoldID = a.core.proto.NewID()
	a.Who = a.Number
}

// Subscribe implements wait.Asker.
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

// noteLook records that a request is sent.
func (a *attempt) noteLook() {
	a.snapshot.Pending = a.core.c.env.Clock.Now()
	a.share()
}

// noteAnswer records the outcome of a request. acked: replicas had to confirm it.
func (a *attempt) noteAnswer(r *protocol.Result[protocol.Entered], acked bool) {
	var within time.Duration
	if acked {
		within = a.core.c.cfg.ackTimeout
	}
	a.snapshot.noteAnswer(r, a.core.ofQuorum(), a.core.c.env.Clock.Now(), within)
	a.share()
}

// listenForMore subscribes the line of w to permits that are added: a waiter that needs more than there are is not in
// the queue in Redis, and nothing else wakes it.
func (a *attempt) listenForMore(w *wait.Waiter) {
	if proto, is := a.core.proto.(protocol.Growing); is && !a.listensForMore {
		lines := a.Lines
		end := proto.ListenForMore(func() { lines.NewsFor(w) })
		a.listensForMore = end != nil
		lines.AddSubscription(w, end)
	}
}

// Pause implements wait.Asker.
func (a *attempt) Pause(w *wait.Waiter, n int, rest time.Duration, err error) time.Duration {
	l, cfg := a.core, &a.core.c.cfg
	if err == nil && a.Lines.Relieve(w, protocol.GlancedOf(l.proto), rest) {
		return seam.FarAway
	}
	pause := min(cfg.longestPoll, protocol.LongestPause(l.proto, a.Number, n))
	if protocol.KeepsPlace(l.proto) {
		// Never later than a third of its lease. Waiters that came together do not look together.
		pause = min(pause, cfg.waiterLease/3-a.jitter(n, cfg.waiterLease/12))
	}
	if rest >= 0 {
		// Redis drops a key in the millisecond after its last one. The
		// jitter keeps the heads of many processes apart.
		pause = min(pause, rest+time.Millisecond+a.jitter(n, 2*time.Millisecond))
	}
	return pause
}

// jitter is a random part of d that depends on the attempt and on n, the number of its request.
func (a *attempt) jitter(n int, d time.Duration) time.Duration {
	return seam.Jitter(a.core.c.seed, a.Number, n, d)
}

// takesHandOver reports whether the attempt can be given a hold of its client. Otherwise it needs one of its own: for a
// fixed lease, or because one of its requests may have been granted and has to be undone.
func (a *attempt) takesHandOver() bool {
	return a.core.handsOver() && !a.opts.hasLease && a.outer == nil && !a.lateCopies && !a.Granted
}

// receive makes a lease of a hold that was handed over. If the wait has ended meanwhile, with the error why, it hands
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
	if a.Placed { // it stands by
		// The next release of another client must not grant the attempt a second hold.
		c.cleanUp(l.id(), l.proto.Abandon(a.ID, false), c.now(), c.now().Add(a.opts.lease+protocol.TombstoneTTL), nil)
		a.Placed = false
	}
	h := p.hold(l, a.owned, a.observed)
	if why == nil {
		return h.serve(c.now(), true), nil
	}
	d := h.unlockingLocked() // nobody else knows the hold
	d.alone = true
	d.task = h.releaseLocked(d.id, 0)
	if !d.handOver() {
		a.undo(d.task, h.untilLocked())
	}
	if why == wait.ErrTooLate {
		// It waits for a new hold: a late copy of the Abandon above would end one with the same id.
		a.newID()
	}
	return nil, why
}

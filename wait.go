package rlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// line is where the attempt waits in this client. An attempt that may enter because of
// its caller's hold of the other side does not wait behind others: they may wait for
// that very hold to end. Nor do others wait behind one that needs more permits than there
// are.
func (a *attempt) line() lineKey {
	key := a.core.line(a.ID)
	switch {
	case a.outer != nil:
		key.id = a.ID
	case a.aside && key.id == "":
		key.id = strconv.Itoa(protocol.Takes(a.core.asks)) // those that need as many stand together
	}
	return key
}

// look implements asker.
func (a *attempt) look(ctx context.Context) outcome {
	a.Leads, a.Reserve = a.place != nil, 0
	if a.place != nil && a.takes() && a.c.lines.othersBehind(a.place) {
		a.Reserve = a.core.opts.handOverBounds().passes
	}
	lease, rest, err := a.try(ctx)
	return outcome{a.takesAway(lease), rest, err}
}

// takesAway notes the lease that the attempt has got, and returns how it leaves its line; nil: it has none.
func (a *attempt) takesAway(lease *Lease) *handOver {
	a.lease = lease
	return a.handOverOf(lease)
}

// handOverOf is how a waiter leaves its line with a lease; nil: it has none.
func (a *attempt) handOverOf(lease *Lease) *handOver {
	if lease == nil {
		return nil
	}
	h := lease.of.(*hold)
	if protocol.Takes(a.core.asks) > 0 {
		return &handOver{
			hold: &a.room, beside: &a.room, round: a.refused,
			seen: sight{held: true, known: true, holder: h.id(), until: h.core.c.timeline.Time(a.room.until)},
		}
	}
	return &handOver{
		hold: h, shared: h.core.side == protocol.Shared, passes: h.handsOver(), round: a.refused,
		seen: sight{held: true, known: true, holder: h.id(), until: h.core.c.env.Clock.Now().Add(h.restOfLease())},
	}
}

// sleeps implements taker.
func (a *attempt) sleeps(w *waiter, poked bool) {
	as := a.stands
	if !a.Placed || as.id != a.ID { // not any more
		as = standby{}
	}
	if a.c.lines.sleeps(w, poked && a.takes(), as) {
		if asks := protocol.StandingOf(a.core.asks); asks != nil {
			a.listenForTurns(w, asks)
		}
	}
}

// given implements taker.
func (a *attempt) given(ctx context.Context, g gift, why error) (*handOver, error) {
	var lease *Lease
	if g.pass != nil {
		lease, why = a.receive(ctx, g.pass, why)
	} else {
		lease, why = a.granted(ctx, g.grant, why)
	}
	return a.takesAway(lease), why
}

// withdraw implements asker. It ends what a look without an answer may have been granted, or a copy of it may be
// yet, before the attempt waits behind others. Those may wait for that very grant, and only
// a look would find it. A place among the readers is given up too: if those are admitted,
// writers wait until each of them comes, and those in front of it may wait for the writers.
// The next look is for another hold.
func (a *attempt) withdraw() {
	if !a.unsure && !a.Granted && !(a.Placed && (a.core.side == protocol.Shared || protocol.StandingOf(a.core.asks) != nil)) {
		return
	}
	a.giveUp()
	a.newID()
	a.unsure, a.Granted, a.Placed = false, false, false
}

// newID has the attempt ask for another hold.
func (a *attempt) newID() {
	a.HoldID = a.core.asks.NewID()
	a.number = a.Number
}

// begins implements taker. A client that listens already need not look again when it begins to listen.
func (a *attempt) begins(w *waiter) {
	if a.listens {
		a.hear(w, a.hearLock)
	}
}

func (a *attempt) hearLock(notify func()) (end func()) { return a.core.asks.Listen(a.ID, notify) }

// listen implements asker.
func (a *attempt) listen(w *waiter) {
	if a.listens || a.joins {
		a.listens, a.joins = false, false
		a.observed.contends()
	}
	if a.rank != 0 && protocol.SuccessionOf(a.core.asks) != nil {
		a.c.lines.stands(w, a.rank, protocol.Heir{ID: a.ID, Lease: a.Lease})
	}
	a.hear(w, a.hearLock)
	if a.aside {
		a.listenForMore(w)
	}
}

// failed implements taker.
func (a *attempt) failed(w *waiter, began time.Time, err error) error {
	if why := a.told(w); why != nil {
		return why // it says more
	}
	var s *settled
	if errors.As(err, &s) {
		// Those who came before the look, or before the failure that it found, need not look.
		a.c.lines.fail(w, began.Add(-s.ago), err)
	}
	return err
}

// hesitates implements taker.
func (a *attempt) hesitates(w *waiter) time.Duration {
	return protocol.Hesitation(a.core.asks, a.Clashes, a.c.lines.crowded(w))
}

// looks notes that a look begins.
func (a *attempt) looks() {
	a.seen.asked = a.core.c.env.Clock.Now()
	a.show()
}

// sees notes the outcome of a look, to which replicas had to answer or not.
func (a *attempt) sees(r *protocol.Result[protocol.Entered], acked bool) {
	var within time.Duration
	if acked {
		within = a.core.c.cfg.ackTimeout
	}
	a.seen.answered(r, a.core.c.env.Clock.Now(), within)
	a.show()
}

// mayStandBy reports whether a look may stand by, or end that: see passing.go.
func (a *attempt) mayStandBy() bool {
	l := a.core
	return protocol.StandingOf(l.asks) != nil && (a.Placed || a.Wait && a.Leads && !a.opts.hasLease &&
		l.c.lines.hearsTurns(a.line()) && l.c.hub.Listening(l.names.Channel()+":", l.c.id))
}

// listenForTurns has the line of w listen for turns from now on.
func (a *attempt) listenForTurns(w *waiter, asks protocol.Standing) {
	c := a.core.c
	c.lines.hearTurns(w, asks.ListenForTurns(func(t protocol.Turn) {
		c.lines.turn(w.line, &t, c.now(), c.cfg.watchdogLease/3)
	}))
}

// listenForMore has the line of w listen for permits that are added: one that needs more than
// there are does not stand in the queue in Redis, and nobody else wakes it.
func (a *attempt) listenForMore(w *waiter) {
	c := a.core.c
	if asks, is := a.core.asks.(protocol.Growing); is && !a.more {
		end := asks.ListenForMore(func() { c.lines.newsFor(w.line) })
		a.more = end != nil
		c.lines.hearTurns(w, end)
	}
}

// pause implements asker.
func (a *attempt) pause(w *waiter, look int, rest time.Duration, err error) time.Duration {
	l, cfg := a.core, &a.core.c.cfg
	if err == nil && a.c.glances.relieve(w, l.asks, rest) {
		return seam.FarAway
	}
	pause := min(cfg.longestPoll, protocol.LongestPause(l.asks, a.Number, look))
	if protocol.KeepsPlace(l.asks) {
		// Never later than a third. Waiters that came together do not look together.
		pause = min(pause, cfg.waiterLease/3-a.jitter(look, cfg.waiterLease/12))
	}
	if rest >= 0 {
		// Redis drops a key in the millisecond after its last one. The
		// jitter keeps the heads of many processes apart.
		pause = min(pause, rest+time.Millisecond+a.jitter(look, 2*time.Millisecond))
	}
	return pause
}

// jitter is a random part of d that depends on the attempt and the number of its look.
func (a *attempt) jitter(look int, d time.Duration) time.Duration {
	return seam.Jitter(a.core.c.seed, a.Number, look, d)
}

// takes reports whether the attempt can be given a hold of its client. Otherwise it needs
// one of its own: for a fixed lease, or since a request of its own may have been granted
// and has to be undone.
func (a *attempt) takes() bool {
	return a.core.handsOver() && !a.opts.hasLease && a.outer == nil && !a.unsure && !a.Granted
}

// receive makes a lease of a hold that was handed over. If the wait has ended meanwhile, for
// the reason why, it hands the hold on, or gives it back.
func (a *attempt) receive(ctx context.Context, p *pass, why error) (*Lease, error) {
	c, l := a.core.c, a.core
	c.env.Stop("passed")
	switch {
	case why != nil:
	case ctx.Err() != nil:
		why = ctx.Err()
	case c.isClosing():
		why = ErrClosed
	case !c.now().Before(p.deadline):
		why = errTooLate // the process was stopped
	}
	if a.Placed { // it stands by
		// The next release of another client must not grant it anything.
		c.cleanUp(l.id(), l.asks.Abandon(a.ID, false), c.now(), c.now().Add(a.opts.lease+protocol.TombstoneTTL), nil)
		a.Placed = false
	}
	h := p.hold(l, a.owned, a.observed)
	if why == nil {
		return h.serve(c.now(), true), nil
	}
	d := h.departureLocked() // nobody else knows the hold
	d.alone = true
	d.task = h.releaseLocked(d.id, 0)
	if !d.passOn() {
		a.undo(d.task, h.untilLocked())
	}
	if why == errTooLate {
		// It may have stood by, and a copy of what ends that come late: it waits for another hold.
		a.newID()
	}
	return nil, why
}

// granted makes a lease of a hold that Redis has granted at the release of the one before. If
// the wait has ended meanwhile, for the reason why, giveUp ends the hold.
func (a *attempt) granted(ctx context.Context, g *grant, why error) (*Lease, error) {
	a.core.c.env.Stop("passed")
	a.unsure = a.unsure || g.unsure
	if why == nil {
		why = ctx.Err()
	}
	if why != nil {
		return nil, why
	}
	a.inRow = g.inRow
	lease, err := a.accept(g.sent, a.core.c.now(), &protocol.Result[protocol.Entered]{
		Outcome: protocol.Entered{Verdict: protocol.Granted, Token: g.token, Reserved: g.reserved},
	})
	if worthRepeating(err) {
		err = errTooLate
	}
	return lease, err
}

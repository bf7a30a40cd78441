package rlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wait"
)

// Line is where the attempt waits in this client. An attempt that may enter because of
// its caller's hold of the other side does not wait behind others: they may wait for
// that very hold to end. Nor do others wait behind one that needs more permits than there
// are.
func (a *attempt) Line() wait.Key {
	key := a.core.line(a.ID)
	switch {
	case a.outer != nil:
		key.ID = a.ID
	case a.Oversized && key.ID == "":
		key.ID = strconv.Itoa(protocol.Takes(a.core.proto)) // those that need as many stand together
	}
	return key
}

// Look implements wait.Asker.
func (a *attempt) Look(ctx context.Context) (left *wait.Left[sight], rest time.Duration, err error) {
	a.Leads, a.Reserve = a.Place != nil, 0
	if a.Place != nil && a.takes() && a.Lines.OthersBehind(a.Place) {
		a.Reserve = a.core.opts.handOverBounds().passes
	}
	lease, rest, err := a.try(ctx)
	return a.takesAway(lease), rest, err
}

// takesAway notes the lease that the attempt has got, and returns how it leaves its line; nil: it has none.
func (a *attempt) takesAway(lease *Lease) *wait.Left[sight] {
	a.lease = lease
	if lease == nil {
		return nil
	}
	h := lease.of.(*hold)
	if protocol.Takes(a.core.proto) > 0 {
		return &wait.Left[sight]{
			Beside: true, Permits: a.last.room, Until: a.last.until, Round: a.last.refused,
			Snapshot: sight{held: true, known: true, holder: h.id(), until: h.core.c.timeline.Time(a.last.until)},
		}
	}
	return &wait.Left[sight]{
		Hold: h, Shared: h.core.side == protocol.Shared, HandsOver: h.handsOver(), Round: a.last.refused,
		Snapshot: sight{held: true, known: true, holder: h.id(), until: h.core.c.env.Clock.Now().Add(h.RestOfLease())},
	}
}

// Sleeps implements wait.Taker.
func (a *attempt) Sleeps(w *wait.Waiter[sight], poked bool) {
	as := a.turn.stands
	if !a.Placed || as.ID != a.ID { // not any more
		as = wait.StandBy{}
	}
	if a.Lines.Sleeps(w, poked && a.takes(), as) {
		if proto := protocol.StandingOf(a.core.proto); proto != nil {
			a.listenForTurns(w, proto)
		}
	}
}

// Given implements wait.Taker.
func (a *attempt) Given(ctx context.Context, given any, why error) (*wait.Left[sight], error) {
	var lease *Lease
	switch g := given.(type) {
	case *pass:
		lease, why = a.receive(ctx, g, why)
	case *wait.Grant:
		lease, why = a.granted(ctx, g, why)
	}
	return a.takesAway(lease), why
}

// Withdraw implements wait.Asker. It ends what a look without an answer may have been granted, or a copy of it may be
// yet, before the attempt waits behind others. Those may wait for that very grant, and only
// a look would find it. A place among the readers is given up too: if those are admitted,
// writers wait until each of them comes, and those in front of it may wait for the writers.
// The next look is for another hold.
func (a *attempt) Withdraw() {
	if !a.unsure && !a.Granted && !(a.Placed && (a.core.side == protocol.Shared || protocol.StandingOf(a.core.proto) != nil)) {
		return
	}
	a.giveUp()
	a.newID()
	a.unsure, a.Granted, a.Placed = false, false, false
}

// newID has the attempt ask for another hold.
func (a *attempt) newID() {
	a.HoldID = a.core.proto.NewID()
	a.Who = a.Number
}

// Begins implements wait.Taker. A client that listens already need not look again when it begins to listen.
func (a *attempt) Begins(w *wait.Waiter[sight]) {
	if a.start.listens {
		a.Hear(w, a.hearLock)
	}
}

func (a *attempt) hearLock(notify func()) (end func()) { return a.core.proto.Listen(a.ID, notify) }

// Listen implements wait.Asker.
func (a *attempt) Listen(w *wait.Waiter[sight]) {
	if a.start.listens || a.start.joins {
		a.start.listens, a.start.joins = false, false
		a.observed.contends()
	}
	if a.last.rank != 0 && protocol.SuccessionOf(a.core.proto) != nil {
		a.Lines.SetQueueEntry(w, a.last.rank, protocol.Heir{ID: a.ID, Lease: a.Lease})
	}
	a.Hear(w, a.hearLock)
	if a.Oversized {
		a.listenForMore(w)
	}
}

// Hears implements wait.Taker: those who run a function in this client tell those behind them that it has failed.
func (a *attempt) SharesFailures() bool { return protocol.Is[protocol.Sharing](a.core.proto) }

// Failed implements wait.Taker.
func (a *attempt) Failed(w *wait.Waiter[sight], began time.Time, err error) error {
	if a.SharesFailures() {
		if why := a.Lines.Failure(w); why != nil {
			return why // it says more
		}
	}
	var s *settled
	if errors.As(err, &s) {
		// Those who came before the look, or before the failure that it found, need not look.
		a.Lines.Fail(w, began.Add(-s.ago), err)
	}
	return err
}

// Hesitates implements wait.Taker.
func (a *attempt) Hesitates(w *wait.Waiter[sight]) time.Duration {
	return protocol.Hesitation(a.core.proto, a.Clashes, a.Lines.Crowded(w))
}

func (a *attempt) looks() {
	a.Snapshot.asked = a.core.c.env.Clock.Now()
	a.Share()
}

// sees notes the outcome of a look, to which replicas had to answer or not.
func (a *attempt) sees(r *protocol.Result[protocol.Entered], acked bool) {
	var within time.Duration
	if acked {
		within = a.core.c.cfg.ackTimeout
	}
	a.Snapshot.answered(r, a.core.c.env.Clock.Now(), within)
	a.Share()
}

// mayStandBy reports whether a look may stand by, or end that: see internal/wait/handover.go.
func (a *attempt) mayStandBy() bool {
	l := a.core
	return protocol.StandingOf(l.proto) != nil && (a.Placed || a.Wait && a.Leads && !a.opts.hasLease &&
		a.Lines.ListensForGrants(a.Line()) && l.c.hub.Listening(l.names.Channel()+":", l.c.id))
}

// listenForTurns has the line of w listen for turns from now on.
func (a *attempt) listenForTurns(w *wait.Waiter[sight], proto protocol.Standing) {
	c := a.core.c
	a.Lines.AddSubscription(w, proto.ListenForTurns(func(t protocol.Turn) {
		c.lines.Granted(w, &t, c.now(), c.cfg.watchdogLease/3)
	}))
}

// listenForMore has the line of w listen for permits that are added: one that needs more than
// there are does not stand in the queue in Redis, and nobody else wakes it.
func (a *attempt) listenForMore(w *wait.Waiter[sight]) {
	if proto, is := a.core.proto.(protocol.Growing); is && !a.turn.more {
		lines := a.Lines
		end := proto.ListenForMore(func() { lines.NewsFor(w) })
		a.turn.more = end != nil
		lines.AddSubscription(w, end)
	}
}

// Pause implements wait.Asker.
func (a *attempt) Pause(w *wait.Waiter[sight], look int, rest time.Duration, err error) time.Duration {
	l, cfg := a.core, &a.core.c.cfg
	if err == nil && a.Lines.Relieve(w, protocol.GlancedOf(l.proto), rest) {
		return seam.FarAway
	}
	pause := min(cfg.longestPoll, protocol.LongestPause(l.proto, a.Number, look))
	if protocol.KeepsPlace(l.proto) {
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
		why = wait.ErrTooLate // the process was stopped
	}
	if a.Placed { // it stands by
		// The next release of another client must not grant it anything.
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
	if !d.passOn() {
		a.undo(d.task, h.untilLocked())
	}
	if why == wait.ErrTooLate {
		// It may have stood by, and a copy of what ends that come late: it waits for another hold.
		a.newID()
	}
	return nil, why
}

// granted makes a lease of a hold that Redis has granted at the release of the one before. If
// the wait has ended meanwhile, for the reason why, giveUp ends the hold.
func (a *attempt) granted(ctx context.Context, g *wait.Grant, why error) (*Lease, error) {
	a.core.c.env.Stop("passed")
	a.unsure = a.unsure || g.Unsure
	if why == nil {
		why = ctx.Err()
	}
	if why != nil {
		return nil, why
	}
	a.turn.inRow = g.InRow
	lease, err := a.accept(g.Sent, a.core.c.now(), &protocol.Result[protocol.Entered]{
		Outcome: protocol.Entered{Verdict: protocol.Granted, Token: g.Token, Handed: protocol.Handed{Reserved: g.Reserved}},
	})
	if worthRepeating(err) {
		err = wait.ErrTooLate
	}
	return lease, err
}

package rlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
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

// lead notes that the attempt is the head of a line.
func (a *attempt) lead(w *waiter) {
	a.place, a.Leads = w, true
	if a.seen == (sight{}) {
		a.seen = a.core.c.lines.seen(w, a.seen) // what the head before it has seen still holds
	}
	a.show()
}

// wait waits in line and, as its head, looks whenever the lock may be free: after a
// message or a local release, when the holder's lease is over, after the subscription was
// confirmed or rebuilt, and at the longest poll. rest is how long the lock is known to be
// held; 0 means look at once. news is the latest of the line before the attempt looked.
func (a *attempt) wait(ctx context.Context, rest time.Duration, news int64) (lease *Lease, err error) {
	since := a.core.c.env.Clock.Now()
	if !a.outage.since.IsZero() {
		since = a.outage.since // it has waited for an answer since then
	}
	for {
		lease, err = a.waitInLine(ctx, since, rest, news)
		switch err {
		case errTooLate:
			rest, news = 0, 0
		case errAside:
			rest, news = -1, 0 // it looks again when it has subscribed
		default:
			return lease, err
		}
	}
}

func (a *attempt) waitInLine(ctx context.Context, since time.Time, rest time.Duration, news int64) (lease *Lease, err error) {
	c := a.core.c
	w, head := c.lines.join(a.line(), since, news)
	if n := protocol.Takes(a.core.asks); n > 0 {
		c.lines.needs(w, int64(n))
	}
	a.place, a.Leads = nil, false
	if head {
		a.lead(w)
	}
	defer func() {
		a.seen = c.lines.seen(w, a.seen)
		a.observed.saw(&a.seen)
		c.lines.leave(w, a.handOverOf(lease), a.refused)
	}()
	if !head {
		a.observed.contends()
		a.withdraw()
		if lease, rest, err = a.waitBehind(ctx, w); lease != nil || err != nil {
			return lease, err
		}
	}
	return a.waitFirst(ctx, w, rest)
}

// handOverOf is how a waiter leaves its line with a lease; nil: it has none.
func (a *attempt) handOverOf(lease *Lease) *handOver {
	if lease == nil {
		return nil
	}
	h := lease.of.(*hold)
	if protocol.Takes(a.core.asks) > 0 {
		return &handOver{
			hold: &a.room, beside: &a.room,
			seen: sight{held: true, known: true, holder: h.id(), until: h.core.c.timeline.Time(a.room.until)},
		}
	}
	return &handOver{
		hold: h, shared: h.core.side == protocol.Shared, passes: h.handsOver(),
		seen: sight{held: true, known: true, holder: h.id(), until: h.core.c.env.Clock.Now().Add(h.restOfLease())},
	}
}

// sleep sleeps. It returns an error if the wait is over, or a lease of a hold that it was given
// meanwhile.
func (a *attempt) sleep(ctx context.Context, w *waiter, d time.Duration, wake <-chan struct{}) (lease *Lease, err error) {
	c := a.core.c
	if err := ctx.Err(); err != nil {
		return nil, err // whatever else has happened
	}
	as := a.stands
	if !a.Placed || as.id != a.ID { // not any more
		as = standby{}
	}
	if c.lines.sleeps(w, wake != nil && a.takes(), as) {
		if asks := protocol.StandingOf(a.core.asks); asks != nil {
			a.listenForTurns(w, asks)
		}
	}
	why := a.sleeper.Sleep(d, wake, nil, ctx.Done(), c.closing)
	got := c.lines.awake(w)
	switch why {
	case clock.ByEnd:
		err = ctx.Err()
	case clock.ByClosing:
		err = ErrClosed
	default:
		c.stopOf("woken", a.Number) // many may be, at once
	}
	switch {
	case got.pass != nil:
		return a.receive(ctx, got.pass, err)
	case got.grant != nil:
		return a.granted(ctx, got.grant, err)
	}
	return nil, err
}

// waitBehind waits until the attempt is the head of its line. It returns a lease if it got
// one before that; otherwise how long the lock is known to be held.
func (a *attempt) waitBehind(ctx context.Context, w *waiter) (lease *Lease, rest time.Duration, err error) {
	c := a.core.c
	for {
		if lease, err = a.sleep(ctx, w, seam.FarAway, w.wake); lease != nil || err != nil {
			return lease, 0, err
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, err // a thousand waiters that are canceled at once need not look
		}
		n := c.lines.news(w)
		if n.admitted {
			a.waitsSince(n.round)
		}
		switch {
		case n.err != nil:
			return nil, 0, n.err // the head has found out that Redis gives no answer
		case n.head:
			a.lead(w)
			if n.behind != nil && n.behind.alive() {
				rest = n.behind.restOfLease()
			}
			return nil, rest, nil
		case n.admitted:
			c.lines.sees(w)
			if lease, _, err = a.try(ctx); lease != nil || err != nil && !worthRepeating(err) {
				return lease, 0, err
			}
			if a.stepsAside(w) {
				return nil, 0, errAside
			}
			a.withdraw()
			c.lines.refused(w)
		}
	}
}

// withdraw ends what a look without an answer may have been granted, or a copy of it may be
// yet, before the attempt waits behind others. Those may wait for that very grant, and only
// a look would find it. A place among the readers is given up too: if those are admitted,
// writers wait until each of them comes, and those in front of it may wait for the writers.
// The next look is for another hold.
func (a *attempt) withdraw() {
	if !a.unsure && !a.Granted && !(a.Placed && (a.core.side == protocol.Shared || protocol.StandingOf(a.core.asks) != nil)) {
		return
	}
	a.giveUp()
	a.HoldID = a.core.asks.NewID()
	a.unsure, a.Granted, a.Placed = false, false, false
}

// waitFirst waits as the head of the line.
func (a *attempt) waitFirst(ctx context.Context, w *waiter, rest time.Duration) (lease *Lease, err error) {
	c, l := a.core.c, a.core
	crowded, _ := l.asks.(protocol.Crowded)
	subscribe := func() {
		c.hearFreed(w, crowded, func(notify func()) (end func()) { return l.asks.Listen(a.ID, notify) })
	}
	if a.listens {
		subscribe()
	}
	for look := 0; ; look++ {
		if rest == 0 || look > 0 {
			if lease, err = a.makeWay(ctx, w); lease != nil || err != nil {
				return lease, err
			}
			a.Reserve = 0
			if a.takes() && c.lines.othersBehind(w) {
				a.Reserve = l.opts.handOverBounds().passes
			}
			w.looks()
			c.lines.sees(w)
			began, woken := c.env.Clock.Now(), c.lines.answers(w)
			lease, rest, err = a.try(ctx)
			if err == nil && c.lines.learns(w, woken, lease == nil, c.env.Clock.Now().Sub(began)) {
				c.hearTaken(w, crowded)
			}
			switch {
			case lease != nil:
				return lease, nil
			case a.stepsAside(w):
				return nil, errAside
			case err == nil:
				a.outage = outage{}
			case !worthRepeating(err):
				if why := a.told(w); why != nil {
					return nil, why // it says more
				}
				var s *settled
				if errors.As(err, &s) {
					// Those who came before the look, or before the failure that it found, need not look.
					c.lines.fail(w, began.Add(-s.ago), err)
				}
				return nil, err
			default:
				var over error
				if rest, over = c.outlast(&a.outage, MaxLease, w, began, err); over != nil {
					return nil, over
				}
			}
		}
		if a.listens || a.joins {
			a.listens, a.joins = false, false
			a.observed.contends()
		}
		if a.rank != 0 && protocol.SuccessionOf(l.asks) != nil {
			c.lines.stands(w, a.rank, protocol.Heir{ID: a.ID, Lease: a.Lease})
		}
		subscribe()
		if a.aside {
			a.listenForMore(w)
		}
		pause := a.pause(look, rest)
		if err == nil && c.glances.relieve(w, l.asks, rest) {
			pause = seam.FarAway
		}
		if err = a.told(w); err != nil { // its look may have consumed the poke
			return nil, err
		}
		if lease, err = a.sleep(ctx, w, pause, w.wake); lease != nil || err != nil {
			return lease, err
		}
		if err = a.told(w); err != nil {
			return nil, err
		}
		if most := protocol.Hesitation(l.asks, a.Clashes, c.lines.crowded(w)); most > 0 {
			if _, err := a.sleep(ctx, w, a.jitter(look, most), nil); err != nil {
				return nil, err
			}
		}
	}
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

// show tells the waiters behind the attempt what it sees.
func (a *attempt) show() {
	if a.place != nil {
		a.core.c.lines.saw(a.place, a.seen)
	}
	a.owned.saw(&a.seen)
	a.observed.saw(&a.seen)
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

// pause is how long the head of a line sleeps at most after a look.
func (a *attempt) pause(look int, rest time.Duration) time.Duration {
	l, cfg := a.core, &a.core.c.cfg
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
		a.HoldID = l.asks.NewID()
	}
	return nil, why
}

// stepsAside reports whether the attempt has to leave its line, and to wait in another.
func (a *attempt) stepsAside(w *waiter) bool { return a.aside && w.line.key.id == "" }

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

// makeWay lets waiters of other clients go first, after this client has had the lock for
// a whole batch.
func (a *attempt) makeWay(ctx context.Context, w *waiter) (lease *Lease, err error) {
	c := a.core.c
	for lease == nil && err == nil {
		d := c.lines.yieldsFor(w, c.now())
		if d <= 0 {
			break
		}
		if lease, err = a.sleep(ctx, w, d, w.wake); err != nil && !a.seen.told() {
			a.seen.said.what = "waiters of other clients go first"
		}
	}
	return lease, err
}

package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/oplock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// attempt is one Lock or TryLock call that may begin a hold.
type attempt struct {
	protocol.Acquire
	waiting
	core    *core
	chain   *chain // of the caller's context
	opts    acquireConfig
	lease   *Lease // that it has got in line
	outer   *hold  // the caller's hold of the other side, which lets it in here
	reentry bool
	unsure  bool // a copy of the acquire may be under way

	// Of some types.
	listens bool      // its client listens already, and it has not looked yet
	joins   bool      // it has not looked yet, as another of its client looks
	came    time.Time // when the call began
	inRow   int       // see seldom
	stands  standby   // see passing.go
	rank    int64     // in Redis's order of waiters; 0: not known
	refused int64     // the latest round that it was refused in itself, or NoRound
	room    room      // what it left of a semaphore
	more    bool      // it listens for permits that are added
	split   bool      // its last look has seen no holder, but others that try too
}

// lock is Lock and TryLock of every type.
func lock[O callOption](ctx context.Context, l *core, wait bool, opts []O) (lease *Lease, err error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	a := &attempt{core: l, refused: protocol.NoRound}
	a.waiting = waiting{c: c, asks: a, need: int64(protocol.Takes(l.asks)), longest: MaxLease}
	a.crowded, _ = l.asks.(protocol.Crowded)
	if err := options(l, &a.opts, opts); err != nil {
		return nil, l.error(err)
	}
	a.Lease, a.Priority, a.Value, a.Round = a.opts.lease, l.opts.priority, a.opts.value, protocol.NoRound
	if !c.begin() {
		return nil, l.error(ErrClosed)
	}
	defer c.end()

	a.came = c.env.Clock.Now()
	ctx, a.observed = l.observe(ctx, protocol.Takes(l.asks))
	lease, err = l.acquire(ctx, a, wait)
	lease.granted(a.observed, AcquireEvent{Attempts: a.Tries, Reentry: a.reentry, Err: err})
	return lease, err
}

func (l *core) acquire(caller context.Context, a *attempt, wait bool) (*Lease, error) {
	if caller.Err() != nil {
		return nil, l.error(endOf(caller))
	}
	// One deadline bounds everything: other operations of the owner, the commands,
	// the waiting.
	ctx, cancel := a.opts.within(caller)
	defer cancel()
	a.Wait = wait && !a.opts.looksOnce()

	if _, again := l.asks.(protocol.Reentrant); again || l.opts.nonReentrant {
		a.chain = chainFrom(ctx)
	}
	for {
		h := holdOf(a.chain.find(l, l.side))
		if h == nil {
			break
		}
		if err := a.take(ctx, h.ops()); err != nil {
			return nil, a.error(a.interrupted(caller, err))
		}
		lease, err := l.enterAgain(ctx, caller, a, h)
		h.ops().Give()
		if lease != nil || err != nil {
			return lease, err
		}
		// All its leases were unlocked meanwhile: it is not found again.
	}
	if own := a.chain.own(); own != nil {
		a.owned = own.at(l)
		defer a.owned.leave()
		ops := &a.owned.ops
		if err := a.take(ctx, ops); err != nil {
			return nil, a.error(a.interrupted(caller, err))
		}
		defer ops.Give()
		if h := holdOf(a.owned.held(l.side)); h != nil {
			if lease, err := l.enterAgain(ctx, caller, a, h); lease != nil || err != nil {
				return lease, err
			}
			a.owned.clear(h) // all its leases are unlocked: a new hold begins
		}
		ops.SetEntering(true)
		defer ops.SetEntering(false)
	}
	a.newID()
	if err := a.checkOtherSide(); err != nil {
		return nil, err
	}
	return a.begin(ctx, caller)
}

// begin begins a new hold.
func (a *attempt) begin(ctx, caller context.Context) (*Lease, error) {
	lease, err := a.run(ctx)
	if err == nil {
		return lease, nil
	}
	answered := a.giveUp()
	a.seen.settle(a.c.env.Clock.Now(), answered)
	if !a.opts.again && (errors.Is(err, ErrNotAcquired) || wire.Ended(err)) {
		a.core.nameHolder(&a.seen)
	}
	return nil, a.error(a.interrupted(caller, err))
}

// take waits until no other operation is under way at a hold. If its wait ends before, it has seen
// what that operation has, or that this has had no answer for so long.
func (a *attempt) take(ctx context.Context, ops *oplock.Lock) (err error) {
	began := a.core.c.env.Clock.Now()
	if a.Wait {
		err = ops.Take(ctx, a.core.c.closing)
	} else {
		err = ops.TakeUnlessEntering(ctx, a.core.c.closing)
	}
	switch err {
	case oplock.ErrEntering:
		err = because(ErrNotAcquired, err)
	case oplock.ErrClosing:
		err = ErrClosed
	}
	if err != nil && a.owned != nil {
		a.seen = a.owned.sees()
	} else if err != nil {
		a.seen.asked = began
		a.seen.settle(a.core.c.env.Clock.Now(), false)
	}
	return err
}

// run makes the hold's first entry.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	c, l := a.core.c, a.core
	a.sleeper.Begin(&c.env)
	defer a.sleeper.Stop()
	if !a.Wait {
		return a.once(ctx)
	}
	var rest time.Duration
	// Waiters in line go first. Without any, look.
	waiting, news, yields := c.lines.latest(a.line())
	a.Yields = yields > 0 && c.now().Before(yields) // this client has had it just now
	// An acquire whose client listens already need not look again when it begins to listen:
	// it does so before it looks.
	a.listens = a.outer == nil && protocol.Listening(l.asks, a.ID)
	a.joins = waiting == 0 && !a.listens && !a.Yields && protocol.Shares(l.asks) && !c.lines.looksFirst(a.line())
	if waiting == 0 && !a.listens && !a.Yields && !a.joins {
		var lease *Lease
		var err error
		a.Leads = true // as far as is known
		began := c.env.Clock.Now()
		lease, rest, err = a.tryFirst(ctx)
		if lease != nil {
			return lease, nil
		}
		switch {
		case err != nil && !worthRepeating(err):
			return nil, err
		case err != nil:
			a.outage.since = began
		}
	}
	c.presence.Use()
	if !a.listens && !a.joins { // else it has not looked yet
		a.observed.contends()
	}
	err := a.await(ctx, rest, news)
	return a.lease, err
}

// try looks once, and takes the lock if it is free. It returns a lease, or for
// how long the lock is held by another (negative: forever), or an error.
func (a *attempt) try(ctx context.Context) (lease *Lease, rest time.Duration, err error) {
	for {
		sent, r := a.enter(ctx)
		e := &r.Outcome
		switch {
		case r.Err != nil:
			return nil, 0, r.Err
		case e.Verdict == protocol.Granted:
			if a.StandBy {
				a.inRow = a.c.lines.inRow(a.line(), a.ID) // a release may have granted it
				if e.Found && a.inRow == 0 {
					a.inRow = mostInRow // the message is still to come: its own release is for all
				}
			}
			a.room = room{clock: &a.c.timeline, left: e.Left, until: a.c.now().Add(e.Rest)}
			lease, err = a.accept(sent, sent, &r)
			return lease, 0, err
		case e.Verdict == protocol.OuterHoldLost:
			if err := a.outerHoldLost(e); err != nil {
				return nil, 0, err
			}
		default:
			rest, err = a.refusedBy(&r, sent)
			return nil, rest, err
		}
	}
}

// enter asks for the hold once.
func (a *attempt) enter(ctx context.Context) (sent clock.Instant, r protocol.Result[protocol.Entered]) {
	c, l := a.c, a.core
	a.Tries++
	a.looks()
	a.waited()
	a.Tells = a.need > 0 && c.lines.crowdAt(a.line())
	if r.Err = l.asks.Ready(ctx); r.Err != nil {
		a.sees(&protocol.Result[protocol.Entered]{Err: r.Err}, false)
		return sent, r
	}
	sent = c.now()
	if a.StandBy = a.mayStandBy(); a.StandBy {
		a.Placed = true
		if a.takes() { // others may come to wait behind it
			a.Reserve = l.opts.handOverBounds().passes
		}
	}
	ask := l.asks.Enter(&a.Acquire)
	if protocol.KeepsPlace(l.asks) && a.Wait && (protocol.EachWaits(l.asks) || a.Leads) {
		a.Placed = true
	}
	r = ask.Do(ctx, c.cfg.commandTimeout)
	a.unsure = a.unsure || r.Unsure
	a.sees(&r, true)
	// A script that failed half-way (a command that the ACL forbids) may
	// have left a hold without a TTL.
	a.Granted = a.Granted || r.Err != nil && wire.MayHaveRun(r.Err)
	return sent, r
}

// refusedBy is what an answer that does not grant the hold means: for how long the lock is held, or an error.
func (a *attempt) refusedBy(r *protocol.Result[protocol.Entered], sent clock.Instant) (rest time.Duration, err error) {
	e := &r.Outcome
	switch e.Verdict {
	case protocol.Busy:
		a.split = e.Split
		a.aside = a.aside || e.Beyond
		if e.HasRound {
			a.refused = e.Round
			a.waitsSince(e.Round)
		}
		if e.Rank != 0 {
			a.rank = e.Rank
		}
		if a.StandBy {
			a.Placed, a.stands = e.Stands || a.unsure, standby{a.ID, a.Tries, sent}
			if r.Unsure {
				// A release may have granted it the lock after another copy, and the hold
				// be over: the message would name this look. None names look 0, so that
				// it looks what has become of it.
				a.stands.look = 0
			}
		}
		return e.Rest, nil
	case protocol.Quarantined:
		if !a.Wait {
			return 0, because(ErrNotAcquired, protocol.InQuarantine{Left: e.Rest})
		}
		return e.Rest, nil
	case protocol.NotSet:
		return 0, ErrNotSet
	case protocol.OtherType:
		return 0, because(ErrForeignKey, errOtherType)
	case protocol.OtherNumber:
		return 0, invalid("others that use the barrier now say that it has %d members", e.Missing)
	case protocol.Settled:
		return 0, settledBy(e)
	}
	return 0, errWithdrawn
}

var errWithdrawn = errors.New("unexpected reply from Redis: this acquire was given up before")
var errOtherType = errors.New("another type of lock holds the name, and the two do not exclude each other")

// accept makes a lease of a grant. From here the grant is either handed out or
// given back.
func (a *attempt) accept(sent, since clock.Instant, r *protocol.Result[protocol.Entered]) (*Lease, error) {
	c, l := a.core.c, a.core
	a.Granted = true
	if r.TooFew != nil {
		return nil, because(ErrNotAcquired, r.TooFew)
	}
	c.env.Stop("granted")
	if !c.now().Before(sent.Add(l.validity(a.opts.lease))) {
		a.seen = sight{err: errShortLease}
		return nil, errShortLease
	}
	if c.isClosing() {
		return nil, ErrClosed
	}
	h := &hold{core: l, owned: a.owned, number: a.Number, token: r.Outcome.Token, unsure: a.unsure}
	if n := r.Outcome.Reserved; n > 0 {
		h.seldom = &seldom{batch: &batch{tokens: n, last: h.token + n, until: c.now().Add(l.opts.handOverBounds().within)}}
	}
	if a.inRow > 0 {
		h.seldomLocked().inRow = a.inRow
	}
	if a.observed != nil {
		h.seldomLocked().observed = a.observed
	}
	a.Granted = false
	return h.begin(sent, since, a.opts), nil
}

// giveUp undoes what the attempt may have left in Redis, now or when a copy of its acquire
// arrives late. The caller waits for protocol.GiveUpGrace only; then the watchdog continues alone.
// It reports whether Redis has answered.
func (a *attempt) giveUp() (answered bool) {
	if !a.unsure && !a.Granted && !a.Placed {
		return false
	}
	l := a.core
	return a.undo(l.asks.Abandon(a.ID, a.unsure || a.Granted), l.c.now().Add(a.opts.lease+protocol.TombstoneTTL))
}

// undo sends a task that ends a hold, and has it repeated until then if there is no answer.
// It waits for the answer, and returns, as giveUp does.
func (a *attempt) undo(t protocol.Task, until clock.Instant) (answered bool) {
	return a.core.c.undoThen(a.core.id(), t, until, nil)
}

// waitsSince notes the round that the attempt has waited since.
func (a *attempt) waitsSince(round int64) {
	if a.Round == protocol.NoRound {
		a.Round = round
	}
}

// interrupted makes the error of an acquire from what stopped it: the end of the caller's
// context or of the wait, or a single look at a lock that was not free. It contains what
// was seen last.
func (a *attempt) interrupted(caller context.Context, err error) error {
	a.seen.toldTo(a.core.c.id, int64(protocol.Takes(a.core.asks)), a.core.toEnterAgain)
	return interrupted(caller, err, ErrNotAcquired, a.opts.limit(), &a.seen, a.core.c.env.Clock.Now())
}

// error is the error of an acquire.
func (a *attempt) error(err error) *Error {
	e := &Error{Lock: a.core.name(), Err: err}
	if s := &a.seen; errors.Is(err, ErrNotAcquired) && s.err == nil && s.held {
		e.HolderID, e.Left = s.holder, s.left(a.core.c.env.Clock.Now())
		if s.who != nil {
			e.Process = *s.who
		}
	}
	return e
}

// tryFirst is the first try of an attempt that found no waiters.
func (a *attempt) tryFirst(ctx context.Context) (lease *Lease, rest time.Duration, err error) {
	if protocol.Shares(a.core.asks) {
		defer a.core.c.lines.looked(a.line())
	}
	return a.try(ctx)
}

// once takes the lock if nobody has it. If others try at the same time, they may keep each other
// from it, and none of them holds it then: so it tries again, within the time of one request.
func (a *attempt) once(ctx context.Context) (*Lease, error) {
	c := a.core.c
	until := c.env.Clock.Now().Add(c.cfg.commandTimeout)
	lease, rest, err := a.try(ctx)
	if lease == nil && err == nil && a.split {
		for lease == nil && err == nil && a.split && c.env.Clock.Now().Add(rest).Before(until) {
			switch a.sleeper.Sleep(rest, nil, nil, ctx.Done(), c.closing) {
			case clock.ByEnd:
				return nil, ctx.Err()
			case clock.ByClosing:
				return nil, ErrClosed
			}
			c.stopOf("woken", a.Number)
			lease, rest, err = a.try(ctx)
		}
	}
	if lease == nil && err == nil {
		err = ErrNotAcquired // see attempt.error
	}
	return lease, err
}

// waited notes, before a look, how long the call has waited in line.
func (a *attempt) waited() {
	if a.place != nil && protocol.Shares(a.core.asks) {
		a.Waited = a.core.c.env.Clock.Now().Sub(a.came)
	}
}

// told is what a caller who runs the function in this client may tell the head of the line: that it
// has failed.
func (a *attempt) told(w *waiter) error {
	if !protocol.Shares(a.core.asks) {
		return nil
	}
	return a.core.c.lines.news(w).err
}

package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/oplock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
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
	start struct { // how it begins
		listens bool      // its client listens already, and it has not looked yet
		joins   bool      // it has not looked yet, as another of its client looks
		came    time.Time // when the call began
	}
	turn struct { // what is given to those who wait
		inRow  int // see rare
		stands wait.StandBy
		more   bool // it listens for permits that are added
	}
	last struct { // what its last look has found
		rank    int64         // in Redis's order of waiters; 0: not known
		refused int64         // the latest round that it was refused in itself, or NoRound
		room    int64         // what it has left of a semaphore,
		until   clock.Instant // of which no permit that others hold expires before
		split   bool          // it has seen no holder, but others that try too
	}
}

// waiting is a call that may wait in a line of its client.
type waiting struct {
	wait.Call[sight]
	c        *Client
	owned    *owned    // by the owner in the caller's context; nil: there is none
	observed *observed // nil: by nobody
}

// Contends implements wait.Asker.
func (w *waiting) Contends() { w.observed.contends() }

// Shows implements wait.Asker.
func (w *waiting) OnSnapshot(s *sight) {
	w.owned.saw(s)
	w.observed.saw(s)
}

// lock is Lock and TryLock of every type.
func lock[O callOption](ctx context.Context, l *core, wait bool, opts []O) (lease *Lease, err error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	a := &attempt{core: l}
	a.c, a.last.refused = c, protocol.NoRound
	a.Lines, a.Asks, a.Need, a.Longest = c.lines, a, int64(protocol.Takes(l.proto)), MaxLease
	a.Crowded, _ = l.proto.(protocol.Crowded)
	if err := l.begin(ctx, options(l, &a.opts, opts)); err != nil {
		return nil, err
	}
	defer c.end()
	a.Lease, a.Priority, a.Value, a.Round = a.opts.lease, l.opts.priority, a.opts.value, protocol.NoRound

	a.start.came = c.env.Clock.Now()
	ctx, a.observed = l.observe(ctx, protocol.Takes(l.proto))
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

	if protocol.Is[protocol.Reentrant](l.proto) || l.opts.nonReentrant {
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

func (a *attempt) begin(ctx, caller context.Context) (*Lease, error) {
	lease, err := a.run(ctx)
	if err == nil {
		return lease, nil
	}
	answered := a.giveUp()
	a.Snapshot.settle(a.c.env.Clock.Now(), answered)
	if !a.opts.again && (errors.Is(err, ErrNotAcquired) || wire.Ended(err)) {
		a.core.nameHolder(&a.Snapshot)
	}
	return nil, a.error(a.interrupted(caller, err))
}

// take waits until no other operation is under way at a hold. If the wait is over before, the attempt
// has seen what that operation has seen, or that it has had no answer.
func (a *attempt) take(ctx context.Context, ops *oplock.Lock) (err error) {
	began := a.core.c.env.Clock.Now()
	switch err = ops.Take(ctx, a.core.c.closing, !a.Wait); err {
	case oplock.ErrEntering:
		err = because(ErrNotAcquired, err)
	case oplock.ErrClosing:
		err = ErrClosed
	}
	if err != nil && a.owned != nil {
		a.Snapshot = a.owned.sees()
	} else if err != nil {
		a.Snapshot.asked = began
		a.Snapshot.settle(a.core.c.env.Clock.Now(), false)
	}
	return err
}

// run makes the hold's first entry.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	c, l := a.core.c, a.core
	a.Sleeper.Begin(&c.env)
	defer a.Sleeper.Stop()
	if !a.Wait {
		return a.once(ctx)
	}
	var rest time.Duration
	// Waiters in line go first. Without any, look.
	waiting, news, yields := c.lines.Latest(a.Line())
	a.Yields = yields > 0 && c.now().Before(yields) // this client has had it just now
	// An acquire whose client listens already need not look again when it begins to listen:
	// it does so before it looks.
	a.start.listens = a.outer == nil && protocol.Listening(l.proto, a.ID)
	a.start.joins = waiting == 0 && !a.start.listens && !a.Yields && protocol.Is[protocol.Sharing](l.proto) && !c.lines.BeginFirstLook(a.Line())
	if waiting == 0 && !a.start.listens && !a.Yields && !a.start.joins {
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
			a.Failing = began
		}
	}
	c.presence.Use()
	if !a.start.listens && !a.start.joins { // else it has not looked yet
		a.observed.contends()
	}
	err := a.Await(ctx, rest, news)
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
				a.turn.inRow = a.Lines.InRow(a.Line(), a.ID) // a release may have granted it
				if e.Found && a.turn.inRow == 0 {
					a.turn.inRow = mostInRow // the message is still to come: its own release is for all
				}
			}
			a.last.room, a.last.until = e.Free, a.c.now().Add(e.Rest)
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

func (a *attempt) enter(ctx context.Context) (sent clock.Instant, r protocol.Result[protocol.Entered]) {
	c, l := a.c, a.core
	a.Tries++
	a.looks()
	a.waited()
	a.Tells = a.Need > 0 && c.lines.CrowdAt(a.Line())
	if r.Err = l.proto.Ready(ctx); r.Err != nil {
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
	ask := l.proto.Enter(&a.Acquire)
	if protocol.KeepsPlace(l.proto) && a.Wait && (protocol.EachWaits(l.proto) || a.Leads) {
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
		a.last.split = e.Split
		a.Oversized = a.Oversized || e.Beyond
		if e.HasRound {
			a.last.refused = e.Round
			a.WaitsSince(e.Round)
		}
		if e.Rank != 0 {
			a.last.rank = e.Rank
		}
		if a.StandBy {
			a.Placed, a.turn.stands = e.Stands || a.unsure, wait.StandBy{ID: a.ID, Look: a.Tries, Sent: sent}
			if r.Unsure {
				// A release may have granted it the lock after another copy, and the hold
				// be over: the message would name this look. None names look 0, so that
				// it looks what has become of it.
				a.turn.stands.Look = 0
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
		a.Snapshot = sight{err: errShortLease}
		return nil, errShortLease
	}
	if c.isClosing() {
		return nil, ErrClosed
	}
	h := &hold{core: l, owned: a.owned, number: a.Number, token: r.Outcome.Token, unsure: a.unsure}
	if n := r.Outcome.Reserved; n > 0 {
		h.rare = &rare{batch: &batch{tokens: n, last: h.token + n, until: c.now().Add(l.opts.handOverBounds().within)}}
	}
	if a.turn.inRow > 0 {
		h.rareLocked().inRow = a.turn.inRow
	}
	if a.observed != nil {
		h.rareLocked().observed = a.observed
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
	return a.undo(l.proto.Abandon(a.ID, a.unsure || a.Granted), l.c.now().Add(a.opts.lease+protocol.TombstoneTTL))
}

// undo sends a task that ends a hold, and has it repeated until then if there is no answer.
// It waits for the answer, and returns, as giveUp does.
func (a *attempt) undo(t protocol.Task, until clock.Instant) (answered bool) {
	answered = a.core.c.undoThen(a.core.id(), t, until, nil)
	a.core.c.env.StopOf("undone", a.Number) // the answers to many come in the same instant
	return answered
}

// WaitsSince implements wait.Taker: it notes the round that the attempt has waited since.
func (a *attempt) WaitsSince(round int64) {
	if a.Round == protocol.NoRound {
		a.Round = round
	}
}

// interrupted returns the error of an acquire that has stopped: its context or its wait has ended, or it
// was to look only once. The error says what it has seen last.
func (a *attempt) interrupted(caller context.Context, err error) error {
	if a.Yielded && !a.Snapshot.told() {
		a.Snapshot.said.what = "waiters of other clients go first"
	}
	a.Snapshot.toldTo(a.core.c.id, int64(protocol.Takes(a.core.proto)), a.core.toEnterAgain)
	limit, now := a.opts.limit(), a.core.c.env.Clock.Now()
	waited := limit
	if came := a.start.came; !came.IsZero() {
		waited = min(limit, now.Sub(came))
	}
	return interrupted(caller, err, ErrNotAcquired, limit, waited, &a.Snapshot, now)
}

func (a *attempt) error(err error) *Error {
	e := &Error{Lock: a.core.name(), Err: err}
	if s := &a.Snapshot; errors.Is(err, ErrNotAcquired) && s.err == nil && s.held {
		e.HolderID, e.Left = s.holder, s.left(a.core.c.env.Clock.Now())
		if s.who != nil {
			e.Process = *s.who
		}
	}
	return e
}

// tryFirst is the first try of an attempt that found no waiters.
func (a *attempt) tryFirst(ctx context.Context) (lease *Lease, rest time.Duration, err error) {
	if protocol.Is[protocol.Sharing](a.core.proto) {
		defer a.Lines.EndFirstLook(a.Line())
	}
	return a.try(ctx)
}

// once takes the lock if nobody has it. Of several owners that ask a quorum at the same time, each may
// get a part of the votes, and none the lock. Then it tries again, within the time of one request.
func (a *attempt) once(ctx context.Context) (*Lease, error) {
	c := a.core.c
	until := c.env.Clock.Now().Add(c.cfg.commandTimeout)
	lease, rest, err := a.try(ctx)
	if lease == nil && err == nil && a.last.split {
		for lease == nil && err == nil && a.last.split && c.env.Clock.Now().Add(rest).Before(until) {
			switch a.Sleeper.Sleep(rest, nil, nil, ctx.Done(), c.closing) {
			case clock.ByEnd:
				return nil, ctx.Err()
			case clock.ByClosing:
				return nil, ErrClosed
			}
			c.env.StopOf("woken", a.Number)
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
	if a.Place != nil && protocol.Is[protocol.Sharing](a.core.proto) {
		a.Waited = a.core.c.env.Clock.Now().Sub(a.start.came)
	}
}

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
	r := h.core.proto.(protocol.Reentrant).Reenter(h.id(), a.opts.lease, n+1, a.opts.hasLease).Do(ctx, l.c.cfg.commandTimeout)
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
		a.Snapshot.settle(l.c.env.Clock.Now(), false)
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
		a.HoldID = h.core.proto.NewID()
		return nil
	}
	return err
}

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
	core       *core
	chain      *chain // chain of the caller's context
	opts       acquireConfig
	lease      *Lease // lease acquired while the attempt waited in line
	earlier    int64  // token of the latest hold before the attempt: see core.checkToken
	outer      *hold  // the caller's hold of the other side, under which the attempt may enter
	isReentry  bool
	lateCopies bool      // a copy of the acquire may still arrive
	calledAt   time.Time // when the call began

	// For some types only.
	inRow            int          // consecutive releases that granted the lock, including the grant to this attempt
	asStandBy        wait.StandBy // how the attempt stands by since its last request
	subscribedToMore bool         // the line is subscribed to permits that are added
	lastReply        struct {     // reply to the last request
		refused    int64         // latest round in which Redis refused the attempt, or NoRound
		permits    int64         // permits that are still free
		until      clock.Instant // no held permit expires before then
		votesSplit bool          // the lock has no holder, but others have a part of the votes
	}
}

// waiting is a call that may wait in a line of its client.
type waiting struct {
	wait.Call
	snapshot snapshot // Call.Status points into it
	c        *Client
	crowded  protocol.Crowded // semaphore whose clients do not queue, or nil
	owned    *owned           // record of the owner in the caller's context; nil without WithOwner
	observed *observed        // nil without an Observer
}

// beginPoll is called before a poll. It returns a function for the result, or nil.
func (w *waiting) beginPoll(key wait.Key) (done func(got bool)) {
	if w.crowded == nil || w.Place == nil {
		return nil
	}
	return w.c.crowds.poll(key)
}

// share passes the status of the call on to the waiters behind it, and calls noteStatus.
func (w *waiting) share() {
	w.Share()
	w.noteStatus()
}

// noteStatus passes the status of the call on to other calls of its owner, and to the Observer.
func (w *waiting) noteStatus() {
	w.owned.setStatus(w.Status)
	w.observed.noteHolder(w.Status)
}

// lock is Lock and TryLock of every type.
func lock[O callOption](ctx context.Context, l *core, wait bool, opts []O) (lease *Lease, err error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	a := &attempt{core: l, earlier: l.token.Load()}
	a.c, a.lastReply.refused = c, protocol.NoRound
	a.Status, a.Lines, a.Poller, a.Need, a.Longest = &a.snapshot.Status, c.lines, a, int64(protocol.Takes(l.proto)), MaxLease
	a.crowded, _ = l.proto.(protocol.Crowded)
	if err := l.beginCall(ctx, options(l, &a.opts, opts)); err != nil {
		return nil, err
	}
	defer c.endCall()
	a.Lease, a.Priority, a.Value, a.Round = a.opts.lease, l.opts.priority, a.opts.value, protocol.NoRound

	a.calledAt = c.env.Clock.Now()
	ctx, a.observed = l.observe(ctx, protocol.Takes(l.proto))
	lease, err = l.acquire(ctx, a, wait)
	lease.granted(a.observed, AcquireEvent{Attempts: a.Tries, Reentry: a.isReentry, Err: err})
	return lease, err
}

func (l *core) acquire(caller context.Context, a *attempt, wait bool) (*Lease, error) {
	if caller.Err() != nil {
		return nil, l.error(endOf(caller))
	}
	// One deadline bounds the wait for other operations of the owner, the commands, and the wait in line.
	ctx, cancel := a.opts.within(caller)
	defer cancel()
	a.Wait = wait && !a.opts.mustNotWait()

	if protocol.Is[protocol.Reentrant](l.proto) || l.opts.nonReentrant {
		a.chain = chainFrom(ctx)
	}
	for {
		h := a.chain.find(l, l.side)
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
		// All leases of h were unlocked meanwhile, so find does not return it again.
	}
	if own := a.chain.own(); own != nil {
		a.owned = own.at(l)
		defer a.owned.doneUsing()
		ops := &a.owned.ops
		if err := a.take(ctx, ops); err != nil {
			return nil, a.error(a.interrupted(caller, err))
		}
		defer ops.Give()
		if h := a.owned.held(l.side); h != nil {
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
	return a.runOrGiveUp(ctx, caller)
}

func (a *attempt) runOrGiveUp(ctx, caller context.Context) (*Lease, error) {
	lease, err := a.run(ctx)
	if err == nil {
		return lease, nil
	}
	ended := endedSince(ctx, a.core.c.wire.HeldUp())
	a.core.settle(&a.snapshot, a.giveUp())
	if !a.opts.isRetried && (errors.Is(err, ErrNotAcquired) || wire.Ended(err)) {
		// giveUp may have used the grace for a silent server already: the holder's name is requested only for the rest.
		a.core.nameHolder(&a.snapshot, protocol.GiveUpGrace-time.Since(ended))
	}
	return nil, a.error(a.interrupted(caller, err))
}

// take waits until no other operation is under way at a hold. If the wait ends before, the attempt gets the snapshot of
// that operation, or a snapshot of an unanswered request.
func (a *attempt) take(ctx context.Context, ops *oplock.Lock) (err error) {
	began := a.core.c.env.Clock.Now()
	switch err = ops.Take(ctx, a.core.c.closing, !a.Wait); err {
	case oplock.ErrEntering:
		err = because(ErrNotAcquired, err)
	case oplock.ErrClosing:
		err = ErrClosed
	}
	if err != nil && a.owned != nil {
		*a.Status = a.owned.lastStatus()
	} else if err != nil {
		a.snapshot.Pending = began
		a.core.settle(&a.snapshot, false)
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
	// Waiters in line go first. If there are none, the attempt sends a request immediately.
	waiting, serial, yieldUntil := c.lines.Latest(a.Line())
	a.Yields = yieldUntil > 0 && c.now().Before(yieldUntil) // this client has had the lock just now
	// If the client is subscribed already, the attempt joins its line before the first request. Then each
	// release after the request sends a message, and the request need not be repeated.
	a.Early = a.outer == nil && protocol.Listening(l.proto, a.ID)
	if waiting == 0 && !a.Early && !a.Yields {
		var lease *Lease
		var err error
		a.Leads = true // no other call of its client waits
		began := c.env.Clock.Now()
		lease, rest, err = a.try(ctx)
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
	if !a.Early { // otherwise its first request was not sent yet
		a.observed.reportContention()
	}
	err := a.Await(ctx, rest, serial)
	a.share()
	return a.lease, err
}

// try sends one acquire. It returns a lease, an error, or for how long another owner holds the lock (negative: forever).
func (a *attempt) try(ctx context.Context) (lease *Lease, rest time.Duration, err error) {
	for {
		sent, r := a.enter(ctx)
		e := &r.Outcome
		switch {
		case r.Err != nil:
			return nil, 0, r.Err
		case e.Verdict == protocol.Granted:
			a.noteGranted(e)
			a.lastReply.permits, a.lastReply.until = e.Free, a.c.now().Add(e.Rest)
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
	a.noteRequest()
	a.ReportsLeft = a.crowded != nil && c.crowds.reportsLeft(a.Line())
	if r.Err = l.proto.Ready(ctx); r.Err == nil && a.opts.before != nil {
		r.Err = a.opts.before(ctx)
	}
	if r.Err != nil {
		a.noteAnswer(&r, false)
		return sent, r
	}
	sent = c.now()
	a.offerStandBy()
	ask := l.proto.Enter(&a.Acquire)
	if protocol.KeepsPlace(l.proto) && a.Wait && (protocol.EachWaits(l.proto) || a.Leads) {
		a.Placed = true
	}
	r = ask.Do(c.preferWorker(ctx, a.Line(), 1), c.cfg.commandTimeout)
	a.lateCopies = a.lateCopies || r.Unsure
	a.noteAnswer(&r, true)
	// A script that failed halfway (the ACL forbids one of its commands) may have left a hold without a TTL.
	a.Granted = a.Granted || r.Err != nil && wire.MayHaveRun(r.Err)
	return sent, r
}

// refusedBy handles a reply that does not grant the hold. It returns for how long the lock is held, or an error.
func (a *attempt) refusedBy(r *protocol.Result[protocol.Entered], sent clock.Instant) (rest time.Duration, err error) {
	e := &r.Outcome
	switch e.Verdict {
	case protocol.Busy:
		if e.Holder == a.ID { // the reply belongs to another request, as this one was granted the lock
			a.Granted = true
			return 0, errOwnHold
		}
		a.lastReply.votesSplit = e.Split
		a.Oversized = a.Oversized || e.Beyond
		if e.HasRound {
			a.lastReply.refused = e.Round
			a.WaitsSince(e.Round)
		}
		a.noteStandBy(r, sent)
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
	}
	return 0, errWithdrawn
}

var errWithdrawn = wire.ErrReply("this acquire was given up before")
var errOwnHold = wire.ErrReply("the hold is refused because of itself")
var errOtherType = errors.New("another type of lock holds the name, and the two do not exclude each other")

// accept makes a lease of a grant. After an error the hold may exist in Redis: giveUp must end it.
func (a *attempt) accept(sent, since clock.Instant, r *protocol.Result[protocol.Entered]) (*Lease, error) {
	c, l := a.core.c, a.core
	a.Granted = true
	if r.TooFew != nil {
		return nil, because(ErrNotAcquired, r.TooFew)
	}
	c.env.Stop("granted")
	if !c.now().Before(sent.Add(l.validity(a.opts.lease))) {
		a.snapshot = failed(errShortLease)
		return nil, errShortLease
	}
	if c.isClosing() {
		return nil, ErrClosed
	}
	if err := l.checkToken(a.earlier, r.Outcome.Token); err != nil {
		return nil, err
	}
	h := &hold{core: l, owned: a.owned, observed: a.observed, number: a.Number, token: r.Outcome.Token, lateCopies: a.lateCopies}
	if n := r.Outcome.Reserved; n > 0 {
		h.rare = &rare{batch: &batch{tokens: n, last: h.token + n, until: c.now().Add(l.opts.handOverBounds().within)}}
	}
	if a.inRow > 0 {
		h.rareLocked().inRow = a.inRow
	}
	a.Granted = false
	return h.start(sent, since, a.opts), nil
}

// giveUp ends the hold or the place in a queue that the attempt may have in Redis, or that a late copy of its acquire may
// make. It waits for protocol.GiveUpGrace at most; then the clean-ups repeat the request. It reports whether Redis has
// answered.
func (a *attempt) giveUp() (answered bool) {
	if !a.lateCopies && !a.Granted && !a.Placed {
		return false
	}
	l := a.core
	return a.undo(l.proto.Abandon(a.ID, a.lateCopies || a.Granted), l.c.now().Add(a.opts.lease+protocol.TombstoneTTL))
}

// undo sends a task that ends a hold. Without an answer the task is repeated, at most until a time. undo waits and returns
// like giveUp.
func (a *attempt) undo(t protocol.Task, until clock.Instant) (answered bool) {
	answered = a.core.c.undoThen(a.core.id(), t, until, nil)
	a.core.c.env.StopOf("undone", a.Number) // the answers to many tasks come in the same instant
	return answered
}

// WaitsSince implements wait.Taker.
func (a *attempt) WaitsSince(round int64) {
	if a.Round == protocol.NoRound {
		a.Round = round
	}
}

// interrupted returns the error of an acquire that err has stopped: its context or its wait has ended, or it was a single
// request. The error contains the explanation of the snapshot.
func (a *attempt) interrupted(caller context.Context, err error) error {
	if a.Yielded && !a.snapshot.explains() {
		a.snapshot.Note.Text = "waiters of other clients go first"
	}
	a.snapshot.forCaller(a.core.c.id, int64(protocol.Takes(a.core.proto)), a.core.toEnterAgain)
	limit, now := a.opts.limit(), a.core.c.env.Clock.Now()
	waited := limit
	if came := a.calledAt; !came.IsZero() {
		waited = min(limit, now.Sub(came))
	}
	return interrupted(caller, err, ErrNotAcquired, limit, waited, &a.snapshot, now)
}

func (a *attempt) error(err error) *Error {
	e := &Error{Lock: a.core.name(), Err: err}
	if s := &a.snapshot; errors.Is(err, ErrNotAcquired) && s.Err == nil && s.Held {
		e.HolderID, e.Left = s.Holder, s.leaseLeft(a.core.c.env.Clock.Now())
		if s.process != nil {
			e.Process = *s.process
		}
	}
	return e
}

// once takes the lock if it is free. If several owners send requests to a quorum at the same time, each may get a part of
// the votes, and none the lock. Then once tries again, within the time of one request.
func (a *attempt) once(ctx context.Context) (*Lease, error) {
	c := a.core.c
	until := c.env.Clock.Now().Add(c.cfg.commandTimeout)
	lease, rest, err := a.try(ctx)
	if lease == nil && err == nil && a.lastReply.votesSplit {
		for lease == nil && err == nil && a.lastReply.votesSplit && c.env.Clock.Now().Add(rest).Before(until) {
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

// enterAgain adds a lease to a hold at which no other operation is under way. It returns nil and nil if all leases of
// the hold are unlocked.
func (l *core) enterAgain(ctx, caller context.Context, a *attempt, h *hold) (*Lease, error) {
	n, cause := h.openLeases()
	a.isReentry = n > 0
	switch {
	case n == 0:
		return nil, nil
	case cause != nil:
		// Never a new hold here: the outer section would continue although it did not hold the lock for a while.
		return nil, h.error(cause)
	case l.opts.nonReentrant:
		return nil, h.error(ErrReentrant)
	}
	a.Tries++
	a.noteRequest()
	sent := h.noteRequest(a.opts.lease)
	// The protocol of the lock that made the hold: another type of the same name may lack some of its keys.
	r := h.core.proto.(protocol.Reentrant).Reenter(h.id(), a.opts.lease, n+1, a.opts.hasLease).Do(ctx, l.c.cfg.commandTimeout)
	lease, err := h.reentered(&r, sent, a.opts)
	switch {
	case lease != nil:
		return lease, nil
	case errors.Is(err, ErrUnlocked):
		// An Unlock that could not wait any longer for this operation has unlocked the last lease of the hold.
		a.isReentry = false
		return nil, nil
	}
	if failed := confirmed(&r, ErrNotAcquired); failed != nil {
		// Redis may have counted this entry, which this process does not count: the next operation corrects the count.
		a.noteAnswer(&protocol.Result[protocol.Entered]{Err: failed}, a.opts.hasLease)
		l.settle(&a.snapshot, false)
		refused := a.error(a.interrupted(caller, failed))
		refused.HoldID = h.id()
		return nil, refused
	}
	return nil, h.error(err)
}

// checkOtherSide checks whether the caller holds the other side. A writer may read: its new hold has the same id. A reader
// that wants to write would wait for itself.
func (a *attempt) checkOtherSide() error {
	l := a.core
	h := a.chain.held(l, l.side.Other())
	if h == nil {
		return nil
	}
	n, cause := h.openLeases()
	switch {
	case n == 0:
		return nil // all its leases are unlocked
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

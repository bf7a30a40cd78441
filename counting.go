package rlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/wire"
)

// checkCount returns why a method cannot be called with a number.
func checkCount(method string, n int) error {
	if n < 1 || n > MaxPermits {
		return invalid("%s(%d): must be between 1 and %d", method, n, MaxPermits)
	}
	return nil
}

// checkAdded is checkCount for AddPermits.
func checkAdded(n int) error {
	if n == 0 || n < -MaxPermits || n > MaxPermits {
		return invalid("AddPermits(%d): must be between 1 and %d, or negative", n, MaxPermits)
	}
	return nil
}

// changeOnce runs a request that makes a change once, and returns its outcome; argErr is why an argument is invalid.
// Without an outcome, the task undo is sent until Redis confirms it. If undo is nil, only late copies are stopped.
func changeOnce[T any](ctx context.Context, l *core, argErr error, request func(protocol.Op) protocol.Request[T], undo func(protocol.Op) protocol.Task) (T, error) {
	var none T
	if err := l.beginCall(ctx, argErr); err != nil {
		return none, err
	}
	c := l.c
	defer c.endCall()
	began := c.env.Clock.Now()
	if err := c.wire.Ready(ctx); err != nil {
		return none, l.error(l.cutShort(ctx, err, began))
	}
	p := c.pages.Take(c.id)
	op := p.Next()
	r := request(op).Do(c.events.withSubject(ctx, l), c.onceTimeout())
	if r.Err == nil {
		c.pages.Give(p)
		c.lines.Wake(l.id())
		return r.Outcome, nil
	}
	c.forget(l.id(), p, r.Unsure || wire.MayHaveRun(r.Err), func() protocol.Task {
		if undo != nil {
			return undo(op)
		}
		return c.site.Seal(&l.names, op)
	})
	return none, l.error(refusedCount(l.cutShort(ctx, r.Err, began)))
}

// onceTimeout bounds the time in which copies of one operation are sent: the record of the first copy must still be in
// Redis when the last one arrives.
func (c *Client) onceTimeout() time.Duration {
	return min(c.cfg.commandTimeout, protocol.RecordTTL-protocol.TombstoneTTL)
}

// refusedCount returns the error of a request that has failed; an overflow is an invalid argument.
func refusedCount(err error) error {
	if errors.Is(err, protocol.ErrOverflow) {
		return because(ErrInvalidArgument, err)
	}
	return err
}

// changeUntilConfirmed runs a request that makes a change once, even if ctx has ended. Without an answer the request is
// repeated in the background until Redis confirms it. If it is refused, or changes nothing, late copies are stopped.
func changeUntilConfirmed(ctx context.Context, l *core, request func(protocol.Op) protocol.Task) error {
	c := l.c
	c.calls.Add(1) // also while the client shuts down, like Unlock
	defer c.endCall()
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	limit := time.Now().Add(c.cfg.unlockTimeout)
	if !c.wire.PublishKnown() {
		asking, cancel := context.WithTimeout(ctx, c.cfg.unlockTimeout/2)
		_ = c.wire.Ready(asking) // without a reply the change is published both ways
		cancel()
	}
	p := c.pages.Take(c.id)
	op := p.Next()
	t := request(op)
	r := t.Do(c.events.withSubject(ctx, l), untilOrSoon(limit))
	switch {
	case errors.Is(r.Err, protocol.ErrOverflow), errors.Is(r.Err, ErrForeignKey):
		c.forget(l.id(), p, r.Unsure, func() protocol.Task { return c.site.Seal(&l.names, op) })
		return l.error(refusedCount(r.Err))
	case r.Err != nil:
		// No copy may be sent after the record of the first has expired.
		c.cleanUp(l.id(), t, c.now(), c.now().Add(protocol.RecordTTL-protocol.TombstoneTTL), func() { c.pages.Give(p) })
		return l.error(because(ErrUnconfirmed, unanswered(r.Err)))
	case r.Outcome != protocol.Done && r.Unsure:
		c.cleanUp(l.id(), c.site.Seal(&l.names, op), c.now(), c.now().Add(protocol.TombstoneTTL), func() { c.pages.Give(p) })
	default:
		c.pages.Give(p)
	}
	c.lines.Wake(l.id())
	return nil
}

// remainder is a number; a call waits until it is 0.
type remainder interface {
	Remaining() protocol.Request[protocol.Remaining]
	Listen(notify func()) (end func())
}

// untilZero waits until counter is 0. One request serves all calls of a client with the same counter. text says what is
// left: see wait.Note.
func untilZero(ctx context.Context, l *core, lock protocol.LockID, opts []WaitOption, counter remainder, text string) error {
	w := &zero{counter: counter, text: text}
	w.forAll = true
	return w.find(ctx, l, lock, w, true, opts)
}

// find runs the inquiry of a call. waits reports whether it may wait, within the options.
func (q *inquiry) find(caller context.Context, l *core, lock protocol.LockID, s seeker, waits bool, opts []WaitOption) error {
	o, err := waitOptions(opts)
	if err := l.beginCall(caller, err); err != nil {
		return err
	}
	c := l.c
	defer c.endCall()
	q.lock, q.seeker = lock, s
	q.Status, q.c, q.Lines, q.Poller, q.Who, q.Longest = &q.snapshot.Status, c, c.lines, q, c.lastHold.Add(1), longestInquiry
	q.mayWait, q.limit = waits && !o.mustNotWait(), o.wait
	caller, q.observed = l.observe(caller, int(q.Need))
	ctx, cancel := o.within(caller)
	defer cancel()
	if err = q.ask(ctx); err != nil {
		l.settle(&q.snapshot, q.seeker.giveUp())
		q.snapshot.wants(q.Need)
		// caller, not ctx: the end of a wait has ended only ctx.
		err = l.error(interrupted(caller, err, q.sentinel, q.limit, q.limit, &q.snapshot, c.env.Clock.Now()))
	}
	q.observed.end(AcquireEvent{Attempts: q.tries, Err: err})
	return err
}

// zero is the seeker of untilZero.
type zero struct {
	inquiry
	counter remainder
	text    string
}

func (w *zero) poll(ctx context.Context) found {
	if err := w.c.wire.Ready(ctx); err != nil {
		return found{err: err}
	}
	r := w.counter.Remaining().Do(ctx, w.c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return found{err: r.Err}
	case r.Outcome.N <= 0:
		return found{done: true}
	}
	return found{rest: r.Outcome.Rest, status: wait.Status{Note: wait.Note{Text: w.text, N: r.Outcome.N}}}
}

func (w *zero) giveUp() bool                      { return false }
func (w *zero) listen(notify func()) (end func()) { return w.counter.Listen(notify) }

// inquiry is one call that needs permits of a Semaphore or the end of a count, and may wait for that. It makes no hold.
type inquiry struct {
	waiting
	lock    protocol.LockID // name of the line
	seeker  seeker
	mayWait bool          // the call may wait
	limit   time.Duration // limit of the wait, for the error; 0 without a limit
	// forAll: the reply to the head answers all calls that waited before its request.
	forAll bool
	// sentinel is an error that the end of the context matches too; nil without one.
	sentinel error

	tries         int
	publishesLeft bool // the call publishes how many permits it leaves: see crowds.reportsLeft
}

// seeker sends the requests of an inquiry. One goroutine calls it.
type seeker interface {
	// poll sends one request, and takes what the call waits for if it is free. It must be safe to call again after an
	// error.
	poll(ctx context.Context) found
	// giveUp undoes what a request may have done or may yet do. It is called when the call has failed, or sends no other
	// request for now. It reports whether there was something to undo, and Redis has confirmed the undo soon.
	giveUp() (answered bool)
	// listen calls notify when a poll is due. It returns nil if it cannot subscribe.
	listen(notify func()) (end func())
}

// found is the outcome of a request.
type found struct {
	done      bool          // the call has what it waited for
	remaining int64         // done: permits that are left for others
	rest      time.Duration // not done: the next poll comes within rest; negative means as late as possible
	status    wait.Status   // not done: what the reply says
	// oversized: not done, and the call needs more permits than exist, free or not.
	oversized bool
	err       error // why there is no outcome
}

// ask polls, and waits in line until a poll succeeds.
func (q *inquiry) ask(ctx context.Context) error {
	c := q.c
	if err := ctx.Err(); err != nil {
		return err
	}
	var others int
	var serial int64
	if q.mayWait {
		others, serial, _ = c.lines.Latest(q.Line())
	}
	var rest time.Duration
	if others == 0 { // otherwise waiters in line go first
		began := c.env.Clock.Now()
		exit, within, err := q.Poll(ctx)
		switch {
		case exit != nil:
			return nil
		case err == nil && !q.mayWait:
			return ErrNotAcquired // see interrupted
		case err != nil && (!q.mayWait || !worthRepeating(err)):
			return err
		case err != nil:
			q.Failing = began
		}
		rest = within
	}
	q.observed.reportContention()
	q.Sleeper.Begin(&c.env)
	defer q.Sleeper.Stop()
	err := q.Await(ctx, rest, serial)
	q.share()
	return err
}

// Line returns the line of the client in which the inquiry waits.
func (q *inquiry) Line() wait.Key {
	key := wait.Key{Lock: q.lock}
	if q.Oversized {
		key.ID = strconv.FormatInt(q.Need, 10) // calls with the same need share a line
	}
	return key
}

// leavesNothing is the Exit of an inquiry that is not the head of a line: it wakes no waiter.
var leavesNothing = &wait.Exit{}

// Poll implements wait.Poller.
func (q *inquiry) Poll(ctx context.Context) (exit *wait.Exit, rest time.Duration, err error) {
	q.tries++
	q.publishesLeft = q.crowded != nil && q.c.crowds.reportsLeft(q.Line())
	q.snapshot.Pending = q.c.env.Clock.Now()
	q.share()
	done := q.beginPoll(q.Line())
	f := q.seeker.poll(ctx)
	if done != nil && f.err == nil {
		done(f.done)
	}
	q.Oversized = q.Oversized || f.oversized
	// The status for waiters behind if the next head need not poll. The number of all permits is from an earlier reply.
	status := wait.Status{Semaphore: true, At: q.c.env.Clock.Now(), Supply: q.Status.Supply}
	status.Free = f.remaining
	if f.err != nil || f.done {
		q.snapshot.noteFailure(f.err, false, 0)
	} else {
		*q.Status = f.status
	}
	q.share()
	switch {
	case !f.done:
		return nil, f.rest, f.err
	case q.Place == nil:
		return leavesNothing, 0, nil
	case q.forAll:
		return &wait.Exit{ForAll: true}, 0, nil
	}
	// Permits come back without a lease that ends: see Semaphore.
	return &wait.Exit{Remaining: f.remaining, Until: q.c.now().Add(seam.FarAway), Status: status}, 0, nil
}

// Withdraw implements wait.Poller.
func (q *inquiry) Withdraw() { q.seeker.giveUp() }

// Subscribe implements wait.Poller.
func (q *inquiry) Subscribe(notify func()) (end func()) {
	if q.crowded != nil {
		return q.c.crowds.subscribe(q.Line(), q.crowded, notify)
	}
	return q.seeker.listen(notify)
}

// Pause implements wait.Poller.
func (q *inquiry) Pause(_ *wait.Waiter, n int, rest time.Duration, _ error) time.Duration {
	if most := q.c.cfg.longestPoll; rest <= 0 {
		return most
	} else {
		return min(most, rest+time.Millisecond+seam.Jitter(q.c.seed, q.Who, n, 2*time.Millisecond))
	}
}

// longestInquiry bounds the outage that an inquiry outlasts: the record of an unanswered poll must still be in Redis.
// It is a little less than protocol.RecordTTL.
const longestInquiry = protocol.RecordTTL - 2*protocol.TombstoneTTL

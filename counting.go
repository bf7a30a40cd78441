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

// changeOnce runs a request that changes something once, and returns its outcome; argErr is why an argument is invalid. If
// there is no outcome, undo is sent, and repeated, until Redis confirms it: it undoes the change. Without undo, late
// copies are at least stopped.
func changeOnce[T any](ctx context.Context, l *core, argErr error, request func(protocol.Op) protocol.Request[T], undo func(protocol.Op) protocol.Task) (T, error) {
	var none T
	if err := l.begin(ctx, argErr); err != nil {
		return none, err
	}
	c := l.c
	defer c.end()
	began := c.env.Clock.Now()
	if err := c.wire.Ready(ctx); err != nil {
		return none, l.error(l.cutShort(ctx, err, began))
	}
	p := c.pages.Take(c.id)
	op := p.Next()
	r := request(op).Do(c.events.about(ctx, l), c.onceTimeout())
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

// onceTimeout is for how long copies of one operation may be sent: no copy may come when the
// record of the first is gone.
func (c *Client) onceTimeout() time.Duration {
	return min(c.cfg.commandTimeout, protocol.RecordTTL-protocol.TombstoneTTL)
}

// refusedCount is the error of a request that has failed.
func refusedCount(err error) error {
	if errors.Is(err, protocol.ErrOverflow) {
		return because(ErrInvalidArgument, err)
	}
	return err
}

// surely runs a request that changes something once and must do so even if ctx has ended:
// without an answer it is repeated in the background, until Redis confirms it. If it is
// refused, or there was nothing to change, late copies are stopped.
func surely(ctx context.Context, l *core, request func(protocol.Op) protocol.Task) error {
	c := l.c
	c.calls.Add(1) // also while the client shuts down, as Unlock
	defer c.end()
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	limit := time.Now().Add(c.cfg.unlockTimeout)
	if !c.wire.PublishKnown() {
		asking, cancel := context.WithTimeout(ctx, c.cfg.unlockTimeout/2)
		_ = c.wire.Ready(asking) // otherwise it is published both ways
		cancel()
	}
	p := c.pages.Take(c.id)
	op := p.Next()
	t := request(op)
	r := t.Do(c.events.about(ctx, l), untilOrSoon(limit))
	switch {
	case errors.Is(r.Err, protocol.ErrOverflow), errors.Is(r.Err, ErrForeignKey):
		c.forget(l.id(), p, r.Unsure, func() protocol.Task { return c.site.Seal(&l.names, op) })
		return l.error(refusedCount(r.Err))
	case r.Err != nil:
		// No copy may be sent when the record of the first is gone.
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

// remains is what a call waits for to be 0.
type remains interface {
	Remaining() protocol.Request[protocol.Remaining]
	Listen(notify func()) (end func())
}

// untilZero waits until nothing remains. One request serves all calls of a client that wait for the same. text says what
// is left: see note.
func untilZero(ctx context.Context, l *core, of protocol.LockID, opts []WaitOption, what remains, text string) error {
	w := &zero{what: what, text: text}
	w.forAll = true
	return w.find(ctx, l, of, w, true, opts)
}

// find runs the inquiry of a call. waits: it may wait, within the options.
func (q *inquiry) find(caller context.Context, l *core, of protocol.LockID, s seeker, waits bool, opts []WaitOption) error {
	o, err := waitOptions(opts)
	if err := l.begin(caller, err); err != nil {
		return err
	}
	c := l.c
	defer c.end()
	q.of, q.seeker = of, s
	q.Seen, q.c, q.Lines, q.Asks, q.Who, q.Longest = &q.snapshot.Seen, c, c.lines, q, c.lastHold.Add(1), longestInquiry
	q.wait, q.limit = waits && !o.looksOnce(), o.wait
	caller, q.observed = l.observe(caller, int(q.Need))
	ctx, cancel := o.within(caller)
	defer cancel()
	if err = q.ask(ctx); err != nil {
		l.settle(&q.snapshot, q.seeker.giveUp())
		q.snapshot.wants(q.Need)
		// With caller, as the end of a wait has ended only ctx.
		err = l.error(interrupted(caller, err, q.sentinel, q.limit, q.limit, &q.snapshot, c.env.Clock.Now()))
	}
	q.observed.end(AcquireEvent{Attempts: q.tries, Err: err})
	return err
}

// zero is the seeker of untilZero.
type zero struct {
	inquiry
	what remains
	text string
}

func (w *zero) look(ctx context.Context) found {
	if err := w.c.wire.Ready(ctx); err != nil {
		return found{err: err}
	}
	r := w.what.Remaining().Do(ctx, w.c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return found{err: r.Err}
	case r.Outcome.N <= 0:
		return found{done: true}
	}
	return found{rest: r.Outcome.Rest, seen: wait.Seen{Note: wait.Note{Text: w.text, N: r.Outcome.N}}}
}

func (w *zero) giveUp() bool                      { return false }
func (w *zero) listen(notify func()) (end func()) { return w.what.Listen(notify) }

// inquiry is one call that asks Redis for something that is no hold, and may wait for it:
// permits of a Semaphore, the end of a count.
type inquiry struct {
	waiting
	of     protocol.LockID // the name of its line
	seeker seeker
	wait   bool          // it may wait
	limit  time.Duration // of the wait, for the error; 0: there is none
	// forAll: the reply to the head answers all calls that waited before its request.
	forAll bool
	// sentinel is an error that the end of the context matches too; nil: none.
	sentinel error

	tries         int
	publishesLeft bool // it publishes how many permits it leaves: see crowds.reportsLeft
}

// seeker sends the requests of an inquiry. One goroutine calls it.
type seeker interface {
	// look asks Redis once, and takes what the call waits for if it is free. It must be safe to call again after an
	// error.
	look(ctx context.Context) found
	// giveUp undoes what a request may have done, or may yet do, when the call has failed, or sends no other request for
	// now. It reports whether there was something to undo, and Redis has confirmed that soon.
	giveUp() (answered bool)
	// listen has notify called when it is time to look. It returns nil if it cannot.
	listen(notify func()) (end func())
}

// found is the outcome of a request.
type found struct {
	done bool          // it is there, and taken
	left int64         // done: how much is left for others
	rest time.Duration // not done: look again within it; negative: as late as possible
	seen wait.Seen     // not done: what there is instead
	// beyond: not done, and it needs more than there are, free or not.
	oversized bool
	err       error // there is no outcome
}

// ask waits until there is what the inquiry asks for.
func (q *inquiry) ask(ctx context.Context) error {
	c := q.c
	if err := ctx.Err(); err != nil {
		return err
	}
	var others int
	var news int64
	if q.wait {
		others, news, _ = c.lines.Latest(q.Line())
	}
	var rest time.Duration
	if others == 0 { // else waiters in line go first
		began := c.env.Clock.Now()
		left, again, err := q.Look(ctx)
		switch {
		case left != nil:
			return nil
		case err == nil && !q.wait:
			return ErrNotAcquired // see interrupted
		case err != nil && (!q.wait || !worthRepeating(err)):
			return err
		case err != nil:
			q.Failing = began
		}
		rest = again
	}
	q.observed.contends()
	q.Sleeper.Begin(&c.env)
	defer q.Sleeper.Stop()
	err := q.Await(ctx, rest, news)
	q.share()
	return err
}

// Line is where the inquiry waits in its client.
func (q *inquiry) Line() wait.Key {
	key := wait.Key{Lock: q.of}
	if q.Oversized {
		key.ID = strconv.FormatInt(q.Need, 10) // calls that need as many share a line
	}
	return key
}

// leavesNothing is how an inquiry leaves that has no line.
var leavesNothing = &wait.Left{}

// Look implements wait.Asker.
func (q *inquiry) Look(ctx context.Context) (left *wait.Left, rest time.Duration, err error) {
	q.tries++
	q.publishesLeft = q.crowded != nil && q.c.crowds.reportsLeft(q.Line())
	q.snapshot.Pending = q.c.env.Clock.Now()
	q.share()
	done := q.beginPoll(q.Line())
	f := q.seeker.look(ctx)
	if done != nil && f.err == nil {
		done(f.done)
	}
	q.Oversized = q.Oversized || f.oversized
	// What those behind know if the next head need not poll; how many permits there are is as in the reply before.
	seen := wait.Seen{Semaphore: true, At: q.c.env.Clock.Now(), Supply: q.Seen.Supply}
	seen.Free = f.left
	if f.err != nil || f.done {
		q.snapshot.noteFailure(f.err, false, 0)
	} else {
		*q.Seen = f.seen
	}
	q.share()
	switch {
	case !f.done:
		return nil, f.rest, f.err
	case q.Place == nil:
		return leavesNothing, 0, nil
	case q.forAll:
		return &wait.Left{ForAll: true}, 0, nil
	}
	// Permits come back without a lease that ends: see Semaphore.
	return &wait.Left{More: f.left, Until: q.c.now().Add(seam.FarAway), Seen: seen}, 0, nil
}

// Withdraw implements wait.Asker.
func (q *inquiry) Withdraw() { q.seeker.giveUp() }

// Subscribe implements wait.Asker.
func (q *inquiry) Subscribe(notify func()) (end func()) {
	if q.crowded != nil {
		return q.c.crowds.subscribe(q.Line(), q.crowded, notify)
	}
	return q.seeker.listen(notify)
}

// Pause implements wait.Asker.
func (q *inquiry) Pause(_ *wait.Waiter, n int, rest time.Duration, _ error) time.Duration {
	if most := q.c.cfg.longestPoll; rest <= 0 {
		return most
	} else {
		return min(most, rest+time.Millisecond+seam.Jitter(q.c.seed, q.Who, n, 2*time.Millisecond))
	}
}

// longestInquiry bounds the outage that an inquiry outlasts: the record of an unanswered look must still be in Redis.
// It is a little less than protocol.RecordTTL.
const longestInquiry = protocol.RecordTTL - 2*protocol.TombstoneTTL

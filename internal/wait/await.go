package wait

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Call waits in a line of its client for a hold, or for something else that Redis has. Only the head of a line
// subscribes and polls: after each message, when the lease of the holder ends, and at the longest poll.
//
// A waiter that becomes the head polls immediately, unless it knows who holds the lock. So no wake-up is lost if the
// waiter that was woken leaves.
type Call struct {
	Lines   *Lines
	Asks    Asker
	Who     int64         // for jitter
	Need    int64         // how much it takes of what several waiters can have; 0 is 1
	Longest time.Duration // the longest outage of Redis that it outlasts
	Early   bool          // subscribing needs no command: it subscribes before its first poll
	Sleeper clock.Sleeper // begun and stopped by the owner of the call

	Seen      *Seen     // the latest poll, its own or the head's; set by the owner of the call
	Place     *Waiter   // place of the head, which shares what it has seen; nil behind it
	Oversized bool      // it needs more permits than there are: others need not wait behind it
	Yielded   bool      // it ended while it let waiters of other clients go first
	Failing   time.Time // when the first unanswered poll began; zero if the latest was answered
	failed    int       // polls of the head since then
}

// Asker polls Redis for a Call. One goroutine calls it.
type Asker interface {
	// Line is where the call waits. It changes when a poll finds the call Oversized.
	Line() Key
	// Look polls once, and takes what the call waits for if it is free: left is how the call leaves its line then,
	// otherwise nil. The next poll comes within rest; negative means as late as possible. Look must be safe to call
	// again after an error.
	Look(ctx context.Context) (left *Left, rest time.Duration, err error)
	// Withdraw undoes what a poll may have done, or may yet do, before the call waits behind others. Otherwise these
	// could wait for the grant of a lost reply.
	Withdraw()
	// Subscribe has notify called when the subscription is confirmed, for each message, and when messages may have been
	// missed, until end is called. It returns nil if it cannot subscribe yet.
	Subscribe(notify func()) (end func())
	// Pause returns how long the head sleeps at most after its n-th poll, which has returned rest and err.
	Pause(w *Waiter, n int, rest time.Duration, err error) time.Duration
}

// Taker is an Asker that can be given a hold while it sleeps, and lets others go first.
type Taker interface {
	// WaitsSince records the round in which Redis refused the waiters before it.
	WaitsSince(round int64)
	// Sleeps is called before the call sleeps: see Lines.Sleeps. poked: pokes wake it.
	Sleeps(w *Waiter, poked bool)
	// Given is called with the hold of Lines.Give, or with a *Grant. why is the reason if the wait has ended
	// meanwhile. The error is ErrTooLate if the hold is of no use.
	Given(ctx context.Context, hold any, why error) (*Left, error)
	// Hesitates returns how long the head waits at most between a message and its poll.
	Hesitates(w *Waiter) time.Duration
}

// errOversized is why a waiter leaves its line: see Call.Oversized.
var errOversized = errors.New("there are not so many permits")

// Await waits in line. The head polls whenever the lock may be free: after a message or a local release, when the
// holder's lease is over, after the subscription was confirmed or rebuilt, and at the longest poll. rest is how
// long the lock is known to be held; with 0 the head polls immediately. news is what Lines.Latest returned before
// the caller's own poll; 0 if the caller has not polled.
func (t *Call) Await(ctx context.Context, rest time.Duration, news int64) error {
	since := t.now()
	if !t.Failing.IsZero() {
		since = t.Failing // it has waited for an answer of Redis since then
	}
	for {
		switch err := t.inLine(ctx, since, rest, news); err {
		case ErrTooLate:
			rest, news = 0, 0
		case errOversized:
			t.Lines.cfg.Env.StopOf("aside", t.Who)
			rest, news = -1, 0 // the next poll is when its new line is subscribed
		default:
			return err
		}
	}
}

// taker returns the Asker as a Taker, or nil.
func (t *Call) taker() Taker {
	of, _ := t.Asks.(Taker)
	return of
}

func (t *Call) now() time.Time { return t.Lines.cfg.Env.Clock.Now() }

func (t *Call) inLine(ctx context.Context, since time.Time, rest time.Duration, news int64) (err error) {
	lines := t.Lines
	w, head := lines.join(t.Asks.Line(), max(t.Need, 1), since, news)
	if head {
		t.leads(w)
	}
	var got *Left
	defer func() {
		*t.Seen = lines.seenBy(w, *t.Seen)
		t.Place = nil
		lines.leave(w, got)
	}()
	if !head {
		t.Asks.Withdraw()
		if got, rest, err = t.waitBehind(ctx, w); got != nil || err != nil {
			return err
		}
	}
	got, err = t.waitAsHead(ctx, w, rest)
	return err
}

// leads records that the call is the head of a line.
func (t *Call) leads(w *Waiter) {
	t.Place = w
	if *t.Seen == (Seen{}) {
		*t.Seen = t.Lines.seenBy(w, *t.Seen) // what the previous head has seen is still true
	}
	t.Share()
}

// Share shares what the call has seen with the waiters behind it, if it is the head.
func (t *Call) Share() {
	if t.Place != nil {
		t.Lines.setSeen(t.Place, *t.Seen)
	}
}

// leavesLine reports whether the call has to leave its line, and to wait in another.
func (t *Call) leavesLine(w *Waiter) bool { return t.Oversized && w.line.key.ID == "" }

// sleep sleeps for d, or until a poke. It returns the hold that the call was given meanwhile, or an error if the
// wait is over.
func (t *Call) sleep(ctx context.Context, w *Waiter, d time.Duration, wake <-chan struct{}) (got *Left, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // before anything else
	}
	by := t.taker()
	if by != nil {
		by.Sleeps(w, wake != nil)
	}
	why := t.Sleeper.Sleep(d, wake, nil, ctx.Done(), t.Lines.cfg.Closing)
	g := t.Lines.awake(w)
	switch why {
	case clock.ByEnd:
		err = ctx.Err()
	case clock.ByClosing:
		err = t.Lines.cfg.Closed
	default:
		t.Lines.cfg.Env.StopOf("woken", t.Who)
	}
	if g != nil {
		return by.Given(ctx, g, err)
	}
	if err == nil {
		err = ctx.Err() // so that a thousand waiters that are canceled together do not poll
	}
	return nil, err
}

// waitBehind waits until the call is the head of its line, and returns how long the lock is known to be held then;
// or what the call got before.
func (t *Call) waitBehind(ctx context.Context, w *Waiter) (got *Left, rest time.Duration, err error) {
	lines, by := t.Lines, t.taker()
	for {
		if got, err = t.sleep(ctx, w, seam.FarAway, w.wake); got != nil || err != nil {
			return got, 0, err
		}
		n := lines.takeUpdate(w)
		if n.round != protocol.NoRound && by != nil {
			by.WaitsSince(n.round)
		}
		switch {
		case n.served:
			*t.Seen = Seen{}
			return &Left{}, 0, nil
		case n.err != nil:
			return nil, 0, n.err // the head has failed, as without an answer of Redis
		case n.head:
			t.leads(w)
			if n.previous != nil && n.previous.Alive() {
				rest = n.previous.RestOfLease()
			}
			return nil, rest, nil
		case n.admitted:
			lines.pollBegins(w)
			got, _, err := t.Asks.Look(ctx)
			if got != nil || err != nil && !lines.cfg.Transient(err) {
				return got, 0, err
			}
			if t.leavesLine(w) {
				return nil, 0, errOversized
			}
			t.Asks.Withdraw()
			lines.refused(w)
		}
	}
}

// waitAsHead waits as the head of the line.
func (t *Call) waitAsHead(ctx context.Context, w *Waiter, rest time.Duration) (got *Left, err error) {
	lines, by := t.Lines, t.taker()
	if t.Early {
		lines.subscribe(w, t.Asks.Subscribe)
	}
	for look := 0; ; look++ {
		if rest == 0 || look > 0 {
			if got, err = t.yield(ctx, w); got != nil || err != nil {
				return got, err
			}
			var over bool
			if got, rest, over, err = t.lookAsHead(ctx, w); over {
				return got, err
			}
		}
		lines.subscribe(w, t.Asks.Subscribe)
		pause := t.Asks.Pause(w, look, rest, err)
		if err = lines.failure(w); err != nil { // the poll may have consumed the poke of Lines.Fail
			return nil, err
		}
		if got, err = t.sleep(ctx, w, pause, w.wake); got != nil || err != nil {
			return got, err
		}
		if err = lines.failure(w); err != nil {
			return nil, err
		}
		if by != nil {
			if most := by.Hesitates(w); most > 0 {
				if got, err = t.sleep(ctx, w, seam.Jitter(lines.cfg.Seed, t.Who, look, most), nil); got != nil || err != nil {
					return got, err
				}
			}
		}
	}
}

// lookAsHead polls as the head of a line. It reports whether the wait is over; otherwise rest is how long to sleep.
func (t *Call) lookAsHead(ctx context.Context, w *Waiter) (got *Left, rest time.Duration, over bool, err error) {
	lines := t.Lines
	w.drainWake()
	lines.pollBegins(w)
	began := t.now()
	got, rest, err = t.Asks.Look(ctx)
	switch {
	case got != nil:
		return got, 0, true, nil
	case t.leavesLine(w):
		return nil, 0, true, errOversized
	case err == nil:
		t.Failing, t.failed = time.Time{}, 0
		return nil, rest, false, nil
	case lines.cfg.Transient(err):
		rest, over := t.outlast(w, began, err)
		if over != nil {
			return nil, 0, true, over
		}
		return nil, rest, false, err
	}
	return nil, 0, true, cmp.Or(lines.failure(w), err)
}

// outlast is called by the head of a line after an unanswered poll that began at a time. It returns the pause before the
// next poll. If the outage has lasted too long, it returns an error with its length, and fails the waiters behind the head.
func (t *Call) outlast(w *Waiter, began time.Time, err error) (pause time.Duration, over error) {
	if t.Failing.IsZero() {
		t.Failing = began
	}
	if enough := t.now().Add(-min(t.Lines.cfg.LongestOutage, t.Longest)); !t.Failing.After(enough) {
		err = wire.Tried(err, t.now().Sub(t.Failing))
		t.Lines.Fail(w.line.key, enough, err)
		return 0, err
	}
	pause = min(50*time.Millisecond<<min(t.failed, 5), time.Second)
	t.failed++
	return pause, nil
}

// yield lets waiters of other clients go first, after this client has had the lock for a whole batch.
func (t *Call) yield(ctx context.Context, w *Waiter) (got *Left, err error) {
	for got == nil && err == nil {
		d := t.Lines.yieldsFor(w, t.Lines.cfg.Timeline.Now())
		if d <= 0 {
			break
		}
		if got, err = t.sleep(ctx, w, d, w.wake); err != nil {
			t.Yielded = true
		}
	}
	return got, err
}

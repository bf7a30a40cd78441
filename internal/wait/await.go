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

// Call waits in a line of its client for a hold, or for another change in Redis. Only the head of a line subscribes and
// polls: after each message, when the lease of the holder ends, and at the longest poll.
//
// A waiter that becomes the head polls immediately, unless the previous head left with a hold that still lasts, or left
// too few permits. So no wake-up is lost if the waiter that was woken leaves.
type Call struct {
	Lines   *Lines
	Poller  Poller
	Who     int64         // number of the call, for the jitter
	Need    int64         // permits that the call needs; 0 means 1
	Longest time.Duration // longest outage of Redis that the call outlasts
	Early   bool          // subscribe before the first poll, because subscribing needs no command
	Sleeper clock.Sleeper // begun and stopped by the owner of the call

	Status    *Status   // result of the latest poll, by the call or by the head; set by the owner of the call
	Place     *Waiter   // place of the call while it is the head; nil otherwise
	Oversized bool      // the call needs more permits than exist: others need not wait behind it
	Yielded   bool      // the call ended while it let waiters of other clients go first
	Failing   time.Time // when the first unanswered poll began; zero if the latest poll was answered
	failed    int       // unanswered polls of the head since Failing
}

// Poller polls Redis for a Call. One goroutine calls it.
type Poller interface {
	// Line returns the line in which the call waits. It changes when a poll finds the call Oversized.
	Line() Key
	// Poll sends one request, and takes what the call waits for if it is free; then exit is not nil. The next poll comes
	// within rest; negative means as late as possible. Poll must be safe to call again after an error.
	Poll(ctx context.Context) (exit *Exit, rest time.Duration, err error)
	// Withdraw undoes what the polls so far may have done or may yet do, before the call waits behind others. Otherwise
	// they could wait for a grant whose reply was lost, or for a place that the call keeps in Redis.
	Withdraw()
	// Subscribe calls notify when the subscription is confirmed, for each message, and when messages may have been missed,
	// until end is called. It returns nil if it cannot subscribe yet.
	Subscribe(notify func()) (end func())
	// Pause bounds the sleep of the head after its n-th poll, which has returned rest and err.
	Pause(w *Waiter, n int, rest time.Duration, err error) time.Duration
}

// Taker is a Poller that can be given a hold while it sleeps, and lets others go first.
type Taker interface {
	// WaitsSince records the round in which Redis refused the waiters before this one.
	WaitsSince(round int64)
	// Sleeps is called before the call sleeps: see Lines.Sleeps. poked reports whether pokes wake the call.
	Sleeps(w *Waiter, poked bool)
	// Given is called with the hold of Lines.Give, or with a *Grant. If the wait has ended meanwhile, why is the reason. The
	// error is ErrTooLate if the hold cannot be used any more.
	Given(ctx context.Context, hold any, why error) (*Exit, error)
	// Hesitates bounds the pause of the head between a message and its poll.
	Hesitates(w *Waiter) time.Duration
}

// errOversized makes a waiter leave its line: see Call.Oversized.
var errOversized = errors.New("there are not so many permits")

// Await waits in line. The head polls whenever the lock may be free: after a message or a local release, when the
// holder's lease is over, after the subscription was confirmed or rebuilt, and at the longest poll. The lock is known to
// be held for rest; with 0 the head polls immediately. serial is the result of Lines.Latest before the caller's own poll;
// 0 if the caller has not polled.
func (t *Call) Await(ctx context.Context, rest time.Duration, serial int64) error {
	since := t.now()
	if !t.Failing.IsZero() {
		since = t.Failing // the call has waited for an answer of Redis since then
	}
	for {
		switch err := t.inLine(ctx, since, rest, serial); err {
		case ErrTooLate:
			rest, serial = 0, 0
		case errOversized:
			t.Lines.cfg.Env.StopOf("aside", t.Who)
			rest, serial = -1, 0 // the next poll is when its new line is subscribed
		default:
			return err
		}
	}
}

// taker returns the Poller as a Taker, or nil.
func (t *Call) taker() Taker {
	taker, _ := t.Poller.(Taker)
	return taker
}

func (t *Call) now() time.Time { return t.Lines.cfg.Env.Clock.Now() }

func (t *Call) inLine(ctx context.Context, since time.Time, rest time.Duration, serial int64) (err error) {
	lines := t.Lines
	w, head := lines.join(t.Poller.Line(), max(t.Need, 1), since, serial)
	if head {
		t.becomeHead(w)
	}
	var got *Exit
	defer func() {
		*t.Status = lines.statusFor(w, *t.Status)
		t.Place = nil
		lines.leave(w, got)
	}()
	if !head {
		t.Poller.Withdraw()
		if got, rest, err = t.waitBehind(ctx, w); got != nil || err != nil {
			return err
		}
	}
	got, err = t.waitAsHead(ctx, w, rest)
	return err
}

// becomeHead records that the call is the head of a line.
func (t *Call) becomeHead(w *Waiter) {
	t.Place = w
	if *t.Status == (Status{}) {
		*t.Status = t.Lines.statusFor(w, *t.Status) // the status of the previous head is still valid
	}
	t.Share()
}

// Share shares the status of the call with the waiters behind it, if the call is the head.
func (t *Call) Share() {
	if t.Place != nil {
		t.Lines.setStatus(t.Place, *t.Status)
	}
}

// leavesLine reports whether the call has to leave its line and wait in another.
func (t *Call) leavesLine(w *Waiter) bool { return t.Oversized && w.line.key.ID == "" }

// sleep sleeps for d, or until a poke. It returns the hold that the call was given meanwhile, or an error if the wait is
// over.
func (t *Call) sleep(ctx context.Context, w *Waiter, d time.Duration, wake <-chan struct{}) (got *Exit, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // before anything else
	}
	by := t.taker()
	if by != nil {
		by.Sleeps(w, wake != nil)
	}
	why := t.Sleeper.Sleep(d, wake, nil, ctx.Done(), t.Lines.cfg.Closing)
	g := t.Lines.takeGiven(w)
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

// waitBehind waits until the call is the head of its line, and returns for how long the lock is known to be held then. If
// the call gets a hold before, it returns that as got.
func (t *Call) waitBehind(ctx context.Context, w *Waiter) (got *Exit, rest time.Duration, err error) {
	lines, by := t.Lines, t.taker()
	for {
		if got, err = t.sleep(ctx, w, seam.FarAway, w.wake); got != nil || err != nil {
			return got, 0, err
		}
		n := lines.takeUpdate(w)
		if n.sinceRound != protocol.NoRound && by != nil {
			by.WaitsSince(n.sinceRound)
		}
		switch {
		case n.isServed:
			*t.Status = Status{}
			return &Exit{}, 0, nil
		case n.err != nil:
			return nil, 0, n.err // see Fail
		case n.isHead:
			t.becomeHead(w)
			if n.previous != nil && n.previous.Alive() {
				rest = n.previous.RestOfLease()
			}
			return nil, rest, nil
		case n.admitted:
			lines.notePoll(w)
			got, _, err := t.Poller.Poll(ctx)
			if got != nil || err != nil && !lines.cfg.Transient(err) {
				return got, 0, err
			}
			if t.leavesLine(w) {
				return nil, 0, errOversized
			}
			t.Poller.Withdraw()
			lines.noteRefusal(w)
		}
	}
}

// waitAsHead waits as the head of the line.
func (t *Call) waitAsHead(ctx context.Context, w *Waiter, rest time.Duration) (got *Exit, err error) {
	lines, by := t.Lines, t.taker()
	if t.Early {
		lines.subscribe(w, t.Poller.Subscribe)
	}
	for polls := 0; ; polls++ {
		if rest == 0 || polls > 0 {
			if got, err = t.yield(ctx, w); got != nil || err != nil {
				return got, err
			}
			var ended bool
			if got, rest, ended, err = t.pollAsHead(ctx, w); ended {
				return got, err
			}
		}
		lines.subscribe(w, t.Poller.Subscribe)
		pause := t.Poller.Pause(w, polls, rest, err)
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
				if got, err = t.sleep(ctx, w, seam.Jitter(lines.cfg.Seed, t.Who, polls, most), nil); got != nil || err != nil {
					return got, err
				}
			}
		}
	}
}

// pollAsHead polls as the head of a line. ended reports whether the wait is over; otherwise the head sleeps for rest.
func (t *Call) pollAsHead(ctx context.Context, w *Waiter) (got *Exit, rest time.Duration, ended bool, err error) {
	lines := t.Lines
	w.drainWake()
	lines.notePoll(w)
	began := t.now()
	got, rest, err = t.Poller.Poll(ctx)
	switch {
	case got != nil:
		return got, 0, true, nil
	case t.leavesLine(w):
		return nil, 0, true, errOversized
	case err == nil:
		t.Failing, t.failed = time.Time{}, 0
		return nil, rest, false, nil
	case lines.cfg.Transient(err):
		rest, tooLong := t.outlast(w, began, err)
		if tooLong != nil {
			return nil, 0, true, tooLong
		}
		return nil, rest, false, err
	}
	return nil, 0, true, cmp.Or(lines.failure(w), err)
}

// outlast is called by the head of a line after an unanswered poll, which began at began. It returns the pause before the
// next poll. If the outage has lasted too long, it returns an error with its length, and fails the waiters behind the head.
func (t *Call) outlast(w *Waiter, began time.Time, err error) (pause time.Duration, tooLong error) {
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
func (t *Call) yield(ctx context.Context, w *Waiter) (got *Exit, err error) {
	for got == nil && err == nil {
		d := t.Lines.yieldTime(w, t.Lines.cfg.Timeline.Now())
		if d <= 0 {
			break
		}
		if got, err = t.sleep(ctx, w, d, w.wake); err != nil {
			t.Yielded = true
		}
	}
	return got, err
}

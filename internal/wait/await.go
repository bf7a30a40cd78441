package wait

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Call waits in the line of its client for what it asks Redis for: a hold, or something that is none.
// Only the head of a line listens, and looks after each message, whenever what it waits for
// may be there, and at the longest poll.
//
// Whoever becomes the head of a line looks at once, unless it knows who holds the lock. So a wake-up is not lost
// with a waiter that was woken and leaves.
type Call[S comparable] struct {
	Lines   *Lines[S]
	Asks    Asker[S]
	Who     int64            // for jitter
	Need    int64            // how much room it needs; 0: of no semaphore
	Crowded protocol.Crowded // what many clients may wait for of which few can enter; nil: no such thing
	Longest time.Duration    // of an outage that it outlasts
	Sleeper clock.Sleeper    // which its owner begins and stops

	Seen    S          // what its looks have seen, or the head of its line
	Place   *Waiter[S] // its place in line, if it is the head: others see what it sees
	Aside   bool       // it needs more than there can be: others need not wait behind it
	Yielded bool       // it ended while it let waiters of other clients go first
	Failing time.Time  // when the first look began that was not answered; zero: the last one was
	failed  int        // looks since then, of the head of a line
}

// Asker is what one who waits asks for. One goroutine calls it.
type Asker[S comparable] interface {
	// Line is where it waits. Another one after a look that has found that it stands aside.
	Line() Key
	// Look asks Redis once, and takes what is asked for if that is there: left is how it leaves its line then, else
	// nil. If it is not there, it looks again within rest; negative: as late as possible. It must be safe to
	// call again after an error.
	Look(ctx context.Context) (left *Left[S], rest time.Duration, err error)
	// Withdraw undoes what a look may have done, or may yet do, before it waits behind others: they may wait for
	// what it has taken and does not know of.
	Withdraw()
	// Listen has its line hear when it is time to look, from now on: see Call.Hear.
	Listen(w *Waiter[S])
	// Pause is how long it sleeps at most after a look of that number, as the head. rest is what that has said.
	Pause(w *Waiter[S], look int, rest time.Duration, err error) time.Duration
	// Contends is called when it has to wait for others, Shows with what it sees.
	Contends()
	Shows(s *S)
}

// Taker is an Asker that can be given a hold while it sleeps, and lets others go first.
type Taker[S comparable] interface {
	// WaitsSince notes the round that those before it were refused in.
	WaitsSince(round int64)
	// Begins is called when it is the head, before its first look.
	Begins(w *Waiter[S])
	// Sleeps is called before it sleeps: see Lines.Sleeps. poked: it can be woken.
	Sleeps(w *Waiter[S], poked bool)
	// Given is called with what it was given: by Lines.Give, or a *Grant. why: the wait is over. The error is
	// ErrTooLate if that is of no use.
	Given(ctx context.Context, hold any, why error) (*Left[S], error)
	// Failed is called with the error of its last look.
	Failed(w *Waiter[S], began time.Time, err error) error
	// Hesitates is for how long it waits after a message, at most.
	Hesitates(w *Waiter[S]) time.Duration
	// Hears: it need not look if another has found out why: see Lines.Fail.
	Hears() bool
}

// errAside is why a waiter leaves its line: see Call.Aside.
var errAside = errors.New("there are not so many permits")

// Await waits in line and, as its head, looks whenever what it asks for may be there: after a
// message or a local release, when the holder's lease is over, after the subscription was
// confirmed or rebuilt, and at the longest poll. rest is how long the lock is known to be
// held; 0 means look at once. news is the latest of the line before it has looked.
func (t *Call[S]) Await(ctx context.Context, rest time.Duration, news int64) error {
	since := t.now()
	if !t.Failing.IsZero() {
		since = t.Failing // it has waited for an answer since then
	}
	for {
		switch err := t.inLine(ctx, since, rest, news); err {
		case ErrTooLate:
			rest, news = 0, 0
		case errAside:
			t.Lines.cfg.Env.StopOf("aside", t.Who)
			rest, news = -1, 0 // it looks again when it has subscribed
		default:
			return err
		}
	}
}

// taker is the asker, if it is one; or nil.
func (t *Call[S]) taker() Taker[S] {
	of, _ := t.Asks.(Taker[S])
	return of
}

func (t *Call[S]) now() time.Time { return t.Lines.cfg.Env.Clock.Now() }

func (t *Call[S]) inLine(ctx context.Context, since time.Time, rest time.Duration, news int64) (err error) {
	lines := t.Lines
	w, head := lines.join(t.Asks.Line(), since, news)
	if t.Need > 0 {
		lines.needs(w, t.Need)
	}
	t.Place = nil
	if head {
		t.leads(w)
	}
	var got *Left[S]
	defer func() {
		t.Seen = lines.seen(w, t.Seen)
		t.Asks.Shows(&t.Seen)
		lines.leave(w, got)
	}()
	if !head {
		t.Asks.Contends()
		t.Asks.Withdraw()
		if got, rest, err = t.behind(ctx, w); got != nil || err != nil {
			return err
		}
	}
	got, err = t.first(ctx, w, rest)
	return err
}

// leads notes that it is the head of a line.
func (t *Call[S]) leads(w *Waiter[S]) {
	t.Place = w
	if t.Seen == (*new(S)) {
		t.Seen = t.Lines.seen(w, t.Seen) // what the head before it has seen still holds
	}
	t.Show()
}

// Show tells those behind it what it sees.
func (t *Call[S]) Show() {
	if t.Place != nil {
		t.Lines.saw(t.Place, t.Seen)
	}
	t.Asks.Shows(&t.Seen)
}

// stepsAside reports whether the call has to leave its line, and to wait in another.
func (t *Call[S]) stepsAside(w *Waiter[S]) bool { return t.Aside && w.line.key.ID == "" }

// sleep returns an error if the wait is over, or the hold that the call was given meanwhile.
func (t *Call[S]) sleep(ctx context.Context, w *Waiter[S], d time.Duration, wake <-chan struct{}) (got *Left[S], err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // whatever else has happened
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
		err = ctx.Err() // a thousand waiters that are canceled at once need not look
	}
	return nil, err
}

// behind waits until it is the head of its line. It returns what it got before that; otherwise how long the lock
// is known to be held.
func (t *Call[S]) behind(ctx context.Context, w *Waiter[S]) (got *Left[S], rest time.Duration, err error) {
	lines, by := t.Lines, t.taker()
	for {
		if got, err = t.sleep(ctx, w, seam.FarAway, w.wake); got != nil || err != nil {
			return got, 0, err
		}
		n := lines.news(w)
		if n.admitted && by != nil {
			by.WaitsSince(n.round)
		}
		switch {
		case n.served:
			t.Seen = *new(S)
			return &Left[S]{}, 0, nil
		case n.err != nil:
			return nil, 0, n.err // the head has found out that Redis gives no answer
		case n.head:
			t.leads(w)
			if n.behind != nil && n.behind.Alive() {
				rest = n.behind.RestOfLease()
			}
			return nil, rest, nil
		case n.admitted:
			lines.sees(w)
			got, _, err := t.Asks.Look(ctx)
			if got != nil || err != nil && !lines.cfg.Transient(err) {
				return got, 0, err
			}
			if t.stepsAside(w) {
				return nil, 0, errAside
			}
			t.Asks.Withdraw()
			lines.refused(w)
		}
	}
}

// first waits as the head of the line.
func (t *Call[S]) first(ctx context.Context, w *Waiter[S], rest time.Duration) (got *Left[S], err error) {
	by := t.taker()
	if by != nil {
		by.Begins(w)
	}
	for look := 0; ; look++ {
		if rest == 0 || look > 0 {
			if got, err = t.makeWay(ctx, w); got != nil || err != nil {
				return got, err
			}
			var over bool
			if got, rest, over, err = t.looks(ctx, w); over {
				return got, err
			}
		}
		t.Asks.Listen(w)
		pause := t.Asks.Pause(w, look, rest, err)
		if err = t.told(w); err != nil { // its look may have consumed the poke
			return nil, err
		}
		if got, err = t.sleep(ctx, w, pause, w.wake); got != nil || err != nil {
			return got, err
		}
		if err = t.told(w); err != nil {
			return nil, err
		}
		if by != nil {
			if most := by.Hesitates(w); most > 0 {
				if got, err = t.sleep(ctx, w, seam.Jitter(t.Lines.cfg.Seed, t.Who, look, most), nil); got != nil || err != nil {
					return got, err
				}
			}
		}
	}
}

// looks is a look of the head of a line. It reports whether the wait is over; otherwise how long to sleep, after an
// error until the next.
func (t *Call[S]) looks(ctx context.Context, w *Waiter[S]) (got *Left[S], rest time.Duration, over bool, err error) {
	lines := t.Lines
	w.looks()
	lines.sees(w)
	began, woken := t.now(), lines.answers(w)
	got, rest, err = t.Asks.Look(ctx)
	if err == nil && lines.learns(w, woken, got == nil, t.now().Sub(began)) {
		lines.HearTurns(w, t.Crowded.HearTaken(func(left int64) { lines.taken(w.line, left) }))
	}
	switch {
	case got != nil:
		return got, 0, true, nil
	case t.stepsAside(w):
		return nil, 0, true, errAside
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
	if by := t.taker(); by != nil {
		err = by.Failed(w, began, err)
	}
	return nil, 0, true, err
}

func (t *Call[S]) told(w *Waiter[S]) error {
	if by := t.taker(); by != nil && by.Hears() {
		return t.Lines.Told(w)
	}
	return nil
}

// outlast is called by the head of a line after a look that began then and was not answered. It returns the pause before
// the next look. If the outage is too long, it returns an error that says how long it was, and fails those behind it.
func (t *Call[S]) outlast(w *Waiter[S], began time.Time, err error) (pause time.Duration, over error) {
	if t.Failing.IsZero() {
		t.Failing = began
	}
	if enough := t.now().Add(-min(t.Lines.cfg.LongestOutage, t.Longest)); !t.Failing.After(enough) {
		err = wire.Tried(err, t.now().Sub(t.Failing))
		t.Lines.Fail(w, enough, err)
		return 0, err
	}
	pause = min(50*time.Millisecond<<min(t.failed, 5), time.Second)
	t.failed++
	return pause, nil
}

// makeWay lets waiters of other clients go first, after this client has had the lock for
// a whole batch.
func (t *Call[S]) makeWay(ctx context.Context, w *Waiter[S]) (got *Left[S], err error) {
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

// Hear has the line listen, to what messages say if many clients may wait for the same.
func (t *Call[S]) Hear(w *Waiter[S], listen func(notify func()) (end func())) {
	if t.Crowded != nil {
		listen = func(notify func()) (end func()) {
			return t.Crowded.Hear(notify, func(n int64) { t.Lines.freed(w.line, n) })
		}
	}
	t.Lines.subscribe(w, listen)
}

package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// waiting is a call that waits in the line of its client for what it asks Redis for: a hold (attempt), or something
// that is none (inquiry). Only the head of a line listens, and looks after each message, whenever what it waits for
// may be there, and at the longest poll.
//
// Whoever becomes the head of a line looks at once, unless it knows who holds the lock. So a wake-up is not lost
// with a waiter that was woken and leaves.
type waiting struct {
	c        *Client
	asks     asker
	number   int64            // for jitter
	need     int64            // how much room it needs; 0: of no semaphore
	crowded  protocol.Crowded // what many clients may wait for of which few can enter; nil: no such thing
	longest  time.Duration    // of an outage that it outlasts
	owned    *owned           // by the owner in the caller's context; nil: there is none
	observed *observed        // nil: by nobody
	sleeper  clock.Sleeper

	seen   sight
	place  *waiter // its place in line, if it is the head: others see what it sees
	aside  bool    // it needs more than there can be: others need not wait behind it
	outage outage
}

// asker is what one who waits asks for. One goroutine calls it.
type asker interface {
	// line is where it waits. Another one after a look that has found that it stands aside.
	line() lineKey
	// look asks Redis once, and takes what is asked for if that is there. It must be safe to
	// call again after an error.
	look(ctx context.Context) outcome
	// withdraw undoes what a look may have done, or may yet do, before it waits behind others: they may wait for
	// what it has taken and does not know of.
	withdraw()
	// listen has its line hear when it is time to look, from now on.
	listen(w *waiter)
	// pause is how long it sleeps at most after a look of that number, as the head. rest is what that has said.
	pause(w *waiter, look int, rest time.Duration, err error) time.Duration
}

// outcome is that of a look.
type outcome struct {
	got  *handOver     // it has what it asked for, and leaves this to those behind it; nil: it has not
	rest time.Duration // look again within it; negative: as late as possible
	err  error
}

// taker is an asker that can be given a hold while it sleeps, and lets others go first.
type taker interface {
	asker
	// waitsSince notes the round that those before it were refused in.
	waitsSince(round int64)
	// begins is called when it is the head, before its first look.
	begins(w *waiter)
	// sleeps is called before it sleeps. poked: it can be woken.
	sleeps(w *waiter, poked bool)
	// given is called with what it was given. why: the wait is over.
	given(ctx context.Context, g gift, why error) (*handOver, error)
	// told is why it need not look, which another has found out.
	told(w *waiter) error
	// failed is called with the error of its last look.
	failed(w *waiter, began time.Time, err error) error
	// hesitates is for how long it waits after a message, at most.
	hesitates(w *waiter) time.Duration
}

// await waits in line and, as its head, looks whenever what it asks for may be there: after a
// message or a local release, when the holder's lease is over, after the subscription was
// confirmed or rebuilt, and at the longest poll. rest is how long the lock is known to be
// held; 0 means look at once. news is the latest of the line before it has looked.
func (t *waiting) await(ctx context.Context, rest time.Duration, news int64) error {
	since := t.c.env.Clock.Now()
	if !t.outage.since.IsZero() {
		since = t.outage.since // it has waited for an answer since then
	}
	for {
		switch err := t.inLine(ctx, since, rest, news); err {
		case errTooLate:
			rest, news = 0, 0
		case errAside:
			t.c.stopOf("aside", t.number) // many may be, at once
			rest, news = -1, 0            // it looks again when it has subscribed
		default:
			return err
		}
	}
}

// taker is the asker, if it is one; or nil.
func (t *waiting) taker() taker {
	of, _ := t.asks.(taker)
	return of
}

func (t *waiting) inLine(ctx context.Context, since time.Time, rest time.Duration, news int64) (err error) {
	lines := &t.c.lines
	w, head := lines.join(t.asks.line(), since, news)
	if t.need > 0 {
		lines.needs(w, t.need)
	}
	t.place = nil
	if head {
		t.leads(w)
	}
	var got *handOver
	defer func() {
		t.seen = lines.seen(w, t.seen)
		t.observed.saw(&t.seen)
		lines.leave(w, got)
	}()
	if !head {
		t.observed.contends()
		t.asks.withdraw()
		if got, rest, err = t.behind(ctx, w); got != nil || err != nil {
			return err
		}
	}
	got, err = t.first(ctx, w, rest)
	return err
}

// leads notes that it is the head of a line.
func (t *waiting) leads(w *waiter) {
	t.place = w
	if t.seen == (sight{}) {
		t.seen = t.c.lines.seen(w, t.seen) // what the head before it has seen still holds
	}
	t.show()
}

// show tells those behind it what it sees.
func (t *waiting) show() {
	if t.place != nil {
		t.c.lines.saw(t.place, t.seen)
	}
	t.owned.saw(&t.seen)
	t.observed.saw(&t.seen)
}

// stepsAside reports whether it has to leave its line, and to wait in another.
func (t *waiting) stepsAside(w *waiter) bool { return t.aside && w.line.key.id == "" }

// sleep sleeps. It returns an error if the wait is over, or what it was given meanwhile.
func (t *waiting) sleep(ctx context.Context, w *waiter, d time.Duration, wake <-chan struct{}) (got *handOver, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // whatever else has happened
	}
	by := t.taker()
	if by != nil {
		by.sleeps(w, wake != nil)
	}
	why := t.sleeper.Sleep(d, wake, nil, ctx.Done(), t.c.closing)
	g := t.c.lines.awake(w)
	switch why {
	case clock.ByEnd:
		err = ctx.Err()
	case clock.ByClosing:
		err = ErrClosed
	default:
		t.c.stopOf("woken", t.number) // many may be, at once
	}
	if g != (gift{}) {
		return by.given(ctx, g, err)
	}
	if err == nil {
		err = ctx.Err() // a thousand waiters that are canceled at once need not look
	}
	return nil, err
}

// behind waits until it is the head of its line. It returns what it got before that; otherwise how long the lock
// is known to be held.
func (t *waiting) behind(ctx context.Context, w *waiter) (got *handOver, rest time.Duration, err error) {
	lines, by := &t.c.lines, t.taker()
	for {
		if got, err = t.sleep(ctx, w, seam.FarAway, w.wake); got != nil || err != nil {
			return got, 0, err
		}
		n := lines.news(w)
		if n.admitted && by != nil {
			by.waitsSince(n.round)
		}
		switch {
		case n.served:
			t.seen = sight{}
			return nothing, 0, nil
		case n.err != nil:
			return nil, 0, n.err // the head has found out that Redis gives no answer
		case n.head:
			t.leads(w)
			if n.behind != nil && n.behind.alive() {
				rest = n.behind.restOfLease()
			}
			return nil, rest, nil
		case n.admitted:
			lines.sees(w)
			o := t.asks.look(ctx)
			if o.got != nil || o.err != nil && !worthRepeating(o.err) {
				return o.got, 0, o.err
			}
			if t.stepsAside(w) {
				return nil, 0, errAside
			}
			t.asks.withdraw()
			lines.refused(w)
		}
	}
}

// first waits as the head of the line.
func (t *waiting) first(ctx context.Context, w *waiter, rest time.Duration) (got *handOver, err error) {
	by := t.taker()
	if by != nil {
		by.begins(w)
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
		t.asks.listen(w)
		pause := t.asks.pause(w, look, rest, err)
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
			if most := by.hesitates(w); most > 0 {
				if got, err = t.sleep(ctx, w, seam.Jitter(t.c.seed, t.number, look, most), nil); got != nil || err != nil {
					return got, err
				}
			}
		}
	}
}

// looks is a look of the head of a line. It reports whether the wait is over; otherwise how long to sleep, after an
// error until the next.
func (t *waiting) looks(ctx context.Context, w *waiter) (got *handOver, rest time.Duration, over bool, err error) {
	lines, now := &t.c.lines, t.c.env.Clock.Now
	w.looks()
	lines.sees(w)
	began, woken := now(), lines.answers(w)
	o := t.asks.look(ctx)
	if o.err == nil && lines.learns(w, woken, o.got == nil, now().Sub(began)) {
		lines.hearTurns(w, t.crowded.HearTaken(func(left int64) { lines.taken(w.line, left) }))
	}
	switch {
	case o.got != nil:
		return o.got, 0, true, nil
	case t.stepsAside(w):
		return nil, 0, true, errAside
	case o.err == nil:
		t.outage = outage{}
		return nil, o.rest, false, nil
	case worthRepeating(o.err):
		if rest, err = t.c.outlast(&t.outage, t.longest, w, began, o.err); err != nil {
			return nil, 0, true, err
		}
		return nil, rest, false, o.err
	}
	if by := t.taker(); by != nil {
		o.err = by.failed(w, began, o.err)
	}
	return nil, 0, true, o.err
}

func (t *waiting) told(w *waiter) error {
	if by := t.taker(); by != nil {
		return by.told(w)
	}
	return nil
}

// makeWay lets waiters of other clients go first, after this client has had the lock for
// a whole batch.
func (t *waiting) makeWay(ctx context.Context, w *waiter) (got *handOver, err error) {
	for got == nil && err == nil {
		d := t.c.lines.yieldsFor(w, t.c.now())
		if d <= 0 {
			break
		}
		if got, err = t.sleep(ctx, w, d, w.wake); err != nil && !t.seen.told() {
			t.seen.said.what = "waiters of other clients go first"
		}
	}
	return got, err
}

// hear has the line listen, to what messages say if many clients may wait for the same.
func (t *waiting) hear(w *waiter, listen func(notify func()) (end func())) {
	if t.crowded != nil {
		listen = func(notify func()) (end func()) {
			return t.crowded.Hear(notify, func(n int64) { t.c.lines.freed(w.line, n, t.c.seed) })
		}
	}
	t.c.lines.subscribe(w, listen)
}

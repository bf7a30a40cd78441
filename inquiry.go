package rlock

import (
	"context"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// inquiry is one call that asks Redis for something that is no hold, and may wait for it:
// permits of a semaphore, the end of a count. It waits as an attempt does: in the line
// of its client, whose head listens, and looks after each message and at the longest poll.
//
// Whoever becomes the head of a line looks at once. So a wake-up is not lost with a
// waiter that was woken and leaves.
type inquiry struct {
	c      *Client
	of     protocol.LockID // what it asks for; its line has this name
	asks   seeker
	number int64         // for jitter
	wait   bool          // until there is what it asks for
	limit  time.Duration // of the wait, for the error; 0: there is none
	need   int64         // how much it takes of what there is
	// forAll: what the head finds is true for all who waited before it looked.
	forAll bool
	// crowded is what many clients may wait for of which few can enter; nil: no such thing.
	crowded protocol.Crowded
	// sentinel is what an error of the end of the context matches beside that; nil: nothing.
	sentinel error

	tries  int
	aside  bool // it needs more than there can be: others need not wait behind it
	seen   sight
	place  *waiter // its place in line, if it is the head
	tells  bool    // others wait for what it takes: see crowd
	outage outage

	observed *observed // nil: by nobody
}

// seeker is what an inquiry asks for. One goroutine calls it.
type seeker interface {
	// look asks Redis once, and takes what it asks for if that is there. It must be safe to
	// call again after an error.
	look(ctx context.Context) found
	// giveUp undoes what a look may have done, or may yet do, when the call has failed, or
	// does not look again for now. It reports whether there was something to undo, and Redis
	// has confirmed that soon.
	giveUp() (answered bool)
	// listen has notify called when it is time to look. It returns nil if it cannot, now or
	// ever.
	listen(notify func()) (end func())
}

// found is the outcome of a look.
type found struct {
	done bool          // it is there, and taken
	room int64         // done: how much is left for others
	rest time.Duration // not done: look again within it; negative: as late as possible
	said said          // not done: what there is instead
	free permits       // of a semaphore
	// beyond: not done, and it needs more than there are, free or not.
	beyond bool
	err    error // there is no outcome
	last   error // see protocol.Result
}

// run waits until there is what the inquiry asks for. caller is the context of the call,
// which may have no end that ctx, of its own making, has.
func (q *inquiry) run(caller, ctx context.Context) error {
	err := q.ask(ctx)
	if err == nil {
		return nil
	}
	answered := q.asks.giveUp()
	now := q.c.env.Clock.Now()
	q.seen.settle(now, answered)
	q.seen.wants(q.need)
	return interrupted(caller, err, q.sentinel, q.limit, &q.seen, now)
}

func (q *inquiry) ask(ctx context.Context) error {
	c := q.c
	if err := ctx.Err(); err != nil {
		return err
	}
	var waiting int
	var news int64
	if q.wait {
		waiting, news, _ = c.lines.latest(q.line())
	}
	var rest time.Duration
	if waiting == 0 { // else waiters in line go first
		began := c.env.Clock.Now()
		f := q.look(ctx)
		switch {
		case f.done:
			return nil
		case f.err == nil && !q.wait:
			return ErrNotAcquired // see interrupted
		case f.err != nil && (!q.wait || !worthRepeating(f.err)):
			return f.err
		case f.err != nil:
			q.outage.since = began
		}
		rest = f.rest
	}
	q.observed.contends()
	for {
		if err := q.waitInLine(ctx, rest, news); err != errAside {
			return err
		}
		c.stopOf("aside", q.number) // many may be, at once
		rest, news = -1, 0          // it looks again when it has subscribed
	}
}

// line is where the inquiry waits in its client.
func (q *inquiry) line() lineKey {
	key := lineKey{lock: q.of}
	if q.aside {
		key.id = strconv.FormatInt(q.need, 10) // those that need as much stand together
	}
	return key
}

// stepsAside reports whether the inquiry has to leave its line, and to wait in another; see
// attempt.aside.
func (q *inquiry) stepsAside(w *waiter) bool { return q.aside && w.line.key.id == "" }

// look asks once, and notes what it has seen.
func (q *inquiry) look(ctx context.Context) found {
	q.tries++
	q.tells = q.crowded != nil && q.c.lines.crowdAt(q.line())
	q.seen.asked = q.c.env.Clock.Now()
	q.show()
	f := q.asks.look(ctx)
	q.aside = q.aside || f.beyond
	if f.err != nil || f.done {
		q.seen.failed(f.err, f.last, false, 0)
	} else {
		q.seen = sight{said: f.said, room: f.free}
	}
	q.show()
	return f
}

// show tells the waiters behind it what it sees.
func (q *inquiry) show() {
	if q.place != nil {
		q.c.lines.saw(q.place, q.seen)
	}
}

// waitInLine waits. rest and news are as in attempt.wait.
func (q *inquiry) waitInLine(ctx context.Context, rest time.Duration, news int64) error {
	c := q.c
	since := c.env.Clock.Now()
	if !q.outage.since.IsZero() {
		since = q.outage.since // it has waited for an answer since then
	}
	w, head := c.lines.join(q.line(), since, news)
	c.lines.needs(w, q.need)
	var got *handOver
	defer func() {
		q.seen = c.lines.seen(w, q.seen)
		c.lines.leave(w, got, protocol.NoRound)
	}()
	s := clock.NewSleeper(&c.env)
	defer s.Stop()
	if head {
		q.place = w
	} else {
		rest = 0
		q.asks.giveUp() // those before it may wait for what it has taken and does not know of
		done, err := q.waitBehind(ctx, w, s)
		if done {
			got = &handOver{}
		}
		if done || err != nil {
			return err
		}
	}
	got, err := q.waitFirst(ctx, w, s, rest)
	return err
}

// hearFreed has the line of w listen, to what messages say if many clients may wait for the same.
func (c *Client) hearFreed(w *waiter, asks protocol.Crowded, listen func(notify func()) (end func())) {
	if asks != nil {
		listen = func(notify func()) (end func()) {
			return asks.Hear(notify, func(n int64) { c.lines.freed(w.line, n, c.seed) })
		}
	}
	c.lines.subscribe(w, listen)
}

// hearTaken has the line of w hear what is left of permits that others take.
func (c *Client) hearTaken(w *waiter, asks protocol.Crowded) {
	c.lines.hearTurns(w, asks.HearTaken(func(left int64) { c.lines.taken(w.line, left) }))
}

// sleep sleeps. It returns an error if the wait is over.
func (q *inquiry) sleep(ctx context.Context, s *clock.Sleeper, d time.Duration, wake <-chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err // whatever else has happened
	}
	switch s.Sleep(d, wake, nil, ctx.Done(), q.c.closing) {
	case clock.ByEnd:
		return ctx.Err()
	case clock.ByClosing:
		return ErrClosed
	}
	q.c.stopOf("woken", q.number) // many may be, at once
	// A thousand waiters that are canceled at once need not look.
	return ctx.Err()
}

// waitBehind waits until the inquiry is the head of its line, or done.
func (q *inquiry) waitBehind(ctx context.Context, w *waiter, s *clock.Sleeper) (done bool, err error) {
	for {
		if err := q.sleep(ctx, s, seam.FarAway, w.wake); err != nil {
			return false, err
		}
		n := q.c.lines.news(w)
		switch {
		case n.served:
			q.seen = sight{}
			return true, nil
		case n.err != nil:
			return false, n.err // the head has found out that Redis gives no answer
		case n.head:
			q.place = w
			return false, nil
		case n.admitted:
			f := q.look(ctx)
			if f.done || f.err != nil && !worthRepeating(f.err) {
				return f.done, f.err
			}
			if q.stepsAside(w) {
				return false, errAside
			}
			q.asks.giveUp() // see waitInLine
		}
	}
}

// waitFirst waits as the head of the line, and returns what it leaves to those behind it.
func (q *inquiry) waitFirst(ctx context.Context, w *waiter, s *clock.Sleeper, rest time.Duration) (*handOver, error) {
	c := q.c
	for look := 0; ; look++ {
		if rest == 0 || look > 0 {
			joined, taken := c.lines.sofar(w)
			w.looks()
			began, woken := c.env.Clock.Now(), c.lines.answers(w)
			f := q.look(ctx)
			rest = f.rest
			if f.err == nil && c.lines.learns(w, woken, !f.done, c.env.Clock.Now().Sub(began)) {
				c.hearTaken(w, q.crowded)
			}
			switch {
			case f.done && q.forAll:
				return &handOver{upTo: joined}, nil
			case f.done:
				return &handOver{room: f.room, taken: taken}, nil
			case q.stepsAside(w):
				return nil, errAside
			case f.err == nil:
				q.outage = outage{}
			case !worthRepeating(f.err):
				return nil, f.err
			default:
				var over error
				if rest, over = c.outlast(&q.outage, longestInquiry, w, began, f.err); over != nil {
					return nil, over
				}
			}
		}
		c.hearFreed(w, q.crowded, q.asks.listen)
		pause := c.cfg.longestPoll
		if rest > 0 {
			pause = min(pause, rest+time.Millisecond+seam.Jitter(c.seed, q.number, look, 2*time.Millisecond))
		}
		if err := q.sleep(ctx, s, pause, w.wake); err != nil {
			return nil, err
		}
	}
}

// longestInquiry bounds the outage that an inquiry outlasts: Redis must still know of a look
// that was not answered. It is a little less than protocol.RecordTTL.
const longestInquiry = protocol.RecordTTL - 2*protocol.TombstoneTTL

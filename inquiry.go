package rlock

import (
	"context"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// inquiry is one call that asks Redis for something that is no hold, and may wait for it:
// permits of a semaphore, the end of a count.
type inquiry struct {
	waiting
	of     protocol.LockID // what it asks for; its line has this name
	seeker seeker
	wait   bool          // until there is what it asks for
	limit  time.Duration // of the wait, for the error; 0: there is none
	// forAll: what the head finds is true for all who waited before it looked.
	forAll bool
	// sentinel is what an error of the end of the context matches beside that; nil: nothing.
	sentinel error

	tries int
	tells bool // others wait for what it takes: see crowd
}

// inquire has an inquiry of a client ready to run.
func (q *inquiry) inquire(c *Client, of protocol.LockID, s seeker) {
	q.of, q.seeker = of, s
	q.c, q.asks, q.number, q.longest = c, q, c.lastHold.Add(1), longestInquiry
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
	answered := q.seeker.giveUp()
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
	var others int
	var news int64
	if q.wait {
		others, news, _ = c.lines.latest(q.line())
	}
	var rest time.Duration
	if others == 0 { // else waiters in line go first
		began := c.env.Clock.Now()
		o := q.look(ctx)
		switch {
		case o.got != nil:
			return nil
		case o.err == nil && !q.wait:
			return ErrNotAcquired // see interrupted
		case o.err != nil && (!q.wait || !worthRepeating(o.err)):
			return o.err
		case o.err != nil:
			q.outage.since = began
		}
		rest = o.rest
	}
	q.observed.contends()
	q.sleeper.Begin(&c.env)
	defer q.sleeper.Stop()
	return q.await(ctx, rest, news)
}

// line is where the inquiry waits in its client.
func (q *inquiry) line() lineKey {
	key := lineKey{lock: q.of}
	if q.aside {
		key.id = strconv.FormatInt(q.need, 10) // those that need as much stand together
	}
	return key
}

// nothing is what an inquiry leaves that is not the head of a line.
var nothing = &handOver{}

// look implements asker.
func (q *inquiry) look(ctx context.Context) outcome {
	var joined, taken int64
	if q.place != nil {
		joined, taken = q.c.lines.sofar(q.place)
	}
	q.tries++
	q.tells = q.crowded != nil && q.c.lines.crowdAt(q.line())
	q.seen.asked = q.c.env.Clock.Now()
	q.show()
	f := q.seeker.look(ctx)
	q.aside = q.aside || f.beyond
	if f.err != nil || f.done {
		q.seen.failed(f.err, f.last, false, 0)
	} else {
		q.seen = sight{said: f.said, room: f.free}
	}
	q.show()
	switch {
	case !f.done:
		return outcome{rest: f.rest, err: f.err}
	case q.place == nil:
		return outcome{got: nothing}
	case q.forAll:
		return outcome{got: &handOver{upTo: joined}}
	}
	return outcome{got: &handOver{room: f.room, taken: taken}}
}

// withdraw implements asker.
func (q *inquiry) withdraw() { q.seeker.giveUp() }

// listen implements asker.
func (q *inquiry) listen(w *waiter) { q.hear(w, q.seeker.listen) }

// pause implements asker.
func (q *inquiry) pause(_ *waiter, look int, rest time.Duration, _ error) time.Duration {
	if most := q.c.cfg.longestPoll; rest <= 0 {
		return most
	} else {
		return min(most, rest+time.Millisecond+seam.Jitter(q.c.seed, q.number, look, 2*time.Millisecond))
	}
}

// longestInquiry bounds the outage that an inquiry outlasts: Redis must still know of a look
// that was not answered. It is a little less than protocol.RecordTTL.
const longestInquiry = protocol.RecordTTL - 2*protocol.TombstoneTTL

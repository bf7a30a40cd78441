package rlock

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// watchGap is the shortest pause between two looks of a watch. What changes more
// often than a hundred times a second cannot be followed by a reader anyway, and
// on a busy lock, whose every release is a message, it bounds the cost.
const watchGap = 10 * time.Millisecond

// watchYield is for how long a watch that has heard something waits at most
// before it looks. It is some round trips, and no delay to a reader.
const watchYield = 2 * time.Millisecond

// Watch tells who holds the lock, without contending for it: it takes no lock,
// stands in no line and delays nobody. The channel gets the state of now, and
// then a new one whenever the mode, the holders, their counts or the token have
// changed. TTL and Waiters are those of that moment; that they change is not told.
// The channel is closed when ctx ends or the client is shut down.
//
// It keeps the latest state only: one that was not read is replaced by a newer one.
// So a slow reader misses what was in between, but never the latest, and delays
// nobody. What came and went between two looks is not seen at all: a watch is for
// dashboards, tests and decisions that can be wrong for a moment, and no way to be
// sure that a lock is free or held.
//
// A watch looks when a release is announced (not by a SpinLock; where Redis
// keeps the queue, it is announced to the next in line alone), when the holder's lease is over, and
// otherwise by polling, because an acquire is not announced by any client of the
// protocol: 10 ms after each change or message, then after pauses that double up to
// WithLongestPoll. So it sees most changes within milliseconds and every lasting
// one within WithLongestPoll, at a cost of at most a hundred cheap commands a
// second while the lock is busy and one for each WithLongestPoll while it is not.
// A watch is one goroutine. Those of a client share its subscribed connection.
//
// While Redis cannot be reached, or answers with an error, nothing is delivered; it
// goes on when Redis is back. The errors are told to the Observer (Retry).
//
// Watch itself fails at once with an error that matches ErrInvalidArgument, if the
// lock was made with arguments that are wrong, or ErrClosed.
func (l *core) Watch(ctx context.Context) (<-chan State, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.c
	if !c.begin() {
		return nil, l.error(ErrClosed)
	}
	defer c.end()
	w := &watch{core: l, number: c.watches.Add(1), states: make(chan State, 1), poke: make(chan struct{}, 1)}
	c.running.add(1) // while begin holds up Shutdown, which waits for it
	go w.run(ctx, c.work())
	return w.states, nil
}

// watch is one Watch under way.
type watch struct {
	core   *core
	number int64         // of the watch, for jitter
	states chan State    // capacity 1: the latest state, if it was not read yet
	poke   chan struct{} // capacity 1: a message came, or may have been missed
	timer  seam.Timer
	asleep func() // ends what work has begun

	last State // that was delivered
	some bool  // there is one
}

func (w *watch) run(ctx context.Context, asleep func()) {
	l, c := w.core, w.core.c
	w.asleep = asleep
	defer c.running.add(-1)
	defer close(w.states)
	defer func() { w.asleep() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)() // a look that hangs ends with the client
	w.timer = c.clock.NewTimer(farAway)
	defer w.timer.Stop()
	var unsubscribe func()
	defer func() {
		if unsubscribe != nil {
			unsubscribe()
		}
	}()

	gap := min(watchGap, c.cfg.longestPoll)
	pause := gap
	for failures, turn := 0, 0; ; turn++ {
		s, err := w.look(ctx)
		looked := c.clock.Now()
		if ctx.Err() != nil {
			return
		}
		sleep, most := pause, c.cfg.longestPoll
		if err != nil {
			c.cfg.observer.Retry("watch", err)
			sleep, pause = min(50*time.Millisecond<<min(failures, 5), time.Second), gap
			failures++
		} else {
			failures = 0
			if w.deliver(s) {
				sleep, pause = gap, gap
			}
			pause = min(2*pause, c.cfg.longestPoll)
			if s.Locked() && s.TTL >= 0 {
				// Redis drops a key in the millisecond after its last one.
				most = max(s.TTL+time.Millisecond, gap)
			}
		}
		// Where each waiter has a channel of its own there is none for others.
		if unsubscribe == nil && !l.placed && l.ready(ctx) == nil {
			// What happens until it is confirmed is not missed: that pokes too.
			unsubscribe = l.subscribe("", w.notify)
		}
		// The jitter keeps watches apart.
		sleep = min(sleep-jitter(c.seed, w.number, turn, sleep/4), most+jitter(c.seed, w.number, turn, 2*time.Millisecond))
		poked, ok := w.sleep(ctx, sleep, w.poke)
		if !ok {
			return
		}
		if poked {
			pause = gap
			// Those who wait for the lock go first; other watches, a little apart.
			early := looked.Add(gap).Sub(c.clock.Now())
			if _, ok := w.sleep(ctx, max(early, 0)+watchYield/2+jitter(c.seed, w.number, turn, watchYield/2), nil); !ok {
				return
			}
		}
	}
}

// notify is called for each message; it must be quick.
func (w *watch) notify() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// sleep waits for a time, or for less if it is poked. It is not ok if the watch
// is over.
func (w *watch) sleep(ctx context.Context, d time.Duration, poke <-chan struct{}) (poked, ok bool) {
	c := w.core.c
	w.timer.Reset(d)
	w.asleep()
	defer func() { w.asleep = c.work() }()
	select {
	case <-poke:
		poked = true
	case <-w.timer.C():
	case <-ctx.Done():
		return false, false
	case <-c.closing:
		return false, false
	}
	c.gate("watch")
	return poked, true
}

// look is State for one who does not hold up Shutdown.
func (w *watch) look(ctx context.Context) (State, error) {
	l := w.core
	a := l.c.call(ctx, l.c.cfg.commandTimeout, l.inspect())
	if a.err != nil {
		return State{}, a.err
	}
	return l.stateOf(a)
}

// deliver hands a state out, in the place of one that was not read, if it is
// news.
func (w *watch) deliver(s State) bool {
	if s.Token == 0 && s.held(exclusive) && w.last.held(exclusive) && s.Holders[0].Owner == w.last.Holders[0].Owner {
		// Where Redis has no room for the token, it is known as long as this
		// client holds the lock: that is over a moment before Redis says so.
		s.Token = w.last.Token
	}
	if w.some && s.Mode == w.last.Mode && s.Token == w.last.Token && slices.Equal(s.Holders, w.last.Holders) {
		return false
	}
	w.last, w.some = s, true
	// The reader gets its own holders: those of last are compared later.
	s.Holders = slices.Clone(s.Holders)
	select {
	case <-w.states:
	default:
	}
	w.states <- s // there is room: nobody else sends
	return true
}

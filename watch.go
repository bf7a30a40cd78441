package rlock

import (
	"context"
	"maps"
	"slices"
	"sync"
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
// A watch looks when it begins, when a release is announced (not by a SpinLock; where
// Redis keeps the queue, it is announced to the next in line alone), when the holder's
// lease is over, and otherwise by polling, because an acquire is not announced by any
// client of the protocol: 10 ms after each change or message, then after pauses that
// double up to WithLongestPoll. So it sees most changes within milliseconds and every
// lasting one within WithLongestPoll, at a cost of at most a hundred cheap commands a
// second while the lock is busy and one for each WithLongestPoll while it is not. The
// watches of one lock in a client share these looks, and one goroutine: fifty cost
// what one costs. (Two RedLock values are two locks here.) Those of a client share its
// subscribed connection.
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
	w := &watch{states: make(chan State, 1)}
	if ctx.Err() != nil {
		close(w.states)
		return w.states, nil
	}
	l.join(w)
	w.until(ctx, func() { c.watches.leave(w) })
	return w.states, nil
}

// watch is one Watch under way.
type watch struct {
	poller *poller
	states chan State // capacity 1: the latest state, if it was not read yet

	mu     sync.Mutex  // guards the rest, and sending and closing
	some   bool        // a state was told
	ended  bool        // the channel is closed
	forget func() bool // the end of the context, which is no news any more
}

// until calls leave when the context ends, if the watch has not ended before.
func (w *watch) until(ctx context.Context, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.forget = context.AfterFunc(ctx, leave)
	}
}

// tell hands a state out, in the place of one that was not read, if it is news to
// the watch.
func (w *watch) tell(s State, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.some && !changed {
		return
	}
	w.some = true
	// The reader gets its own holders: those of the poller are compared later.
	s.Holders = slices.Clone(s.Holders)
	select {
	case <-w.states:
	default:
	}
	w.states <- s // there is room: nobody else sends
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	close(w.states)
	if w.forget != nil {
		w.forget()
	}
}

// pollers are those of a client.
type pollers struct {
	mu      sync.Mutex            // guards the rest, and the watches of each of them
	pollers map[pollerKey]*poller // those that go on
	serial  int64                 // of the latest
}

// pollerKey tells apart what is to be seen. Types that are one lock may show different
// things of it, and hear of releases in different ways.
type pollerKey struct {
	lock    lockID
	script  string
	keys    int
	channel string
	core    *core // of a RedLock
}

// poller looks at a lock for all its watches in a client.
type poller struct {
	core   *core // of the watch that came first
	key    pollerKey
	number int64         // for jitter
	poke   chan struct{} // capacity 1: a message came, or may have been missed
	joined chan struct{} // capacity 1: a watch is there that has seen nothing yet
	ctx    context.Context
	cancel context.CancelFunc // nobody watches any more
	timer  seam.Timer
	asleep func() // ends what work has begun

	watches map[*watch]struct{} // guarded by pollers.mu

	last State // that was told
	some bool  // there is one
}

// join adds a watch to those of its lock.
func (l *core) join(w *watch) {
	c, ps := l.c, &l.c.watches
	r := l.inspect()
	key := pollerKey{lock: l.id, keys: len(r.keys), channel: l.channel("")}
	if r.do != nil {
		key.core = l
	} else {
		key.script = r.script.name
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.pollers[key]
	if p == nil {
		ps.serial++
		p = &poller{
			core: l, key: key, number: ps.serial, watches: map[*watch]struct{}{},
			poke: make(chan struct{}, 1), joined: make(chan struct{}, 1),
		}
		p.ctx, p.cancel = context.WithCancel(c.ctx)
		if ps.pollers == nil {
			ps.pollers = map[pollerKey]*poller{}
		}
		ps.pollers[key] = p
		c.running.add(1) // while begin holds up Shutdown, which waits for it
		go p.run(c.work())
	}
	w.poller = p
	p.watches[w] = struct{}{}
	offer(p.joined)
}

// leave ends a watch, and the poller of which it is the last.
func (ps *pollers) leave(w *watch) {
	ps.mu.Lock()
	p := w.poller
	delete(p.watches, w)
	if len(p.watches) == 0 {
		ps.dropLocked(p)
	}
	ps.mu.Unlock()
	w.end()
}

// dropLocked ends a poller. Who comes now begins a new one.
func (ps *pollers) dropLocked(p *poller) {
	p.cancel()
	if ps.pollers[p.key] == p {
		delete(ps.pollers, p.key)
	}
}

// audience are the watches that there are.
func (p *poller) audience() []*watch {
	ps := &p.core.c.watches
	ps.mu.Lock()
	defer ps.mu.Unlock()
	select {
	case <-p.joined: // it is one of them
	default:
	}
	return slices.Collect(maps.Keys(p.watches))
}

// end closes the channels of all watches that are left, as the client shuts down.
func (p *poller) end() {
	ps := &p.core.c.watches
	ps.mu.Lock()
	ps.dropLocked(p)
	left := p.watches
	p.watches = nil
	ps.mu.Unlock()
	for w := range left {
		w.end()
	}
}

func offer(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (p *poller) run(asleep func()) {
	l, c, ctx := p.core, p.core.c, p.ctx
	p.asleep = asleep
	defer c.running.add(-1)
	defer p.end()
	defer func() { p.asleep() }()
	p.timer = c.clock.NewTimer(farAway)
	defer p.timer.Stop()
	var unsubscribe func()
	defer func() {
		if unsubscribe != nil {
			unsubscribe()
		}
	}()

	gap := min(watchGap, c.cfg.longestPoll)
	pause := gap
	var next time.Time // when it looks if nothing wakes it earlier
	woken, failures := wokenByTime, 0
	for turn := 0; ; turn++ {
		audience := p.audience()
		s, err := p.look(ctx)
		looked := c.clock.Now()
		if ctx.Err() != nil {
			return
		}
		sleep, most := pause, c.cfg.longestPoll
		planned := false
		if err != nil {
			c.cfg.observer.Retry("watch", err)
			sleep, pause = min(50*time.Millisecond<<min(failures, 5), time.Second), gap
			failures++
		} else {
			changed := p.see(&s)
			for _, w := range audience {
				w.tell(s, changed)
			}
			if s.Locked() && s.TTL >= 0 {
				// Redis drops a key in the millisecond after its last one.
				most = max(s.TTL+time.Millisecond, gap)
			}
			if changed {
				sleep, pause = gap, gap
			}
			if changed || woken != wokenByWatch || failures > 0 {
				pause = min(2*pause, c.cfg.longestPoll)
			} else {
				planned = true // a watch that begins does not change the pace
			}
			failures = 0
		}
		// Where each waiter has a channel of its own there is none for others.
		if unsubscribe == nil && !l.placed && l.ready(ctx) == nil {
			// What happens until it is confirmed is not missed: that pokes too.
			unsubscribe = l.subscribe("", func() { offer(p.poke) })
		}
		// The jitter keeps pollers apart.
		if planned {
			sleep = max(next.Sub(looked), 0)
		} else {
			sleep -= jitter(c.seed, p.number, turn, sleep/4)
		}
		sleep = min(sleep, most+jitter(c.seed, p.number, turn, 2*time.Millisecond))
		next = looked.Add(sleep)
		switch woken = p.sleep(sleep, p.poke); woken {
		case wokenByEnd:
			return
		case wokenByMessage:
			pause = gap
			// Those who wait for the lock go first; other pollers, a little apart.
			early := looked.Add(gap).Sub(c.clock.Now())
			if p.sleep(max(early, 0)+watchYield/2+jitter(c.seed, p.number, turn, watchYield/2), nil) == wokenByEnd {
				return
			}
		}
	}
}

// waking is why a poller sleeps no longer.
type waking int

const (
	wokenByTime waking = iota
	wokenByMessage
	wokenByWatch // that has begun
	wokenByEnd   // of the poller
)

// sleep waits for a time, or for less if it is poked or a watch comes, which is to
// learn of the state at once.
func (p *poller) sleep(d time.Duration, poke <-chan struct{}) (why waking) {
	c := p.core.c
	p.timer.Reset(d)
	p.asleep()
	defer func() { p.asleep = c.work() }()
	select {
	case <-poke:
		why = wokenByMessage
	case <-p.joined:
		why = wokenByWatch
	case <-p.timer.C():
	case <-p.ctx.Done():
		return wokenByEnd
	case <-c.closing:
		return wokenByEnd
	}
	c.gate("watch")
	return why
}

// look is State for one who does not hold up Shutdown.
func (p *poller) look(ctx context.Context) (State, error) {
	l := p.core
	a := l.c.call(ctx, l.c.cfg.commandTimeout, l.inspect())
	if a.err != nil {
		return State{}, a.err
	}
	return l.stateOf(a)
}

// see reports whether a state is another than the last, and keeps it.
func (p *poller) see(s *State) (changed bool) {
	if s.Token == 0 && s.held(exclusive) && p.last.held(exclusive) && s.Holders[0].Owner == p.last.Holders[0].Owner {
		// Where Redis has no room for the token, it is known as long as this
		// client holds the lock: that is over a moment before Redis says so.
		s.Token = p.last.Token
	}
	if p.some && s.Mode == p.last.Mode && s.Token == p.last.Token && slices.Equal(s.Holders, p.last.Holders) {
		return false
	}
	p.last, p.some = *s, true
	return true
}

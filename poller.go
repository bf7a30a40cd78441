package rlock

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// watchGap is the shortest pause between two looks of a watch. No reader follows more
// than a hundred changes a second, and the pause bounds the cost on a busy lock, whose
// every release is a message.
const watchGap = 10 * time.Millisecond

// watchYield is the longest time from a message to the look of a watch: some round trips.
const watchYield = 2 * time.Millisecond

// watch is one Watch under way.
type watch struct {
	poller *poller
	tellee tellee

	mu     sync.Mutex  // guards the rest, and the tellee
	some   bool        // it was told something
	ended  bool        // and the end
	forget func() bool // stops waiting for the end of the context
}

// sighting is what a poller sees: the state of a lock, and the value of an election's leader.
type sighting struct {
	State
	value string
}

// tellee is told what there is to see, by one caller at a time.
type tellee interface {
	tell(s *sighting)
	end()
}

// until calls leave when the context ends, if the watch has not ended before.
func (w *watch) until(ctx context.Context, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.forget = context.AfterFunc(ctx, leave)
	}
}

// tell tells what is news to the watch.
func (w *watch) tell(s *sighting, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.some && !changed {
		return
	}
	w.some = true
	w.tellee.tell(s)
}

// waits reports whether the watch was told nothing yet.
func (w *watch) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.some
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	w.tellee.end()
	if w.forget != nil {
		w.forget()
	}
}

// pollers are those of a client.
type pollers struct {
	env     *seam.Env
	wire    *wire.Deployment
	events  *events
	running *wire.Tally   // Shutdown waits for it
	closing chan struct{} // closed when Shutdown begins
	seed    uint64
	longest time.Duration // pause between two looks

	mu     sync.Mutex       // guards the rest, and the watches of each poller
	byView map[view]*poller // those that have watches
	serial int64            // of the latest
}

// view identifies what a poller sees. Types that are one lock may show different parts of
// its state, and hear of releases in different ways.
type view struct {
	lock protocol.LockID
	of   any
}

// viewed is a lock as a poller sees it.
type viewed struct {
	key  view
	look func(ctx context.Context) (sighting, error)
	// listen has notify called when a release is announced. It returns nil if it
	// cannot, now or ever.
	listen func(ctx context.Context, notify func()) (end func())
	name   func(holders []Holder) // adds their processes
}

// poller looks at a lock for all its watches in a client.
type poller struct {
	viewed // of the watch that came first
	all    *pollers
	number int64         // for jitter
	poke   chan struct{} // capacity 1: a message came, or may have been missed
	joined chan struct{} // capacity 1: a watch has joined that has seen nothing yet
	ctx    context.Context
	cancel context.CancelFunc // called when the last watch leaves
	s      *clock.Sleeper

	watches map[*watch]struct{} // guarded by pollers.mu

	last sighting // the latest that was delivered
	some bool     // there is one
}

// join adds a watch to those of its lock.
func (ps *pollers) join(w *watch, of viewed) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byView[of.key]
	if p == nil {
		ps.serial++
		p = &poller{
			viewed: of, all: ps, number: ps.serial, watches: map[*watch]struct{}{},
			poke: make(chan struct{}, 1), joined: make(chan struct{}, 1),
		}
		p.ctx, p.cancel = context.WithCancel(ps.wire.Context())
		if ps.byView == nil {
			ps.byView = map[view]*poller{}
		}
		ps.byView[of.key] = p
		ps.running.Add(1) // while begin holds up Shutdown, which waits for it
		p.s = clock.NewSleeper(ps.env)
		go p.run()
	}
	w.poller = p
	p.watches[w] = struct{}{}
	offer(p.joined)
}

// leave ends a watch, and its poller if it was the last.
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

// dropLocked ends a poller. The next watch begins a new one.
func (ps *pollers) dropLocked(p *poller) {
	p.cancel()
	if ps.byView[p.key] == p {
		delete(ps.byView, p.key)
	}
}

// audience returns the watches of the poller.
func (p *poller) audience() []*watch {
	ps := p.all
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
	ps := p.all
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

func (p *poller) run() {
	ps, ctx := p.all, p.ctx
	defer ps.running.Add(-1)
	defer p.end()
	defer p.s.Stop()
	var unsubscribe func()
	defer func() {
		if unsubscribe != nil {
			unsubscribe()
		}
	}()

	gap := min(watchGap, ps.longest)
	pause := gap
	var next time.Time // when it looks if nothing wakes it earlier
	woken, failures := clock.ByTime, 0
	for look := 0; ; look++ {
		audience := p.audience()
		s, err := p.look(ctx)
		looked := ps.env.Clock.Now()
		if ctx.Err() != nil {
			return
		}
		sleep, most := pause, ps.longest
		planned := false
		if err != nil {
			ps.events.retry(ctx, RetryEvent{Event: Event{Lock: p.key.lock.Name}, Operation: "watch", Locks: 1, Err: err})
			sleep, pause = min(50*time.Millisecond<<min(failures, 5), time.Second), gap
			failures++
		} else {
			changed := p.see(&s)
			if changed || slices.ContainsFunc(audience, (*watch).waits) {
				s.Holders = slices.Clone(s.Holders) // those that were seen are compared later
				p.name(s.Holders)
			}
			for _, w := range audience {
				w.tell(&s, changed)
			}
			if s.Locked() && s.TTL >= 0 {
				// Redis drops a key in the millisecond after its last one.
				most = max(s.TTL+time.Millisecond, gap)
			}
			if changed {
				sleep, pause = gap, gap
			}
			if changed || woken != clock.ByNews || failures > 0 {
				pause = min(2*pause, ps.longest)
			} else {
				planned = true // a watch that begins does not change the pace
			}
			failures = 0
		}
		if unsubscribe == nil {
			// Nothing is missed until it is confirmed, because the confirmation pokes.
			unsubscribe = p.listen(ctx, func() { offer(p.poke) })
		}
		// The jitter keeps pollers apart.
		if planned {
			sleep = max(next.Sub(looked), 0)
		} else {
			sleep -= p.jitter(look, sleep/4)
		}
		sleep = min(sleep, most+p.jitter(look, 2*time.Millisecond))
		next = looked.Add(sleep)
		switch woken = p.sleep(sleep, p.poke); woken {
		case clock.ByEnd, clock.ByClosing:
			return
		case clock.ByPoke:
			pause = gap
			// Waiters for the lock go first, and pollers do not look together.
			early := looked.Add(gap).Sub(ps.env.Clock.Now())
			if p.sleep(max(early, 0)+watchYield/2+p.jitter(look, watchYield/2), nil) >= clock.ByClosing {
				return
			}
		}
	}
}

func (p *poller) jitter(look int, d time.Duration) time.Duration {
	return seam.Jitter(p.all.seed, p.number, look, d)
}

// sleep sleeps for d, or less if it is poked, or if a watch joins, which must get the state
// at once.
func (p *poller) sleep(d time.Duration, poke <-chan struct{}) (why clock.Waking) {
	why = p.s.Sleep(d, poke, p.joined, p.ctx.Done(), p.all.closing)
	if why < clock.ByClosing {
		p.all.env.Stop("watch")
	}
	return why
}

// see records what was seen, and reports whether it differs from the last.
func (p *poller) see(s *sighting) (changed bool) {
	if s.Token == 0 && s.held(protocol.Exclusive) && p.last.held(protocol.Exclusive) && s.Holders[0].HoldID == p.last.Holders[0].HoldID {
		// If Redis has no room for the token, it is known only while this client holds
		// the lock, which ends a moment before Redis shows it.
		s.Token = p.last.Token
	}
	if p.some && s.Mode == p.last.Mode && s.Token == p.last.Token && s.value == p.last.value && slices.Equal(s.Holders, p.last.Holders) {
		return false
	}
	p.last, p.some = *s, true
	return true
}

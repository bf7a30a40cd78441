package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// watchGap is the shortest pause between two polls of a watch. No reader follows more than a hundred
// changes a second, and the pause bounds the cost on a busy lock, whose every release is a message.
const watchGap = 10 * time.Millisecond

// watchYield is the longest time from a message to the poll of a watch: some round trips.
const watchYield = 2 * time.Millisecond

// Config configures Pollers.
type Config struct {
	Env     *seam.Env
	Wire    *wire.Deployment
	Running *wire.Tally     // counts the goroutines
	Closing <-chan struct{} // ends all watches
	Seed    uint64
	Longest time.Duration // longest pause between two polls
}

// Pollers has the watches of a client. S is the state that they show.
type Pollers[S any] struct {
	Config

	mu     sync.Mutex         // guards the rest, and the watches of each poller
	byKey  map[any]*poller[S] // pollers that have watches
	serial int64              // number of the latest poller
}

// New returns Pollers without watches.
func New[S any](c Config) *Pollers[S] { return &Pollers[S]{Config: c} }

// Show shows the audience the state of a lock, now and after each change, until ctx ends or the client closes. Then it
// calls the End of the audience.
func (ps *Pollers[S]) Show(ctx context.Context, lock Source[S], to Audience[S]) {
	w := &watch[S]{audience: to}
	if ctx.Err() != nil {
		w.end()
		return
	}
	ps.join(w, lock)
	w.until(ctx, func() { ps.leave(w) })
}

// Source is the lock that a watch polls.
type Source[S any] struct {
	// Key identifies the state: watches with the same key share a poller, which uses the Source of the first.
	Key  any
	Poll func(ctx context.Context) (S, error)
	// Listen subscribes: from then on notify is called when the state may have changed, until end is called. It returns nil
	// if it cannot subscribe.
	Listen func(ctx context.Context, notify func()) (end func())
	// Changed reports whether s differs from the last state, which is nil at first. It may complete s.
	Changed func(last, s *S) bool
	Rest    func(s *S) time.Duration // how long the state lasts without a message; negative if forever
	Fill    func(s *S)               // completes the state for the audience, without changing what Changed compares
	Failed  func(ctx context.Context, err error)
}

// poller polls a lock for all its watches in a client.
type poller[S any] struct {
	Source[S]
	pollers *Pollers[S]
	serial  int64         // seed of the jitter
	poke    chan struct{} // capacity 1: a message came, or may have been missed
	joined  chan struct{} // capacity 1: a watch has joined that has no state yet
	ctx     context.Context
	cancel  context.CancelFunc // called when the last watch leaves
	sleeper *clock.Sleeper

	watches map[*watch[S]]struct{} // guarded by Pollers.mu

	latest *S // latest state that was shown; nil at first
}

func (ps *Pollers[S]) join(w *watch[S], lock Source[S]) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byKey[lock.Key]
	if p == nil {
		ps.serial++
		p = &poller[S]{
			Source: lock, pollers: ps, serial: ps.serial, watches: map[*watch[S]]struct{}{},
			poke: make(chan struct{}, 1), joined: make(chan struct{}, 1),
		}
		p.ctx, p.cancel = context.WithCancel(ps.Wire.Context())
		if ps.byKey == nil {
			ps.byKey = map[any]*poller[S]{}
		}
		ps.byKey[lock.Key] = p
		ps.Running.Add(1) // before Shutdown waits for it: begin delays Shutdown
		p.sleeper = clock.NewSleeper(ps.Env)
		go p.run()
	}
	w.poller = p
	p.watches[w] = struct{}{}
	offer(p.joined)
}

// leave ends a watch, and its poller if it was the last.
func (ps *Pollers[S]) leave(w *watch[S]) {
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
func (ps *Pollers[S]) dropLocked(p *poller[S]) {
	p.cancel()
	if ps.byKey[p.Key] == p {
		delete(ps.byKey, p.Key)
	}
}

func (p *poller[S]) audience() []*watch[S] {
	ps := p.pollers
	ps.mu.Lock()
	defer ps.mu.Unlock()
	select {
	case <-p.joined: // the watch that joined is one of them
	default:
	}
	return slices.Collect(maps.Keys(p.watches))
}

// end ends all remaining watches, because the client shuts down.
func (p *poller[S]) end() {
	ps := p.pollers
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

func (p *poller[S]) run() {
	ps, ctx := p.pollers, p.ctx
	defer ps.Running.Add(-1)
	defer p.end()
	defer p.sleeper.Stop()
	var unsubscribe func()
	defer func() {
		if unsubscribe != nil {
			unsubscribe()
		}
	}()

	gap := min(watchGap, ps.Longest)
	pause := gap
	var next time.Time // time of the next poll, unless something wakes the poller earlier
	woken, failures := clock.ByTime, 0
	for poll := 0; ; poll++ {
		audience := p.audience()
		s, err := p.Poll(ctx)
		looked := ps.Env.Clock.Now()
		if ctx.Err() != nil {
			return
		}
		sleep, most := pause, ps.Longest
		planned := false
		if err != nil {
			p.Failed(ctx, err)
			sleep, pause = min(50*time.Millisecond<<min(failures, 5), time.Second), gap
			failures++
		} else {
			changed := p.Changed(p.latest, &s)
			if changed {
				shown := s
				p.latest = &shown
			}
			if changed || slices.ContainsFunc(audience, (*watch[S]).waits) {
				p.Fill(&s)
			}
			for _, w := range audience {
				w.update(&s, changed)
			}
			if rest := p.Rest(&s); rest >= 0 {
				most = max(rest, gap)
			}
			if changed {
				sleep, pause = gap, gap
			}
			if changed || woken != clock.ByMessage || failures > 0 {
				pause = min(2*pause, ps.Longest)
			} else {
				planned = true // a watch that joins does not change the pace
			}
			failures = 0
		}
		if unsubscribe == nil {
			// A change before the confirmation is not missed, because the confirmation pokes.
			unsubscribe = p.Listen(ctx, func() { offer(p.poke) })
		}
		// The jitter spreads the polls of several pollers.
		if planned {
			sleep = max(next.Sub(looked), 0)
		} else {
			sleep -= p.jitter(poll, sleep/4)
		}
		sleep = min(sleep, most+p.jitter(poll, 2*time.Millisecond))
		next = looked.Add(sleep)
		switch woken = p.sleep(sleep, p.poke); woken {
		case clock.ByEnd, clock.ByClosing:
			return
		case clock.ByPoke:
			pause = gap
			// Waiters for the lock go first, and pollers do not poll together.
			early := looked.Add(gap).Sub(ps.Env.Clock.Now())
			if p.sleep(max(early, 0)+watchYield/2+p.jitter(poll, watchYield/2), nil) >= clock.ByClosing {
				return
			}
		}
	}
}

func (p *poller[S]) jitter(poll int, d time.Duration) time.Duration {
	return seam.Jitter(p.pollers.Seed, p.serial, poll, d)
}

// sleep sleeps for d, or less if the poller is poked, or if a watch joins, which gets the state
// immediately.
func (p *poller[S]) sleep(d time.Duration, poke <-chan struct{}) (why clock.Waking) {
	why = p.sleeper.Sleep(d, poke, p.joined, p.ctx.Done(), p.pollers.Closing)
	if why < clock.ByClosing {
		p.pollers.Env.Stop("watch")
	}
	return why
}

package rlock

import (
	"cmp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// glances look at locks for their waiters, one request for many locks, once in a longest
// poll. The head of a line whose lock is held for long leaves that to them: it sleeps until
// it is poked by a message, or by a glance because the lock is free, is its own by now, or its
// lease ends soon.
// So idle waiters cost one command for each hundred locks, and yet each lock is looked at
// as often as if each head did.
//
// A glance only reads. Nothing is lost with its answer: after an error each head looks by
// itself, and finds out what to do about it.
type glances struct {
	env     *seam.Env
	wire    *wire.Deployment
	lines   *lines
	running *wire.Tally   // Shutdown waits for it
	closing chan struct{} // closed when Shutdown begins
	seed    uint64
	longest time.Duration // between two glances
	within  time.Duration // the answer to one comes, or its heads look by themselves
}

// isLong reports whether a lock is held for so long that a glance comes before the end of
// the lease, even if it is late. A negative rest is not known to end.
func (g *glances) isLong(rest time.Duration) bool { return rest < 0 || rest > 2*g.longest }

// relieve is called by the head of a line before it sleeps. It reports whether glances look
// for it from now on. rest is how long the lock is known to be held.
func (g *glances) relieve(w *waiter, p protocol.Protocol, rest time.Duration) bool {
	var l *protocol.HashLock
	if g.isLong(rest) {
		l = protocol.GlancedOf(p)
	}
	if l == nil && w.look == nil { // which only the waiter itself sets
		return false
	}
	q := g.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	w.look = l
	if l != nil && !w.listed {
		w.listed = true
		q.relieved = append(q.relieved, w)
	}
	if l != nil && !q.rested {
		q.rested = true
		g.running.Add(1) // while begin holds up Shutdown, which waits for it
		s := clock.NewSleeper(g.env)
		go g.run(s)
	}
	return l != nil
}

// run glances until no head leaves that to it.
func (g *glances) run(s *clock.Sleeper) {
	defer g.running.Add(-1)
	defer s.Stop()
	for turn := 0; ; turn++ {
		pause := g.longest - seam.Jitter(g.seed, 0, turn, g.longest/8) // clients do not glance together
		if s.Sleep(pause, nil, nil, nil, g.closing) == clock.ByClosing {
			return
		}
		g.env.Stop("glance")
		heads, goOn := g.due()
		if !goOn {
			return
		}
		g.glance(heads)
	}
}

// glanced is the head of a line, and the lock that a glance looks at for it.
type glanced struct {
	*waiter
	lock *protocol.HashLock
	at   time.Time // when the glance began
}

// mostListed is how many heads due looks at before others get the mutex of the lines: each Lock
// needs it, and tens of thousands may wait.
const mostListed = 500

// due returns the heads for which a glance is due. It reports whether there are any at all
// for which glances look; if not, the next one starts a goroutine again.
func (g *glances) due() (heads []glanced, goOn bool) {
	q := g.lines
	q.mu.Lock()
	all := q.relieved
	q.relieved = nil
	q.mu.Unlock()
	now := time.Now() // by the real clock, as other bounds of I/O
	for some := range slices.Chunk(all, mostListed) {
		heads = g.dueOf(some, now, heads)
	}
	slices.SortFunc(heads, func(a, b glanced) int { // a simulation must be repeatable
		x, y := a.line.key.lock, b.line.key.lock
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Family, y.Family))
	})
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rested = len(q.relieved) > 0
	return heads, q.rested
}

// dueOf appends those of some heads for which a glance is due, and lists them again if glances still
// look for them.
func (g *glances) dueOf(some []*waiter, now time.Time, heads []glanced) []glanced {
	q := g.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range some {
		if w.look == nil || w.line.head() != w {
			w.listed = false
			continue
		}
		q.relieved = append(q.relieved, w)
		switch {
		case w.glancing.IsZero():
			w.glancing = now
			heads = append(heads, glanced{w, w.look, now})
		case now.Sub(w.glancing) >= g.within: // go-redis may wait for an answer for much longer
			w.glancing = time.Time{}
			w.poke()
		}
	}
	return heads
}

// glance looks at the locks of heads, and pokes those that should look by themselves.
func (g *glances) glance(heads []glanced) {
	locks := make([]*protocol.HashLock, len(heads))
	for i, h := range heads {
		locks[i] = h.lock
	}
	round := g.wire.NewRound(1)
	protocol.Glance(locks, round, func(which []int, outcomes []protocol.Entered, err error) {
		now, q := g.env.Clock.Now(), g.lines
		q.mu.Lock()
		defer q.mu.Unlock()
		for j, i := range which {
			w := heads[i].waiter
			if w.glancing != heads[i].at {
				continue // it came too late, and says what was
			}
			w.glancing = time.Time{}
			switch {
			case err != nil || outcomes[j].Verdict != protocol.Busy || !g.isLong(outcomes[j].Rest):
				w.poke()
			case w.standsBy.id != "" && outcomes[j].Holder == w.standsBy.id:
				w.poke() // a release has made it the holder, and it has not heard of that
			case w.look != nil && w == w.line.head():
				w.line.seen = refusal(&outcomes[j], now) // it may have missed that another holds the lock now
			}
		}
	})
	// In a goroutine of its own, which a hook of go-redis may end, or an answer that is lost hold
	// up for as long as the time-outs of go-redis last: the next glances are still needed.
	over := make(chan struct{})
	g.wire.Go(func() {
		defer close(over)
		round.Send(func(redis.UniversalClient, []wire.Answer) {})
	})
	late := time.NewTimer(g.within)
	defer late.Stop()
	select {
	case <-over:
	case <-g.closing:
	case <-late.C:
	}
}

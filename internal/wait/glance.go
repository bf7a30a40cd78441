package wait

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

// Glances look at locks for their waiters, one request for many locks, once in a longest
// poll. The head of a line whose lock is held for long leaves that to them: it sleeps until
// it is poked by a message, or by a glance because the lock is free, is its own by now, or its
// lease ends soon.
// So idle waiters cost one command for each hundred locks, and yet each lock is looked at
// as often as if each head did.
//
// A glance only reads. Nothing is lost with its answer: after an error each head looks by
// itself, and finds out what to do about it.

// watched is the part of a waiter that leaves looking to glances.
type watched struct {
	lock   *protocol.HashLock // what they look at for it; nil: it looks by itself
	since  time.Time          // when the glance began that is under way; zero: none is
	listed bool               // it is in Lines.relieved
}

// isLong reports whether a lock is held for so long that a glance comes before the end of
// the lease, even if it is late. A negative rest is not known to end.
func (q *Lines[S]) isLong(rest time.Duration) bool { return rest < 0 || rest > 2*q.cfg.LongestPoll }

// Relieve is called by the head of a line before it sleeps. It reports whether glances look
// at a lock for it from now on; nil: they cannot. rest is how long the lock is known to be held.
func (q *Lines[S]) Relieve(w *Waiter[S], l *protocol.HashLock, rest time.Duration) bool {
	if !q.isLong(rest) {
		l = nil
	}
	if l == nil && w.glance.lock == nil { // which only the waiter itself sets
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.glance.lock = l
	if l != nil && !w.glance.listed {
		w.glance.listed = true
		q.relieved = append(q.relieved, w)
	}
	if l != nil && !q.rested {
		q.rested = true
		q.cfg.Running.Add(1) // while the call holds up Shutdown, which waits for it
		go q.glances(clock.NewSleeper(q.cfg.Env))
	}
	return l != nil
}

// glances looks for heads until none leaves that to it.
func (q *Lines[S]) glances(s *clock.Sleeper) {
	defer q.cfg.Running.Add(-1)
	defer s.Stop()
	for turn := 0; ; turn++ {
		pause := q.cfg.LongestPoll - seam.Jitter(q.cfg.Seed, 0, turn, q.cfg.LongestPoll/8) // clients do not glance together
		if s.Sleep(pause, nil, nil, nil, q.cfg.Closing) == clock.ByClosing {
			return
		}
		q.cfg.Env.Stop("glance")
		heads, goOn := q.due()
		if !goOn {
			return
		}
		q.glance(heads)
	}
}

// glanced is the head of a line, and the lock that a glance looks at for it.
type glanced[S comparable] struct {
	*Waiter[S]
	lock *protocol.HashLock
	at   time.Time // when the glance began
}

// mostListed is how many heads due looks at before others get the mutex of the lines: each Lock
// needs it, and tens of thousands may wait.
const mostListed = 500

// due returns the heads for which a glance is due. It reports whether there are any at all
// for which glances look; if not, the next one starts a goroutine again.
func (q *Lines[S]) due() (heads []glanced[S], goOn bool) {
	q.mu.Lock()
	all := q.relieved
	q.relieved = nil
	q.mu.Unlock()
	now := time.Now() // by the real clock, as other bounds of I/O
	for some := range slices.Chunk(all, mostListed) {
		heads = q.dueOf(some, now, heads)
	}
	slices.SortFunc(heads, func(a, b glanced[S]) int { // a simulation must be repeatable
		x, y := a.line.key.Lock, b.line.key.Lock
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Family, y.Family))
	})
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rested = len(q.relieved) > 0
	return heads, q.rested
}

// dueOf appends those of some heads for which a glance is due, and lists them again if glances still
// look for them.
func (q *Lines[S]) dueOf(some []*Waiter[S], now time.Time, heads []glanced[S]) []glanced[S] {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range some {
		if w.glance.lock == nil || w.line.head() != w {
			w.glance.listed = false
			continue
		}
		q.relieved = append(q.relieved, w)
		switch {
		case w.glance.since.IsZero():
			w.glance.since = now
			heads = append(heads, glanced[S]{w, w.glance.lock, now})
		case now.Sub(w.glance.since) >= q.cfg.GlanceWithin: // go-redis may wait for an answer for much longer
			w.glance.since = time.Time{}
			w.poke()
		}
	}
	return heads
}

// glance looks at the locks of heads, and pokes those that should look by themselves.
func (q *Lines[S]) glance(heads []glanced[S]) {
	locks := make([]*protocol.HashLock, len(heads))
	for i, h := range heads {
		locks[i] = h.lock
	}
	round := q.cfg.Wire.NewRound(1)
	protocol.Glance(locks, round, func(which []int, outcomes []protocol.Entered, err error) {
		now := q.cfg.Env.Clock.Now()
		q.mu.Lock()
		defer q.mu.Unlock()
		for j, i := range which {
			w := heads[i].Waiter
			if w.glance.since != heads[i].at {
				continue // it came too late, and says what was
			}
			w.glance.since = time.Time{}
			switch {
			case err != nil || outcomes[j].Verdict != protocol.Busy || !q.isLong(outcomes[j].Rest):
				w.poke()
			case w.standsBy.ID != "" && outcomes[j].Holder == w.standsBy.ID:
				w.poke() // a release has made it the holder, and it has not heard of that
			case w.glance.lock != nil && w == w.line.head():
				w.line.seen = q.cfg.Saw(&outcomes[j], now) // it may have missed that another holds the lock now
			}
		}
	})
	// In a goroutine of its own, which a hook of go-redis may end, or an answer that is lost hold
	// up for as long as the time-outs of go-redis last: the next glances are still needed.
	over := make(chan struct{})
	q.cfg.Wire.Go(func() {
		defer close(over)
		round.Send(func(redis.UniversalClient, []wire.Answer) {})
	})
	late := time.NewTimer(q.cfg.GlanceWithin)
	defer late.Stop()
	select {
	case <-over:
	case <-q.cfg.Closing:
	case <-late.C:
	}
}

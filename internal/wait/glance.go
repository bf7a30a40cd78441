package wait

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// A glance is one request that polls many locks for their waiters, once in a longest poll. If a lock is held for long, the
// head of its line does not poll. It sleeps until a message or a glance pokes it; a glance does if the lock is free, if
// the head holds it by now, or if the lease ends soon. So idle waiters cost one command for each hundred locks, and yet
// each lock is polled as often as its head would poll it.
//
// A glance only reads, so its reply may be lost: after an error each head polls itself, and handles the error.

// watched is the state of a waiter for which glances poll.
type watched struct {
	lock     *protocol.HashLock // the lock that glances poll; nil if the waiter polls itself
	beganAt  time.Time          // when the glance under way began; zero without one
	isListed bool               // the waiter is in Lines.glanceHeads
}

// isLong reports whether a lock is held for so long that even a late glance comes before the end of the lease. A
// negative rest means that the lease has no known end.
func (q *Lines) isLong(rest time.Duration) bool { return rest < 0 || rest > 2*q.cfg.LongestPoll }

// Relieve is called by the head of a line before it sleeps. It reports whether glances poll the lock l for the head from
// now on. l is nil if they cannot. The lock is known to be held for rest. The head itself polls once after a longest poll,
// and then identifies its client: see protocol.Identified.
func (q *Lines) Relieve(w *Waiter, l *protocol.HashLock, rest time.Duration) bool {
	if !q.isLong(rest) || !q.Lasts(w) {
		l = nil
	}
	if l == nil && w.glance.lock == nil { // only the waiter itself sets the field
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.glance.lock = l
	if l != nil && !w.glance.isListed {
		w.glance.isListed = true
		q.glanceHeads = append(q.glanceHeads, w)
	}
	if l != nil && !q.glancing {
		q.glancing = true
		q.cfg.Running.Add(1) // while the call holds up Shutdown, which waits for it
		go q.glances(clock.NewSleeper(q.cfg.Env))
	}
	return l != nil
}

// glances sends a glance in each longest poll, until no head needs one.
func (q *Lines) glances(s *clock.Sleeper) {
	defer q.cfg.Running.Add(-1)
	defer s.Stop()
	for n := 0; ; n++ {
		pause := q.cfg.LongestPoll - seam.Jitter(q.cfg.Seed, 0, n, q.cfg.LongestPoll/8) // clients do not glance together
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

// glanced is the head of a line, with the lock that a glance polls for it.
type glanced struct {
	*Waiter
	lock *protocol.HashLock
	at   time.Time // when the glance began
}

// mostListed is how many heads duePart handles before it unlocks the mutex of the lines: each Lock needs that mutex, and
// tens of thousands may wait.
const mostListed = 500

// due returns the heads for which a glance is due. goOn is false if glances poll for no head at all: the next Relieve
// starts the goroutine again.
func (q *Lines) due() (heads []glanced, goOn bool) {
	q.mu.Lock()
	all := q.glanceHeads
	q.glanceHeads = nil
	q.mu.Unlock()
	now := time.Now() // by the real clock, as other bounds of I/O
	for part := range slices.Chunk(all, mostListed) {
		heads = q.duePart(part, now, heads)
	}
	sort.Slice(heads, func(i, j int) bool { // a simulation must be repeatable
		x, y := heads[i].line.key.Lock, heads[j].line.key.Lock
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Family, y.Family)) < 0
	})
	q.mu.Lock()
	defer q.mu.Unlock()
	q.glancing = len(q.glanceHeads) > 0
	return heads, q.glancing
}

// duePart appends the heads in part for which a glance is due. It lists the heads again for which glances still poll.
func (q *Lines) duePart(part []*Waiter, now time.Time, heads []glanced) []glanced {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range part {
		if w.glance.lock == nil || w.line.head() != w {
			w.glance.isListed = false
			continue
		}
		q.glanceHeads = append(q.glanceHeads, w)
		switch {
		case w.glance.beganAt.IsZero():
			w.glance.beganAt = now
			heads = append(heads, glanced{w, w.glance.lock, now})
		case now.Sub(w.glance.beganAt) >= q.cfg.GlanceWithin: // go-redis may wait much longer for an answer
			w.glance.beganAt = time.Time{}
			w.poke()
		}
	}
	return heads
}

// glance polls the locks of heads, and pokes the heads that should poll themselves.
func (q *Lines) glance(heads []glanced) {
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
			if w.glance.beganAt != heads[i].at {
				continue // the reply came too late, and is out of date
			}
			w.glance.beganAt = time.Time{}
			switch {
			case err != nil || outcomes[j].Verdict != protocol.Busy || !q.isLong(outcomes[j].Rest):
				w.poke()
			case w.standBy.ID != "" && outcomes[j].Holder == w.standBy.ID:
				w.poke() // a release has made it the holder, and the message was lost or is still to come
			case w.glance.lock != nil && w == w.line.head():
				w.line.status = q.cfg.StatusOf(&outcomes[j], now) // the holder may have changed since the head polled
			}
		}
	})
	// The request has a separate goroutine, so that the next glances are sent in any case: a hook of go-redis may end that
	// goroutine, and a lost answer holds it up for the timeouts of go-redis.
	done := make(chan struct{})
	q.cfg.Wire.Go(func() {
		defer close(done)
		round.Send(func(redis.UniversalClient, []wire.Answer) {})
	})
	timeout := time.NewTimer(q.cfg.GlanceWithin)
	defer timeout.Stop()
	select {
	case <-done:
	case <-q.cfg.Closing:
	case <-timeout.C:
	}
}

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// handOverWithin is how soon a lock that is free goes to the next waiter: a few round
// trips, some of which are slow. Who finds out by a poll takes longer.
const handOverWithin = lockPoll / 4

// handOvers plays what no run with faults can judge, since a message that is lost costs
// a poll there: clients that are new, and a network that loses nothing. A lock that is
// free goes to the next waiter at once, whatever becomes of the one that was told.
func handOvers(w *World, j *judge, s scenario) {
	j.say("hand-overs")
	r := w.Rand("hand-overs")
	from, to, beside := newPlayer(w, s, "from"), newPlayer(w, s, "to"), newPlayer(w, s, "beside")
	for _, p := range []*player{from, to, beside} {
		defer p.close()
		// Dials, and loads the scripts.
		for _, l := range []rlock.Locker{p.locks[lockNames[0]], p.shared[lockNames[0]]} {
			if l == nil {
				continue
			}
			lease, err := l.Lock(context.Background())
			if err == nil {
				err = lease.Unlock(context.Background())
			}
			if err != nil {
				j.accuse("%s: before the hand-overs: %v", p.h.Name, err)
				return
			}
		}
	}
	for round := range 4 {
		most := longestFix
		if s.kind.longest > 0 {
			most = s.kind.longest
		}
		o := &handOver{w: w, j: j, r: r, from: from, to: to, next: to, lease: []rlock.AcquireOption{rlock.WithLease(most)}, told: round%2 == 0}
		if round == 3 {
			o.next = beside
		}
		if round >= 2 && s.kind.neighbors {
			o.from = to // its release wakes a waiter of its own client
		}
		o.play()
	}
}

// handOver is a hold with a fixed lease, and waiters, of which the first ones are
// canceled about when the lock becomes free.
type handOver struct {
	w        *World
	j        *judge
	r        *rand.Rand
	from, to *player
	next     *player // where those wait that are not canceled: to, or beside it
	told     bool    // the very ones that were told are canceled, before they look
	lease    []rlock.AcquireOption

	mu    sync.Mutex // guards the rest; never held while waiting
	freed time.Duration
}

func (o *handOver) play() {
	name, ctx := lockNames[0], context.Background()
	shared := o.to.shared[name] != nil && !o.j.s.kind.permits && o.r.IntN(2) == 0
	q := o.j.asks("from", name, false, nil)
	began := o.w.Elapsed()
	held, err := o.from.locks[name].Lock(ctx, o.lease...)
	if err != nil {
		o.j.accuse("from: Lock before a hand-over: %v", err)
		return
	}
	o.j.handed(q, held)
	if took := o.w.Elapsed() - began; took > handOverWithin {
		o.j.accuse("from: all had left the lock, and it was free for %v", took)
	}

	canceled := 1 + o.r.IntN(2)
	var cancels []context.CancelFunc
	var waiters sync.WaitGroup
	for i := range canceled + 2 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		cancels = append(cancels, cancel)
		p := o.to
		if i >= canceled {
			p = o.next
		}
		waiters.Go(func() { o.wait(ctx, p, fmt.Sprint(p.h.Name, i), shared, i < canceled) })
		o.to.h.Sleep("line up", time.Duration(o.r.Int64N(int64(20*time.Millisecond))))
	}
	o.to.h.Sleep("wait", 200*time.Millisecond+time.Duration(o.r.Int64N(int64(200*time.Millisecond))))

	if o.told {
		left := cancels[:canceled]
		var cancel func()
		cancel = func() {
			if len(left) > 0 {
				o.to.h.AtGate("woken", cancel)
				left[0]()
				left = left[1:]
			}
		}
		o.to.h.AtGate("woken", cancel)
	} else { // in the midst of whatever they are at
		late := time.Duration(o.r.Int64N(int64(2 * time.Millisecond)))
		waiters.Go(func() {
			time.Sleep(late)
			for _, cancel := range cancels[:canceled] {
				o.to.h.Sleep("cancel", time.Duration(o.r.Int64N(int64(200*time.Microsecond))))
				cancel()
			}
		})
	}
	o.unlock("from", name, grip{held, false})
	waiters.Wait()
	o.to.h.AtGate("", nil)
}

// wait is a waiter.
func (o *handOver) wait(ctx context.Context, p *player, who string, shared, canceled bool) {
	name := lockNames[0]
	lock := p.locks[name]
	if shared {
		lock = p.shared[name]
	}
	q := o.j.asks(who, name, shared, nil)
	l, err := lock.Lock(ctx, append([]rlock.AcquireOption{rlock.WithWait(10 * lockPoll)}, o.lease...)...)
	if canceled && errors.Is(err, context.Canceled) {
		o.j.say("%s is canceled", who)
		return
	}
	o.mu.Lock()
	took := o.w.Elapsed() - o.freed
	o.mu.Unlock()
	if err != nil {
		o.j.accuse("%s: the lock was free, and it waited in vain: %v", who, err)
		return
	}
	o.j.handed(q, l)
	if took > handOverWithin {
		o.j.accuse("%s: the lock was free for %v before it came in", who, took)
	}
	p.h.Sleep(who, 3*time.Millisecond)
	o.unlock(who, name, grip{l, shared})
}

func (o *handOver) unlock(who, name string, l grip) {
	o.mu.Lock()
	o.freed = o.w.Elapsed()
	o.mu.Unlock()
	o.j.unlocks(name, l.Lease)
	if err := l.Unlock(context.Background()); err != nil {
		o.j.accuse("%s: Unlock at a hand-over: %v", who, err)
		return
	}
	o.j.left(name, l)
}

package locktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// Told is an Observer that is also notified of contentions, renewals and leaderships.
type Told interface {
	rlock.Observer
	rlock.ContentionObserver
	rlock.RenewalObserver
	rlock.LeadershipObserver
}

// beside calls another Observer too.
type beside struct {
	*Gauges
	other Told
}

func (o beside) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	return o.Gauges.AcquireStart(o.other.AcquireStart(ctx, e), e)
}

func (o beside) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	o.other.AcquireEnd(ctx, e)
	o.Gauges.AcquireEnd(ctx, e)
}

func (o beside) Contended(ctx context.Context, e rlock.ContentionEvent) {
	o.other.Contended(ctx, e)
	o.Gauges.Contended(ctx, e)
}

func (o beside) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	o.other.Unlocked(ctx, e)
	o.Gauges.Unlocked(ctx, e)
}

func (o beside) Lost(ctx context.Context, e rlock.LossEvent) {
	o.other.Lost(ctx, e)
	o.Gauges.Lost(ctx, e)
}

func (o beside) Renewed(ctx context.Context, e rlock.RenewalEvent) {
	o.other.Renewed(ctx, e)
	o.Gauges.Renewed(ctx, e)
}

func (o beside) Leadership(ctx context.Context, e rlock.LeadershipEvent) {
	o.other.Leadership(ctx, e)
	o.Gauges.Leadership(ctx, e)
}

// Crowd has the owners of two clients lock, enter again, hand over, lose and unlock what they like,
// and then shuts the clients down. made returns the Observer of each client. Whenever the crowd rests,
// same must come true: the gauges of a client show the same as its Observer. At the end they show nothing.
func Crowd(t *testing.T, made func(client int) Told, same func(client, waiting, held, leads int) bool) {
	b := OnMiniredis(t)
	var clock Clock
	const clients, workers = 2, 4
	var gauges [clients]Gauges
	var cs [clients]*rlock.Client
	var pools [clients][]rlock.Locker
	var held [clients][workers][]*rlock.Lease
	for i := range cs {
		c := b.NewClient(t, clock.Option(), rlock.WithObserver(beside{&gauges[i], made(i)}))
		handOver := rlock.WithHandOver(8, time.Minute)
		rw := c.NewReadWriteLock("rw-1")
		pools[i] = []rlock.Locker{
			c.NewLock("lock-1", handOver), c.NewLock("lock-1", handOver), c.NewFairLock("fair-1"), c.NewPriorityLock("priority-1"),
			rw.Reader, rw.Writer, NewMultiLock(t, c.NewLock("{a}1"), c.NewLock("{a}2")), Electing{Election: c.NewElection("election-1")},
		}
		cs[i] = c
	}
	rest := func(when string) {
		t.Helper()
		for i := range gauges {
			g := &gauges[i]
			Eventually(t, when+": the gauges are the same", func() bool {
				acquiring, waiting, held, leads := g.Now()
				return len(g.Faults()) > 0 || acquiring == 0 && waiting == 0 && same(i, waiting, held, leads)
			})
			if faults := g.Faults(); len(faults) > 0 {
				t.Fatalf("%s: %s", when, faults)
			}
		}
	}
	for round := range uint64(4) {
		var wg sync.WaitGroup
		for i := range cs {
			for j := range workers {
				r := rand.New(rand.NewPCG(round, uint64(i)<<8|uint64(j)))
				wg.Go(func() { held[i][j] = someLocking(r, pools[i], held[i][j]) })
			}
		}
		wg.Wait()
		for i, c := range cs { // whatever the others had time for, something is held
			lease := MustLock(t, c.NewLock(fmt.Sprint("own-", i, "-", round)))
			held[i][0] = append(held[i][0], lease)
		}
		rest(fmt.Sprint("round ", round))
		clock.Forward([]time.Duration{Lease / 3, 2 * time.Hour}[round%2]) // renewals; losses
		rest(fmt.Sprint("after round ", round))
	}
	for i, c := range cs {
		down := make(chan error)
		go func() { down <- c.Shutdown(bg) }()
		for _, leases := range held[i] {
			for _, l := range leases {
				_ = l.Unlock(bg)
			}
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
	}
	rest("the end")
	for i := range gauges {
		if _, waiting, held, leads := gauges[i].Now(); waiting != 0 || held != 0 || leads != 0 {
			t.Errorf("in the end %d wait, %d are held, %d lead", waiting, held, leads)
		}
	}
}

// someLocking does a few random things, and returns the leases that are kept.
func someLocking(r *rand.Rand, pool []rlock.Locker, held []*rlock.Lease) []*rlock.Lease {
	for range 8 {
		ctx, cancel := context.WithCancel(bg)
		if len(held) > 0 && r.IntN(2) == 0 {
			ctx = held[r.IntN(len(held))].Context(ctx) // enters again what it holds
		}
		l := pool[r.IntN(len(pool))]
		if r.IntN(3) > 0 { // where there is a crowd
			l = pool[r.IntN(2)]
		}
		wait := time.Duration(1+r.IntN(60)) * time.Millisecond
		if r.IntN(4) == 0 {
			time.AfterFunc(wait/2, cancel)
		}
		var opts []rlock.AcquireOption
		if r.IntN(4) == 0 {
			opts = append(opts, rlock.WithLease(time.Hour))
		}
		if lease, err := l.Lock(ctx, append(opts, rlock.WithWait(wait))...); err == nil {
			held = append(held, lease)
		}
		cancel()
		for len(held) > 0 && r.IntN(3) > 0 {
			i := r.IntN(len(held))
			_ = held[i].Unlock(bg)
			held = append(held[:i], held[i+1:]...)
		}
		if with, ok := l.(interface {
			ForceUnlock(context.Context) (bool, error)
		}); ok && r.IntN(20) == 0 {
			_, _ = with.ForceUnlock(bg)
		}
	}
	return held
}

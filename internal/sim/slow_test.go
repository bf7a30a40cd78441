package sim

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// Nodes answer everything within the node timeout, but half of the requests take most of it. So many are sent
// twice, run twice, and overtake each other. Nobody loses a hold, and each Unlock says that the hold was there all
// the time: no node has voted for another meanwhile.
func TestSlowNodesLoseNoHold(t *testing.T) {
	for _, servers := range []int{3, 5} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			t.Parallel()
			unlocked, again := 0, 0
			for _, seed := range seedsOf(ordinary(20)) {
				u, a := slowNodes(t, seed, servers)
				unlocked, again = unlocked+u, again+a
			}
			t.Logf("%d holds, %d requests were sent again", unlocked, again)
			if unlocked == 0 || 2*again < unlocked {
				t.Error("something that should be tried never happened")
			}
		})
	}
}

func slowNodes(t *testing.T, seed uint64, servers int) (unlocked, again int) {
	bubble(t, seed, Config{Servers: servers}, func(w *World) {
		seen := &retryCount{}
		var all []*process
		for _, name := range []string{"a", "b"} {
			p := newProcess(w, name, near, rlock.WithObserver(seen))
			defer p.close()
			p.warm()
			all = append(all, p)
		}
		w.SetRates(Rates{Slow: 0.5, SlowFor: rlock.DefaultNodeTimeout * 85 / 100, Again: 0.1})
		var users sync.WaitGroup
		var n atomic.Int64
		for _, p := range all {
			users.Go(func() {
				r := w.Rand("user " + p.h.Name)
				for i := range 25 {
					ctx := context.Background()
					lease, err := p.lock.Lock(ctx)
					if err != nil {
						t.Errorf("seed %d: Lock of %s: %v", seed, p.h.Name, err)
						return
					}
					longest := rlock.DefaultNodeTimeout
					if i%5 == 0 {
						longest = rlock.DefaultWatchdogLease // it is renewed
					}
					p.h.Sleep("hold "+p.h.Name, time.Duration(r.Int64N(int64(longest))))
					if err := lease.Unlock(ctx); err != nil {
						t.Errorf("seed %d: Unlock of %s: %v", seed, p.h.Name, err)
					}
					n.Add(1)
				}
			})
		}
		users.Wait()
		unlocked, again = int(n.Load()), seen.now()
		w.Heal()
	})
	return unlocked, again
}

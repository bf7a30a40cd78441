package quorum

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// withOneAway are the ways in which one of five nodes may fail without an error.
var withOneAway = []struct {
	name        string
	strike, end func(n *masters, i int)
}{
	{"hung", func(n *masters, i int) { n.servers[i].Pause() }, func(n *masters, i int) { n.servers[i].Resume() }},
	{"slow", func(n *masters, i int) {
		n.proxies[i].Delay(func(faultproxy.Command) time.Duration { return 300 * time.Millisecond })
	}, func(n *masters, i int) { n.proxies[i].Delay(nil) }},
}

// Those who compete for a lock do not keep their votes from each other while they
// wait for a node that is silent, be it the first that is asked or another: who did would
// wait for the node timeout, and the others with it for longer than MustLock does.
func TestRedLockContentionDoesNotWaitForASilentNode(t *testing.T) {
	t.Parallel()
	const clients, holds = 4, 6
	n := startMasters(t)
	n.warm(t)
	for _, away := range withOneAway {
		for _, i := range []int{0, 2} {
			away.strike(n, i)
			var locks []*rlock.RedLock
			for range clients {
				locks = append(locks, locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(locktest.Lease/6)))
			}
			var inside atomic.Int32
			var wg sync.WaitGroup
			start := time.Now()
			for _, l := range locks {
				wg.Go(func() {
					for range holds {
						lease := locktest.MustLock(t, l)
						if inside.Add(1) != 1 {
							t.Error("two are inside")
						}
						inside.Add(-1)
						locktest.MustUnlock(t, lease)
					}
				})
			}
			wg.Wait()
			t.Logf("%d holds: %v with node %d %s", clients*holds, time.Since(start), i+1, away.name)
			away.end(n, i)
		}
	}
}

// A holder keeps its lease as long as a quorum of nodes answers, also if it needs
// votes for that which it does not have yet, and for which others wait.
func TestRedLockHolderOutlivesASilentNodeWithWaiters(t *testing.T) {
	t.Parallel()
	for _, away := range withOneAway {
		t.Run(away.name, func(t *testing.T) {
			if away.name == "hung" || away.name == "slow" {
				locktest.Thorough(t) // these wait for twenty seconds
			}
			t.Parallel()
			n := startMasters(t)
			n.warm(t)
			acquire := locktest.SHA("quorum/acquire")
			var refused [5]atomic.Int64
			for _, i := range []int{3, 4} {
				n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(acquire) {
						refused[i].Add(1)
						return faultproxy.Error
					}
					return faultproxy.Pass
				})
			}
			lease := locktest.MustLock(t, locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithWatchdogLease(locktest.RedLockLease*3/2)), rlock.WithNodeTimeout(locktest.RedLockTimeout)))
			locktest.Eventually(t, "two have refused", func() bool { return refused[3].Load() > 0 && refused[4].Load() > 0 })
			n.pass()
			away.strike(n, 2)
			var wg sync.WaitGroup
			waiting := make(chan struct{})
			for range 4 {
				// Often, so that somebody tries while the holder renews, but not so often that the votes are
				// never free on a busy machine.
				l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithLongestPoll(50*time.Millisecond)))
				wg.Go(func() {
					for {
						select {
						case <-waiting:
							return
						default:
						}
						got, err := l.Lock(bg, rlock.WithWait(time.Second))
						if err == nil {
							if lease.Err() == nil {
								t.Error("two hold it")
							}
							locktest.MustUnlock(t, got)
						} else if !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrNoQuorum) {
							t.Error(err)
						}
					}
				})
			}
			renewed, was := 0, lease.Deadline()
			// The first can use votes that others gave anew only for the next.
			locktest.Eventually(t, "it was renewed three times, or lost", func() bool {
				if d := lease.Deadline(); d.After(was) {
					renewed, was = renewed+1, d
				}
				return renewed == 3 || lease.Err() != nil
			})
			if err := lease.Err(); err != nil {
				t.Errorf("after %d renewals: %v", renewed, err)
			}
			close(waiting)
			wg.Wait()
			away.end(n, 2)
			if renewed == 3 {
				// Votes that others gave anew, and the one of the node that was away, may have been another hold's
				// since the last renewal that was sure.
				if err := lease.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrUnconfirmed) {
					t.Error(err)
				}
			}
		})
	}
}

package faults

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Of 200 Unlocks each loses its first copy, or the reply to it, most of them while the caller itself waits for that. None says
// that the lease was lost, nothing is left in Redis, and a copy that runs when another has the lock takes nothing from it.
func TestUnlocksWhoseFirstCopyIsLate(t *testing.T) {
	t.Parallel()
	const clients, each = 25, 8 // so many of a client are sent by their callers at a time
	for name, action := range map[string]faultproxy.Action{"runs, the reply is lost": faultproxy.SwallowReply, "runs later": faultproxy.Hold} {
		locktest.Beside(t, name, func(t *testing.T) {
			b := locktest.OnServer(t)
			proxy := faultproxy.New(t, b.Addr)
			var all []*rlock.Client
			var leases []*rlock.Lease
			for i := range clients {
				// A worker would wait for half of that. The clients of locktest leave all to workers.
				c, err := rlock.New(locktest.Dialer(proxy.Addr())(t, nil), rlock.WithAnonymity(), rlock.WithUnlockTimeout(20*time.Second), rlock.WithWatchdogLease(locktest.Lease))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { locktest.Stop(c) })
				all = append(all, c)
				warm(t, c)
				for _, l := range locksOf(c, fmt.Sprint("a", i, ":"), each) {
					leases = append(leases, locktest.MustLock(t, l))
				}
			}
			scripts := []string{"lock/release", "lock/release_next", "lock/release_many"}
			var shas []string
			for _, script := range scripts {
				shas = append(shas, locktest.SHA(script))
			}
			var mu sync.Mutex
			late := map[string]bool{}
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if !slices.ContainsFunc(shas, cmd.IsScript) {
					return faultproxy.Pass
				}
				mu.Lock()
				defer mu.Unlock()
				key := cmd.Args[2]
				if late[key] {
					return faultproxy.Pass
				}
				late[key] = true
				return action
			})
			var unconfirmed, quick atomic.Int32
			var unlocks sync.WaitGroup
			for _, lease := range leases {
				unlocks.Go(func() {
					began := time.Now()
					switch err := lease.Unlock(bg); {
					case err == nil:
					case errors.Is(err, rlock.ErrUnconfirmed) && !errors.Is(err, rlock.ErrLeaseLost):
						unconfirmed.Add(1)
					default:
						t.Errorf("%v", err)
					}
					if time.Since(began) < 8*time.Second {
						quick.Add(1)
					}
				})
			}
			unlocks.Wait()
			mu.Lock()
			n := len(late)
			mu.Unlock()
			t.Logf("%d of %d lost a copy, %d were not confirmed; %d callers had waited for it themselves", n, len(leases), unconfirmed.Load(), quick.Load())
			if n < len(leases)*9/10 { // a few may share a command
				t.Errorf("%d of %d lost a copy", n, len(leases))
			}
			rdb := b.Client(t)
			locktest.OnlyTombstones(t, rdb)
			other := b.NewClient(t)
			var next []*rlock.Lease
			for i := range all {
				for _, l := range locksOf(other, fmt.Sprint("a", i, ":"), each) {
					next = append(next, locktest.MustLock(t, l))
				}
			}
			if action == faultproxy.Hold {
				if ran := proxy.Release(); ran != n {
					t.Errorf("%d of %d copies ran late", ran, n)
				}
			}
			for _, lease := range next {
				locktest.MustUnlock(t, lease)
			}
			locktest.OnlyTombstones(t, rdb)
		})
	}
}

package rlock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func fiveMasters(t testing.TB, on func(testing.TB) *locktest.Backend) (rdbs []redis.UniversalClient, clients func() []*rlock.Client) {
	t.Helper()
	for range 5 {
		rdbs = append(rdbs, on(t).Client(t))
	}
	return rdbs, func() (cs []*rlock.Client) {
		for _, rdb := range rdbs {
			cs = append(cs, locktest.NewClient(t, rdb))
		}
		return cs
	}
}

func TestRedLockExcludes(t *testing.T) {
	t.Parallel()
	for name, on := range map[string]func(testing.TB) *locktest.Backend{
		"miniredis":  locktest.OnMiniredis,
		"standalone": func(t testing.TB) *locktest.Backend { return locktest.OnServer(t) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "miniredis" {
				locktest.Repeated(t)
			}
			_, clients := fiveMasters(t, on)
			// Five miniredis share the processors with the race detector.
			patient := rlock.WithNodeTimeout(5 * time.Second)
			locks := []*rlock.RedLock{locktest.NewRedLock(t, "stock", clients(), patient), locktest.NewRedLock(t, "stock", clients(), patient), locktest.NewRedLock(t, "stock", clients(), patient)}
			var last int64
			counter, inside := 0, 0
			var wg sync.WaitGroup
			start := time.Now()
			for _, l := range locks {
				for range 3 {
					wg.Go(func() {
						for range 20 {
							lease := locktest.MustLock(t, l)
							inside++
							if inside != 1 || lease.Token() <= last {
								t.Errorf("%d inside, token %d after %d", inside, lease.Token(), last)
							}
							last = lease.Token()
							counter++
							inside--
							locktest.MustUnlock(t, lease)
						}
					})
				}
			}
			wg.Wait()
			t.Logf("%d holds in %v", counter, time.Since(start).Round(time.Millisecond))
			if counter != 180 {
				t.Fatalf("%d holds, want 180", counter)
			}
			lease := locktest.MustLock(t, locks[0])
			inner := locktest.MustLockCtx(t, lease.Context(bg), locks[0])
			locktest.MustUnlock(t, inner)
			if s, err := locks[1].State(bg); err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != lease.HoldID() {
				t.Errorf("state %v, %v", s, err)
			}
			if _, err := locks[1].TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, lease)
		})
	}
}

package queues

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestFairLockIsGivenInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		clients := []*rlock.Client{locktest.NewClient(t, rdb), b.NewClient(t), b.NewClient(t)}
		const n = 24
		lease := locktest.MustLock(t, clients[0].NewFairLock("a"))
		var mu sync.Mutex
		var served []string
		var tokens []int64
		var turns []*locktest.FairWaiter
		var wg sync.WaitGroup
		for i := range n {
			w := locktest.MustLineUp(t, rdb, clients[i%len(clients)].NewFairLock("a"))
			turns = append(turns, w)
			wg.Go(func() {
				lease := w.Wait(t)
				mu.Lock()
				served, tokens = append(served, lease.HoldID()), append(tokens, lease.Token())
				mu.Unlock()
				locktest.MustUnlock(t, lease)
			})
		}
		var want []string
		for _, w := range turns {
			want = append(want, w.ID)
		}
		if v := locktest.FairState(rdb, "a"); !slices.Equal(v.Queue, want) {
			t.Fatalf("queue %q, want %q", v.Queue, want)
		}
		if s, err := clients[1].NewFairLock("a").State(bg); err != nil || s.Waiters != n || s.Holders[0].HoldID != lease.HoldID() {
			t.Fatalf("%+v, %v", s, err)
		}
		locktest.MustUnlock(t, lease)
		wg.Wait()
		if !slices.Equal(served, want) {
			t.Errorf("served %q, came %q", served, want)
		}
		if !slices.IsSorted(tokens) || tokens[0] <= lease.Token() {
			t.Errorf("tokens %d after %d", tokens, lease.Token())
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestFairTryLockNeverOvertakes(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		l := c.NewFairLock("a")
		locktest.MustUnlock(t, locktest.MustLock(t, l, rlock.WithWait(0))) // free, and nobody waits

		// A waiter whose client has died a moment ago: it is next, and the lock is
		// free.
		now := locktest.ServerNow(rdb)
		k := locktest.FairKeysOf("a")
		rdb.RPush(bg, k.Queue, redistest.HoldID("next:1"))
		rdb.ZAdd(bg, k.Deadlines, redis.Z{Score: now + 60_000, Member: redistest.HoldID("next:1")})
		rdb.ZAdd(bg, k.Alive, redis.Z{Score: now + 30_000, Member: redistest.HoldID("next:1")})
		for what, look := range map[string]func() (*rlock.Lease, error){
			"TryLock":    func() (*rlock.Lease, error) { return l.TryLock(bg) },
			"WithWait 0": func() (*rlock.Lease, error) { return l.Lock(bg, rlock.WithWait(0)) },
		} {
			if lease, err := look(); lease != nil || !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatalf("%s: %v, %v", what, lease, err)
			}
		}
		if v := locktest.FairState(rdb, "a"); len(v.Queue) != 1 || len(v.Hold) != 0 {
			t.Fatalf("%+v", v)
		}
	})
}

func TestFairReentryDoesNotWait(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewFairLock("a")
		outer := locktest.MustLock(t, l)
		w := locktest.MustLineUp(t, rdb, b.NewClient(t).NewFairLock("a"))
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		again, err := l.TryLock(inner.Context(bg))
		if err != nil {
			t.Fatal(err)
		}
		if n := locktest.HoldCount(t, rdb, "a", outer.HoldID()); n != "3" || inner.Token() != outer.Token() {
			t.Fatalf("count %s, tokens %d and %d", n, inner.Token(), outer.Token())
		}
		for _, lease := range []*rlock.Lease{outer, again} {
			locktest.MustUnlock(t, lease)
		}
		if v := locktest.FairState(rdb, "a"); !w.Waits() || len(v.Queue) != 1 || v.Hold[outer.HoldID()] != "1" {
			t.Fatalf("%+v", v)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, w.Wait(t))
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestFairWaiterThatLeavesLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		holder := locktest.NewClient(t, rdb)
		lease := locktest.MustLock(t, holder.NewFairLock("a"))
		for what, end := range map[string]func(c *rlock.Client, w *locktest.FairWaiter){
			"context": func(_ *rlock.Client, w *locktest.FairWaiter) { w.Cancel() },
			"shutdown": func(c *rlock.Client, _ *locktest.FairWaiter) {
				if err := c.Shutdown(bg); err != nil {
					t.Error(err)
				}
			},
		} {
			c := locktest.NewClient(t, b.Client(t))
			first, second := locktest.MustLineUp(t, rdb, c.NewFairLock("a")), locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
			for _, w := range []*locktest.FairWaiter{first, second} {
				end(c, w)
				w.Left(t)
			}
			want := map[string]error{"context": context.Canceled, "shutdown": rlock.ErrClosed}[what]
			locktest.WantErr(t, first.Err, want)
			locktest.Eventually(t, what+": its place is gone", func() bool {
				v := locktest.FairState(rdb, "a")
				return len(v.Queue)+len(v.Deadlines)+len(v.Alive) == 0
			})
		}
		_, err := locktest.NewClient(t, b.Client(t)).NewFairLock("a").Lock(bg, rlock.WithWait(50*time.Millisecond))
		locktest.WantEnded(t, err, nil)
		locktest.Eventually(t, "only the hold is left", func() bool {
			return slices.Equal(slices.DeleteFunc(locktest.Keys(t, rdb), func(k string) bool { return locktest.Tombstones([]string{k}) > 0 }), []string{"a"})
		})
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

// A hand-over costs a release and one look, however many wait.
func TestFairHandOverCostsTwoScripts(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		m := locktest.Join(t, b.Client(t))
		lease := locktest.MustLock(t, m.NewFairLock("a"))
		var turns []*locktest.FairWaiter
		for range 10 {
			turns = append(turns, locktest.Parked(t, rdb, m, "a"))
		}
		before := m.Looks.At("a")
		start := time.Now()
		for _, w := range turns {
			locktest.MustUnlock(t, lease)
			lease = w.Wait(t)
		}
		// A release and a look for each, and while it took, the signs of life.
		n, signs := m.Looks.At("a")-before, 10*int(time.Since(start)/(rlock.DefaultWaiterLease/3)+1)
		if n > 2*len(turns)+signs {
			t.Errorf("%d scripts for %d hand-overs", n, len(turns))
		}
		locktest.MustUnlock(t, lease)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestFairLockIsAdministered(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		l := c.NewFairLock("a")
		lease := locktest.MustLock(t, l)
		w := locktest.MustLineUp(t, rdb, l)
		if ok, err := l.ForceUnlockIf(bg, redistest.HoldID("another:1")); ok || err != nil {
			t.Fatal(ok, err)
		}
		if n, err := l.HoldCount(lease.Context(bg)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		s, err := l.State(bg)
		if err != nil || s.Waiters != 1 || s.Token != lease.Token() || s.Mode != rlock.ModeExclusive || s.TTL <= 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		if ok, err := l.ForceUnlock(bg); !ok || err != nil {
			t.Fatal(ok, err)
		}
		next := w.Wait(t)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
		if ok, err := l.ForceUnlockIf(bg, next.HoldID()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if locked, err := l.IsLocked(bg); locked || err != nil {
			t.Fatal(locked, err)
		}
		locktest.WantErr(t, next.Unlock(bg), rlock.ErrLeaseLost)
		locktest.MustBeEmpty(t, rdb)
		if v := locktest.FairState(rdb, "a"); len(v.Queue) > 0 || !maps.Equal(v.Alive, map[string]float64{}) {
			t.Fatalf("%+v", v)
		}
		_, err = c.NewFairLock("").Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, err = c.NewFairLock("a{b").Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	})
}

package rlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

func fencedToken(t testing.TB, l *rlock.FencedLock) int64 {
	t.Helper()
	n, err := l.CurrentToken(bg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFencedTokensAreCountedForEverybody(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l, other := locktest.NewClient(t, rdb).NewFencedLock("a"), b.NewClient(t).NewFencedLock("a")
		if n := fencedToken(t, l); n != 0 {
			t.Fatalf("before the first hold the token is %d", n)
		}
		for want := int64(1); want <= 3; want++ {
			outer := locktest.MustLock(t, l)
			inner := locktest.MustLockCtx(t, outer.Context(bg), l)
			s, err := other.State(bg)
			if err != nil {
				t.Fatal(err)
			}
			for who, n := range map[string]int64{
				"the first entry": outer.Token(), "a re-entry": inner.Token(), "another client's State": s.Token, "another client": fencedToken(t, other),
			} {
				if n != want {
					t.Fatalf("%s has token %d, want %d", who, n, want)
				}
			}
			locktest.MustUnlock(t, inner)
			locktest.MustUnlock(t, outer)
			if n := fencedToken(t, other); n != want {
				t.Fatalf("after the release the token is %d, want %d", n, want)
			}
			if s, err = other.State(bg); err != nil || s.Token != 0 {
				t.Fatalf("State of a free lock: %+v, %v", s, err)
			}
		}
		// Java's second entry raises the counter: the next hold is above both.
		rdb.Incr(bg, "redisson_lock_token:{a}")
		rdb.Incr(bg, "redisson_lock_token:{a}")
		lease := locktest.MustLock(t, other)
		if lease.Token() != 6 {
			t.Fatalf("token %d after 5", lease.Token())
		}
		locktest.MustUnlock(t, lease)
	})
}

// Acquires that are sent again raise the counter once.
func TestFencedAcquireWithLostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/enter", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		// Each loss is a scenario of the same server: the counter goes on.
		l := c.NewFencedLock("a")
		before := fencedToken(t, l)
		seen := locktest.OnNth(t, proxy, "lock/enter", 1, action)
		lease := locktest.MustLock(t, l)
		if action != faultproxy.Duplicate && seen.Load() < 2 {
			t.Fatal("it was not sent again")
		}
		inner := locktest.MustLockCtx(t, lease.Context(bg), l)
		if n := fencedToken(t, l); n != before+1 || lease.Token() != n || inner.Token() != n {
			t.Fatalf("from %d the counter went to %d; the lease has token %d, a re-entry %d", before, n, lease.Token(), inner.Token())
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, lease)
		if n := rdb.Exists(bg, "a").Val(); n != 0 {
			t.Fatal("the lock is left")
		}
	})
}

// A late copy of an acquire does not raise the counter of those who came later,
// or hold the lock.
func TestFencedLateCopyDoesNotCount(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		l, other := c.NewFencedLock("a"), locktest.NewClient(t, rdb).NewFencedLock("a")
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.Hold)
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		proxy.Handle(nil)
		second := locktest.MustLock(t, other)
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		locktest.MustUnlock(t, second)
		if n := fencedToken(t, other); n != 2 || second.Token() != 2 {
			t.Fatalf("after two holds the counter is %d; the second had token %d", n, second.Token())
		}
		third := locktest.MustLock(t, other)
		if third.Token() != 3 {
			t.Fatalf("token %d, want 3", third.Token())
		}
		locktest.MustUnlock(t, third)
	})
}

// Redisson's tryLockAndGetToken() waits without limit, and its
// lockAndGetToken(lease) forgets the lease.
func TestFencedTryLockReturnsAtOnceAndLockKeepsItsLease(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewFencedLock("a")
		other := b.NewClient(t).NewFencedLock("a")
		lease := locktest.MustLock(t, l, rlock.WithLease(time.Hour))
		if ttl := rdb.PTTL(bg, "a").Val(); ttl < 59*time.Minute || ttl > time.Hour {
			t.Fatalf("TTL %v of a lease of an hour", ttl)
		}
		start := time.Now()
		_, err := other.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if n := fencedToken(t, other); n != 1 { // nor does the look at the token wait
			t.Fatalf("token %d", n)
		}
		// Two round trips; the bound is that of a machine that does other things.
		if took := time.Since(start); took > 30*time.Second {
			t.Fatalf("it took %v to see that the lock is held", took)
		}
		locktest.MustUnlock(t, lease)
	})
}

// Redisson's counters never go, and there is one for each name. Lock has tokens
// too, and leaves nothing for a name.
func TestFencedCounterStaysAndLockLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		const n = 50
		for i := range n {
			locktest.Pair(t, c.NewLock(fmt.Sprint("order:", i)))
		}
		locktest.MustBeEmpty(t, rdb)
		for i := range n {
			locktest.Pair(t, c.NewFencedLock(fmt.Sprint("order:", i)))
		}
		keys := locktest.Keys(t, rdb)
		if len(keys) != n {
			t.Fatalf("%d names left %d keys", n, len(keys))
		}
		for _, key := range keys {
			if ttl := rdb.TTL(bg, key).Val(); ttl != -1 || !strings.HasPrefix(key, "redisson_lock_token:{order:") {
				t.Fatalf("key %q with TTL %v", key, ttl)
			}
		}
		// What the doc comment offers: the tokens of a name begin anew.
		if err := rdb.Del(bg, keys...).Err(); err != nil {
			t.Fatal(err)
		}
		lease := locktest.MustLock(t, c.NewFencedLock("order:1"))
		if lease.Token() != 1 {
			t.Fatalf("token %d without a counter", lease.Token())
		}
		locktest.MustUnlock(t, lease)
	})
}

func TestFencedLockAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	l := locktest.NewClient(t, rdb).NewFencedLock("a")
	outer := locktest.MustLock(t, l)
	inner := locktest.MustLockCtx(t, outer.Context(bg), l)
	rdb.ConfigSet(bg, "maxmemory", "1")
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, outer)
	_, err := l.TryLock(bg)
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatal("an acquire at the memory limit:", err)
	}
	if n := fencedToken(t, l); n != 1 || rdb.Exists(bg, "a").Val() != 0 {
		t.Fatalf("the acquire that was refused has changed something: the counter is %d", n)
	}
	rdb.ConfigSet(bg, "maxmemory", "0")
	lease := locktest.MustLock(t, l)
	if lease.Token() != 2 {
		t.Fatalf("token %d, want 2", lease.Token())
	}
	locktest.MustUnlock(t, lease)
}

// What is no number in the place of the counter is reported, and no hold is left.
func TestFencedLockWithoutAUsableCounter(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewFencedLock("a")
		rdb.Set(bg, "redisson_lock_token:{a}", "many", 0)
		_, err := l.TryLock(bg)
		var reply redis.Error
		if !errors.As(err, &reply) {
			t.Fatalf("%v is not what Redis said", err)
		}
		if n := rdb.Exists(bg, "a").Val(); n != 0 {
			t.Fatal("the lock is left")
		}
	})
}

func TestFencedLockRefusesBadArguments(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	hook := &locktest.CountHook{}
	rdb.AddHook(hook)
	c := locktest.NewClient(t, rdb)
	for _, l := range []*rlock.FencedLock{c.NewFencedLock(""), c.NewFencedLock("a{b")} {
		_, err := l.Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, err = l.CurrentToken(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	if n := hook.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.NewFencedLock("a").CurrentToken(bg)
	locktest.WantErr(t, err, rlock.ErrClosed)
}

// State and Watch show the counter as the token of a holder that raised it, and not of
// one that took the name as another type.
func TestFencedStateShowsTheCounterOnlyForHoldsThatRaisedIt(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const java = "285475da-9152-4c83-822a-67ee2f116a79:52"
		rdb, other := b.Client(t), b.NewClient(t)
		here := other.NewFencedLock("a")
		far := b.NewClient(t).NewFencedLock("a")
		states := watching(t, far)
		watchFree(t, states)
		check := func(who string, l *rlock.FencedLock, owner string, want int64) {
			t.Helper()
			s, err := l.State(bg)
			if err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != owner || s.Token != want {
				t.Errorf("%s: %+v, %v, want token %d", who, s, err, want)
			}
		}
		first := locktest.MustLock(t, here)
		if first.Token() != 1 {
			t.Fatal(first.Token())
		}
		check("a FencedLock", far, first.HoldID(), 1)
		again := locktest.MustLockCtx(t, first.Context(bg), other.NewLock("a"))
		check("entered again by a Lock", far, first.HoldID(), 1)
		if s := watchHeld(t, states, first.HoldID(), 2); s.Token != 1 {
			t.Errorf("%+v", s)
		}
		locktest.MustUnlock(t, again)
		locktest.MustUnlock(t, first)
		watchFree(t, states)

		for kind, l := range map[string]rlock.Locker{"Lock": other.NewLock("a"), "SpinLock": other.NewSpinLock("a"), "FairLock": other.NewFairLock("a")} {
			lease := locktest.MustLock(t, l)
			again := locktest.MustLockCtx(t, lease.Context(bg), here)
			check(kind, far, lease.HoldID(), 0)
			check(kind+", of this client", here, lease.HoldID(), lease.Token())
			if s := watchHeld(t, states, lease.HoldID(), 2); s.Token != 0 {
				t.Errorf("%s: %+v", kind, s)
			}
			locktest.MustUnlock(t, again)
			locktest.MustUnlock(t, lease)
			watchFree(t, states)
		}
		if n := fencedToken(t, far); n != 1 {
			t.Errorf("the counter is %d", n)
		}

		rdb.Incr(bg, "redisson_lock_token:{a}")
		rdb.HSet(bg, "a", java, 1)
		check("Redisson", far, java, 2)
		rdb.Del(bg, "a")
	})
}

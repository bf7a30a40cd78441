package queues

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestQueuedAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		plain := locktest.NewClient(t, rdb)
		for _, acquire := range []func(locktest.AnyLock) (*rlock.Lease, error){
			func(l locktest.AnyLock) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l locktest.AnyLock) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			seen := locktest.OnNth(t, proxy, "queue/enter", 1, action)
			lease, err := acquire(k.Open(c, "a"))
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			wantHolders(t, k.Open(plain, "a"), 1, 1, 0)
			s := locktest.MustState(t, k.Open(plain, "a"))
			if s.Holders[0].HoldID != lease.HoldID() || s.Token != lease.Token() || k.Shared != (lease.Token() == 0) {
				t.Fatalf("%+v; the lease has owner %s and token %d", s, lease.HoldID(), lease.Token())
			}
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
			next := locktest.MustLock(t, k.Open(plain, "a"))
			if !k.Shared && next.Token() <= lease.Token() {
				t.Fatalf("token %d after %d", next.Token(), lease.Token())
			}
			locktest.MustUnlock(t, next)
		}
	})
}

func TestQueuedPlaceWithLostReplyIsKept(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		plain := locktest.NewClient(t, rdb, rlock.WithWaiterLease(locktest.Patient))
		holder := locktest.MustLock(t, k.Rival(plain, "a"))
		locktest.OnNth(t, proxy, "queue/enter", 1, action)
		first := k.Enqueue(t, rdb, k.Open(c, "a"))
		rank := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val()
		locktest.Eventually(t, "it was looked at again", func() bool {
			return proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(locktest.SHA("queue/enter")) }) >= 2
		})
		if now := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val(); len(now) != 1 || now[0] != rank[0] {
			t.Fatalf("the queue was %v and is %v", rank, now)
		}
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, first.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedEntryFromTheQueueWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		plain := locktest.NewClient(t, rdb, rlock.WithWaiterLease(locktest.Patient))
		id := locktest.SHA("queue/enter")
		var after atomic.Int64 // looks that came after the release
		for try := 0; after.Load() == 0; try++ {
			if try == 50 {
				t.Fatal("it never came in by a look after the release")
			}
			holder := locktest.MustLock(t, k.Rival(plain, "a"))
			e := k.Enqueue(t, rdb, k.Open(c, "a"))
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) && after.Add(1) == 1 {
					return action
				}
				return faultproxy.Pass
			})
			// The look after its subscription may be under way, and the one to enter.
			locktest.MustUnlock(t, holder)
			lease := e.Held()
			proxy.Handle(nil)
			wantHolders(t, k.Open(plain, "a"), 1, 1, 0)
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
		}
	})
}

func TestQueuedReentryWithLostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		l := k.Open(c, "a")
		outer := locktest.MustLock(t, l)
		locktest.OnNth(t, proxy, "queue/reenter", 1, action)
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		if inner.HoldID() != outer.HoldID() || inner.Token() != outer.Token() {
			t.Fatal("a re-entry has another owner or token")
		}
		wantHolders(t, l, 1, 2, 0)
		locktest.MustUnlock(t, outer)
		// On a busy machine the copy without a reply may run only now: the next
		// operation puts the count right.
		locktest.Eventually(t, "the count is right", func() bool {
			if locktest.MustState(t, l).Holders[0].Count == 1 {
				return true
			}
			locktest.MustUnlock(t, locktest.MustLockCtx(t, inner.Context(bg), l))
			return false
		})
		locktest.MustUnlock(t, inner)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedUnlockWithLostReplyWakesTheNextOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		plain := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		lease := locktest.MustLock(t, k.Open(c, "a"))
		rival := k.Rival(plain, "a")
		next := enqueueRival(t, k, rdb, rival)
		locktest.OnNth(t, proxy, "queue/release", 1, action)
		locktest.UnlockLossy(t, lease, action) // a resend may find the successor there
		got := next.Held()
		if err := got.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		wantHolders(t, rival, 1, 1, 0)
		locktest.MustUnlock(t, got)
		locktest.OnlyTombstones(t, rdb)
	})
}

// enqueueRival is enqueue for the rival of a kind.
func enqueueRival(t testing.TB, k locktest.QueuedType, rdb redis.UniversalClient, rival locktest.AnyLock) *locktest.Attempt {
	t.Helper()
	if k.What == "fairrw" {
		k.Shared = !k.Shared
	}
	return k.Enqueue(t, rdb, rival)
}

func TestQueuedWaiterThatLeavesWithLostReplyLeavesNothing(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"))
		e := k.Enqueue(t, rdb, k.Open(c, "a"))
		locktest.OnNth(t, proxy, "queue/abandon", 1, action)
		e.Cancel()
		<-e.Done
		locktest.WantEnded(t, e.Err, context.Canceled)
		locktest.Eventually(t, "the queue is empty", func() bool { return rdb.Exists(bg, k.Queue("a"), k.Base("a")+":alive").Val() == 0 })
		locktest.MustUnlock(t, holder)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedExtendWithLostReply(t *testing.T) {
	t.Parallel()
	eachLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action) {
		c, proxy, rdb := faulty(t, b, k)
		lease := locktest.MustLock(t, k.Open(c, "a"), rlock.WithLease(10*time.Second))
		locktest.OnNth(t, proxy, "queue/renew", 1, action)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if s := locktest.MustState(t, k.Open(c, "a")); s.TTL < 50*time.Second || s.TTL > time.Minute {
			t.Fatalf("TTL %v", s.TTL)
		}
		if err := lease.Extend(bg, time.Second); err != nil {
			t.Fatal(err)
		}
		if s := locktest.MustState(t, k.Open(c, "a")); s.TTL < 40*time.Second {
			t.Fatalf("shortened to %v", s.TTL)
		}
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

// A copy of an acquire that was held up on its way arrives when its hold is over.
func TestQueuedLateCopyOfAnAcquireMeetsATombstone(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		t.Run("after release", func(t *testing.T) {
			c, proxy, rdb := faulty(t, b, k)
			locktest.DeleteAll(t, rdb)
			locktest.OnNth(t, proxy, "queue/enter", 1, faultproxy.Hold)
			locktest.MustUnlock(t, locktest.MustLock(t, k.Open(c, "a"))) // by the resend
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			locktest.OnlyTombstones(t, rdb)
		})
		t.Run("after the waiter has left", func(t *testing.T) {
			c, proxy, rdb := faulty(t, b, k)
			locktest.DeleteAll(t, rdb)
			holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"))
			id := locktest.SHA("queue/enter")
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
			w := locktest.Begin(t, bg, k.Open(c, "a"))
			locktest.HeldUp(t, proxy, 2)
			locktest.WantEnded(t, w.GiveUp(), context.Canceled)
			locktest.Eventually(t, "it was given up in Redis", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
			if n := proxy.Release(); n < 2 {
				t.Fatalf("%d copies were late", n)
			}
			wantHolders(t, k.Open(locktest.NewClient(t, rdb), "a"), 1, 1, 0)
			locktest.MustUnlock(t, holder)
			locktest.OnlyTombstones(t, rdb)
		})
		t.Run("after expiry", func(t *testing.T) {
			c, proxy, rdb := faulty(t, b, k)
			locktest.DeleteAll(t, rdb)
			locktest.OnNth(t, proxy, "queue/enter", 1, faultproxy.Hold)
			lease := locktest.MustLock(t, k.Open(c, "a"), rlock.WithLease(3*time.Second)) // one that a busy machine hears of in time
			<-lease.Done()
			locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
			locktest.Eventually(t, "the hold was ended in Redis", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			locktest.OnlyTombstones(t, rdb)
		})
	})
}

func TestQueuedLateCopyOfARenewalBringsNothingBack(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		c, proxy, rdb := faulty(t, b, k)
		lease := locktest.MustLock(t, k.Open(c, "a"), rlock.WithLease(3*time.Second))
		// The keys outlive the hold, as they do when others have held the lock longer.
		rdb.PExpire(bg, k.Base("a"), time.Minute)
		rdb.PExpire(bg, k.Base("a")+":ends", time.Minute)
		id := locktest.SHA("queue/renew")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) {
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		_ = lease.Extend(bg, time.Minute) // lost on its way
		<-lease.Done()
		locktest.Eventually(t, "it has run out in Redis", func() bool { return !locktest.MustState(t, k.Open(c, "a")).Locked() })
		if n := proxy.Release(); n == 0 {
			t.Fatal("no copy was late")
		}
		wantHolders(t, k.Open(locktest.NewClient(t, rdb), "a"), 0, 0, 0)
		locktest.MustUnlock(t, locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a")))
	})
}

func TestQueuedForceUnlockIsNotRepeated(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		c, proxy, rdb := faulty(t, b, k)
		seen := locktest.OnNth(t, proxy, "queue/force_unlock", 1, faultproxy.ResetAfter)
		locktest.MustLock(t, k.Open(c, "a"))
		_, err := k.Open(c, "a").ForceUnlock(bg)
		locktest.WantErr(t, err, rlock.ErrUnreachable)
		if n := seen.Load(); n != 1 {
			t.Fatalf("sent %d times: a second one could hit a newer holder", n)
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

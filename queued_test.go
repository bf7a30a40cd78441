package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// eachQueued runs a scenario for each of them, each with a Redis of its own. They
// wait for time-outs and leases most of the time, so they do it beside each other.
func eachQueued(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.Queued)) {
	t.Helper()
	for _, k := range locktest.QueuedKinds {
		queuedRun(t, "miniredis", k, scenario)
		queuedRun(t, "standalone", k, scenario)
	}
}

// eachQueuedMode is eachQueued for what depends on the scripts and the connection
// only: a priority lock is to them what a write lock is, and miniredis is asked
// once.
func eachQueuedMode(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.Queued)) {
	t.Helper()
	read, write := locktest.QueuedKinds[0], locktest.QueuedKinds[1]
	queuedRun(t, "miniredis", write, scenario)
	queuedRun(t, "standalone", read, scenario)
	queuedRun(t, "standalone", write, scenario)
}

func queuedRun(t *testing.T, on string, k locktest.Queued, scenario func(t *testing.T, b *locktest.Backend, k locktest.Queued)) {
	t.Run(on+" "+k.Name, func(t *testing.T) {
		t.Parallel()
		if on == "miniredis" {
			scenario(t, locktest.OnMiniredis(t), k)
		} else {
			scenario(t, locktest.OnServer(t), k)
		}
	})
}

// queuedOn runs a scenario for each of them on one Redis.
func queuedOn(t *testing.T, b *locktest.Backend, scenario func(t *testing.T, b *locktest.Backend, k locktest.Queued)) {
	t.Helper()
	for _, k := range locktest.QueuedKinds {
		t.Run(k.Name, func(t *testing.T) {
			locktest.DeleteAll(t, b.Client(t))
			scenario(t, b, k)
		})
	}
}

// eachQueuedLoss runs a scenario for each way to lose a reply of a script.
func eachQueuedLoss(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action)) {
	t.Helper()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		for name, action := range locktest.LossyActions {
			t.Run(name, func(t *testing.T) {
				locktest.DeleteAll(t, b.Client(t))
				scenario(t, b, k, action)
			})
		}
	})
}

// queuedFaulty is faulty with the scripts loaded. Nothing but the faults and
// messages moves its waiters.
func queuedFaulty(t testing.TB, b *locktest.Backend, k locktest.Queued, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	opts = append([]rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)}, opts...)
	c, proxy, rdb := b.Faulty(t, opts...)
	for _, name := range []string{"enter", "reenter", "release", "abandon", "renew", "force_unlock", "inspect", "probe"} {
		if err := rdb.ScriptLoad(bg, locktest.ScriptText("queued_"+name)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return c, proxy, rdb
}

// queuedHolders checks how many hold the lock and how many wait, and that each
// holder has entered n times.
func queuedHolders(t testing.TB, l locktest.AnyLock, holders, n, waiters int) {
	t.Helper()
	s := locktest.MustState(t, l)
	ok := len(s.Holders) == holders && s.Waiters == waiters
	for _, h := range s.Holders {
		ok = ok && h.Count == n
	}
	if !ok {
		t.Fatalf("%+v; want %d holders with %d entries and %d waiters", s, holders, n, waiters)
	}
}

func TestQueuedAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := locktest.NewClient(t, rdb)
		for _, acquire := range []func(locktest.AnyLock) (*rlock.Lease, error){
			func(l locktest.AnyLock) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l locktest.AnyLock) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			seen := locktest.OnNth(t, proxy, "queued_enter", 1, action)
			lease, err := acquire(k.Open(c, "a"))
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			queuedHolders(t, k.Open(plain, "a"), 1, 1, 0)
			s := locktest.MustState(t, k.Open(plain, "a"))
			if s.Holders[0].Owner != lease.Owner() || s.Token != lease.Token() || k.Shared != (lease.Token() == 0) {
				t.Fatalf("%+v; the lease has owner %s and token %d", s, lease.Owner(), lease.Token())
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
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := locktest.NewClient(t, rdb, rlock.WithWaiterLease(locktest.Patient))
		holder := locktest.MustLock(t, k.Rival(plain, "a"))
		locktest.OnNth(t, proxy, "queued_enter", 1, action)
		first := k.Enqueue(t, rdb, k.Open(c, "a"))
		rank := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val()
		locktest.Eventually(t, "it was looked at again", func() bool {
			return proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(locktest.SHA("queued_enter")) }) >= 2
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
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := locktest.NewClient(t, rdb, rlock.WithWaiterLease(locktest.Patient))
		id := locktest.SHA("queued_enter")
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
			queuedHolders(t, k.Open(plain, "a"), 1, 1, 0)
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
		}
	})
}

func TestQueuedReentryWithLostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		l := k.Open(c, "a")
		outer := locktest.MustLock(t, l)
		locktest.OnNth(t, proxy, "queued_reenter", 1, action)
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		if inner.Owner() != outer.Owner() || inner.Token() != outer.Token() {
			t.Fatal("a re-entry has another owner or token")
		}
		queuedHolders(t, l, 1, 2, 0)
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
		queuedHolders(t, l, 1, 1, 0)
		locktest.MustUnlock(t, inner)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedUnlockWithLostReplyWakesTheNextOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		lease := locktest.MustLock(t, k.Open(c, "a"))
		rival := k.Rival(plain, "a")
		next := enqueueRival(t, k, rdb, rival)
		locktest.OnNth(t, proxy, "queued_release", 1, action)
		locktest.MustUnlock(t, lease) // a resend may find the successor there
		got := next.Held()
		if err := got.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		queuedHolders(t, rival, 1, 1, 0)
		locktest.MustUnlock(t, got)
		locktest.OnlyTombstones(t, rdb)
	})
}

// enqueueRival is enqueue for the rival of a kind.
func enqueueRival(t testing.TB, k locktest.Queued, rdb redis.UniversalClient, rival locktest.AnyLock) *locktest.Attempt {
	t.Helper()
	if k.What == "fairrw" {
		k.Shared = !k.Shared
	}
	return k.Enqueue(t, rdb, rival)
}

func TestQueuedWaiterThatLeavesWithLostReplyLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"))
		e := k.Enqueue(t, rdb, k.Open(c, "a"))
		locktest.OnNth(t, proxy, "queued_abandon", 1, action)
		e.Cancel()
		<-e.Done
		locktest.WantErr(t, e.Err, rlock.ErrNotAcquired, context.Canceled)
		locktest.Eventually(t, "the queue is empty", func() bool { return rdb.Exists(bg, k.Queue("a"), k.Base("a")+":alive").Val() == 0 })
		locktest.MustUnlock(t, holder)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedExtendWithLostReply(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		lease := locktest.MustLock(t, k.Open(c, "a"), rlock.WithLease(10*time.Second))
		locktest.OnNth(t, proxy, "queued_renew", 1, action)
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

// A copy of an acquire that was held up on its way arrives when its stay is over.
func TestQueuedLateCopyOfAnAcquireMeetsATombstone(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		t.Run("after release", func(t *testing.T) {
			c, proxy, rdb := queuedFaulty(t, b, k)
			locktest.DeleteAll(t, rdb)
			locktest.OnNth(t, proxy, "queued_enter", 1, faultproxy.Hold)
			locktest.MustUnlock(t, locktest.MustLock(t, k.Open(c, "a"))) // by the resend
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			locktest.OnlyTombstones(t, rdb)
		})
		t.Run("after the waiter has left", func(t *testing.T) {
			c, proxy, rdb := queuedFaulty(t, b, k)
			locktest.DeleteAll(t, rdb)
			holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"))
			id := locktest.SHA("queued_enter")
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
			_, err := k.Open(c, "a").Lock(bg, rlock.WithWait(locktest.Ample(1800*time.Millisecond)))
			locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
			locktest.Eventually(t, "it was given up in Redis", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
			if n := proxy.Release(); n < 2 {
				t.Fatalf("%d copies were late", n)
			}
			queuedHolders(t, k.Open(locktest.NewClient(t, rdb), "a"), 1, 1, 0)
			locktest.MustUnlock(t, holder)
			locktest.OnlyTombstones(t, rdb)
		})
		t.Run("after expiry", func(t *testing.T) {
			c, proxy, rdb := queuedFaulty(t, b, k)
			locktest.DeleteAll(t, rdb)
			locktest.OnNth(t, proxy, "queued_enter", 1, faultproxy.Hold)
			lease := locktest.MustLock(t, k.Open(c, "a"), rlock.WithLease(locktest.Ample(300*time.Millisecond)))
			<-lease.Done()
			locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
			locktest.Eventually(t, "the stay was ended in Redis", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			locktest.OnlyTombstones(t, rdb)
		})
	})
}

func TestQueuedForceUnlockIsNotRepeated(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		seen := locktest.OnNth(t, proxy, "queued_force_unlock", 1, faultproxy.ResetAfter)
		locktest.MustLock(t, k.Open(c, "a"))
		_, err := k.Open(c, "a").ForceUnlock(bg)
		locktest.WantErr(t, err, rlock.ErrUnreachable)
		if n := seen.Load(); n != 1 {
			t.Fatalf("sent %d times: a second one could hit a newer holder", n)
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedForceUnlockEndsTheHoldAndKeepsTheQueue(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		l := k.Open(c, "a")
		if was, err := l.ForceUnlock(bg); was || err != nil {
			t.Fatal(was, err)
		}
		lease := locktest.MustLock(t, l)
		next := enqueueRival(t, k, rdb, k.Rival(c, "a"))
		for _, owner := range []string{"nobody:1", "exclusive", "count", "token"} {
			if was, err := l.ForceUnlockIf(bg, owner); was || err != nil {
				t.Fatal(owner, was, err)
			}
		}
		if k.What == "fairrw" { // the other side does not touch it
			if was, err := k.Rival(c, "a").ForceUnlock(bg); was || err != nil {
				t.Fatal(was, err)
			}
		}
		if was, err := l.ForceUnlockIf(bg, lease.Owner()); !was || err != nil {
			t.Fatal(was, err)
		}
		got := next.Held()
		locktest.WantErr(t, lease.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		if was, err := k.Rival(c, "a").ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		locktest.WantErr(t, got.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedExpiryOfTheHolderLetsTheNextIn(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		lease := locktest.MustLock(t, k.Rival(c, "a"), rlock.WithLease(300*time.Millisecond))
		deadline := lease.Deadline()
		next := locktest.MustLock(t, k.Open(b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)), "a"))
		if now := time.Now(); now.Before(deadline) {
			t.Fatalf("another has the lock %v before the deadline", deadline.Sub(now))
		}
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		queuedHolders(t, k.Open(c, "a"), 1, 1, 0)
		locktest.MustUnlock(t, next)
	})
}

func TestQueuedHoldsAreRenewed(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(1500*time.Millisecond))
		lease := locktest.MustLock(t, k.Open(c, "a"))
		was := lease.Deadline()
		for range 2 {
			locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
			was = lease.Deadline()
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		rdb.Del(bg, k.Base("a")+":ends") // as an eviction would
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
	})
}

func TestDeadWaiterDelaysOthersForAWaiterLeaseAtMost(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		const waiterLease = 600 * time.Millisecond
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb, rlock.WithWaiterLease(waiterLease), rlock.WithLongestPoll(locktest.Patient)), "a")
		locktest.PutDeadWaiter(t, rdb, k, l.Name(), locktest.FirstRank, waiterLease)
		start := time.Now()
		lease := locktest.MustLock(t, l)
		// It came while the dead one still counted as alive, and was heard all the time.
		if took := time.Since(start); took < waiterLease/2 || took > waiterLease+5*time.Second {
			t.Fatalf("a dead waiter with a lease of %v was waited for for %v", waiterLease, took)
		}
		locktest.MustUnlock(t, lease)
		if n := rdb.Exists(bg, k.Base(l.Name())+":queue", k.Base(l.Name())+":alive", k.Base(l.Name())).Val(); n != 0 {
			t.Fatalf("%d keys are left", n)
		}
	})
}

// Those who only look must not keep a dead waiter in the queue, although nobody
// else is heard.
func TestDeadWaiterIsGivenOneMoreLeaseOnly(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		const waiterLease = 300 * time.Millisecond
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb, rlock.WithWaiterLease(waiterLease)), "a")
		locktest.PutDeadWaiter(t, rdb, k, l.Name(), locktest.FirstRank, -time.Second) // long dead
		start := time.Now()
		var lease *rlock.Lease
		locktest.Eventually(t, "a visitor gets the lock", func() bool {
			got, err := l.TryLock(bg)
			lease = got
			return err == nil
		})
		if took := time.Since(start); took < waiterLease/2 || took > waiterLease+5*time.Second {
			t.Fatalf("it took %v", took)
		}
		locktest.MustUnlock(t, lease)

		// What has been silent for longer than anybody bears goes at once.
		locktest.PutDeadWaiter(t, rdb, k, l.Name(), locktest.FirstRank, -2*time.Minute)
		lease, err := l.TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// The sign of life of a waiter can be lost by an eviction only. It must not block
// the queue, which others keep alive.
func TestWaiterWithoutASignOfLifeIsSkipped(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		locktest.PutDeadWaiter(t, rdb, k, "a", locktest.FirstRank, time.Hour)
		rdb.Del(bg, k.Base("a")+":alive")
		lease, err := k.Open(locktest.NewClient(t, rdb), "a").TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

// Nor does it cost a waiter its place that is alive and looks before others do.
func TestWaiterWithoutASignOfLifeKeepsItsPlace(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(time.Second))
		lease := locktest.MustLock(t, k.Rival(c, "a"))
		e := k.Enqueue(t, rdb, k.Open(c, "a"))
		was := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val()
		rdb.Del(bg, k.Base("a")+":alive")
		locktest.Eventually(t, "it has looked", func() bool { return rdb.Exists(bg, k.Base("a")+":alive").Val() == 1 })
		if is := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val(); !slices.Equal(is, was) {
			t.Errorf("the queue is %v, and was %v", is, was)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, e.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedTryLockNeverOvertakesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb), "a")
		// The lock is free; the waiter has not come yet.
		locktest.PutDeadWaiter(t, rdb, k, "a", locktest.FirstRank, time.Hour)
		before := locktest.Keys(t, rdb)
		for range 3 {
			_, err := l.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
			if !strings.Contains(err.Error(), "kept for one who waits") {
				t.Errorf("%v", err)
			}
			_, err = l.Lock(bg, rlock.WithWait(0))
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
		}
		queuedHolders(t, l, 0, 0, 1)
		if after := locktest.Keys(t, rdb); len(after) != len(before) {
			t.Fatalf("keys were %q and are %q", before, after)
		}
	})
}

func TestQueuedWaitIsBoundedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb), "a")
		holder := locktest.MustLock(t, k.Rival(b.NewClient(t), "a"))
		const short = 60 * time.Millisecond
		start := time.Now()
		_, err := l.Lock(bg, rlock.WithWait(short))
		locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
		ctx, cancel := context.WithTimeout(bg, short)
		defer cancel()
		_, err = l.Lock(ctx)
		locktest.WantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
		if took := time.Since(start); took < 2*short || took > 5*time.Second {
			t.Fatalf("two waits of %v took %v", short, took)
		}
		queuedHolders(t, l, 1, 1, 0)
		locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*:turn:*").Val()) == 0 })
		locktest.MustUnlock(t, holder)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedKeysHaveATTLAndVanish(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		queuedOn(t, b, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
			rdb := b.Client(t)
			for _, name := range []string{"order:7", "{t}x", "x{t}", "bin\x00\xff\n"} {
				c := locktest.NewClient(t, rdb)
				holder := locktest.MustLock(t, k.Rival(c, name))
				inner := locktest.MustLockCtx(t, holder.Context(bg), k.Rival(c, name))
				e := locktest.Begin(t, bg, k.Open(c, name))
				locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, k.Open(c, name)).Waiters == 1 })
				keys := locktest.Keys(t, rdb)
				if len(keys) != 5 {
					t.Fatalf("keys: %q", keys)
				}
				for _, key := range keys {
					if ttl := rdb.PTTL(bg, key).Val(); ttl < 20*time.Second || ttl > 71*time.Second {
						t.Fatalf("%q has TTL %v", key, ttl)
					}
				}
				locktest.MustUnlock(t, inner)
				locktest.MustUnlock(t, holder)
				locktest.MustUnlock(t, e.Held())
				locktest.OnlyTombstones(t, rdb)
			}
		})
	})
}

func TestQueuedShutdownLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		lease := locktest.MustLock(t, k.Rival(c, "a"))
		var waits []*locktest.Attempt
		for range 5 {
			waits = append(waits, k.Enqueue(t, rdb, k.Open(c, "a")))
		}
		next := k.Enqueue(t, rdb, k.Open(other, "a"))
		done := locktest.ShutDown(bg, c, lease)
		for _, e := range waits {
			<-e.Done
			locktest.WantErr(t, e.Err, rlock.ErrClosed)
		}
		locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
		locktest.StillRunning(t, done)
		locktest.MustUnlock(t, lease)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, next.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedNonReentrantAndMaxHold(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		c := b.NewClient(t)
		l := k.Open(c, "a", rlock.WithNonReentrant())
		lease := locktest.MustLock(t, l)
		_, err := l.Lock(lease.Context(bg))
		locktest.WantErr(t, err, rlock.ErrReentrant)
		locktest.MustUnlock(t, lease)
		lease = locktest.MustLock(t, k.Open(c, "a", rlock.WithMaxHold(50*time.Millisecond)))
		<-lease.Done()
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		locktest.MustUnlock(t, locktest.MustLock(t, k.Rival(c, "a")))
	})
}

func TestQueuedReentryAfterLossFailsUntilUnlocked(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb), "a")
		ctx := rlock.WithOwner(bg)
		lost := locktest.MustLockCtx(t, ctx, l)
		locktest.DeleteAll(t, rdb)
		for range 2 {
			_, err := l.Lock(ctx)
			locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrNotAcquired)
		}
		locktest.OnlyTombstones(t, rdb)
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		again := locktest.MustLockCtx(t, ctx, l)
		if n, err := l.HeldBy(ctx); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		locktest.MustUnlock(t, again)
	})
}

// The server was away for longer than a waiter lease: all waiters are silent, and
// whoever comes first must not take the places of the others away.
func TestWaitersKeepTheirOrderOverAnOutage(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	queuedOn(t, b, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		const waiterLease = 500 * time.Millisecond
		rdb := b.Client(t)
		holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"), rlock.WithLease(time.Hour))
		var entries []*locktest.Attempt
		for range 3 {
			c := b.NewClient(t, rlock.WithWaiterLease(waiterLease), rlock.WithCommandTimeout(10*time.Second))
			entries = append(entries, k.Enqueue(t, rdb, k.Open(c, "a")))
		}
		before := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val()
		b.Real.Pause()
		time.Sleep(2 * waiterLease) // the subject of the test
		b.Real.Resume()
		var alive float64
		for _, z := range rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, -1).Val() {
			alive = max(alive, z.Score)
		}
		locktest.Eventually(t, "all are heard again", func() bool {
			signs := rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, -1).Val()
			for _, z := range signs {
				if z.Score <= alive {
					return false
				}
			}
			return true
		})
		if after := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val(); !slices.Equal(before, after) {
			t.Fatalf("the queue was %v and is %v", before, after)
		}
		locktest.MustUnlock(t, holder)
		for _, e := range entries {
			locktest.MustUnlock(t, e.Held())
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedWaitersSurviveARestartWithoutData(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	for _, k := range locktest.QueuedKinds {
		t.Run(k.Name, func(t *testing.T) {
			rdb := b.Client(t)
			holder := locktest.MustLock(t, k.Rival(b.NewClient(t), "a"), rlock.WithLease(time.Hour))
			var entries []*locktest.Attempt
			for range 3 {
				entries = append(entries, k.Enqueue(t, rdb, k.Open(b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)), "a")))
			}
			b.Real.Kill()
			b.Real.Restart() // empty: the lock is free, and nobody says so
			var wg sync.WaitGroup
			for _, e := range entries {
				wg.Go(func() {
					<-e.Done
					if e.Err != nil {
						t.Error(e.Err)
					} else if err := e.Lease.Unlock(bg); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			locktest.WantErr(t, holder.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			locktest.OnlyTombstones(t, b.Client(t))
		})
	}
}

func TestQueuedLockAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	queuedOn(t, b, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		defer rdb.ConfigSet(bg, "maxmemory", "0")
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(time.Second), rlock.WithWaiterLease(600*time.Millisecond))
		l := k.Rival(c, "a")
		outer := locktest.MustLock(t, l)
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		stays := k.Enqueue(t, rdb, k.Open(c, "a"))
		leaves := k.Enqueue(t, rdb, k.Open(c, "a"))
		rdb.ConfigSet(bg, "maxmemory", "1")
		if err := rdb.Set(bg, "x", "y", 0).Err(); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatal("the server is not at its limit:", err)
		}
		oom := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Fatal(what, err)
			}
		}
		before := fmt.Sprint(locktest.Keys(t, rdb))
		_, err := l.Lock(outer.Context(bg))
		oom("a re-entry at the memory limit:", err)
		_, err = k.Open(c, "free").Lock(bg)
		oom("an acquire at the memory limit:", err)
		_, err = k.Open(c, "a").Lock(bg, rlock.WithWait(time.Second))
		oom("a place in the queue at the memory limit:", err)
		for _, key := range locktest.Keys(t, rdb) {
			if !strings.Contains(before, key) && !strings.Contains(key, ":rlock:gone:") {
				t.Fatalf("%q has come into being", key)
			}
		}
		was := outer.Deadline()
		locktest.Eventually(t, "it is renewed all the same", func() bool { return outer.Deadline().After(was) || outer.Err() != nil })
		signs := rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, 0).Val()
		locktest.Eventually(t, "the waiters live on", func() bool {
			now := rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, 0).Val()
			return len(now) > 0 && now[0].Score > signs[0].Score
		})
		leaves.Cancel()
		locktest.Eventually(t, "a waiter leaves", func() bool { return locktest.MustState(t, l).Waiters == 1 })
		locktest.MustUnlock(t, inner)
		queuedHolders(t, l, 1, 1, 1)
		locktest.MustUnlock(t, outer)
		<-stays.Done
		oom("an entry from the queue at the memory limit:", stays.Err)
		locktest.Eventually(t, "nothing but tombstones is left", func() bool {
			keys := locktest.Keys(t, rdb)
			return locktest.Tombstones(keys) == len(keys)
		})
	})
}

func TestQueuedLocksExcludeUnderLoad(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		clients := []*rlock.Client{b.NewClient(t), b.NewClient(t), b.NewClient(t)}
		t.Run("fair read-write", func(t *testing.T) {
			var wg sync.WaitGroup
			written, last := 0, int64(0)
			for g := range 12 {
				l := clients[g%3].NewFairReadWriteLock("load")
				wg.Go(func() {
					for i := range 12 {
						if (g+i)%3 > 0 {
							lease, err := l.Reader.Lock(bg)
							if err != nil {
								t.Error(err)
								return
							}
							_ = written // unsynchronised on purpose: the race detector watches too
							if err := lease.Unlock(bg); err != nil {
								t.Error(err)
							}
							continue
						}
						lease, err := l.Writer.Lock(bg)
						if err != nil {
							t.Error(err)
							return
						}
						written++
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if written != 48 {
				t.Fatalf("%d of 48 sections", written)
			}
		})
		t.Run("priority", func(t *testing.T) {
			var wg sync.WaitGroup
			written, last := 0, int64(0)
			for g := range 12 {
				l := clients[g%3].NewPriorityLock("load", rlock.WithAgeing(time.Millisecond))
				wg.Go(func() {
					for i := range 8 {
						lease, err := l.Lock(bg, rlock.WithPriority(1+(g+i)%10))
						if err != nil {
							t.Error(err)
							return
						}
						written++
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if written != 96 {
				t.Fatalf("%d of 96 sections", written)
			}
		})
		locktest.OnlyTombstones(t, b.Client(t)) // of replies that were late
	})
}

func TestQueuedBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	rdb := locktest.OnMiniredis(t).Client(t)
	hook := &locktest.CountHook{}
	rdb.AddHook(hook)
	c := locktest.NewClient(t, rdb)
	for _, k := range locktest.QueuedKinds {
		for _, name := range []string{"", "a{b", "{}z"} {
			_, err := k.Open(c, name).Lock(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			_, err = k.Open(c, name).State(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	for _, p := range []int{-1, 0, 11} {
		_, err := c.NewPriorityLock("a").Lock(bg, rlock.WithPriority(p))
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	for _, l := range []rlock.Locker{c.NewLock("a"), locktest.FairRead(c, "a"), locktest.FairWrite(c, "a")} {
		for _, p := range []int{0, 5} {
			_, err := l.TryLock(bg, rlock.WithPriority(p))
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	for _, d := range []time.Duration{-time.Second, 0, time.Millisecond - 1, rlock.MaxAgeing + 1} {
		_, err := c.NewPriorityLock("a", rlock.WithAgeing(d)).Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	for _, l := range []rlock.Locker{c.NewLock("a", rlock.WithAgeing(time.Second)), locktest.FairRead(c, "a", rlock.WithAgeing(time.Second))} {
		_, err := l.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	if n := hook.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
}

// Cancelled waiters and releases race for the same wake-ups; nobody may be left
// asleep.
func TestQueuedCancelledWaitersPassTheirTurnOn(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		for range 10 {
			holder := locktest.MustLock(t, k.Rival(c, "a"))
			first := k.Enqueue(t, rdb, k.Open(c, "a"))
			second := enqueueRival(t, k, rdb, k.Rival(c, "a"))
			go first.Cancel()
			locktest.MustUnlock(t, holder)
			<-first.Done
			if first.Err == nil {
				locktest.MustUnlock(t, first.Lease)
			} else if !errors.Is(first.Err, context.Canceled) {
				t.Fatal(first.Err)
			}
			locktest.MustUnlock(t, second.Held())
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedWaitersLookByThemselvesIfAllMessagesAreLost(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		const waiterLease = 600 * time.Millisecond
		c, proxy, rdb := queuedFaulty(t, b, k, rlock.WithWaiterLease(waiterLease))
		proxy.DropMessages(true)
		holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"))
		e := k.Enqueue(t, rdb, k.Open(c, "a"))
		start := time.Now()
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, e.Held())
		if took := time.Since(start); took > waiterLease/3+5*time.Second { // of a busy machine
			t.Fatalf("waited %v, it looks each %v", took, waiterLease/3)
		}
	})
}

func TestQueuedLateCopyOfARenewalBringsNothingBack(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *locktest.Backend, k locktest.Queued) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		lease := locktest.MustLock(t, k.Open(c, "a"), rlock.WithLease(time.Second))
		// The keys outlive the hold, as they do when others have held the lock longer.
		rdb.PExpire(bg, k.Base("a"), time.Minute)
		rdb.PExpire(bg, k.Base("a")+":ends", time.Minute)
		id := locktest.SHA("queued_renew")
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
		queuedHolders(t, k.Open(locktest.NewClient(t, rdb), "a"), 0, 0, 0)
		locktest.MustUnlock(t, locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a")))
	})
}

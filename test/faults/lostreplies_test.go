package faults

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/enter", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		for _, acquire := range []func(*rlock.Lock) (*rlock.Lease, error){
			func(l *rlock.Lock) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l *rlock.Lock) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			seen := locktest.OnNth(t, proxy, "lock/enter", 1, action)
			lease, err := acquire(c.NewLock("a"))
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			if n := locktest.HoldCount(t, rdb, "a", lease.HoldID()); n != "1" {
				t.Fatalf("count %q", n)
			}
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
			next := locktest.MustLock(t, locktest.NewClient(t, rdb).NewLock("a"))
			if next.Token() <= lease.Token() {
				t.Fatalf("token %d after %d", next.Token(), lease.Token())
			}
			locktest.MustUnlock(t, next)
		}
	})
}

func TestReentryWithLostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/reenter", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		outer := locktest.MustLock(t, c.NewLock("a"))
		locktest.OnNth(t, proxy, "lock/reenter", 1, action)
		inner := locktest.MustLockCtx(t, outer.Context(bg), c.NewLock("a"))
		if n := locktest.HoldCount(t, rdb, "a", outer.HoldID()); n != "2" {
			t.Fatalf("count %q", n)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestUnlockAfterLostReplyReleasesOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/release", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		outer := locktest.MustLock(t, c.NewLock("a"))
		inner := locktest.MustLockCtx(t, outer.Context(bg), c.NewLock("a"))
		locktest.OnNth(t, proxy, "lock/release", 1, action)
		locktest.MustUnlock(t, inner)
		if n := locktest.HoldCount(t, rdb, "a", outer.HoldID()); n != "1" {
			t.Fatalf("count %q after the inner unlock", n)
		}
		locktest.OnNth(t, proxy, "lock/release", 1, action)
		locktest.UnlockLossy(t, outer, action)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestUnlockWithLostReplyDoesNotTouchTheSuccessor(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/release", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		lease := locktest.MustLock(t, c.NewLock("a"))
		next := make(chan *rlock.Lease, 1)
		other := locktest.NewClient(t, rdb).NewLock("a")
		go func() { next <- locktest.MustLock(t, other) }()
		locktest.Eventually(t, "the successor waits", func() bool {
			s, err := other.State(bg)
			return err == nil && s.Waiters == 1
		})
		locktest.OnNth(t, proxy, "lock/release", 1, action)
		locktest.UnlockLossy(t, lease, action) // a resend may find the successor there
		got := <-next
		if err := got.Err(); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, got)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestRenewalWithLostReplyGoesOn(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/renew", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		var clock locktest.Clock
		c, proxy, rdb := b.Faulty(t, clock.Option())
		locktest.OnNth(t, proxy, "lock/renew", 1, action)
		name := t.Name()
		lease := locktest.MustLock(t, c.NewLock(name))
		for range 3 {
			was := lease.Deadline()
			clock.Forward(locktest.Lease / 3)
			locktest.Eventually(t, "it is renewed, or lost", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
		}
		locktest.MustUnlock(t, lease)
		if n := rdb.Exists(bg, name).Val(); n != 0 {
			t.Fatal("the lock is left")
		}
	})
}

func TestExtendWithLostReply(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/renew", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		lease := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(10*time.Second))
		locktest.OnNth(t, proxy, "lock/renew", 1, action)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if ttl := rdb.PTTL(bg, "a").Val(); ttl < 50*time.Second {
			t.Fatalf("TTL %v", ttl)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestForceUnlockIsNotRepeated(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		seen := locktest.OnNth(t, proxy, "lock/force_unlock", 1, faultproxy.ResetAfter)
		locktest.MustLock(t, c.NewLock("a"))
		_, err := c.NewLock("a").ForceUnlock(bg)
		locktest.WantErr(t, err, rlock.ErrUnreachable)
		if n := seen.Load(); n != 1 {
			t.Fatalf("sent %d times: a second one could hit a newer holder", n)
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

// A copy of an acquire that was held up on its way arrives when the hold that
// it belongs to is over: unlocked, given up, or run out.
func TestLateCopyOfAnAcquireMeetsATombstone(t *testing.T) {
	t.Parallel()
	// Each has a server of its own: they wait for resends most of the time.
	late := func(name string, scenario func(t *testing.T, b *locktest.Backend)) {
		locktest.Beside(t, name, func(t *testing.T) { locktest.EachRedis(t, scenario) })
	}
	late("after release", func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		rdb.FlushDB(bg) // of the tombstones before
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.Hold)
		lease := locktest.MustLock(t, c.NewLock("a")) // by the resend
		locktest.MustUnlock(t, lease)
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		locktest.OnlyTombstones(t, rdb)
	})
	late("again and again after release", func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		rdb.FlushDB(bg) // of the tombstones before
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.ResetAfter)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
		for _, cmd := range proxy.Commands() {
			if cmd.IsScript(locktest.SHA("lock/enter")) {
				if err := proxy.Replay(cmd); err != nil {
					t.Fatal(err)
				}
			}
		}
		locktest.OnlyTombstones(t, rdb)
	})
	late("after giving up", func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		rdb.FlushDB(bg) // of the tombstones before
		id := locktest.SHA("lock/enter")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) {
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		w := locktest.Begin(t, bg, c.NewLock("a"))
		locktest.HeldUp(t, proxy, 2)
		locktest.WantEnded(t, w.GiveUp(), context.Canceled)
		if n := proxy.Release(); n < 2 {
			t.Fatalf("%d copies were late", n)
		}
		locktest.OnlyTombstones(t, rdb)
		proxy.Handle(nil)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
	})
	late("after expiry", func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		rdb.FlushDB(bg) // of the tombstones before
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.Hold)
		lease := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(3*time.Second)) // one that a busy machine hears of in time
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.Eventually(t, "the hold was ended in Redis", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		locktest.OnlyTombstones(t, rdb)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
	})
	late("of a re-entry after release", func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		rdb.FlushDB(bg) // of the tombstones before
		outer := locktest.MustLock(t, c.NewLock("a"))
		locktest.OnNth(t, proxy, "lock/reenter", 1, faultproxy.Hold)
		inner := locktest.MustLockCtx(t, outer.Context(bg), c.NewLock("a"))
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestCancelWithAnAcquireUnderWayGivesTheGrantBack(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "on its way": faultproxy.Hold} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(bg)
				id := locktest.SHA("lock/enter")
				proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if cmd.IsScript(id) {
						cancel()
						return action
					}
					return faultproxy.Pass
				})
				_, err := c.NewLock("a").Lock(ctx)
				locktest.WantEnded(t, err, context.Canceled)
				proxy.Release()
				locktest.Eventually(t, "only a tombstone is left", func() bool {
					keys := locktest.Keys(t, rdb)
					return len(keys) > 0 && locktest.Tombstones(keys) == len(keys)
				})
			})
		}
	})
}

func TestFixedLeaseRunsOutBeforeAnotherGetsIn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		other := b.NewClient(t).NewLock("a")
		lease := locktest.MustLock(t, l, rlock.WithLease(200*time.Millisecond))
		deadline := lease.Deadline()
		next := locktest.MustLock(t, other)
		if now := time.Now(); now.Before(deadline) {
			t.Fatalf("another has the lock %v before the deadline", deadline.Sub(now))
		}
		// The goroutine that closes Done may have to wait for a busy machine.
		select {
		case <-lease.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("another has the lock, and the holder was not told")
		}
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired, nil, rlock.ErrTakenOver)
		if n := locktest.HoldCount(t, rdb, "a", next.HoldID()); n != "1" || next.Err() != nil || next.Token() <= lease.Token() {
			t.Fatalf("the successor has count %q, error %v, token %d after %d", n, next.Err(), next.Token(), lease.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

func TestLossIsReportedAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(3*time.Second))
		for name, loss := range map[string]struct {
			do    func()
			cause error
		}{
			"force-unlocked": {func() { _, _ = c.NewLock("a").ForceUnlock(bg) }, rlock.ErrRemoved},
			"flushed":        {func() { rdb.FlushAll(bg) }, rlock.ErrRemoved},
			"stolen": {func() {
				rdb.Del(bg, "a")
				rdb.HSet(bg, "a", redistest.HoldID("thief:1"), 1)
				rdb.PExpire(bg, "a", time.Minute)
			}, rlock.ErrTakenOver},
		} {
			t.Run(name, func(t *testing.T) {
				lease := locktest.MustLock(t, c.NewLock("a"))
				ctx := lease.Context(bg)
				deadline := lease.Deadline()
				loss.do()
				<-ctx.Done()
				// The next renewal is a second away; the deadline, three.
				if late := time.Since(deadline); late > 0 {
					t.Errorf("told %v after the deadline", late)
				}
				locktest.WantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, loss.cause)
				locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, loss.cause)
				if name == "stolen" && locktest.HoldCount(t, rdb, "a", redistest.HoldID("thief:1")) != "1" {
					t.Fatal("the thief's hold was touched")
				}
				rdb.Del(bg, "a")
			})
		}
	})
}

// A renewal that is under way when the lock is released must not be taken for
// a loss, nor bring the lock back.
func TestRenewalDuringUnlock(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		lost := &lossObserver{}
		var clock locktest.Clock
		c, proxy, rdb := b.Faulty(t, clock.Option(), rlock.WithObserver(lost))
		id := locktest.SHA("lock/renew")
		arrived := make(chan struct{}, 100)
		proxy.Delay(func(cmd faultproxy.Command) time.Duration {
			if cmd.IsScript(id) {
				arrived <- struct{}{}
				return 30 * time.Millisecond
			}
			return 0
		})
		for range 5 {
			lease := locktest.MustLock(t, c.NewLock("a"))
			clock.Forward(locktest.Lease / 3)
			<-arrived
			locktest.MustUnlock(t, lease)
			locktest.WantErr(t, lease.Err(), rlock.ErrUnlocked, nil, rlock.ErrLeaseLost)
		}
		if n := lost.n.Load(); n != 0 {
			t.Fatalf("%d losses were told", n)
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

type lossObserver struct {
	locktest.Ignoring
	n atomic.Int64
}

func (o *lossObserver) Lost(context.Context, rlock.LossEvent) { o.n.Add(1) }

func TestShutdownWithoutTimeEndsTheLeasesAllTheSame(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		lease := locktest.MustLock(t, c.NewLock("a"))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_ = c.Shutdown(ctx)
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
	})
}

// A deadline counts from before its request was sent: the reply may have been
// long on its way. The proxy holds each request up and notes when it came, which
// is after it was sent; a deadline that counted from the reply would be later
// than that plus the validity.
func TestDeadlineCountsFromTheSending(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, _ := b.Faulty(t, rlock.WithCommandTimeout(3*time.Second), rlock.WithWatchdogLease(1500*time.Millisecond))
		var mu sync.Mutex
		came := map[string]time.Time{}
		ids := map[string]string{locktest.SHA("lock/enter"): "lock/enter", locktest.SHA("lock/reenter"): "lock/reenter", locktest.SHA("lock/renew"): "lock/renew"}
		proxy.Delay(func(cmd faultproxy.Command) time.Duration {
			for id, script := range ids {
				if cmd.IsScript(id) {
					mu.Lock()
					defer mu.Unlock()
					came[script] = time.Now()
					return 250 * time.Millisecond
				}
			}
			return 0
		})
		check := func(what, script string, lease *rlock.Lease, d time.Duration) {
			t.Helper()
			deadline := lease.Deadline()
			mu.Lock()
			defer mu.Unlock()
			validity := d - time.Duration(float64(d)*rlock.DefaultDriftFactor) - rlock.DefaultDriftFloor
			if late := deadline.Sub(came[script].Add(validity)); late > 0 {
				t.Errorf("%s: the deadline is %v too late", what, late)
			}
			if early := came[script].Add(validity).Sub(deadline); early > 2*time.Second {
				t.Errorf("%s: the deadline is %v too early", what, early)
			}
		}
		fixed := locktest.MustLock(t, c.NewLock("fixed"), rlock.WithLease(10*time.Second))
		check("acquire", "lock/enter", fixed, 10*time.Second)
		inner := locktest.MustLockCtx(t, fixed.Context(bg), c.NewLock("fixed"), rlock.WithLease(20*time.Second))
		check("re-entry", "lock/reenter", fixed, 20*time.Second)
		if err := fixed.Extend(bg, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		check("Extend", "lock/renew", fixed, 30*time.Second)
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, fixed)

		renewed := locktest.MustLock(t, c.NewLock("renewed"))
		was := renewed.Deadline()
		locktest.Eventually(t, "it is renewed", func() bool { return renewed.Deadline().After(was) })
		check("renewal", "lock/renew", renewed, 1500*time.Millisecond)
		locktest.MustUnlock(t, renewed)
	})
}

package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestLockStandsOnTheWireAsRedissonsDoes(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c, err := rlock.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		defer locktest.Stop(c)
		for _, name := range []string{"order:7", "{t}x", "x{t}", "zwölf Boxkämpfer", "a b", "bin\x00\xff\n", strings.Repeat("n", rlock.MaxNameLength)} {
			lease := locktest.MustLock(t, c.NewLock(name))
			fields, err := rdb.HGetAll(bg, name).Result()
			if err != nil || len(fields) != 1 || fields[lease.HoldID()] != "1" {
				t.Fatalf("%.20q: hash %v, %v; want one field %s: 1", name, fields, err, lease.HoldID())
			}
			if ttl := rdb.PTTL(bg, name).Val(); ttl <= 0 || ttl > 30*time.Second {
				t.Fatalf("%.20q: TTL %v", name, ttl)
			}
			locktest.MustUnlock(t, lease)
			locktest.MustBeEmpty(t, rdb)
		}
	})
}

func TestReleasePublishesZeroOnRedissonsChannel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		for name, channel := range map[string]string{"order:7": "redisson_lock__channel:{order:7}", "{t}x": "redisson_lock__channel:{t}x"} {
			sub := rdb.Subscribe(bg, channel)
			defer sub.Close()
			if _, err := sub.Receive(bg); err != nil {
				t.Fatal(err)
			}
			l := c.NewLock(name)
			outer := locktest.MustLock(t, l)
			inner := locktest.MustLockCtx(t, outer.Context(bg), l)
			locktest.MustUnlock(t, inner) // lowers the count: nobody is told
			locktest.MustUnlock(t, outer)
			locktest.MustLock(t, l)
			if was, err := l.ForceUnlock(bg); !was || err != nil {
				t.Fatal(was, err)
			}
			if was, err := l.ForceUnlock(bg); was || err != nil {
				t.Fatal(was, err)
			}
			if err := rdb.Publish(bg, channel, "end").Err(); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"0", "0", "end"} {
				m, err := sub.ReceiveMessage(bg)
				if err != nil || m.Payload != want {
					t.Fatalf("got %v, %v; want %q", m, err, want)
				}
			}
		}
	})
}

func TestOneLockSharedByGoroutinesExcludesThem(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		clients := []*rlock.Client{b.NewClient(t), b.NewClient(t)}
		locks := []*rlock.Lock{clients[0].NewLock("a"), clients[1].NewLock("a")}
		var wg sync.WaitGroup
		inside, total, last := 0, 0, int64(0)
		for g := range 16 {
			wg.Go(func() {
				for range 10 {
					lease, err := locks[g%2].Lock(bg)
					if err != nil {
						t.Error(err)
						return
					}
					// Unsynchronised on purpose: the race detector watches too.
					inside++
					total++
					if inside != 1 {
						t.Errorf("%d inside", inside)
					}
					if lease.Token() <= last {
						t.Errorf("token %d after %d", lease.Token(), last)
					}
					last = lease.Token()
					inside--
					if err := lease.Unlock(bg); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if total != 160 {
			t.Fatalf("%d sections", total)
		}
		locktest.OnlyTombstones(t, b.Client(t)) // of one that stood by, and then waited behind another of its client
	})
}

func TestTryLockSendsOneRequest(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewLock("a")
		lease := locktest.MustLock(t, l)
		_, err := l.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded, context.Canceled)
		if !regexp.MustCompile(`: not acquired: held by this client \(` + lease.HoldID() + `\), rlock\.test@\S+ \(pid \d+\), (5m0|4m\d+)s of its lease left; whoever holds it enters again`).MatchString(err.Error()) {
			t.Fatalf("error %q does not say by whom, and for how long", err)
		}
		locktest.MustUnlock(t, lease)
		lease, err = l.TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

func TestReentryCountsInRedisAndUnlocksInAnyOrder(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		orders := [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}}
		for _, order := range orders {
			one := locktest.MustLock(t, l)
			two := locktest.MustLockCtx(t, one.Context(bg), l)
			three := locktest.MustLockCtx(t, two.Context(bg), l, rlock.WithLease(time.Second))
			leases := []*rlock.Lease{one, two, three}
			for _, x := range leases {
				if x.HoldID() != one.HoldID() || x.Token() != one.Token() {
					t.Fatalf("a re-entry has owner %s and token %d, the first entry %s and %d", x.HoldID(), x.Token(), one.HoldID(), one.Token())
				}
			}
			for i, n := range order {
				if got, want := locktest.HoldCount(t, rdb, "a", one.HoldID()), fmt.Sprint(3-i); got != want {
					t.Fatalf("order %v: count %s before unlock %d, want %s", order, got, i, want)
				}
				if ttl := rdb.PTTL(bg, "a").Val(); ttl < 25*time.Second {
					t.Fatalf("order %v: lease shortened to %v", order, ttl)
				}
				locktest.MustUnlock(t, leases[n])
				locktest.WantErr(t, leases[n].Err(), rlock.ErrUnlocked)
				locktest.WantErr(t, leases[n].Unlock(bg), rlock.ErrUnlocked, nil, rlock.ErrLeaseLost)
			}
			locktest.MustBeEmpty(t, rdb)
		}
	})
}

func TestNestedShorterLeaseDoesNotShortenTheOuter(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		outer := locktest.MustLock(t, l, rlock.WithLease(time.Minute))
		deadline := outer.Deadline()
		ctx := outer.Context(bg)
		middle := locktest.MustLockCtx(t, ctx, l, rlock.WithLease(20*time.Second))
		inner := locktest.MustLockCtx(t, ctx, l, rlock.WithLease(50*time.Millisecond))
		if d := outer.Deadline(); d.Before(deadline) {
			t.Fatalf("deadline went back by %v", deadline.Sub(d))
		}
		for _, lease := range []*rlock.Lease{inner, outer, middle} { // the wrong order, too
			if ttl := rdb.PTTL(bg, "a").Val(); ttl < 50*time.Second {
				t.Fatalf("TTL %v", ttl)
			}
			locktest.MustUnlock(t, lease)
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestReentryAfterLossFailsUntilUnlocked(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		ctx := rlock.WithOwner(bg)
		lost := locktest.MustLockCtx(t, ctx, l)
		if err := rdb.Del(bg, "a").Err(); err != nil {
			t.Fatal(err)
		}
		// The first to find out is the re-entry itself, which must not create a lock.
		for range 2 {
			_, err := l.Lock(ctx)
			locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrNotAcquired)
		}
		locktest.WantErr(t, lost.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.MustBeEmpty(t, rdb)
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		again := locktest.MustLockCtx(t, ctx, l)
		if again.HoldID() == lost.HoldID() || again.Token() <= lost.Token() {
			t.Fatalf("a new hold has owner %s, token %d; the lost one had %s, %d", again.HoldID(), again.Token(), lost.HoldID(), lost.Token())
		}
		locktest.MustUnlock(t, again)
	})
}

func TestWithoutOwnerExcludesTheCaller(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewLock("a")
		lease := locktest.MustLock(t, l)
		inner, err := l.TryLock(lease.Context(bg))
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, inner)
		_, err = l.TryLock(rlock.WithoutOwner(lease.Context(bg)))
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		_, err = l.TryLock(rlock.WithOwner(lease.Context(bg)))
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, lease)
	})
}

func TestOwnerIsGoodForSeveralLocksAndClients(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, d := b.NewClient(t), b.NewClient(t)
		ctx := rlock.WithOwner(bg)
		a := locktest.MustLockCtx(t, ctx, c.NewLock("a"))
		locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, c.NewLock("b")))
		// Another client is another owner in Redis, even in one process.
		_, err := d.NewLock("a").TryLock(ctx)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, a)
	})
}

func TestConcurrentReentriesAndUnlocksOfOneOwnerKeepTheCount(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		outer := locktest.MustLock(t, l)
		ctx := outer.Context(bg)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					lease, err := l.Lock(ctx)
					if err == nil {
						err = lease.Unlock(bg)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := locktest.HoldCount(t, rdb, "a", outer.HoldID()); n != "1" {
			t.Fatalf("count %s", n)
		}
		locktest.MustUnlock(t, outer)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestSameOwnerEntersFromSeveralGoroutines(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		for range 20 {
			ctx := rlock.WithOwner(bg)
			leases := make([]*rlock.Lease, 4)
			var wg sync.WaitGroup
			for i := range leases {
				wg.Go(func() { leases[i] = locktest.MustLockCtx(t, ctx, l) })
			}
			wg.Wait()
			if n := locktest.HoldCount(t, rdb, "a", leases[0].HoldID()); n != "4" {
				t.Fatalf("count %q, want 4", n)
			}
			for i := range leases {
				wg.Go(func() { locktest.MustUnlock(t, leases[i]) })
			}
			wg.Wait()
			locktest.MustBeEmpty(t, rdb)
		}
	})
}

func TestTryLockDoesNotWaitForItsOwnersOtherAcquire(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewLock("a")
		other := locktest.MustLock(t, l)
		ctx, cancel := context.WithCancel(rlock.WithOwner(bg))
		waits := make(chan error, 1)
		go func() { _, err := l.Lock(ctx); waits <- err }()
		locktest.Eventually(t, "a waiter stands in line", func() bool {
			s, err := l.State(bg)
			return err == nil && s.Waiters == 1
		})
		_, err := l.TryLock(ctx)
		locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.Canceled)
		cancel()
		locktest.WantEnded(t, <-waits, context.Canceled)
		locktest.MustUnlock(t, other)
	})
}

func TestNonReentrantFailsImmediately(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewLock("a", rlock.WithNonReentrant())
		lease := locktest.MustLock(t, l)
		for _, enter := range locktest.Acquires(l) {
			_, err := enter(lease.Context(bg))
			locktest.WantErr(t, err, rlock.ErrReentrant)
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, locktest.MustLock(t, l))
	})
}

func TestMaxHoldEndsARenewedHold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(time.Minute))
		l := c.NewLock("a", rlock.WithMaxHold(100*time.Millisecond))
		lease := locktest.MustLock(t, l)
		deadline := lease.Deadline()
		<-lease.Done()
		if early := time.Until(deadline); early > 0 {
			t.Errorf("lost %v before its Deadline", early)
		}
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		// Nobody gets in while the holder may still be at it ...
		_, err := l.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		// ... but as soon as it says that it is not.
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
	})
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		l := c.NewLock("a")
		t.Run("with a cancelled context", func(t *testing.T) {
			ctx, cancel := context.WithCancel(bg)
			lease, err := l.Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := lease.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
			locktest.MustBeEmpty(t, rdb)
		})
		t.Run("twice", func(t *testing.T) {
			lease := locktest.MustLock(t, l)
			locktest.MustUnlock(t, lease)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			next := locktest.MustLock(t, l)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			if n := locktest.HoldCount(t, rdb, "a", next.HoldID()); n != "1" {
				t.Fatal("a second Unlock touched the successor")
			}
			locktest.MustUnlock(t, next)
		})
		t.Run("from many goroutines at once", func(t *testing.T) {
			lease := locktest.MustLock(t, l)
			var wg sync.WaitGroup
			var mu sync.Mutex
			ok := 0
			for range 8 {
				wg.Go(func() {
					err := lease.Unlock(bg)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						ok++
					} else if !errors.Is(err, rlock.ErrUnlocked) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if ok != 1 {
				t.Fatalf("%d of them succeeded", ok)
			}
		})
		t.Run("nil", func(t *testing.T) {
			var lease *rlock.Lease
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrNotHeld)
		})
		t.Run("from another goroutine", func(t *testing.T) {
			lease := locktest.MustLock(t, l)
			done := make(chan error)
			go func() { done <- lease.Unlock(bg) }()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
		t.Run("of a hold that another has taken over", func(t *testing.T) {
			lease := locktest.MustLock(t, l)
			rdb.Del(bg, "a")
			next := locktest.MustLock(t, l)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			if err := next.Err(); err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, next)
		})
		t.Run("of a hold that was removed", func(t *testing.T) {
			lease := locktest.MustLock(t, l)
			rdb.FlushAll(bg)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		})
	})
}

func TestLeaseContextEndsWithLeaseOrParent(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewLock("a")
		lease := locktest.MustLock(t, l)
		parent, cancel := context.WithCancel(bg)
		short, long := lease.Context(parent), lease.Context(bg)
		if short.Err() != nil || long.Err() != nil {
			t.Fatal("ended early")
		}
		cancel()
		<-short.Done()
		if err := context.Cause(short); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if lease.Err() != nil || long.Err() != nil {
			t.Fatal("the parent's end has ended more than its own context")
		}
		locktest.MustUnlock(t, lease)
		<-long.Done()
		locktest.WantErr(t, context.Cause(long), rlock.ErrUnlocked)
		late := lease.Context(bg)
		locktest.WantErr(t, context.Cause(late), rlock.ErrUnlocked)
		select {
		case <-lease.Done():
		default:
			t.Fatal("Done is open after Unlock")
		}
	})
}

func TestExtendLengthensAndNeverShortens(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		lease := locktest.MustLock(t, l, rlock.WithLease(10*time.Second))
		was := lease.Deadline()
		if err := lease.Extend(bg, time.Second); err != nil {
			t.Fatal(err)
		}
		if ttl := rdb.PTTL(bg, "a").Val(); ttl < 8*time.Second || lease.Deadline().Before(was) {
			t.Fatalf("shortened: TTL %v", ttl)
		}
		if err := lease.Extend(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		if ttl := rdb.PTTL(bg, "a").Val(); ttl < 59*time.Minute || lease.Deadline().Sub(was) < 55*time.Minute {
			t.Fatalf("not extended: TTL %v, deadline moved by %v", ttl, lease.Deadline().Sub(was))
		}
		locktest.WantErr(t, lease.Extend(bg, 25*time.Hour), rlock.ErrInvalidArgument)
		rdb.Del(bg, "a")
		locktest.WantErr(t, lease.Extend(bg, time.Second), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.WantErr(t, lease.Extend(bg, time.Second), rlock.ErrLeaseLost)
	})
}

// The one succeeds, and the other says that it came too late.
func TestExtendDuringUnlock(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for name, l := range map[string]rlock.Locker{
		"lock": c.NewLock("a"), "redlock": locktest.NewRedLock(t, "red", []*rlock.Client{c}, rlock.WithNodeTimeout(5*time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 200 {
				lease := locktest.MustLock(t, l)
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						if err := lease.Extend(bg, time.Minute); err != nil && !errors.Is(err, rlock.ErrUnlocked) {
							t.Error(err)
						}
					})
				}
				all.Go(func() { locktest.MustUnlock(t, lease) })
				all.Wait()
			}
		})
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		mine := errors.New("mine")
		err := rlock.Do(bg, l, func(ctx context.Context) error {
			return rlock.Do(ctx, l, func(ctx context.Context) error {
				if n, err := l.HoldCount(ctx); n != 2 || err != nil {
					t.Errorf("held %d times, %v", n, err)
				}
				return mine
			})
		})
		if !errors.Is(err, mine) {
			t.Fatal(err)
		}
		locktest.MustBeEmpty(t, rdb)

		func() {
			defer func() { _ = recover() }()
			_ = rlock.Do(bg, l, func(context.Context) error { panic("ouch") })
		}()
		locktest.MustBeEmpty(t, rdb)

		err = rlock.Do(bg, l, func(ctx context.Context) error {
			rdb.Del(bg, "a")
			return mine
		})
		if !errors.Is(err, mine) || !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatal(err)
		}
		lease := locktest.MustLock(t, l)
		if err := rlock.Do(bg, l, func(context.Context) error { t.Error("ran"); return nil }, rlock.WithWait(0)); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

func TestTokensGrowAcrossFlushRestartAndExpiry(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		last := int64(0)
		next := func(name, after string, opts ...rlock.AcquireOption) *rlock.Lease {
			t.Helper()
			lease := locktest.MustLock(t, c.NewLock(name), opts...)
			if lease.Token() <= last {
				t.Fatalf("after %s: token %d, was %d", after, lease.Token(), last)
			}
			last = lease.Token()
			return lease
		}
		locktest.MustUnlock(t, next("a", "the start"))
		<-next("a", "a release", rlock.WithLease(locktest.Ample(200*time.Millisecond))).Done()
		locktest.MustUnlock(t, next("a", "an expiry"))
		rdb.FlushAll(bg)
		locktest.MustUnlock(t, next("a", "a flush"))
		if b.Real != nil {
			b.Real.Kill()
			b.Real.Restart()
			locktest.MustUnlock(t, next("a", "a restart without data"))
		}
		// A clock ahead of TIME: the counter goes on from there.
		clocks, err := rdb.Keys(bg, "rlock:clock*").Result()
		if err != nil || len(clocks) != 1 {
			t.Fatal(clocks, err)
		}
		ahead := last + int64(time.Hour/time.Microsecond)
		rdb.Set(bg, clocks[0], ahead, 0)
		lease := next("a", "a clock set ahead")
		if lease.Token() != ahead+1 {
			t.Fatalf("token %d, want %d", lease.Token(), ahead+1)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next("a", "a token ahead of TIME"))
		if ttl := rdb.TTL(bg, clocks[0]).Val(); ttl != -1 {
			t.Fatalf("the fencing clock has a TTL of %v", ttl)
		}
	})
}

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

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

var bg = context.Background()

// keysOf are all keys but the fencing clocks, which stay for ever.
func keysOf(t testing.TB, rdb redis.UniversalClient) (keys []string) {
	t.Helper()
	all, err := rdb.Keys(bg, "*").Result()
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		all = nil
		err = cluster.ForEachMaster(bg, func(ctx context.Context, node *redis.Client) error {
			some, err := node.Keys(ctx, "*").Result()
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if !strings.HasPrefix(k, "rlock:clock:{") {
			keys = append(keys, k)
		}
	}
	return keys
}

func mustBeEmpty(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	if keys := keysOf(t, rdb); len(keys) > 0 {
		t.Fatalf("left in Redis: %q", keys)
	}
}

func count(t testing.TB, rdb redis.UniversalClient, name, owner string) string {
	t.Helper()
	n, err := rdb.HGet(bg, name, owner).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// wantErr checks an error against sentinels: those that it must match, and
// after nil those that it must not.
func wantErr(t testing.TB, err error, sentinels ...error) {
	t.Helper()
	must := true
	for _, s := range sentinels {
		if s == nil {
			must = false
			continue
		}
		if errors.Is(err, s) != must {
			t.Fatalf("error %v: matches %q: %v, want %v", err, s, !must, must)
		}
	}
	var e *rlock.Error
	if !errors.As(err, &e) {
		t.Fatalf("%T is not an *rlock.Error: %v", err, err)
	}
	if !strings.HasPrefix(err.Error(), "rlock: ") {
		t.Fatalf("error text %q does not say where it comes from", err)
	}
}

func TestLockStandsOnTheWireAsRedissonsDoes(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		for _, name := range []string{"order:7", "{t}x", "x{t}", "zwölf Boxkämpfer", "a b", "bin\x00\xff\n", strings.Repeat("n", rlock.MaxNameLength)} {
			lease := mustLock(t, c.NewLock(name))
			fields, err := rdb.HGetAll(bg, name).Result()
			if err != nil || len(fields) != 1 || fields[lease.Owner()] != "1" {
				t.Fatalf("%.20q: hash %v, %v; want one field %s: 1", name, fields, err, lease.Owner())
			}
			if ttl := rdb.PTTL(bg, name).Val(); ttl < 25*time.Second || ttl > 30*time.Second {
				t.Fatalf("%.20q: TTL %v", name, ttl)
			}
			mustUnlock(t, lease)
			mustBeEmpty(t, rdb)
		}
	})
}

func TestReleasePublishesZeroOnRedissonsChannel(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		for name, channel := range map[string]string{"order:7": "redisson_lock__channel:{order:7}", "{t}x": "redisson_lock__channel:{t}x"} {
			sub := rdb.Subscribe(bg, channel)
			defer sub.Close()
			if _, err := sub.Receive(bg); err != nil {
				t.Fatal(err)
			}
			l := c.NewLock(name)
			outer := mustLock(t, l)
			inner := mustLockCtx(t, outer.Context(bg), l)
			mustUnlock(t, inner) // lowers the count: nobody is told
			mustUnlock(t, outer)
			mustLock(t, l)
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
	eachRedis(t, func(t *testing.T, b *backend) {
		clients := []*rlock.Client{b.newClient(t), b.newClient(t)}
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
		mustBeEmpty(t, b.client(t))
	})
}

func TestTryLockLooksOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		l := b.newClient(t).NewLock("a")
		lease := mustLock(t, l)
		_, err := l.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded, context.Canceled)
		if !regexp.MustCompile(`: not acquired: held by ` + lease.Owner() + `, (30|29|2\d)s left$`).MatchString(err.Error()) {
			t.Fatalf("error %q does not say by whom, and for how long", err)
		}
		mustUnlock(t, lease)
		lease, err = l.TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
	})
}

func TestReentryCountsInRedisAndUnlocksInAnyOrder(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		orders := [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}}
		for _, order := range orders {
			one := mustLock(t, l)
			two := mustLockCtx(t, one.Context(bg), l)
			three := mustLockCtx(t, two.Context(bg), l, rlock.WithLease(time.Second))
			leases := []*rlock.Lease{one, two, three}
			for _, x := range leases {
				if x.Owner() != one.Owner() || x.Token() != one.Token() {
					t.Fatalf("a re-entry has owner %s and token %d, the first entry %s and %d", x.Owner(), x.Token(), one.Owner(), one.Token())
				}
			}
			for i, n := range order {
				if got, want := count(t, rdb, "a", one.Owner()), fmt.Sprint(3-i); got != want {
					t.Fatalf("order %v: count %s before unlock %d, want %s", order, got, i, want)
				}
				if ttl := rdb.PTTL(bg, "a").Val(); ttl < 25*time.Second {
					t.Fatalf("order %v: lease shortened to %v", order, ttl)
				}
				mustUnlock(t, leases[n])
				wantErr(t, leases[n].Err(), rlock.ErrUnlocked)
				wantErr(t, leases[n].Unlock(bg), rlock.ErrUnlocked, nil, rlock.ErrLeaseLost)
			}
			mustBeEmpty(t, rdb)
		}
	})
}

func TestNestedShorterLeaseDoesNotShortenTheOuter(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		outer := mustLock(t, l, rlock.WithLease(time.Minute))
		deadline := outer.Deadline()
		ctx := outer.Context(bg)
		middle := mustLockCtx(t, ctx, l, rlock.WithLease(20*time.Second))
		inner := mustLockCtx(t, ctx, l, rlock.WithLease(50*time.Millisecond))
		if d := outer.Deadline(); d.Before(deadline) {
			t.Fatalf("deadline went back by %v", deadline.Sub(d))
		}
		for _, lease := range []*rlock.Lease{inner, outer, middle} { // the wrong order, too
			if ttl := rdb.PTTL(bg, "a").Val(); ttl < 50*time.Second {
				t.Fatalf("TTL %v", ttl)
			}
			mustUnlock(t, lease)
		}
		mustBeEmpty(t, rdb)
	})
}

func TestReentryAfterLossFailsUntilUnlocked(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		ctx := rlock.WithOwner(bg)
		lost := mustLockCtx(t, ctx, l)
		if err := rdb.Del(bg, "a").Err(); err != nil {
			t.Fatal(err)
		}
		// The first to find out is the re-entry itself, which must not create a lock.
		for range 2 {
			_, err := l.Lock(ctx)
			wantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrNotAcquired)
		}
		wantErr(t, lost.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
		mustBeEmpty(t, rdb)
		wantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		again := mustLockCtx(t, ctx, l)
		if again.Owner() == lost.Owner() || again.Token() <= lost.Token() {
			t.Fatalf("a new stay has owner %s, token %d; the lost one had %s, %d", again.Owner(), again.Token(), lost.Owner(), lost.Token())
		}
		mustUnlock(t, again)
	})
}

func TestWithoutOwnerExcludesTheCaller(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		l := b.newClient(t).NewLock("a")
		lease := mustLock(t, l)
		inner, err := l.TryLock(lease.Context(bg))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, inner)
		_, err = l.TryLock(rlock.WithoutOwner(lease.Context(bg)))
		wantErr(t, err, rlock.ErrNotAcquired)
		_, err = l.TryLock(rlock.WithOwner(lease.Context(bg)))
		wantErr(t, err, rlock.ErrNotAcquired)
		mustUnlock(t, lease)
	})
}

func TestOwnerIsGoodForSeveralLocksAndClients(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, d := b.newClient(t), b.newClient(t)
		ctx := rlock.WithOwner(bg)
		a := mustLockCtx(t, ctx, c.NewLock("a"))
		mustUnlock(t, mustLockCtx(t, ctx, c.NewLock("b")))
		// Another client is another owner in Redis, even in one process.
		_, err := d.NewLock("a").TryLock(ctx)
		wantErr(t, err, rlock.ErrNotAcquired)
		mustUnlock(t, a)
	})
}

func TestConcurrentReentriesAndUnlocksOfOneOwnerKeepTheCount(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		outer := mustLock(t, l)
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
		if n := count(t, rdb, "a", outer.Owner()); n != "1" {
			t.Fatalf("count %s", n)
		}
		mustUnlock(t, outer)
		mustBeEmpty(t, rdb)
	})
}

func TestSameOwnerEntersFromSeveralGoroutinesAtOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		for range 20 {
			ctx := rlock.WithOwner(bg)
			leases := make([]*rlock.Lease, 4)
			var wg sync.WaitGroup
			for i := range leases {
				wg.Go(func() { leases[i] = mustLockCtx(t, ctx, l) })
			}
			wg.Wait()
			if n := count(t, rdb, "a", leases[0].Owner()); n != "4" {
				t.Fatalf("count %q, want 4", n)
			}
			for i := range leases {
				wg.Go(func() { mustUnlock(t, leases[i]) })
			}
			wg.Wait()
			mustBeEmpty(t, rdb)
		}
	})
}

func TestTryLockDoesNotWaitForItsOwnersOtherAcquire(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		l := b.newClient(t).NewLock("a")
		other := mustLock(t, l)
		ctx, cancel := context.WithCancel(rlock.WithOwner(bg))
		waits := make(chan error, 1)
		go func() { _, err := l.Lock(ctx); waits <- err }()
		eventually(t, "a waiter stands in line", func() bool {
			s, err := l.State(bg)
			return err == nil && s.Waiters == 1
		})
		_, err := l.TryLock(ctx)
		wantErr(t, err, rlock.ErrNotAcquired, nil, context.Canceled)
		cancel()
		wantErr(t, <-waits, rlock.ErrNotAcquired, context.Canceled)
		mustUnlock(t, other)
	})
}

func TestNonReentrantFailsAtOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		l := b.newClient(t).NewLock("a", rlock.WithNonReentrant())
		lease := mustLock(t, l)
		for _, enter := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){l.Lock, l.TryLock} {
			_, err := enter(lease.Context(bg))
			wantErr(t, err, rlock.ErrReentrant)
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
		mustUnlock(t, mustLock(t, l))
	})
}

func TestMaxHoldEndsARenewedHold(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(time.Minute))
		l := c.NewLock("a", rlock.WithMaxHold(100*time.Millisecond))
		lease := mustLock(t, l)
		<-lease.Done()
		wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		// Nobody gets in while the holder may still be at it ...
		_, err := l.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		// ... but as soon as it says that it is not.
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		mustUnlock(t, mustLock(t, l))
	})
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
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
			mustBeEmpty(t, rdb)
		})
		t.Run("twice", func(t *testing.T) {
			lease := mustLock(t, l)
			mustUnlock(t, lease)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			next := mustLock(t, l)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			if n := count(t, rdb, "a", next.Owner()); n != "1" {
				t.Fatal("a second Unlock touched the successor")
			}
			mustUnlock(t, next)
		})
		t.Run("from many goroutines at once", func(t *testing.T) {
			lease := mustLock(t, l)
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
			wantErr(t, lease.Unlock(bg), rlock.ErrNotHeld)
		})
		t.Run("from another goroutine", func(t *testing.T) {
			lease := mustLock(t, l)
			done := make(chan error)
			go func() { done <- lease.Unlock(bg) }()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
		t.Run("of a hold that another has taken over", func(t *testing.T) {
			lease := mustLock(t, l)
			rdb.Del(bg, "a")
			next := mustLock(t, l)
			wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			if err := next.Err(); err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, next)
		})
		t.Run("of a hold that was removed", func(t *testing.T) {
			lease := mustLock(t, l)
			rdb.FlushAll(bg)
			wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		})
	})
}

func TestLeaseContextEndsWithLeaseOrParent(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		l := b.newClient(t).NewLock("a")
		lease := mustLock(t, l)
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
		mustUnlock(t, lease)
		<-long.Done()
		wantErr(t, context.Cause(long), rlock.ErrUnlocked)
		late := lease.Context(bg)
		wantErr(t, context.Cause(late), rlock.ErrUnlocked)
		select {
		case <-lease.Done():
		default:
			t.Fatal("Done is open after Unlock")
		}
	})
}

func TestExtendLengthensAndNeverShortens(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		lease := mustLock(t, l, rlock.WithLease(10*time.Second))
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
		wantErr(t, lease.Extend(bg, 25*time.Hour), rlock.ErrInvalidArgument)
		rdb.Del(bg, "a")
		wantErr(t, lease.Extend(bg, time.Second), rlock.ErrLeaseLost, rlock.ErrRemoved)
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		wantErr(t, lease.Extend(bg, time.Second), rlock.ErrLeaseLost)
	})
}

func TestBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		hook := &countHook{}
		rdb.AddHook(hook)
		for name, why := range map[string]string{
			"":     "no name",
			"a{b":  "hash tag",
			"{}z":  "hash tag",
			"a}b":  "hash tag",
			"a{}b": "hash tag",
			strings.Repeat("n", rlock.MaxNameLength+1): "longer than",
		} {
			l := c.NewLock(name)
			_, err := l.Lock(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
			if !strings.Contains(err.Error(), why) {
				t.Errorf("name %.20q: error %.200q does not say %q", name, err, why)
			}
			_, err = l.TryLock(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
			_, err = l.IsLocked(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
			_, err = l.HeldBy(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
			_, err = l.ForceUnlock(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
		}
		l := c.NewLock("a")
		for _, opt := range []rlock.AcquireOption{
			rlock.WithLease(0), rlock.WithLease(-time.Second), rlock.WithLease(rlock.MinLease - 1), rlock.WithLease(rlock.MaxLease + 1), rlock.WithWait(-1),
		} {
			_, err := l.Lock(bg, opt)
			wantErr(t, err, rlock.ErrInvalidArgument)
		}
		_, err := l.TryLock(bg, rlock.WithWait(time.Second))
		wantErr(t, err, rlock.ErrInvalidArgument)
		_, err = l.ForceUnlockIf(bg, "")
		wantErr(t, err, rlock.ErrInvalidArgument)
		_, err = c.NewLock("a", rlock.WithMaxHold(-1)).Lock(bg)
		wantErr(t, err, rlock.ErrInvalidArgument)
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_, err = l.Lock(ctx)
		wantErr(t, err, rlock.ErrNotAcquired, context.Canceled)
		if n := hook.n.Load(); n != 0 {
			t.Fatalf("%d commands were sent", n)
		}
	})
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := rlock.New(ring); !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), "Ring") {
		t.Fatal(err)
	}
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := rlock.New(rdb); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Fatal(err)
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for i, opt := range []rlock.Option{
		rlock.WithWatchdogLease(time.Millisecond), rlock.WithWatchdogLease(25 * time.Hour),
		rlock.WithCommandTimeout(0), rlock.WithUnlockTimeout(-1), rlock.WithLongestPoll(0),
		rlock.WithDrift(-1, 0), rlock.WithDrift(0.1, -1), rlock.WithDrift(0.5, time.Hour),
		rlock.WithReplicaAck(-1, time.Second), rlock.WithReplicaAck(1, 0),
		rlock.WithPubSub("loud"), rlock.WithObserver(nil), rlock.WithLogger(nil),
	} {
		if _, err := rlock.New(rdb, opt); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("option %d: %v", i, err)
		}
	}
}

func TestInspection(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		c, d := b.newClient(t, rlock.WithPrefix("p:")), b.newClient(t)
		l, same := c.NewLock("a"), d.NewLock("p:a")
		if l.Name() != "p:a" {
			t.Fatal(l.Name())
		}
		s, err := same.State(bg)
		if err != nil || s.Locked() || s.Mode != rlock.ModeFree || s.TTL != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		lease := mustLock(t, l)
		ctx := lease.Context(bg)
		inner := mustLockCtx(t, ctx, l)
		for _, x := range []*rlock.Lock{l, same} {
			s, err := x.State(bg)
			if err != nil || !s.Locked() || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || s.Holders[0] != (rlock.Holder{Owner: lease.Owner(), Count: 2}) || s.TTL < 25*time.Second {
				t.Fatalf("%+v, %v", s, err)
			}
			if mine := x == l; mine != (s.Token == lease.Token()) {
				t.Fatalf("token %d, the lease has %d", s.Token, lease.Token())
			}
			if locked, err := x.IsLocked(bg); !locked || err != nil {
				t.Fatal(locked, err)
			}
		}
		for ctx, want := range map[context.Context]int{ctx: 2, bg: 0, rlock.WithOwner(bg): 0} {
			if n, err := l.HeldBy(ctx); n != want || err != nil {
				t.Fatalf("held %d times, %v; want %d", n, err, want)
			}
		}
		mustUnlock(t, inner)
		if was, err := same.ForceUnlockIf(bg, "somebody:1"); was || err != nil {
			t.Fatal(was, err)
		}
		if was, err := same.ForceUnlockIf(bg, lease.Owner()); !was || err != nil {
			t.Fatal(was, err)
		}
		if n, err := l.HeldBy(ctx); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		next := mustLock(t, same)
		if was, err := l.ForceUnlockIf(bg, lease.Owner()); was || err != nil {
			t.Fatal("hit a newer holder", err)
		}
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		mustUnlock(t, next)
	})
}

func TestDo(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		mine := errors.New("mine")
		err := rlock.Do(bg, l, func(ctx context.Context) error {
			return rlock.Do(ctx, l, func(ctx context.Context) error {
				if n, err := l.HeldBy(ctx); n != 2 || err != nil {
					t.Errorf("held %d times, %v", n, err)
				}
				return mine
			})
		})
		if !errors.Is(err, mine) {
			t.Fatal(err)
		}
		mustBeEmpty(t, rdb)

		func() {
			defer func() { _ = recover() }()
			_ = rlock.Do(bg, l, func(context.Context) error { panic("ouch") })
		}()
		mustBeEmpty(t, rdb)

		err = rlock.Do(bg, l, func(ctx context.Context) error {
			rdb.Del(bg, "a")
			return mine
		})
		if !errors.Is(err, mine) || !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatal(err)
		}
		lease := mustLock(t, l)
		if err := rlock.Do(bg, l, func(context.Context) error { t.Error("ran"); return nil }, rlock.WithWait(0)); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
	})
}

func TestShutdownEndsLeasesWakesEverybodyAndWaitsForUnlocks(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		other := b.newClient(t)
		taken := mustLock(t, other.NewLock("taken"))
		var leases []*rlock.Lease
		for i := range 300 { // more than one batch
			leases = append(leases, mustLock(t, c.NewLock(fmt.Sprint("l", i))))
		}
		inner := mustLockCtx(t, leases[0].Context(bg), c.NewLock("l0"))
		ctx := leases[1].Context(bg)
		waits := make(chan error, 10)
		for range cap(waits) {
			go func() { _, err := c.NewLock("taken").Lock(bg); waits <- err }()
		}
		eventually(t, "all wait", func() bool { s, _ := c.NewLock("taken").State(bg); return s.Waiters == cap(waits) })
		done := make(chan error, 1)
		go func() { done <- c.Shutdown(bg) }()
		for range cap(waits) {
			wantErr(t, <-waits, rlock.ErrClosed)
		}
		for _, lease := range append(leases, inner) {
			<-lease.Done()
			wantErr(t, lease.Err(), rlock.ErrClosed)
		}
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), rlock.ErrClosed)
		for i := range leases {
			if rdb.Exists(bg, fmt.Sprint("l", i)).Val() != 1 {
				t.Fatalf("l%d was freed under its holder", i)
			}
		}
		_, err := c.NewLock("a").Lock(bg)
		wantErr(t, err, rlock.ErrClosed)
		_, err = c.NewLock("l0").Lock(leases[0].Context(bg))
		wantErr(t, err, rlock.ErrClosed)
		_, err = c.NewLock("a").State(bg)
		wantErr(t, err, rlock.ErrClosed)
		wantErr(t, leases[2].Extend(bg, time.Minute), rlock.ErrClosed)
		mustUnlock(t, inner)
		for i, lease := range leases {
			select {
			case err := <-done:
				t.Fatalf("Shutdown returned %v while %d locks are held", err, len(leases)-i)
			default:
			}
			mustUnlock(t, lease)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, key := range keysOf(t, rdb) {
			if key != "taken" && !strings.Contains(key, ":rlock:gone:") { // of what a busy machine sent twice
				t.Fatalf("left: %q", key)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal("a second Shutdown:", err)
		}
		if err := rdb.Ping(bg).Err(); err != nil {
			t.Fatal("the caller's client was touched:", err)
		}
		mustUnlock(t, taken)
	})
}

func TestShutdownWhileLocksAreTakenLeavesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		for range 10 {
			c := newClientOn(t, rdb)
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := 0; ; i++ {
						lease, err := c.NewLock(fmt.Sprint(g%3, i%2)).Lock(bg)
						if errors.Is(err, rlock.ErrClosed) {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						if i%3 == 0 && g < 3 {
							<-lease.Done() // until Shutdown
						}
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			eventually(t, "something is held", func() bool { return len(keysOf(t, rdb)) > 0 })
			if err := c.Shutdown(bg); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			onlyTombstones(t, rdb) // of grants that came too late
		}
	})
}

func TestTokensGrowAcrossFlushRestartAndExpiry(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		last := int64(0)
		next := func(name, after string, opts ...rlock.AcquireOption) *rlock.Lease {
			t.Helper()
			lease := mustLock(t, c.NewLock(name), opts...)
			if lease.Token() <= last {
				t.Fatalf("after %s: token %d, was %d", after, lease.Token(), last)
			}
			last = lease.Token()
			return lease
		}
		mustUnlock(t, next("a", "the start"))
		<-next("a", "a release", rlock.WithLease(ample(200*time.Millisecond))).Done()
		mustUnlock(t, next("a", "an expiry"))
		rdb.FlushAll(bg)
		mustUnlock(t, next("a", "a flush"))
		if b.real != nil {
			b.real.Kill()
			b.real.Restart()
			mustUnlock(t, next("a", "a restart without data"))
		}
		// A clock ahead of TIME: the counter goes on from there.
		clocks, err := rdb.Keys(bg, "rlock:clock:*").Result()
		if err != nil || len(clocks) != 1 {
			t.Fatal(clocks, err)
		}
		ahead := last + int64(time.Hour/time.Microsecond)
		rdb.Set(bg, clocks[0], ahead, 0)
		lease := next("a", "a clock set ahead")
		if lease.Token() != ahead+1 {
			t.Fatalf("token %d, want %d", lease.Token(), ahead+1)
		}
		mustUnlock(t, lease)
		if ttl := rdb.TTL(bg, clocks[0]).Val(); ttl != -1 {
			t.Fatalf("the fencing clock has a TTL of %v", ttl)
		}
	})
}

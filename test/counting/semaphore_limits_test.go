package counting

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// While fewer than no permits are free, a release is not announced: Redisson's clients cannot
// read a negative number, and nobody can enter.
func TestReleaseThatLeavesLessThanNoneIsNotAnnounced(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := b.NewClient(t).NewSemaphore("s")
		h := listen(t, rdb, "redisson_sc:{s}")
		ok(t, s.AddPermits(bg, -3))
		ok(t, s.Release(bg, 1))
		ok(t, s.Release(bg, 3))
		is(t, 1)(s.Available(bg))
		h.wants(rdb, "redisson_sc:{s}", "1")
	})
}

// A key that is in use for something else is told by each method, and not changed.
func TestForeignKeysAreTold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for what, put := range map[string]func(key string) error{
			"hash":   func(key string) error { return rdb.HSet(bg, key, "a", "b").Err() },
			"list":   func(key string) error { return rdb.RPush(bg, key, "a").Err() },
			"set":    func(key string) error { return rdb.SAdd(bg, key, "a").Err() },
			"zset":   func(key string) error { return rdb.ZAdd(bg, key, redis.Z{Score: 1, Member: "a"}).Err() },
			"string": func(key string) error { return rdb.Set(bg, key, "text", 0).Err() },
		} {
			key := "n:" + what
			ok(t, put(key))
			s, l, p := c.NewSemaphore(key), c.NewCountDownLatch(key), c.NewPermitSemaphore(key)
			for method, call := range map[string]func() error{
				"Semaphore.TrySetPermits":         func() error { _, err := s.TrySetPermits(bg, 1); return err },
				"Semaphore.AddPermits":            func() error { return s.AddPermits(bg, 1) },
				"Semaphore.SetPermits":            func() error { return s.SetPermits(bg, 1) },
				"Semaphore.State":                 func() error { _, err := s.State(bg); return err },
				"Semaphore.Delete":                func() error { _, err := s.Delete(bg); return err },
				"Semaphore.Acquire":               func() error { return s.Acquire(bg, 1) },
				"Semaphore.TryAcquire":            func() error { return s.TryAcquire(bg, 1) },
				"Semaphore.Release":               func() error { return s.Release(bg, 1) },
				"Semaphore.Drain":                 func() error { _, err := s.Drain(bg); return err },
				"Semaphore.Available":             func() error { _, err := s.Available(bg); return err },
				"CountDownLatch.TrySetCount":      func() error { _, err := l.TrySetCount(bg, 1); return err },
				"CountDownLatch.CountDown":        func() error { return l.CountDown(bg) },
				"CountDownLatch.Count":            func() error { _, err := l.Count(bg); return err },
				"CountDownLatch.Wait":             func() error { return l.Wait(bg) },
				"CountDownLatch.Delete":           func() error { _, err := l.Delete(bg); return err },
				"PermitSemaphore.TrySetPermits":   func() error { _, err := p.TrySetPermits(bg, 1); return err },
				"PermitSemaphore.AddPermits":      func() error { return p.AddPermits(bg, 1) },
				"PermitSemaphore.Acquire":         func() error { _, err := p.Acquire(bg, 1); return err },
				"PermitSemaphore.TryAcquire of 2": func() error { _, err := p.TryAcquire(bg, 2); return err },
				"PermitSemaphore.Available":       func() error { _, err := p.Available(bg); return err },
				"PermitSemaphore.State":           func() error { _, err := p.State(bg); return err },
			} {
				before := rdb.Dump(bg, key).Val()
				if err := call(); !errors.Is(err, rlock.ErrForeignKey) {
					t.Errorf("%s of a %s: %v", method, what, err)
				}
				if rdb.Dump(bg, key).Val() != before {
					t.Errorf("%s of a %s changes it", method, what)
				}
			}
		}
	})
}

// A PermitSemaphore has at most MaxPermits, those that are held included: more could not all
// come back. And at least as many less than none, which Java can read.
func TestPermitsHaveBounds(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		for name, p := range map[string]*rlock.PermitSemaphore{
			"plain": c.NewPermitSemaphore("plain"), "fair": c.NewPermitSemaphore("fair", rlock.WithFairness()),
		} {
			is(t, true)(p.TrySetPermits(bg, rlock.MaxPermits))
			lease, err := p.TryAcquire(bg, 1)
			ok(t, err)
			if err := p.AddPermits(bg, 1); !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Errorf("%s: one more than can be: %v", name, err)
			}
			locktest.MustUnlock(t, lease)
			is(t, rlock.MaxPermits)(p.Available(bg))
			ok(t, p.AddPermits(bg, -rlock.MaxPermits))
			ok(t, p.AddPermits(bg, -rlock.MaxPermits))
			if err := p.AddPermits(bg, -1); !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Errorf("%s: one less than can be: %v", name, err)
			}
			is(t, -rlock.MaxPermits)(p.Available(bg))
			ok(t, p.AddPermits(bg, rlock.MaxPermits))
			ok(t, p.AddPermits(bg, 1))
			is(t, 1)(p.Available(bg))
		}
	})
}

// Who wants more permits than there are does not keep others of its client out, and gets its
// permits when there are enough.
func TestRequestForMoreThanThereAreBlocksNobody(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		s := c.NewSemaphore("s")
		is(t, true)(s.TrySetPermits(bg, 9))
		ok(t, s.AddPermits(bg, 1))
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		tooMany := begun(func() error { return s.Acquire(ctx, 11) })
		again := begun(func() error { return s.Acquire(bg, 11) })
		listened(t, b.Client(t), "s", 1)
		for range 3 {
			ok(t, ended(t, begun(func() error { return s.Acquire(bg, 6) })))
			small := begun(func() error { return s.Acquire(bg, 5) })
			wait(t, small)
			ok(t, s.Release(bg, 6))
			ok(t, ended(t, small))
			ok(t, s.Release(bg, 5))
		}
		wait(t, tooMany, again)
		cancel()
		locktest.WantEnded(t, ended(t, tooMany), context.Canceled)
		ok(t, s.AddPermits(bg, 1))
		ok(t, ended(t, again))
		is(t, 0)(s.Available(bg))
	})
}

// What is known of the number of permits is what clients of this package have set: nothing that is
// undone, and nothing that others have done.
func TestNumberOfPermitsThatIsKnown(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		s := c.NewSemaphore("s")
		known := func(want string) {
			t.Helper()
			if got, _, _ := strings.Cut(text(t, rdb, "{s}:rlock:all"), " "); got != want {
				t.Fatalf("%q are known, want %q", got, want)
			}
		}
		locktest.LoadScripts(t, rdb, "semaphore/try_set", "semaphore/add")
		locktest.OnNth(t, proxy, "semaphore/try_set", 1, action)
		is(t, true)(s.TrySetPermits(bg, 3))
		locktest.OnNth(t, proxy, "semaphore/add", 1, action)
		known("3")
		ok(t, s.AddPermits(bg, 4))
		known("7")
		ok(t, s.AddPermits(bg, -2))
		known("5")
		ok(t, s.Acquire(bg, 4))
		is(t, 1)(s.Drain(bg))
		ok(t, s.Release(bg, 5))
		known("5")
		ok(t, rdb.Del(bg, "s", "{s}:rlock:all").Err())
		ok(t, rdb.Set(bg, "s", 3, 0).Err()) // Java
		ok(t, s.AddPermits(bg, 4))
		known("")
		ok(t, rdb.Del(bg, "s").Err())
		ok(t, s.AddPermits(bg, 4))
		known("4")
	})
}

// Semaphore, PermitSemaphore and latch of one name would use one number. Where the keys beside it
// tell, a method that would change the number of another type fails, and changes nothing.
func TestNumbersOfOtherTypesAreTold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, rdb := b.NewClient(t), b.Client(t)
		ofSemaphore, ofPermits := objectsOf(c).s, permitsOf(t, c, "p", 2)
		is(t, true)(ofSemaphore.TrySetPermits(bg, 3))
		mustAcquire(t, ofPermits, 1)
		refused := func(key, want string, calls map[string]func(name string) error) {
			t.Helper()
			for method, call := range calls {
				err := call(key)
				if locktest.WantErr(t, err, rlock.ErrForeignKey); !strings.Contains(err.Error(), "in use for something else: it is a ") {
					t.Errorf("%s: %v", method, err)
				}
				if got := text(t, rdb, key); got != want {
					t.Fatalf("%s of another type: %s are left, want %s", method, got, want)
				}
			}
		}
		latch := map[string]func(name string) error{
			"TrySetCount": func(name string) error { _, err := c.NewCountDownLatch(name).TrySetCount(bg, 1); return err },
			"CountDown":   func(name string) error { return c.NewCountDownLatch(name).CountDown(bg) },
			"Delete":      func(name string) error { _, err := c.NewCountDownLatch(name).Delete(bg); return err },
		}
		refused("s", "3", latch)
		refused("p", "1", latch)
		refused("s", "3", map[string]func(name string) error{
			"TrySetPermits": func(name string) error { _, err := c.NewPermitSemaphore(name).TrySetPermits(bg, 1); return err },
			"AddPermits":    func(name string) error { return c.NewPermitSemaphore(name).AddPermits(bg, 1) },
		})
		refused("p", "1", map[string]func(name string) error{
			"TrySetPermits": func(name string) error { _, err := c.NewSemaphore(name).TrySetPermits(bg, 1); return err },
			"AddPermits":    func(name string) error { return c.NewSemaphore(name).AddPermits(bg, 1) },
			"SetPermits":    func(name string) error { return c.NewSemaphore(name).SetPermits(bg, 1) },
			"Delete":        func(name string) error { _, err := c.NewSemaphore(name).Delete(bg); return err },
		})
		// What is left of a semaphore that Java has deleted is in nobody's way.
		ok(t, rdb.Del(bg, "s").Err())
		is(t, true)(c.NewCountDownLatch("s").TrySetCount(bg, 1))
		ok(t, c.NewCountDownLatch("s").CountDown(bg))
		is(t, true)(ofSemaphore.TrySetPermits(bg, 3))
		ok(t, rdb.Del(bg, "s").Err())
		is(t, true)(c.NewPermitSemaphore("s").TrySetPermits(bg, 1))
		ok(t, c.NewPermitSemaphore("s").AddPermits(bg, 1))
	})
}

// A key of another type beside the number is told in words too.
func TestForeignKeysBesideANumberAreTold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, rdb := b.NewClient(t), b.Client(t)
		p := permitsOf(t, c, "p", 1)
		ok(t, rdb.Set(bg, "{p}:timeout", "text", 0).Err())
		_, err := p.TryAcquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrForeignKey)
		if want := `in use for something else: one of its keys has another type (WRONGTYPE): "{p}:timeout" is a string`; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		ok(t, rdb.HSet(bg, "h", "a", "b").Err())
		_, err = c.NewCountDownLatch("h").Count(bg)
		if want := `in use for something else: "h" is a hash (WRONGTYPE)`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

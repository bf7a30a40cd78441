package counting

import (
	"context"
	"errors"
	"maps"
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
func TestForeignKeysAreReportedAndNotChanged(t *testing.T) {
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
				"PermitSemaphore.Delete":          func() error { _, err := p.Delete(bg); return err },
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

// numberOf are the methods of each type that take, give back, set or change the number of a name.
func numberOf(c *rlock.Client, name string) map[string]map[string]func() error {
	s, p, l := c.NewSemaphore(name), c.NewPermitSemaphore(name), c.NewCountDownLatch(name)
	return map[string]map[string]func() error{
		"Semaphore": {
			"TrySetPermits": func() error { _, err := s.TrySetPermits(bg, 1); return err },
			"AddPermits":    func() error { return s.AddPermits(bg, 1) },
			"SetPermits":    func() error { return s.SetPermits(bg, 1) },
			"Acquire":       func() error { return s.Acquire(bg, 1) },
			"TryAcquire":    func() error { return s.TryAcquire(bg, 1) },
			"Release":       func() error { return s.Release(bg, 1) },
			"Drain":         func() error { _, err := s.Drain(bg); return err },
			"Delete":        func() error { _, err := s.Delete(bg); return err },
		},
		"PermitSemaphore": {
			"TrySetPermits": func() error { _, err := p.TrySetPermits(bg, 1); return err },
			"AddPermits":    func() error { return p.AddPermits(bg, 1) },
			"SetPermits":    func() error { return p.SetPermits(bg, 1) },
			"Acquire":       func() error { _, err := p.Acquire(bg, 2); return err },
			"TryAcquire":    func() error { _, err := p.TryAcquire(bg, 1); return err },
			"Delete":        func() error { _, err := p.Delete(bg); return err },
		},
		"CountDownLatch": {
			"TrySetCount": func() error { _, err := l.TrySetCount(bg, 1); return err },
			"CountDown":   func() error { return l.CountDown(bg) },
			"Delete":      func() error { _, err := l.Delete(bg); return err },
		},
	}
}

// Semaphore, PermitSemaphore and latch of one name would use one number. Where a key beside it tells
// what it is, a method of another type fails, and changes nothing.
func TestNumbersOfOtherTypesAreReported(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, rdb := b.NewClient(t), b.Client(t)
		for name, n := range map[string]struct {
			of   string
			make func(name string)
		}{
			"semaphore":              {"Semaphore", func(n string) { is(t, true)(c.NewSemaphore(n).TrySetPermits(bg, 3)) }},
			"semaphore that is set":  {"Semaphore", func(n string) { ok(t, c.NewSemaphore(n).SetPermits(bg, 3)) }},
			"permits, one held":      {"PermitSemaphore", func(n string) { mustAcquire(t, permitsOf(t, c, n, 3), 1) }},
			"permits, none held":     {"PermitSemaphore", func(n string) { permitsOf(t, c, n, 3) }},
			"permits that are added": {"PermitSemaphore", func(n string) { ok(t, c.NewPermitSemaphore(n).AddPermits(bg, 3)) }},
			"permits that are set":   {"PermitSemaphore", func(n string) { ok(t, c.NewPermitSemaphore(n).SetPermits(bg, 3)) }},
			"permits of Java, one held": {"PermitSemaphore", func(n string) {
				ok(t, rdb.Set(bg, n, 1, 0).Err())
				ok(t, rdb.ZAdd(bg, "{"+n+"}:timeout", redis.Z{Score: 922337203685477, Member: "0123456789abcdef"}).Err())
			}},
			"latch": {"CountDownLatch", func(n string) { is(t, true)(c.NewCountDownLatch(n).TrySetCount(bg, 3)) }},
		} {
			n.make(name)
			before := map[string]string{}
			for _, key := range []string{name, "{" + name + "}:rlock:all", "{" + name + "}:timeout"} {
				before[key] = rdb.Dump(bg, key).Val()
			}
			for of, methods := range numberOf(c, name) {
				if of == n.of {
					continue
				}
				for method, call := range methods {
					err := call()
					if want := "in use for something else: it is a " + n.of; !errors.Is(err, rlock.ErrForeignKey) || !strings.Contains(err.Error(), want) {
						t.Errorf("%s.%s of %s: %v, want %s", of, method, name, err, want)
					}
					for key, was := range before {
						if rdb.Dump(bg, key).Val() != was {
							t.Fatalf("%s.%s of %s changes %s", of, method, name, key)
						}
					}
				}
			}
		}
	})
}

// What is left beside a number that is gone is in nobody's way, whoever makes the next one.
func TestOtherKeysOfADeletedNumberDoNotBlockANewOne(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, rdb := b.NewClient(t), b.Client(t)
		type maker struct {
			of   string
			told bool // others are told what it is
			make func(name string)
		}
		set := map[string]maker{
			"Semaphore":       {"Semaphore", true, func(n string) { is(t, true)(c.NewSemaphore(n).TrySetPermits(bg, 9)) }},
			"PermitSemaphore": {"PermitSemaphore", true, func(n string) { is(t, true)(c.NewPermitSemaphore(n).TrySetPermits(bg, 9)) }},
			"CountDownLatch":  {"CountDownLatch", true, func(n string) { is(t, true)(c.NewCountDownLatch(n).TrySetCount(bg, 9)) }},
		}
		anew := map[string]maker{
			"AddPermits":             {"Semaphore", true, func(n string) { ok(t, c.NewSemaphore(n).AddPermits(bg, 9)) }},
			"SetPermits":             {"Semaphore", true, func(n string) { ok(t, c.NewSemaphore(n).SetPermits(bg, 9)) }},
			"Release":                {"Semaphore", false, func(n string) { ok(t, c.NewSemaphore(n).Release(bg, 9)) }},
			"AddPermits with leases": {"PermitSemaphore", true, func(n string) { ok(t, c.NewPermitSemaphore(n).AddPermits(bg, 9)) }},
			"SetPermits with leases": {"PermitSemaphore", true, func(n string) { ok(t, c.NewPermitSemaphore(n).SetPermits(bg, 9)) }},
		}
		maps.Copy(anew, set)
		for old, was := range set {
			for next, now := range anew {
				name := old + ", then " + next
				was.make(name)
				ok(t, rdb.Del(bg, name).Err()) // Java, or an eviction
				now.make(name)
				looks := map[string]func() error{
					"Semaphore":       numberOf(c, name)["Semaphore"]["TryAcquire"],
					"PermitSemaphore": numberOf(c, name)["PermitSemaphore"]["TryAcquire"],
					"CountDownLatch":  numberOf(c, name)["CountDownLatch"]["CountDown"],
				}
				for of, look := range looks {
					switch {
					case of == now.of:
						ok(t, look())
					case now.told:
						if err := look(); !errors.Is(err, rlock.ErrForeignKey) {
							t.Errorf("%s: a %s: %v", name, of, err)
						}
					}
				}
			}
		}
	})
}

// A key of another type beside the number is told in words too.
func TestForeignKeyOfHeldPermitsIsReported(t *testing.T) {
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

package counting

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/protocol"
)

// step is one operation, and what it must leave: the value of a key, its TTL, and messages.
type step struct {
	what     string
	do       func() error
	value    string
	lives    time.Duration // 0: without end
	messages []string
}

// play plays steps on a key, and compares what is in Redis after each.
func play(t *testing.T, b *locktest.Backend, key, channel string, steps []step) {
	t.Helper()
	rdb := b.Client(t)
	h := listen(t, rdb, channel)
	for _, s := range steps {
		ok(t, s.do())
		if got := text(t, rdb, key); got != s.value {
			t.Fatalf("after %s: %q, want %q", s.what, got, s.value)
		}
		switch ttl := rdb.PTTL(bg, key).Val(); {
		case s.value == "":
			wantKeys(t, rdb)
		case s.lives == 0 && ttl != -1:
			t.Fatalf("after %s it lives for %v", s.what, ttl)
		case s.lives > 0:
			locktest.WantTTL(t, rdb, key, s.lives)
			fallthrough
		default:
			wantKeys(t, rdb, key)
		}
		h.wants(rdb, channel, s.messages...)
	}
}

// After each operation there is in Redis what Redisson has there: section 5 of its wire.
func TestSemaphoreOnTheWire(t *testing.T) {
	t.Parallel()
	for name, channel := range map[string]string{"app:s": "redisson_sc:{app:s}", "{app}:s": "redisson_sc:{app}:s"} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				s, rdb := b.NewClient(t).NewSemaphore(name), b.Client(t)
				java := func(args ...any) func() error { return func() error { return rdb.Do(bg, args...).Err() } }
				drain := func() error { _, err := s.Drain(bg); return err }
				set := func(n int) func() error { return func() error { _, err := s.TrySetPermits(bg, n); return err } }
				to := func(n int) func() error { return func() error { return s.SetPermits(bg, n) } }
				remove := func() error { _, err := s.Delete(bg); return err }
				type messages = []string
				play(t, b, name, channel, []step{
					{"a release of nothing", func() error { return s.Release(bg, 2) }, "2", 0, messages{"2"}},
					{"a delete", java("del", name), "", 0, nil},
					{"permits are set", set(5), "5", 0, messages{"5"}},
					{"they are set again", set(7), "5", 0, nil},
					{"an acquire", func() error { return s.Acquire(bg, 2) }, "3", 0, nil},
					{"a release", func() error { return s.Release(bg, 1) }, "4", 0, messages{"4"}},
					{"an addition", func() error { return s.AddPermits(bg, 3) }, "7", 0, messages{"7"}},
					{"a reduction", func() error { return s.AddPermits(bg, -7) }, "0", 0, messages{"0"}},
					{"a reduction below 0", func() error { return s.AddPermits(bg, -2) }, "-2", 0, nil},
					{"a drain of less than nothing", drain, "-2", 0, nil},
					{"Java sets a TTL", java("set", name, 4, "px", 60_000), "4", time.Minute, nil},
					{"an acquire of those", func() error { return s.TryAcquire(bg, 1) }, "3", time.Minute, nil},
					{"a release of those", func() error { return s.Release(bg, 2) }, "5", time.Minute, messages{"5"}},
					{"an addition ends the TTL", func() error { return s.AddPermits(bg, 1) }, "6", 0, messages{"6"}},
					{"Java sets a TTL again", java("set", name, 4, "px", 60_000), "4", time.Minute, nil},
					{"a drain ends the TTL", drain, "0", 0, nil},
					{"a delete", remove, "", 0, messages{"0"}},
					{"a delete of nothing", remove, "", 0, nil},
					{"as many as there are to be", to(5), "5", 0, messages{"5"}},
					{"an acquire of most", func() error { return s.Acquire(bg, 4) }, "1", 0, nil},
					{"more", to(7), "3", 0, messages{"3"}},
					{"as many as there are", to(7), "3", 0, nil},
					{"fewer", to(5), "1", 0, messages{"1"}},
					{"as many as are taken", to(4), "0", 0, messages{"0"}},
					{"fewer than are taken", to(2), "-2", 0, nil},
					{"a release of one too many", func() error { return s.Release(bg, 1) }, "-1", 0, nil},
					{"a release of the others", func() error { return s.Release(bg, 3) }, "2", 0, messages{"2"}},
					{"a TTL", java("pexpire", name, 60_000), "2", time.Minute, nil},
					{"a number ends the TTL", to(3), "3", 0, messages{"3"}},
				})
			})
		})
	}
}

// The same for section 7. A count-down of an open latch leaves nothing at all.
func TestLatchOnTheWire(t *testing.T) {
	t.Parallel()
	for name, channel := range map[string]string{
		"app:l": "redisson_countdownlatch__channel__{app:l}", "{app}:l": "redisson_countdownlatch__channel__{{app}:l}",
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				l, rdb := b.NewClient(t).NewCountDownLatch(name), b.Client(t)
				down := func() error { return l.CountDown(bg) }
				set := func(n int) func() error { return func() error { _, err := l.TrySetCount(bg, n); return err } }
				remove := func() error { _, err := l.Delete(bg); return err }
				java := func(args ...any) func() error { return func() error { return rdb.Do(bg, args...).Err() } }
				type messages = []string
				ok(t, down())
				locktest.MustBeEmpty(t, rdb) // not even a record
				play(t, b, name, channel, []step{
					{"a count-down of nothing", down, "", 0, nil},
					{"a count is set", set(2), "2", 0, messages{"1"}},
					{"it is set again", set(3), "2", 0, nil},
					{"a count-down", down, "1", 0, nil},
					{"the last count-down", down, "", 0, messages{"0"}},
					{"a count is set anew", set(9), "9", 0, messages{"1"}},
					{"a delete", remove, "", 0, messages{"1", "0"}},
					{"a delete of nothing", remove, "", 0, nil},
					{"Java sets 0", java("set", name, 0), "0", 0, nil},
					{"a wait for 0", func() error { return l.Wait(bg) }, "0", 0, nil},
					{"a count-down of 0", down, "", 0, nil},
				})
			})
		})
	}
}

func TestBarrierOnTheWire(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"app:b": "{app:b}:rlock:barrier", "{app}:b": "{app}:b:rlock:barrier"} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				l := b.NewClient(t).NewBarrier(name)
				set, lift := func() error { return l.Set(bg) }, func() error { return l.Lift(bg) }
				type messages = []string
				play(t, b, key, key+":lifted", []step{
					{"nothing is lifted", lift, "", 0, nil},
					{"it is set", set, "1", 0, nil},
					{"it is set again", set, "1", 0, nil},
					{"it is lifted", lift, "", 0, messages{"0"}},
				})
			})
		})
	}
}

// In a cluster messages are sharded, as for locks. The channel of a latch with a hash tag of
// its own would be in another slot: it has one of ours.
func TestCountingInACluster(t *testing.T) {
	t.Parallel()
	b := locktest.OnCluster(t)
	for _, name := range []string{"plain", "{tag}x", "x{tag}"} {
		locktest.Beside(t, name, func(t *testing.T) {
			a := objectsNamed(b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), name)
			z := objectsNamed(b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), name)
			// One name for a semaphore and a latch would be one key.
			is(t, true)(a.s.TrySetPermits(bg, 1))
			ok(t, a.s.Acquire(bg, 1))
			ok(t, a.b.Set(bg))
			done := []<-chan error{
				begun(func() error { return z.s.Acquire(bg, 1) }), begun(func() error { return z.b.Wait(bg) }),
			}
			wait(t, done...)
			ok(t, a.s.Release(bg, 1))
			ok(t, a.b.Lift(bg))
			for _, d := range done {
				ok(t, ended(t, d))
			}
			ok(t, b.Client(t).Del(bg, name).Err())
			is(t, true)(a.l.TrySetCount(bg, 1))
			open := begun(func() error { return z.l.Wait(bg) })
			wait(t, open)
			ok(t, a.l.CountDown(bg))
			ok(t, ended(t, open))
		})
	}
}

func objectsNamed(c *rlock.Client, name string) objects {
	return objects{c.NewSemaphore(name), c.NewCountDownLatch(name), c.NewBarrier(name)}
}

// A client that may not publish counts all the same, and who waits looks by itself.
func TestCountingWithoutPublishing(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	ok(t, admin.Do(bg, "acl", "setuser", "mute", "on", ">secret", "~*", "+@all", "-publish", "resetchannels").Err())
	rdb := locktest.Dialer(b.Addr)(t, func(o *redis.Options) { o.Username, o.Password = "mute", "secret" })
	o := objectsOf(locktest.NewClient(t, rdb, rlock.WithLongestPoll(50*time.Millisecond)))
	is(t, true)(o.s.TrySetPermits(bg, 1))
	is(t, true)(o.l.TrySetCount(bg, 1))
	ok(t, o.b.Set(bg))
	ok(t, o.s.Acquire(bg, 1))
	other := objectsOf(b.NewClient(t, rlock.WithLongestPoll(50*time.Millisecond)))
	done := []<-chan error{
		begun(func() error { return other.s.Acquire(bg, 1) }),
		begun(func() error { return other.l.Wait(bg) }),
		begun(func() error { return other.b.Wait(bg) }),
	}
	wait(t, done...)
	ok(t, o.s.Release(bg, 1))
	ok(t, o.l.CountDown(bg))
	ok(t, o.b.Lift(bg))
	for _, d := range done {
		ok(t, ended(t, d))
	}
}

// A server at its memory limit still takes permits back, counts down and lifts barriers.
func TestReleasesOnAFullServer(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	o := objectsOf(b.NewClient(t))
	is(t, true)(o.s.TrySetPermits(bg, 3))
	is(t, true)(o.l.TrySetCount(bg, 2))
	ok(t, o.b.Set(bg))
	ok(t, o.s.Acquire(bg, 2))
	ok(t, rdb.ConfigSet(bg, "maxmemory", "1").Err())
	if err := rdb.Set(bg, "more", "1", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatal(err)
	}
	ok(t, o.s.Release(bg, 2))
	is(t, 3)(o.s.Available(bg))
	ok(t, o.l.CountDown(bg))
	ok(t, o.l.CountDown(bg))
	ok(t, o.l.Wait(bg))
	ok(t, o.b.Lift(bg))
	ok(t, o.b.Wait(bg))
}

// The scripts and the client agree on how long a record lasts.
func TestRecordsLastAsLongAsTheClientRelies(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	s := b.NewClient(t).NewSemaphore("s")
	is(t, true)(s.TrySetPermits(bg, 3))
	done, _ := records(t, rdb)
	if len(done) != 1 {
		t.Fatal(done)
	}
	if ttl := rdb.PTTL(bg, done[0]).Val(); ttl > protocol.RecordTTL || ttl < protocol.RecordTTL-20*time.Second {
		t.Fatal(ttl)
	}
	for range 100 {
		ok(t, s.Acquire(bg, 1))
		ok(t, s.Release(bg, 1))
	}
	if done, _ := records(t, rdb); len(done) != 1 {
		t.Errorf("%d records of operations that came one after the other", len(done))
	}
}

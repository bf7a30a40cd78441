package queues

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// The dead hold nobody up, and are swept out by who meets them. The hash does not
// keep the time of a reader that has left.
func TestDeadReadersDoNotHoldWritersUp(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		java := locktest.JavaReadLock{RDB: rdb, Name: "a"}
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		long := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
		const lease = 1500 * time.Millisecond // a busy machine looks within it
		java.Read(locktest.JavaOwner, lease)  // and dies
		locktest.MustUnlock(t, long)
		if ttl := rdb.PTTL(bg, "a").Val(); ttl > lease {
			t.Fatalf("the lock lasts for %v, its reader for %v", ttl, lease)
		}
		_, err := l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, locktest.MustLock(t, l.Writer)) // by its timer

		java.Read(redistest.HoldID("!dead:1"), 50*time.Millisecond)
		living := locktest.MustLock(t, l.Reader, rlock.WithLease(time.Minute))
		locktest.Eventually(t, "one is dead", func() bool {
			return rdb.Exists(bg, locktest.ReaderTimer("a", redistest.HoldID("!dead:1"), 1)).Val() == 0
		})
		s, err := l.Reader.State(bg)
		if err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != living.HoldID() {
			t.Fatalf("the state shows the dead: %+v, %v", s, err)
		}
		_, err = l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.WantHash(t, rdb, "a", map[string]string{"mode": "read", living.HoldID(): "1"}) // the writer swept the dead out
		locktest.MustUnlock(t, living)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestRenewedReaderDoesNotKeepTheDeadAlive(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(2*time.Second))
		living := locktest.MustLock(t, c.NewReadWriteLock("a").Reader)
		locktest.JavaReadLock{RDB: rdb, Name: "a"}.Read(redistest.HoldID("dead:1"), time.Second)
		was := living.Deadline()
		locktest.Eventually(t, "the dead one is over, the other was renewed", func() bool {
			return rdb.Exists(bg, locktest.ReaderTimer("a", redistest.HoldID("dead:1"), 1)).Val() == 0 && living.Deadline().After(was)
		})
		locktest.MustUnlock(t, living)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestExtendOfAReader(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		lease := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Second))
		for _, d := range []time.Duration{time.Minute, time.Second} { // never shortens
			if err := lease.Extend(bg, d); err != nil {
				t.Fatal(err)
			}
			locktest.WantTTL(t, rdb, "a", time.Minute)
			locktest.WantTTL(t, rdb, locktest.ReaderTimer("a", lease.HoldID(), 1), time.Minute)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustBeEmpty(t, rdb)
	})
}

// When a reader leaves, the lock lasts as long as the longest of the others is
// promised, in whatever order they came, and in Java too.
func TestLockLastsAsLongAsItsLongestReader(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		java := locktest.JavaReadLock{RDB: rdb, Name: "a"}
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		hour := locktest.MustLock(t, l.Reader, rlock.WithLease(time.Hour))
		half := locktest.MustLock(t, l.Reader, rlock.WithLease(30*time.Minute))
		renewed := locktest.MustLock(t, l.Reader)
		java.Read(locktest.JavaOwner, 20*time.Minute)
		java.Read(locktest.JavaOwner, 10*time.Minute)
		java.Read(redistest.HoldID("other:1"), 15*time.Minute)
		java.Read(redistest.HoldID("other:1"), 25*time.Minute)
		locktest.MustUnlock(t, hour)
		locktest.WantTTL(t, rdb, "a", 30*time.Minute)
		locktest.MustUnlock(t, half)
		locktest.WantTTL(t, rdb, "a", 25*time.Minute)
		java.Release(redistest.HoldID("other:1"))
		java.Release(redistest.HoldID("other:1"))
		java.Release(locktest.JavaOwner)
		java.Release(locktest.JavaOwner)
		locktest.WantTTL(t, rdb, "a", locktest.Lease)
		locktest.MustUnlock(t, renewed)

		// A writer's time stays while it writes, and goes with it.
		other := locktest.NewClient(t, rdb).NewReadWriteLock("c")
		writes := locktest.MustLock(t, other.Writer, rlock.WithLease(time.Hour))
		reads := locktest.MustLockCtx(t, writes.Context(bg), other.Reader, rlock.WithLease(10*time.Minute))
		inner := locktest.MustLockCtx(t, writes.Context(bg), other.Reader, rlock.WithLease(time.Minute))
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, reads)
		locktest.WantTTL(t, rdb, "c", time.Hour)
		reads = locktest.MustLockCtx(t, writes.Context(bg), other.Reader, rlock.WithLease(10*time.Minute))
		locktest.MustUnlock(t, writes)
		locktest.WantTTL(t, rdb, "c", 10*time.Minute)
		locktest.MustUnlock(t, reads)
	})
}

// What a release, and a writer's look, cost Redis is bounded, however many read and
// however many of them have died.
func TestReadersCostTheSameHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
	// commands is how many ran in Redis, those of scripts among them.
	commands := func(do func()) int {
		count := func() (n int) {
			info := rdb.Info(bg, "commandstats").Val()
			for line := range strings.Lines(info) {
				if _, rest, ok := strings.Cut(line, ":calls="); ok && !strings.HasPrefix(line, "cmdstat_info") {
					calls, _, _ := strings.Cut(rest, ",")
					one, _ := strconv.Atoi(calls)
					n += one
				}
			}
			return n
		}
		before := count()
		do()
		return count() - before
	}
	for _, n := range []int{10, 1000, 10000} {
		for _, alive := range []bool{true, false} {
			what := fmt.Sprintf("%d readers, alive: %v", n, alive)
			first := locktest.MustLock(t, l.Reader, rlock.WithLease(time.Hour))
			last := locktest.MustLock(t, l.Reader, rlock.WithLease(time.Hour))
			err := rdb.Eval(bg, `for i = 1, ARGV[1] do
				redis.call('hset', 'a', ARGV[3] .. i, 1)
				if ARGV[2] == '1' then
					redis.call('set', '{a}:' .. ARGV[3] .. i .. ':rwlock_timeout:1', 1, 'px', 3600000)
				end
			end`, nil, n, alive, strings.TrimSuffix(redistest.HoldID("reader:1"), "1")).Err()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			release := commands(func() { locktest.MustUnlock(t, first) })
			look := commands(func() {
				_, err := l.Writer.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
			})
			leave := commands(func() { locktest.MustUnlock(t, last) })
			t.Logf("%s: a release runs %d commands, a writer's look %d, the last release %d", what, release, look, leave)
			if !alive { // each look sweeps some of the dead out
				locktest.MustUnlock(t, locktest.MustLock(t, l.Writer))
				locktest.MustBeForgotten(t, rdb, "a")
			}
			for _, cost := range []int{release, look, leave} {
				if cost > 500 {
					t.Errorf("%s: %d commands in one script", what, cost)
				}
			}
			rdb.FlushDB(bg)
		}
	}
}

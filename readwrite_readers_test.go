package rlock_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// When a reader leaves, the lock lasts as long as the longest of the others is
// promised, in whatever order they came, and in Java too.
func TestLockLastsAsLongAsItsLongestReader(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		java := rwJava{rdb, "a"}
		l := newClientOn(t, rdb).NewReadWriteLock("a")
		hour := mustLock(t, l.Reader, rlock.WithLease(time.Hour))
		half := mustLock(t, l.Reader, rlock.WithLease(30*time.Minute))
		renewed := mustLock(t, l.Reader)
		java.read(rwJavaOwner, 20*time.Minute)
		java.read(rwJavaOwner, 10*time.Minute)
		java.read("other:1", 15*time.Minute)
		java.read("other:1", 25*time.Minute)
		mustUnlock(t, hour)
		rwTTL(t, rdb, "a", 30*time.Minute)
		mustUnlock(t, half)
		rwTTL(t, rdb, "a", 25*time.Minute)
		java.release("other:1")
		java.release("other:1")
		java.release(rwJavaOwner)
		java.release(rwJavaOwner)
		rwTTL(t, rdb, "a", rlock.DefaultWatchdogLease)
		mustUnlock(t, renewed)

		// A writer's time stays while it writes, and goes with it.
		other := newClientOn(t, rdb).NewReadWriteLock("c")
		writes := mustLock(t, other.Writer, rlock.WithLease(time.Hour))
		reads := mustLockCtx(t, writes.Context(bg), other.Reader, rlock.WithLease(10*time.Minute))
		inner := mustLockCtx(t, writes.Context(bg), other.Reader, rlock.WithLease(time.Minute))
		mustUnlock(t, inner)
		mustUnlock(t, reads)
		rwTTL(t, rdb, "c", time.Hour)
		reads = mustLockCtx(t, writes.Context(bg), other.Reader, rlock.WithLease(10*time.Minute))
		mustUnlock(t, writes)
		rwTTL(t, rdb, "c", 10*time.Minute)
		mustUnlock(t, reads)
	})
}

// What a release, and a writer's look, cost Redis is bounded, however many read and
// however many of them have died.
func TestReadersCostTheSameHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	l := newClientOn(t, rdb).NewReadWriteLock("a")
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
			first := mustLock(t, l.Reader, rlock.WithLease(time.Hour))
			last := mustLock(t, l.Reader, rlock.WithLease(time.Hour))
			err := rdb.Eval(bg, `for i = 1, ARGV[1] do
				redis.call('hset', 'a', 'reader:' .. i, 1)
				if ARGV[2] == '1' then
					redis.call('set', '{a}:reader:' .. i .. ':rwlock_timeout:1', 1, 'px', 3600000)
				end
			end`, nil, n, alive).Err()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			release := commands(func() { mustUnlock(t, first) })
			look := commands(func() {
				_, err := l.Writer.TryLock(bg)
				wantErr(t, err, rlock.ErrNotAcquired)
			})
			leave := commands(func() { mustUnlock(t, last) })
			t.Logf("%s: a release runs %d commands, a writer's look %d, the last release %d", what, release, look, leave)
			if !alive { // each look sweeps some of the dead out
				mustUnlock(t, mustLock(t, l.Writer))
				mustBeForgotten(t, rdb, "a")
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

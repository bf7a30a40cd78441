package queues

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// faultyReadWrite is Backend.Faulty for read-write locks: the server knows their scripts.
func faultyReadWrite(t testing.TB, b *locktest.Backend, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	c, proxy, rdb := b.Faulty(t, opts...)
	locktest.LoadScripts(t, rdb,
		"rw/read_enter", "rw/read_reenter", "rw/read_release", "rw/read_abandon", "rw/read_renew",
		"rw/write_enter", "rw/write_reenter", "rw/write_release", "rw/write_abandon", "rw/write_renew")
	return c, proxy, rdb
}

// keysOfLock are the keys that belong to a lock.
func keysOfLock(t testing.TB, rdb redis.UniversalClient, name string) (keys []string) {
	t.Helper()
	for _, k := range locktest.Keys(t, rdb) {
		if k == name || strings.HasPrefix(k, "{"+name+"}") {
			keys = append(keys, k)
		}
	}
	return keys
}

// nothingLeft checks that nothing is left of a lock, or tombstones only.
func nothingLeft(t testing.TB, rdb redis.UniversalClient, name string, stones bool) {
	t.Helper()
	keys := keysOfLock(t, rdb, name)
	if len(keys) > 0 && (!stones || locktest.Tombstones(keys) != len(keys)) {
		t.Fatalf("left in Redis: %q", keys)
	}
}

// Whatever reply is lost, each side counts right, and nothing is left.
func TestReadWriteLockWithLostReplies(t *testing.T) {
	t.Parallel()
	type env struct {
		t      *testing.T
		l      *rlock.ReadWriteLock
		name   string
		rdb    redis.UniversalClient
		action faultproxy.Action
		fault  func() // in the next run of the script
	}
	scenarios := []struct {
		name, script string
		play         func(e env)
	}{
		{"read", "rw/read_enter", func(e env) {
			for _, acquire := range locktest.Acquires(e.l.Reader) {
				e.fault()
				lease, err := acquire(bg)
				if err != nil {
					e.t.Fatal(err)
				}
				locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", lease.HoldID(): "1"})
				locktest.MustUnlock(e.t, lease)
				nothingLeft(e.t, e.rdb, e.name, true)
			}
		}},
		{"write", "rw/write_enter", func(e env) {
			for _, acquire := range locktest.Acquires(e.l.Writer) {
				e.fault()
				lease, err := acquire(bg)
				if err != nil {
					e.t.Fatal(err)
				}
				locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", lease.HoldID() + ":write": "1"})
				locktest.MustUnlock(e.t, lease)
				nothingLeft(e.t, e.rdb, e.name, true)
				next := locktest.MustLock(e.t, e.l.Writer)
				if next.Token() <= lease.Token() {
					e.t.Fatalf("token %d after %d", next.Token(), lease.Token())
				}
				locktest.MustUnlock(e.t, next)
			}
		}},
		{"writer reads", "rw/read_enter", func(e env) {
			write := locktest.MustLock(e.t, e.l.Writer)
			for range 2 { // under its own id, and under another
				e.fault()
				read := locktest.MustLockCtx(e.t, write.Context(bg), e.l.Reader)
				locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", write.HoldID() + ":write": "1", read.HoldID(): "1"})
				locktest.MustUnlock(e.t, read)
			}
			locktest.MustUnlock(e.t, write)
			nothingLeft(e.t, e.rdb, e.name, true)
		}},
		{"writer reads and writes no more", "rw/read_enter", func(e env) {
			write := locktest.MustLock(e.t, e.l.Writer)
			e.fault()
			read := locktest.MustLockCtx(e.t, write.Context(bg), e.l.Reader)
			locktest.MustUnlock(e.t, write)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", read.HoldID(): "1"})
			locktest.MustUnlock(e.t, read)
			nothingLeft(e.t, e.rdb, e.name, true)
		}},
		{"read again", "rw/read_reenter", func(e env) {
			outer := locktest.MustLock(e.t, e.l.Reader)
			e.fault()
			inner := locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", outer.HoldID(): "2"})
			locktest.MustUnlock(e.t, inner)
			locktest.MustUnlock(e.t, outer)
			nothingLeft(e.t, e.rdb, e.name, false)
		}},
		{"write again", "rw/write_reenter", func(e env) {
			outer := locktest.MustLock(e.t, e.l.Writer)
			e.fault()
			inner := locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Writer)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", outer.HoldID() + ":write": "2"})
			locktest.MustUnlock(e.t, inner)
			locktest.MustUnlock(e.t, outer)
			nothingLeft(e.t, e.rdb, e.name, false)
		}},
		{"reader leaves a re-entry", "rw/read_release", func(e env) {
			outer, other := locktest.MustLock(e.t, e.l.Reader), locktest.MustLock(e.t, e.l.Reader)
			inner := locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			e.fault()
			locktest.MustUnlock(e.t, inner)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", outer.HoldID(): "1", other.HoldID(): "1"})
			locktest.MustUnlock(e.t, outer)
			locktest.MustUnlock(e.t, other)
			nothingLeft(e.t, e.rdb, e.name, false)
		}},
		{"reader leaves", "rw/read_release", func(e env) {
			outer, other := locktest.MustLock(e.t, e.l.Reader), locktest.MustLock(e.t, e.l.Reader)
			locktest.MustUnlock(e.t, locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Reader))
			e.fault()
			locktest.UnlockLossy(e.t, outer, e.action)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", other.HoldID(): "1"})
			e.fault()
			locktest.UnlockLossy(e.t, other, e.action)
			nothingLeft(e.t, e.rdb, e.name, false)
		}},
		{"writer leaves a re-entry", "rw/write_release", func(e env) {
			outer := locktest.MustLock(e.t, e.l.Writer)
			inner := locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Writer)
			read := locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			e.fault()
			locktest.MustUnlock(e.t, inner)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", outer.HoldID() + ":write": "1", read.HoldID(): "1"})
			locktest.MustUnlock(e.t, outer)
			locktest.MustUnlock(e.t, read)
			nothingLeft(e.t, e.rdb, e.name, false)
		}},
		{"writer leaves", "rw/write_release", func(e env) {
			outer := locktest.MustLock(e.t, e.l.Writer)
			locktest.MustUnlock(e.t, locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Writer))
			read := locktest.MustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			e.fault()
			locktest.UnlockLossy(e.t, outer, e.action)
			locktest.WantHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", read.HoldID(): "1"})
			locktest.MustUnlock(e.t, read)
			write := locktest.MustLock(e.t, e.l.Writer)
			e.fault()
			locktest.UnlockLossy(e.t, write, e.action)
			nothingLeft(e.t, e.rdb, e.name, false)
		}},
		{"writer gives up waiting", "rw/write_abandon", func(e env) {
			read := locktest.MustLock(e.t, e.l.Reader)
			e.fault()
			_, err := e.l.Writer.Lock(bg, rlock.WithWait(50*time.Millisecond))
			locktest.WantEnded(e.t, err, nil)
			locktest.Eventually(e.t, "it is not registered any more", func() bool { return e.rdb.Exists(bg, "{"+e.name+"}:rlock:writers").Val() == 0 })
			locktest.MustUnlock(e.t, locktest.MustLock(e.t, e.l.Reader))
			locktest.MustUnlock(e.t, read)
			nothingLeft(e.t, e.rdb, e.name, true)
		}},
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, action := range locktest.LossyActions {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for _, s := range scenarios {
					locktest.Beside(t, s.name, func(t *testing.T) { // they wait for resends most of the time
						c, proxy, rdb := faultyReadWrite(t, b)
						lock := name + ":" + s.name
						s.play(env{t, c.NewReadWriteLock(lock), lock, rdb, action, func() { locktest.OnNth(t, proxy, s.script, 1, action) }})
					})
				}
			})
		}
	})
}

func TestRenewalOfAReaderWithLostReplyGoesOn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, action := range map[string]faultproxy.Action{"swallowed": faultproxy.SwallowReply, "refused": faultproxy.Error} {
			c, proxy, rdb := faultyReadWrite(t, b, rlock.WithWatchdogLease(locktest.Ample(3*time.Second)))
			seen := locktest.OnNth(t, proxy, "rw/read_renew", 1, action)
			lease := locktest.MustLock(t, c.NewReadWriteLock(name).Reader)
			locktest.Eventually(t, "it was renewed after the fault", func() bool { return seen.Load() >= 3 })
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, lease)
			nothingLeft(t, rdb, name, false)
		}
	})
}

// A copy of an acquire that was held up on its way arrives when the hold that
// it belongs to is over.
func TestLateCopyOfASidesAcquireDoesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, scenario := range []struct {
			name, script string
			play         func(t *testing.T, l *rlock.ReadWriteLock, hold func(), late func())
		}{
			{"of a reader", "rw/read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))
				late()
			}},
			{"of a writer", "rw/write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				locktest.MustUnlock(t, locktest.MustLock(t, l.Writer))
				late()
			}},
			{"of a writer that reads on", "rw/write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				write := locktest.MustLock(t, l.Writer)
				read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
				locktest.MustUnlock(t, write)
				late()
				locktest.MustUnlock(t, locktest.MustLock(t, l.Reader)) // others can read
				locktest.MustUnlock(t, read)
			}},
			{"of a writer's read that is over", "rw/read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				write := locktest.MustLock(t, l.Writer)
				hold()
				locktest.MustUnlock(t, locktest.MustLockCtx(t, write.Context(bg), l.Reader))
				late()
				if on, err := l.Reader.IsLocked(bg); on || err != nil {
					t.Fatal(on, err)
				}
				read := locktest.MustLockCtx(t, write.Context(bg), l.Reader) // another
				locktest.MustUnlock(t, read)
				locktest.MustUnlock(t, write)
			}},
			{"of a writer's read, after both", "rw/read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				write := locktest.MustLock(t, l.Writer)
				hold()
				read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
				locktest.MustUnlock(t, write)
				locktest.MustUnlock(t, read)
				late()
			}},
			{"of a reader that gave up", "rw/read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				_, err := l.Reader.Lock(ctx)
				locktest.WantEnded(t, err, context.DeadlineExceeded)
				late()
			}},
			{"of a writer that gave up", "rw/write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				_, err := l.Writer.Lock(ctx)
				locktest.WantEnded(t, err, context.DeadlineExceeded)
				late()
			}},
			{"of a waiting writer's look", "rw/write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				read := locktest.MustLock(t, l.Reader)
				hold()
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				_, err := l.Writer.Lock(ctx)
				locktest.WantEnded(t, err, context.DeadlineExceeded)
				late() // it does not register
				locktest.MustUnlock(t, locktest.MustLock(t, l.Reader, rlock.WithWait(5*time.Second)))
				locktest.MustUnlock(t, read)
			}},
			{"of a reader whose lease is over", "rw/read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				lease := locktest.MustLock(t, l.Reader, rlock.WithLease(400*time.Millisecond))
				<-lease.Done()
				locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
				late()
			}},
			{"of a reader's re-entry", "rw/read_reenter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				outer := locktest.MustLock(t, l.Reader)
				hold()
				locktest.MustUnlock(t, locktest.MustLockCtx(t, outer.Context(bg), l.Reader))
				locktest.MustUnlock(t, outer)
				late()
			}},
		} {
			locktest.Beside(t, scenario.name, func(t *testing.T) {
				c, proxy, rdb := faultyReadWrite(t, b)
				locktest.Pair(t, c.NewReadWriteLock("another").Writer) // it is connected
				name := scenario.name
				scenario.play(t, c.NewReadWriteLock(name),
					func() { locktest.OnNth(t, proxy, scenario.script, 1, faultproxy.Hold) },
					func() {
						// What ends the hold may be under way, if its caller has not waited for it.
						locktest.Eventually(t, "its end is known", func() bool {
							return scenario.script == "rw/read_reenter" || locktest.Tombstones(keysOfLock(t, rdb, name)) > 0
						})
						if n := proxy.Release(); n != 1 {
							t.Fatalf("%d copies were late", n)
						}
					})
				locktest.Eventually(t, "only tombstones are left", func() bool { // ... nor for its last request
					keys := keysOfLock(t, rdb, name)
					return locktest.Tombstones(keys) == len(keys)
				})
			})
		}
	})
}

func TestCancelledWaitsForASideLeaveNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		for _, holder := range []rlock.Locker{l.Writer, l.Reader} {
			lease := locktest.MustLock(t, holder)
			ctx, cancel := context.WithCancel(bg)
			ended := make(chan error)
			wait := func(side rlock.Locker) {
				go func() {
					_, err := side.Lock(ctx)
					ended <- err
				}()
			}
			for range 5 {
				wait(l.Writer)
			}
			locktest.Eventually(t, "a writer is registered", func() bool { return rdb.Exists(bg, "{a}:rlock:writers").Val() == 1 })
			for range 5 {
				wait(l.Reader)
			}
			locktest.Eventually(t, "all wait", func() bool {
				s, err := l.Reader.State(bg)
				return err == nil && s.Waiters == 10
			})
			if ttl := rdb.PTTL(bg, "{a}:rlock:writers").Val(); ttl <= 0 || ttl > rlock.DefaultWaiterLease {
				t.Fatalf("TTL of the waiting writers: %v", ttl)
			}
			cancel()
			for range 10 {
				locktest.WantEnded(t, <-ended, context.Canceled)
			}
			locktest.MustUnlock(t, lease)
			locktest.Eventually(t, "nobody is subscribed, nothing is left", func() bool {
				keys := locktest.Keys(t, rdb)
				return locktest.ReadWriteSubscribers(t, rdb, "a") == 0 && locktest.Tombstones(keys) == len(keys)
			})
		}
	})
}

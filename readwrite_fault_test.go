package rlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
)

// rwFaulty is faulty for read-write locks: the server knows their scripts.
func (b *backend) rwFaulty(t testing.TB, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	c, proxy, rdb := b.faulty(t, opts...)
	for _, script := range []string{
		"rw_read_enter", "rw_read_reenter", "rw_read_release", "rw_read_abandon", "rw_read_renew",
		"rw_write_enter", "rw_write_reenter", "rw_write_release", "rw_write_abandon", "rw_write_renew",
	} {
		if err := rdb.ScriptLoad(bg, rlock.ScriptText(script)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return c, proxy, rdb
}

// rwKeys are the keys that belong to a lock.
func rwKeys(t testing.TB, rdb redis.UniversalClient, name string) (keys []string) {
	t.Helper()
	for _, k := range keysOf(t, rdb) {
		if k == name || strings.HasPrefix(k, "{"+name+"}") {
			keys = append(keys, k)
		}
	}
	return keys
}

// rwNothing checks that nothing is left of a lock, or tombstones only.
func rwNothing(t testing.TB, rdb redis.UniversalClient, name string, stones bool) {
	t.Helper()
	keys := rwKeys(t, rdb, name)
	if len(keys) > 0 && (!stones || tombstones(keys) != len(keys)) {
		t.Fatalf("left in Redis: %q", keys)
	}
}

// Whatever reply is lost, each side counts right, and nothing is left.
func TestReadWriteLockWithLostReplies(t *testing.T) {
	t.Parallel()
	type env struct {
		t     *testing.T
		l     *rlock.ReadWriteLock
		name  string
		rdb   redis.UniversalClient
		fault func() // in the next run of the script
	}
	scenarios := []struct {
		name, script string
		play         func(e env)
	}{
		{"read", "rw_read_enter", func(e env) {
			for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){e.l.Reader.Lock, e.l.Reader.TryLock} {
				e.fault()
				lease, err := acquire(bg)
				if err != nil {
					e.t.Fatal(err)
				}
				rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", lease.Owner(): "1"})
				mustUnlock(e.t, lease)
				rwNothing(e.t, e.rdb, e.name, true)
			}
		}},
		{"write", "rw_write_enter", func(e env) {
			for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){e.l.Writer.Lock, e.l.Writer.TryLock} {
				e.fault()
				lease, err := acquire(bg)
				if err != nil {
					e.t.Fatal(err)
				}
				rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", lease.Owner() + ":write": "1"})
				mustUnlock(e.t, lease)
				rwNothing(e.t, e.rdb, e.name, true)
				next := mustLock(e.t, e.l.Writer)
				if next.Token() <= lease.Token() {
					e.t.Fatalf("token %d after %d", next.Token(), lease.Token())
				}
				mustUnlock(e.t, next)
			}
		}},
		{"writer reads", "rw_read_enter", func(e env) {
			write := mustLock(e.t, e.l.Writer)
			for range 2 { // under its own id, and under another
				e.fault()
				read := mustLockCtx(e.t, write.Context(bg), e.l.Reader)
				rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", write.Owner() + ":write": "1", read.Owner(): "1"})
				mustUnlock(e.t, read)
			}
			mustUnlock(e.t, write)
			rwNothing(e.t, e.rdb, e.name, true)
		}},
		{"writer reads and writes no more", "rw_read_enter", func(e env) {
			write := mustLock(e.t, e.l.Writer)
			e.fault()
			read := mustLockCtx(e.t, write.Context(bg), e.l.Reader)
			mustUnlock(e.t, write)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", read.Owner(): "1"})
			mustUnlock(e.t, read)
			rwNothing(e.t, e.rdb, e.name, true)
		}},
		{"read again", "rw_read_reenter", func(e env) {
			outer := mustLock(e.t, e.l.Reader)
			e.fault()
			inner := mustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", outer.Owner(): "2"})
			mustUnlock(e.t, inner)
			mustUnlock(e.t, outer)
			rwNothing(e.t, e.rdb, e.name, false)
		}},
		{"write again", "rw_write_reenter", func(e env) {
			outer := mustLock(e.t, e.l.Writer)
			e.fault()
			inner := mustLockCtx(e.t, outer.Context(bg), e.l.Writer)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", outer.Owner() + ":write": "2"})
			mustUnlock(e.t, inner)
			mustUnlock(e.t, outer)
			rwNothing(e.t, e.rdb, e.name, false)
		}},
		{"reader leaves", "rw_read_release", func(e env) {
			outer, other := mustLock(e.t, e.l.Reader), mustLock(e.t, e.l.Reader)
			inner := mustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			e.fault()
			mustUnlock(e.t, inner)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", outer.Owner(): "1", other.Owner(): "1"})
			e.fault()
			mustUnlock(e.t, outer)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", other.Owner(): "1"})
			e.fault()
			mustUnlock(e.t, other)
			rwNothing(e.t, e.rdb, e.name, false)
		}},
		{"writer leaves", "rw_write_release", func(e env) {
			outer := mustLock(e.t, e.l.Writer)
			inner := mustLockCtx(e.t, outer.Context(bg), e.l.Writer)
			read := mustLockCtx(e.t, outer.Context(bg), e.l.Reader)
			e.fault()
			mustUnlock(e.t, inner)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "write", outer.Owner() + ":write": "1", read.Owner(): "1"})
			e.fault()
			mustUnlock(e.t, outer)
			rwHash(e.t, e.rdb, e.name, map[string]string{"mode": "read", read.Owner(): "1"})
			mustUnlock(e.t, read)
			write := mustLock(e.t, e.l.Writer)
			e.fault()
			mustUnlock(e.t, write)
			rwNothing(e.t, e.rdb, e.name, false)
		}},
		{"writer gives up waiting", "rw_write_abandon", func(e env) {
			read := mustLock(e.t, e.l.Reader)
			e.fault()
			_, err := e.l.Writer.Lock(bg, rlock.WithWait(50*time.Millisecond))
			wantErr(e.t, err, rlock.ErrNotAcquired)
			eventually(e.t, "it is not registered any more", func() bool { return e.rdb.Exists(bg, "{"+e.name+"}:rlock:writers").Val() == 0 })
			mustUnlock(e.t, mustLock(e.t, e.l.Reader))
			mustUnlock(e.t, read)
			rwNothing(e.t, e.rdb, e.name, true)
		}},
	}
	eachRedis(t, func(t *testing.T, b *backend) {
		for name, action := range lossy {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they wait for resends most of the time
				c, proxy, rdb := b.rwFaulty(t)
				for _, s := range scenarios {
					t.Run(s.name, func(t *testing.T) {
						lock := name + ":" + s.name
						s.play(env{t, c.NewReadWriteLock(lock), lock, rdb, func() { onNth(t, proxy, s.script, 1, action) }})
					})
				}
			})
		}
	})
}

func TestRenewalOfAReaderWithLostReplyGoesOn(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		for name, action := range map[string]faultproxy.Action{"swallowed": faultproxy.SwallowReply, "refused": faultproxy.Error} {
			c, proxy, rdb := b.rwFaulty(t, rlock.WithWatchdogLease(ample(3*time.Second)))
			seen := onNth(t, proxy, "rw_read_renew", 1, action)
			lease := mustLock(t, c.NewReadWriteLock(name).Reader)
			eventually(t, "it was renewed after the fault", func() bool { return seen.Load() >= 3 })
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, lease)
			rwNothing(t, rdb, name, false)
		}
	})
}

// A copy of an acquire that was held up on its way arrives when the hold that
// it belongs to is over.
func TestLateCopyOfASidesAcquireDoesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, rdb := b.rwFaulty(t)
		for _, scenario := range []struct {
			name, script string
			play         func(t *testing.T, l *rlock.ReadWriteLock, hold func(), late func())
		}{
			{"of a reader", "rw_read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				mustUnlock(t, mustLock(t, l.Reader))
				late()
			}},
			{"of a writer", "rw_write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				mustUnlock(t, mustLock(t, l.Writer))
				late()
			}},
			{"of a writer that reads on", "rw_write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				write := mustLock(t, l.Writer)
				read := mustLockCtx(t, write.Context(bg), l.Reader)
				mustUnlock(t, write)
				late()
				mustUnlock(t, mustLock(t, l.Reader)) // others can read
				mustUnlock(t, read)
			}},
			{"of a writer's read that is over", "rw_read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				write := mustLock(t, l.Writer)
				hold()
				mustUnlock(t, mustLockCtx(t, write.Context(bg), l.Reader))
				late()
				if on, err := l.Reader.IsLocked(bg); on || err != nil {
					t.Fatal(on, err)
				}
				read := mustLockCtx(t, write.Context(bg), l.Reader) // another
				mustUnlock(t, read)
				mustUnlock(t, write)
			}},
			{"of a writer's read, after both", "rw_read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				write := mustLock(t, l.Writer)
				hold()
				read := mustLockCtx(t, write.Context(bg), l.Reader)
				mustUnlock(t, write)
				mustUnlock(t, read)
				late()
			}},
			{"of a reader that gave up", "rw_read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
				defer cancel()
				_, err := l.Reader.Lock(ctx)
				wantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
				late()
			}},
			{"of a writer that gave up", "rw_write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
				defer cancel()
				_, err := l.Writer.Lock(ctx)
				wantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
				late()
			}},
			{"of a waiting writer's look", "rw_write_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				read := mustLock(t, l.Reader)
				hold()
				ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
				defer cancel()
				_, err := l.Writer.Lock(ctx)
				wantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
				late() // it does not register
				mustUnlock(t, mustLock(t, l.Reader, rlock.WithWait(5*time.Second)))
				mustUnlock(t, read)
			}},
			{"of a reader whose lease is over", "rw_read_enter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				hold()
				lease := mustLock(t, l.Reader, rlock.WithLease(400*time.Millisecond))
				<-lease.Done()
				wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
				late()
			}},
			{"of a reader's re-entry", "rw_read_reenter", func(t *testing.T, l *rlock.ReadWriteLock, hold, late func()) {
				outer := mustLock(t, l.Reader)
				hold()
				mustUnlock(t, mustLockCtx(t, outer.Context(bg), l.Reader))
				mustUnlock(t, outer)
				late()
			}},
		} {
			t.Run(scenario.name, func(t *testing.T) {
				name := scenario.name
				scenario.play(t, c.NewReadWriteLock(name),
					func() { onNth(t, proxy, scenario.script, 1, faultproxy.Hold) },
					func() {
						// What ends the hold may be under way, if its caller has not waited for it.
						eventually(t, "its end is known", func() bool {
							return scenario.script == "rw_read_reenter" || tombstones(rwKeys(t, rdb, name)) > 0
						})
						if n := proxy.Release(); n != 1 {
							t.Fatalf("%d copies were late", n)
						}
					})
				eventually(t, "only tombstones are left", func() bool { // ... nor for its last request
					keys := rwKeys(t, rdb, name)
					return tombstones(keys) == len(keys)
				})
			})
		}
	})
}

func TestCancelledWaitsForASideLeaveNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewReadWriteLock("a")
		for _, holder := range []rlock.Locker{l.Writer, l.Reader} {
			lease := mustLock(t, holder)
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
			eventually(t, "a writer is registered", func() bool { return rdb.Exists(bg, "{a}:rlock:writers").Val() == 1 })
			for range 5 {
				wait(l.Reader)
			}
			eventually(t, "all wait", func() bool {
				s, err := l.Reader.State(bg)
				return err == nil && s.Waiters == 10
			})
			if ttl := rdb.PTTL(bg, "{a}:rlock:writers").Val(); ttl <= 0 || ttl > rlock.DefaultWaiterLease {
				t.Fatalf("TTL of the waiting writers: %v", ttl)
			}
			cancel()
			for range 10 {
				wantErr(t, <-ended, rlock.ErrNotAcquired, context.Canceled)
			}
			mustUnlock(t, lease)
			eventually(t, "nobody is subscribed, nothing is left", func() bool {
				keys := keysOf(t, rdb)
				return rwSubscribers(t, rdb, "a") == 0 && tombstones(keys) == len(keys)
			})
		}
	})
}

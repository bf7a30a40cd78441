package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
)

// sha is the hash under which a server knows a script.
func sha(script string) string { return rlock.ScriptSHA(script) }

// faulty is a client behind a proxy, and a plain way round it.
func (b *backend) faulty(t testing.TB, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	proxy := faultproxy.New(t, b.addr)
	// go-redis with its defaults where they could hurt: it would retry by
	// itself, and does not look at contexts.
	rdb := dialer(proxy.Addr())(t, nil)
	opts = append([]rlock.Option{rlock.WithCommandTimeout(ample(2 * time.Second)), rlock.WithUnlockTimeout(ample(2 * time.Second))}, opts...)
	c := newClientOn(t, rdb, opts...)
	plain := b.client(t)
	// Load the scripts, so that the first EVALSHA is the one that counts.
	l := newClientOn(t, plain).NewLock("warm-up:" + t.Name()) // tests run in parallel
	mustUnlock(t, mustLock(t, l))
	if _, err := l.ForceUnlock(bg); err != nil {
		t.Fatal(err)
	}
	return c, proxy, plain
}

// onNth applies an action to the n-th run of a script, counted from 1. The test
// fails if there are not so many: then it has shown nothing.
func onNth(t testing.TB, proxy *faultproxy.Proxy, script string, n int64, action faultproxy.Action) *atomic.Int64 {
	t.Helper()
	var seen atomic.Int64
	t.Cleanup(func() {
		t.Helper()
		if got := seen.Load(); got < n && !t.Failed() {
			t.Errorf("%s ran %d times, so the fault in run %d did not happen", script, got, n)
		}
	})
	id := sha(script)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(id) && seen.Add(1) == n {
			return action
		}
		return faultproxy.Pass
	})
	return &seen
}

var lossy = map[string]faultproxy.Action{
	"reply swallowed":     faultproxy.SwallowReply,
	"reset after running": faultproxy.ResetAfter,
	"reset before":        faultproxy.ResetBefore,
	"run twice":           faultproxy.Duplicate,
	"loading":             faultproxy.Error,
}

// eachLoss runs a scenario for each way to lose a reply of a script.
func eachLoss(t *testing.T, script string, scenario func(t *testing.T, b *backend, action faultproxy.Action)) {
	t.Helper()
	eachRedis(t, func(t *testing.T, b *backend) {
		for name, action := range lossy {
			t.Run(script+" "+name, func(t *testing.T) { scenario(t, b, action) })
		}
	})
}

func tombstones(keys []string) (n int) {
	for _, k := range keys {
		// What tells the round of a read-write lock goes within a second.
		if strings.Contains(k, ":rlock:gone:") || strings.HasSuffix(k, ":rlock:admitted") {
			n++
		}
	}
	return n
}

// onlyTombstones checks that nothing else is left, or not for long: a request that
// is on its way when its waiter leaves is undone a moment later.
func onlyTombstones(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	keys := keysOf(t, rdb)
	for end := time.Now().Add(2 * time.Second); tombstones(keys) != len(keys); keys = keysOf(t, rdb) {
		if time.Now().After(end) {
			t.Fatalf("left in Redis: %q", keys)
		}
		time.Sleep(2 * time.Millisecond)
	}
	for _, k := range keys {
		if ttl := rdb.PTTL(bg, k).Val(); ttl <= 0 || ttl > time.Minute {
			t.Fatalf("tombstone %s has TTL %v", k, ttl)
		}
	}
}

func TestAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, "acquire", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.faulty(t)
		for _, acquire := range []func(*rlock.Lock) (*rlock.Lease, error){
			func(l *rlock.Lock) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l *rlock.Lock) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			seen := onNth(t, proxy, "acquire", 1, action)
			lease, err := acquire(c.NewLock("a"))
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			if n := count(t, rdb, "a", lease.Owner()); n != "1" {
				t.Fatalf("count %q", n)
			}
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
			next := mustLock(t, newClientOn(t, rdb).NewLock("a"))
			if next.Token() <= lease.Token() {
				t.Fatalf("token %d after %d", next.Token(), lease.Token())
			}
			mustUnlock(t, next)
		}
	})
}

func TestReentryWithLostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, "acquire", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.faulty(t)
		outer := mustLock(t, c.NewLock("a"))
		onNth(t, proxy, "acquire", 1, action)
		inner := mustLockCtx(t, outer.Context(bg), c.NewLock("a"))
		if n := count(t, rdb, "a", outer.Owner()); n != "2" {
			t.Fatalf("count %q", n)
		}
		mustUnlock(t, inner)
		mustUnlock(t, outer)
		mustBeEmpty(t, rdb)
	})
}

func TestUnlockAfterLostReplyReportsSuccess(t *testing.T) {
	t.Parallel()
	eachLoss(t, "release", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.faulty(t)
		outer := mustLock(t, c.NewLock("a"))
		inner := mustLockCtx(t, outer.Context(bg), c.NewLock("a"))
		onNth(t, proxy, "release", 1, action)
		mustUnlock(t, inner)
		if n := count(t, rdb, "a", outer.Owner()); n != "1" {
			t.Fatalf("count %q after the inner unlock", n)
		}
		onNth(t, proxy, "release", 1, action)
		mustUnlock(t, outer)
		mustBeEmpty(t, rdb)
	})
}

func TestUnlockWithLostReplyDoesNotTouchTheSuccessor(t *testing.T) {
	t.Parallel()
	eachLoss(t, "release", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.faulty(t)
		lease := mustLock(t, c.NewLock("a"))
		next := make(chan *rlock.Lease, 1)
		other := newClientOn(t, rdb).NewLock("a")
		go func() { next <- mustLock(t, other) }()
		eventually(t, "the successor waits", func() bool {
			s, err := other.State(bg)
			return err == nil && s.Waiters == 1
		})
		onNth(t, proxy, "release", 1, action)
		mustUnlock(t, lease) // a resend may find the successor there
		got := <-next
		if err := got.Err(); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, got)
		mustBeEmpty(t, rdb)
	})
}

func TestRenewalWithLostReplyGoesOn(t *testing.T) {
	t.Parallel()
	eachLoss(t, "renew", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.faulty(t, rlock.WithWatchdogLease(ample(3*time.Second)))
		seen := onNth(t, proxy, "renew", 1, action)
		name := t.Name()
		lease := mustLock(t, c.NewLock(name))
		eventually(t, "it was renewed a few times", func() bool { return seen.Load() >= 4 })
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
		if n := rdb.Exists(bg, name).Val(); n != 0 {
			t.Fatal("the lock is left")
		}
	})
}

func TestExtendWithLostReply(t *testing.T) {
	t.Parallel()
	eachLoss(t, "renew", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.faulty(t)
		lease := mustLock(t, c.NewLock("a"), rlock.WithLease(10*time.Second))
		onNth(t, proxy, "renew", 1, action)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if ttl := rdb.PTTL(bg, "a").Val(); ttl < 50*time.Second {
			t.Fatalf("TTL %v", ttl)
		}
		mustUnlock(t, lease)
		mustBeEmpty(t, rdb)
	})
}

func TestForceUnlockIsNotRepeated(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, rdb := b.faulty(t)
		seen := onNth(t, proxy, "force_unlock", 1, faultproxy.ResetAfter)
		mustLock(t, c.NewLock("a"))
		_, err := c.NewLock("a").ForceUnlock(bg)
		wantErr(t, err, rlock.ErrUnreachable)
		if n := seen.Load(); n != 1 {
			t.Fatalf("sent %d times: a second one could hit a newer holder", n)
		}
		mustBeEmpty(t, rdb)
	})
}

// A copy of an acquire that was held up on its way arrives when the stay that
// it belongs to is over: unlocked, given up, or run out.
func TestLateCopyOfAnAcquireMeetsATombstone(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		t.Run("after release", func(t *testing.T) {
			c, proxy, rdb := b.faulty(t)
			rdb.FlushDB(bg) // of the tombstones before
			onNth(t, proxy, "acquire", 1, faultproxy.Hold)
			lease := mustLock(t, c.NewLock("a")) // by the resend
			mustUnlock(t, lease)
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			onlyTombstones(t, rdb)
		})
		t.Run("again and again after release", func(t *testing.T) {
			c, proxy, rdb := b.faulty(t)
			rdb.FlushDB(bg) // of the tombstones before
			onNth(t, proxy, "acquire", 1, faultproxy.ResetAfter)
			mustUnlock(t, mustLock(t, c.NewLock("a")))
			for _, cmd := range proxy.Commands() {
				if cmd.IsScript(sha("acquire")) {
					if err := proxy.Replay(cmd); err != nil {
						t.Fatal(err)
					}
				}
			}
			onlyTombstones(t, rdb)
		})
		t.Run("after giving up", func(t *testing.T) {
			c, proxy, rdb := b.faulty(t)
			rdb.FlushDB(bg) // of the tombstones before
			id := sha("acquire")
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
			_, err := c.NewLock("a").Lock(bg, rlock.WithWait(ample(1800*time.Millisecond)))
			wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
			if n := proxy.Release(); n < 2 {
				t.Fatalf("%d copies were late", n)
			}
			onlyTombstones(t, rdb)
			proxy.Handle(nil)
			mustUnlock(t, mustLock(t, c.NewLock("a")))
		})
		t.Run("after expiry", func(t *testing.T) {
			c, proxy, rdb := b.faulty(t)
			rdb.FlushDB(bg) // of the tombstones before
			onNth(t, proxy, "acquire", 1, faultproxy.Hold)
			lease := mustLock(t, c.NewLock("a"), rlock.WithLease(ample(300*time.Millisecond)))
			<-lease.Done()
			wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
			eventually(t, "the stay was ended in Redis", func() bool { return tombstones(keysOf(t, rdb)) == 1 })
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			onlyTombstones(t, rdb)
			wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		})
		t.Run("of a re-entry after release", func(t *testing.T) {
			c, proxy, rdb := b.faulty(t)
			rdb.FlushDB(bg) // of the tombstones before
			outer := mustLock(t, c.NewLock("a"))
			onNth(t, proxy, "acquire", 1, faultproxy.Hold)
			inner := mustLockCtx(t, outer.Context(bg), c.NewLock("a"))
			mustUnlock(t, inner)
			mustUnlock(t, outer)
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			mustBeEmpty(t, rdb)
		})
	})
}

func TestCancelWithAnAcquireUnderWayGivesTheGrantBack(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, rdb := b.faulty(t)
		for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "on its way": faultproxy.Hold} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(bg)
				id := sha("acquire")
				proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if cmd.IsScript(id) {
						cancel()
						return action
					}
					return faultproxy.Pass
				})
				_, err := c.NewLock("a").Lock(ctx)
				wantErr(t, err, rlock.ErrNotAcquired, context.Canceled)
				proxy.Release()
				eventually(t, "only a tombstone is left", func() bool {
					keys := keysOf(t, rdb)
					return len(keys) > 0 && tombstones(keys) == len(keys)
				})
			})
		}
	})
}

func TestFixedLeaseRunsOutBeforeAnotherGetsIn(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewLock("a")
		other := b.newClient(t).NewLock("a")
		lease := mustLock(t, l, rlock.WithLease(200*time.Millisecond))
		deadline := lease.Deadline()
		next := mustLock(t, other)
		select {
		case <-lease.Done():
		default:
			t.Fatal("another has the lock, and the holder was not told")
		}
		if now := time.Now(); now.Before(deadline) {
			t.Fatalf("another has the lock %v before the deadline", deadline.Sub(now))
		}
		wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired, nil, rlock.ErrTakenOver)
		if n := count(t, rdb, "a", next.Owner()); n != "1" || next.Err() != nil || next.Token() <= lease.Token() {
			t.Fatalf("the successor has count %q, error %v, token %d after %d", n, next.Err(), next.Token(), lease.Token())
		}
		mustUnlock(t, next)
	})
}

func TestLossIsToldAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(3*time.Second))
		for name, loss := range map[string]struct {
			do    func()
			cause error
		}{
			"force-unlocked": {func() { _, _ = c.NewLock("a").ForceUnlock(bg) }, rlock.ErrRemoved},
			"flushed":        {func() { rdb.FlushAll(bg) }, rlock.ErrRemoved},
			"stolen":         {func() { rdb.Del(bg, "a"); rdb.HSet(bg, "a", "thief:1", 1); rdb.PExpire(bg, "a", time.Minute) }, rlock.ErrTakenOver},
		} {
			t.Run(name, func(t *testing.T) {
				lease := mustLock(t, c.NewLock("a"))
				ctx := lease.Context(bg)
				deadline := lease.Deadline()
				loss.do()
				<-ctx.Done()
				// The next renewal is a second away; the deadline, three.
				if late := time.Since(deadline); late > 0 {
					t.Errorf("told %v after the deadline", late)
				}
				wantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, loss.cause)
				wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, loss.cause)
				if name == "stolen" && count(t, rdb, "a", "thief:1") != "1" {
					t.Fatal("the thief's hold was touched")
				}
				rdb.Del(bg, "a")
			})
		}
	})
}

func TestHungServerEndsTheHoldAtItsDeadlineOnly(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	c := b.newClient(t, rlock.WithWatchdogLease(3*time.Second))
	lease := mustLock(t, c.NewLock("a"))

	// For less than the rest of the lease: nobody notices.
	b.real.Pause()
	time.Sleep(1200 * time.Millisecond) // the subject of the test
	b.real.Resume()
	was := lease.Deadline()
	eventually(t, "it is renewed again", func() bool { return lease.Deadline().After(was) })
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}

	// For longer: told by its own deadline, with the cause.
	b.real.Pause()
	<-lease.Done()
	late := time.Since(lease.Deadline())
	b.real.Resume()
	wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrUnreachable)
	if late < 0 || late > 2*time.Second { // of a busy machine; the simulation knows it to the microsecond
		t.Fatalf("told %v after the deadline", late)
	}
	wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrUnreachable)
	mustUnlock(t, mustLock(t, c.NewLock("a")))
	eventually(t, "nothing but tombstones is left", func() bool {
		keys := keysOf(t, b.client(t))
		return tombstones(keys) == len(keys)
	})
}

func TestServerRestartedWithoutDataMeansRemoved(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	c := b.newClient(t, rlock.WithWatchdogLease(2*time.Second))
	lease := mustLock(t, c.NewLock("a"))
	b.real.Kill()
	b.real.Restart()
	<-lease.Done()
	wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
	wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	mustUnlock(t, mustLock(t, c.NewLock("a")))
}

func TestServerRestartedWithItsDataKeepsTheHold(t *testing.T) {
	t.Parallel()
	b := onServer(t, "--appendonly", "yes", "--appendfsync", "always")
	c := b.newClient(t, rlock.WithWatchdogLease(3*time.Second))
	lease := mustLock(t, c.NewLock("a"))
	b.real.Kill()
	b.real.Restart()
	was := lease.Deadline()
	eventually(t, "it is renewed on the new process", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, lease)
}

// Every call is bounded by its context and by the command time-out, even if
// go-redis would wait for ever.
func TestHungServerHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := dialer(b.addr)(t, func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout = -1, -1
		o.ContextTimeoutEnabled = false
	})
	const timeout = 300 * time.Millisecond
	c := newClientOn(t, rdb, rlock.WithCommandTimeout(timeout), rlock.WithUnlockTimeout(timeout), rlock.WithWatchdogLease(30*time.Second))
	l := c.NewLock("a")
	lease := mustLock(t, l)
	held := mustLock(t, c.NewLock("held"))
	b.real.Pause()
	defer b.real.Resume()

	bounded := func(what string, bound time.Duration, fn func() error, want ...error) {
		t.Helper()
		start := time.Now()
		err := fn()
		if took := time.Since(start); took > bound+time.Second {
			t.Errorf("%s took %v, should be over in %v", what, took, bound)
		}
		t.Helper()
		wantErr(t, err, want...)
	}
	cancelled := func(d time.Duration) context.Context {
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(d, cancel)
		return ctx
	}
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(bg, d)
		t.Cleanup(cancel)
		return ctx
	}
	free := c.NewLock("free")
	bounded("TryLock", timeout, func() error { _, err := free.TryLock(bg); return err }, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
	bounded("TryLock, cancelled", 50*time.Millisecond, func() error { _, err := free.TryLock(cancelled(50 * time.Millisecond)); return err }, rlock.ErrNotAcquired, context.Canceled)
	bounded("Lock, cancelled", 50*time.Millisecond, func() error { _, err := free.Lock(cancelled(50 * time.Millisecond)); return err }, rlock.ErrNotAcquired, context.Canceled)
	bounded("Lock, deadline", 50*time.Millisecond, func() error { _, err := free.Lock(within(50 * time.Millisecond)); return err }, rlock.ErrNotAcquired, context.DeadlineExceeded)
	bounded("Lock, WithWait", 700*time.Millisecond, func() error { _, err := free.Lock(bg, rlock.WithWait(700*time.Millisecond)); return err }, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
	bounded("re-entry", timeout, func() error { _, err := l.Lock(lease.Context(bg)); return err }, rlock.ErrUnreachable)
	bounded("Extend", timeout, func() error { return held.Extend(bg, time.Minute) }, rlock.ErrUnreachable)
	bounded("State", timeout, func() error { _, err := l.State(bg); return err }, rlock.ErrUnreachable)
	bounded("ForceUnlock", timeout, func() error { _, err := l.ForceUnlock(bg); return err }, rlock.ErrUnreachable)
	bounded("Unlock", timeout, func() error { return lease.Unlock(bg) }, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
	wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
	if err := held.Err(); err != nil {
		t.Fatal("a failed Extend has ended the lease:", err)
	}

	// What could not be done is made good when the server is back. The requests
	// that hang in it run in any order then, the ForceUnlock among them.
	b.real.Resume()
	plain := b.client(t)
	eventually(t, "everything that was given up is gone", func() bool {
		for _, k := range keysOf(t, plain) {
			if k == "free" || k == "a" {
				return false
			}
		}
		return true
	})
	mustUnlock(t, held)
	mustUnlock(t, mustLock(t, free))
	mustUnlock(t, mustLock(t, l))
}

func TestUnreachableServerIsReported(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close() // from here on connections are refused
	c := newClientOn(t, dialer(addr)(t, func(o *redis.Options) { o.DialerRetries = 1 }),
		rlock.WithCommandTimeout(100*time.Millisecond), rlock.WithWatchdogLease(300*time.Millisecond))
	l := c.NewLock("a")
	_, err = l.TryLock(bg)
	wantErr(t, err, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
	if !strings.Contains(err.Error(), "refused") {
		t.Fatalf("%q does not say why", err)
	}
	// Lock bears it for a watchdog lease; a whole line of waiters does not bear
	// it one after the other, which would take 50 leases of 300 ms at least.
	start := time.Now()
	errs := make(chan error)
	for range 50 {
		go func() { _, err := l.Lock(bg); errs <- err }()
	}
	for range 50 {
		wantErr(t, <-errs, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
	}
	if took := time.Since(start); took > 12*time.Second {
		t.Fatalf("50 waiters learned of it in %v", took)
	}
}

func TestErrorsOfRedisAreReturnedAtOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		rdb.Set(bg, "a", "a string", 0)
		start := time.Now()
		_, err := c.NewLock("a").Lock(bg)
		wantErr(t, err, nil, rlock.ErrUnreachable, rlock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Fatalf("took %v", took)
		}
		if v := rdb.Get(bg, "a").Val(); v != "a string" {
			t.Fatalf("the foreign key is now %q", v)
		}
	})
}

func TestServerAtItsMemoryLimitCanRelease(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	c := newClientOn(t, rdb, rlock.WithWatchdogLease(time.Second))
	l := c.NewLock("a")
	outer := mustLock(t, l)
	inner := mustLockCtx(t, outer.Context(bg), l)
	rdb.ConfigSet(bg, "maxmemory", "1")
	if err := rdb.Set(bg, "x", "y", 0).Err(); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatal("the server is not at its limit:", err)
	}
	_, err := c.NewLock("b").Lock(bg)
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatal("an acquire at the memory limit:", err)
	}
	was := outer.Deadline()
	eventually(t, "it is renewed all the same", func() bool { return outer.Deadline().After(was) || outer.Err() != nil })
	mustUnlock(t, inner)
	if n := count(t, rdb, "a", outer.Owner()); n != "1" {
		t.Fatalf("count %q", n)
	}
	mustUnlock(t, outer)
	onlyTombstones(t, rdb) // of the acquire that failed

	// And give an acquire up, tombstone and all.
	rdb.ConfigSet(bg, "maxmemory", "0")
	rdb.FlushDB(bg)
	f, proxy, _ := b.faulty(t)
	onNth(t, proxy, "acquire", 1, faultproxy.ResetAfter)
	lease := mustLock(t, f.NewLock("a"))
	rdb.ConfigSet(bg, "maxmemory", "1")
	mustUnlock(t, lease)
	if keys := keysOf(t, rdb); len(keys) != 1 || tombstones(keys) != 1 {
		t.Fatalf("left: %q", keys)
	}
}

func TestScriptsAreLoadedWhenTheServerHasForgottenThem(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(3*time.Second))
		flush := func() {
			t.Helper()
			if err := rdb.ScriptFlush(bg).Err(); err != nil {
				t.Fatal(err)
			}
		}
		var leases []*rlock.Lease
		for i := range 50 {
			if i%10 == 0 {
				flush()
			}
			leases = append(leases, mustLock(t, c.NewLock(fmt.Sprint("l", i))))
		}
		flush() // the renewals go out as pipelines
		was := leases[len(leases)-1].Deadline()
		for _, lease := range leases {
			eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
		}
		flush()
		mustUnlock(t, mustLockCtx(t, leases[0].Context(bg), c.NewLock("l0")))
		flush()
		for _, lease := range leases {
			mustUnlock(t, lease)
		}
		flush()
		if locked, err := c.NewLock("l0").IsLocked(bg); locked || err != nil {
			t.Fatal(locked, err)
		}
		flush()
		if _, err := c.NewLock("l0").ForceUnlock(bg); err != nil {
			t.Fatal(err)
		}
		lease := mustLock(t, c.NewLock("closing"))
		done := shutDown(bg, c, lease)
		flush()
		mustUnlock(t, lease)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustBeEmpty(t, rdb)
	})
}

// A renewal that is under way when the lock is released must not be taken for
// a loss, nor bring the lock back.
func TestRenewalDuringUnlock(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		lost := &lossObserver{}
		c, proxy, rdb := b.faulty(t, rlock.WithWatchdogLease(1500*time.Millisecond), rlock.WithObserver(lost))
		id := sha("renew")
		arrived := make(chan struct{}, 100)
		proxy.Delay(func(cmd faultproxy.Command) time.Duration {
			if cmd.IsScript(id) {
				arrived <- struct{}{}
				return 30 * time.Millisecond
			}
			return 0
		})
		for range 5 {
			lease := mustLock(t, c.NewLock("a"))
			<-arrived
			mustUnlock(t, lease)
			wantErr(t, lease.Err(), rlock.ErrUnlocked, nil, rlock.ErrLeaseLost)
		}
		if n := lost.n.Load(); n != 0 {
			t.Fatalf("%d losses were told", n)
		}
		mustBeEmpty(t, rdb)
	})
}

type lossObserver struct {
	rlock.NopObserver
	n atomic.Int64
}

func (o *lossObserver) Lost(rlock.LossEvent) { o.n.Add(1) }

func TestShutdownOfAHungServerIsBounded(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	c := b.newClient(t, rlock.WithCommandTimeout(300*time.Millisecond))
	lease := mustLock(t, c.NewLock("a"))
	b.real.Pause()
	defer b.real.Resume()
	ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Fatalf("took %v", took)
	}
	wantErr(t, lease.Err(), rlock.ErrClosed)
	<-lease.Done()
}

func TestShutdownWithoutTimeEndsTheLeasesAllTheSame(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c := b.newClient(t)
		lease := mustLock(t, c.NewLock("a"))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_ = c.Shutdown(ctx)
		<-lease.Done()
		wantErr(t, lease.Err(), rlock.ErrClosed)
	})
}

// An acquire that fails half-way must not leave a lock without a TTL.
func TestAcquireThatFailsHalfWayLeavesNothing(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	admin := b.client(t)
	if err := admin.Do(bg, "acl", "setuser", "poor", "on", ">pw", "~*", "&*", "+@all", "-pexpire").Err(); err != nil {
		t.Fatal(err)
	}
	c := newClientOn(t, dialer(b.addr)(t, func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }))
	_, err := c.NewLock("a").Lock(bg)
	if err == nil || !strings.Contains(err.Error(), "can't run this command") {
		t.Fatal(err)
	}
	onlyTombstones(t, admin)
}

func TestNoGoroutineOrTimerForEachHold(t *testing.T) {
	if !alone(t) {
		return
	}
	eachRedis(t, func(t *testing.T, b *backend) {
		c := b.newClient(t)
		warm := mustLock(t, c.NewLock("warm-up"))
		defer mustUnlock(t, warm)
		before := runtime.NumGoroutine()
		leases := make([]*rlock.Lease, 500)
		for i := range leases {
			leases[i] = mustLock(t, c.NewLock(fmt.Sprint("l", i)))
			leases[i].Done()
			leases[i].Context(bg)
		}
		if now := runtime.NumGoroutine(); now > before+10 {
			t.Errorf("%d goroutines for 500 holds", now-before)
		}
		for _, lease := range leases {
			mustUnlock(t, lease)
		}
	})
}

// A deadline counts from before its request was sent: the reply may have been
// long on its way. The proxy holds each request up and notes when it came, which
// is after it was sent; a deadline that counted from the reply would be later
// than that plus the validity.
func TestDeadlineCountsFromTheSending(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, _ := b.faulty(t, rlock.WithCommandTimeout(3*time.Second), rlock.WithWatchdogLease(1500*time.Millisecond))
		var mu sync.Mutex
		came := map[string]time.Time{}
		ids := map[string]string{sha("acquire"): "acquire", sha("renew"): "renew"}
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
		fixed := mustLock(t, c.NewLock("fixed"), rlock.WithLease(10*time.Second))
		check("acquire", "acquire", fixed, 10*time.Second)
		inner := mustLockCtx(t, fixed.Context(bg), c.NewLock("fixed"), rlock.WithLease(20*time.Second))
		check("re-entry", "acquire", fixed, 20*time.Second)
		if err := fixed.Extend(bg, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		check("Extend", "renew", fixed, 30*time.Second)
		mustUnlock(t, inner)
		mustUnlock(t, fixed)

		renewed := mustLock(t, c.NewLock("renewed"))
		was := renewed.Deadline()
		eventually(t, "it is renewed", func() bool { return renewed.Deadline().After(was) })
		check("renewal", "renew", renewed, 1500*time.Millisecond)
		mustUnlock(t, renewed)
	})
}

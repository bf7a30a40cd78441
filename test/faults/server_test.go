package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/loopback"
)

func TestHungServerEndsTheHoldAtItsDeadlineOnly(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t, rlock.WithWatchdogLease(3*time.Second))
	lease := locktest.MustLock(t, c.NewLock("a"))

	// For less than the rest of the lease: nobody notices.
	b.Real.Pause()
	time.Sleep(1200 * time.Millisecond) // the subject of the test
	b.Real.Resume()
	was := lease.Deadline()
	locktest.Eventually(t, "it is renewed again", func() bool { return lease.Deadline().After(was) })
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}

	// For longer: told by its own deadline, with the cause.
	b.Real.Pause()
	<-lease.Done()
	late := time.Since(lease.Deadline())
	b.Real.Resume()
	locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrUnreachable)
	if late < 0 || late > 2*time.Second { // of a busy machine; the simulation knows it to the microsecond
		t.Fatalf("told %v after the deadline", late)
	}
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrUnreachable)
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
	locktest.Eventually(t, "nothing but tombstones is left", func() bool {
		keys := locktest.Keys(t, b.Client(t))
		return locktest.Tombstones(keys) == len(keys)
	})
}

func TestServerRestartedWithoutDataMeansRemoved(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t, rlock.WithWatchdogLease(2*time.Second))
	lease := locktest.MustLock(t, c.NewLock("a"))
	b.Real.Kill()
	b.Real.Restart()
	<-lease.Done()
	locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
}

func TestServerRestartedWithItsDataKeepsTheHold(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t, "--appendonly", "yes", "--appendfsync", "always")
	c := b.NewClient(t, rlock.WithWatchdogLease(3*time.Second))
	lease := locktest.MustLock(t, c.NewLock("a"))
	b.Real.Kill()
	b.Real.Restart()
	was := lease.Deadline()
	locktest.Eventually(t, "it is renewed on the new process", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, lease)
}

// Every call is bounded by its context and by the command timeout, even if
// go-redis would wait for ever.
func TestHungServerHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := locktest.Dialer(b.Addr)(t, func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout = -1, -1
		o.ContextTimeoutEnabled = false
	})
	const timeout = 300 * time.Millisecond
	c := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(timeout), rlock.WithUnlockTimeout(timeout), rlock.WithWatchdogLease(30*time.Second))
	l := c.NewLock("a")
	patiently := rlock.WithWait(locktest.Patience) // a busy machine may not answer within the timeout
	lease := locktest.MustLock(t, l, patiently)
	held := locktest.MustLock(t, c.NewLock("held"), patiently)
	b.Real.Pause()
	defer b.Real.Resume()

	bounded := func(what string, bound time.Duration, fn func() error, want ...error) {
		t.Helper()
		start := time.Now()
		err := fn()
		if took := time.Since(start); took > bound+20*time.Second { // without the bound it is not over at all
			t.Errorf("%s took %v, should be over in %v", what, took, bound)
		}
		t.Helper()
		locktest.WantErr(t, err, want...)
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
	bounded("TryLock, cancelled", 50*time.Millisecond, func() error { _, err := free.TryLock(cancelled(50 * time.Millisecond)); return err }, context.Canceled, nil, rlock.ErrNotAcquired)
	bounded("Lock, cancelled", 50*time.Millisecond, func() error { _, err := free.Lock(cancelled(50 * time.Millisecond)); return err }, context.Canceled, nil, rlock.ErrNotAcquired)
	bounded("Lock, deadline", 50*time.Millisecond, func() error { _, err := free.Lock(within(50 * time.Millisecond)); return err }, context.DeadlineExceeded, nil, rlock.ErrNotAcquired)
	bounded("Lock, WithWait", 700*time.Millisecond, func() error { _, err := free.Lock(bg, rlock.WithWait(700*time.Millisecond)); return err }, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired, context.DeadlineExceeded)
	bounded("re-entry", timeout, func() error { _, err := l.Lock(lease.Context(bg)); return err }, rlock.ErrUnreachable)
	bounded("Extend", timeout, func() error { return held.Extend(bg, time.Minute) }, rlock.ErrUnreachable)
	bounded("State", timeout, func() error { _, err := l.State(bg); return err }, rlock.ErrUnreachable)
	bounded("ForceUnlock", timeout, func() error { _, err := l.ForceUnlock(bg); return err }, rlock.ErrUnreachable)
	bounded("Unlock", timeout, func() error { return lease.Unlock(bg) }, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
	if err := held.Err(); err != nil {
		t.Fatal("a failed Extend has ended the lease:", err)
	}

	// What could not be done is made good when the server is back. The requests
	// that hang in it run in any order then, the ForceUnlock among them.
	b.Real.Resume()
	plain := b.Client(t)
	locktest.Eventually(t, "everything that was given up is gone", func() bool {
		for _, k := range locktest.Keys(t, plain) {
			if k == "free" || k == "a" {
				return false
			}
		}
		return true
	})
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, locktest.MustLock(t, free))
	locktest.MustUnlock(t, locktest.MustLock(t, l))
}

func TestUnreachableServerIsReported(t *testing.T) {
	t.Parallel()
	listener, err := loopback.Listen()
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close() // from here on connections are refused
	c := locktest.NewClient(t, locktest.Dialer(addr)(t, func(o *redis.Options) { o.DialerRetries = 1 }),
		rlock.WithCommandTimeout(300*time.Millisecond), rlock.WithWatchdogLease(900*time.Millisecond))
	l := c.NewLock("a")
	_, err = l.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
	if !strings.Contains(err.Error(), "refused") {
		t.Fatalf("%q does not say why", err)
	}
	// Lock bears it for a watchdog lease; a whole line of waiters does not bear
	// it one after the other, which would take 50 times 300 ms at least.
	start := time.Now()
	errs := make(chan error)
	for range 50 {
		go func() { _, err := l.Lock(bg); errs <- err }()
	}
	for range 50 {
		locktest.WantErr(t, <-errs, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
	}
	if took := time.Since(start); took > 12*time.Second {
		t.Fatalf("50 waiters learned of it in %v", took)
	}
}

func TestErrorsOfRedisAreReturnedImmediately(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		rdb.Set(bg, "a", "a string", 0)
		start := time.Now()
		_, err := c.NewLock("a").Lock(bg)
		locktest.WantErr(t, err, nil, rlock.ErrUnreachable, rlock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 8*time.Second { // shorter than the command timeout
			t.Fatalf("took %v", took)
		}
		if v := rdb.Get(bg, "a").Val(); v != "a string" {
			t.Fatalf("the foreign key is now %q", v)
		}
	})
}

func TestServerAtItsMemoryLimitCanRelease(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	var clock locktest.Clock
	c := locktest.NewClient(t, rdb, clock.Option())
	l := c.NewLock("a")
	outer := locktest.MustLock(t, l)
	inner := locktest.MustLockCtx(t, outer.Context(bg), l)
	rdb.ConfigSet(bg, "maxmemory", "1")
	if err := rdb.Set(bg, "x", "y", 0).Err(); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatal("the server is not at its limit:", err)
	}
	_, err := c.NewLock("b").Lock(bg)
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatal("an acquire at the memory limit:", err)
	}
	was := outer.Deadline()
	clock.Forward(locktest.Lease / 3)
	locktest.Eventually(t, "it is renewed all the same", func() bool { return outer.Deadline().After(was) || outer.Err() != nil })
	locktest.MustUnlock(t, inner)
	if n := locktest.HoldCount(t, rdb, "a", outer.HoldID()); n != "1" {
		t.Fatalf("count %q", n)
	}
	locktest.MustUnlock(t, outer)
	locktest.OnlyTombstones(t, rdb) // of the acquire that failed

	// And give an acquire up, tombstone and all.
	rdb.ConfigSet(bg, "maxmemory", "0")
	rdb.FlushDB(bg)
	f, proxy, _ := b.Faulty(t)
	locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.ResetAfter)
	lease := locktest.MustLock(t, f.NewLock("a"))
	rdb.ConfigSet(bg, "maxmemory", "1")
	locktest.MustUnlock(t, lease)
	if keys := locktest.Keys(t, rdb); len(keys) != 1 || locktest.Tombstones(keys) != 1 {
		t.Fatalf("left: %q", keys)
	}
}

func TestScriptsAreLoadedWhenTheServerHasForgottenThem(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clock locktest.Clock
		c := locktest.NewClient(t, rdb, clock.Option())
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
			leases = append(leases, locktest.MustLock(t, c.NewLock(fmt.Sprint("l", i))))
		}
		flush() // the renewals go out as pipelines
		was := leases[len(leases)-1].Deadline()
		clock.Forward(locktest.Lease / 2)
		for _, lease := range leases {
			locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
		}
		flush()
		locktest.MustUnlock(t, locktest.MustLockCtx(t, leases[0].Context(bg), c.NewLock("l0")))
		flush()
		for _, lease := range leases {
			locktest.MustUnlock(t, lease)
		}
		flush()
		if locked, err := c.NewLock("l0").IsLocked(bg); locked || err != nil {
			t.Fatal(locked, err)
		}
		flush()
		if _, err := c.NewLock("l0").ForceUnlock(bg); err != nil {
			t.Fatal(err)
		}
		lease := locktest.MustLock(t, c.NewLock("closing"))
		done := locktest.ShutDown(bg, c, lease)
		flush()
		locktest.MustUnlock(t, lease)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestShutdownOfAHungServerIsBounded(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t, rlock.WithCommandTimeout(300*time.Millisecond))
	lease := locktest.MustLock(t, c.NewLock("a"), rlock.WithWait(locktest.Patience)) // a busy machine takes longer
	b.Real.Pause()
	defer b.Real.Resume()
	ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second { // the server answers nothing
		t.Fatalf("took %v", took)
	}
	locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
	<-lease.Done()
}

// An acquire that fails half-way must not leave a lock without a TTL.
func TestAcquireThatFailsHalfWayLeavesNothing(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "poor", "on", ">pw", "~*", "&*", "+@all", "-pexpire").Err(); err != nil {
		t.Fatal(err)
	}
	c := locktest.NewClient(t, locktest.Dialer(b.Addr)(t, func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }))
	_, err := c.NewLock("a").Lock(bg)
	if err == nil || !strings.Contains(err.Error(), "can't run this command") {
		t.Fatal(err)
	}
	locktest.OnlyTombstones(t, admin)
}

package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func wantHeld(t *testing.T, c *rlock.Client, want ...*rlock.Lease) {
	t.Helper()
	got := c.Held()
	if len(got) != len(want) {
		for _, l := range got {
			t.Log(l.Name(), l.Deadline(), time.Now())
		}
		t.Fatalf("%d leases are held, not %d", len(got), len(want))
	}
	for i, l := range got {
		if l != want[i] {
			t.Errorf("lease %d is %s of %q, not %s of %q", i, l.HoldID(), l.Name(), want[i].HoldID(), want[i].Name())
		}
	}
}

// A list of leases says which they are.
func TestLeaseSaysWhichItIs(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	lease := locktest.MustLock(t, c.NewLock("orders"))
	want := fmt.Sprintf(`lease of "orders" (hold %s)`, lease.HoldID())
	if text := fmt.Sprint(c.Held()); text != "["+want+"]" {
		t.Error(text)
	}
	locktest.MustUnlock(t, lease)
	if text := lease.String(); text != want+", unlocked" {
		t.Error(text)
	}
	lost := locktest.MustLock(t, c.NewLock("orders"))
	b.Client(t).Del(bg, "orders")
	_ = lost.Extend(bg, time.Minute)
	if text := lost.String(); !strings.HasSuffix(text, ", lost") {
		t.Error(text)
	}
	if text := fmt.Sprint(new(rlock.Lease), (*rlock.Lease)(nil)); text != "no lease no lease" {
		t.Error(text)
	}
}

// Held lists each open lease of each type once, the oldest first, and none that was lost or unlocked.
func TestHeldListsTheOpenLeases(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var clock locktest.Clock
	c := b.NewClient(t, clock.Option())
	wantHeld(t, c)
	outer := locktest.MustLock(t, c.NewLock("a"))
	inner := locktest.MustLockCtx(t, outer.Context(bg), c.NewLock("a"))
	reader := locktest.MustLock(t, c.NewReadWriteLock("rw").Reader)
	fixed := locktest.MustLock(t, c.NewFairLock("fair"), rlock.WithLease(time.Minute))
	wantHeld(t, c, outer, inner, reader, fixed)
	wantHeld(t, b.NewClient(t))
	if s := c.Stats(); s.Holds != 3 || s.Waiters != 0 || s.CleanUps != 0 || s.Losses != 0 {
		t.Errorf("%+v", s)
	}
	locktest.MustUnlock(t, outer)
	wantHeld(t, c, inner, reader, fixed)
	clock.Forward(time.Hour) // past every deadline, whether the watchdog has looked or not
	wantHeld(t, c)
	locktest.Eventually(t, "the losses are counted", func() bool { s := c.Stats(); return s.Losses == 3 && s.Holds == 0 })
	for _, l := range []*rlock.Lease{inner, reader, fixed} {
		locktest.WantErr(t, l.Unlock(bg), rlock.ErrLeaseLost)
	}
}

// Holds are listed while the watchdog renews them: it takes them out of its agenda meanwhile.
func TestHeldMissesNothingWhileLeasesAreRenewed(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var clock locktest.Clock
	c := b.NewClient(t, clock.Option(), rlock.WithWatchdogLease(rlock.MaxLease))
	const n = 60
	var leases []*rlock.Lease
	for i := range n { // of their own, not readers of one lock: to renew one of those takes a look at all
		leases = append(leases, locktest.MustLock(t, c.NewLock(strconv.Itoa(i))))
	}
	for i := 0; c.Stats().Renewals < n; i++ {
		// All are due after eight hours, and lost after a day. The watchdog may be about to set its timer.
		if i < 600 || i%1000 == 0 {
			clock.Forward(time.Minute)
		}
		if held := len(c.Held()); held != n {
			t.Fatalf("%d of %d are listed", held, n)
		}
		if s := c.Stats(); s.Holds != n {
			t.Fatalf("%+v", s)
		}
	}
	if s := c.Stats(); s.Losses != 0 {
		t.Errorf("%+v", s)
	}
	for _, l := range leases {
		locktest.MustUnlock(t, l)
	}
	wantHeld(t, c)
}

func TestStatsCountWaitersAndCleanUps(t *testing.T) {
	t.Parallel()
	for _, open := range []func(c *rlock.Client) rlock.Locker{
		func(c *rlock.Client) rlock.Locker { return c.NewLock("a") },
		func(c *rlock.Client) rlock.Locker { return c.NewFairLock("a") },
	} {
		b := locktest.OnServer(t)
		c, proxy, _ := b.Faulty(t, rlock.WithUnlockTimeout(time.Second))
		lease := locktest.MustLock(t, open(c))
		ctx, cancel := context.WithCancel(bg)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if l, err := open(c).Lock(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("%v, %v", l, err)
				}
			})
		}
		locktest.Eventually(t, "five wait", func() bool { return c.Stats().Waiters == 5 })
		cancel()
		all.Wait()
		locktest.Eventually(t, "nobody waits, and nothing is left", func() bool { s := c.Stats(); return s.Waiters == 0 && s.CleanUps == 0 })

		proxy.Refuse(true)
		proxy.ResetAll()
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed)
		if s := c.Stats(); s.CleanUps != 1 || s.Holds != 0 {
			t.Errorf("%+v", s)
		}
		proxy.Refuse(false)
		locktest.Eventually(t, "it is done", func() bool { return c.Stats().CleanUps == 0 })
	}
}

// A nil Client, or one that New did not make, has nothing.
func TestStatsOfNoClient(t *testing.T) {
	t.Parallel()
	for _, c := range []*rlock.Client{nil, {}} {
		if s := c.Stats(); s != (rlock.Stats{}) || c.Held() != nil {
			t.Errorf("%+v", s)
		}
	}
}

func TestStatsCountFailedRenewals(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var clock locktest.Clock
	c := locktest.NewClient(t, s.Client(), clock.Option(), rlock.WithWatchdogLease(rlock.MaxLease))
	lease := locktest.MustLock(t, c.NewLock("a"))
	// A renewal is due after eight hours; the lease is lost after a day.
	after := func(what string, ok func() bool) {
		t.Helper()
		locktest.Eventually(t, what, func() bool { clock.Forward(rlock.MaxLease / 100); return ok() })
	}
	after("it is renewed", func() bool { return c.Stats().Renewals > 0 })
	if err := s.Client().Do(bg, "acl", "setuser", "default", "-pexpire", "-pttl").Err(); err != nil {
		t.Fatal(err)
	}
	after("a renewal fails", func() bool { return c.Stats().FailedRenewals > 0 })
	clock.Forward(rlock.MaxLease)
	after("it is lost", func() bool { return lease.Err() != nil })
	if s := c.Stats(); s.Losses != 1 || s.FailedRenewals == 0 {
		t.Errorf("%+v", s)
	}
}

package rlock_test

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Waiters counts those of this client, and each other client that listens, whatever the type of a
// lock publishes; also for a client that only looks.
func TestWaitersOfOtherClientsAreCounted(t *testing.T) {
	t.Parallel()
	types := map[string]func(c *rlock.Client) locktest.AnyLock{
		"Lock":          func(c *rlock.Client) locktest.AnyLock { return c.NewLock("waiters of a Lock") },
		"FencedLock":    func(c *rlock.Client) locktest.AnyLock { return c.NewFencedLock("waiters of a FencedLock") },
		"FairLock":      func(c *rlock.Client) locktest.AnyLock { return c.NewFairLock("waiters of a FairLock") },
		"ReadWriteLock": func(c *rlock.Client) locktest.AnyLock { return c.NewReadWriteLock("waiters of a ReadWriteLock").Writer },
	}
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, open := range types {
			t.Run(name, func(t *testing.T) {
				c := []*rlock.Client{b.NewClient(t), b.NewClient(t), b.NewClient(t), b.NewClient(t)}
				lease := locktest.MustLock(t, open(c[0]))
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				var all []*locktest.Attempt
				wait := func(i int) { all = append(all, locktest.Begin(t, ctx, open(c[i]))) }
				count := func(i, want int) {
					t.Helper()
					locktest.Eventually(t, "all are counted", func() bool { return locktest.MustState(t, open(c[i])).Waiters == want })
				}
				wait(1)
				count(0, 1)
				count(1, 1) // its own subscription does not count twice
				wait(2)
				count(0, 2)
				count(1, 2)
				count(3, 2) // it has never waited
				wait(2)
				if name == "FairLock" {
					count(0, 3)
				}
				count(2, 3)
				cancel()
				for _, a := range all {
					if err := a.GiveUp(); err == nil {
						t.Error("a waiter has the lock")
					}
				}
				for i := range c {
					count(i, 0)
				}
				locktest.MustUnlock(t, lease)
			})
		}
	})
}

// A SpinLock has no channel: only the waiters of the own client are known.
func TestWaitersOfASpinLockAreThoseOfTheClient(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	mine, theirs := b.NewClient(t), b.NewClient(t)
	lease := locktest.MustLock(t, mine.NewSpinLock("a"))
	next := locktest.Begin(t, bg, theirs.NewSpinLock("a"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, theirs.NewSpinLock("a")).Waiters == 1 })
	if n := locktest.MustState(t, mine.NewSpinLock("a")).Waiters; n != 0 {
		t.Errorf("%d waiters", n)
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
}

// A client that may not ask who listens counts its own waiters.
func TestWaitersWithoutPermissionToCountThem(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	if err := b.Client(t).Do(bg, "acl", "setuser", "default", "-pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	mine, theirs := b.NewClient(t), b.NewClient(t)
	lease := locktest.MustLock(t, mine.NewLock("a"))
	next := locktest.Begin(t, bg, theirs.NewLock("a"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, theirs.NewLock("a")).Waiters == 1 })
	if n := locktest.MustState(t, mine.NewLock("a")).Waiters; n != 0 {
		t.Errorf("%d waiters", n)
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
}

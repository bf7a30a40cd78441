package faults

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// released is a lease whose release is to lose a copy.
type released struct {
	name string
	take func(t *testing.T, b *locktest.Backend, c *rlock.Client) *rlock.Lease
	// rival excludes what is taken; nil: another has its hash.
	rival func(t *testing.T, c *rlock.Client) rlock.Locker
}

func releases() (all []released) {
	add := func(name string, open, rival func(t *testing.T, c *rlock.Client) rlock.Locker) {
		all = append(all, released{name, func(t *testing.T, _ *locktest.Backend, c *rlock.Client) *rlock.Lease {
			return locktest.MustLock(t, open(t, c))
		}, rival})
	}
	for _, k := range locktest.Types {
		add(k.Name, func(_ *testing.T, c *rlock.Client) rlock.Locker { return k.Open(c, "a") },
			func(_ *testing.T, c *rlock.Client) rlock.Locker { return k.Blocker(c, "a") })
	}
	for name, opts := range map[string][]rlock.PermitSemaphoreOption{
		"PermitSemaphore": nil, "fair PermitSemaphore": {rlock.WithFairness()},
	} {
		open := func(t *testing.T, c *rlock.Client) rlock.Locker {
			s := c.NewPermitSemaphore("a", opts...)
			return locktest.PermitLocker{PermitSemaphore: locktest.MustSetPermits(t, s, 1), N: 1}
		}
		add(name, open, open)
	}
	election := func(_ *testing.T, c *rlock.Client) rlock.Locker {
		return locktest.Electing{Election: c.NewElection("a"), Value: "a value"}
	}
	add("Election", election, election)
	multi := func(t *testing.T, c *rlock.Client) rlock.Locker { return locktest.MultiLockOf(t, c, "{a}:1", "{a}:2") }
	add("MultiLock", multi, multi)

	all = append(all, released{"FairLock with a waiter", func(t *testing.T, b *locktest.Backend, c *rlock.Client) *rlock.Lease {
		lease := locktest.MustLock(t, c.NewFairLock("a"))
		locktest.MustLineUp(t, b.Client(t), c.NewFairLock("a"))
		return lease
	}, nil}) // the waiter may be quicker than another client
	plain := func(_ *testing.T, c *rlock.Client) rlock.Locker { return c.NewLock("a") }
	return append(all, released{"Lock that was handed over", func(t *testing.T, b *locktest.Backend, c *rlock.Client) *rlock.Lease {
		l := c.NewLock("a", rlock.WithHandOver(8, time.Hour))
		held := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		waits := []*locktest.Attempt{locktest.Begin(t, bg, l), locktest.Begin(t, bg, l)}
		for tries := 0; tries < 100; tries++ { // a waiter that does not sleep yet is given nothing
			locktest.Eventually(t, "both wait", func() bool { return locktest.Waiters(t, l) == 2 })
			before := held.HoldID()
			locktest.MustUnlock(t, held)
			i := 0
			locktest.Eventually(t, "one of them has it", func() bool {
				i = slices.IndexFunc(waits, func(w *locktest.Attempt) bool { return !w.Waits() })
				return i >= 0
			})
			if held = waits[i].Held(); held.HoldID() == before {
				waits[1-i].GiveUp() // it would be given the hold next
				return held
			}
			waits[i] = locktest.Begin(t, bg, l)
		}
		t.Fatal("no hold was handed over")
		return nil
	}, plain})
}

// loseRelease loses the first copy of the next release.
func loseRelease(t *testing.T, rdb redis.UniversalClient, proxy *faultproxy.Proxy, action faultproxy.Action) (lost func() bool) {
	scripts := []string{
		"lock/release", "lock/release_all", "lock/release_next", "fair/release", "queue/release", "rw/read_release", "rw/write_release", "permits/release", "fairpermits/release",
	}
	locktest.LoadScripts(t, rdb, scripts...)
	var shas []string
	for _, script := range scripts {
		shas = append(shas, locktest.SHA(script))
	}
	struck := make(chan struct{}, 1)
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if !slices.ContainsFunc(shas, cmd.IsScript) {
			return faultproxy.Pass
		}
		select {
		case struck <- struct{}{}:
			return action
		default:
			return faultproxy.Pass
		}
	})
	return func() bool { return len(struck) == 1 }
}

// A server that fails over, or is flushed, forgets a hold and breaks connections, both at once.
// The release is sent again then. What it finds does not tell whether the copy before it has
// ended the hold or there was none: another may have had the lock for long.
func TestUnlockIsNilOnlyIfAReleaseHasEndedTheHold(t *testing.T) {
	t.Parallel()
	for _, k := range releases() {
		for _, c := range []struct {
			name      string
			lost      faultproxy.Action
			gone      bool // the server loses the hold before
			taken     bool // and another has it
			confirmed bool
		}{
			{name: "held to the end", lost: faultproxy.ResetBefore, confirmed: true},
			{name: "released by the first copy", lost: faultproxy.ResetAfter},
			{name: "gone", lost: faultproxy.ResetBefore, gone: true},
			{name: "taken over", lost: faultproxy.ResetBefore, gone: true, taken: true},
		} {
			locktest.Beside(t, k.name+" "+c.name, func(t *testing.T) {
				b := locktest.OnMiniredis(t)
				holder, proxy, rdb := b.Faulty(t, rlock.WithWatchdogLease(time.Hour), rlock.WithUnlockTimeout(time.Minute), rlock.WithCommandTimeout(time.Minute))
				lease := k.take(t, b, holder)
				var next *rlock.Lease
				switch {
				case c.taken && k.rival == nil:
					_, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
						p.Del(bg, "a")
						p.HSet(bg, "a", redistest.HoldID("another:1"), 1)
						p.PExpire(bg, "a", time.Hour)
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				case c.taken:
					rdb.FlushDB(bg)
					next = locktest.MustLock(t, k.rival(t, b.NewClient(t)))
				case c.gone:
					rdb.FlushDB(bg)
				}
				lost := loseRelease(t, rdb, proxy, c.lost)
				err := lease.Unlock(bg)
				if !lost() {
					t.Fatal("no copy was lost")
				}
				if c.confirmed {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				locktest.WantErr(t, err, rlock.ErrUnconfirmed, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
				if next != nil {
					locktest.MustUnlock(t, next)
				}
			})
		}
	}
}

// Do says what its Unlock does.
func TestDoReturnsAnUnconfirmedRelease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c, proxy, rdb := b.Faulty(t, rlock.WithWatchdogLease(time.Hour))
	err := rlock.Do(bg, c.NewLock("a"), func(context.Context) error {
		rdb.FlushDB(bg)
		next := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		t.Cleanup(func() { locktest.MustUnlock(t, next) })
		loseRelease(t, rdb, proxy, faultproxy.ResetBefore)
		return nil
	})
	locktest.WantErr(t, err, rlock.ErrUnconfirmed, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
}

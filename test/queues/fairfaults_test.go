package queues

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// fairFaulty is Faulty with the scripts of fair locks loaded, on an empty Redis.
func fairFaulty(t testing.TB, b *locktest.Backend, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	c, proxy, rdb := b.Faulty(t, opts...)
	locktest.LoadScripts(t, rdb, "fair/enter", "fair/release", "fair/abandon", "fair/force_unlock", "fair/inspect", "lock/renew", "lock/probe")
	rdb.FlushDB(bg) // what the test before left
	return c, proxy, rdb
}

// fairBehind is a client behind a proxy whose looks are counted when they were
// answered.
func fairBehind(t testing.TB, proxy *faultproxy.Proxy) *locktest.Member {
	t.Helper()
	// Its goroutines that wait for a lost reply end soon, and the test with them.
	rdb := locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
	return locktest.Join(t, rdb, rlock.WithCommandTimeout(locktest.Ample(2*time.Second)))
}

// fairOrder checks who stands in line, in all places.
func fairOrder(t testing.TB, rdb redis.UniversalClient, name string, ids ...string) {
	t.Helper()
	v := locktest.FairState(rdb, name)
	if !slices.Equal(v.Queue, ids) || len(v.Deadlines) != len(ids) || len(v.Alive) != len(ids) {
		t.Fatalf("%+v, want %q in line", v, ids)
	}
}

func TestFairAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "fair/enter", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		for _, acquire := range []func(*rlock.FairLock) (*rlock.Lease, error){
			func(l *rlock.FairLock) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l *rlock.FairLock) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			locktest.Unhurried(t, func(timeout time.Duration) error {
				c, proxy, rdb := fairFaulty(t, b, rlock.WithCommandTimeout(timeout), rlock.WithUnlockTimeout(20*time.Second))
				locktest.OnNth(t, proxy, "fair/enter", 1, action)
				lease, err := acquire(c.NewFairLock("a"))
				if err != nil {
					return err
				}
				if n := locktest.HoldCount(t, rdb, "a", lease.HoldID()); n != "1" {
					t.Fatalf("count %q", n)
				}
				fairOrder(t, rdb, "a")
				locktest.MustUnlock(t, lease)
				locktest.OnlyTombstones(t, rdb)
				return nil
			})
		}
	})
}

// The first look puts the waiter into the line, the second comes after the
// confirmation of its subscription, the third takes the lock.
func TestFairWaiterWithLostReplyHasOnePlace(t *testing.T) {
	t.Parallel()
	for _, look := range []int64{1, 2, 3} {
		locktest.Beside(t, fmt.Sprint("look ", look), func(t *testing.T) {
			locktest.EachLoss(t, "fair/enter", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
				_, proxy, rdb := fairFaulty(t, b)
				m := fairBehind(t, proxy)
				other := locktest.NewClient(t, rdb).NewFairLock("a")
				lease := locktest.MustLock(t, other)
				first := locktest.MustLineUp(t, rdb, other)
				locktest.OnNth(t, proxy, "fair/enter", look, action)
				w := locktest.MustLineUp(t, rdb, m.NewFairLock("a"))
				last := locktest.MustLineUp(t, rdb, other)
				m.Parked(t, "a", 2)
				fairOrder(t, rdb, "a", first.ID, w.ID, last.ID)
				for _, next := range []*locktest.FairWaiter{first, w, last} {
					locktest.MustUnlock(t, lease)
					lease = next.Wait(t)
					if lease.HoldID() != next.ID || locktest.HoldCount(t, rdb, "a", next.ID) != "1" {
						t.Fatalf("%s has the lock, as %v", lease.HoldID(), locktest.FairState(rdb, "a"))
					}
				}
				locktest.MustUnlock(t, lease)
				locktest.OnlyTombstones(t, rdb)
			})
		})
	}
}

func TestFairWaiterThatLeavesWithLostReplyLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "fair/abandon", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := fairFaulty(t, b)
		other := locktest.NewClient(t, rdb).NewFairLock("a")
		lease := locktest.MustLock(t, other)
		w, next := locktest.MustLineUp(t, rdb, c.NewFairLock("a")), locktest.MustLineUp(t, rdb, other)
		ends := locktest.FairState(rdb, "a").Deadlines[next.ID]
		locktest.OnNth(t, proxy, "fair/abandon", 1, action)
		w.Cancel()
		w.Left(t)
		locktest.Eventually(t, "it has left", func() bool { return len(locktest.FairState(rdb, "a").Queue) == 1 })
		if action != faultproxy.Duplicate {
			locktest.Eventually(t, "it was repeated", func() bool {
				return proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(locktest.SHA("fair/abandon")) }) >= 2
			})
		}
		fairOrder(t, rdb, "a", next.ID)
		// Ours add no time to the deadlines behind them, and take none away.
		if gone := ends - locktest.FairState(rdb, "a").Deadlines[next.ID]; gone > 0 {
			t.Errorf("the deadline of the next was shortened by %v ms", gone)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next.Wait(t))
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestFairUnlockWithLostReplyReleasesOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "fair/release", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		locktest.Unhurried(t, func(timeout time.Duration) error {
			c, proxy, rdb := fairFaulty(t, b, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(timeout))
			outer := locktest.MustLock(t, c.NewFairLock("a"))
			inner := locktest.MustLockCtx(t, outer.Context(bg), c.NewFairLock("a"))
			w := locktest.MustLineUp(t, rdb, locktest.NewClient(t, rdb).NewFairLock("a"))
			defer func() { w.Cancel(); <-w.Done }()
			locktest.OnNth(t, proxy, "fair/release", 1, action)
			if err := inner.Unlock(bg); err != nil {
				return err
			}
			if n := locktest.HoldCount(t, rdb, "a", outer.HoldID()); n != "1" {
				t.Fatalf("count %q after the inner unlock", n)
			}
			locktest.OnNth(t, proxy, "fair/release", 1, action)
			if locktest.LosesReply(action) {
				locktest.UnlockLossy(t, outer, action) // a resend may find the next one there
			} else if err := outer.Unlock(bg); err != nil {
				return err
			}
			next := w.Wait(t)
			if err := next.Err(); err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, next)
			locktest.OnlyTombstones(t, rdb)
			return nil
		})
	})
}

// A copy of a waiter's request that was held up on its way arrives when the hold
// is over. It must not stand in line for nobody.
func TestFairLateCopyMeetsATombstone(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		hold := func(t *testing.T, proxy *faultproxy.Proxy) {
			t.Helper()
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(locktest.SHA("fair/enter")) {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
		}
		t.Run("of one that never came in", func(t *testing.T) {
			c, proxy, rdb := fairFaulty(t, b)
			lease := locktest.MustLock(t, locktest.NewClient(t, rdb).NewFairLock("a"))
			hold(t, proxy)
			w := locktest.Begin(t, bg, c.NewFairLock("a"))
			locktest.HeldUp(t, proxy, 2)
			locktest.WantEnded(t, w.GiveUp(), context.Canceled)
			locktest.Eventually(t, "it is given up", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
			if n := proxy.Release(); n < 2 {
				t.Fatalf("%d copies were late", n)
			}
			fairOrder(t, rdb, "a")
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
		})
		t.Run("of one that stood in line", func(t *testing.T) {
			c, proxy, rdb := fairFaulty(t, b)
			lease := locktest.MustLock(t, locktest.NewClient(t, rdb).NewFairLock("a"))
			locktest.OnNth(t, proxy, "fair/enter", 1, faultproxy.Hold)
			w := locktest.MustLineUp(t, rdb, c.NewFairLock("a")) // by the resend
			w.Cancel()
			w.Left(t)
			locktest.Eventually(t, "it has left", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == 1 })
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			fairOrder(t, rdb, "a")
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
		})
		t.Run("of one that had the lock", func(t *testing.T) {
			c, proxy, rdb := fairFaulty(t, b)
			lease := locktest.MustLock(t, locktest.NewClient(t, rdb).NewFairLock("a"))
			locktest.OnNth(t, proxy, "fair/enter", 1, faultproxy.Hold)
			w := locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, w.Wait(t))
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			locktest.OnlyTombstones(t, rdb)
		})
		// All its requests were answered: there is no late copy, and no tombstone.
		t.Run("none", func(t *testing.T) {
			c, _, rdb := fairFaulty(t, b)
			m := locktest.Join(t, b.Client(t))
			lease := locktest.MustLock(t, c.NewFairLock("a"))
			w := locktest.Parked(t, rdb, m, "a")
			w.Cancel()
			w.Left(t)
			locktest.Eventually(t, "it has left", func() bool { return len(locktest.FairState(rdb, "a").Queue) == 0 })
			locktest.MustUnlock(t, lease)
			locktest.MustBeEmpty(t, rdb)
		})
	})
}

// A cancel may meet any request of the waiter. Afterwards nothing of it is left,
// and the next one has the lock.
func TestFairCancelWithARequestUnderWay(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, look := range []int64{1, 2, 3} {
			for what, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "on its way": faultproxy.Hold} {
				t.Run(fmt.Sprint("look ", look, " ", what), func(t *testing.T) {
					_, proxy, rdb := fairFaulty(t, b)
					m := fairBehind(t, proxy)
					name := t.Name()
					other := locktest.NewClient(t, rdb).NewFairLock(name)
					lease := locktest.MustLock(t, other)
					ctx, cancel := context.WithCancel(bg)
					defer cancel()
					var seen atomic.Int64
					reached := make(chan struct{})
					proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
						if !cmd.IsScript(locktest.SHA("fair/enter")) {
							return faultproxy.Pass
						}
						switch n := seen.Add(1); {
						case n < look:
							return faultproxy.Pass
						case n == look:
							close(reached)
						}
						return action
					})
					done := make(chan error, 1)
					go func() { _, err := m.NewFairLock(name).Lock(ctx); done <- err }()
					var next *locktest.FairWaiter
					if look == 3 {
						m.Parked(t, name, 2)
						next = locktest.MustLineUp(t, rdb, other)
						locktest.MustUnlock(t, lease)
					}
					<-reached
					cancel()
					locktest.WantEnded(t, <-done, context.Canceled)
					proxy.Release()
					if look < 3 {
						locktest.Eventually(t, "its place is gone, and it has left a tombstone", func() bool {
							return len(locktest.FairState(rdb, name).Queue) == 0 && locktest.Tombstones(locktest.Keys(t, rdb)) >= 1
						})
						locktest.MustUnlock(t, lease)
					} else {
						locktest.MustUnlock(t, next.Wait(t))
					}
					v := locktest.FairState(rdb, name)
					if len(v.Hold)+len(v.Queue)+len(v.Deadlines)+len(v.Alive) > 0 {
						t.Fatalf("%+v", v)
					}
				})
			}
		}
	})
}

// Waiters of a client that is cut off from Redis for longer than a waiter lease
// make way for others, and go on when it is back.
func TestFairWaiterWithoutAConnectionLosesItsPlaceForATime(t *testing.T) {
	t.Parallel()
	locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) {
		const term = 3 * time.Hour
		var itsClock locktest.Clock // of the one that is cut off
		proxy := faultproxy.New(t, b.Addr)
		rdb := b.Client(t)
		opts := []rlock.Option{rlock.WithWaiterLease(term), rlock.WithLongestPoll(rlock.MaxLease), rlock.WithWatchdogLease(rlock.MaxLease)}
		c := locktest.Join(t, locktest.Dialer(proxy.Addr())(t, nil), append(opts, itsClock.Option())...)
		opts = append(opts, clock.Option())
		h := locktest.Join(t, b.Client(t), opts...)
		here := h.NewFairLock("a")
		lease := locktest.MustLock(t, locktest.NewClient(t, rdb, opts...).NewFairLock("a")) // whose end does not wake those of h
		away := locktest.Parked(t, rdb, c, "a")                                             // no look of its is on its way
		near := locktest.Parked(t, rdb, h, "a")
		proxy.Refuse(true)
		locktest.MustUnlock(t, lease)
		thirds := 0
		for ; near.Waits() && thirds < 5; thirds++ {
			sign := locktest.FairState(rdb, "a").Alive[near.ID]
			clock.Rest(t)
			clock.Forward(term / 3)
			locktest.Eventually(t, "it has looked", func() bool { return !near.Waits() || locktest.FairState(rdb, "a").Alive[near.ID] > sign })
			if locktest.FairState(rdb, "a").Hold[near.ID] != "" {
				near.Wait(t)
			}
		}
		lease = near.Wait(t)
		if thirds != 3 {
			t.Errorf("passed over after %d thirds of the waiter lease", thirds)
		}
		behind := locktest.MustLineUp(t, rdb, here)
		proxy.Refuse(false)
		itsClock.Rest(t)
		itsClock.Forward(term / 3)
		locktest.Eventually(t, "it waits at the end", func() bool {
			return slices.Equal(locktest.FairState(rdb, "a").Queue, []string{behind.ID, away.ID})
		})
		for _, w := range []*locktest.FairWaiter{behind, away} {
			locktest.MustUnlock(t, lease)
			lease = w.Wait(t)
		}
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

// When Redis hangs for longer than a waiter lease, everybody keeps his place.
func TestFairLineSurvivesAHungServer(t *testing.T) {
	t.Parallel()
	// Redis alone knows of the time that passes: whoever is late, the machine does not make it so.
	const term = time.Hour
	server := redistest.StartClocked(t, 1)[0]
	b := locktest.At(server.Server)
	rdb := b.Client(t)
	lock := func() *rlock.FairLock {
		return locktest.NewClient(t, b.Client(t), rlock.WithWaiterLease(term), rlock.WithLongestPoll(50*time.Millisecond)).NewFairLock("a")
	}
	lease := locktest.MustLock(t, lock(), rlock.WithLease(rlock.MaxLease))
	var turns []*locktest.FairWaiter
	var want []string
	for range 4 {
		w := locktest.MustLineUp(t, rdb, lock())
		turns, want = append(turns, w), append(want, w.ID)
	}
	b.Real.Pause()
	server.SetClock(term + time.Second)
	b.Real.Resume()
	locktest.Eventually(t, "all have given a sign of life", func() bool {
		now, v := locktest.ServerNow(rdb), locktest.FairState(rdb, "a")
		for _, id := range want {
			if v.Alive[id] < now {
				return false
			}
		}
		return true
	})
	if v := locktest.FairState(rdb, "a"); !slices.Equal(v.Queue, want) {
		t.Fatalf("queue %q, before the outage %q", v.Queue, want)
	}
	for _, w := range turns {
		locktest.MustUnlock(t, lease)
		lease = w.Wait(t)
	}
	locktest.MustUnlock(t, lease)
	locktest.OnlyTombstones(t, rdb)
}

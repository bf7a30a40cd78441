package queues

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// eachType runs a scenario for each of them, each with a Redis of its own. They
// wait for timeouts and leases most of the time, so they do it beside each other.
func eachType(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.QueuedType)) {
	t.Helper()
	for _, k := range locktest.QueuedTypes {
		runOn(t, "miniredis", k, scenario)
		runOn(t, "standalone", k, scenario)
	}
}

// eachTypeClocked is eachType on servers whose clock the test puts forward.
func eachTypeClocked(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, clock *locktest.Clock)) {
	t.Helper()
	for _, k := range locktest.QueuedTypes {
		locktest.Beside(t, k.Name, func(t *testing.T) {
			locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) { scenario(t, b, k, clock) })
		})
	}
}

// eachMode is eachType for what depends on the scripts and the connection
// only: a priority lock is to them what a write lock is, and miniredis is asked
// once.
func eachMode(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.QueuedType)) {
	t.Helper()
	read, write := locktest.QueuedTypes[0], locktest.QueuedTypes[1]
	runOn(t, "miniredis", write, scenario)
	runOn(t, "standalone", read, scenario)
	runOn(t, "standalone", write, scenario)
}

func runOn(t *testing.T, on string, k locktest.QueuedType, scenario func(t *testing.T, b *locktest.Backend, k locktest.QueuedType)) {
	t.Run(on+" "+k.Name, func(t *testing.T) {
		if on == "miniredis" {
			locktest.Repeated(t)
		}
		t.Parallel()
		if on == "miniredis" {
			scenario(t, locktest.OnMiniredis(t), k)
		} else {
			scenario(t, locktest.OnServer(t), k)
		}
	})
}

// eachTypeOn runs a scenario for each of them on one Redis.
func eachTypeOn(t *testing.T, b *locktest.Backend, scenario func(t *testing.T, b *locktest.Backend, k locktest.QueuedType)) {
	t.Helper()
	for _, k := range locktest.QueuedTypes {
		t.Run(k.Name, func(t *testing.T) {
			locktest.DeleteAll(t, b.Client(t))
			scenario(t, b, k)
		})
	}
}

// eachLoss runs a scenario for each way to lose a reply of a script.
func eachLoss(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, action faultproxy.Action)) {
	t.Helper()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		for name, action := range locktest.LossyActions {
			t.Run(name, func(t *testing.T) {
				locktest.DeleteAll(t, b.Client(t))
				scenario(t, b, k, action)
			})
		}
	})
}

// faulty is faulty with the scripts loaded. Nothing but the faults and
// messages moves its waiters.
func faulty(t testing.TB, b *locktest.Backend, k locktest.QueuedType, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	opts = append([]rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)}, opts...)
	c, proxy, rdb := b.Faulty(t, opts...)
	locktest.LoadScripts(t, rdb, "queue/enter", "queue/reenter", "queue/release", "queue/abandon",
		"queue/renew", "queue/force_unlock", "queue/inspect", "queue/probe")
	return c, proxy, rdb
}

// wantHolders checks how many hold the lock and how many wait, and that each
// holder has entered n times.
func wantHolders(t testing.TB, l locktest.AnyLock, holders, n, waiters int) {
	t.Helper()
	s := locktest.MustState(t, l)
	ok := len(s.Holders) == holders && s.Waiters == waiters
	for _, h := range s.Holders {
		ok = ok && h.Count == n
	}
	if !ok {
		t.Fatalf("%+v; want %d holders with %d entries and %d waiters", s, holders, n, waiters)
	}
}

func TestQueuedForceUnlockEndsTheHoldAndKeepsTheQueue(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		l := k.Open(c, "a")
		if was, err := l.ForceUnlock(bg); was || err != nil {
			t.Fatal(was, err)
		}
		lease := locktest.MustLock(t, l)
		next := enqueueRival(t, k, rdb, k.Rival(c, "a"))
		for _, owner := range []string{"nobody:1", "exclusive", "count", "token"} {
			if was, err := l.ForceUnlockIf(bg, owner); was || err != nil {
				t.Fatal(owner, was, err)
			}
		}
		if k.What == "fairrw" { // the other side does not touch it
			if was, err := k.Rival(c, "a").ForceUnlock(bg); was || err != nil {
				t.Fatal(was, err)
			}
		}
		if was, err := l.ForceUnlockIf(bg, lease.HoldID()); !was || err != nil {
			t.Fatal(was, err)
		}
		got := next.Held()
		locktest.WantErr(t, lease.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		if was, err := k.Rival(c, "a").ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		locktest.WantErr(t, got.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedTryLockNeverOvertakesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb), "a")
		// The lock is free; the waiter has not come yet.
		locktest.PutDeadWaiter(t, rdb, k, "a", locktest.FirstRank, time.Hour)
		before := locktest.Keys(t, rdb)
		for range 3 {
			_, err := l.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
			if !strings.Contains(err.Error(), "reserved for a waiter") {
				t.Errorf("%v", err)
			}
			_, err = l.Lock(bg, rlock.WithWait(0))
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
		}
		wantHolders(t, l, 0, 0, 1)
		if after := locktest.Keys(t, rdb); len(after) != len(before) {
			t.Fatalf("keys were %q and are %q", before, after)
		}
	})
}

func TestQueuedWaitIsBoundedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb), "a")
		holder := locktest.MustLock(t, k.Rival(b.NewClient(t), "a"))
		const short = 60 * time.Millisecond
		start := time.Now()
		_, err := l.Lock(bg, rlock.WithWait(short))
		locktest.WantEnded(t, err, nil)
		ctx, cancel := context.WithTimeout(bg, short)
		defer cancel()
		_, err = l.Lock(ctx)
		locktest.WantEnded(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took < 2*short || took > locktest.Patience {
			t.Fatalf("two waits of %v took %v", short, took)
		}
		// A request that was under way when the wait ended is withdrawn after it.
		locktest.Eventually(t, "nobody waits", func() bool { return locktest.MustState(t, l).Waiters == 0 })
		wantHolders(t, l, 1, 1, 0)
		locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*:turn:*").Val()) == 0 })
		locktest.MustUnlock(t, holder)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedKeysHaveATTLAndVanish(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		eachTypeOn(t, b, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
			rdb := b.Client(t)
			for _, name := range []string{"order:7", "{t}x", "x{t}", "bin\x00\xff\n"} {
				c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(rlock.DefaultWatchdogLease))
				holder := locktest.MustLock(t, k.Rival(c, name))
				inner := locktest.MustLockCtx(t, holder.Context(bg), k.Rival(c, name))
				e := locktest.Begin(t, bg, k.Open(c, name))
				locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, k.Open(c, name)).Waiters == 1 })
				keys := locktest.Keys(t, rdb)
				if len(keys) != 5 {
					t.Fatalf("keys: %q", keys)
				}
				for _, key := range keys {
					if ttl := rdb.PTTL(bg, key).Val(); ttl <= 0 || ttl > 71*time.Second {
						t.Fatalf("%q has TTL %v", key, ttl)
					}
				}
				locktest.MustUnlock(t, inner)
				locktest.MustUnlock(t, holder)
				locktest.MustUnlock(t, e.Held())
				locktest.OnlyTombstones(t, rdb)
			}
		})
	})
}

func TestQueuedShutdownLeavesNothing(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		lease := locktest.MustLock(t, k.Rival(c, "a"))
		var waits []*locktest.Attempt
		for range 5 {
			waits = append(waits, k.Enqueue(t, rdb, k.Open(c, "a")))
		}
		next := k.Enqueue(t, rdb, k.Open(other, "a"))
		done := locktest.ShutDown(bg, c, lease)
		for _, e := range waits {
			<-e.Done
			locktest.WantErr(t, e.Err, rlock.ErrClosed)
		}
		locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
		locktest.StillRunning(t, done)
		locktest.MustUnlock(t, lease)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, next.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedNonReentrantAndMaxHold(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		c := b.NewClient(t)
		l := k.Open(c, "a", rlock.WithNonReentrant())
		lease := locktest.MustLock(t, l)
		_, err := l.Lock(lease.Context(bg))
		locktest.WantErr(t, err, rlock.ErrReentrant)
		locktest.MustUnlock(t, lease)
		lease = locktest.MustLock(t, k.Open(c, "a", rlock.WithMaxHold(50*time.Millisecond)))
		<-lease.Done()
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		locktest.MustUnlock(t, locktest.MustLock(t, k.Rival(c, "a")))
	})
}

func TestQueuedReentryAfterLossFailsUntilUnlocked(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb), "a")
		ctx := rlock.WithOwner(bg)
		lost := locktest.MustLockCtx(t, ctx, l)
		locktest.DeleteAll(t, rdb)
		for range 2 {
			_, err := l.Lock(ctx)
			locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrNotAcquired)
		}
		locktest.OnlyTombstones(t, rdb)
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		again := locktest.MustLockCtx(t, ctx, l)
		if n, err := l.HoldCount(ctx); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		locktest.MustUnlock(t, again)
	})
}

func TestQueuedLocksExcludeUnderLoad(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		clients := []*rlock.Client{b.NewClient(t), b.NewClient(t), b.NewClient(t)}
		t.Run("fair read-write", func(t *testing.T) {
			var wg sync.WaitGroup
			written, last := 0, int64(0)
			for g := range 12 {
				l := clients[g%3].NewFairReadWriteLock("load")
				wg.Go(func() {
					for i := range 12 {
						if (g+i)%3 > 0 {
							lease, err := l.Reader.Lock(bg)
							if err != nil {
								t.Error(err)
								return
							}
							_ = written // unsynchronised on purpose: the race detector watches too
							if err := lease.Unlock(bg); err != nil {
								t.Error(err)
							}
							continue
						}
						lease, err := l.Writer.Lock(bg)
						if err != nil {
							t.Error(err)
							return
						}
						written++
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if written != 48 {
				t.Fatalf("%d of 48 sections", written)
			}
		})
		t.Run("priority", func(t *testing.T) {
			var wg sync.WaitGroup
			written, last := 0, int64(0)
			for g := range 12 {
				l := clients[g%3].NewPriorityLock("load", rlock.WithAging(time.Millisecond))
				wg.Go(func() {
					for i := range 8 {
						lease, err := l.At(1 + (g+i)%10).Lock(bg)
						if err != nil {
							t.Error(err)
							return
						}
						written++
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if written != 96 {
				t.Fatalf("%d of 96 sections", written)
			}
		})
		locktest.OnlyTombstones(t, b.Client(t)) // of replies that were late
	})
}

func TestQueuedBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	rdb := locktest.OnMiniredis(t).Client(t)
	hook := &locktest.CountHook{}
	rdb.AddHook(hook)
	c := locktest.NewClient(t, rdb)
	for _, k := range locktest.QueuedTypes {
		for _, name := range []string{"", "a{b", "{}z"} {
			_, err := k.Open(c, name).Lock(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			_, err = k.Open(c, name).State(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	for _, p := range []int{-1, 0, 11} {
		_, err := c.NewPriorityLock("a").At(p).Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	for _, d := range []time.Duration{-time.Second, 0, time.Millisecond - 1, rlock.MaxAging + 1} {
		_, err := c.NewPriorityLock("a", rlock.WithAging(d)).Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	if n := hook.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
}

// Cancelled waiters and releases race for the same wake-ups; nobody may be left
// asleep.
func TestQueuedCancelledWaitersPassTheirTurnOn(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		for range 10 {
			holder := locktest.MustLock(t, k.Rival(c, "a"))
			first := k.Enqueue(t, rdb, k.Open(c, "a"))
			second := enqueueRival(t, k, rdb, k.Rival(c, "a"))
			go first.Cancel()
			locktest.MustUnlock(t, holder)
			<-first.Done
			if first.Err == nil {
				locktest.MustUnlock(t, first.Lease)
			} else if !errors.Is(first.Err, context.Canceled) {
				t.Fatal(first.Err)
			}
			locktest.MustUnlock(t, second.Held())
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

// The waiters of a client share a channel, which stays subscribed for a while. A hand-over
// takes three commands then: the look with which a waiter comes, the release, and its look
// after the message.
func TestReturningQueueWaiterDoesNotSubscribeAgain(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.QueuedTypes {
		locktest.Beside(t, k.Name, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb, looked := b.Client(t), locktest.EvalCounter(t, b)
			c := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
			rival := k.Rival(b.NewClient(t), "a")
			lease := locktest.MustLock(t, rival, rlock.WithLease(time.Hour))
			e := k.Enqueue(t, rdb, k.Open(c, "a"))
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, e.Held())
			const rounds = 50
			before, subscribes := looked(), locktest.CommandCount(t, rdb, "subscribe", "unsubscribe")
			for range rounds {
				lease := locktest.MustLock(t, rival, rlock.WithLease(time.Hour))
				looks := looked()
				e := locktest.Begin(t, bg, k.Open(c, "a"))
				locktest.Eventually(t, "it has looked", func() bool { return looked() > looks })
				locktest.MustUnlock(t, lease)
				locktest.MustUnlock(t, e.Held())
			}
			// Each round is also a Lock of the rival and an Unlock of the waiter. A pause of
			// the machine for longer than channels are kept, or than replies may take, is
			// possible.
			if n := looked() - before; n > 5*rounds+rounds/5 {
				t.Errorf("%d hand-overs took %d scripts", rounds, n)
			}
			if n := locktest.CommandCount(t, rdb, "subscribe", "unsubscribe") - subscribes; n > rounds/10 {
				t.Errorf("%d hand-overs took %d commands of subscriptions", rounds, n)
			}
			locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*:turn:*").Val()) == 0 })
		})
	}
}

// The release comes when a waiter whose client listens already has looked, but does not
// sleep yet.
func TestReleaseBetweenTheLookAndTheSleepOfAWaiterInTheQueue(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.QueuedTypes {
		locktest.Beside(t, k.Name, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			var messages atomic.Int64
			var afterLook atomic.Pointer[func()]
			looking := b.Client(t)
			looking.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
				err := next()
				if fn := afterLook.Load(); fn != nil && locktest.Runs(cmd, "queue/enter") && afterLook.CompareAndSwap(fn, nil) {
					(*fn)()
				}
				return err
			}})
			c := locktest.NewClient(t, looking, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient),
				seam.Option(seam.Env{Gate: func(point string) {
					if point == "message" {
						messages.Add(1)
					}
				}}).(rlock.Option))
			rival := k.Rival(b.NewClient(t), "a")
			for range 2 { // the second time, the client listens already
				lease := locktest.MustLock(t, rival, rlock.WithLease(time.Hour))
				e := k.Enqueue(t, rdb, k.Open(c, "a"))
				locktest.MustUnlock(t, lease)
				locktest.MustUnlock(t, e.Held())
			}
			lease := locktest.MustLock(t, rival, rlock.WithLease(time.Hour))
			released := func() {
				before := messages.Load()
				locktest.MustUnlock(t, lease)
				// Messages are dealt with one by one: when one to somebody else has been
				// read, the waiter has got its own.
				channel := k.Base("a") + ":turn:" + c.ID()
				rdb.Publish(bg, channel, c.ID()+":0")
				locktest.Eventually(t, "both were read", func() bool { return messages.Load() >= before+2 })
			}
			afterLook.Store(&released)
			e := locktest.Begin(t, bg, k.Open(c, "a"))
			locktest.MustUnlock(t, e.Held())
		})
	}
}

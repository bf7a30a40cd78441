package queues

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestQueuedExpiryOfTheHolderLetsTheNextIn(t *testing.T) {
	t.Parallel()
	eachTypeClocked(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType, clock *locktest.Clock) {
		rdb := b.Client(t)
		const term = time.Hour
		opts := []rlock.Option{rlock.WithLongestPoll(rlock.MaxLease), rlock.WithWaiterLease(rlock.MaxLease), clock.Option()}
		c := locktest.NewClient(t, rdb, opts...)
		lease := locktest.MustLock(t, k.Rival(c, "a"), rlock.WithLease(term))
		deadline := lease.Deadline()
		m := locktest.Join(t, b.Client(t), opts...)
		next := k.Enqueue(t, rdb, k.Open(m.Client, "a"))
		id := rdb.ZRange(bg, k.Queue("a"), 0, -1).Val()[0]
		locktest.Eventually(t, "it has looked when it had subscribed", func() bool { return m.Looks.Of(id) >= locktest.LooksBeforeSleep })
		clock.Rest(t)
		clock.Forward(term / 2)
		if !next.Waits() {
			t.Fatal("another has the lock before the deadline")
		}
		clock.Rest(t)
		clock.Forward(term / 2)
		got := next.Held()
		if now := clock.Now(); now.Before(deadline) {
			t.Fatalf("another has the lock %v before the deadline", deadline.Sub(now))
		}
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		wantHolders(t, k.Open(c, "a"), 1, 1, 0)
		locktest.MustUnlock(t, got)
	})
}

func TestQueuedHoldsAreRenewed(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		var clock locktest.Clock
		const term = time.Hour
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(term), clock.Option())
		lease := locktest.MustLock(t, k.Open(c, "a"))
		was := lease.Deadline()
		for range 2 {
			clock.Forward(term / 2) // a renewal is due
			locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
			was = lease.Deadline()
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		rdb.Del(bg, k.Base("a")+":ends") // as an eviction would
		clock.Forward(term / 2)
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
	})
}

func TestDeadWaiterDelaysOthersForAWaiterLeaseAtMost(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		const waiterLease = 600 * time.Millisecond
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb, rlock.WithWaiterLease(waiterLease), rlock.WithLongestPoll(locktest.Patient)), "a")
		start := time.Now()
		locktest.PutDeadWaiter(t, rdb, k, l.Name(), locktest.FirstRank, waiterLease)
		lease := locktest.MustLock(t, l)
		// It came while the dead one still counted as alive, and was heard all the time.
		if took := time.Since(start); took < waiterLease-time.Millisecond || took > locktest.Patience {
			t.Fatalf("a dead waiter with a lease of %v was waited for for %v", waiterLease, took)
		}
		locktest.MustUnlock(t, lease)
		if n := rdb.Exists(bg, k.Base(l.Name())+":queue", k.Base(l.Name())+":alive", k.Base(l.Name())).Val(); n != 0 {
			t.Fatalf("%d keys are left", n)
		}
	})
}

// Those who only look must not keep a dead waiter in the queue, although nobody
// else is heard.
func TestDeadWaiterIsGivenOneMoreLeaseOnly(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		const waiterLease = 300 * time.Millisecond
		rdb := b.Client(t)
		l := k.Open(locktest.NewClient(t, rdb, rlock.WithWaiterLease(waiterLease)), "a")
		locktest.PutDeadWaiter(t, rdb, k, l.Name(), locktest.FirstRank, -time.Second) // long dead
		start := time.Now()
		var lease *rlock.Lease
		locktest.Eventually(t, "a visitor gets the lock", func() bool {
			got, err := l.TryLock(bg)
			lease = got
			return err == nil
		})
		if took := time.Since(start); took < waiterLease/2 || took > locktest.Patience {
			t.Fatalf("it took %v", took)
		}
		locktest.MustUnlock(t, lease)

		// What has been silent for longer than anybody bears goes at once.
		locktest.PutDeadWaiter(t, rdb, k, l.Name(), locktest.FirstRank, -2*time.Minute)
		lease, err := l.TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// The sign of life of a waiter can be lost by an eviction only. It must not block
// the queue, which others keep alive.
func TestWaiterWithoutASignOfLifeIsSkipped(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		locktest.PutDeadWaiter(t, rdb, k, "a", locktest.FirstRank, time.Hour)
		rdb.Del(bg, k.Base("a")+":alive")
		lease, err := k.Open(locktest.NewClient(t, rdb), "a").TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

// Nor does it cost a waiter its place that is alive and looks before others do.
func TestWaiterWithoutASignOfLifeKeepsItsPlace(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		var clock locktest.Clock // not that of Redis: nobody else finds it late
		const waiterLease = time.Hour
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(waiterLease), rlock.WithWatchdogLease(rlock.MaxLease), clock.Option())
		lease := locktest.MustLock(t, k.Rival(c, "a"))
		e := k.Enqueue(t, rdb, k.Open(c, "a"))
		was := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val()
		rdb.Del(bg, k.Base("a")+":alive")
		clock.Rest(t)
		clock.Forward(waiterLease / 3)
		locktest.Eventually(t, "it has looked", func() bool { return rdb.Exists(bg, k.Base("a")+":alive").Val() == 1 })
		if is := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val(); !slices.Equal(is, was) {
			t.Errorf("the queue is %v, and was %v", is, was)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, e.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

// The server was away for longer than a waiter lease: all waiters are silent, and
// whoever comes first must not take the places of the others away.
func TestWaitersKeepTheirOrderOverAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.StartClocked(t, 1)[0]
	b := locktest.At(server.Server)
	eachTypeOn(t, b, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		// Redis alone knows of the time that passes: whoever is late, the machine does not make it so.
		const waiterLease = time.Hour
		server.SetClock(0)
		rdb := b.Client(t)
		holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"), rlock.WithLease(rlock.MaxLease))
		var entries []*locktest.Attempt
		for range 3 {
			c := b.NewClient(t, rlock.WithWaiterLease(waiterLease), rlock.WithLongestPoll(50*time.Millisecond)) // they look by themselves
			entries = append(entries, k.Enqueue(t, rdb, k.Open(c, "a")))
		}
		before := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val()
		b.Real.Pause()
		server.SetClock(waiterLease + time.Second)
		b.Real.Resume()
		locktest.Eventually(t, "all are heard again", func() bool {
			now := locktest.ServerNow(rdb)
			for _, z := range rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, -1).Val() {
				if z.Score <= now {
					return false
				}
			}
			return true
		})
		if after := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, -1).Val(); !slices.Equal(before, after) {
			t.Fatalf("the queue was %v and is %v", before, after)
		}
		locktest.MustUnlock(t, holder)
		for _, e := range entries {
			locktest.MustUnlock(t, e.Held())
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestQueuedWaitersSurviveARestartWithoutData(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	for _, k := range locktest.QueuedTypes {
		t.Run(k.Name, func(t *testing.T) {
			rdb := b.Client(t)
			holder := locktest.MustLock(t, k.Rival(b.NewClient(t), "a"), rlock.WithLease(time.Hour))
			var entries []*locktest.Attempt
			for range 3 {
				entries = append(entries, k.Enqueue(t, rdb, k.Open(b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)), "a")))
			}
			b.Real.Kill()
			b.Real.Restart() // empty: the lock is free, and nobody says so
			var wg sync.WaitGroup
			for _, e := range entries {
				wg.Go(func() {
					<-e.Done
					if e.Err != nil {
						t.Error(e.Err)
					} else if err := e.Lease.Unlock(bg); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			locktest.WantErr(t, holder.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			locktest.OnlyTombstones(t, b.Client(t))
		})
	}
}

func TestQueuedWaitersPollIfAllMessagesAreLost(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		const waiterLease = 600 * time.Millisecond
		c, proxy, rdb := faulty(t, b, k, rlock.WithWaiterLease(waiterLease))
		proxy.DropMessages(true)
		holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"))
		e := k.Enqueue(t, rdb, k.Open(c, "a"))
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, e.Held()) // the longest poll is an hour
	})
}

func TestQueuedLockAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	eachTypeOn(t, b, func(t *testing.T, b *locktest.Backend, k locktest.QueuedType) {
		rdb := b.Client(t)
		defer rdb.ConfigSet(bg, "maxmemory", "0")
		// A waiter whose sign of life had run out could not come back.
		const leases = time.Hour
		var clock locktest.Clock
		opts := []rlock.Option{rlock.WithWatchdogLease(leases), rlock.WithWaiterLease(leases), clock.Option()}
		// Not of one client, whose release would let the next one in: that takes no memory.
		c, holder := locktest.NewClient(t, rdb, opts...), locktest.NewClient(t, rdb, opts...)
		l := k.Rival(holder, "a")
		outer := locktest.MustLock(t, l)
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		inLine := k.Enqueue(t, rdb, k.Open(c, "a"))
		leaves := k.Enqueue(t, rdb, k.Open(c, "a"))
		rdb.ConfigSet(bg, "maxmemory", "1")
		if err := rdb.Set(bg, "x", "y", 0).Err(); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatal("the server is not at its limit:", err)
		}
		oom := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Fatal(what, err)
			}
		}
		before := fmt.Sprint(locktest.Keys(t, rdb))
		_, err := l.Lock(outer.Context(bg))
		oom("a re-entry at the memory limit:", err)
		_, err = k.Open(c, "free").Lock(bg)
		oom("an acquire at the memory limit:", err)
		_, err = k.Open(c, "a").Lock(bg, rlock.WithWait(time.Minute)) // it does not wait
		oom("a place in the queue at the memory limit:", err)
		for _, key := range locktest.Keys(t, rdb) {
			if !strings.Contains(before, key) && !strings.Contains(key, ":rlock:gone:") {
				t.Fatalf("%q has come into being", key)
			}
		}
		signs := rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, -1).Val()
		if len(signs) != 2 {
			t.Fatal("not two waiters:", signs)
		}
		was, last := outer.Deadline(), signs[1].Score
		clock.Forward(leases / 2)
		locktest.Eventually(t, "it is renewed all the same", func() bool { return outer.Deadline().After(was.Add(leases/4)) || outer.Err() != nil })
		if err := outer.Err(); err != nil {
			t.Fatal(err)
		}
		locktest.Eventually(t, "the waiters live on", func() bool {
			now := rdb.ZRangeWithScores(bg, k.Base("a")+":alive", 0, -1).Val()
			return len(now) == 2 && now[0].Score > last
		})
		leaves.Cancel()
		locktest.Eventually(t, "a waiter leaves", func() bool { return locktest.MustState(t, l).Waiters == 1 })
		locktest.MustUnlock(t, inner)
		wantHolders(t, l, 1, 1, 1)
		locktest.MustUnlock(t, outer)
		<-inLine.Done
		oom("an entry from the queue at the memory limit:", inLine.Err)
		locktest.Eventually(t, "nothing but tombstones is left", func() bool {
			keys := locktest.Keys(t, rdb)
			return locktest.Tombstones(keys) == len(keys)
		})
	})
}

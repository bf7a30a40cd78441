package queues

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Ten dead waiters cost one waiter lease together, not ten.
func TestFairDeadWaitersAreRemovedTogether(t *testing.T) {
	t.Parallel()
	locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) {
		rdb := b.Client(t)
		const term = 3 * time.Hour
		m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(term), rlock.WithLongestPoll(rlock.MaxLease), clock.Option())
		for i := range 10 {
			locktest.PutFairWaiter(t, rdb, "a", fmt.Sprint("dead:", i), term, rlock.MaxLease+time.Duration(i)*term)
		}
		w := locktest.MustLineUp(t, rdb, m.NewFairLock("a"))
		m.Parked(t, "a", 3) // the second joins the line, the third comes when it has subscribed
		for i := range 2 {
			clock.Rest(t)
			clock.Forward(term / 3)
			m.Parked(t, "a", 4+i)
		}
		if !w.Waits() {
			t.Fatal("it did not wait for those who count as alive")
		}
		clock.Rest(t)
		clock.Forward(term / 3)
		lease := w.Wait(t)
		// Three as it came, one for each third of the lease, and one to spare.
		if n := m.Looks.At("a"); n > 3+3+1 {
			t.Errorf("%d looks", n)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustBeEmpty(t, rdb)
	})
}

// While another is the head of a free lock, a waiter looks each third of its
// waiter lease, and no more often.
func TestFairWaiterDoesNotSpinOnAFreeLock(t *testing.T) {
	t.Parallel()
	locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) {
		rdb := b.Client(t)
		k := locktest.FairKeysOf("a")
		const term = 3 * time.Hour
		m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(term), rlock.WithLongestPoll(rlock.MaxLease), clock.Option())
		// Redisson's, dead, for some time to come.
		rdb.RPush(bg, k.Queue, redistest.HoldID("java:1"))
		rdb.ZAdd(bg, k.Deadlines, redis.Z{Score: locktest.ServerNow(rdb) + float64((term * 7 / 6).Milliseconds()), Member: redistest.HoldID("java:1")})
		w := locktest.MustLineUp(t, rdb, m.NewFairLock("a"))
		m.Parked(t, "a", 3) // the second joins the line, the third comes when it has subscribed
		for i := range 3 {
			clock.Rest(t)
			clock.Forward(term / 3)
			m.Parked(t, "a", 4+i)
		}
		if !w.Waits() {
			t.Fatal("it did not wait for the deadline of the head")
		}
		clock.Rest(t)
		clock.Forward(term / 3)
		lease := w.Wait(t)
		if n := m.Looks.At("a"); n > 3+4+1 {
			t.Errorf("%d looks", n)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustBeEmpty(t, rdb)
	})
}

// A waiter keeps its place however long it waits: nobody's purge may find it dead.
func TestFairWaiterKeepsItsPlaceFresh(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		const term = 600 * time.Millisecond
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(term))
		lease := locktest.MustLock(t, c.NewFairLock("a"), rlock.WithLease(10*time.Minute))
		w := locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
		v := locktest.FairState(rdb, "a")
		signs, seen := 0, v.Alive[w.ID]
		residual := v.Deadlines[w.ID] - (seen - float64(term.Milliseconds()))
		start := time.Now()
		locktest.Eventually(t, "it has given twelve signs of life", func() bool {
			v := locktest.FairState(rdb, "a")
			if len(v.Queue) != 1 || len(v.Deadlines) != 1 || len(v.Alive) != 1 {
				t.Fatalf("%+v", v)
			}
			if v.Alive[w.ID] != seen {
				seen = v.Alive[w.ID]
				signs++
				if got := v.Deadlines[w.ID] - (seen - float64(term.Milliseconds())); got != residual {
					t.Fatalf("%v ms were left to its deadline, now %v", residual, got)
				}
			}
			return signs >= 12
		})
		// The first is the look after its subscription was confirmed.
		if took := time.Since(start); took < 9*term/3 {
			t.Errorf("twelve signs of life in %v, the waiter lease is %v", took, term)
		}
		for _, key := range []string{locktest.FairKeysOf("a").Queue, locktest.FairKeysOf("a").Deadlines, locktest.FairKeysOf("a").Alive, "{a}:rlock:line"} {
			if ttl := rdb.PTTL(bg, key).Val(); ttl < time.Duration(residual)*time.Millisecond+12*time.Hour {
				t.Errorf("%s is kept for %v, the deadline is in %v ms", key, ttl, residual)
			}
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, w.Wait(t))
		locktest.MustBeEmpty(t, rdb)
	})
}

// After an outage of Redis all waiters look dead to the first who comes back. They
// keep their places once; who gives no sign of life then is dead.
func TestFairLineSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		k := locktest.FairKeysOf("a")
		const notes, term = "{a}:rlock:line", time.Hour
		l := locktest.NewClient(t, rdb, rlock.WithWaiterLease(term)).NewFairLock("a")
		look := func(want int) locktest.FairLockState {
			t.Helper()
			if lease, err := l.TryLock(bg); want > 0 && !errors.Is(err, rlock.ErrNotAcquired) || want == 0 && err != nil {
				t.Fatal(lease, err)
			}
			v := locktest.FairState(rdb, "a")
			if len(v.Queue) != want || len(v.Deadlines) != want || len(v.Alive) != want {
				t.Fatalf("%d should stand in line: %+v", want, v)
			}
			return v
		}
		for i := range 4 {
			locktest.PutFairWaiter(t, rdb, "a", redistest.HoldID(fmt.Sprint("cut-off:", i)), -time.Duration(1+i)*time.Second, term)
		}
		// Time passes: the pardon ends.
		over := func() {
			rdb.HSet(bg, notes, "until", int64(locktest.ServerNow(rdb))-1, "pardoned", int64(locktest.ServerNow(rdb))-1000)
		}
		now := locktest.ServerNow(rdb)
		look(4)
		if end, _ := rdb.HGet(bg, notes, "until").Float64(); end-now < float64(term.Milliseconds()) || end-now > float64(2*term.Milliseconds()) {
			t.Errorf("they count as alive for %v ms", end-now)
		}
		// One of them comes back, and keeps its place.
		rdb.ZAdd(bg, k.Alive, redis.Z{Score: now + float64(term.Milliseconds()), Member: redistest.HoldID("cut-off:2")})
		look(4)
		over()
		if v := look(1); v.Queue[0] != redistest.HoldID("cut-off:2") {
			t.Fatalf("%+v", v)
		}
		// Those who give no sign of life are not believed twice.
		locktest.PutFairWaiter(t, rdb, "a", redistest.HoldID("dead:1"), -10*time.Millisecond, term)
		rdb.ZAdd(bg, k.Alive, redis.Z{Score: locktest.ServerNow(rdb) - 10, Member: redistest.HoldID("cut-off:2")})
		look(2)
		rdb.HSet(bg, notes, "until", int64(locktest.ServerNow(rdb))-1)
		look(0)
		rdb.Del(bg, "a")
		// Nobody was heard of for very long: no outage takes that long.
		locktest.PutFairWaiter(t, rdb, "a", redistest.HoldID("old:1"), -61*time.Second, term)
		look(0)
	})
}

// A waiter that finds itself gone from the queue waits at its end.
func TestFairWaiterThatWasRemovedWaitsAtTheEnd(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		// They look each third of their waiter lease, by this clock; by that of Redis nobody is late.
		var clock locktest.Clock
		const term = 3 * time.Hour
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(term), rlock.WithWatchdogLease(rlock.MaxLease), rlock.WithLongestPoll(rlock.MaxLease), clock.Option())
		k := locktest.FairKeysOf("a")
		for what, remove := range map[string]func(id string){
			"from all": func(id string) {
				rdb.LRem(bg, k.Queue, 0, id)
				rdb.ZRem(bg, k.Deadlines, id)
				rdb.ZRem(bg, k.Alive, id)
			},
			"from the queue": func(id string) { rdb.LRem(bg, k.Queue, 0, id) },
		} {
			lease := locktest.MustLock(t, c.NewFairLock("a"))
			w, other := locktest.MustLineUp(t, rdb, c.NewFairLock("a")), locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
			remove(w.ID)
			clock.Rest(t)
			clock.Forward(term / 3)
			locktest.Eventually(t, what+": it stands at the end", func() bool {
				v := locktest.FairState(rdb, "a")
				return slices.Equal(v.Queue, []string{other.ID, w.ID}) && len(v.Deadlines) == 2 && len(v.Alive) == 2
			})
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, other.Wait(t))
			locktest.MustUnlock(t, w.Wait(t))
		}
		// The deadlines or the signs of life alone are put back.
		lease := locktest.MustLock(t, c.NewFairLock("a"))
		w, other := locktest.MustLineUp(t, rdb, c.NewFairLock("a")), locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
		for _, key := range []string{k.Deadlines, k.Alive} {
			rdb.Del(bg, key)
			clock.Rest(t)
			clock.Forward(term / 3)
			locktest.Eventually(t, key+" is as it was", func() bool {
				v := locktest.FairState(rdb, "a")
				return slices.Equal(v.Queue, []string{w.ID, other.ID}) && len(v.Deadlines) == 2 && len(v.Alive) == 2
			})
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, w.Wait(t))
		locktest.MustUnlock(t, other.Wait(t))
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestFairLineSurvivesLossOfAllData(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	c := locktest.NewClient(t, b.Client(t), rlock.WithWaiterLease(2*time.Second))
	lease := locktest.MustLock(t, c.NewFairLock("a"))
	turns := map[string]*locktest.FairWaiter{}
	for range 5 {
		w := locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
		turns[w.ID] = w
	}
	b.Real.Kill()
	b.Real.Restart()
	// All are served, one at a time; in which order they came back is not said.
	last := lease.Token()
	for len(turns) > 0 {
		var now *locktest.FairWaiter
		locktest.Eventually(t, "one has the lock", func() bool {
			for _, w := range turns {
				if !w.Waits() {
					now = w
				}
			}
			return now != nil
		})
		next := now.Wait(t)
		if next.Token() <= last {
			t.Fatalf("token %d after %d", next.Token(), last)
		}
		last = next.Token()
		delete(turns, now.ID)
		for _, w := range turns {
			if !w.Waits() && next.Err() == nil {
				t.Fatalf("two have the lock: %v and %v", w.ID, now.ID)
			}
		}
		locktest.MustUnlock(t, next)
	}
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	locktest.OnlyTombstones(t, rdb)
}

func TestFairLockAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	// A waiter whose sign of life had run out could not come back.
	const term = 3 * time.Hour
	var clock locktest.Clock
	m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(term), rlock.WithWatchdogLease(rlock.MaxLease), rlock.WithLongestPoll(rlock.MaxLease), clock.Option())
	l := m.NewFairLock("a")
	outer := locktest.MustLock(t, l)
	inner := locktest.MustLockCtx(t, outer.Context(bg), l)
	lives, leaves := locktest.MustLineUp(t, rdb, l), locktest.MustLineUp(t, rdb, l)
	rdb.ConfigSet(bg, "maxmemory", "1")
	oom := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatalf("%s at the memory limit: %v", what, err)
		}
	}
	_, err := l.Lock(bg)
	oom("a newcomer", err)
	_, err = m.NewFairLock("b").TryLock(bg)
	oom("TryLock", err)
	if v := locktest.FairState(rdb, "a"); len(v.Queue) != 2 || len(v.Deadlines) != 2 || len(v.Alive) != 2 {
		t.Fatalf("%+v", v)
	}
	// Who stands in line goes on, and may leave it.
	sign := locktest.FairState(rdb, "a").Alive[lives.ID]
	clock.Rest(t)
	clock.Forward(term / 3)
	locktest.Eventually(t, "it gives a sign of life", func() bool { return locktest.FairState(rdb, "a").Alive[lives.ID] > sign })
	leaves.Cancel()
	leaves.Left(t)
	locktest.Eventually(t, "it has left", func() bool { return len(locktest.FairState(rdb, "a").Queue) == 1 })
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, outer)
	locktest.MustUnlock(t, lives.Wait(t))
	locktest.OnlyTombstones(t, rdb)
}

// The head of the line must know when a short lease ends, although it has looked
// for the last time when another was before it.
func TestFairNewHeadLearnsOfAShortLease(t *testing.T) {
	t.Parallel()
	locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) {
		rdb := b.Client(t)
		const short = time.Hour // a sixth of the time after which a waiter looks by itself
		m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(18*short), rlock.WithLongestPoll(rlock.MaxLease), clock.Option())
		lease := locktest.MustLock(t, m.NewFairLock("a"), rlock.WithLease(rlock.MaxLease))
		first := locktest.Parked(t, rdb, m, "a", rlock.WithLease(short))
		second := locktest.Parked(t, rdb, m, "a")
		looks := m.Looks.Of(second.ID)
		locktest.MustUnlock(t, lease)
		first.Wait(t) // and dies: its lease runs out, and nobody is told
		locktest.Eventually(t, "the new head has looked", func() bool { return m.Looks.Of(second.ID) > looks })
		if !second.Waits() {
			t.Fatal("it has the lock beside the first")
		}
		clock.Rest(t)
		clock.Forward(short)
		locktest.MustUnlock(t, second.Wait(t))
		_ = first.Lease.Unlock(bg)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestFairHeadThatLeavesAFreeLockWakesTheNext(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		k := locktest.FairKeysOf("a")
		// Nobody looks by himself: what happens is done by messages.
		m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(locktest.Patient))
		lease := locktest.MustLock(t, m.NewFairLock("a"))
		head := locktest.Parked(t, rdb, m, "a")
		next := locktest.Parked(t, rdb, m, "a")
		rdb.Del(bg, k.Lock) // as if it had run out: nobody is told
		start := time.Now()
		head.Cancel()
		head.Left(t)
		locktest.MustUnlock(t, next.Wait(t))
		if took := time.Since(start); took > locktest.ByMessage {
			t.Fatalf("the next was woken after %v", took)
		}
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
		locktest.OnlyTombstones(t, rdb)
	})
}

package queues

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// eachLine runs a scenario for each of them.
func eachLine(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, k locktest.OrderedType)) {
	t.Helper()
	t.Parallel()
	for _, k := range locktest.OrderedTypes() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) { scenario(t, b, k) })
		})
	}
}

// The lock is free, but the one whose turn it is has not come yet. A newcomer
// stands behind it.
func TestNewcomerDoesNotOvertakeTheLineAtAFreeLock(t *testing.T) {
	eachLine(t, func(t *testing.T, b *locktest.Backend, k locktest.OrderedType) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		k.Put(t, rdb, "a", redistest.HoldID("next:1"), time.Hour)
		e, id := k.Enqueue(t, rdb, k.Open(c, "a"))
		if _, err := k.Open(c, "a").TryLock(bg); err == nil {
			t.Fatal("a visitor has the lock")
		}
		if s := locktest.MustState(t, k.Open(c, "a")); !e.Waits() || s.Locked() {
			t.Fatalf("a newcomer has overtaken a waiter that lives: %+v", s)
		}
		if line := k.Line(rdb, "a"); !slices.Equal(line, []string{redistest.HoldID("next:1"), id}) {
			t.Fatalf("the line is %q", line)
		}
		// When the first has left it is the newcomer's turn.
		k.Dies(t, rdb, "a", redistest.HoldID("next:1"))
		k.Visit(c, "a")
		locktest.MustUnlock(t, e.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

// One script does not remove all of the dead if they are many. Nobody enters before a waiter
// that lives and stands behind those that remain.
func TestNobodyOvertakesAWaiterBehindManyDead(t *testing.T) {
	eachLine(t, func(t *testing.T, b *locktest.Backend, k locktest.OrderedType) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		for i := range 250 {
			k.Put(t, rdb, "a", fmt.Sprint("dead:", i), time.Hour)
		}
		k.Put(t, rdb, "a", redistest.HoldID("next:1"), time.Hour)
		for i := range 250 {
			k.Dies(t, rdb, "a", fmt.Sprint("dead:", i))
		}
		for range 5 {
			if _, err := k.Open(c, "a").TryLock(bg); err == nil {
				t.Fatalf("a visitor has the lock, before %d", len(k.Line(rdb, "a")))
			}
		}
		if line := k.Line(rdb, "a"); !slices.Equal(line, []string{redistest.HoldID("next:1")}) {
			t.Fatalf("the line is %q", line)
		}
		k.Dies(t, rdb, "a", redistest.HoldID("next:1"))
		locktest.MustUnlock(t, locktest.MustLock(t, k.Open(c, "a")))
		locktest.OnlyTombstones(t, rdb)
	})
}

// A waiter whose turn does not come keeps its place by looking, however long the
// longest poll is and whoever else is there.
func TestLiveWaiterKeepsItsPlaceDespiteACompetitor(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.OrderedTypes() {
		locktest.Beside(t, k.Name, func(t *testing.T) {
			locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) {
				rdb := b.Client(t)
				const term = time.Hour
				c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(term), rlock.WithLongestPoll(rlock.MaxLease), clock.Option())
				holder := locktest.MustLock(t, k.Rival(c, "a"), rlock.WithLease(rlock.MaxLease))
				e, id := k.Enqueue(t, rdb, k.Open(c, "a"))
				// It is not silent together with all others: the one behind it lives.
				k.Put(t, rdb, "a", redistest.HoldID("behind:1"), rlock.MaxLease)
				for range 9 { // three waiter leases
					sign := k.Sign(rdb, "a", id)
					clock.Rest(t)
					clock.Forward(term / 3)
					locktest.Eventually(t, "it gives a sign of life", func() bool { return k.Sign(rdb, "a", id).After(sign) })
					if _, err := k.Open(c, "a").TryLock(bg); err == nil {
						t.Fatal("a visitor has the lock")
					}
					if line := k.Line(rdb, "a"); !slices.Equal(line, []string{id, redistest.HoldID("behind:1")}) {
						t.Fatalf("a waiter that lives has lost its place: %q", line)
					}
				}
				locktest.MustUnlock(t, holder)
				locktest.MustUnlock(t, e.Held())
				k.Dies(t, rdb, "a", redistest.HoldID("behind:1"))
				k.Visit(c, "a")
				locktest.OnlyTombstones(t, rdb)
			})
		})
	}
}

// Clients have waiter leases of their own. One with a short lease that comes into the line does not
// shorten the time for which Redis knows that another, which looks seldom, is alive.
func TestSignsOfLifeLastAsLongAsTheLongestWaiterLease(t *testing.T) {
	eachLine(t, func(t *testing.T, b *locktest.Backend, k locktest.OrderedType) {
		rdb := b.Client(t)
		seldom := locktest.NewClient(t, rdb, rlock.WithWaiterLease(3*time.Hour), rlock.WithLongestPoll(locktest.Patient))
		often := locktest.NewClient(t, rdb, rlock.WithWaiterLease(time.Minute), rlock.WithLongestPoll(locktest.Patient))
		holder := locktest.MustLock(t, k.Rival(seldom, "a"), rlock.WithLease(time.Hour))
		first, _ := k.Enqueue(t, rdb, k.Open(seldom, "a"))
		second, _ := k.Enqueue(t, rdb, k.Open(often, "a"))
		base := "{a}:rlock:" + k.Signs
		notes := strings.TrimSuffix(base, ":alive") + ":line"
		if k.Name == "fair" {
			notes = "{a}:rlock:line"
		}
		last := func() {
			t.Helper()
			for _, key := range []string{base, notes} {
				if ttl := rdb.PTTL(bg, key).Val(); ttl < 2*time.Hour {
					t.Errorf("the TTL of %s is %v", key, ttl)
				}
			}
		}
		last()
		// As if Redis had evicted them.
		rdb.Del(bg, base)
		third, _ := k.Enqueue(t, rdb, k.Open(often, "a"))
		last()
		for _, e := range []*locktest.Attempt{first, second} {
			locktest.WantErr(t, e.GiveUp(), context.Canceled)
		}
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, third.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

// After an outage the silent keep their places for one waiter lease: theirs, not
// that of whoever happens to look first.
func TestVisitorRevivesTheSilentForTheirOwnWaiterLeaseOnly(t *testing.T) {
	eachLine(t, func(t *testing.T, b *locktest.Backend, k locktest.OrderedType) {
		const term = 300 * time.Millisecond
		c, proxy, rdb := b.Faulty(t, rlock.WithWaiterLease(term))
		visitor := locktest.NewClient(t, rdb, rlock.WithWaiterLease(time.Hour))
		holder := locktest.MustLock(t, k.Rival(visitor, "a"))
		_, id := k.Enqueue(t, rdb, k.Open(c, "a"))
		proxy.Refuse(true) // its process has died, as far as Redis can see
		locktest.Eventually(t, "it is silent", func() bool {
			return k.Sign(rdb, "a", id).Before(rdb.Time(bg).Val())
		})
		locktest.MustUnlock(t, holder)
		locktest.Eventually(t, "it is removed", func() bool {
			k.Visit(visitor, "a")
			return len(k.Line(rdb, "a")) == 0
		})
		proxy.Refuse(false)
	})
}

// A PriorityLock or FairReadWriteLock has keys of its own, so another type of lock
// of its name does not exclude it. It must not be taken beside one.
func TestTypesWithAQueueOfTheirOwnRefuseANameThatAnotherTypeHolds(t *testing.T) {
	eachLine(t, func(t *testing.T, b *locktest.Backend, k locktest.OrderedType) {
		if k.Name == "fair" {
			return // it has the hash of a Lock
		}
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		others := []rlock.Locker{c.NewLock("a"), c.NewFairLock("a"), c.NewReadWriteLock("a").Reader, c.NewPriorityLock("a"), c.NewFairReadWriteLock("a").Reader}
		l := k.Open(c, "a")
		for i, other := range others {
			if k.Name == "priority" && i == 3 || k.Name != "priority" && i == 4 {
				continue
			}
			lease := locktest.MustLock(t, other)
			for range 2 {
				_, err := l.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrForeignKey)
				_, err = l.Lock(bg)
				locktest.WantErr(t, err, rlock.ErrForeignKey)
			}
			locktest.MustUnlock(t, lease)
			mine := locktest.MustLock(t, l)
			if k.Name != "priority" && k.Name != "read" {
				locktest.MustUnlock(t, locktest.MustLockCtx(t, mine.Context(bg), c.NewFairReadWriteLock("a").Reader))
			}
			locktest.MustUnlock(t, mine)
			locktest.OnlyTombstones(t, rdb)
		}
		// Who waits is told when it looks next.
		holder := locktest.MustLock(t, k.Rival(c, "a"))
		e, _ := k.Enqueue(t, rdb, l)
		lease := locktest.MustLock(t, c.NewLock("a"))
		locktest.MustUnlock(t, holder)
		<-e.Done
		locktest.WantErr(t, e.Err, rlock.ErrForeignKey)
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

// One script removes a hundred of the dead at most, and tells some of those who can
// enter together. The rest is done by the looks that follow, without a timer.
func TestManyDeadAndManyReadersNeedNoTimer(t *testing.T) {
	eachLine(t, func(t *testing.T, b *locktest.Backend, k locktest.OrderedType) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(locktest.Patient), rlock.WithLongestPoll(locktest.Patient))
		holder := locktest.MustLock(t, k.Rival(c, "a"), rlock.WithLease(time.Hour))
		for i := range 250 {
			id := fmt.Sprint("dead:", i)
			k.Put(t, rdb, "a", id, time.Hour)
		}
		var all []*locktest.Attempt
		for range 80 {
			e, _ := k.Enqueue(t, rdb, k.Open(c, "a"))
			all = append(all, e)
		}
		channels := 1 // of the client
		if k.Name == "fair" {
			channels = len(all)
		}
		locktest.Eventually(t, "all have subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*{a}*").Val()) >= channels })
		for i := range 250 {
			k.Dies(t, rdb, "a", fmt.Sprint("dead:", i))
		}
		locktest.MustUnlock(t, holder)
		for _, e := range all {
			lease := e.Held()
			locktest.MustUnlock(t, lease)
		}
		if line := k.Line(rdb, "a"); len(line) > 0 {
			t.Errorf("%d are left in the line", len(line))
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

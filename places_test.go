package rlock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// What every type promises that keeps its waiters in Redis: who came first goes
// first, and who lives keeps its place.

// placeKind is one of these types, and where its waiters stand.
type placeKind struct {
	name  string
	open  func(c *rlock.Client, name string) queuedLocker
	rival func(c *rlock.Client, name string) queuedLocker // keeps open out while it is held
	line  func(rdb redis.UniversalClient, name string) []string
	signs string // the suffix of the zset with the signs of life
	// put adds a waiter of another process, before whom nobody of open may enter.
	put func(t testing.TB, rdb redis.UniversalClient, name, stay string, alive time.Duration)
}

func placeKinds() (kinds []placeKind) {
	fair := func(c *rlock.Client, name string) queuedLocker { return c.NewFairLock(name) }
	kinds = append(kinds, placeKind{
		name: "fair", open: fair, rival: fair, signs: "waiters",
		line: func(rdb redis.UniversalClient, name string) []string { return fairLook(rdb, name).queue },
		put: func(t testing.TB, rdb redis.UniversalClient, name, stay string, alive time.Duration) {
			fairPut(t, rdb, name, stay, alive, alive)
		},
	})
	for _, k := range queuedKinds {
		// Ranks grow with time, so whoever is put first has one before all others, and
		// who is put later one behind all that have come.
		var rank float64 = queuedFirst
		kinds = append(kinds, placeKind{
			name: k.name, rival: k.rival, signs: k.what + ":alive",
			open: func(c *rlock.Client, name string) queuedLocker { return k.open(c, name) },
			line: func(rdb redis.UniversalClient, name string) (line []string) {
				all := rdb.ZRangeWithScores(bg, k.base(name)+":queue", 0, -1).Val()
				all = append(all, rdb.ZRangeWithScores(bg, k.base(name)+":queue:shared", 0, -1).Val()...)
				slices.SortFunc(all, func(a, b redis.Z) int { return int(a.Score - b.Score) })
				for _, z := range all {
					line = append(line, z.Member.(string))
				}
				return line
			},
			put: func(t testing.TB, rdb redis.UniversalClient, name, stay string, alive time.Duration) {
				rank := rank
				if last := rdb.ZRevRangeWithScores(bg, k.queue(name), 0, 0).Val(); len(last) > 0 {
					rank = last[0].Score + 1
				}
				until := float64(rdb.Time(bg).Val().Add(alive).UnixMilli())
				if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
					p.ZAdd(bg, k.base(name)+":queue", redis.Z{Score: rank, Member: stay})
					p.ZAdd(bg, k.base(name)+":alive", redis.Z{Score: until, Member: stay})
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			},
		})
	}
	return kinds
}

func (k placeKind) sign(rdb redis.UniversalClient, name, stay string) time.Time {
	return time.UnixMilli(int64(rdb.ZScore(bg, "{"+name+"}:rlock:"+k.signs, stay).Val()))
}

// eachPlaced runs a scenario for each of them.
func eachPlaced(t *testing.T, scenario func(t *testing.T, b *backend, k placeKind)) {
	t.Helper()
	t.Parallel()
	for _, k := range placeKinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			eachRedis(t, func(t *testing.T, b *backend) { scenario(t, b, k) })
		})
	}
}

// enqueue begins a Lock call and returns when it stands in the line as the last.
func (k placeKind) enqueue(t testing.TB, rdb redis.UniversalClient, l queuedLocker, opts ...rlock.AcquireOption) (e *queuedEntry, stay string) {
	t.Helper()
	before := k.line(rdb, l.Name())
	e = queuedLock(t, bg, l, opts...)
	eventually(t, "it stands in the line", func() bool {
		for _, s := range k.line(rdb, l.Name()) {
			if !slices.Contains(before, s) {
				stay = s
			}
		}
		if !e.waits() && stay == "" {
			t.Fatalf("it has not had to wait: %v, %v", e.lease, e.err)
		}
		return stay != ""
	})
	return e, stay
}

// The lock is free, but the one whose turn it is has not come yet. A newcomer
// stands behind it.
func TestNewcomerDoesNotOvertakeTheLineAtAFreeLock(t *testing.T) {
	eachPlaced(t, func(t *testing.T, b *backend, k placeKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		k.put(t, rdb, "a", "next:1", time.Hour)
		e, stay := k.enqueue(t, rdb, k.open(c, "a"))
		if _, err := k.open(c, "a").TryLock(bg); err == nil {
			t.Fatal("a visitor has the lock")
		}
		if s := queuedState(t, k.open(c, "a")); !e.waits() || s.Locked() {
			t.Fatalf("a newcomer has overtaken a waiter that lives: %+v", s)
		}
		if line := k.line(rdb, "a"); !slices.Equal(line, []string{"next:1", stay}) {
			t.Fatalf("the line is %q", line)
		}
		// When the first has left it is the newcomer's turn.
		k.dies(t, rdb, "a", "next:1")
		k.visit(c, "a")
		mustUnlock(t, e.held())
		onlyTombstones(t, rdb)
	})
}

// visit looks at the lock, which is what removes the dead.
func (k placeKind) visit(c *rlock.Client, name string) {
	if lease, err := k.open(c, name).TryLock(bg); err == nil {
		_ = lease.Unlock(bg)
	}
}

// dies lets the sign of life of a waiter run out, long ago.
func (k placeKind) dies(t testing.TB, rdb redis.UniversalClient, name, stay string) {
	t.Helper()
	if err := rdb.ZAddXX(bg, "{"+name+"}:rlock:"+k.signs, redis.Z{Score: 1, Member: stay}).Err(); err != nil {
		t.Fatal(err)
	}
}

// A waiter whose turn does not come keeps its place by looking, however long the
// longest poll is and whoever else is there.
func TestWaiterThatLivesKeepsItsPlaceBesideACompetitor(t *testing.T) {
	eachPlaced(t, func(t *testing.T, b *backend, k placeKind) {
		const term = 600 * time.Millisecond
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWaiterLease(term), rlock.WithLongestPoll(patient))
		holder := mustLock(t, k.rival(c, "a"), rlock.WithLease(time.Hour))
		e, stay := k.enqueue(t, rdb, k.open(c, "a"))
		// It is not silent together with all others: the one behind it lives.
		k.put(t, rdb, "a", "behind:1", time.Hour)
		first := k.sign(rdb, "a", stay)
		eventually(t, "the waiter has lived for three waiter leases", func() bool {
			if _, err := k.open(c, "a").TryLock(bg); err == nil {
				t.Fatal("a visitor has the lock")
			}
			if line := k.line(rdb, "a"); !slices.Equal(line, []string{stay, "behind:1"}) {
				t.Fatalf("a waiter that lives has lost its place: %q", line)
			}
			return k.sign(rdb, "a", stay).After(first.Add(3 * term))
		})
		mustUnlock(t, holder)
		mustUnlock(t, e.held())
		k.dies(t, rdb, "a", "behind:1")
		k.visit(c, "a")
		onlyTombstones(t, rdb)
	})
}

// After an outage the silent keep their places for one waiter lease: theirs, not
// that of whoever happens to look first.
func TestVisitorRevivesTheSilentForTheirOwnWaiterLeaseOnly(t *testing.T) {
	eachPlaced(t, func(t *testing.T, b *backend, k placeKind) {
		const term = 300 * time.Millisecond
		c, proxy, rdb := b.faulty(t, rlock.WithWaiterLease(term), rlock.WithCommandTimeout(time.Second))
		visitor := newClientOn(t, rdb, rlock.WithWaiterLease(time.Hour))
		holder := mustLock(t, k.rival(visitor, "a"))
		_, stay := k.enqueue(t, rdb, k.open(c, "a"))
		proxy.Refuse(true) // its process has died, as far as Redis can see
		eventually(t, "it is silent", func() bool {
			return k.sign(rdb, "a", stay).Before(rdb.Time(bg).Val())
		})
		mustUnlock(t, holder)
		eventually(t, "it is removed", func() bool {
			k.visit(visitor, "a")
			return len(k.line(rdb, "a")) == 0
		})
		proxy.Refuse(false)
	})
}

// A PriorityLock or FairReadWriteLock has keys of its own, so another type of lock
// of its name does not exclude it. It must not be taken beside one.
func TestTypesWithAQueueOfTheirOwnRefuseANameThatAnotherTypeHolds(t *testing.T) {
	eachPlaced(t, func(t *testing.T, b *backend, k placeKind) {
		if k.name == "fair" {
			return // it has the hash of a Lock
		}
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		others := []rlock.Locker{c.NewLock("a"), c.NewFairLock("a"), c.NewReadWriteLock("a").Reader, c.NewPriorityLock("a"), c.NewFairReadWriteLock("a").Reader}
		l := k.open(c, "a")
		for i, other := range others {
			if k.name == "priority" && i == 3 || k.name != "priority" && i == 4 {
				continue
			}
			lease := mustLock(t, other)
			for range 2 {
				_, err := l.TryLock(bg)
				wantErr(t, err, rlock.ErrForeignKey)
				_, err = l.Lock(bg)
				wantErr(t, err, rlock.ErrForeignKey)
			}
			mustUnlock(t, lease)
			mine := mustLock(t, l)
			if k.name != "priority" && k.name != "read" {
				mustUnlock(t, mustLockCtx(t, mine.Context(bg), c.NewFairReadWriteLock("a").Reader))
			}
			mustUnlock(t, mine)
			onlyTombstones(t, rdb)
		}
		// Who waits is told when it looks next.
		holder := mustLock(t, k.rival(c, "a"))
		e, _ := k.enqueue(t, rdb, l)
		lease := mustLock(t, c.NewLock("a"))
		mustUnlock(t, holder)
		<-e.done
		wantErr(t, e.err, rlock.ErrForeignKey)
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
	})
}

// One script removes a hundred of the dead at most, and tells some of those who can
// enter together. The rest is done by the looks that follow, without a timer.
func TestManyDeadAndManyReadersNeedNoTimer(t *testing.T) {
	eachPlaced(t, func(t *testing.T, b *backend, k placeKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWaiterLease(patient), rlock.WithLongestPoll(patient))
		holder := mustLock(t, k.rival(c, "a"), rlock.WithLease(time.Hour))
		for i := range 250 {
			stay := fmt.Sprint("dead:", i)
			k.put(t, rdb, "a", stay, time.Hour)
		}
		var all []*queuedEntry
		for range 80 {
			e, _ := k.enqueue(t, rdb, k.open(c, "a"))
			all = append(all, e)
		}
		eventually(t, "all have subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*{a}*").Val()) >= len(all) })
		for i := range 250 {
			k.dies(t, rdb, "a", fmt.Sprint("dead:", i))
		}
		mustUnlock(t, holder)
		for _, e := range all {
			lease := e.held()
			mustUnlock(t, lease)
		}
		if line := k.line(rdb, "a"); len(line) > 0 {
			t.Errorf("%d are left in the line", len(line))
		}
		onlyTombstones(t, rdb)
	})
}

package locktest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// QueuedType is a type of lock, or a side of one, with a queue of our own in Redis.
type QueuedType struct {
	Name   string
	What   string // the word for it in its keys
	Shared bool
	Open   func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock
	// Rival is a lock that this one has to wait for.
	Rival func(c *rlock.Client, name string) AnyLock
}

// Base is how the keys of a lock begin.
func (k QueuedType) Base(name string) string { return "{" + name + "}:rlock:" + k.What }

// Queue is the key with the waiters of this kind.
func (k QueuedType) Queue(name string) string {
	if k.Shared {
		return k.Base(name) + ":queue:shared"
	}
	return k.Base(name) + ":queue"
}

// FairWrite is the writers' side of a FairReadWriteLock.
func FairWrite(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
	return c.NewFairReadWriteLock(name, opts...).Writer
}

// FairRead is the readers' side.
func FairRead(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
	return c.NewFairReadWriteLock(name, opts...).Reader
}

func priority(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
	return c.NewPriorityLock(name, optionsOf[rlock.PriorityLockOption](opts)...)
}

// QueuedTypes are the two sides of a FairReadWriteLock, and the PriorityLock.
var QueuedTypes = []QueuedType{
	{"read", "fairrw", true, FairRead, func(c *rlock.Client, name string) AnyLock { return FairWrite(c, name) }},
	{"write", "fairrw", false, FairWrite, func(c *rlock.Client, name string) AnyLock { return FairRead(c, name) }},
	{"priority", "priority", false, priority, func(c *rlock.Client, name string) AnyLock { return priority(c, name) }},
}

// Enqueue begins a Lock call and waits until it is in the queue in Redis and
// has subscribed to its channel.
func (k QueuedType) Enqueue(t testing.TB, rdb redis.UniversalClient, l rlock.Locker, opts ...rlock.AcquireOption) *Attempt {
	t.Helper()
	before := rdb.ZRange(bg, k.Queue(l.Name()), 0, -1).Val()
	e := Begin(t, bg, l, opts...)
	var id string
	Eventually(t, "it stands in the queue", func() bool {
		for _, s := range rdb.ZRange(bg, k.Queue(l.Name()), 0, -1).Val() {
			if !slices.Contains(before, s) {
				id = s
			}
		}
		return id != ""
	})
	client, _, _ := strings.Cut(id, ":")
	channel := k.Base(l.Name()) + ":turn:" + client
	Eventually(t, "it has subscribed", func() bool {
		return rdb.PubSubNumSub(bg, channel).Val()[channel] == 1
	})
	return e
}

// MustState returns the State.
func MustState(t testing.TB, l interface {
	State(context.Context) (rlock.State, error)
}) rlock.State {
	t.Helper()
	s, err := l.State(bg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// PutDeadWaiter puts a waiter into the queue that no process owns.
func PutDeadWaiter(t testing.TB, rdb redis.UniversalClient, k QueuedType, name string, rank float64, alive time.Duration) {
	t.Helper()
	until := float64(rdb.Time(bg).Val().Add(alive).UnixMilli())
	for key, z := range map[string]redis.Z{
		k.Base(name) + ":queue": {Score: rank, Member: "dead:1"},
		k.Base(name) + ":alive": {Score: until, Member: "dead:1"},
	} {
		if err := rdb.ZAdd(bg, key, z).Err(); err != nil {
			t.Fatal(err)
		}
		rdb.PExpire(bg, key, time.Minute)
	}
}

// FirstRank is a rank before all others.
const FirstRank = -9e15 + 1

// OrderedType is a type that keeps its waiters in Redis in the order in which they came,
// and reads that order.
type OrderedType struct {
	Name  string
	Open  func(c *rlock.Client, name string) AnyLock
	Rival func(c *rlock.Client, name string) AnyLock // keeps Open out while it is held
	// Line are the hold ids of the waiters, the first one first.
	Line  func(rdb redis.UniversalClient, name string) []string
	Signs string // the suffix of the zset with the signs of life
	// Put adds a waiter of another process. No waiter of Open may enter before it.
	Put func(t testing.TB, rdb redis.UniversalClient, name, id string, alive time.Duration)
}

// Sign is until when a waiter counts as alive.
func (k OrderedType) Sign(rdb redis.UniversalClient, name, id string) time.Time {
	return time.UnixMilli(int64(rdb.ZScore(bg, "{"+name+"}:rlock:"+k.Signs, id).Val()))
}

// Enqueue begins a Lock call and returns when it is the last in the line.
func (k OrderedType) Enqueue(t testing.TB, rdb redis.UniversalClient, l AnyLock, opts ...rlock.AcquireOption) (e *Attempt, id string) {
	t.Helper()
	before := k.Line(rdb, l.Name())
	e = Begin(t, bg, l, opts...)
	Eventually(t, "it stands in the line", func() bool {
		for _, s := range k.Line(rdb, l.Name()) {
			if !slices.Contains(before, s) {
				id = s
			}
		}
		if !e.Waits() && id == "" {
			t.Fatalf("it has not had to wait: %v, %v", e.Lease, e.Err)
		}
		return id != ""
	})
	return e, id
}

// Visit looks at the lock, which is what removes the dead.
func (k OrderedType) Visit(c *rlock.Client, name string) {
	if lease, err := k.Open(c, name).TryLock(bg); err == nil {
		_ = lease.Unlock(bg)
	}
}

// Dies lets the sign of life of a waiter run out, long ago.
func (k OrderedType) Dies(t testing.TB, rdb redis.UniversalClient, name, id string) {
	t.Helper()
	if err := rdb.ZAddXX(bg, "{"+name+"}:rlock:"+k.Signs, redis.Z{Score: 1, Member: id}).Err(); err != nil {
		t.Fatal(err)
	}
}

// OrderedTypes are the FairLock and the QueuedTypes.
func OrderedTypes() (kinds []OrderedType) {
	fair := func(c *rlock.Client, name string) AnyLock { return c.NewFairLock(name) }
	kinds = append(kinds, OrderedType{
		Name: "fair", Open: fair, Rival: fair, Signs: "waiters",
		Line: func(rdb redis.UniversalClient, name string) []string { return FairState(rdb, name).Queue },
		Put: func(t testing.TB, rdb redis.UniversalClient, name, id string, alive time.Duration) {
			PutFairWaiter(t, rdb, name, id, alive, alive)
		},
	})
	for _, k := range QueuedTypes {
		// Ranks grow with time, so a waiter that is put first has a rank before all others, and
		// who is put later one behind all that have come.
		var rank float64 = FirstRank
		kinds = append(kinds, OrderedType{
			Name: k.Name, Rival: k.Rival, Signs: k.What + ":alive",
			Open: func(c *rlock.Client, name string) AnyLock { return k.Open(c, name) },
			Line: func(rdb redis.UniversalClient, name string) (line []string) {
				all := rdb.ZRangeWithScores(bg, k.Base(name)+":queue", 0, -1).Val()
				all = append(all, rdb.ZRangeWithScores(bg, k.Base(name)+":queue:shared", 0, -1).Val()...)
				slices.SortFunc(all, func(a, b redis.Z) int { return int(a.Score - b.Score) })
				for _, z := range all {
					line = append(line, z.Member.(string))
				}
				return line
			},
			Put: func(t testing.TB, rdb redis.UniversalClient, name, id string, alive time.Duration) {
				rank := rank
				if last := rdb.ZRevRangeWithScores(bg, k.Queue(name), 0, 0).Val(); len(last) > 0 {
					rank = last[0].Score + 1
				}
				until := float64(rdb.Time(bg).Val().Add(alive).UnixMilli())
				if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
					p.ZAdd(bg, k.Base(name)+":queue", redis.Z{Score: rank, Member: id})
					p.ZAdd(bg, k.Base(name)+":alive", redis.Z{Score: until, Member: id})
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			},
		})
	}
	return kinds
}

package locktest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// What holds for the locks with a queue of their own whatever they are: faults,
// expiry, dead waiters, leftovers.

type Queued struct {
	Name   string
	What   string
	Shared bool
	Open   func(c *rlock.Client, name string, opts ...rlock.LockOption) AnyLock
	// rival is a lock that this one has to wait for.
	Rival func(c *rlock.Client, name string) AnyLock
}

func (k Queued) Base(name string) string { return "{" + name + "}:rlock:" + k.What }

func (k Queued) Queue(name string) string {
	if k.Shared {
		return k.Base(name) + ":queue:shared"
	}
	return k.Base(name) + ":queue"
}

func FairWrite(c *rlock.Client, name string, opts ...rlock.LockOption) AnyLock {
	return c.NewFairReadWriteLock(name, opts...).Writer
}

func FairRead(c *rlock.Client, name string, opts ...rlock.LockOption) AnyLock {
	return c.NewFairReadWriteLock(name, opts...).Reader
}

func priority(c *rlock.Client, name string, opts ...rlock.LockOption) AnyLock {
	return c.NewPriorityLock(name, opts...)
}

var QueuedKinds = []Queued{
	{"read", "fairrw", true, FairRead, func(c *rlock.Client, name string) AnyLock { return FairWrite(c, name) }},
	{"write", "fairrw", false, FairWrite, func(c *rlock.Client, name string) AnyLock { return FairRead(c, name) }},
	{"priority", "priority", false, priority, func(c *rlock.Client, name string) AnyLock { return priority(c, name) }},
}

// Enqueue begins a Lock call and waits until it stands in the queue in Redis and
// has subscribed to its channel.
func (k Queued) Enqueue(t testing.TB, rdb redis.UniversalClient, l AnyLock, opts ...rlock.AcquireOption) *Attempt {
	t.Helper()
	before := rdb.ZRange(bg, k.Queue(l.Name()), 0, -1).Val()
	e := Begin(t, bg, l, opts...)
	var stay string
	Eventually(t, "it stands in the queue", func() bool {
		for _, s := range rdb.ZRange(bg, k.Queue(l.Name()), 0, -1).Val() {
			if !slices.Contains(before, s) {
				stay = s
			}
		}
		return stay != ""
	})
	channel := k.Base(l.Name()) + ":turn:" + stay
	Eventually(t, "it has subscribed", func() bool {
		return rdb.PubSubNumSub(bg, channel).Val()[channel] == 1
	})
	return e
}

// Attempt is a Lock call under way.
type Attempt struct {
	t      testing.TB
	Cancel context.CancelFunc
	Done   chan struct{} // closed when the call has returned
	Lease  *rlock.Lease
	Err    error
}

func (e *Attempt) Held() *rlock.Lease {
	e.t.Helper()
	select {
	case <-e.Done:
	case <-time.After(20 * time.Second): // far above what a busy machine needs
		e.t.Fatal("waited too long for the lock")
	}
	if e.Err != nil {
		e.t.Fatal(e.Err)
	}
	return e.Lease
}

func (e *Attempt) Waits() bool {
	select {
	case <-e.Done:
		return false
	default:
		return true
	}
}

func Begin(t testing.TB, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) *Attempt {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	e := &Attempt{t: t, Cancel: cancel, Done: make(chan struct{})}
	go func() {
		defer close(e.Done)
		e.Lease, e.Err = l.Lock(ctx, opts...)
	}()
	t.Cleanup(func() {
		cancel()
		<-e.Done
		if e.Err == nil {
			_ = e.Lease.Unlock(bg)
		}
	})
	return e
}

func MustState(t testing.TB, l AnyLock) rlock.State {
	t.Helper()
	s, err := l.State(bg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// PutDeadWaiter puts a waiter into the queue that nobody is at.
func PutDeadWaiter(t testing.TB, rdb redis.UniversalClient, k Queued, name string, rank float64, alive time.Duration) {
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

const FirstRank = -9e15 + 1 // a rank before all others

// What every type promises that keeps its waiters in Redis: who came first goes
// first, and who lives keeps its place.

// Line is one of these types, and where its waiters stand.
type Line struct {
	Name  string
	Open  func(c *rlock.Client, name string) AnyLock
	Rival func(c *rlock.Client, name string) AnyLock // keeps open out while it is held
	Line  func(rdb redis.UniversalClient, name string) []string
	Signs string // the suffix of the zset with the signs of life
	// put adds a waiter of another process, before whom nobody of open may enter.
	Put func(t testing.TB, rdb redis.UniversalClient, name, stay string, alive time.Duration)
}

func (k Line) Sign(rdb redis.UniversalClient, name, stay string) time.Time {
	return time.UnixMilli(int64(rdb.ZScore(bg, "{"+name+"}:rlock:"+k.Signs, stay).Val()))
}

// Enqueue begins a Lock call and returns when it stands in the line as the last.
func (k Line) Enqueue(t testing.TB, rdb redis.UniversalClient, l AnyLock, opts ...rlock.AcquireOption) (e *Attempt, stay string) {
	t.Helper()
	before := k.Line(rdb, l.Name())
	e = Begin(t, bg, l, opts...)
	Eventually(t, "it stands in the line", func() bool {
		for _, s := range k.Line(rdb, l.Name()) {
			if !slices.Contains(before, s) {
				stay = s
			}
		}
		if !e.Waits() && stay == "" {
			t.Fatalf("it has not had to wait: %v, %v", e.Lease, e.Err)
		}
		return stay != ""
	})
	return e, stay
}

// Visit looks at the lock, which is what removes the dead.
func (k Line) Visit(c *rlock.Client, name string) {
	if lease, err := k.Open(c, name).TryLock(bg); err == nil {
		_ = lease.Unlock(bg)
	}
}

// Dies lets the sign of life of a waiter run out, long ago.
func (k Line) Dies(t testing.TB, rdb redis.UniversalClient, name, stay string) {
	t.Helper()
	if err := rdb.ZAddXX(bg, "{"+name+"}:rlock:"+k.Signs, redis.Z{Score: 1, Member: stay}).Err(); err != nil {
		t.Fatal(err)
	}
}

func Lines() (kinds []Line) {
	fair := func(c *rlock.Client, name string) AnyLock { return c.NewFairLock(name) }
	kinds = append(kinds, Line{
		Name: "fair", Open: fair, Rival: fair, Signs: "waiters",
		Line: func(rdb redis.UniversalClient, name string) []string { return FairState(rdb, name).Queue },
		Put: func(t testing.TB, rdb redis.UniversalClient, name, stay string, alive time.Duration) {
			PutFairWaiter(t, rdb, name, stay, alive, alive)
		},
	})
	for _, k := range QueuedKinds {
		// Ranks grow with time, so whoever is put first has one before all others, and
		// who is put later one behind all that have come.
		var rank float64 = FirstRank
		kinds = append(kinds, Line{
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
			Put: func(t testing.TB, rdb redis.UniversalClient, name, stay string, alive time.Duration) {
				rank := rank
				if last := rdb.ZRevRangeWithScores(bg, k.Queue(name), 0, 0).Val(); len(last) > 0 {
					rank = last[0].Score + 1
				}
				until := float64(rdb.Time(bg).Val().Add(alive).UnixMilli())
				if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
					p.ZAdd(bg, k.Base(name)+":queue", redis.Z{Score: rank, Member: stay})
					p.ZAdd(bg, k.Base(name)+":alive", redis.Z{Score: until, Member: stay})
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			},
		})
	}
	return kinds
}

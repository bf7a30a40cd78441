package queues

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var priorityKind = locktest.QueuedTypes[2]

// Weights first, then the order of arrival, across clients.
func TestPriorityLockServesTheMostUrgentFirst(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clients []*rlock.Client
		for range 3 {
			clients = append(clients, locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)))
		}
		holder := locktest.MustLock(t, clients[0].NewPriorityLock("a"))
		priorities := []int{5, 1, 10, 0, 7, 10, 1, 5} // 0: not given, as 5
		wanted := []int{2, 5, 4, 0, 3, 7, 1, 6}
		order := make(chan int, len(priorities))
		for i, p := range priorities {
			l := clients[i%3].NewPriorityLock("a")
			at := rlock.Locker(l)
			if p > 0 {
				at = l.At(p)
			}
			e := locktest.Begin(t, bg, at)
			locktest.Eventually(t, "it stands in the queue", func() bool { return locktest.MustState(t, l).Waiters == i+1 })
			go func() {
				<-e.Done
				if e.Err != nil {
					t.Error(e.Err)
				}
				order <- i
				_ = e.Lease.Unlock(bg)
			}()
		}
		locktest.MustUnlock(t, holder)
		var got []int
		for range priorities {
			select {
			case i := <-order:
				got = append(got, i)
			case <-time.After(20 * time.Second):
				t.Fatalf("only %v were served", got)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Fatalf("served in the order %v, want %v", got, wanted)
		}
		locktest.Eventually(t, "nothing is left", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == len(locktest.Keys(t, rdb)) })
	})
}

// At is the same lock, for callers who are more or less urgent.
func TestPriorityLockAtIsTheSameLock(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		l := c.NewPriorityLock("a", rlock.WithMaxHold(time.Hour))
		urgent := l.At(9).(locktest.AnyLock)
		if l.Name() != urgent.Name() {
			t.Errorf("%s has the name %s", l.Name(), urgent.Name())
		}
		lease := locktest.MustLock(t, urgent)
		locktest.MustBeHeld(t, l, urgent, l.At(rlock.MaxPriority))
		inner := locktest.MustLockCtx(t, lease.Context(bg), l.At(rlock.MinPriority))
		if n, err := urgent.HoldCount(lease.Context(bg)); n != 2 || err != nil || inner.HoldID() != lease.HoldID() {
			t.Errorf("entered %d times, %v", n, err)
		}
		locktest.MustUnlock(t, inner)
		deaf := lease.ReleaseRequested()
		if asked, err := l.At(1).(rlock.ReleaseRequester).RequestRelease(bg); !asked || err != nil {
			t.Errorf("asked %v, %v", asked, err)
		}
		<-deaf
		locktest.MustUnlock(t, lease)

		// For a MultiLock too: it has the lock once, at a priority.
		if m, err := rlock.NewMultiLock([]rlock.Locker{l, l.At(9)}); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Error(m, err)
		}
		locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewMultiLock(t, urgent, c.NewLock("b"))))
		locktest.MustBeFree(t, l)
	})
}

func TestPriorityLockAtReportsInvalidPriorities(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	var none *rlock.PriorityLock
	for says, l := range map[string]rlock.Locker{
		"At(0): a priority must be between 1 and 10":  c.NewPriorityLock("a").At(0),
		"At(11): a priority must be between 1 and 10": c.NewPriorityLock("a").At(5).(*rlock.PriorityLock).At(11),
		"no name":         c.NewPriorityLock("").At(11),
		"constructor":     (&rlock.PriorityLock{}).At(5),
		"a constructor":   none.At(5),
		"WithAging(-1ns)": c.NewPriorityLock("a", rlock.WithAging(-1)).At(3),
	} {
		_, err := l.Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
		_, err = l.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		if m, err := rlock.NewMultiLock([]rlock.Locker{l}); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Error(m, err)
		}
	}
}

func TestTryLockOfAPriorityLockGoesBeforeLowerOnesOnly(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewPriorityLock("a")
		// The lock is free; one with priority 5 waits, and has not come yet.
		stamp := float64(rdb.Time(bg).Val().UnixMicro())
		locktest.PutDeadWaiter(t, rdb, priorityKind, "a", stamp-5*6e14, time.Hour)
		for p := 1; p <= 5; p++ {
			_, err := l.At(p).TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
		}
		lease, err := l.At(6).TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// With aging a low priority passes a high one that came later, after the time
// that the difference is worth; not a moment before, and never without.
// Priority and time together can give two waiters one rank.
func TestWaiterThatLeavesWakesTheNextOfItsRank(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, k := b.Client(t), priorityKind
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)).NewPriorityLock("a")
		lease := locktest.MustLock(t, l)
		next := k.Enqueue(t, rdb, l)
		rank := rdb.ZRangeWithScores(bg, k.Queue("a"), 0, 0).Val()[0].Score
		rdb.ZAdd(bg, k.Queue("a"), redis.Z{Score: rank, Member: "!"}) // before any id
		rdb.ZAdd(bg, k.Base("a")+":alive", redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "!"})
		locktest.MustUnlock(t, lease) // tells the dead
		base := k.Base("a")
		keys := []string{base, base + ":ends", base + ":queue", base + ":queue:shared", base + ":alive", "{a}:rlock:gone:!"}
		if err := rdb.Eval(bg, locktest.ScriptText("queue/abandon"), keys, "!", 0, "exclusive", 60000, base+":turn:", "publish").Err(); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, next.Held())
	})
}

func TestAgingLetsALowPriorityPass(t *testing.T) {
	t.Parallel()
	const period = time.Hour
	for _, c := range []struct {
		name   string
		after  time.Duration // how much later the high one came
		aging  bool
		passes bool
	}{
		{"before its time", 9*period - time.Minute, true, false},
		{"after its time", 9*period + time.Minute, true, true},
		{"without aging", 20 * time.Hour, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := locktest.OnMiniredis(t)
			rdb := b.Client(t)
			client := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(rlock.MaxLease))
			var opts []rlock.PriorityLockOption
			if c.aging {
				opts = append(opts, rlock.WithAging(period))
			}
			l := client.NewPriorityLock("a", opts...)
			start := time.Now()
			b.Mini.SetTime(start)
			holder := locktest.MustLock(t, l, rlock.WithLease(rlock.MaxLease))
			low := priorityKind.Enqueue(t, rdb, l.At(rlock.MinPriority))
			b.Mini.SetTime(start.Add(c.after))
			high := priorityKind.Enqueue(t, rdb, l.At(rlock.MaxPriority))
			locktest.MustUnlock(t, holder)
			first, second := high, low
			if c.passes {
				first, second = low, high
			}
			lease := first.Held()
			if !second.Waits() {
				t.Fatal("both are inside")
			}
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, second.Held())
			locktest.OnlyTombstones(t, rdb)
		})
	}
}

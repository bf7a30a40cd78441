package rlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
)

var priorityKind = queuedKinds[2]

func TestPriorityLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	followsQueuedModel(t, "priority", func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T) {
		l := c.NewPriorityLock(m.name)
		enter := func(rt *rapid.T) {
			o := m.pick(rt, "enter", func(o *queuedMember) bool { return len(o.leases) == 0 && !o.waits })
			p := rapid.IntRange(rlock.MinPriority, rlock.MaxPriority).Draw(rt, "priority")
			m.lock(rt, o, l, false, -p, rlock.WithPriority(p))
		}
		return map[string]func(*rapid.T){"enter": enter, "enter again": enter}
	})
}

// Weights first, then the order of arrival, across clients.
func TestPriorityLockServesTheMostUrgentFirst(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		var clients []*rlock.Client
		for range 3 {
			clients = append(clients, newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient)))
		}
		holder := mustLock(t, clients[0].NewPriorityLock("a"))
		priorities := []int{5, 1, 10, 0, 7, 10, 1, 5} // 0: not given, as 5
		wanted := []int{2, 5, 4, 0, 3, 7, 1, 6}
		order := make(chan int, len(priorities))
		for i, p := range priorities {
			var opts []rlock.AcquireOption
			if p > 0 {
				opts = append(opts, rlock.WithPriority(p))
			}
			l := clients[i%3].NewPriorityLock("a")
			e := queuedLock(t, bg, l, opts...)
			eventually(t, "it stands in the queue", func() bool { return queuedState(t, l).Waiters == i+1 })
			go func() {
				<-e.done
				if e.err != nil {
					t.Error(e.err)
				}
				order <- i
				_ = e.lease.Unlock(bg)
			}()
		}
		mustUnlock(t, holder)
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
		eventually(t, "nothing is left", func() bool { return tombstones(keysOf(t, rdb)) == len(keysOf(t, rdb)) })
	})
}

func TestTryLockOfAPriorityLockGoesBeforeLowerOnesOnly(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewPriorityLock("a")
		// The lock is free; one with priority 5 waits, and has not come yet.
		stamp := float64(rdb.Time(bg).Val().UnixMicro())
		queuedCorpse(t, rdb, priorityKind, "a", stamp-5*6e14, time.Hour)
		for p := 1; p <= 5; p++ {
			_, err := l.TryLock(bg, rlock.WithPriority(p))
			wantErr(t, err, rlock.ErrNotAcquired)
		}
		lease, err := l.TryLock(bg, rlock.WithPriority(6))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
	})
}

// With ageing a low priority passes a high one that came later, after the time
// that the difference is worth; not a moment before, and never without.
// Priority and time together can give two waiters one rank.
func TestWaiterThatLeavesWakesTheNextOfItsRank(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb, k := b.client(t), priorityKind
		l := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient)).NewPriorityLock("a")
		lease := mustLock(t, l)
		next := k.enqueue(t, rdb, l)
		rank := rdb.ZRangeWithScores(bg, k.queue("a"), 0, 0).Val()[0].Score
		rdb.ZAdd(bg, k.queue("a"), redis.Z{Score: rank, Member: "!"}) // before any id
		rdb.ZAdd(bg, k.base("a")+":alive", redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "!"})
		mustUnlock(t, lease) // tells the dead
		base := k.base("a")
		keys := []string{base, base + ":ends", base + ":queue", base + ":queue:shared", base + ":alive", "{a}:rlock:gone:!"}
		if err := rdb.Eval(bg, rlock.ScriptText("queued_abandon"), keys, "!", "exclusive", 0, 60000, base+":turn:", "publish").Err(); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, next.held())
	})
}

func TestAgeingLetsALowPriorityPass(t *testing.T) {
	t.Parallel()
	const period = time.Hour
	for _, c := range []struct {
		name   string
		after  time.Duration // how much later the high one came
		ageing bool
		passes bool
	}{
		{"before its time", 9*period - time.Minute, true, false},
		{"after its time", 9*period + time.Minute, true, true},
		{"without ageing", 20 * time.Hour, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := onMiniredis(t)
			rdb := b.client(t)
			client := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(rlock.MaxLease))
			var opts []rlock.LockOption
			if c.ageing {
				opts = append(opts, rlock.WithAgeing(period))
			}
			l := client.NewPriorityLock("a", opts...)
			start := time.Now()
			b.mini.SetTime(start)
			holder := mustLock(t, l, rlock.WithLease(rlock.MaxLease))
			low := priorityKind.enqueue(t, rdb, l, rlock.WithPriority(rlock.MinPriority))
			b.mini.SetTime(start.Add(c.after))
			high := priorityKind.enqueue(t, rdb, l, rlock.WithPriority(rlock.MaxPriority))
			mustUnlock(t, holder)
			first, second := high, low
			if c.passes {
				first, second = low, high
			}
			lease := first.held()
			if !second.waits() {
				t.Fatal("both are inside")
			}
			mustUnlock(t, lease)
			mustUnlock(t, second.held())
			onlyTombstones(t, rdb)
		})
	}
}

package counting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

const fairBase = "{s}:rlock:permits"

func fairPermits(t testing.TB, c *rlock.Client, n int) *rlock.PermitSemaphore {
	t.Helper()
	return locktest.MustSetPermits(t, c.NewPermitSemaphore("s", rlock.WithFairness()), n)
}

// wantFair checks how many permits are free, and how many holds and waiters there are.
func wantFair(t testing.TB, rdb redis.UniversalClient, total, free, holds, waiters int) {
	t.Helper()
	hash := rdb.HGetAll(bg, fairBase).Val()
	ends, queue, alive := rdb.ZCard(bg, fairBase+":ends").Val(), rdb.ZCard(bg, fairBase+":queue").Val(), rdb.ZCard(bg, fairBase+":alive").Val()
	if hash["total"] != fmt.Sprint(total) || hash["free"] != fmt.Sprint(free) || len(hash)-2 != holds || ends != int64(holds) ||
		queue != int64(waiters) || alive != int64(waiters) {
		t.Helper()
		t.Fatalf("%v, %d ends, %d in the queue, %d alive; want %d of %d free, %d holds, %d waiters", hash, ends, queue, alive, free, total, holds, waiters)
	}
	if waiters == 0 && rdb.Exists(bg, fairBase+":queue", fairBase+":alive", fairBase+":line").Val() > 0 {
		t.Fatalf("left: %q", locktest.Keys(t, rdb))
	}
}

func TestFairPermitsInRedis(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := b.NewClient(t)
		s := c.NewPermitSemaphore("s", rlock.WithFairness())
		_, err := s.Acquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrNotSet)
		locktest.MustBeEmpty(t, rdb)
		if ok, err := s.TrySetPermits(bg, 5); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := s.TrySetPermits(bg, 6); ok || err != nil {
			t.Fatal(ok, err)
		}
		wantFair(t, rdb, 5, 5, 0, 0)
		three := mustAcquire(t, s, 3)
		wantFair(t, rdb, 5, 2, 1, 0)
		two := mustAcquire(t, s, 2, rlock.WithLease(time.Hour))
		_, err = s.TryAcquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		wantFair(t, rdb, 5, 0, 2, 0)
		state, err := s.State(bg)
		if err != nil || state.Permits != 5 || state.Available != 0 || len(state.Holders) != 2 || !slices.ContainsFunc(state.Holders, func(h rlock.PermitHolder) bool {
			return h.HoldID == two.HoldID() && h.Permits == 2 && h.TTL > 50*time.Minute
		}) {
			t.Fatalf("%+v %v", state, err)
		}
		if err := three.Extend(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		w := acquires(t, s, 4)
		stand(t, s, 1)
		wantFair(t, rdb, 5, 0, 2, 1)
		for _, key := range []string{fairBase, fairBase + ":ends"} {
			if ttl := rdb.PTTL(bg, key).Val(); ttl >= 0 {
				t.Errorf("%s has a TTL of %v", key, ttl)
			}
		}
		for _, key := range []string{fairBase + ":queue", fairBase + ":alive", fairBase + ":line"} {
			locktest.WantTTL(t, rdb, key, rlock.DefaultWaiterLease+time.Minute)
		}
		w.GiveUp()
		locktest.Eventually(t, "it has left the queue", func() bool { return rdb.Exists(bg, fairBase+":queue").Val() == 0 })
		wantFair(t, rdb, 5, 0, 2, 0)
		locktest.MustUnlock(t, three)
		locktest.MustUnlock(t, two)
		if err := s.AddPermits(bg, -7); err != nil {
			t.Fatal(err)
		}
		wantFair(t, rdb, -2, -2, 0, 0)
		if n, err := s.Available(bg); n != -2 || err != nil {
			t.Fatal(n, err)
		}
		if err := s.AddPermits(bg, rlock.MaxPermits); err != nil {
			t.Fatal(err)
		}
		locktest.WantErr(t, s.AddPermits(bg, 3), rlock.ErrInvalidArgument)
	})
}

// Permits without fairness, and fair ones, of one name are told apart.
func TestFairPermitsUnderATakenName(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		permitsOf(t, c, "s", 3)
		s := c.NewPermitSemaphore("s", rlock.WithFairness())
		_, err := s.TrySetPermits(bg, 3)
		locktest.WantErr(t, err, rlock.ErrForeignKey)
		locktest.WantErr(t, s.AddPermits(bg, 3), rlock.ErrForeignKey)
		_, err = s.TryAcquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrForeignKey)
		_, err = s.Acquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrForeignKey)
	})
}

// First come, first served, from two clients: nobody overtakes one that needs many.
func TestFairPermitsAreGivenInOrder(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var s []*rlock.PermitSemaphore
		for range 2 {
			s = append(s, fairPermits(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)), 4))
		}
		held := []*rlock.Lease{mustAcquire(t, s[0], 2), mustAcquire(t, s[1], 2)}
		var queue []*locktest.Attempt
		needs := []int{1, 4, 1, 2, 1, 4}
		for i, n := range needs {
			queue = append(queue, acquires(t, s[i%2], n))
			stand(t, s[0], i+1)
		}
		first := queue[0]
		locktest.MustUnlock(t, held[0])
		one := first.Held()
		// One is free. The next needs four, and all wait for it, who does not wait too.
		wantFair(t, rdb, 4, 1, 2, 5)
		_, err := s[0].TryAcquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, one)
		for _, w := range queue[1:] {
			w.MustWait()
		}
		locktest.MustUnlock(t, held[1])
		four := queue[1].Held()
		for _, w := range queue[2:] {
			w.MustWait()
		}
		// Three come in together.
		locktest.MustUnlock(t, four)
		var leases []*rlock.Lease
		for _, w := range queue[2:5] {
			leases = append(leases, w.Held())
		}
		queue[5].MustWait()
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
		locktest.MustUnlock(t, queue[5].Held())
		wantFair(t, rdb, 4, 4, 0, 0)
	})
}

func TestFairWaiterThatLeavesLetsTheNextIn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := fairPermits(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)), 3)
		holder := mustAcquire(t, s, 2)
		big, small := acquires(t, s, 3), (*locktest.Attempt)(nil)
		stand(t, s, 1)
		small = acquires(t, s, 1)
		stand(t, s, 2)
		locktest.WantEnded(t, big.GiveUp(), context.Canceled)
		one := small.Held()
		wantFair(t, rdb, 3, 0, 2, 0)
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, one)

		// One for more than there are stands outside, and comes in when they are there.
		tooBig := acquires(t, s, 5)
		locktest.Eventually(t, "it waits", func() bool {
			select {
			case <-tooBig.Done:
				return false
			default:
				return true
			}
		})
		locktest.MustUnlock(t, mustAcquire(t, s, 3))
		wantFair(t, rdb, 3, 3, 0, 0)
		tooBig.GiveUp()
	})
}

func TestRequestThatBecomesPossibleIsServed(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := fairPermits(t, b.NewClient(t, rlock.WithWaiterLease(300*time.Millisecond)), 2)
		w := acquires(t, s, 4)
		time.Sleep(50 * time.Millisecond) // it may wait outside by now, or not
		if err := s.AddPermits(bg, 2); err != nil {
			t.Fatal(err)
		}
		l := w.Held()
		// And one that becomes impossible lets others in.
		w = acquires(t, s, 3)
		stand(t, s, 1)
		if err := s.AddPermits(bg, -2); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, l)
		l, err := s.Acquire(bg, 1, rlock.WithWait(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, l)
		w.MustWait()
		w.GiveUp()
	})
}

// The client of a waiter dies: it costs those behind it a waiter lease, and nothing is left.
func TestDeadFairWaiterLeavesByItsLease(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		opts := []rlock.Option{rlock.WithWaiterLease(time.Second), rlock.WithWatchdogLease(time.Second)}
		c, proxy, _ := b.Faulty(t, opts...)
		dead, live := c.NewPermitSemaphore("s", rlock.WithFairness()), fairPermits(t, b.NewClient(t, opts...), 2)
		holder := mustAcquire(t, dead, 1)
		lost := acquires(t, dead, 2)
		stand(t, live, 1)
		next := acquires(t, live, 2)
		stand(t, live, 2)
		proxy.Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.ResetBefore })
		l := next.Held()
		wantFair(t, rdb, 2, 0, 1, 0)
		<-holder.Done()
		locktest.WantErr(t, holder.Err(), rlock.ErrLeaseLost)
		locktest.MustUnlock(t, l)
		lost.GiveUp()
	})
}

// The first waiter is killed, or stopped, and all permits are free: those behind it, and those who come
// later, have theirs long before its waiter lease is over.
func TestDeadFairWaiterStopsNobodyForWhomThereIsRoom(t *testing.T) {
	t.Parallel()
	for how, die := range map[string]func(p *faultproxy.Proxy){
		"killed":  func(p *faultproxy.Proxy) { p.Refuse(true) },
		"stopped": func(p *faultproxy.Proxy) { p.Blackhole(true) },
	} {
		locktest.Beside(t, how, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				lease := rlock.WithWaiterLease(30 * time.Second)
				c, proxy, rdb := b.Faulty(t, lease)
				var live []*rlock.PermitSemaphore
				for range 3 {
					live = append(live, fairPermits(t, b.NewClient(t, lease), 20))
				}
				all := mustAcquire(t, live[0], 20)
				lost := acquires(t, c.NewPermitSemaphore("s", rlock.WithFairness()), 1)
				stand(t, live[0], 1)
				var queue []*locktest.Attempt
				for i := range 6 {
					queue = append(queue, acquires(t, live[i%3], 1))
					stand(t, live[0], i+2)
				}
				die(proxy)
				began := time.Now()
				locktest.MustUnlock(t, all)
				for _, w := range queue {
					w.Held()
				}
				late := acquires(t, live[0], 2)
				late.Held()
				// A stopped one is noticed at a third of the lease, when they look.
				if took := time.Since(began); took > 16*time.Second {
					t.Errorf("they wait for %v", took)
				}
				wantFair(t, rdb, 20, 12, 7, 1)
				proxy.Refuse(false)
				proxy.Blackhole(false)
				lost.GiveUp()
			})
		})
	}
}

func TestFairPermitsAreCountedOnceDespiteFaults(t *testing.T) {
	t.Parallel()
	scripts := []string{"fairpermits/try_set", "fairpermits/add", "fairpermits/enter", "fairpermits/renew", "fairpermits/release", "fairpermits/inspect"}
	locktest.EachLoss(t, "fairpermits", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		locktest.LoadScripts(t, b.Client(t), scripts...)
		for _, script := range scripts {
			locktest.Beside(t, script, func(t *testing.T) {
				c, proxy, rdb := b.Faulty(t)
				s := c.NewPermitSemaphore(script, rlock.WithFairness())
				free := func(want string) {
					t.Helper()
					if got := rdb.HGet(bg, "{"+script+"}:rlock:permits", "free").Val(); got != want {
						t.Fatalf("%s are free, want %s", got, want)
					}
				}
				seen := locktest.OnNth(t, proxy, script, 1, action)
				if ok, err := s.TrySetPermits(bg, 7); !ok || err != nil {
					t.Fatal(ok, err)
				}
				if err := s.AddPermits(bg, -2); err != nil {
					t.Fatal(err)
				}
				free("5")
				lease, err := s.Acquire(bg, 2)
				if err != nil {
					t.Fatal(err)
				}
				free("3")
				if err := lease.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				if script == "fairpermits/release" {
					locktest.UnlockLossy(t, lease, action)
				} else {
					locktest.MustUnlock(t, lease)
				}
				free("5")
				if n, err := s.Available(bg); n != 5 || err != nil {
					t.Fatal(n, err)
				}
				if action != faultproxy.Duplicate && seen.Load() < 2 {
					t.Fatal("it was not sent again")
				}
			})
		}
	})
}

func TestLossOfFairPermitsIsReported(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := fairPermits(t, b.NewClient(t, rlock.WithWatchdogLease(time.Second)), 3)
		l := mustAcquire(t, s, 2)
		rdb.Del(bg, fairBase, fairBase+":ends")
		<-l.Done()
		locktest.WantErr(t, l.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.WantErr(t, l.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		if rdb.Exists(bg, fairBase, fairBase+":ends").Val() > 0 {
			t.Fatalf("left: %q", locktest.Keys(t, rdb))
		}
		s = fairPermits(t, b.NewClient(t), 3)
		l = mustAcquire(t, s, 2, rlock.WithLease(time.Second))
		start := time.Now()
		three, err := s.Acquire(bg, 3)
		if err != nil || time.Since(start) > 15*time.Second {
			t.Fatal(err, time.Since(start))
		}
		locktest.WantErr(t, l.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		if err := l.Unlock(bg); !errors.Is(err, rlock.ErrExpired) {
			t.Fatal(err)
		}
		wantFair(t, rdb, 3, 0, 1, 0)
		locktest.MustUnlock(t, three)
		wantFair(t, rdb, 3, 3, 0, 0)
	})
}

// A request for more permits than there are hears of those that are added, from whichever client,
// and one of those that hear of too few goes on waiting.
func TestFairRequestForMorePermitsIsWokenByAnAddition(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		patient := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)}
		s, other := fairPermits(t, b.NewClient(t, patient...), 1), fairPermits(t, b.NewClient(t, patient...), 1)
		all := []*locktest.Attempt{acquires(t, s, 2), acquires(t, s, 3), acquires(t, other, 2)}
		channel := fairBase + ":more"
		locktest.Eventually(t, "both clients listen", func() bool {
			return rdb.PubSubNumSub(bg, channel).Val()[channel] == 2
		})
		locktest.MustUnlock(t, mustAcquire(t, other, 1)) // they do not keep it out
		ok(t, s.AddPermits(bg, 1))
		first, second := all[0], all[2]
		select {
		case <-first.Done:
		case <-second.Done:
			first, second = second, first
		case <-time.After(60 * time.Second):
			t.Fatal("nobody has heard of it")
		}
		locktest.MustUnlock(t, first.Held())
		locktest.MustUnlock(t, second.Held())
		ok(t, other.AddPermits(bg, 1))
		locktest.MustUnlock(t, all[1].Held())
		wantFair(t, rdb, 3, 3, 0, 0)
	})
}

// A copy of an acquire that comes late changes nothing, whoever has the only permit by then: its
// own hold, nobody, or another with a waiter behind it.
func TestLateCopyOfAFairAcquireChangesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		patient := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient), rlock.WithWatchdogLease(locktest.Patient)}
		c, proxy, rdb := b.Faulty(t, append(patient, rlock.WithCommandTimeout(time.Minute))...)
		locktest.LoadScripts(t, rdb, "fairpermits/enter")
		s := fairPermits(t, b.NewClient(t, patient...), 1)
		locktest.OnNth(t, proxy, "fairpermits/enter", 1, faultproxy.ResetAfter) // so that there may be a copy
		first, err := c.NewPermitSemaphore("s", rlock.WithFairness()).Acquire(bg, 1)
		ok(t, err)
		var late []any
		for _, cmd := range proxy.Commands() {
			if cmd.IsScript(locktest.SHA("fairpermits/enter")) {
				late = []any{"evalsha"}
				for _, arg := range cmd.Args {
					late = append(late, arg)
				}
			}
		}
		copyComes := func(holds, waiters int) {
			t.Helper()
			for range 2 {
				ok(t, rdb.Do(bg, late...).Err())
				wantFair(t, rdb, 1, 1-holds, holds, waiters)
			}
		}
		copyComes(1, 0)
		locktest.MustUnlock(t, first)
		copyComes(0, 0)
		second := mustAcquire(t, s, 1)
		copyComes(1, 0)
		third := acquires(t, s, 1)
		stand(t, s, 1)
		copyComes(1, 1)
		locktest.MustUnlock(t, second)
		lease := third.Held()
		copyComes(1, 0)
		locktest.MustUnlock(t, lease)
		copyComes(0, 0)
	})
}

package counting

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Waiters depend on messages here: a poll does not help them.
func TestPermitsThatComeFreeAreGivenToAllThatFit(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := permitsOf(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 6)
		all := mustAcquire(t, s, 6, rlock.WithLease(time.Hour))
		var waiters []*locktest.Attempt
		for i, n := range []int{1, 2, 3, 4, 1} {
			waiters = append(waiters, acquires(t, s, n, rlock.WithLease(time.Hour)))
			stand(t, s, i+1)
		}
		listened(t, rdb, "s", 1)
		locktest.MustUnlock(t, all)
		var leases []*rlock.Lease
		for _, w := range waiters[:3] {
			leases = append(leases, w.Held())
		}
		stand(t, s, 2)
		wantFree(t, rdb, "s", 0, 6)
		locktest.MustUnlock(t, leases[1])
		locktest.Eventually(t, "two are free", func() bool { n, _ := s.Available(bg); return n == 2 })
		waiters[4].MustWait() // it came after one that needs 4
		locktest.MustUnlock(t, leases[2])
		leases[1], leases[2] = waiters[3].Held(), waiters[4].Held()
		wantFree(t, rdb, "s", 0, 6)
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
		wantFree(t, rdb, "s", 6, 0)
	})
}

func TestCanceledWaiterForPermitsPassesItsWakeUpOn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := permitsOf(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 1)
		for range 30 {
			holder := mustAcquire(t, s, 1, rlock.WithLease(time.Hour))
			first, second := acquires(t, s, 1, rlock.WithLease(time.Hour)), acquires(t, s, 1, rlock.WithLease(time.Hour))
			stand(t, s, 2)
			listened(t, rdb, "s", 1)
			go first.Cancel()
			locktest.MustUnlock(t, holder)
			<-first.Done
			if first.Err == nil {
				locktest.MustUnlock(t, first.Lease)
			} else {
				locktest.WantEnded(t, first.Err, context.Canceled)
			}
			locktest.MustUnlock(t, second.Held())
		}
		locktest.Eventually(t, "all are free", func() bool { n, _ := s.Available(bg); return n == 1 })
		wantFree(t, rdb, "s", 1, 0)
	})
}

func TestWaitersForPermitsWakeAtTheNearestExpiry(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := permitsOf(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 3)
		mustAcquire(t, s, 1, rlock.WithLease(time.Hour))
		start := time.Now()
		for i := range 2 {
			mustAcquire(t, s, 1, rlock.WithLease(time.Duration(i+1)*400*time.Millisecond))
		}
		first, second := acquires(t, s, 1, rlock.WithLease(time.Hour)), acquires(t, s, 1, rlock.WithLease(time.Hour))
		<-first.Done
		after := time.Since(start)
		<-second.Done
		if first.Err != nil || second.Err != nil || after < 390*time.Millisecond || time.Since(start) < 790*time.Millisecond {
			t.Fatal(first.Err, second.Err, after)
		}
		if time.Since(start) > 15*time.Second { // nothing else wakes them
			t.Fatal(time.Since(start))
		}
	})
}

// A request for more than there are must not keep the others of its client out.
func TestNobodyWaitsBehindARequestThatCannotBeMet(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := permitsOf(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 2)
		holder := mustAcquire(t, s, 2)
		big := acquires(t, s, 5)
		listened(t, rdb, "s", 1)
		small := acquires(t, s, 1)
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, small.Held())
		_, err := s.TryAcquire(bg, 3)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		big.MustWait()
		if err := s.AddPermits(bg, 3); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, big.Held())
		wantFree(t, rdb, "s", 5, 0)
	})
}

func TestAcquireOfPermitsEndsAsThatOfALock(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	c := b.NewClient(t)
	s := permitsOf(t, c, "s", 2)
	lease := mustAcquire(t, s, 2)
	_, err := s.Acquire(bg, 1, rlock.WithWait(20*time.Millisecond))
	locktest.WantEnded(t, err, nil)
	_, err = s.Acquire(bg, 1, rlock.WithWait(0))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	_, err = s.Acquire(ctx, 1)
	locktest.WantEnded(t, err, context.DeadlineExceeded)

	// Nothing is entered again: neither below the lease nor by its owner.
	_, err = s.TryAcquire(lease.Context(bg), 1)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.MustUnlock(t, lease)
	owner := rlock.WithOwner(bg)
	one, err1 := s.TryAcquire(owner, 1)
	two, err2 := s.TryAcquire(owner, 1)
	if err1 != nil || err2 != nil || one.HoldID() == two.HoldID() {
		t.Fatal(err1, err2)
	}
	wantFree(t, rdb, "s", 0, 2)

	waiter := acquires(t, s, 1)
	stand(t, s, 1)
	done := locktest.ShutDown(bg, c, one, two)
	<-waiter.Done
	locktest.WantErr(t, waiter.Err, rlock.ErrClosed)
	locktest.StillRunning(t, done)
	locktest.MustUnlock(t, one)
	locktest.MustUnlock(t, two)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantFree(t, rdb, "s", 2, 0)
}

// The number was deleted while somebody waited.
func TestWaiterForPermitsGetsErrNotSet(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := permitsOf(t, b.NewClient(t, rlock.WithLongestPoll(50*time.Millisecond)), "s", 1)
		mustAcquire(t, s, 1)
		w := acquires(t, s, 1)
		stand(t, s, 1)
		rdb.Del(bg, "s", "{s}:timeout")
		<-w.Done
		locktest.WantErr(t, w.Err, rlock.ErrNotSet)
	})
}

// Many goroutines of two clients take permits in turn: never more than there are, none
// starves, and few commands are sent in vain.
func TestPermitsUnderContention(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		const permits, workers, rounds = 5, 20, 10
		rdb := b.Client(t)
		var inside, most, sections atomic.Int64
		sent := &locktest.CountHook{}
		var wg sync.WaitGroup
		for i := range 2 {
			hooked := b.Client(t)
			hooked.AddHook(sent)
			c := locktest.NewClient(t, hooked, rlock.WithLongestPoll(locktest.Patient))
			s := permitsOf(t, c, "s", permits)
			for j := range workers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					n := 1 + (i+j)%3
					for range rounds {
						// Only messages and releases wake: no lease ends in time.
						lease, err := s.Acquire(bg, n, rlock.WithLease(time.Hour), rlock.WithWait(time.Minute))
						if err != nil {
							t.Error(err)
							return
						}
						now := inside.Add(int64(n))
						for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
						}
						sections.Add(1)
						inside.Add(int64(-n))
						if err := lease.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrUnconfirmed) {
							t.Error(err)
						}
					}
				}()
			}
		}
		wg.Wait()
		if most.Load() > permits {
			t.Errorf("%d permits were out", most.Load())
		}
		wantFree(t, rdb, "s", permits, 0)
		t.Logf("%.2f commands for each section", float64(sent.N.Load())/float64(sections.Load()))
		if sections.Load() != 2*workers*rounds {
			t.Error(sections.Load())
		}
	})
}

// Only the first of the waiters of a client has anything to undo.
func TestThousandWaitersForPermitsLeaveTogether(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	b := locktest.OnServer(t)
	sent := &locktest.CountHook{}
	rdb := b.Client(t)
	rdb.AddHook(sent)
	s := permitsOf(t, locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)), "s", 5)
	lease := mustAcquire(t, s, 5, rlock.WithLease(time.Hour))
	const waiters = 1000
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if _, err := s.Acquire(ctx, 1); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	stand(t, s, waiters)
	listened(t, b.Client(t), "s", 1)
	before := sent.N.Load()
	cancel()
	wg.Wait()
	if n := sent.N.Load() - before; n > 10 {
		t.Errorf("%d waiters sent %d commands when they left", waiters, n)
	}
	locktest.MustUnlock(t, lease)
	wantFree(t, b.Client(t), "s", 5, 0)
}

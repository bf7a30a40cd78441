package permits

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// waiting is an Acquire that waits.
type waiting struct {
	cancel context.CancelFunc
	done   chan struct{}
	lease  *rlock.Lease
	err    error
}

func begin(s *rlock.PermitSemaphore, n int, opts ...rlock.AcquireOption) *waiting {
	ctx, cancel := context.WithCancel(bg)
	w := &waiting{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = s.Acquire(ctx, n, opts...)
	}()
	return w
}

// enters waits until the waiter has its permits.
func (w *waiting) enters(t testing.TB) *rlock.Lease {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(20 * time.Second):
		t.Fatal("not acquired")
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.lease
}

func (w *waiting) waits(t testing.TB) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("it does not wait: %v", w.err)
	default:
	}
}

// stand waits until so many wait in the client of s.
func stand(t testing.TB, s *rlock.PermitSemaphore, n int) {
	t.Helper()
	locktest.Eventually(t, "they wait", func() bool {
		state, err := s.State(bg)
		return err == nil && state.Waiters == n
	})
}

// listened waits until so many connections listen.
func listened(t testing.TB, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	channel := "redisson_sc:{" + name + "}"
	locktest.Eventually(t, "they listen", func() bool { return rdb.PubSubNumSub(bg, channel).Val()[channel] == n })
}

// Waiters depend on messages here: a poll does not help them.
func TestPermitsThatComeFreeAreGivenToAllThatFit(t *testing.T) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := semaphore(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 6)
		all := mustAcquire(t, s, 6, rlock.WithLease(time.Hour))
		var waiters []*waiting
		for i, n := range []int{1, 2, 3, 4, 1} {
			waiters = append(waiters, begin(s, n, rlock.WithLease(time.Hour)))
			stand(t, s, i+1)
		}
		listened(t, rdb, "s", 1)
		locktest.MustUnlock(t, all)
		var leases []*rlock.Lease
		for _, w := range waiters[:3] {
			leases = append(leases, w.enters(t))
		}
		stand(t, s, 2)
		wantFree(t, rdb, "s", 0, 6)
		locktest.MustUnlock(t, leases[1])
		locktest.Eventually(t, "two are free", func() bool { n, _ := s.Available(bg); return n == 2 })
		waiters[4].waits(t) // it came after one that needs 4
		locktest.MustUnlock(t, leases[2])
		leases[1], leases[2] = waiters[3].enters(t), waiters[4].enters(t)
		wantFree(t, rdb, "s", 0, 6)
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
		wantFree(t, rdb, "s", 6, 0)
	})
}

func TestCanceledWaiterForPermitsPassesItsWakeUpOn(t *testing.T) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := semaphore(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 1)
		for range 30 {
			holder := mustAcquire(t, s, 1, rlock.WithLease(time.Hour))
			first, second := begin(s, 1, rlock.WithLease(time.Hour)), begin(s, 1, rlock.WithLease(time.Hour))
			stand(t, s, 2)
			listened(t, rdb, "s", 1)
			go first.cancel()
			locktest.MustUnlock(t, holder)
			<-first.done
			if first.err == nil {
				locktest.MustUnlock(t, first.lease)
			} else {
				locktest.WantErr(t, first.err, rlock.ErrNotAcquired, context.Canceled)
			}
			locktest.MustUnlock(t, second.enters(t))
		}
		locktest.Eventually(t, "all are free", func() bool { n, _ := s.Available(bg); return n == 1 })
		wantFree(t, rdb, "s", 1, 0)
	})
}

func TestWaitersForPermitsWakeAtTheNearestExpiry(t *testing.T) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := semaphore(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 3)
		mustAcquire(t, s, 1, rlock.WithLease(time.Hour))
		start := time.Now()
		for i := range 2 {
			mustAcquire(t, s, 1, rlock.WithLease(time.Duration(i+1)*400*time.Millisecond))
		}
		first, second := begin(s, 1, rlock.WithLease(time.Hour)), begin(s, 1, rlock.WithLease(time.Hour))
		<-first.done
		after := time.Since(start)
		<-second.done
		if first.err != nil || second.err != nil || after < 390*time.Millisecond || time.Since(start) < 790*time.Millisecond {
			t.Fatal(first.err, second.err, after)
		}
		if time.Since(start) > 15*time.Second { // nothing else wakes them
			t.Fatal(time.Since(start))
		}
	})
}

// A request for more than there are must not keep the others of its client out.
func TestNobodyWaitsBehindARequestThatCannotBeMet(t *testing.T) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := semaphore(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s", 2)
		holder := mustAcquire(t, s, 2)
		big := begin(s, 5)
		listened(t, rdb, "s", 1)
		small := begin(s, 1)
		locktest.MustUnlock(t, holder)
		locktest.MustUnlock(t, small.enters(t))
		_, err := s.TryAcquire(bg, 3)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		big.waits(t)
		if err := s.AddPermits(bg, 3); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, big.enters(t))
		wantFree(t, rdb, "s", 5, 0)
	})
}

func TestAcquireOfPermitsEndsAsThatOfALock(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	c := b.NewClient(t)
	s := semaphore(t, c, "s", 2)
	lease := mustAcquire(t, s, 2)
	_, err := s.Acquire(bg, 1, rlock.WithWait(20*time.Millisecond))
	locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
	_, err = s.Acquire(bg, 1, rlock.WithWait(0))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	_, err = s.Acquire(ctx, 1)
	locktest.WantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)

	// Nothing is entered again: neither below the lease nor by its owner.
	_, err = s.TryAcquire(lease.Context(bg), 1)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.MustUnlock(t, lease)
	owner := rlock.WithOwner(bg)
	one, err1 := s.TryAcquire(owner, 1)
	two, err2 := s.TryAcquire(owner, 1)
	if err1 != nil || err2 != nil || one.Owner() == two.Owner() {
		t.Fatal(err1, err2)
	}
	wantFree(t, rdb, "s", 0, 2)

	waiter := begin(s, 1)
	stand(t, s, 1)
	done := locktest.ShutDown(bg, c, one, two)
	<-waiter.done
	locktest.WantErr(t, waiter.err, rlock.ErrClosed)
	locktest.StillRunning(t, done)
	locktest.MustUnlock(t, one)
	locktest.MustUnlock(t, two)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantFree(t, rdb, "s", 2, 0)
}

// The number was deleted while somebody waited.
func TestWaiterForPermitsIsToldThatThereAreNone(t *testing.T) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := semaphore(t, b.NewClient(t, rlock.WithLongestPoll(50*time.Millisecond)), "s", 1)
		mustAcquire(t, s, 1)
		w := begin(s, 1)
		stand(t, s, 1)
		rdb.Del(bg, "s", "{s}:timeout")
		<-w.done
		locktest.WantErr(t, w.err, rlock.ErrNotSet)
	})
}

// Many goroutines of two clients take permits in turn: never more than there are, none
// starves, and few commands are sent in vain.
func TestPermitsUnderContention(t *testing.T) {
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
			s := semaphore(t, c, "s", permits)
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
func TestThousandWaitersForPermitsLeaveAtOnce(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	sent := &locktest.CountHook{}
	rdb := b.Client(t)
	rdb.AddHook(sent)
	s := semaphore(t, locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)), "s", 5)
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

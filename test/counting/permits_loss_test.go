package counting

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Whatever becomes of a reply: an operation counts once.
func TestPermitsAreCountedOnceDespiteFaults(t *testing.T) {
	t.Parallel()
	scripts := []string{"permits/try_set", "permits/add", "permits/enter", "permits/renew", "permits/release", "permits/inspect"}
	locktest.EachLoss(t, "permits", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		locktest.LoadScripts(t, b.Client(t), scripts...)
		for _, script := range scripts {
			locktest.Beside(t, script, func(t *testing.T) {
				c, proxy, rdb := b.Faulty(t)
				s := c.NewPermitSemaphore(script)
				seen := locktest.OnNth(t, proxy, script, 1, action)
				if ok, err := s.TrySetPermits(bg, 7); !ok || err != nil {
					t.Fatal(ok, err)
				}
				if err := s.AddPermits(bg, -2); err != nil {
					t.Fatal(err)
				}
				wantFree(t, rdb, script, 5, 0)
				lease, err := s.Acquire(bg, 2)
				if err != nil {
					t.Fatal(err)
				}
				wantFree(t, rdb, script, 3, 2)
				if err := lease.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				if script == "permits/release" {
					locktest.UnlockLossy(t, lease, action)
				} else {
					locktest.MustUnlock(t, lease)
				}
				wantFree(t, rdb, script, 5, 0)
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

// An acquire that is given up leaves nothing, though its request runs after that.
func TestLateAcquireOfPermitsIsStopped(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(100*time.Millisecond))
		locktest.LoadScripts(t, rdb, "permits/enter", "permits/abandon")
		s := permitsOf(t, b.NewClient(t), "s", 5)
		id := locktest.SHA("permits/enter")
		var held atomic.Bool
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(id) {
				held.Store(true)
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		for !held.Load() { // a busy machine may not even have sent it
			_, err := c.NewPermitSemaphore("s").TryAcquire(bg, 2)
			locktest.WantErr(t, err, rlock.ErrUnreachable)
		}
		locktest.Eventually(t, "it is undone", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) > 0 })
		proxy.Handle(nil)
		proxy.Release()
		// The late copies run before this one, or find their tombstone after it.
		for range 5 {
			locktest.MustUnlock(t, mustAcquire(t, s, 5))
		}
		wantFree(t, rdb, "s", 5, 0)
	})
}

// removed takes one permit of a lease out of Redis, as an operator could.
func removed(t *testing.T, b *locktest.Backend) {
	t.Helper()
	rdb := b.Client(t)
	if n := rdb.ZRemRangeByRank(bg, "{s}:timeout", 1, 1).Val(); n != 1 {
		t.Fatal(n)
	}
}

// A lease that has lost one of its permits is lost, and the rest is given back. What was
// taken out is gone for good: nobody knows where it went.
func TestLeaseThatLostAPermitIsLost(t *testing.T) {
	t.Parallel()
	for name, notices := range map[string]func(t *testing.T, l *rlock.Lease){
		"renewal": func(t *testing.T, l *rlock.Lease) { <-l.Done() },
		"extend":  func(t *testing.T, l *rlock.Lease) { locktest.WantErr(t, l.Extend(bg, time.Hour), rlock.ErrRemoved) },
		"unlock": func(t *testing.T, l *rlock.Lease) {
			locktest.WantErr(t, l.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		},
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				r := &locktest.Recorder{}
				lease := locktest.Lease
				if name == "renewal" {
					lease = time.Second
				}
				c := b.NewClient(t, rlock.WithWatchdogLease(lease), rlock.WithObserver(r))
				s := permitsOf(t, c, "s", 5)
				l := mustAcquire(t, s, 3)
				removed(t, b)
				notices(t, l)
				wantFree(t, b.Client(t), "s", 4, 0)
				if name != "unlock" {
					locktest.WantErr(t, l.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
					locktest.WantErr(t, l.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
				}
				wantFree(t, b.Client(t), "s", 4, 0)
				locktest.Eventually(t, "the observer was told", func() bool {
					r.Mu.Lock()
					defer r.Mu.Unlock()
					return len(r.Losses) == 1 && errors.Is(r.Losses[0].Cause, rlock.ErrRemoved)
				})
			})
		})
	}
}

// Redisson takes back as many of the permits that have expired as it needs itself.
func TestExpiredLeaseOfWhichJavaTookAPartIsLost(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := permitsOf(t, b.NewClient(t), "s", 4)
		l := mustAcquire(t, s, 4)
		kept := mustAcquire(t, permitsOf(t, b.NewClient(t), "other", 1), 1)
		// By the clock of a Java client the lease is over, and it needs one permit.
		removed(t, b)
		rdb.Incr(bg, "s")
		locktest.WantErr(t, l.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrRemoved)
		wantFree(t, rdb, "s", 4, 0)
		locktest.MustUnlock(t, kept)
	})
}

func TestPermitsOfAFixedLeaseRunOut(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clock locktest.Clock
		s := permitsOf(t, b.NewClient(t, clock.Option()), "s", 3)
		l := mustAcquire(t, s, 2, rlock.WithLease(time.Hour))
		ctx := l.Context(bg)
		clock.Forward(time.Hour)
		<-ctx.Done()
		locktest.WantErr(t, l.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		for _, permit := range rdb.ZRange(bg, "{s}:timeout", 0, -1).Val() { // the hour is over for Redis too
			rdb.ZIncrBy(bg, "{s}:timeout", -float64(time.Hour.Milliseconds()), permit)
		}
		wantFree(t, rdb, "s", 1, 2) // nobody has looked
		locktest.Eventually(t, "they are free", func() bool { n, _ := s.Available(bg); return n == 3 })
		locktest.WantErr(t, l.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		wantFree(t, rdb, "s", 3, 0)
	})
}

// Renewed permits outlast many leases; what is not renewed any more comes back.
func TestPermitsAreRenewed(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := permitsOf(t, b.NewClient(t), "s", 12)
		c := b.NewClient(t, rlock.WithWatchdogLease(time.Second))
		mine := c.NewPermitSemaphore("s")
		var leases []*rlock.Lease
		for n := range 4 {
			leases = append(leases, mustAcquire(t, mine, n+1))
		}
		// A machine that stands still for most of a lease costs leases, and says so.
		told := func() (n int) {
			for i, l := range leases {
				if l.Err() != nil {
					n += i + 1
				}
			}
			return n
		}
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if n, err := s.Available(bg); n > 2+told() || err != nil {
				t.Fatal(n, err)
			}
		}
		locktest.Stop(c)
		locktest.Eventually(t, "they came back", func() bool { n, _ := s.Available(bg); return n == 12 })
	})
}

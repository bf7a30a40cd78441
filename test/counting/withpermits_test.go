package counting

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// numbered is a semaphore whose number is in the program.
type numbered struct {
	script  string // of its acquire
	open    func(c *rlock.Client, name string, n int) counted
	without func(c *rlock.Client, name string) counted
}

// counted is what the semaphores have in common.
type counted struct {
	set   func(ctx context.Context, n int) error
	take  func(ctx context.Context, n int) (giveBack func() error, err error)
	shows func(t testing.TB, permits, free int)
}

var allNumbered = map[string]numbered{
	"Semaphore": {
		"semaphore/acquire",
		func(c *rlock.Client, name string, n int) counted {
			return ofSemaphore(c.NewSemaphore(name, rlock.WithPermits(n)))
		},
		func(c *rlock.Client, name string) counted { return ofSemaphore(c.NewSemaphore(name)) },
	},
	"PermitSemaphore": {
		"permits/enter",
		func(c *rlock.Client, name string, n int) counted {
			return ofPermits(c.NewPermitSemaphore(name, rlock.WithPermits(n)))
		},
		func(c *rlock.Client, name string) counted { return ofPermits(c.NewPermitSemaphore(name)) },
	},
	"PermitSemaphore with fairness": {
		"fairpermits/enter",
		func(c *rlock.Client, name string, n int) counted {
			return ofPermits(c.NewPermitSemaphore(name, rlock.WithFairness(), rlock.WithPermits(n)))
		},
		func(c *rlock.Client, name string) counted {
			return ofPermits(c.NewPermitSemaphore(name, rlock.WithFairness()))
		},
	},
}

func ofSemaphore(s *rlock.Semaphore) counted {
	return counted{
		s.SetPermits,
		func(ctx context.Context, n int) (func() error, error) {
			return func() error { return s.Release(bg, n) }, s.Acquire(ctx, n)
		},
		func(t testing.TB, permits, free int) { t.Helper(); shows(t, s, permits, free) },
	}
}

func ofPermits(s *rlock.PermitSemaphore) counted {
	return counted{
		s.SetPermits,
		func(ctx context.Context, n int) (func() error, error) {
			lease, err := s.Acquire(ctx, n)
			return func() error { return lease.Unlock(bg) }, err
		},
		func(t testing.TB, permits, free int) {
			t.Helper()
			if got, err := s.State(bg); err != nil || !got.Set || got.Permits != permits || got.Available != free {
				t.Fatalf("%+v, %v, want %d permits, %d of them free", got, err, permits, free)
			}
		},
	}
}

// eachNumbered runs a test for each type on each server.
func eachNumbered(t *testing.T, test func(t *testing.T, b *locktest.Backend, of numbered)) {
	for name, of := range allNumbered {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) { test(t, b, of) })
		})
	}
}

// WithPermits, an acquire sets the number if there is none, and no other: what an operator has set
// stays, and so does what others have set.
func TestWithPermitsSetsANumberIfThereIsNone(t *testing.T) {
	t.Parallel()
	eachNumbered(t, func(t *testing.T, b *locktest.Backend, of numbered) {
		c := b.NewClient(t)
		s, without := of.open(c, "s", 3), of.without(c, "s")
		_, err := without.take(bg, 1)
		locktest.WantErr(t, err, rlock.ErrNotSet, nil, rlock.ErrNotAcquired)
		giveBack, err := s.take(bg, 2)
		ok(t, err)
		s.shows(t, 3, 1)
		ok(t, giveBack())
		ok(t, without.set(bg, 2))
		giveBack, err = s.take(bg, 2)
		ok(t, err)
		s.shows(t, 2, 0)
		ok(t, giveBack())
		giveBack, err = of.open(c, "s", 9).take(bg, 1)
		ok(t, err)
		ok(t, giveBack())
		s.shows(t, 2, 2)
		one := 1 // where an int has 32 bits, one more than the most permits is a negative number, which is refused, too
		for _, n := range []int{0, -1, rlock.MaxPermits + one} {
			_, err := of.open(c, "other", n).take(bg, 1)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
		// Who needs more than that waits for them, and sets the number all the same.
		// On a busy machine the last look may have no answer when the wait is over: then it says that, and waits once more.
		for range 5 {
			ctx, cancel := context.WithTimeout(bg, 3*time.Second)
			_, err = of.open(c, "few", 2).take(ctx, 3)
			cancel()
			if !errors.Is(err, rlock.ErrUnreachable) {
				break
			}
		}
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		of.without(c, "few").shows(t, 2, 2)
	})
}

// The number is set once, and the permits are taken once, whatever becomes of the replies.
func TestWithPermitsSetsOnce(t *testing.T) {
	t.Parallel()
	for name, of := range allNumbered {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachLoss(t, of.script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
				c, proxy, _ := b.Faulty(t)
				plain := b.NewClient(t)
				locktest.OnNth(t, proxy, of.script, 1, action)
				giveBack, err := of.open(c, "s", 5).take(bg, 2)
				ok(t, err)
				of.without(plain, "s").shows(t, 5, 3)
				ok(t, giveBack())
				ok(t, of.without(plain, "s").set(bg, 4))
				ok(t, c.Shutdown(bg))
				proxy.Release()
				of.without(plain, "s").shows(t, 4, 4)
			})
		})
	}
}

// Redis loses its data while workers of several processes take permits: all go on, none hears that no
// permits are set, and there are as many as before. Those of a Semaphore that were taken before the
// loss add nothing.
func TestWithPermitsComesBackAfterALossOfData(t *testing.T) {
	t.Parallel()
	eachNumbered(t, func(t *testing.T, b *locktest.Backend, of numbered) {
		const permits, workers = 4, 16
		rdb := b.Client(t)
		var rounds atomic.Int64
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range workers {
			s := of.open(b.NewClient(t, rlock.WithLongestPoll(50*time.Millisecond)), "s", permits)
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					giveBack, err := s.take(bg, 1)
					if err != nil {
						t.Error(err)
						return
					}
					rounds.Add(1)
					if err := giveBack(); err != nil && !errors.Is(err, rlock.ErrLeaseLost) {
						t.Error(err)
					}
				}
			})
		}
		for range 3 {
			before := rounds.Load()
			locktest.Eventually(t, "they go on", func() bool { return rounds.Load() > before+100 || t.Failed() })
			ok(t, rdb.FlushDB(bg).Err())
		}
		before := rounds.Load()
		locktest.Eventually(t, "they go on", func() bool { return rounds.Load() > before+100 || t.Failed() })
		close(stop)
		wg.Wait()
		of.without(b.NewClient(t), "s").shows(t, permits, permits)
	})
}

// A release of a Semaphore that finds no number sets it, and no release puts back more permits than
// there are: those who took them before a loss of data have not taken these.
func TestReleaseAfterALossOfDataAddsNothing(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore/release", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		s := c.NewSemaphore("s", rlock.WithPermits(5))
		ok(t, s.Acquire(bg, 4))
		ok(t, rdb.Del(bg, "s", "{s}:rlock:all").Err())
		locktest.LoadScripts(t, rdb, "semaphore/release")
		locktest.OnNth(t, proxy, "semaphore/release", 1, action)
		ok(t, s.Release(bg, 1))
		shows(t, s, 5, 5)
		ok(t, s.Acquire(bg, 2))
		ok(t, s.Release(bg, 3))
		shows(t, s, 5, 5)
		ok(t, s.SetPermits(bg, 2))
		ok(t, s.Acquire(bg, 1))
		ok(t, s.Release(bg, 9))
		shows(t, s, 2, 2)
	})
}

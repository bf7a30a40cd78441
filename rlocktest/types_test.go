package rlocktest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// What is acquired in other ways than by Lock vanishes too, and its holder is told. It is renewed,
// lost to a pause, and stolen, like a lock.
func TestHoldersOfAllTypesAreTold(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error){
		"election": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
			return c.NewElection("a").Campaign(ctx, "me")
		},
		"permits": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
			s := c.NewPermitSemaphore("a")
			if _, err := s.TrySetPermits(ctx, 3); err != nil {
				return nil, err
			}
			return s.Acquire(ctx, 2)
		},
		"fair permits": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
			s := c.NewPermitSemaphore("a", rlock.WithFairness())
			if _, err := s.TrySetPermits(ctx, 3); err != nil {
				return nil, err
			}
			return s.Acquire(ctx, 2)
		},
		"double barrier": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
			return c.NewDoubleBarrier("a", 1).Enter(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := rlocktest.New(t)
			for range 2 { // the second time shows that nothing was left
				lease, err := acquire(t.Context(), srv.Client())
				if err != nil {
					t.Fatal(err)
				}
				done := lease.Done()
				srv.Remove("a")
				wantLost(t, lease, done, rlock.ErrRemoved)
			}
			lease, err := acquire(t.Context(), srv.Client())
			if err != nil {
				t.Fatal(err)
			}
			srv.Advance(time.Hour)
			if err := lease.Err(); err != nil {
				t.Error(err)
			}
			done := lease.Done()
			srv.Pause(time.Hour)
			wantLost(t, lease, done, rlock.ErrExpired)

			srv.Remove("a")
			if lease, err = acquire(t.Context(), srv.Client()); err != nil {
				t.Fatal(err)
			}
			done = lease.Done()
			other := srv.StealBy("a", acquire)
			wantLost(t, lease, done, rlock.ErrLeaseLost)
			if err := other.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// What nobody holds vanishes.
func TestRemoveOfWhatNobodyHolds(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	ctx, c := t.Context(), srv.Client()
	s, latch, barrier, once := c.NewSemaphore("s"), c.NewCountDownLatch("l"), c.NewBarrier("b"), c.NewOnce("o", rlock.MaxLease)
	run := func() (ran bool) {
		_, ran, err := once.Do(ctx, func(context.Context) ([]byte, error) { return nil, nil })
		if err != nil {
			t.Fatal(err)
		}
		return ran
	}
	cron, tick := c.NewCronJob("c"), time.Now().Truncate(time.Second)
	if run, err := cron.Do(ctx, tick, func(context.Context) error { return nil }); !run.Here || err != nil {
		t.Fatal(run, err)
	}
	_, err1 := s.TrySetPermits(ctx, 3)
	_, err2 := latch.TrySetCount(ctx, 3)
	if err := errors.Join(err1, err2, barrier.Set(ctx)); err != nil || !run() || run() {
		t.Fatal("not set", err)
	}
	for _, name := range []string{"s", "l", "b", "o", "c"} {
		srv.Remove(name)
	}
	if err := s.TryAcquire(ctx, 1); !errors.Is(err, rlock.ErrNotSet) {
		t.Error(err)
	}
	if n, err := latch.Count(ctx); n != 0 || err != nil {
		t.Error(n, err)
	}
	if err := barrier.Wait(ctx); err != nil {
		t.Error(err)
	}
	if !run() {
		t.Error("a result is left")
	}
	if _, known, err := cron.Peek(ctx, tick); known || err != nil {
		t.Error("a run is left", err)
	}
}

// Who runs a tick of a CronJob is told that it has vanished.
func TestRemoveOfARunOfACronJob(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	run, err := srv.Client().NewCronJob("c").Do(t.Context(), time.Now().Truncate(time.Second), func(ctx context.Context) error {
		srv.Remove("c")
		return ctx.Err()
	})
	if !run.Here || !errors.Is(err, rlock.ErrRemoved) {
		t.Error(run, err)
	}
}

// What is beside a lock that vanishes stays.
func TestRemoveLeavesOtherKeysAlone(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	names := []string{"job:places", "job:result", "job:ends", "job:timeout", "jobs", "{job}"}
	for _, name := range names {
		if err := srv.Redis().Set(t.Context(), name, "the user's", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lock(t, srv.Client().NewLock("job"))
	srv.Remove("job")
	for _, name := range names {
		if n, err := srv.Redis().Exists(t.Context(), name).Result(); n != 1 || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

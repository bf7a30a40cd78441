package rlocktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlocktest"
)

// Scripts that compare what they stored with the time see the clock of the test.
func TestTimeOfRedisGoesAlong(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, pass := range []struct {
		how string
		by  func(*rlocktest.Server, time.Duration)
	}{{"Advance", (*rlocktest.Server).Advance}, {"Pause", (*rlocktest.Server).Pause}} {
		t.Run(pass.how, func(t *testing.T) {
			t.Parallel()
			srv := rlocktest.New(t)
			before, err := srv.Redis().Time(ctx).Result()
			if err != nil {
				t.Fatal(err)
			}
			rw := srv.Client().NewFairReadWriteLock("prices")
			lock(t, rw.Reader, rlock.WithLease(20*time.Second))
			plain := srv.Client().NewReadWriteLock("stock")
			lock(t, plain.Reader, rlock.WithLease(20*time.Second))
			job := srv.Client().NewPriorityLock("job")
			lock(t, job, rlock.WithLease(time.Minute))
			pass.by(srv, 30*time.Second)

			now, err := srv.Redis().Time(ctx).Result()
			if err != nil || now.Sub(before) < 30*time.Second || srv.Now().Sub(now).Abs() > 10*time.Second {
				t.Errorf("TIME was %v and is %v, %v; the clock of the test is at %v", before, now, err, srv.Now())
			}
			for _, l := range []interface {
				rlock.Locker
				State(context.Context) (rlock.State, error)
			}{rw.Reader, plain.Reader} {
				if s, err := l.State(ctx); err != nil || len(s.Holders) > 0 {
					t.Errorf("a dead reader of %s is still there: %+v, %v", l.Name(), s, err)
				}
			}
			other := srv.NewClient()
			wantHeld(t, lock(t, other.NewFairReadWriteLock("prices").Writer))
			wantHeld(t, lock(t, other.NewReadWriteLock("stock").Writer))
			if s, err := job.State(ctx); err != nil || s.TTL > 30*time.Second || s.TTL < 20*time.Second {
				t.Errorf("30s after an acquire for a minute: %+v, %v", s, err)
			}
		})
	}
}

// A waiter that looks again after milliseconds does not make a test that lets
// minutes pass look as often.
func TestAdvanceSkipsLooksOfASpinLock(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	held := lock(t, srv.NewClient().NewSpinLock("job"))
	looks := make(chan int, 1)
	c := srv.NewClient(rlock.WithObserver(&attempts{looks: looks}))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _, _ = c.NewSpinLock("job").Lock(ctx) }()
	waitFor(t, func() bool { s, _ := c.NewSpinLock("job").State(ctx); return s.Waiters == 1 })
	start := time.Now()
	srv.Advance(10 * time.Minute)
	took := time.Since(start)
	cancel()
	// In real time it looks each 64 to 128 ms.
	if n := <-looks; n > 400+int(took/(64*time.Millisecond)) {
		t.Errorf("%d looks in 10 minutes", n)
	}
	wantHeld(t, held)
}

type attempts struct {
	locktest.Ignoring
	looks chan int
}

func (a *attempts) AcquireEnd(_ context.Context, e rlock.AcquireEvent) { a.looks <- e.Attempts }

// Who waits for a fair lock is woken when the lease that Steal took is unlocked.
func TestUnlockOfAStolenFairLockWakesItsWaiter(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t, rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(time.Hour))
	l := srv.Client().NewFairLock("job")
	other := srv.Steal("job")
	got := make(chan *rlock.Lease, 1)
	go func() {
		lease, err := l.Lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	waitFor(t, func() bool {
		n, _ := srv.Redis().LLen(context.Background(), "redisson_lock_queue:{job}").Result()
		return n == 1
	})
	waitFor(t, func() bool {
		channels, _ := srv.Redis().PubSubChannels(context.Background(), "redisson_lock__channel:{job}:*").Result()
		return len(channels) == 1
	})
	start := srv.Now()
	if err := other.Unlock(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, <-got)
	if d := srv.Now().Sub(start); d > time.Minute {
		t.Errorf("it came after %v", d)
	}
}

package counting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// WithWait bounds every wait that is not for a lease, beside whatever waits without it; the
// error is none of a context, and says what was seen.
func TestWaitsThatAreBounded(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		latch, barrier, s := c.NewCountDownLatch("latch"), c.NewBarrier("barrier"), c.NewSemaphore("s")
		for _, x := range []struct {
			name string
			shut func() error
			open func() error
			wait func(ctx context.Context, opts ...rlock.WaitOption) error
			says string
		}{
			{"latch", func() error { _, err := other.NewCountDownLatch("latch").TrySetCount(bg, 1); return err },
				func() error { return other.NewCountDownLatch("latch").CountDown(bg) }, latch.Wait, "left to count down: 1"},
			{"barrier", func() error { return other.NewBarrier("barrier").Set(bg) },
				func() error { return other.NewBarrier("barrier").Lift(bg) }, barrier.Wait, "the barrier is set"},
			{"semaphore", func() error { return other.NewSemaphore("s").AddPermits(bg, 1) },
				nil, func(ctx context.Context, opts ...rlock.WaitOption) error { return s.Acquire(ctx, 2, opts...) }, "permits free: 1"},
		} {
			t.Run(x.name, func(t *testing.T) {
				if err := x.shut(); err != nil {
					t.Fatal(err)
				}
				locktest.WantErr(t, x.wait(bg, rlock.WithWait(-1)), rlock.ErrInvalidArgument)
				locktest.WantErr(t, x.wait(bg, nil), rlock.ErrInvalidArgument)
				bounded := func(d time.Duration, says string) {
					t.Helper()
					err := x.wait(bg, rlock.WithWait(d))
					locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded, rlock.ErrUnreachable)
					if !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), x.says) {
						t.Errorf("%v does not say %q and %q", err, says, x.says)
					}
				}
				bounded(0, "not acquired: ")
				bounded(2*time.Second, "timed out after 2s; ")

				// The first in line leaves when its time is over; who waits behind it goes on.
				first, second := make(chan error, 1), make(chan error, 1)
				go func() { first <- x.wait(bg, rlock.WithWait(100*time.Millisecond)) }()
				go func() { second <- x.wait(bg, rlock.WithWait(locktest.Patience)) }()
				locktest.WantEnded(t, <-first, nil)
				if x.open == nil {
					x.open = x.shut // one permit more
				}
				if err := x.open(); err != nil {
					t.Fatal(err)
				}
				if err := <-second; err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// A waiter that becomes the head when another gets the last permit does not poll. Its error, and the errors of those
// behind it, say how many permits are free, and that they were not acquired.
func TestWaiterThatNeedNotPollKnowsThatNoPermitIsFree(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewSemaphore("s", rlock.WithPermits(1))
		if err := s.Acquire(bg, 1); err != nil {
			t.Fatal(err)
		}
		begin := func(waiters int, opts ...rlock.WaitOption) <-chan error {
			t.Helper()
			got := make(chan error, 1)
			go func() { got <- s.Acquire(bg, 1, opts...) }()
			locktest.Eventually(t, "it waits", func() bool { state, err := s.State(bg); return err == nil && state.Waiters == waiters })
			return got
		}
		first := begin(1)
		others := []<-chan error{begin(2, rlock.WithWait(time.Second)), begin(3, rlock.WithWait(time.Second))}
		if err := b.NewClient(t).NewSemaphore("s").Release(bg, 1); err != nil { // a release of this client would make the head poll
			t.Fatal(err)
		}
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		for _, other := range others {
			err := <-other
			locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable)
			if err == nil || !strings.Contains(err.Error(), "permits free: 0") {
				t.Errorf("%v does not say how many permits are free", err)
			}
		}
	})
}

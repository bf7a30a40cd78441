package counting

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// permitsOf is a PermitSemaphore with permits.
func permitsOf(t testing.TB, c *rlock.Client, name string, n int) *rlock.PermitSemaphore {
	t.Helper()
	s := c.NewPermitSemaphore(name)
	if _, err := s.TrySetPermits(bg, n); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustAcquire(t testing.TB, s *rlock.PermitSemaphore, n int, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	lease, err := s.TryAcquire(bg, n, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// wantFree checks how many permits are free and how many are held, in Redis itself.
func wantFree(t testing.TB, rdb redis.UniversalClient, name string, free, held int) {
	t.Helper()
	got, err := rdb.Get(bg, name).Int()
	if err != nil || got != free {
		t.Fatalf("%d permits are free (%v), want %d", got, err, free)
	}
	if n := rdb.ZCard(bg, "{"+name+"}:timeout").Val(); n != int64(held) {
		t.Fatalf("%d permits are held, want %d", n, held)
	}
}

// acquires begins an Acquire.
func acquires(t locktest.TB, s *rlock.PermitSemaphore, n int, opts ...rlock.AcquireOption) *locktest.Attempt {
	return locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) { return s.Acquire(ctx, n, opts...) })
}

// stand waits until so many wait in the client of s.
func stand(t testing.TB, s *rlock.PermitSemaphore, n int) {
	t.Helper()
	locktest.Eventually(t, "they wait", func() bool {
		state, err := s.State(bg)
		return err == nil && state.Waiters == n
	})
}

// The error says who has the permits, as Lease.Owner does, and that there are not as many.
func TestRefusalOfPermitsSaysWhy(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, opts := range map[string][]rlock.PermitSemaphoreOption{"s": nil, "fair": {rlock.WithFairness()}} {
			s := locktest.MustSetPermits(t, b.NewClient(t).NewPermitSemaphore(name, opts...), 3)
			if _, err := s.TryAcquire(bg, 5); err == nil || !strings.Contains(err.Error(), "fewer permits") {
				t.Errorf("%s: 5 of 3: %v", name, err)
			}
			lease, err := s.Acquire(bg, 3)
			if err != nil {
				t.Fatal(err)
			}
			var e *rlock.Error
			if _, err := s.TryAcquire(bg, 1); !errors.As(err, &e) || e.Holder != lease.Owner() {
				t.Errorf("%s: held by %s: %v", name, lease.Owner(), err)
			}
			locktest.MustUnlock(t, lease)
		}
	})
}

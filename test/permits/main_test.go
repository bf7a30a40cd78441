// Package permits shows what a PermitSemaphore promises: what is in Redis after each step,
// that no permit is taken twice or lost, how its waiters are served, and what it tells of
// a lease that is lost.
package permits

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

// semaphore is a PermitSemaphore with permits.
func semaphore(t testing.TB, c *rlock.Client, name string, n int) *rlock.PermitSemaphore {
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

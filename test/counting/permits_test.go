package counting

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
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

func mustAcquire(t testing.TB, s *rlock.PermitSemaphore, n int, opts ...rlock.TryOption) *rlock.Lease {
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

// The error says how many permits exist, are free and are wanted, and who has the others, as
// Lease.HoldID does.
func TestRefusalOfPermitsSaysWhy(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, opts := range map[string][]rlock.PermitSemaphoreOption{"s": nil, "fair": {rlock.WithFairness()}} {
			c := b.NewClient(t, rlock.WithWatchdogLease(time.Hour))
			s := locktest.MustSetPermits(t, c.NewPermitSemaphore(name, opts...), 3)
			says := func(n int, want string) {
				t.Helper()
				_, err := s.TryAcquire(bg, n)
				want = fmt.Sprintf(`rlock: "%s": not acquired: %s`, name, want)
				if err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
			}
			says(5, "permits free: 3 of 3, wanted: 5")
			first := mustAcquire(t, s, 2, rlock.WithLease(30*time.Minute)) // ends before the other
			who := "held by this client (" + first.HoldID() + ")"
			if opts != nil { // else Redis knows permits, not holders
				says(2, "permits free: 1 of 3, wanted: 2; "+who)
			}
			who = "the one that expires first is " + who
			if opts == nil {
				says(2, "permits free: 1 of 3, wanted: 2; "+who)
			}
			second := mustAcquire(t, s, 1)
			says(4, "permits free: 0 of 3, wanted: 4; "+who)
			var e *rlock.Error
			if _, err := s.TryAcquire(bg, 1); !errors.As(err, &e) || e.HolderID != first.HoldID() {
				t.Errorf("%s: held by %s: %v", name, first.HoldID(), err)
			}
			locktest.MustUnlock(t, first)
			locktest.MustUnlock(t, second)
			ok(t, s.AddPermits(bg, -4))
			says(1, "permits free: -1 of -1, wanted: 1")
		}
	})
}

// Who does not look, as others of its client wait before it, is told what it wants itself.
func TestRefusalSaysWhatTheWaiterItselfWants(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		s := permitsOf(t, c, "s", 5)
		mustAcquire(t, s, 4)
		head := acquires(t, s, 2)
		stand(t, s, 1)
		locktest.Eventually(t, "the head tells what it sees", func() bool {
			behind := acquires(t, s, 3)
			stand(t, s, 2)
			err := behind.GiveUp()
			return strings.Contains(err.Error(), "permits free: 1 of 5, wanted: 3; the one that expires first is held by")
		})
		head.GiveUp()
	})
}

// With fairness, permits may be free and be for those who came before.
func TestRefusalSaysThatOthersGoFirst(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := fairPermits(t, b.NewClient(t), 3)
		mustAcquire(t, s, 2)
		head := acquires(t, s, 2)
		stand(t, s, 1)
		if _, err := s.TryAcquire(bg, 1); err == nil || !strings.Contains(err.Error(), "permits free: 1 of 3, wanted: 1; held by") {
			t.Error(err)
		}
		head.GiveUp()
	})
}

// SetPermits makes the number of permits what it says, whoever holds some: it is counted once
// whatever becomes of the reply, and wakes those for whom there are enough now.
func TestSetPermitsChangesTheNumber(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]rlock.PermitSemaphoreOption{"permits": nil, "fairpermits": {rlock.WithFairness()}} {
		locktest.EachLoss(t, kind, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
			patient := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient), rlock.WithWatchdogLease(locktest.Patient)}
			c, proxy, rdb := b.Faulty(t, patient...)
			s, other := c.NewPermitSemaphore("s", opts...), b.NewClient(t, patient...).NewPermitSemaphore("s", opts...)
			is := func(all, free int) {
				t.Helper()
				if state, err := other.State(bg); err != nil || state.Permits != all || state.Available != free {
					t.Fatalf("%+v %v, want %d permits, %d free", state, err, all, free)
				}
			}
			locktest.LoadScripts(t, rdb, kind+"/set")
			seen := locktest.OnNth(t, proxy, kind+"/set", 1, action)
			ok(t, s.SetPermits(bg, 10))
			is(10, 10)
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			lease := mustAcquire(t, other, 8)
			locktest.OnNth(t, proxy, kind+"/set", 1, action)
			ok(t, s.SetPermits(bg, 5))
			is(5, -3)
			w := acquires(t, other, 4)
			stand(t, other, 1)
			ok(t, s.SetPermits(bg, 12))
			second := w.Held()
			is(12, 0)
			ok(t, lease.Err())
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, second)
			is(12, 12)
			locktest.WantErr(t, s.SetPermits(bg, 0), rlock.ErrInvalidArgument)
		})
	}
}

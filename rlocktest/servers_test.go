package rlocktest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// redLock is a RedLock of one process on some servers: of clients of their own, or of those
// that the servers were made with.
func redLock(t *testing.T, servers []*rlocktest.Server, another bool) *rlock.RedLock {
	t.Helper()
	var clients []*rlock.Client
	for _, srv := range servers {
		c := srv.Client()
		if another {
			c = srv.NewClient()
		}
		clients = append(clients, c)
	}
	l, err := rlock.NewRedLock("job", clients, rlock.WithNodeTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAdvanceOfOneServerKeepsARedLock(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 5)
	lease := lock(t, redLock(t, servers, false))
	rivals := redLock(t, servers, true)
	for _, srv := range servers { // each moves the clock of all
		before := srv.Now()
		srv.Advance(time.Minute)
		for _, other := range servers {
			if passed := other.Now().Sub(before); passed < time.Minute || passed > 2*time.Minute {
				t.Errorf("%v have passed on one of the servers", passed)
			}
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		if second, err := rivals.TryLock(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatalf("a second owner: %v, %v", second, err)
		}
	}
	wantHeld(t, lease)
}

func TestAdvancePastTheFixedLeaseOfARedLock(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 3)
	lease := lock(t, redLock(t, servers, false), rlock.WithLease(time.Hour))
	done := lease.Done()
	servers[2].Advance(50 * time.Minute)
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	servers[1].Advance(10 * time.Minute)
	next := lock(t, redLock(t, servers, true))
	wantLost(t, lease, done, rlock.ErrExpired)
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	wantHeld(t, next)
}

func TestPauseEndsARedLockForItsHolderToo(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 5)
	lease := lock(t, redLock(t, servers, false))
	done := lease.Done()
	servers[3].Pause(time.Minute)
	wantLost(t, lease, done, rlock.ErrExpired)
	wantHeld(t, lock(t, redLock(t, servers, true)))
}

func TestAdvanceKeepsAMultiLockOverSeveralServers(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 2)
	multi := func(another bool) *rlock.MultiLock {
		var members []rlock.Locker
		for _, srv := range servers {
			c := srv.Client()
			if another {
				c = srv.NewClient()
			}
			members = append(members, c.NewLock("job"))
		}
		l, err := rlock.NewMultiLock(members)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	lease := lock(t, multi(false))
	for _, srv := range servers {
		srv.Advance(2 * time.Minute)
	}
	if second, err := multi(true).TryLock(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatalf("a second owner: %v, %v", second, err)
	}
	wantHeld(t, lease)

	// A member that is lost ends all of it, at the server of the other one too.
	lease = lock(t, multi(false))
	done := lease.Done()
	servers[1].Remove("job")
	wantLost(t, lease, done, rlock.ErrRemoved)
	servers[0].Advance(time.Minute)
	wantHeld(t, lock(t, multi(true)))
}

// A node that fails is one: the others are a quorum, also for the renewals.
func TestAdvanceWhileANodeFails(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 3)
	lease := lock(t, redLock(t, servers, false))
	servers[0].Fail(outage)
	servers[1].Advance(time.Minute)
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	servers[0].Recover()
	servers[1].Advance(time.Minute)
	wantHeld(t, lease)
}

// Each server has its data by itself.
func TestServersOfOneClockShareNothingElse(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 2)
	lease := lock(t, servers[0].Client().NewLock("job"))
	wantHeld(t, lock(t, servers[1].Client().NewLock("job")))
	servers[1].Fail("NOPERM no permissions")
	servers[0].Remove("job")
	if err := lease.Unlock(context.Background()); !errors.Is(err, rlock.ErrRemoved) {
		t.Errorf("Unlock() = %v, want %v", err, rlock.ErrRemoved)
	}
}

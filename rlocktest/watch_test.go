package rlocktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// A watch runs on the clock of the test: when the longest poll has been let pass,
// it has told what has changed.
func TestWatchGoesAlongWithTheClock(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := srv.Client().NewLock("job")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	states, err := l.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	latest := func(after string) rlock.State {
		t.Helper()
		srv.Advance(rlock.DefaultLongestPoll)
		select {
		case s := <-states:
			return s
		default:
			t.Fatalf("after %s nothing was told", after)
			panic("unreachable")
		}
	}
	free := func(after string) {
		t.Helper()
		if s := latest(after); s.Locked() {
			t.Fatalf("after %s: %+v", after, s)
		}
	}
	held := func(after string, lease *rlock.Lease) {
		t.Helper()
		if s := latest(after); len(s.Holders) != 1 || s.Holders[0].HoldID != lease.HoldID() {
			t.Fatalf("after %s: %+v, want the owner %s", after, s, lease.HoldID())
		}
	}
	free("the start")

	other := srv.Steal("job")
	held("Steal", other)
	if err := other.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	free("Unlock")

	mine := lock(t, l)
	held("TryLock", mine)
	srv.Advance(10 * time.Minute) // it is renewed
	if len(states) > 0 {
		t.Fatalf("told of %+v: only the TTL has changed", <-states)
	}
	srv.Remove("job")
	free("Remove")
	wantLost(t, mine, mine.Done(), rlock.ErrRemoved)

	fixed := lock(t, srv.NewClient().NewLock("job"), rlock.WithLease(time.Hour))
	held("TryLock with a lease", fixed)
	srv.Advance(time.Hour)
	free("the end of the lease")

	mine = lock(t, srv.NewClient().NewLock("job"))
	held("TryLock", mine)
	srv.Fail(outage)
	srv.Advance(rlock.DefaultWatchdogLease)
	if len(states) > 0 {
		t.Fatalf("told of %+v while Redis was not there", <-states)
	}
	srv.Recover()
	// A command that was under way is repeated in real time.
	select {
	case s := <-states:
		if s.Locked() {
			t.Fatalf("after the outage: %+v", s)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("after the outage nothing was told")
	}
}

package rlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

const outage = "LOADING Redis is loading the dataset in memory"

func lock(t *testing.T, l rlock.Locker, opts ...rlock.TryOption) *rlock.Lease {
	t.Helper()
	lease, err := l.TryLock(context.Background(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// wantLost checks that the holder has been told, without asking again.
func wantLost(t *testing.T, lease *rlock.Lease, done <-chan struct{}, cause error) {
	t.Helper()
	select {
	case <-done:
	default:
		t.Error("Done is open")
	}
	if err := lease.Err(); !errors.Is(err, rlock.ErrLeaseLost) || !errors.Is(err, cause) {
		t.Errorf("Err() = %v, want a loss because of %q", err, cause)
	}
	if err := lease.Unlock(context.Background()); !errors.Is(err, cause) {
		t.Errorf("Unlock() = %v, want %q", err, cause)
	}
}

func wantHeld(t *testing.T, lease *rlock.Lease) {
	t.Helper()
	if err := lease.Err(); err != nil {
		t.Errorf("Err() = %v, want a lease that lasts", err)
	}
	if err := lease.Unlock(context.Background()); err != nil {
		t.Errorf("Unlock() = %v", err)
	}
}

func TestAdvanceKeepsRenewedHolds(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := srv.Client().NewLock("job")
	lease := lock(t, l)
	before := srv.Now()

	srv.Advance(time.Hour)

	if passed := srv.Now().Sub(before); passed < time.Hour || passed > 2*time.Hour {
		t.Errorf("%v passed, want an hour", passed)
	}
	if rest := lease.Deadline().Sub(srv.Now()); rest < 15*time.Second || rest > 30*time.Second {
		t.Errorf("the lease lasts for %v more, want about two thirds of 30s or more", rest)
	}
	if _, err := srv.NewClient().NewLock("job").TryLock(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("another client's TryLock: %v, want %v", err, rlock.ErrNotAcquired)
	}
	wantHeld(t, lease)
}

func TestAdvanceByOneRenewalMovesTheDeadline(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lease := lock(t, srv.Client().NewLock("job"))
	before := lease.Deadline()
	srv.Advance(rlock.DefaultWatchdogLease / 3)
	if moved := lease.Deadline().Sub(before); moved < 9*time.Second {
		t.Errorf("the deadline has moved by %v, want about 10s", moved)
	}
	wantHeld(t, lease)
}

func TestAdvanceKeepsManyHolds(t *testing.T) {
	t.Parallel()
	// A command may take long here: a pipeline of a hundred on a busy machine.
	srv := rlocktest.New(t, rlock.WithCommandTimeout(time.Minute))
	var leases []*rlock.Lease
	for i := range 120 { // more than one pipeline
		leases = append(leases, lock(t, srv.Client().NewLock(strconv.Itoa(i))))
	}
	srv.Advance(2 * rlock.DefaultWatchdogLease)
	for _, lease := range leases {
		wantHeld(t, lease)
	}
}

func TestAdvanceEndsFixedLeases(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := srv.Client().NewLock("job")
	lease := lock(t, l, rlock.WithLease(time.Minute))
	done := lease.Done()

	srv.Advance(40 * time.Second)
	if err := lease.Err(); err != nil {
		t.Fatalf("after 40s of a minute: %v", err)
	}
	srv.Advance(20 * time.Second)

	wantLost(t, lease, done, rlock.ErrExpired)
	wantHeld(t, lock(t, l))
}

func TestAdvanceReachesMaxHold(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lease := lock(t, srv.Client().NewLock("job", rlock.WithMaxHold(time.Minute)))
	done := lease.Done()
	srv.Advance(time.Minute)
	wantLost(t, lease, done, rlock.ErrMaxHold)
}

func TestAdvanceWakesWaiters(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	holder := lock(t, srv.NewClient().NewLock("job"), rlock.WithLease(time.Minute))
	l := srv.Client().NewLock("job")
	got := make(chan *rlock.Lease)
	go func() {
		lease, err := l.Lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	waitFor(t, func() bool { s, _ := l.State(t.Context()); return s.Waiters == 1 })

	srv.Advance(time.Minute + time.Second)

	lease := <-got
	if lease.Token() <= holder.Token() {
		t.Errorf("token %d after %d", lease.Token(), holder.Token())
	}
	wantHeld(t, lease)
}

func TestPauseLosesRenewedHolds(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := srv.Client().NewLock("job")
	lease := lock(t, l)
	done := lease.Done()

	srv.Pause(20 * time.Second) // shorter than the lease
	if err := lease.Err(); err != nil {
		t.Fatalf("after 20s of 30s: %v", err)
	}
	srv.Pause(31 * time.Second)

	wantLost(t, lease, done, rlock.ErrExpired)
	wantHeld(t, lock(t, srv.NewClient().NewLock("job")))
}

func TestRemoveTellsTheHolder(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t, rlock.WithPrefix("app:"))
	l := srv.Client().NewLock("job")
	lease, other := lock(t, l), lock(t, srv.NewClient().NewLock("other"))
	ctx := lease.Context(t.Context())
	done := lease.Done()

	srv.Remove(l.Name())

	if cause := context.Cause(ctx); !errors.Is(cause, rlock.ErrRemoved) {
		t.Errorf("cause of the context: %v", cause)
	}
	wantLost(t, lease, done, rlock.ErrRemoved)
	wantHeld(t, other)
	wantHeld(t, lock(t, l))
}

// Time stands still while a lock is taken away, and other locks are left alone.
func TestRemoveAndStealLeaveOtherLocksAlone(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"lock":     func(c *rlock.Client, name string) rlock.Locker { return c.NewLock(name) },
		"write":    func(c *rlock.Client, name string) rlock.Locker { return c.NewReadWriteLock(name).Writer },
		"read":     func(c *rlock.Client, name string) rlock.Locker { return c.NewReadWriteLock(name).Reader },
		"priority": func(c *rlock.Client, name string) rlock.Locker { return c.NewPriorityLock(name) },
	} {
		for _, fixed := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(name, " ", fixed), func(t *testing.T) {
				t.Parallel()
				srv := rlocktest.New(t)
				var opts []rlock.TryOption
				if fixed > 0 {
					opts = append(opts, rlock.WithLease(fixed))
				}
				other := lock(t, open(srv.Client(), "other"), rlock.WithLease(20*time.Second))
				first := lock(t, open(srv.Client(), "job"), opts...)
				done, start, at := first.Done(), time.Now(), srv.Now()
				srv.Remove("job")
				wantLost(t, first, done, rlock.ErrRemoved)
				second := lock(t, open(srv.Client(), "job"), opts...)
				done = second.Done()
				srv.StealWith(func(c *rlock.Client) rlock.Locker { return open(c, "job") })
				select {
				case <-done:
				default:
					t.Error("not told of the theft")
				}
				if passed := srv.Now().Sub(at) - time.Since(start); passed > time.Second {
					t.Errorf("%v passed", passed)
				}
				wantHeld(t, other)
			})
		}
	}
}

// Of a RedLock Remove takes the vote of one server.
func TestRemoveTakesTheVotesOfARedLock(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 5)
	l := redLock(t, servers, false)
	lease := lock(t, l)
	done := lease.Done()
	for i, srv := range servers[:3] {
		if err := lease.Err(); err != nil {
			t.Fatalf("lost with %d votes: %v", 5-i, err)
		}
		srv.Remove(l.Name())
	}
	wantLost(t, lease, done, rlock.ErrRemoved)
}

func TestRemoveOfAFreeLockDoesNothing(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	before := srv.Now()
	srv.Remove("job")
	if passed := srv.Now().Sub(before); passed > 5*time.Second {
		t.Errorf("%v passed", passed)
	}
}

func TestStealTellsTheHolder(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := srv.Client().NewLock("job")
	lease := lock(t, l)
	done := lease.Done()

	other := srv.Steal("job")

	wantLost(t, lease, done, rlock.ErrTakenOver)
	if other.Token() <= lease.Token() {
		t.Errorf("token %d after %d", other.Token(), lease.Token())
	}
	s, err := l.State(t.Context())
	if err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != other.HoldID() {
		t.Errorf("State() = %+v, %v, want the holder %s", s, err, other.HoldID())
	}
	srv.Advance(time.Hour)
	if _, err := l.TryLock(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("an hour later: %v, want a lock that is still held", err)
	}
}

// Another test that removes a lock of the same name asks all clients of the process. While Steal has removed the lock
// and not taken it, that waits.
func TestStealBesideARemoveOfTheSameName(t *testing.T) {
	t.Parallel()
	srv, other := rlocktest.New(t), rlocktest.New(t)
	lease := lock(t, srv.Client().NewLock("job"))
	done, removed := lease.Done(), make(chan struct{})
	srv.StealBy("job", func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		go func() {
			defer close(removed)
			other.Remove("job")
		}()
		select {
		case <-done: // it was asked
		case <-time.After(200 * time.Millisecond): // long enough, mostly, for who does not wait
		}
		return c.NewLock("job").TryLock(ctx)
	})
	<-removed
	wantLost(t, lease, done, rlock.ErrTakenOver)
}

func TestUnlockOfAStolenLockWakesWaiters(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	other := srv.Steal("job")
	l := srv.Client().NewLock("job")
	got := make(chan *rlock.Lease)
	go func() {
		lease, err := l.Lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	waitFor(t, func() bool { s, _ := l.State(t.Context()); return s.Waiters == 1 })
	if err := other.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, <-got)
}

func TestFailForLessThanALeaseIsOutlasted(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lease := lock(t, srv.Client().NewLock("job"))
	srv.Fail(outage)
	srv.Advance(20 * time.Second)
	srv.Recover()
	srv.Advance(time.Hour)
	wantHeld(t, lease)
}

func TestFailForALeaseLosesHolds(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lease := lock(t, srv.Client().NewLock("job"))
	done := lease.Done()
	srv.Fail(outage)
	srv.Advance(rlock.DefaultWatchdogLease)
	srv.Recover()
	select { // while commands fail, Advance waits for nobody for long
	case <-done:
	case <-time.After(20 * time.Second):
	}
	wantLost(t, lease, done, rlock.ErrRefused)
}

func TestFailEndsCallsAfterTheCommandTimeout(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t, rlock.WithCommandTimeout(2*time.Second)) // within which a busy machine answers
	srv.Fail(outage)
	l := srv.Client().NewLock("job")
	if _, err := l.TryLock(t.Context()); !errors.Is(err, rlock.ErrRefused) {
		t.Errorf("TryLock() = %v, want %v", err, rlock.ErrRefused)
	}
	srv.Recover()
	wantHeld(t, lock(t, l))
}

// A test may end while it holds locks, waits for some, and the server fails.
func TestCleanUpCopes(t *testing.T) {
	t.Parallel()
	var lease *rlock.Lease
	waiting := make(chan error, 1)
	t.Run("test", func(t *testing.T) {
		srv := rlocktest.New(t)
		l := srv.Client().NewLock("job")
		lease = lock(t, l)
		go func() {
			_, err := l.Lock(context.Background())
			waiting <- err
		}()
		waitFor(t, func() bool { s, _ := l.State(context.Background()); return s.Waiters == 1 })
		srv.Fail(outage)
	})
	if err := <-waiting; !errors.Is(err, rlock.ErrClosed) {
		t.Errorf("the waiter got %v, want %v", err, rlock.ErrClosed)
	}
	if err := lease.Err(); !errors.Is(err, rlock.ErrClosed) {
		t.Errorf("Err() = %v, want %v", err, rlock.ErrClosed)
	}
}

// The clock may move while others use the locks.
func TestAdvanceBesideWork(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var inside, sections atomic.Int32
	stop := make(chan struct{})
	workers := make(chan error, 4)
	for i := range cap(workers) {
		c := srv.Client()
		if i%2 == 1 {
			c = srv.NewClient()
		}
		go func() {
			for {
				select {
				case <-stop:
					workers <- nil
					return
				default:
				}
				err := rlock.Do(context.Background(), c.NewLock("job"), func(context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two inside")
					}
					sections.Add(1)
					inside.Add(-1)
					return nil
				})
				if err != nil {
					workers <- err
					return
				}
			}
		}()
	}
	for range 6 {
		srv.Advance(11 * time.Second)
	}
	waitFor(t, func() bool { return sections.Load() > 20 })
	close(stop)
	for range cap(workers) {
		if err := <-workers; err != nil {
			t.Error(err)
		}
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited too long")
		}
	}
}

func TestEachTypeCanBeRemovedAndStolen(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(c *rlock.Client) rlock.Locker{
		"fair":            func(c *rlock.Client) rlock.Locker { return c.NewFairLock("x") },
		"fenced":          func(c *rlock.Client) rlock.Locker { return c.NewFencedLock("x") },
		"spin":            func(c *rlock.Client) rlock.Locker { return c.NewSpinLock("x") },
		"write":           func(c *rlock.Client) rlock.Locker { return c.NewReadWriteLock("x").Writer },
		"read":            func(c *rlock.Client) rlock.Locker { return c.NewReadWriteLock("x").Reader },
		"fair write":      func(c *rlock.Client) rlock.Locker { return c.NewFairReadWriteLock("{x}y").Writer },
		"fair read":       func(c *rlock.Client) rlock.Locker { return c.NewFairReadWriteLock("x").Reader },
		"priority":        func(c *rlock.Client) rlock.Locker { return c.NewPriorityLock("x") },
		"with own braces": func(c *rlock.Client) rlock.Locker { return c.NewPriorityLock("{x}y") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			srv := rlocktest.New(t)
			l := open(srv.Client())
			lease, err := l.Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			srv.Remove(l.Name())
			if err := lease.Err(); !errors.Is(err, rlock.ErrRemoved) {
				t.Fatalf("after Remove: %v", err)
			}
			_ = lease.Unlock(ctx)
			if lease, err = l.Lock(ctx); err != nil {
				t.Fatal(err)
			}
			other := srv.StealWith(open)
			if err := lease.Err(); !errors.Is(err, rlock.ErrLeaseLost) {
				t.Fatalf("after StealWith: %v", err)
			}
			_ = lease.Unlock(ctx)
			if err := other.Unlock(ctx); err != nil {
				t.Fatalf("the other's lease: %v", err)
			}
		})
	}
}

// A MultiLock has been told when the method has returned, as a lock has.
func TestMultiLockIsTold(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(srv *rlocktest.Server){
		"Remove": func(srv *rlocktest.Server) { srv.Remove("a") },
		"Steal":  func(srv *rlocktest.Server) { srv.Steal("a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 30 {
				srv := rlocktest.New(t)
				m, err := rlock.NewMultiLock([]rlock.Locker{srv.Client().NewLock("a"), srv.Client().NewFairLock("b")})
				if err != nil {
					t.Fatal(err)
				}
				lease := lock(t, m)
				ctx := lease.Context(context.Background())
				done := lease.Done()
				take(srv)
				select {
				case <-done:
				default:
					t.Fatal("Done is open")
				}
				if ctx.Err() == nil {
					t.Fatal("the context has not ended")
				}
			}
		})
	}
}

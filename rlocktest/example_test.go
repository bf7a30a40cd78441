package rlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// reporter is the code under test: it writes the report in small steps, in one
// process at a time, and stops when it has lost its lock.
type reporter struct {
	locks   *rlock.Client
	written chan int
}

func (r *reporter) run(ctx context.Context) error {
	return rlock.Do(ctx, r.locks.NewLock("report"), func(ctx context.Context) error {
		for i := 0; ; i++ {
			select {
			case r.written <- i:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}, rlock.WithWait(0))
}

// Example is a unit test of code that must stop when it loses its lock. It is
// shown without its func line: func TestReporterStops(t *testing.T).
func Example() {
	var t *testing.T // what the test was given

	srv := rlocktest.New(t)
	r := &reporter{locks: srv.Client(), written: make(chan int)}
	result := make(chan error, 1)
	go func() { result <- r.run(t.Context()) }()

	<-r.written              // it has the lock, and is at work
	srv.Advance(time.Minute) // which may take longer than the lease of 30s
	<-r.written

	srv.Steal("report") // another process has the lock now
	if err := <-result; !errors.Is(err, rlock.ErrTakenOver) {
		t.Errorf("run() = %v, want it to stop because of %q", err, rlock.ErrTakenOver)
	}
}

// While another process holds the lock, nothing must be written.
func ExampleServer_Steal() {
	var t *testing.T // what the test was given

	srv := rlocktest.New(t)
	other := srv.Steal("report")
	r := &reporter{locks: srv.Client()}

	if err := r.run(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("run() = %v, want %v", err, rlock.ErrNotAcquired)
	}
	if err := other.Err(); err != nil {
		t.Errorf("the other process lost its lock: %v", err)
	}
}

// A unit test of code that must not write any more when it has lost its lock. It is run again and
// again, with a loss at each point.
func ExampleLoseAt() {
	var t *testing.T // what the test was given

	rlocktest.LoseAt(t, "account", func(t *testing.T, r *rlocktest.Round) {
		locks := r.New(t).Client()
		err := transfer(t.Context(), locks, func(ctx context.Context, _ string) error {
			return r.Write(ctx) // in place of the database
		})
		if r.Lost() != errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("lost: %v, but transfer returned %v", r.Lost(), err)
		}
	})
}

// In a synctest bubble an hour takes no time.
func ExampleNew_synctest() {
	var t *testing.T // what the test was given

	synctest.Test(t, func(t *testing.T) {
		srv := rlocktest.New(t) // in the bubble, with its t
		srv.Steal("report")
		_, err := srv.Client().NewLock("report").Lock(t.Context(), rlock.WithWait(time.Hour))
		if !errors.Is(err, rlock.ErrNotAcquired) {
			t.Errorf("after an hour: %v", err)
		}
	})
}

// A RedLock needs servers that share a clock.
func ExampleNewServers() {
	var t *testing.T // what the test was given

	nodes := rlocktest.NewServers(t, 5)
	var clients []*rlock.Client
	for _, node := range nodes {
		clients = append(clients, node.Client())
	}
	l, err := rlock.NewRedLock("report", clients)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := l.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	nodes[0].Advance(time.Minute) // on all nodes: the lease is renewed
	for _, node := range nodes[:3] {
		if err := lease.Err(); err != nil {
			t.Errorf("lost with a quorum of votes: %v", err)
		}
		node.Remove(l.Name())
	}
	if err := lease.Err(); !errors.Is(err, rlock.ErrRemoved) {
		t.Errorf("Err() = %v without a quorum, want %v", err, rlock.ErrRemoved)
	}
}

// The examples, as the tests that they are.

func TestReporterStops(t *testing.T) {
	srv := rlocktest.New(t)
	r := &reporter{locks: srv.Client(), written: make(chan int)}
	result := make(chan error, 1)
	go func() { result <- r.run(t.Context()) }()

	<-r.written
	srv.Advance(time.Minute)
	<-r.written

	srv.Steal("report")
	if err := <-result; !errors.Is(err, rlock.ErrTakenOver) {
		t.Errorf("run() = %v, want it to stop because of %q", err, rlock.ErrTakenOver)
	}
}

func TestReporterLeavesTheReportToOthers(t *testing.T) {
	srv := rlocktest.New(t)
	other := srv.Steal("report")
	r := &reporter{locks: srv.Client()}

	if err := r.run(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("run() = %v, want %v", err, rlock.ErrNotAcquired)
	}
	if err := other.Err(); err != nil {
		t.Errorf("the other process lost its lock: %v", err)
	}
}

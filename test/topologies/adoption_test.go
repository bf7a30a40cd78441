package topologies

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// running is the run of a tick that goes on until it is ended.
type running struct {
	holdID string
	lease  *rlock.Lease
	ended  chan struct{}
	result chan error
}

func runs(t *testing.T, job *rlock.CronJob, tick time.Time) *running {
	t.Helper()
	r := &running{ended: make(chan struct{}), result: make(chan error, 1)}
	began := make(chan *rlock.Lease)
	go func() {
		run, err := job.Do(bg, tick, func(ctx context.Context) error {
			lease, _ := rlock.LeaseFrom(ctx)
			began <- lease
			select {
			case <-r.ended:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err == nil && !run.Here {
			err = errors.New("another has run it")
		}
		r.result <- err
	}()
	r.lease = <-began
	r.holdID = r.lease.HoldID()
	return r
}

// end has the function return, and checks that others are told of its run.
func (r *running) end(t *testing.T, other *rlock.CronJob, tick time.Time) {
	t.Helper()
	close(r.ended)
	if err := <-r.result; err != nil {
		t.Error(err)
	}
	locktest.Eventually(t, "others are told of the run", func() bool {
		run, err := other.Do(bg, tick, func(context.Context) error { t.Error("it runs twice"); return nil })
		return err == nil && !run.Here && run.HoldID == r.holdID && run.Err == nil && !run.End.IsZero()
	})
}

// While a slot moves, a hold is adopted and a job runs on. A detached hold is adopted when the slot has moved: its
// keys are in two places until then.
func TestAdoptionAndRunsWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	const tag = "{goes on}"
	a, b := locktest.Join(t, c.Client(), rlock.WithWatchdogLease(1500*time.Millisecond)), locktest.NewClient(t, c.Client())
	first := locktest.MustLock(t, locktest.NewClient(t, c.Client()).NewLock(tag+"held"))
	handle, err := first.Detach(bg)
	if err != nil {
		t.Fatal(err)
	}
	known := locktest.MustLock(t, a.NewLock(tag+"known"))
	tick := time.Now().Truncate(time.Second)
	run := runs(t, a.NewCronJob(tag+"job"), tick)
	adopted := make(chan *rlock.Lease, 1)
	slot := c.Slot(tag)
	c.MigrateSlotWith(slot, elsewhere(c, slot), func() {
		go func() {
			lease, err := b.Adopt(bg, handle)
			if err != nil {
				t.Error(err)
			}
			adopted <- lease
		}()
		a.RenewedAgain(t, tag+"known", 4)
	})
	lease := <-adopted
	if lease == nil {
		return
	}
	if err := errors.Join(lease.Err(), known.Err(), run.lease.Err()); err != nil {
		t.Error(err)
	}
	if lease.Token() != first.Token() {
		t.Errorf("token %d, want %d", lease.Token(), first.Token())
	}
	a.RenewedAgain(t, tag+"known", 3)
	run.end(t, b.NewCronJob(tag+"job"), tick)
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, known)
	for _, name := range []string{"held", "known"} {
		locktest.MustUnlock(t, locktest.MustLock(t, b.NewLock(tag+name)))
	}
}

// What two replicas have confirmed outlasts a failover: a hold that was adopted, one that waits to be, and the run of
// a job.
func TestSentinelFailoverKeepsAdoptionsAndRuns(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	opts := []rlock.Option{rlock.WithWatchdogLease(30 * time.Second), rlock.WithReplicaAck(2, 4*time.Second)}
	a, b := locktest.NewClient(t, s.Client(), opts...), locktest.NewClient(t, s.Client(), opts...)
	detached := func(name string) string {
		t.Helper()
		handle, err := locktest.MustLock(t, a.NewLock(name)).Detach(bg)
		if err != nil {
			t.Fatal(err)
		}
		return handle
	}
	adopt := func(handle string) *rlock.Lease {
		t.Helper()
		lease, err := b.Adopt(bg, handle)
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	before, waits := adopt(detached("before")), detached("after")
	tick := time.Now().Truncate(time.Second)
	run := runs(t, a.NewCronJob("job"), tick)

	s.Failover()
	s.Settle()
	after := adopt(waits)
	for _, lease := range []*rlock.Lease{before, after, run.lease} {
		if err := lease.Extend(bg, 30*time.Second); err != nil {
			t.Error(lease.Name(), err)
		}
	}
	run.end(t, b.NewCronJob("job"), tick)
	for _, lease := range []*rlock.Lease{before, after} {
		_, err := a.NewLock(lease.Name()).TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, lease)
	}
}

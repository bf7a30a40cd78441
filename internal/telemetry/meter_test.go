package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/telemetry"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

// sums adds up what is measured, and how often, by metric and attributes.
type sums struct {
	mu  sync.Mutex // guards the rest
	sum map[point]float64
	n   map[point]int
}

type point struct {
	m telemetry.Metric
	a telemetry.Attributes
}

type summing struct {
	to *sums
	at point
}

func (s *sums) bind(m telemetry.Metric, a *telemetry.Attributes) telemetry.Instrument {
	return summing{s, point{m, *a}}
}

func (i summing) Record(_ context.Context, v float64) {
	i.to.mu.Lock()
	defer i.to.mu.Unlock()
	i.to.sum[i.at] += v
	i.to.n[i.at]++
}

func meter() (*telemetry.Meter, *sums) {
	s := &sums{sum: map[point]float64{}, n: map[point]int{}}
	return telemetry.NewMeter(telemetry.NewLabels(nil, telemetry.MostLabels), s.bind), s
}

// all is the sum of a metric over all series.
func (s *sums) all(m telemetry.Metric) (sum float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, v := range s.sum {
		if p.m == m {
			sum += v
		}
	}
	return sum
}

func (s *sums) of(m telemetry.Metric, a telemetry.Attributes) (sum float64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum[point{m, a}], s.n[point{m, a}]
}

func TestGaugesAreRightInACrowd(t *testing.T) {
	t.Parallel()
	var all [2]*sums
	locktest.Crowd(t, func(i int) locktest.Told {
		m, s := meter()
		all[i] = s
		return m
	}, func(i, waiting, held, leads int) bool {
		return all[i].all(telemetry.WaitCount) == float64(waiting) && all[i].all(telemetry.HoldCount) == float64(held) &&
			all[i].all(telemetry.Leader) == float64(leads)
	})
	for _, s := range all {
		for p, v := range s.sum { // each by itself, too
			if telemetry.Metrics[p.m].Kind == telemetry.Gauge && v != 0 {
				t.Errorf("%+v: %v", p, v)
			}
		}
	}
}

// Each event, once.
func TestEventsAreMeasured(t *testing.T) {
	t.Parallel()
	m, s := meter()
	want := func(metric telemetry.Metric, a telemetry.Attributes, sum float64, n int) {
		t.Helper()
		if got, gotN := s.of(metric, a); got != sum || gotN != n {
			t.Errorf("%s %+v: %v in %d, want %v in %d", telemetry.Metrics[metric].Name, a, got, gotN, sum, n)
		}
	}
	e := rlock.Event{Lock: "order:17", Type: "ReadWriteLock", Side: "read"}
	of := telemetry.Attributes{Type: "ReadWriteLock", Side: "read", Label: "order:*"}
	with := func(change func(a *telemetry.Attributes)) telemetry.Attributes {
		a := of
		change(&a)
		return a
	}
	end := func(e rlock.Event, entry int, contended bool, err error) {
		e.Entry = entry
		m.AcquireEnd(bg, rlock.AcquireEvent{Event: e, Wait: 2 * time.Second, Contended: contended, Err: err})
	}

	m.AcquireStart(bg, rlock.StartEvent{Event: e})
	m.Contended(bg, rlock.ContentionEvent{Event: e})
	want(telemetry.WaitCount, of, 1, 2) // with the zero of the beginning
	want(telemetry.Contentions, of, 1, 2)
	end(e, 1, true, nil)
	want(telemetry.WaitCount, of, 0, 3)
	want(telemetry.HoldCount, of, 1, 2)
	want(telemetry.AcquireDuration, with(func(a *telemetry.Attributes) { a.Outcome = "acquired" }), 2, 1)
	for _, cause := range []string{"taken_over", "removed", "max_hold", "no_quorum", "unreachable", "refused", "expired"} {
		want(telemetry.Losses, with(func(a *telemetry.Attributes) { a.Cause = cause }), 0, 1)
	}
	end(e, 2, false, nil) // enters again
	want(telemetry.HoldCount, of, 1, 2)
	m.Renewed(bg, rlock.RenewalEvent{Event: e, Left: 20 * time.Second, Took: time.Second})
	m.Renewed(bg, rlock.RenewalEvent{Event: e, Left: 20 * time.Second, Took: time.Second, Err: rlock.ErrUnreachable})
	want(telemetry.RenewalDuration, of, 1, 1)
	want(telemetry.LeaseMargin, of, 20, 1)
	want(telemetry.RenewalFailures, with(func(a *telemetry.Attributes) { a.Error = "unreachable" }), 1, 2)
	m.Unlocked(bg, rlock.UnlockEvent{Event: e, Held: time.Hour})
	want(telemetry.HoldCount, of, 1, 2)
	m.Unlocked(bg, rlock.UnlockEvent{Event: e, Held: time.Minute, Ends: true})
	want(telemetry.HoldCount, of, 0, 3)
	want(telemetry.HoldDuration, with(func(a *telemetry.Attributes) { a.End = "unlocked" }), 60, 1)
	end(e, 1, false, nil)
	m.Lost(bg, rlock.LossEvent{Event: e, Held: time.Second, Cause: rlock.ErrTakenOver})
	want(telemetry.HoldCount, of, 0, 5)
	want(telemetry.HoldDuration, with(func(a *telemetry.Attributes) { a.End = "lost" }), 1, 1)
	want(telemetry.Losses, with(func(a *telemetry.Attributes) { a.Cause = "taken_over" }), 1, 2)

	end(e, 0, false, fmt.Errorf("%w; %w", rlock.ErrNotAcquired, context.DeadlineExceeded))
	want(telemetry.AcquireDuration, with(func(a *telemetry.Attributes) { a.Outcome = "not_acquired" }), 2, 1)
	end(e, 0, false, fmt.Errorf("%w; %w", rlock.ErrNotAcquired, context.Canceled))
	want(telemetry.AcquireDuration, with(func(a *telemetry.Attributes) { a.Outcome = "cancelled" }), 2, 1)
	end(e, 0, false, fmt.Errorf("%w; %w", context.Canceled, rlock.ErrNoQuorum))
	want(telemetry.AcquireDuration, with(func(a *telemetry.Attributes) { a.Outcome, a.Error = "error", "no_quorum" }), 2, 1)

	election := rlock.Event{Lock: "boss", Type: "Election"}
	leader := telemetry.Attributes{Label: "boss"}
	m.AcquireStart(bg, rlock.StartEvent{Event: election})
	want(telemetry.Leader, leader, 0, 1)
	m.Leadership(bg, rlock.LeadershipEvent{Event: election, Leads: true})
	want(telemetry.Leader, leader, 1, 2)
	m.Leadership(bg, rlock.LeadershipEvent{Event: election})
	want(telemetry.Leader, leader, 0, 3)

	// Nobody holds these.
	for _, typ := range []string{"Semaphore", "CountDownLatch", "Barrier"} {
		e := rlock.Event{Lock: "s", Type: typ}
		end(e, 0, false, nil)
		m.Unlocked(bg, rlock.UnlockEvent{Event: e})
		if _, n := s.of(telemetry.HoldCount, telemetry.Attributes{Type: typ, Label: "s"}); n != 0 {
			t.Errorf("holds of a %s are counted", typ)
		}
		want(telemetry.AcquireDuration, telemetry.Attributes{Type: typ, Label: "s", Outcome: "acquired"}, 2, 1)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err           error
		outcome, kind string
	}{
		{nil, "acquired", ""},
		{rlock.ErrNotAcquired, "not_acquired", ""},
		{rlock.ErrClosed, "cancelled", ""},
		{context.Canceled, "cancelled", ""},
		{context.DeadlineExceeded, "cancelled", ""},
		{fmt.Errorf("%w %w", context.DeadlineExceeded, rlock.ErrUnreachable), "error", "unreachable"},
		{rlock.ErrRefused, "error", "refused"},
		{fmt.Errorf("%w %w", rlock.ErrFailed, context.Canceled), "error", "failed"}, // the function of a Once
		{fmt.Errorf("%w %w", rlock.ErrLeaseLost, rlock.ErrRemoved), "error", "lease_lost"},
		{rlock.ErrReentrant, "error", "reentrant"},
		{errors.New("another"), "error", "_OTHER"},
	} {
		if outcome, kind := telemetry.Outcome(test.err); outcome != test.outcome || kind != test.kind {
			t.Errorf("%v: %q %q, want %q %q", test.err, outcome, kind, test.outcome, test.kind)
		}
	}
	for err, cause := range map[error]string{
		rlock.ErrExpired: "expired", rlock.ErrUnreachable: "unreachable", rlock.ErrNoQuorum: "no_quorum",
		rlock.ErrMaxHold: "max_hold", errors.New("another"): "_OTHER",
	} {
		if got := telemetry.Cause(err); got != cause {
			t.Errorf("%v: %q, want %q", err, got, cause)
		}
	}
}

// A measurement allocates nothing once its series are there.
func TestMeasuringAllocatesNothing(t *testing.T) {
	discard := func(telemetry.Metric, *telemetry.Attributes) telemetry.Instrument { return discarding{} }
	m := telemetry.NewMeter(telemetry.NewLabels(nil, telemetry.MostLabels), discard)
	e := rlock.Event{Lock: "order:0198c7e2-1c7a-7cc2-a5f7-28f0d48f376a", Type: "Lock", Entry: 1}
	pair := func() {
		m.AcquireStart(bg, rlock.StartEvent{Event: e})
		m.Contended(bg, rlock.ContentionEvent{Event: e})
		m.AcquireEnd(bg, rlock.AcquireEvent{Event: e, Contended: true})
		m.Renewed(bg, rlock.RenewalEvent{Event: e})
		m.Unlocked(bg, rlock.UnlockEvent{Event: e, Ends: true})
	}
	pair()
	if n := testing.AllocsPerRun(100, pair); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

type discarding struct{}

func (discarding) Record(context.Context, float64) {}

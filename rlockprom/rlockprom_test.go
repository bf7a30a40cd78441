package rlockprom_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/go-rlock/rlock/rlockprom"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

func newObserver(t testing.TB, opts ...rlockprom.Option) (*rlockprom.Observer, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	o, err := rlockprom.New(registry, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return o, registry
}

func gather(t testing.TB, r *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*dto.MetricFamily{}
	for _, f := range families {
		all[f.GetName()] = f
	}
	return all
}

func sum(t testing.TB, r *prometheus.Registry, m telemetry.Metric) (sum int) {
	for _, one := range gather(t, r)[telemetry.Metrics[m].Prometheus].GetMetric() {
		sum += int(one.GetGauge().GetValue())
	}
	return sum
}

func TestGaugesAreRightInACrowd(t *testing.T) {
	t.Parallel()
	var all [2]*prometheus.Registry
	locktest.Crowd(t, func(i int) locktest.Told {
		o, r := newObserver(t)
		all[i] = r
		return o
	}, func(i, waiting, held, leads int) bool {
		return sum(t, all[i], telemetry.WaitCount) == waiting && sum(t, all[i], telemetry.HoldCount) == held && sum(t, all[i], telemetry.Leader) == leads
	})
}

func everything(o *rlockprom.Observer, lock string) {
	for _, typ := range []string{"Lock", "Election"} {
		e := rlock.Event{Lock: lock, Type: typ, Entry: 1}
		ctx := o.AcquireStart(bg, rlock.StartEvent{Event: e})
		o.Contended(ctx, rlock.ContentionEvent{Event: e})
		o.AcquireEnd(ctx, rlock.AcquireEvent{Event: e, Contended: true, Wait: 40 * time.Second})
		o.Leadership(ctx, rlock.LeadershipEvent{Event: e, Leads: true})
		o.Renewed(ctx, rlock.RenewalEvent{Event: e})
		o.Renewed(ctx, rlock.RenewalEvent{Event: e, Err: rlock.ErrRefused})
		o.Lost(ctx, rlock.LossEvent{Event: e, Cause: rlock.ErrExpired})
	}
}

func TestMetricsAreThoseOfTheList(t *testing.T) {
	t.Parallel()
	o, registry := newObserver(t)
	everything(o, "a")
	got := gather(t, registry)
	if len(got) != len(telemetry.Metrics) {
		t.Errorf("%d metrics, want %d", len(got), len(telemetry.Metrics))
	}
	kinds := map[telemetry.Kind]dto.MetricType{
		telemetry.Histogram: dto.MetricType_HISTOGRAM, telemetry.Counter: dto.MetricType_COUNTER, telemetry.Gauge: dto.MetricType_GAUGE,
	}
	for _, want := range telemetry.Metrics {
		m := got[want.Prometheus]
		if m.GetType() != kinds[want.Kind] || m.GetHelp() != want.Help {
			t.Errorf("%s: %v %q", want.Prometheus, m.GetType(), m.GetHelp())
			continue
		}
		var labels, keys []string
		for _, l := range m.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		for _, key := range want.Keys {
			keys = append(keys, strings.ReplaceAll(key, ".", "_"))
		}
		slices.Sort(keys)
		if !slices.Equal(labels, keys) {
			t.Errorf("%s has the labels %v, want %v", want.Prometheus, labels, keys)
		}
		if want.Kind == telemetry.Histogram {
			var bounds []float64
			for _, b := range m.Metric[0].Histogram.Bucket {
				bounds = append(bounds, b.GetUpperBound())
			}
			if !slices.Equal(bounds, telemetry.Buckets) {
				t.Errorf("%s has the buckets %v", want.Prometheus, bounds)
			}
		}
	}
	if h := got["rlock_acquire_duration_seconds"].Metric[0].Histogram; h.GetSampleSum() != 40 {
		t.Errorf("40 s are %v", h.GetSampleSum())
	}
	problems, err := testutil.GatherAndLint(registry)
	for _, p := range problems {
		// These two have the names that an OpenTelemetry exporter gives them.
		if p.Metric != "rlock_hold_count" && p.Metric != "rlock_wait_count" {
			t.Error(p)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestTenThousandLocksAreOneSeries(t *testing.T) {
	t.Parallel()
	o, registry := newObserver(t)
	for range 10_000 {
		e := rlock.Event{Lock: "order:" + uuid.NewString(), Type: "Lock", Entry: 1}
		o.AcquireEnd(bg, rlock.AcquireEvent{Event: e})
		o.Unlocked(bg, rlock.UnlockEvent{Event: e, Ends: true})
	}
	used := 0
	for _, m := range gather(t, registry)["rlock_acquire_duration_seconds"].Metric {
		if n := m.Histogram.GetSampleCount(); n == 10_000 {
			used++
		} else if n != 0 {
			t.Errorf("%v", m)
		}
	}
	if used != 1 {
		t.Errorf("%d series", used)
	}
	if n := testutil.CollectAndCount(registry, "rlock_hold_count"); n != 1 {
		t.Errorf("%d series of holds", n)
	}
}

func TestLabelOptions(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string][]rlockprom.Option{
		"a*":    nil,
		"a1":    {rlockprom.WithLockNames()},
		"own":   {rlockprom.WithLabel(func(rlock.Event) string { return "own" })},
		"other": {rlockprom.WithMaxLabels(1)},
		"bad":   {rlockprom.WithLabel(func(rlock.Event) string { return "ba\xffd" })}, // else registries refuse everything
	} {
		o, registry := newObserver(t, opts...)
		everything(o, "first")
		everything(o, "a1")
		found := false
		for _, m := range gather(t, registry)["rlock_leader"].Metric {
			found = found || m.Label[0].GetValue() == want
		}
		if !found {
			t.Errorf("no label %q", want)
		}
	}
	for name, err := range map[string]error{
		"no registerer": second(rlockprom.New(nil)),
		"no labels":     second(rlockprom.New(prometheus.NewRegistry(), rlockprom.WithMaxLabels(0))),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	registry := prometheus.NewRegistry()
	if err := second(rlockprom.New(registry, nil)); err != nil {
		t.Error(err)
	}
	if err := second(rlockprom.New(registry)); err == nil {
		t.Error("registered twice")
	}
}

func second(_ *rlockprom.Observer, err error) error { return err }

func TestAllocations(t *testing.T) {
	o, _ := newObserver(t)
	e := rlock.Event{Lock: "order:17", Type: "Lock", Entry: 1}
	pair := func() {
		ctx := o.AcquireStart(bg, rlock.StartEvent{Event: e})
		o.AcquireEnd(ctx, rlock.AcquireEvent{Event: e})
		o.Unlocked(ctx, rlock.UnlockEvent{Event: e, Ends: true})
	}
	pair()
	if n := testing.AllocsPerRun(200, pair); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

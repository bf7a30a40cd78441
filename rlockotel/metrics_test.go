package rlockotel_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/go-rlock/rlock/rlockotel"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	nometrics "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

type metering struct {
	t        testing.TB
	reader   *sdkmetric.ManualReader
	observer *rlockotel.Observer
}

func newMetering(t testing.TB, opts ...rlockotel.Option) *metering {
	t.Helper()
	x := &metering{t: t, reader: sdkmetric.NewManualReader()}
	o, err := rlockotel.New(append([]rlockotel.Option{
		rlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))), rlockotel.WithTracerProvider(noop.NewTracerProvider()),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	x.observer = o
	return x
}

func (x *metering) collect() map[string]metricdata.Metrics {
	x.t.Helper()
	var got metricdata.ResourceMetrics
	if err := x.reader.Collect(bg, &got); err != nil {
		x.t.Fatal(err)
	}
	all := map[string]metricdata.Metrics{}
	for _, scope := range got.ScopeMetrics {
		for _, m := range scope.Metrics {
			all[m.Name] = m
		}
	}
	return all
}

// sum is the sum of a counter or gauge.
func (x *metering) sum(m telemetry.Metric) (sum int) {
	data, _ := x.collect()[telemetry.Metrics[m].Name].Data.(metricdata.Sum[int64])
	for _, p := range data.DataPoints {
		sum += int(p.Value)
	}
	return sum
}

func TestGaugesAreRightInACrowd(t *testing.T) {
	t.Parallel()
	all := [2]*metering{newMetering(t), newMetering(t)}
	locktest.Crowd(t, func(i int) locktest.Told { return all[i].observer }, func(i, waiting, held, leads int) bool {
		return all[i].sum(telemetry.WaitCount) == waiting && all[i].sum(telemetry.HoldCount) == held && all[i].sum(telemetry.Leader) == leads
	})
}

// everything makes a value of each metric.
func everything(o *rlockotel.Observer, lock string) {
	for _, typ := range []string{"Lock", "Election"} {
		e := rlock.Event{Lock: lock, Type: typ, Entry: 1}
		ctx := o.AcquireStart(bg, rlock.StartEvent{Event: e})
		o.Contended(ctx, rlock.ContentionEvent{Event: e})
		o.AcquireEnd(ctx, rlock.AcquireEvent{Event: e, Contended: true})
		o.Leadership(ctx, rlock.LeadershipEvent{Event: e, Leads: true})
		o.Renewed(ctx, rlock.RenewalEvent{Event: e})
		o.Renewed(ctx, rlock.RenewalEvent{Event: e, Err: rlock.ErrRefused})
		o.Lost(ctx, rlock.LossEvent{Event: e, Cause: rlock.ErrExpired})
	}
}

func TestMetricsAreThoseOfTheList(t *testing.T) {
	t.Parallel()
	x := newMetering(t)
	everything(x.observer, "a")
	got := x.collect()
	if len(got) != len(telemetry.Metrics) {
		t.Errorf("%d metrics, want %d", len(got), len(telemetry.Metrics))
	}
	for _, want := range telemetry.Metrics {
		m := got[want.Name]
		if m.Unit != want.Unit || m.Description != want.Help {
			t.Errorf("%s: %q %q", want.Name, m.Unit, m.Description)
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			if want.Kind != telemetry.Histogram || !reflect.DeepEqual(data.DataPoints[0].Bounds, telemetry.Buckets) {
				t.Errorf("%s: %T %v", want.Name, data, data.DataPoints[0].Bounds)
			}
		case metricdata.Sum[int64]:
			if want.Kind == telemetry.Histogram || data.IsMonotonic != (want.Kind == telemetry.Counter) {
				t.Errorf("%s: %+v", want.Name, data)
			}
		default:
			t.Errorf("%s: %T", want.Name, m.Data)
		}
	}
}

// What an OpenTelemetry exporter makes of the names is what rlockprom calls them.
func TestNamesInPrometheus(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	o, err := rlockotel.New(rlockotel.WithMeterProvider(provider), rlockotel.WithTracerProvider(noop.NewTracerProvider()))
	if err != nil {
		t.Fatal(err)
	}
	everything(o, "a")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if name := l.GetName(); !strings.HasPrefix(name, "otel_scope_") && !slices.Contains(labels[f.GetName()], name) {
					labels[f.GetName()] = append(labels[f.GetName()], name)
				}
			}
		}
	}
	for _, m := range telemetry.Metrics {
		got, is := labels[m.Prometheus]
		if !is {
			t.Errorf("%s is not %s: %v", m.Name, m.Prometheus, labels)
		}
		for _, l := range got {
			if !slices.ContainsFunc(m.Keys, func(key string) bool { return strings.ReplaceAll(key, ".", "_") == l }) {
				t.Errorf("%s has the label %s", m.Prometheus, l)
			}
		}
	}
}

func TestTenThousandLocksAreOneSeries(t *testing.T) {
	t.Parallel()
	x := newMetering(t)
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t, rlock.WithObserver(x.observer))
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("order:"+uuid.NewString())))
	for range 10_000 {
		e := rlock.Event{Lock: "order:" + uuid.NewString(), Type: "Lock", Entry: 1}
		x.observer.AcquireEnd(bg, rlock.AcquireEvent{Event: e})
		x.observer.Unlocked(bg, rlock.UnlockEvent{Event: e, Ends: true})
	}
	got := x.collect()
	for _, m := range []telemetry.Metric{telemetry.AcquireDuration, telemetry.HoldDuration, telemetry.HoldCount} {
		name := telemetry.Metrics[m].Name
		var sets []string
		switch data := got[name].Data.(type) {
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				sets = append(sets, fmt.Sprint(p.Attributes.ToSlice(), p.Count))
			}
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				sets = append(sets, fmt.Sprint(p.Attributes.ToSlice(), p.Value))
			}
		}
		if len(sets) != 1 || !strings.Contains(sets[0], "order:*") {
			t.Errorf("%s: %v", name, sets)
		}
	}
}

func TestLabelOptions(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string][]rlockotel.Option{
		"a*":    nil,
		"a1":    {rlockotel.WithLockNames()},
		"own":   {rlockotel.WithLabel(func(e rlock.Event) string { return "own" })},
		"other": {rlockotel.WithMaxLabels(1)},
	} {
		x := newMetering(t, opts...)
		everything(x.observer, "first")
		everything(x.observer, "a1")
		found := false
		for _, p := range x.collect()["rlock.leader"].Data.(metricdata.Sum[int64]).DataPoints {
			v, _ := p.Attributes.Value("rlock.label")
			found = found || v.AsString() == want
		}
		if !found {
			t.Errorf("no label %q", want)
		}
	}
}

// What metrics add to a pair, in allocations; and spans that are not sampled, and those that are.
func TestAllocations(t *testing.T) {
	pair := func(o *rlockotel.Observer) float64 {
		e := rlock.Event{Lock: "order:17", Type: "Lock", Entry: 1}
		run := func() {
			ctx := o.AcquireStart(bg, rlock.StartEvent{Event: e})
			o.AcquireEnd(ctx, rlock.AcquireEvent{Event: e})
			o.Unlocked(ctx, rlock.UnlockEvent{Event: e, Ends: true})
		}
		run()
		return testing.AllocsPerRun(200, run)
	}
	traced := func(s sdktrace.Sampler) *rlockotel.Observer {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(s))
		o, err := rlockotel.New(rlockotel.WithTracerProvider(p), rlockotel.WithMeterProvider(nometrics.NewMeterProvider()))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, test := range map[string]struct {
		o    *rlockotel.Observer
		want float64
	}{
		"metrics": {newMetering(t).observer, 0},
		// Of these all but one are the SDK's: two spans.
		"unsampled": {traced(sdktrace.NeverSample()), 9},
		"sampled":   {traced(sdktrace.AlwaysSample()), 24},
	} {
		if name == "sampled" && locktest.UnderRace() {
			continue // the race detector lets the SDK's pools forget
		}
		if n := pair(test.o); n > test.want {
			t.Errorf("%s: %v allocations, want %v", name, n, test.want)
		}
	}
}

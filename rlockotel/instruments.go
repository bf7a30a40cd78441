package rlockotel

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/go-rlock/rlock/internal/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instruments are the instruments of a meter: each metric has one of its kind.
type instruments struct {
	histograms [len(telemetry.Metrics)]metric.Float64Histogram
	counters   [len(telemetry.Metrics)]metric.Int64Counter
	gauges     [len(telemetry.Metrics)]metric.Int64ObservableUpDownCounter

	mu   sync.Mutex // guards sums
	sums []*gauge
}

func instrumentsOf(meter metric.Meter) (all *instruments, err error) {
	all = &instruments{}
	for i, m := range telemetry.Metrics {
		help, unit := metric.WithDescription(m.Help), metric.WithUnit(m.Unit)
		switch m.Kind {
		case telemetry.Histogram:
			all.histograms[i], err = meter.Float64Histogram(m.Name, help, unit, metric.WithExplicitBucketBoundaries(telemetry.Buckets...))
		case telemetry.Counter:
			all.counters[i], err = meter.Int64Counter(m.Name, help, unit)
		case telemetry.Gauge:
			all.gauges[i], err = meter.Int64ObservableUpDownCounter(m.Name, help, unit)
		}
		if err != nil {
			return nil, err
		}
	}
	var gauges []metric.Observable
	for _, g := range all.gauges {
		if g != nil {
			gauges = append(gauges, g)
		}
	}
	_, err = meter.RegisterCallback(all.observe, gauges...)
	return all, err
}

// observe sets the gauges when they are collected. To set them at each change would take as long as everything else.
func (all *instruments) observe(_ context.Context, to metric.Observer) error {
	all.mu.Lock()
	sums := all.sums
	all.mu.Unlock()
	for _, g := range sums {
		to.ObserveInt64(g.of, g.n.Load(), g.with...)
	}
	return nil
}

// gauge is what has been added to one of the gauges.
type gauge struct {
	of   metric.Int64Observable
	with []metric.ObserveOption
	n    atomic.Int64
}

func (g *gauge) Record(_ context.Context, v float64) { g.n.Add(int64(v)) }

// bind makes the instrument of a series. Its options are made once, so that recording allocates nothing.
func (all *instruments) bind(m telemetry.Metric, a *telemetry.Attributes) telemetry.Instrument {
	var kvs []attribute.KeyValue
	for _, key := range telemetry.Metrics[m].Keys {
		if v := a.Get(key); v != "" {
			kvs = append(kvs, attribute.String(key, v))
		}
	}
	with := metric.WithAttributeSet(attribute.NewSet(kvs...))
	switch telemetry.Metrics[m].Kind {
	case telemetry.Histogram:
		return histogram{all.histograms[m], []metric.RecordOption{with}}
	case telemetry.Counter:
		return counter{all.counters[m], []metric.AddOption{with}}
	}
	g := &gauge{of: all.gauges[m], with: []metric.ObserveOption{with}}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.sums = append(all.sums, g)
	return g
}

type histogram struct {
	metric.Float64Histogram
	with []metric.RecordOption
}

func (h histogram) Record(ctx context.Context, v float64) {
	h.Float64Histogram.Record(ctx, v, h.with...)
}

type counter struct {
	metric.Int64Counter
	with []metric.AddOption
}

func (c counter) Record(ctx context.Context, v float64) { c.Add(ctx, int64(v), c.with...) }

// Package rlockprom measures locks for Prometheus:
//
//	observer, err := rlockprom.New(prometheus.DefaultRegisterer)
//	...
//	client, err := rlock.New(rdb, rlock.WithObserver(observer))
//
// README.md has the metrics, and the folder dashboards a dashboard and alerts.
package rlockprom

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/prometheus/client_golang/prometheus"
)

// DefaultMaxLabels is how many labels of locks there are at most, without [WithMaxLabels].
const DefaultMaxLabels = telemetry.MostLabels

// Observer is for [rlock.WithObserver]. Several Clients may share one.
type Observer struct{ meter *telemetry.Meter }

var (
	_ rlock.Observer           = (*Observer)(nil)
	_ rlock.ContentionObserver = (*Observer)(nil)
	_ rlock.RenewalObserver    = (*Observer)(nil)
	_ rlock.LeadershipObserver = (*Observer)(nil)
)

// Option is an option of [New].
type Option func(*config)

type config struct {
	label func(e rlock.Event) string
	most  int
}

// WithLabel sets the label of a lock. By default that is its name in which UUIDs, hexadecimal numbers of
// at least eight digits and all other numbers are replaced by an asterisk. fn must be quick, and return
// the same for the same lock. Labels are cut after 128 bytes.
func WithLabel(fn func(e rlock.Event) string) Option { return func(c *config) { c.label = fn } }

// WithLockNames makes the names of locks their labels: for few locks, whose names are no secret.
func WithLockNames() Option { return func(c *config) { c.label = telemetry.Name } }

// WithMaxLabels sets how many labels there are; all locks that come later have the label "other".
func WithMaxLabels(n int) Option { return func(c *config) { c.most = n } }

// New registers the metrics and returns an Observer of them. It fails if an option is invalid or the
// metrics are registered already: then nothing is registered.
func New(registerer prometheus.Registerer, opts ...Option) (*Observer, error) {
	c := config{most: DefaultMaxLabels}
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	switch {
	case registerer == nil:
		return nil, errors.New("rlockprom: the registerer is nil")
	case c.most < 1:
		return nil, fmt.Errorf("rlockprom: WithMaxLabels(%d): must be at least 1", c.most)
	}
	all := &metrics{}
	for i := range telemetry.Metrics {
		all.make(telemetry.Metric(i))
	}
	if err := registerer.Register(all); err != nil {
		return nil, fmt.Errorf("rlockprom: %w", err)
	}
	return &Observer{telemetry.NewMeter(telemetry.NewLabels(c.label, c.most), all.bind)}, nil
}

// metrics are all metrics, as one collector.
type metrics struct {
	histograms [len(telemetry.Metrics)]*prometheus.HistogramVec
	counters   [len(telemetry.Metrics)]*prometheus.CounterVec
	gauges     [len(telemetry.Metrics)]*prometheus.GaugeVec
	all        [len(telemetry.Metrics)]prometheus.Collector
}

func (all *metrics) make(i telemetry.Metric) {
	m := &telemetry.Metrics[i]
	var labels []string
	for _, key := range m.Keys {
		labels = append(labels, strings.ReplaceAll(key, ".", "_"))
	}
	switch m.Kind {
	case telemetry.Histogram:
		all.histograms[i] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Prometheus, Help: m.Help, Buckets: telemetry.Buckets}, labels)
		all.all[i] = all.histograms[i]
	case telemetry.Counter:
		all.counters[i] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Prometheus, Help: m.Help}, labels)
		all.all[i] = all.counters[i]
	case telemetry.Gauge:
		all.gauges[i] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Prometheus, Help: m.Help}, labels)
		all.all[i] = all.gauges[i]
	}
}

// Describe implements [prometheus.Collector].
func (all *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, m := range all.all {
		m.Describe(to)
	}
}

// Collect implements [prometheus.Collector].
func (all *metrics) Collect(to chan<- prometheus.Metric) {
	for _, m := range all.all {
		m.Collect(to)
	}
}

// bind makes the instrument of a series. The labels are valid UTF-8: see telemetry.Labels.
func (all *metrics) bind(i telemetry.Metric, a *telemetry.Attributes) telemetry.Instrument {
	m := &telemetry.Metrics[i]
	values := make([]string, len(m.Keys))
	for j, key := range m.Keys {
		values[j] = a.Get(key)
	}
	switch m.Kind {
	case telemetry.Histogram:
		return record(all.histograms[i].WithLabelValues(values...).Observe)
	case telemetry.Counter:
		return record(all.counters[i].WithLabelValues(values...).Add)
	}
	return record(all.gauges[i].WithLabelValues(values...).Add)
}

// record is a [telemetry.Instrument].
type record func(v float64)

func (r record) Record(_ context.Context, v float64) { r(v) }

// AcquireStart implements [rlock.Observer].
func (o *Observer) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	return o.meter.AcquireStart(ctx, e)
}

// AcquireEnd implements [rlock.Observer].
func (o *Observer) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) { o.meter.AcquireEnd(ctx, e) }

// Contended implements [rlock.ContentionObserver].
func (o *Observer) Contended(ctx context.Context, e rlock.ContentionEvent) { o.meter.Contended(ctx, e) }

// Unlocked implements [rlock.Observer].
func (o *Observer) Unlocked(ctx context.Context, e rlock.UnlockEvent) { o.meter.Unlocked(ctx, e) }

// Lost implements [rlock.Observer].
func (o *Observer) Lost(ctx context.Context, e rlock.LossEvent) { o.meter.Lost(ctx, e) }

// Renewed implements [rlock.RenewalObserver].
func (o *Observer) Renewed(ctx context.Context, e rlock.RenewalEvent) { o.meter.Renewed(ctx, e) }

// Leadership implements [rlock.LeadershipObserver].
func (o *Observer) Leadership(ctx context.Context, e rlock.LeadershipEvent) {
	o.meter.Leadership(ctx, e)
}

// Package rlockotel measures and traces locks with OpenTelemetry:
//
//	observer, err := rlockotel.New()
//	...
//	client, err := rlock.New(rdb, rlock.WithObserver(observer))
//
// README.md has the metrics, the spans and what they cost.
package rlockotel

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// scope is the name of the instrumentation.
const scope = "github.com/go-rlock/rlock/rlockotel"

// DefaultMaxLabels is how many labels of locks there are at most, without [WithMaxLabels].
const DefaultMaxLabels = telemetry.MostLabels

// Observer is for [rlock.WithObserver]. Several Clients may share one.
type Observer struct {
	meter  *telemetry.Meter
	tracer tracer
}

var (
	_ rlock.Observer           = (*Observer)(nil)
	_ rlock.ContentionObserver = (*Observer)(nil)
	_ rlock.RenewalObserver    = (*Observer)(nil)
	_ rlock.LeadershipObserver = (*Observer)(nil)
)

// Option is an option of [New].
type Option func(*config)

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	label   func(e rlock.Event) string
	most    int
	links   redis.UniversalClient
	linked  bool
}

// WithMeterProvider sets where metrics go; by default to the global provider. Package
// go.opentelemetry.io/otel/metric/noop has one for no metrics.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider sets where spans go; by default to the global provider. Package
// go.opentelemetry.io/otel/trace/noop has one for no spans.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithLabel sets the label of a lock. By default that is its name in which UUIDs, hexadecimal numbers of
// at least eight digits and all other numbers are replaced by an asterisk. fn must be quick, and return
// the same for the same lock. Labels are cut after 128 bytes.
func WithLabel(fn func(e rlock.Event) string) Option { return func(c *config) { c.label = fn } }

// WithLockNames makes the names of locks their labels: for few locks, whose names are no secret.
func WithLockNames() Option { return func(c *config) { c.label = telemetry.Name } }

// WithMaxLabels sets how many labels there are; all locks that come later have the label "other".
func WithMaxLabels(n int) Option { return func(c *config) { c.most = n } }

// WithHolderLinks links the span of an acquire that has waited to the span of the hold that it has waited
// for, also in another process. For that the trace of a hold that is sampled, and lasts longer than 10 ms,
// is kept in a key of its own, for a minute after its last refresh; all processes need this option, and
// a client of the same Redis. The commands, SET and GET, are sent in the background: no acquire waits
// for them. Call [Observer.Shutdown] at the end.
func WithHolderLinks(rdb redis.UniversalClient) Option {
	return func(c *config) { c.links, c.linked = rdb, true }
}

// New returns an Observer. It fails if an option is invalid, or if the meter refuses an instrument.
func New(opts ...Option) (*Observer, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider(), most: DefaultMaxLabels}
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	switch {
	case c.meters == nil || c.tracers == nil:
		return nil, errors.New("rlockotel: a provider is nil")
	case c.most < 1:
		return nil, fmt.Errorf("rlockotel: WithMaxLabels(%d): must be at least 1", c.most)
	case c.linked && c.links == nil:
		return nil, errors.New("rlockotel: WithHolderLinks needs a client of Redis")
	}
	all, err := instrumentsOf(c.meters.Meter(scope))
	if err != nil {
		return nil, fmt.Errorf("rlockotel: %w", err)
	}
	labels := telemetry.NewLabels(c.label, c.most)
	o := &Observer{meter: telemetry.NewMeter(labels, all.bind)}
	o.tracer = tracer{labels: labels, begun: map[subject]trace.SpanStartEventOption{}}
	if _, none := c.tracers.(noop.TracerProvider); !none {
		o.tracer.of = c.tracers.Tracer(scope)
	}
	if c.linked {
		o.tracer.links = newLinks(c.links)
	}
	return o, nil
}

// Shutdown ends the spans that still wait for the trace of a holder, and what WithHolderLinks does in the
// background. Call it after the Shutdown of the Clients, and before the tracer provider's. It fails
// only if ctx ends first.
func (o *Observer) Shutdown(ctx context.Context) error {
	if o.tracer.links == nil {
		return nil
	}
	return o.tracer.links.shutdown(ctx)
}

// AcquireStart implements [rlock.Observer].
func (o *Observer) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	return o.tracer.start(o.meter.AcquireStart(ctx, e), e)
}

// AcquireEnd implements [rlock.Observer].
func (o *Observer) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	o.meter.AcquireEnd(ctx, e)
	o.tracer.acquired(ctx, e)
}

// Contended implements [rlock.ContentionObserver].
func (o *Observer) Contended(ctx context.Context, e rlock.ContentionEvent) {
	o.meter.Contended(ctx, e)
	o.tracer.contended(ctx)
}

// Unlocked implements [rlock.Observer].
func (o *Observer) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	o.meter.Unlocked(ctx, e)
	o.tracer.unlocked(ctx, e)
}

// Lost implements [rlock.Observer].
func (o *Observer) Lost(ctx context.Context, e rlock.LossEvent) {
	o.meter.Lost(ctx, e)
	o.tracer.lost(ctx, e)
}

// Renewed implements [rlock.RenewalObserver].
func (o *Observer) Renewed(ctx context.Context, e rlock.RenewalEvent) {
	o.meter.Renewed(ctx, e)
	o.tracer.renewed(ctx, e)
}

// Leadership implements [rlock.LeadershipObserver].
func (o *Observer) Leadership(ctx context.Context, e rlock.LeadershipEvent) {
	o.meter.Leadership(ctx, e)
}

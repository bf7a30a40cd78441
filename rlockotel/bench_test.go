package rlockotel_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockotel"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	nospans "go.opentelemetry.io/otel/trace/noop"
)

// BenchmarkOverhead measures what telemetry adds to a pair of an acquire and a release on a real server:
// pairs with and without take turns, twenty at a time, and their lower quartiles are compared, which say more than medians
// where others use the machine too. ns/op is that of a turn of all.
func BenchmarkOverhead(b *testing.B) {
	backend := locktest.OnServer(b)
	meters := func() rlockotel.Option {
		return rlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))
	}
	tracers := func(s sdktrace.Sampler) rlockotel.Option {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		b.Cleanup(func() { _ = p.Shutdown(bg) })
		return rlockotel.WithTracerProvider(p)
	}
	kinds := []struct {
		name string
		opts []rlockotel.Option // nil: none
	}{
		{"none", nil},
		{"ignoring", nil}, // an Observer that does nothing
		{"metrics", []rlockotel.Option{meters(), rlockotel.WithTracerProvider(nospans.NewTracerProvider())}},
		{"unsampled", []rlockotel.Option{meters(), tracers(sdktrace.NeverSample())}},
		{"sampled", []rlockotel.Option{meters(), tracers(sdktrace.AlwaysSample())}},
		{"linked", []rlockotel.Option{rlockotel.WithMeterProvider(noop.NewMeterProvider()), tracers(sdktrace.AlwaysSample()), rlockotel.WithHolderLinks(backend.Client(b))}},
	}
	locks := make([]*rlock.Lock, len(kinds))
	for i, k := range kinds {
		var opts []rlock.Option
		switch {
		case k.name == "ignoring":
			opts = append(opts, rlock.WithObserver(locktest.Ignoring{}))
		case k.opts != nil:
			o, err := rlockotel.New(k.opts...)
			if err != nil {
				b.Fatal(err)
			}
			opts = append(opts, rlock.WithObserver(o))
		}
		locks[i] = backend.NewClient(b, opts...).NewLock("order:" + k.name)
		locktest.MustUnlock(b, locktest.MustLock(b, locks[i]))
	}
	took := make([][]time.Duration, len(kinds))
	random := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		for _, i := range random.Perm(len(kinds)) {
			for range 20 { // a process has one kind of Observer
				began := time.Now()
				lease, err := locks[i].Lock(bg)
				if err != nil {
					b.Fatal(err)
				}
				if err := lease.Unlock(bg); err != nil {
					b.Fatal(err)
				}
				took[i] = append(took[i], time.Since(began))
			}
		}
	}
	quartile := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/4])
	}
	b.ReportMetric(quartile(0)/1000, "µs/pair")
	for i := 1; i < len(kinds); i++ {
		b.ReportMetric(100*(quartile(i)/quartile(0)-1), kinds[i].name+"-%")
	}
}

// BenchmarkObserver is the cost of what an Observer is told of a pair, without the pair.
func BenchmarkObserver(b *testing.B) {
	tracers := func(s sdktrace.Sampler) *rlockotel.Observer {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		b.Cleanup(func() { _ = p.Shutdown(bg) })
		o, err := rlockotel.New(rlockotel.WithTracerProvider(p), rlockotel.WithMeterProvider(noop.NewMeterProvider()))
		if err != nil {
			b.Fatal(err)
		}
		return o
	}
	for name, o := range map[string]*rlockotel.Observer{
		"metrics": newMetering(b).observer, "unsampled": tracers(sdktrace.NeverSample()), "sampled": tracers(sdktrace.AlwaysSample()),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			e := rlock.Event{Lock: "order:0198c7e2-1c7a-7cc2-a5f7-28f0d48f376a", Type: "Lock", Entry: 1}
			for b.Loop() {
				ctx := o.AcquireStart(bg, rlock.StartEvent{Event: e})
				o.AcquireEnd(ctx, rlock.AcquireEvent{Event: e})
				o.Unlocked(ctx, rlock.UnlockEvent{Event: e, Ends: true})
			}
		})
	}
}

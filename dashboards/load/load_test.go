package main

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// moved notes the metrics that are not zero, and the values of the labels of those.
func moved(t *testing.T, r *prometheus.Registry, seen map[string]bool) (families []*dto.MetricFamily) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if m.GetHistogram().GetSampleCount() == 0 && m.GetCounter().GetValue() == 0 && m.GetGauge().GetValue() == 0 {
				continue
			}
			seen[f.GetName()] = true
			for _, l := range m.Label {
				seen[f.GetName()+" "+l.GetValue()] = true
			}
		}
	}
	return families
}

func TestLoadMovesEachMetric(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(context.Background())
	server := redistest.Start(t)
	done := make(chan error, 1)
	go func() { done <- run(ctx, server.Addr(), registry) }()
	var want []string
	for _, m := range telemetry.Metrics {
		want = append(want, m.Prometheus)
	}
	for _, outcome := range []string{telemetry.Acquired, telemetry.NotAcquired, telemetry.Cancelled, telemetry.Failed} {
		want = append(want, telemetry.Metrics[telemetry.AcquireDuration].Prometheus+" "+outcome)
	}
	want = append(want, "rlock_losses_total removed", "rlock_losses_total expired", "rlock_hold_count order:*", "rlock_hold_count read")
	seen, lacks := map[string]bool{}, ""
	t.Cleanup(func() {
		if lacks != "" {
			t.Log("not moved: ", lacks)
		}
	})
	locktest.Eventually(t, "each metric has moved", func() bool {
		moved(t, registry, seen)
		for _, w := range want {
			if !seen[w] {
				lacks = w
				return false
			}
		}
		lacks = ""
		return true
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	locktest.Eventually(t, "nothing is held", func() bool {
		for _, f := range moved(t, registry, map[string]bool{}) {
			for _, m := range f.Metric {
				if m.GetGauge().GetValue() != 0 {
					return false
				}
			}
		}
		return true
	})
}

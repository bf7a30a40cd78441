package rlockcron_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/go-rlock/rlock"
	rlockcron "github.com/go-rlock/rlock/adapters/robfigcron"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

type report struct {
	run rlock.CronRun
	err error
}

// start starts a cron.Cron in UTC with a job, that is stopped when the test ends.
func start(t *testing.T, add func(c *cron.Cron)) {
	t.Helper()
	c := cron.New(cron.WithLocation(time.UTC))
	add(c)
	c.Start()
	t.Cleanup(func() { <-c.Stop().Done() })
}

// Three processes, and a job each second: by the function with a context, and by the wrapper of a plain job.
func TestEachTickRunsOnce(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		srv := redistest.Start(t)
		var mu sync.Mutex // guards runs
		runs, elsewhere, every := map[time.Time]int{}, 0, "* * * * * *"
		for range 3 {
			job := rlockcron.Job{
				CronJob: locktest.NewClient(t, srv.Client()).NewCronJob("report"),
				Report: func(run rlock.CronRun, err error) {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err != nil:
						t.Error(err)
					case run.Here:
						runs[run.Scheduled]++
					default:
						elsewhere++
					}
				},
			}
			start(t, func(c *cron.Cron) {
				if !plain {
					_, err := job.Add(c, every, func(ctx context.Context, tick time.Time) error {
						if lease, ok := rlock.LeaseFrom(ctx); !ok || lease.Token() <= 0 || !tick.Equal(tick.Truncate(time.Second)) {
							t.Errorf("the lease is %v, the tick %v", lease, tick)
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				schedule, err := rlockcron.Parse(every, c.Location())
				if err != nil {
					t.Fatal(err)
				}
				wrapper, err := job.Wrapper(schedule)
				if err != nil {
					t.Fatal(err)
				}
				c.Schedule(schedule, cron.NewChain(wrapper).Then(cron.FuncJob(func() {})))
			})
		}
		locktest.Eventually(t, "ticks have run", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(runs) >= 3 && elsewhere >= 6
		})
		mu.Lock()
		for tick, n := range runs {
			if n != 1 {
				t.Errorf("plain %v: tick %v ran %d times", plain, tick, n)
			}
		}
		mu.Unlock()
	}
}

func TestErrorsLossesAndOutagesAreReported(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	reports, failed := make(chan report, 100), errors.New("failed")
	job := rlockcron.Job{
		CronJob: srv.NewClient(rlock.WithCommandTimeout(200 * time.Millisecond)).NewCronJob("report"),
		Report:  func(run rlock.CronRun, err error) { reports <- report{run, err} },
	}
	n := 0
	start(t, func(c *cron.Cron) {
		if _, err := job.Add(c, "* * * * * *", func(ctx context.Context, _ time.Time) error {
			lease, _ := rlock.LeaseFrom(ctx)
			if n++; n == 1 {
				return failed
			}
			srv.Remove(lease.Name())
			<-ctx.Done()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	if r := <-reports; !r.run.Here || !errors.Is(r.err, failed) {
		t.Errorf("an error: %+v", r)
	}
	if r := <-reports; !r.run.Here || !errors.Is(r.err, rlock.ErrLeaseLost) {
		t.Errorf("a loss: %+v", r)
	}
	srv.Disconnect()
	for {
		r := <-reports
		if errors.Is(r.err, rlock.ErrLeaseLost) { // a tick that had begun
			continue
		}
		if !errors.Is(r.err, rlock.ErrUnreachable) || !errors.Is(r.err, rlock.ErrNotRun) {
			t.Errorf("without Redis: %+v", r)
		}
		break
	}
	srv.Recover()
}

// The program stops while the job runs: its context ends, and no lease is left.
func TestNoLeaseIsLeftWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	reports, began := make(chan report, 100), make(chan struct{}, 100)
	job := rlockcron.Job{
		CronJob: srv.Client().NewCronJob("report"), Context: ctx,
		Report: func(run rlock.CronRun, err error) { reports <- report{run, err} },
	}
	start(t, func(c *cron.Cron) {
		if _, err := job.Add(c, "* * * * * *", func(ctx context.Context, _ time.Time) error {
			began <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}); err != nil {
			t.Fatal(err)
		}
	})
	<-began
	cancel()
	if r := <-reports; !errors.Is(r.err, context.Canceled) {
		t.Errorf("%+v", r)
	}
	locktest.Eventually(t, "no lease is left", func() bool { return len(srv.Client().Held()) == 0 })
}

func TestIntervalsAreAlignedOrRefused(t *testing.T) {
	t.Parallel()
	client := rlocktest.New(t).Client()
	at := time.Date(2026, 11, 26, 7, 14, 15, 16, time.UTC)
	for spec, want := range map[string]time.Time{
		"@every 1h":                      time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC),
		"@hourly":                        time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC),
		"30 14 7 * * *":                  time.Date(2026, 11, 26, 7, 14, 30, 0, time.UTC),
		"0 12 * * *":                     time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC),
		"TZ=Asia/Kolkata 0 12 * * *":     time.Date(2026, 11, 27, 6, 30, 0, 0, time.UTC),
		"CRON_TZ=Asia/Kolkata @every 1h": time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC),
	} {
		schedule, err := rlockcron.Parse(spec, nil)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
		} else if next := schedule.Next(at); !next.Equal(want) {
			t.Errorf("%s: %v; want %v", spec, next, want)
		}
	}
	job := rlockcron.Job{CronJob: client.NewCronJob("a")}
	for _, spec := range []string{"", "hourly", "0 0 31 2 *", "TZ=Nowhere * * * * *"} {
		if _, err := job.Add(cron.New(), spec, func(context.Context, time.Time) error { return nil }); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%q: %v", spec, err)
		}
	}
	for _, schedule := range []cron.Schedule{nil, cron.Every(time.Hour)} {
		if _, err := job.Wrapper(schedule); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%v: %v", schedule, err)
		}
	}
	if _, err := (rlockcron.Job{}).Add(cron.New(), "@hourly", nil); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
}

// In the nights in which the clocks change, whatever the zone of the host is.
func TestTimeOfDayComesOnceWhenTheClocksChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec, zone string
		from       time.Time
		want       []string // in UTC
	}{
		{"30 2 * * *", "Europe/Berlin", time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), []string{"00:30"}},
		{"0 15 2 * * *", "Europe/Berlin", time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), []string{"00:15"}},
		{"0 * * * *", "Europe/Berlin", time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), []string{"23:00", "00:00", "01:00", "02:00", "03:00", "04:00"}},
		{"*/20 * * * *", "Europe/Berlin", time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC), []string{"00:40", "01:00", "01:20", "01:40", "02:00", "02:20", "02:40", "03:00", "03:20", "03:40", "04:00", "04:20", "04:40", "05:00", "05:20", "05:40", "06:00", "06:20"}},
		{"30 2 * * *", "Europe/Berlin", time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC), []string{"01:00"}},
		{"30 2 * * 0", "Europe/Berlin", time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC), []string{"01:00"}},
		{"0 * * * *", "Europe/Berlin", time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC), []string{"00:00", "01:00", "02:00", "03:00", "04:00", "05:00"}},
		{"30 1 * * *", "Australia/Lord_Howe", time.Date(2026, 4, 4, 13, 0, 0, 0, time.UTC), []string{"14:30"}},
		{"30 1 * * *", "Australia/Lord_Howe", time.Date(2026, 10, 3, 13, 0, 0, 0, time.UTC), []string{"15:00"}},
		{"CRON_TZ=America/New_York 30 1 * * *", "Europe/Berlin", time.Date(2026, 11, 1, 4, 0, 0, 0, time.UTC), []string{"05:30"}},
		{"@every 1h", "Europe/Berlin", time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC), []string{"01:00", "02:00", "03:00", "04:00", "05:00", "06:00"}},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		schedule, err := rlockcron.Parse(c.spec, zone)
		if err != nil {
			t.Fatal(err)
		}
		until := c.from.Add(6*time.Hour + 10*time.Minute)
		var next, scheduled []string
		for at := schedule.Next(c.from); at.Before(until); at = schedule.Next(at) {
			next = append(next, at.UTC().Format("15:04"))
		}
		for now := c.from.Add(time.Second); now.Before(until); now = now.Add(time.Minute) {
			tick, err := rlock.ScheduledTime(now, schedule.Next)
			if err != nil {
				t.Fatalf("%s at %v: %v", c.spec, now, err)
			}
			if at := tick.UTC().Format("15:04"); tick.After(c.from) && !slices.Contains(scheduled, at) {
				scheduled = append(scheduled, at)
			}
		}
		if !slices.Equal(next, c.want) || !slices.Equal(scheduled, c.want) {
			t.Errorf("%s in %s: Next has %v, ScheduledTime %v, want %v", c.spec, c.zone, next, scheduled, c.want)
		}
	}
}

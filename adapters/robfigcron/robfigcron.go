// Package rlockcron runs a job of robfig/cron once for each tick in a fleet of processes whose clocks differ, and gives
// it what robfig/cron does not: a context, the scheduled time, and an error.
package rlockcron

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/go-rlock/rlock"
)

// Job is a job whose ticks run once in the fleet.
type Job struct {
	// CronJob is what is claimed in Redis. All processes of the fleet give it the same name and options; a job gets a
	// new name with a new schedule.
	CronJob *rlock.CronJob

	// Context is where the context of each run comes from; nil: context.Background(). End it when the program stops:
	// Stop of a cron.Cron does not.
	Context context.Context

	// Report, unless nil, is called for each tick that this process reaches, on the goroutine of the run. The run
	// and the error are the results of rlock.CronJob's Do: run.Here without an error is a run that has succeeded here, and
	// not run.Here without an error is one of another process.
	Report func(run rlock.CronRun, err error)
}

// Add gives the job to c. fn gets the context of the run's lease, which ends when that is lost, and the scheduled time;
// rlock.LeaseFrom has the lease, with its fencing token.
//
// The spec has the form of cron.ParseStandard, maybe with seconds in front (c needs no option for that), in the zone of c
// (cron.WithLocation) or of TZ=. Give all processes the same zone. In the nights in which its clocks change, a time of day
// comes once: see rlock.InZone. "@every 1h" is aligned: it has all whole multiples
// of an hour in UTC, while robfig/cron's counts from the start of each process. If Redis does not answer, no process
// runs the tick.
//
// The error matches rlock.ErrInvalidArgument if something is nil, or the spec has no times.
func (j Job) Add(c *cron.Cron, spec string, fn func(ctx context.Context, tick time.Time) error) (cron.EntryID, error) {
	if c == nil || fn == nil || j.CronJob == nil {
		return 0, fmt.Errorf("rlockcron: %w: the cron.Cron, the function and the CronJob must not be nil", rlock.ErrInvalidArgument)
	}
	schedule, err := Parse(spec, c.Location())
	if err != nil {
		return 0, err
	}
	return c.Schedule(schedule, cron.FuncJob(func() { j.run(schedule, fn) })), nil
}

// Wrapper returns a link of a cron.Chain that runs a plain cron.Job once for each tick of a schedule, such as [Parse]
// returns for the location of the cron.Cron (a schedule of cron.ParseStandard has the zone of the caller, which may be another
// here). The job is not notified of a loss, and its runs count as successful; a panic is one that was lost. A schedule
// that counts from when it is asked (cron.Every, and @every of robfig/cron) is refused with rlock.ErrInvalidArgument:
// use rlock.Every(time.Hour).
func (j Job) Wrapper(schedule cron.Schedule) (cron.JobWrapper, error) {
	if schedule == nil || j.CronJob == nil {
		return nil, fmt.Errorf("rlockcron: %w: the schedule and the CronJob must not be nil", rlock.ErrInvalidArgument)
	}
	schedule = inZone(schedule)
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		return nil, fmt.Errorf("rlockcron: %w: this schedule counts from the start of each process, so no two have the same ticks: use rlock.Every(%v)", rlock.ErrInvalidArgument, every.Delay)
	}
	return func(inner cron.Job) cron.Job {
		return cron.FuncJob(func() {
			j.run(schedule, func(context.Context, time.Time) error {
				inner.Run()
				return nil
			})
		})
	}, nil
}

func (j Job) run(schedule cron.Schedule, fn func(ctx context.Context, tick time.Time) error) {
	ctx := j.Context
	if ctx == nil {
		ctx = context.Background()
	}
	tick, err := rlock.ScheduledTime(time.Now(), schedule.Next)
	var run rlock.CronRun
	if err == nil {
		run, err = j.CronJob.Do(ctx, tick, func(ctx context.Context) error { return fn(ctx, tick) })
	}
	if j.Report != nil {
		j.Report(run, err)
	}
}

// Parse returns the schedule of a spec, with the same ticks in each process: see [Job.Add]. The location counts if the
// spec has none; nil is UTC.
func Parse(spec string, location *time.Location) (cron.Schedule, error) {
	if location == nil {
		location = time.UTC
	}
	zoned := spec
	if !strings.HasPrefix(spec, "TZ=") && !strings.HasPrefix(spec, "CRON_TZ=") {
		zoned = "CRON_TZ=" + location.String() + " " + spec
	}
	parser := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	schedule, err := parser.Parse(zoned)
	if err != nil {
		return nil, fmt.Errorf("rlockcron: %w: %q: %w", rlock.ErrInvalidArgument, spec, err)
	}
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		schedule = rlock.Every(every.Delay)
	}
	schedule = inZone(schedule)
	if schedule.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("rlockcron: %w: %q has no times", rlock.ErrInvalidArgument, spec)
	}
	return schedule, nil
}

// next is a cron.Schedule.
type next func(after time.Time) time.Time

func (n next) Next(after time.Time) time.Time { return n(after) }

// inZone returns the schedule with the nights in which the clocks of its zone change: see rlock.InZone. One without a zone
// of its own uses the zone of the time that rlock.ScheduledTime passes to it.
func inZone(schedule cron.Schedule) cron.Schedule {
	spec, ok := schedule.(*cron.SpecSchedule)
	if !ok || spec.Location == time.Local {
		return schedule
	}
	free := *spec
	free.Location = time.Local // of the argument, to robfig/cron
	return next(rlock.InZone(free.Next, spec.Location))
}

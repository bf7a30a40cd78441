// Package rlockgocron runs a job of gocron once for each tick in a fleet of schedulers whose clocks differ ([Job]), or
// on one scheduler of the fleet ([Elector]).
//
// A lock for the time of a run is not enough: when a short job has ended, it is free, and a scheduler whose clock is
// behind runs the same tick again. A Job claims the tick, by its name and scheduled time: see rlock.CronJob.
package rlockgocron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"

	"github.com/go-rlock/rlock"
)

// ErrElsewhere: another scheduler runs the tick, or has run it. gocron counts the job as skipped, as it should.
var ErrElsewhere = errors.New("rlockgocron: the tick is run elsewhere")

// ErrNoTicks: the job is no gocron.CronJob. It matches rlock.ErrInvalidArgument. A DurationJob counts from the start of
// each process, so no two have the same ticks.
var ErrNoTicks = fmt.Errorf("rlockgocron: %w: only a gocron.CronJob has ticks that all schedulers agree about: "+
	`for each hour write gocron.CronJob("0 * * * *", false), or gocron.CronJob("@every 1h", false), `+
	"which counts from midnight in UTC here, and not from the start of the process", rlock.ErrInvalidArgument)

// Job is one job of gocron, whose ticks run once in the fleet. Make one for each job, and give it to the scheduler by
// [Job.AddTo]. It is also the gocron.Locker of its job, and its gocron.Cron: that is how it knows the schedule.
type Job struct {
	name string
	cron *rlock.CronJob
	now  func() time.Time

	mu       sync.Mutex    // guards what follows; not held while Redis is asked
	schedule cron.Schedule // nil: no CronJob
	added    bool
	granted  []*run // ticks of this scheduler whose task has not begun
}

var (
	_ gocron.Locker = (*Job)(nil)
	_ gocron.Cron   = (*Job)(nil)
)

// NewJob returns the job of a name. All processes of the fleet give the same name, options and crontab; a job gets a new
// name with a new schedule. It sends nothing: the first run reports invalid arguments.
func NewJob(client *rlock.Client, name string, opts ...rlock.CronJobOption) *Job {
	return &Job{name: name, cron: client.NewCronJob(name, opts...), now: time.Now}
}

// CronJob is what is claimed in Redis: its Last, Peek and Missed tell which ticks ran.
func (j *Job) CronJob() *rlock.CronJob { return j.cron }

// AddTo gives the job to a scheduler, with its name. The definition is a gocron.CronJob, with or without seconds;
// another is refused with [ErrNoTicks]. "@every 1h" is aligned: it has all whole multiples of an hour in UTC. Set the
// location of the scheduler (gocron.WithLocation), or TZ= in the crontab, if the hosts are not all in one zone. In the
// nights in which its clocks change, a time of day comes once: see rlock.InZone.
//
// If Redis does not answer, no instance runs the tick. gocron passes an error of the claim to gocron.AfterLockError:
// [ErrElsewhere] mostly, or one of rlock.CronJob, such as rlock.ErrUnreachable.
func (j *Job) AddTo(s gocron.Scheduler, definition gocron.JobDefinition, task gocron.Task, opts ...gocron.JobOption) (gocron.Job, error) {
	j.mu.Lock()
	added := j.added
	j.added = true
	j.mu.Unlock()
	if added {
		return nil, fmt.Errorf("rlockgocron: %w: %q was added before: make a Job for each job of each scheduler", rlock.ErrInvalidArgument, j.name)
	}
	opts = append(slices.Clone(opts), gocron.WithName(j.name), gocron.WithCronImplementation(j), gocron.WithDistributedJobLocker(j))
	job, err := s.NewJob(definition, task, opts...)
	if err != nil {
		return nil, err
	}
	if j.ticks() == nil {
		return nil, errors.Join(ErrNoTicks, s.RemoveJob(job.ID()))
	}
	return job, nil
}

// Task is a task whose function gets the context of the run's lease, and the scheduled time. The context ends when the
// lease is lost, and when gocron ends the job; rlock.LeaseFrom has the lease, with its fencing token. The error of
// the function is noted as the outcome of the run, and goes to gocron, as does rlock.ErrLeaseLost.
//
// A gocron.NewTask works too. Its function is not notified of a loss, and its runs are noted as successful.
func (j *Job) Task(fn func(ctx context.Context, tick time.Time) error) gocron.Task {
	return gocron.NewTask(func() error {
		r := j.take(nil)
		if r == nil {
			return fmt.Errorf("rlockgocron: %q has no claim: give the job to the scheduler by AddTo", j.name)
		}
		err := errors.New("the task has panicked")
		defer func() { r.finish(err) }()
		err = fn(r.ctx, r.tick)
		return r.finish(err)
	})
}

// IsValid implements gocron.Cron. gocron passes the crontab and the zone of the scheduler.
func (j *Job) IsValid(crontab string, location *time.Location, now time.Time) error {
	schedule, err := parse(crontab, location)
	if err != nil {
		return errors.Join(gocron.ErrCronJobParse, err)
	}
	if schedule.Next(now).IsZero() {
		return gocron.ErrCronJobInvalid
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.schedule = schedule
	return nil
}

func parse(crontab string, location *time.Location) (cron.Schedule, error) {
	zone := ""
	if !strings.HasPrefix(crontab, "TZ=") && !strings.HasPrefix(crontab, "CRON_TZ=") {
		zone = "CRON_TZ=" + location.String() + " "
	}
	parser := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	schedule, err := parser.Parse(zone + crontab)
	if err != nil {
		return nil, err
	}
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		return rlock.Every(every.Delay), nil
	}
	if spec, ok := schedule.(*cron.SpecSchedule); ok {
		free := *spec
		free.Location = time.Local // of the argument, to robfig/cron
		return next(rlock.InZone(free.Next, spec.Location)), nil
	}
	return schedule, nil
}

// next is a cron.Schedule.
type next func(after time.Time) time.Time

func (n next) Next(after time.Time) time.Time { return n(after) }

// Next implements gocron.Cron.
func (j *Job) Next(lastRun time.Time) time.Time { return j.ticks().Next(lastRun) }

func (j *Job) ticks() cron.Schedule {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.schedule
}

// Lock implements gocron.Locker. It claims the tick that is due, and keeps it until Unlock. The key, which is the name
// of the job only, does not matter.
func (j *Job) Lock(ctx context.Context, _ string) (gocron.Lock, error) {
	schedule := j.ticks()
	if schedule == nil {
		return nil, ErrNoTicks
	}
	tick, err := rlock.ScheduledTime(j.now(), schedule.Next)
	if err != nil {
		return nil, err
	}
	r := &run{job: j, tick: tick, outcome: make(chan error, 1), done: make(chan struct{})}
	began := make(chan struct{})
	go func() { // until the outcome is written, or there is no run here
		defer close(r.done)
		r.run, r.err = j.cron.Do(ctx, tick, func(ctx context.Context) error {
			r.ctx = ctx
			close(began)
			return <-r.outcome
		})
	}()
	select {
	case <-began:
		j.mu.Lock()
		defer j.mu.Unlock()
		j.granted = append(j.granted, r)
		return r, nil
	case <-r.done:
		if r.err != nil {
			return nil, r.err
		}
		return nil, fmt.Errorf("%w: %s, by %s", ErrElsewhere, tick.Format(time.RFC3339), r.run.Process)
	}
}

// take removes a run, or the first, from those whose task has not begun. Runs of a job may overlap, and gocron does not
// tell a task which lock is its own: each gets a tick of its own, whichever it is.
func (j *Job) take(which *run) *run {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := 0
	if which != nil {
		at = slices.Index(j.granted, which)
	}
	if at < 0 || at >= len(j.granted) {
		return nil
	}
	r := j.granted[at]
	j.granted = slices.Delete(j.granted, at, at+1)
	return r
}

// run is a tick that was claimed here, and a gocron.Lock.
type run struct {
	job     *Job
	tick    time.Time
	ctx     context.Context
	outcome chan error    // of the task
	done    chan struct{} // closed when what follows is written
	run     rlock.CronRun
	err     error
}

// finish ends the run, and returns its outcome, including the claim's. The first call counts.
func (r *run) finish(err error) error {
	select {
	case r.outcome <- err:
	default:
	}
	<-r.done
	return r.err
}

// Unlock ends the run, unless its Task has. It works also if ctx has ended, as the context of gocron has after a Shutdown.
func (r *run) Unlock(context.Context) error {
	if r.job.take(r) == nil {
		return nil
	}
	return r.finish(nil)
}

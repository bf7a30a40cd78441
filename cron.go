package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/presence"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/visible"
)

// CronJob runs a function once for each tick (a scheduled time of the job) among all processes whose
// schedulers have the job; their clocks may differ. A tick is claimed for good before its function runs.
// A run that a crash breaks off is lost; WithTakeover makes a waiting process run it again, once.
// Without an answer of Redis no function runs. If Redis loses its data, a tick may run again. Details:
// https://go-rlock.github.io/rlock/latest/cron/
type CronJob struct{ named }

// CronRun is the run of a tick, of this process or another. A run that has not ended has a zero End and a
// nil Err.
type CronRun struct {
	Scheduled time.Time // the tick, in UTC
	Here      bool      // this call has run the function
	HoldID    string    // Lease.HoldID of the run; the part before the colon is Client.ID
	Process   Process   // process of the run; zero if unknown
	Token     int64     // Lease.Token
	TakenOver bool      // the previous run of the tick was lost
	Start     time.Time // by the clock of Redis
	End       time.Time // when the run ended; zero if it runs, or if the end of a lost run is unknown
	Err       error     // error of the function, or its text in another process; matches ErrLeaseLost if the run was lost
}

// NewCronJob returns a job each of whose ticks runs once among all processes. All of them give the same
// name, options and schedule.
func (c *Client) NewCronJob(name string, opts ...CronJobOption) *CronJob {
	cfg, err := lockOptions(cronConfig{retention: DefaultRetention}, opts, CronJobOption.optionOfNewCronJob)
	if err == nil && (cfg.retention < MinRetention || cfg.retention > MaxKeep) {
		err = invalid("WithRetention(%v): must be between %v and %v", cfg.retention, MinRetention, MaxKeep)
	}
	if err == nil && (cfg.leastInterval < 0 || cfg.leastInterval > cfg.retention || cfg.leastInterval%time.Millisecond != 0) {
		err = invalid("WithLeastInterval(%v): must be whole milliseconds, up to the retention of %v", cfg.leastInterval, cfg.retention)
	}
	cfg.nonReentrant = true
	l, names := newCore(c, protocol.CronFamily, name, cfg.lockConfig, err)
	process := ""
	if p := l.c.presence; p != nil {
		process = p.Self.Text("")
	}
	l.proto = protocol.NewCron(&l.c.site, names, cfg.retention, cfg.leastInterval, cfg.takeover, process).At(0)
	return &CronJob{named{l}}
}

type cronOption func(c *cronConfig)

func (o cronOption) optionOfNewCronJob(c *cronConfig) { o(c) }

// WithTakeover makes Do run a lost run once more, but not a failed one: the first Do that waits for it
// runs it, or a later Do. The lost run may have had effects, or have ended. By default Do does not wait, and
// a lost run stays lost. See https://go-rlock.github.io/rlock/latest/cron/#at-most-once-or-taken-over-once
func WithTakeover() CronJobOption { return cronOption(func(c *cronConfig) { c.takeover = true }) }

// WithRetention sets for how long after its tick a run is kept; later the tick is not run. The default is
// 40 days; it is from MinRetention to MaxKeep.
func WithRetention(d time.Duration) CronJobOption {
	return cronOption(func(c *cronConfig) { c.retention = d })
}

// WithLeastInterval refuses, with ErrNotAcquired, a tick less than d before or after a claimed
// tick: two processes whose ticks differ by mistake do not both run the job. The default is 0: no tick is
// refused. d is in whole milliseconds, and at most the retention.
func WithLeastInterval(d time.Duration) CronJobOption {
	return cronOption(func(c *cronConfig) { c.leastInterval = d })
}

// Name returns the name of the job, with the prefix of its client.
func (j *CronJob) Name() string { return coreOf(j).name() }

// tick checks the arguments of a call, and returns its tick in ms.
func (j *CronJob) tick(ctx context.Context, scheduled time.Time) (int64, error) {
	l := coreOf(j)
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	tick := scheduled.UnixMilli()
	if tick < 0 || scheduled.Year() > 9999 {
		return 0, l.error(invalid("%v is no scheduled time", scheduled))
	}
	if scheduled.Nanosecond()%int(time.Millisecond) != 0 {
		// Probably the time of this call: every process would run a different tick.
		return 0, l.error(invalid("%v has a part of a millisecond, so no schedule has it: pass the time that the schedule says, such as rlock.ScheduledTime(time.Now(), schedule.Next) returns", scheduled))
	}
	return tick, nil
}

func (j *CronJob) job() *protocol.Cron { return j.one.proto.(*protocol.Tick).Cron() }

// Do runs fn, with the context of a renewed lease, for the tick of that time, unless another call has run it or
// runs it: then Do immediately returns that run, and no error. scheduled is the time of the
// schedule in whole milliseconds, never time.Now: see [ScheduledTime]. An error of fn is returned as by
// [Do]. If fn returned nil, the error is nil if Redis has that result; it matches ErrLeaseLost if the lease
// was lost, or ErrUnconfirmed if Redis did not confirm the result. If fn did not run, the error matches ErrNotRun,
// and is one of [Locker]; ErrNotAcquired too for a tick that is too old, too near to another, or more than an
// hour ahead; ErrLeaseLost if the lease of its claim ended first. Details: https://go-rlock.github.io/rlock/latest/cron/
func (j *CronJob) Do(ctx context.Context, scheduled time.Time, fn func(ctx context.Context) error) (run CronRun, err error) {
	defer func() {
		if err != nil && !run.Here {
			err = notRun{err}
		}
	}()
	tick, err := j.tick(ctx, scheduled)
	if err != nil {
		return CronRun{}, err
	}
	if fn == nil {
		return CronRun{}, j.one.error(invalid("Do needs a function"))
	}
	var s *clock.Sleeper
	for n, pause := 0, firstClaimPause; ; n++ {
		l, lease, other, err := j.claim(ctx, tick)
		switch {
		case lease != nil:
			return runTick(ctx, l, lease, tick, fn)
		case err != nil:
			return CronRun{}, err
		case other.State != protocol.Claimed:
			return l.cronRun(&other), nil
		}
		// The reply to the owner of the claim may be lost: if the owner's context ends then, the owner
		// takes the claim back. If this call returned now that the owner runs the tick, no process might run
		// it. When the lease of the claim has ended, the state is final.
		if s == nil {
			s = clock.NewSleeper(&l.c.env)
			defer s.Stop()
		}
		if s.Sleep(pause+seam.Jitter(l.c.seed, other.Token, n, pause/2), nil, nil, ctx.Done(), l.c.closing) == clock.ByEnd {
			return CronRun{}, l.claimedBy(&other, endOf(ctx))
		}
		pause = min(2*pause, longestClaimPause)
	}
}

// The pauses of a call that finds a claim whose function may not have begun. If the function runs for longer than
// beginsWithin, Redis has a record before the end of the first pause that the function has begun.
const (
	beginsWithin      = 10 * time.Millisecond
	firstClaimPause   = 20 * time.Millisecond
	longestClaimPause = 500 * time.Millisecond
)

// claimedBy returns the error of a call that ends while another call has the claim, and may not have begun.
func (l *core) claimedBy(r *protocol.Run, why error) *Error {
	return &Error{Lock: l.name(), HolderID: r.HoldID, Process: l.processOf(r), Err: because(because(ErrNotAcquired, errClaimed), why)}
}

var errClaimed = errors.New("another call has claimed the tick, and does not say that it runs")

// claim claims a tick, and returns its lease. It returns other, the run of another call, if the tick is already
// claimed.
func (j *CronJob) claim(ctx context.Context, tick int64) (l *core, lease *Lease, other protocol.Run, err error) {
	proto := j.job().At(tick)
	l = j.one.with(proto)
	settings := *j.one.settings
	settings.family += strconv.FormatInt(tick, 10)
	l.settings = &settings
	lease, err = lock(ctx, l, proto.TakesOver(), []WaitOption(nil))
	var refused *protocol.NotClaimed
	switch {
	case !errors.As(err, &refused):
	case refused.Found():
		return l, nil, refused.Run, nil
	case refused.Own && proto.TakesOver() && !refused.Run.TakenOver:
		return j.claim(ctx, tick) // under a new hold id, it takes over what is lost of its own
	case refused.Own:
		err = &Error{Lock: l.name(), HoldID: refused.Run.HoldID, Err: because(ErrLeaseLost, refused)}
	default:
		err = l.error(because(ErrNotAcquired, fmt.Errorf("the tick of %v: %s", time.UnixMilli(tick).UTC(), visible.Text(refused.Why))))
	}
	return l, lease, other, err
}

// runTick calls fn under a lease, and ends the lease.
func runTick(ctx context.Context, l *core, lease *Lease, tick int64, fn func(ctx context.Context) error) (run CronRun, err error) {
	proto, claimed := l.proto.(*protocol.Tick), l.proto.(*protocol.Tick).Claimed()
	claimed.Tick = tick
	run = l.cronRun(&claimed)
	proto.Begin()
	// After Begin no other call gets the tick. Before, the claim is taken back, if Redis still has its lease.
	if err := lease.Err(); err != nil {
		proto.NotBegun()
		return CronRun{}, joined(err, onlyUnconfirmed(lease.Unlock(ctx)))
	}
	run.Here = true
	proto.Runs()
	// A renewal records that the function has begun, if the function runs for longer than beginsWithin. That is
	// soon enough for other calls to find the record, and late enough to save the request of a short function.
	report := time.AfterFunc(beginsWithin-seam.Jitter(l.c.seed, claimed.Token, 0, time.Millisecond), lease.hold.renewNow)
	defer report.Stop()
	finish := func(state protocol.RunState, text string) error {
		// A copy that does not find the run proves nothing: Redis drops the oldest of very many runs.
		return lease.end(ctx, &finish{task: func(id string, lateCopies bool) protocol.Task {
			return proto.Finish(id, state, failureText(text), lateCopies)
		}})
	}
	began := l.c.now()
	cut := lease.call(ctx, func(ctx context.Context) { err = fn(ctx) }, func() { _ = finish(protocol.Broken, "panic") })
	run.End = run.Start.Add(l.c.now().Sub(began))
	state, text := protocol.Succeeded, ""
	if err != nil {
		state, text = protocol.Errored, err.Error()
		if ctx.Err() != nil || lease.Err() != nil { // the function may have failed because of that
			state = protocol.Broken
		}
	}
	err = cut.result(err, finish(state, text))
	run.Err = err
	return run, err
}

// processOf returns the process that has written a run.
func (l *core) processOf(r *protocol.Run) Process {
	if l.c.presence != nil && l.c.numberOf(r.HoldID) != 0 {
		return Process(l.c.presence.Self)
	}
	p, _ := presence.Read(r.Process)
	return Process(p)
}

func (l *core) cronRun(r *protocol.Run) CronRun {
	run := CronRun{
		Scheduled: time.UnixMilli(r.Tick).UTC(), HoldID: r.HoldID, Process: l.processOf(r), Token: r.Token, TakenOver: r.TakenOver, Start: time.UnixMilli(r.Start).UTC(),
	}
	if r.End > 0 && !r.State.GoesOn() {
		run.End = time.UnixMilli(r.End).UTC()
	}
	text := visible.Text(r.Text)
	switch r.State {
	case protocol.Errored:
		run.Err = errors.New(text)
	case protocol.Broken:
		run.Err = errors.New("broken off: " + text)
	case protocol.Lost:
		run.Err = ErrLeaseLost
		if text != "" {
			run.Err = because(ErrLeaseLost, errors.New(text))
		}
	}
	return run
}

// Peek returns the run of the tick of that time, if it is known: also a claim that may be taken back.
func (j *CronJob) Peek(ctx context.Context, scheduled time.Time) (run CronRun, known bool, err error) {
	tick, err := j.tick(ctx, scheduled)
	if err != nil {
		return CronRun{}, false, err
	}
	r, err := ask(ctx, j.one, func() protocol.Request[protocol.Run] { return j.job().Peek(tick) })
	if err != nil || !r.Outcome.Known {
		return CronRun{}, false, err
	}
	return j.one.cronRun(&r.Outcome), true, nil
}

// Last returns the run of the latest tick that was run, if it is known.
func (j *CronJob) Last(ctx context.Context) (run CronRun, known bool, err error) {
	l := coreOf(j)
	r, err := ask(ctx, l, func() protocol.Request[protocol.Run] { return j.job().Last() })
	last := r.Outcome
	if err != nil || !last.Known {
		return CronRun{}, false, err
	}
	if last.State.GoesOn() {
		return j.Peek(ctx, time.UnixMilli(last.Tick))
	}
	return l.cronRun(&last), true, nil
}

// Missed returns the latest scheduled times until now that were not claimed, at most `most` (1 to
// MaxRuns), oldest first, and none older than the runs that Redis keeps: call Do for each. next returns
// the first time after another, or zero, as the Next of a cron.Schedule. Errors are as from an
// [Inspector] and of [ScheduledTime]. See https://go-rlock.github.io/rlock/latest/cron/#missed-ticks
func (j *CronJob) Missed(ctx context.Context, next func(after time.Time) time.Time, most int) ([]time.Time, error) {
	l := coreOf(j)
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	if next == nil || most < 1 || most > MaxRuns {
		return nil, l.error(invalid("Missed needs a schedule and a number from 1 to %d, not %d", MaxRuns, most))
	}
	now := l.c.env.Clock.Now()
	next = InZone(next, now.Location())
	due := latestTicks(next, now.Add(-j.job().Retention()), now, most)
	if err := checkSchedule(next, due); err != nil {
		return nil, l.error(err)
	}
	if len(due) == 0 {
		return nil, nil
	}
	r, err := ask(ctx, l, func() protocol.Request[protocol.ClaimedTicks] {
		return j.job().Between(due[0].UnixMilli(), due[len(due)-1].UnixMilli())
	})
	if err != nil || !r.Outcome.Known {
		return nil, err
	}
	return slices.DeleteFunc(due, func(t time.Time) bool {
		return t.UnixMilli() <= r.Outcome.Since || slices.Contains(r.Outcome.Ticks, t.UnixMilli())
	}), nil
}

package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// cronJudge sees to it that each tick of a CronJob runs once.
type cronJudge struct {
	w        *World
	takeover bool
	mu       sync.Mutex // guards the rest
	ticks    map[int64]*tickFate
	told     int // calls that were told who has run
	good     int // runs whose end was confirmed
	again    int // runs that have taken over
	wrong    []string
}

// tickFate is what has become of a tick.
type tickFate struct {
	runs    []*cronPlay
	told    []string // hold ids of which calls were told that they run
	learned []string // hold ids of all runs that calls were told of, lost or not
}

// cronPlay is a run of a function.
type cronPlay struct {
	lease  *rlock.Lease
	holder string
	token  int64
	over   bool  // Do has returned
	err    error // what it returned
}

func (j *cronJudge) accuse(format string, args ...any) {
	j.wrong = append(j.wrong, fmt.Sprintf("%v: ", j.w.Elapsed())+fmt.Sprintf(format, args...))
}

// final reports whether a run has an outcome of its own that Redis knows.
func (r *cronPlay) final() bool {
	return r.over && (r.err == nil || r.err == errJob)
}

var errJob = errors.New("the job fails")

func (j *cronJudge) fate(tick time.Time) *tickFate {
	f := j.ticks[tick.UnixMilli()]
	if f == nil {
		f = &tickFate{}
		j.ticks[tick.UnixMilli()] = f
	}
	return f
}

// begins notes that a function has begun.
func (j *cronJudge) begins(who string, tick time.Time, lease *rlock.Lease) *cronPlay {
	j.mu.Lock()
	defer j.mu.Unlock()
	f, r := j.fate(tick), &cronPlay{lease: lease, holder: lease.HoldID(), token: lease.Token()}
	if n := len(f.runs); n > 0 {
		last := f.runs[n-1]
		switch {
		case !j.takeover:
			j.accuse("%s runs the tick of %v, and %s has run it", who, tick, last.holder)
		case n > 1:
			j.accuse("%s is the third to run the tick of %v", who, tick)
		case last.final():
			j.accuse("%s takes over a run that was not lost: %v", who, last.err)
		case !last.over && last.lease.Err() == nil:
			j.accuse("%s takes over a run whose lease is valid", who)
		case last.token >= r.token:
			j.accuse("%s has token %d, after %d", who, r.token, last.token)
		}
		j.again++
	}
	f.runs = append(f.runs, r)
	return r
}

// do calls Do for a tick, again if there is no answer.
func (j *cronJudge) do(k *worker, job *rlock.CronJob, tick time.Time, length func() time.Duration) {
	ctx, cancel := context.Background(), func() {}
	if k.r.IntN(8) == 0 {
		ctx, cancel = context.WithTimeout(ctx, k.between(0, time.Second))
	}
	defer cancel()
	for range 3 {
		var mine *cronPlay
		run, err := job.Do(ctx, tick, func(ctx context.Context) error {
			lease, _ := rlock.LeaseFrom(ctx)
			mine = j.begins(k.who, tick, lease)
			k.h.Sleep(k.who, length())
			if k.r.IntN(10) == 0 {
				return errJob
			}
			return ctx.Err()
		})
		j.mu.Lock()
		if mine != nil {
			mine.over, mine.err = true, err
			if err == errJob && ctx.Err() != nil {
				mine.err = ctx.Err() // it may be for that
			}
			if mine.final() {
				j.good++
			}
		}
		switch {
		case run.Here != (mine != nil):
			j.accuse("%s: Here is %v, and it ran: %v (%v)", k.who, run.Here, mine != nil, err)
		case err != nil || mine != nil:
		case run.HoldID == "" || !run.Scheduled.Equal(tick):
			j.accuse("%s was told %+v of the tick of %v", k.who, run, tick)
		default:
			j.told++
			f := j.fate(tick)
			f.learned = append(f.learned, run.HoldID)
			if run.End.IsZero() && run.Err == nil {
				f.told = append(f.told, run.HoldID)
			}
		}
		j.mu.Unlock()
		if mine != nil || !errors.Is(err, rlock.ErrUnreachable) {
			return
		}
		k.h.Sleep(k.who, k.between(0, 400*time.Millisecond))
	}
}

// settle compares what Redis keeps with what has happened.
func (j *cronJudge) settle(job *rlock.CronJob) {
	all := slices.Sorted(maps.Keys(j.ticks))
	for _, at := range all[max(0, len(all)-rlock.MaxRuns):] {
		f, tick := j.ticks[at], time.UnixMilli(at)
		run, known, err := job.Peek(context.Background(), tick)
		if err != nil { // a broken pooled connection
			run, known, err = job.Peek(context.Background(), tick)
		}
		if err != nil {
			j.accuse("Peek: %v", err)
		}
		for _, id := range f.told {
			if !slices.ContainsFunc(f.runs, func(r *cronPlay) bool { return r.holder == id }) {
				j.accuse("somebody was told that %s runs the tick of %v, and it never did", id, tick)
			}
		}
		for _, id := range f.learned {
			if i := slices.IndexFunc(f.runs, func(r *cronPlay) bool { return r.holder != id }); i >= 0 && !j.takeover {
				j.accuse("somebody was told of the run of %s, lost or not, and %s runs the tick of %v", id, f.runs[i].holder, tick)
			}
		}
		for _, r := range f.runs {
			if !r.final() {
				continue
			}
			if !known || run.HoldID != r.holder || run.Token != r.token || run.End.IsZero() || (run.Err == nil) != (r.err == nil) || errors.Is(run.Err, rlock.ErrLeaseLost) {
				j.accuse("the tick of %v was run by %s (%v), and Redis has %+v, %v", tick, r.holder, r.err, run, known)
			}
		}
		if len(f.runs) > 0 && known && run.End.IsZero() && run.Err == nil {
			j.accuse("the tick of %v still runs: %+v", tick, run)
		}
	}
}

func cronRun(t *testing.T, seed uint64, s scenario, takeover bool) (j *cronJudge) {
	bubble(t, seed, Config{Rates: s.rates}, func(w *World) {
		const span, period = 8 * time.Second, 200 * time.Millisecond
		j = &cronJudge{w: w, takeover: takeover, ticks: map[int64]*tickFate{}}
		var players []*player
		var work sync.WaitGroup
		var last *rlock.CronJob
		start := time.Now().Add(period).Truncate(period)
		for i := range 3 {
			p := newPlayer(w, s, string(rune('a'+i)))
			players = append(players, p)
			opts := []rlock.CronJobOption{}
			if takeover {
				opts = append(opts, rlock.WithTakeover())
			}
			job := p.c.NewCronJob("job", opts...)
			last = job
			for tick := start; tick.Sub(start) < span; tick = tick.Add(period) {
				who := fmt.Sprint(p.h.Name, tick.Sub(start))
				k := &worker{player: p, who: who, r: w.Rand("worker " + who)}
				work.Go(func() {
					k.h.Sleep(who, max(0, time.Until(tick)+k.between(0, 300*time.Millisecond)))
					j.do(k, job, tick, func() time.Duration {
						if k.r.IntN(10) == 0 {
							return k.between(lockLease, longestHold)
						}
						return k.between(0, 60*time.Millisecond)
					})
				})
			}
		}
		w.Play(w.Schedule(s.mix, s.faults, span))
		time.Sleep(max(0, span-w.Elapsed()))
		w.Heal()
		work.Wait()
		time.Sleep(lockLease + 10*time.Second) // what was left behind has run out
		j.settle(last)
		for _, p := range players {
			p.close()
		}
	})
	return j
}

// cronScenarios are those without a loss of data, after which a tick may run again.
func cronScenarios() []scenario {
	return append(onceScenarios(), scenario{name: "paused", rates: Harsh, mix: append(slices.Clone(Network), Pause, Pause), faults: 14, runs: 40})
}

func TestCronJobKeepsItsPromises(t *testing.T) {
	for _, takeover := range []bool{false, true} {
		for i, s := range cronScenarios() {
			t.Run(fmt.Sprint(s.name, " takeover ", takeover), func(t *testing.T) {
				if brief() && takeover == (i%2 == 0) {
					t.Skip("RLOCK_THOROUGH=1 or -sim.all plays it")
				}
				t.Parallel()
				byTurns(t)
				for _, seed := range seedsOf((ordinary(s.runs) + 4) / 5) {
					j := cronRun(t, seed, s, takeover)
					for _, v := range j.wrong {
						t.Errorf("seed %d: %s", seed, v)
					}
					t.Logf("seed %d: %d ticks, %d good, %d told, %d taken over", seed, len(j.ticks), j.good, j.told, j.again)
					if j.told == 0 || j.good == 0 {
						t.Errorf("seed %d: %d runs, %d told of others", seed, j.good, j.told)
					}
				}
			})
		}
	}
}

func TestSimulationFindsMutationsOfCron(t *testing.T) {
	run := func(takeover bool) func(t *testing.T, seed uint64, s scenario) []string {
		return func(t *testing.T, seed uint64, s scenario) []string { return cronRun(t, seed, s, takeover).wrong }
	}
	finds(t, []mistake{
		{"a claim is forgotten when its lock is free", "and Redis has", "cron/finish",
			"redis.call('hset', runs, tick, runText(run))", "redis.call('hdel', runs, tick)"},
		{"nobody looks for a claim", "has run it", "cron/enter",
			"local run, floor = readRun(known[1]), tonumber(known[2] or -1)", "local run, floor = nil, -1"},
		{"a claim is taken back after its run", "has run it", "cron/abandon",
			"freed and run and run.id == id and run.state == 'c'", "run"},
		{"a claim is told as a run", "never did", "cron/enter", "run = {state = 'c'", "run = {state = 'r'"},
	}, run(false))
	finds(t, []mistake{
		{"a run that has ended is taken over", "not lost", "cron/enter", "held or isOver(run) or not takes", "held or not takes"},
		{"a run is taken over while it runs", "is valid", "cron/enter", "local held = redis.call('exists', lock) == 1", "local held = false"},
	}, run(true))
}

// Three schedulers whose clocks are two seconds apart have a job for each second, for ten minutes. The one
// that is ahead, and so mostly the first, is stopped for half of them, and goes on with all that it
// has missed. Another is killed while it runs the job. The first loses its connections now and then.
func TestSchedulersWithDifferentClocksRunEachTickOnce(t *testing.T) {
	for _, takeover := range []bool{false, true} {
		t.Run(fmt.Sprint("takeover ", takeover), func(t *testing.T) {
			t.Parallel()
			ticks, stopped, resumes, killed := 600, 100, 400, 500
			if brief() { // still more than are kept
				ticks, stopped, resumes, killed = 300, 50, 200, 250
			}
			var j *cronJudge
			broken := time.Time{} // the tick that was run by who was killed
			bubble(t, 1, Config{}, func(w *World) {
				s := scenario{}
				j = &cronJudge{w: w, takeover: takeover, ticks: map[int64]*tickFate{}}
				start := time.Now().Add(5 * time.Second).Truncate(time.Second)
				dead := make(chan struct{})
				var players []*player
				var jobs []*rlock.CronJob
				var work, late sync.WaitGroup
				for i, ahead := range []time.Duration{2 * time.Second, 0, -2 * time.Second} {
					p := newPlayer(w, s, string(rune('a'+i)))
					players = append(players, p)
					var opts []rlock.CronJobOption
					if takeover {
						opts = append(opts, rlock.WithTakeover())
					}
					job := p.c.NewCronJob("job", opts...)
					jobs = append(jobs, job)
					work.Go(func() {
						r := w.Rand("scheduler " + p.h.Name)
						for n := range ticks {
							tick := start.Add(time.Duration(n) * time.Second)
							// Its timer fires when its own clock says so, and a little later.
							p.h.Sleep(p.h.Name, max(0, time.Until(tick.Add(-ahead)))+time.Duration(r.Int64N(int64(20*time.Millisecond))))
							if i == 0 && n == stopped {
								p.h.Pause(time.Duration(resumes-stopped) * time.Second)
							}
							if n%50 == 7 {
								p.h.Reset()
							}
							who := fmt.Sprint(p.h.Name, n)
							k := &worker{player: p, who: who, r: w.Rand("worker " + who)}
							all := &work
							if i == 0 && n > killed {
								return // it is dead
							} else if i == 0 && n == killed {
								all = &late
							}
							all.Go(func() {
								run, err := job.Do(context.Background(), tick, func(ctx context.Context) error {
									lease, _ := rlock.LeaseFrom(ctx)
									mine := j.begins(who, tick, lease)
									defer func() { mine.over = true }()
									if i == 0 && n == killed {
										broken = tick
										p.h.Pause(time.Hour)
										<-dead
										mine.err = rlock.ErrLeaseLost
										return nil
									}
									k.h.Sleep(who, 10*time.Millisecond)
									return nil
								})
								j.mu.Lock()
								defer j.mu.Unlock()
								switch {
								case i == 0 && n >= stopped && n < resumes && (errors.Is(err, rlock.ErrNotAcquired) || n == stopped): // too late
								case i == 0 && n == killed:
								case err != nil:
									j.accuse("%s: %v", who, err)
								case run.Here:
									j.good++
								default:
									j.told++
								}
							})
						}
					})
				}
				work.Wait()
				close(dead)
				time.Sleep(time.Hour) // the dead one may leave the bubble
				late.Wait()
				j.settle(jobs[2])
				if keys, err := w.Redis(0).HKeys("{job}:rlock:cron"); len(keys) > rlock.MaxRuns+70 || err != nil { // the others are younger than a minute
					j.accuse("%d runs are kept (%v)", len(keys), err)
				}
				run, known, err := jobs[2].Peek(context.Background(), broken)
				if takeover != (known && run.TakenOver && run.Err == nil && !run.End.IsZero()) || !takeover && !errors.Is(run.Err, rlock.ErrLeaseLost) || err != nil {
					j.accuse("the run that was broken off: %+v, %v, %v", run, known, err)
				}
				for _, p := range players {
					p.close()
				}
			})
			for _, v := range j.wrong {
				t.Error(v)
			}
			twice := 0
			for _, f := range j.ticks {
				twice += len(f.runs) - 1
			}
			if len(j.ticks) != ticks || takeover && twice != 1 || !takeover && twice != 0 {
				t.Errorf("%d of %d ticks ran, %d of them twice", len(j.ticks), ticks, twice)
			}
			t.Logf("%d ticks: %d runs, %d calls were told of another, %d taken over", ticks, j.good, j.told, j.again)
		})
	}
}

// What a lock cannot do: three schedulers, whose clocks are 50 ms apart, take a lock for each run of a job
// of 10 ms. Each of them finds the lock free when the one before has finished, and runs the tick again.
func TestLockLetsEachSchedulerRunTheTick(t *testing.T) {
	const ticks = 20
	for _, apart := range []time.Duration{50 * time.Millisecond, 400 * time.Millisecond, 1900 * time.Millisecond} {
		var byLock, byJob int
		bubble(t, 1, Config{}, func(w *World) {
			var mu sync.Mutex // guards byLock and byJob
			count := func(n *int) {
				mu.Lock()
				defer mu.Unlock()
				*n++
			}
			var players []*player
			var work sync.WaitGroup
			start := time.Now().Add(5 * time.Second).Truncate(time.Second)
			for i := range 3 {
				p := newPlayer(w, scenario{}, string(rune('a'+i)))
				players = append(players, p)
				lock, job := p.c.NewLock("by lock"), p.c.NewCronJob("by job")
				ahead := time.Duration(i-1) * apart
				r := w.Rand("scheduler " + p.h.Name)
				work.Go(func() {
					for n := range ticks {
						tick := start.Add(time.Duration(n) * time.Second)
						p.h.Sleep(p.h.Name, time.Until(tick.Add(ahead))+time.Duration(r.Int64N(int64(time.Millisecond))))
						err := rlock.Do(context.Background(), lock, func(context.Context) error {
							count(&byLock)
							p.h.Sleep(p.h.Name, 10*time.Millisecond)
							return nil
						}, rlock.WithWait(0))
						if err != nil && !errors.Is(err, rlock.ErrNotAcquired) {
							t.Error(err)
						}
						if _, err := job.Do(context.Background(), tick, func(context.Context) error {
							count(&byJob)
							p.h.Sleep(p.h.Name, 10*time.Millisecond)
							return nil
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			work.Wait()
			for _, p := range players {
				p.close()
			}
		})
		if byLock != 3*ticks || byJob != ticks {
			t.Errorf("clocks %v apart: %d runs of %d ticks with a lock, %d with a CronJob", apart, byLock, ticks, byJob)
		}
		t.Logf("clocks %v apart: %d runs of %d ticks with a lock, %d with a CronJob", apart, byLock, ticks, byJob)
	}
}

//go:build unix

package rlockgocron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	_ "time/tzdata" // where the system has no zones

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// skewed is a clock that is wrong.
type skewed struct {
	clockwork.Clock
	by time.Duration
}

func (s skewed) Now() time.Time                   { return s.Clock.Now().Add(s.by) }
func (s skewed) Since(at time.Time) time.Duration { return s.Now().Sub(at) }
func (s skewed) Until(at time.Time) time.Duration { return at.Sub(s.Now()) }
func clock(by time.Duration) (gocron.SchedulerOption, skewed) {
	c := skewed{clockwork.NewRealClock(), by}
	return gocron.WithClock(c), c
}

// scheduler is one whose clock is wrong, in UTC, that is shut down when the test ends.
func scheduler(t testing.TB, by time.Duration, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	wrong, _ := clock(by)
	s, err := gocron.NewScheduler(append(opts, wrong, gocron.WithLocation(time.UTC))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

func newJob(client *rlock.Client, name string, by time.Duration, opts ...rlock.CronJobOption) *Job {
	j := NewJob(client, name, opts...)
	_, wrong := clock(by)
	j.now = wrong.Now
	return j
}

// mutex is a lock for the time of a run, as gocron-redis-lock has it: a key that is free when the job has ended, and
// tries while it is not.
type mutex struct{ rdb *redis.Client }

func (m mutex) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	for range 32 {
		if ok, err := m.rdb.SetNX(ctx, "mutex:"+key, "x", 8*time.Second).Result(); err != nil {
			return nil, err
		} else if ok {
			return unlocker(func(ctx context.Context) error { return m.rdb.Del(ctx, "mutex:"+key).Err() }), nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, errors.New("busy")
}

type unlocker func(ctx context.Context) error

func (u unlocker) Unlock(ctx context.Context) error { return u(ctx) }

// ticks counts the runs of each tick.
type ticks struct {
	mu   sync.Mutex // guards runs
	runs map[time.Time]int
}

func (n *ticks) ran(tick time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.runs == nil {
		n.runs = map[time.Time]int{}
	}
	n.runs[tick.UTC()]++
}

// more returns how many ticks there are, and how many ran more than once.
func (n *ticks) more() (all, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, times := range n.runs {
		if times > 1 {
			more++
		}
	}
	return len(n.runs), more
}

// Three schedulers, a job each second. Each tick runs once with a Job. With a lock for the time of a run, a short job
// runs the same tick again on the schedulers whose clocks are behind.
func TestEachTickRunsOnceThoughClocksDiffer(t *testing.T) {
	t.Parallel()
	const want = 8 // the clocks of two schedulers differ by four
	for _, c := range []struct{ skew, work time.Duration }{
		{50 * time.Millisecond, 10 * time.Millisecond}, {400 * time.Millisecond, 10 * time.Millisecond}, {2 * time.Second, 10 * time.Millisecond},
		{50 * time.Millisecond, time.Second}, {400 * time.Millisecond, time.Second}, {2 * time.Second, time.Second},
	} {
		for _, design := range []string{"claim", "mutex"} {
			t.Run(fmt.Sprintf("%s/clocks %v apart, job of %v", design, c.skew, c.work), func(t *testing.T) {
				t.Parallel()
				srv := redistest.Start(t)
				var counted ticks
				for _, by := range []time.Duration{-c.skew, 0, c.skew} {
					if design == "claim" {
						j := newJob(locktest.NewClient(t, srv.Client()), "report", by)
						s := scheduler(t, by)
						task := j.Task(func(_ context.Context, tick time.Time) error {
							counted.ran(tick)
							time.Sleep(c.work)
							return nil
						})
						if _, err := j.AddTo(s, gocron.CronJob("* * * * * *", true), task); err != nil {
							t.Fatal(err)
						}
						s.Start()
						continue
					}
					s := scheduler(t, by, gocron.WithDistributedLocker(mutex{srv.Client()}))
					_, now := clock(by)
					task := gocron.NewTask(func() {
						counted.ran(now.Now().Round(time.Second))
						time.Sleep(c.work)
					})
					if _, err := s.NewJob(gocron.CronJob("* * * * * *", true), task, gocron.WithName("report")); err != nil {
						t.Fatal(err)
					}
					s.Start()
				}
				locktest.Eventually(t, "ticks run", func() bool { all, _ := counted.more(); return all >= want })
				if design == "mutex" && c.work < c.skew && c.skew < time.Second { // else some of the schedulers wait in vain
					locktest.Eventually(t, "a tick runs again", func() bool { _, more := counted.more(); return more > 0 })
				}
				all, more := counted.more()
				t.Logf("%d ticks, %d of them ran more than once", all, more)
				if design == "claim" && more > 0 {
					t.Errorf("%d of %d ticks ran more than once", more, all)
				}
			})
		}
	}
}

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"schedule": childSchedule})
}

// childSchedule runs a scheduler whose clock is wrong by so many ms. Each run counts in Redis when it begins.
func childSchedule(t *testing.T, parent *locktest.Parent, addr string, args []string) {
	by, err := strconv.Atoi(args[0])
	if err != nil {
		t.Fatal(err)
	}
	client, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(time.Second))
	skew := time.Duration(by) * time.Millisecond
	j, s := newJob(client, "report", skew), scheduler(t, skew)
	task := j.Task(func(ctx context.Context, tick time.Time) error {
		if err := rdb.HIncrBy(context.Background(), "runs", strconv.FormatInt(tick.Unix(), 10), 1).Err(); err != nil {
			return err
		}
		parent.Report("runs")
		time.Sleep(100 * time.Millisecond)
		return nil
	})
	if _, err := j.AddTo(s, gocron.CronJob("* * * * * *", true), task); err != nil {
		t.Fatal(err)
	}
	s.Start()
	parent.Report("started")
	select {}
}

// Of three processes one is killed while it runs, and one is stopped for some ticks and goes on.
func TestNoTickRunsTwiceWhenProcessesDieOrStop(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client()
	runs := func() map[string]string { return rdb.HGetAll(t.Context(), "runs").Val() }
	ahead := locktest.StartChild(t, "schedule", srv.Addr(), "400") // it runs all
	ahead.Report("started")
	ahead.Report("runs")
	second := locktest.StartChild(t, "schedule", srv.Addr(), "200")
	second.Report("started")
	third := locktest.StartChild(t, "schedule", srv.Addr(), "0")
	third.Report("started")
	ahead.Report("runs")
	ahead.Kill()
	second.Report("runs")
	second.Report("runs")
	second.Signal(syscall.SIGSTOP)
	n := len(runs())
	locktest.Eventually(t, "the third runs", func() bool { return len(runs()) >= n+3 })
	second.Signal(syscall.SIGCONT)
	second.Report("runs")
	for tick, times := range runs() {
		if times != "1" {
			t.Errorf("tick %s ran %s times", tick, times)
		}
	}
}

// gocron gives Unlock a context that ended with the job: after a RemoveJob or Shutdown while it runs.
func TestUnlockWithAnEndedContext(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	for _, own := range []bool{false, true} {
		j, s := newJob(srv.Client(), fmt.Sprint("report", own), 0), scheduler(t, 0)
		began, ended := make(chan struct{}, 100), make(chan error, 100)
		task := gocron.NewTask(func(ctx context.Context) { began <- struct{}{}; <-ctx.Done(); ended <- ctx.Err() })
		if own {
			task = j.Task(func(ctx context.Context, _ time.Time) error {
				began <- struct{}{}
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			})
		}
		if _, err := j.AddTo(s, gocron.CronJob("* * * * * *", true), task); err != nil {
			t.Fatal(err)
		}
		s.Start()
		<-began
		if err := s.Shutdown(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		locktest.Eventually(t, "no lease is left", func() bool { return len(srv.Client().Held()) == 0 })
		run, known, err := j.CronJob().Last(t.Context())
		if err != nil || !known || run.End.IsZero() {
			t.Errorf("the run is %+v, %v, %v", run, known, err)
		}
	}
}

func TestTaskIsToldOfALossAndItsOutcomeIsNoted(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	failed := errors.New("failed")
	outcomes := make(chan error, 100)
	var runs atomic.Int32
	j, s := newJob(srv.Client(), "report", 0), scheduler(t, 0)
	task := j.Task(func(ctx context.Context, tick time.Time) error {
		lease, ok := rlock.LeaseFrom(ctx)
		if !ok || lease.Token() <= 0 || tick.Nanosecond() != 0 {
			t.Errorf("the lease is %v, the tick %v", lease, tick)
		}
		switch runs.Add(1) {
		case 1:
			return failed
		case 2:
			panic("a bug")
		case 3:
			srv.Remove(lease.Name())
			<-ctx.Done()
			return nil
		}
		return nil
	})
	listeners := gocron.WithEventListeners(
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { outcomes <- err }),
		gocron.AfterJobRunsWithPanic(func(uuid.UUID, string, any) {}), // without it gocron lets a panic end the process
		gocron.AfterJobRuns(func(uuid.UUID, string) { outcomes <- nil }))
	if _, err := j.AddTo(s, gocron.CronJob("* * * * * *", true), task, listeners); err != nil {
		t.Fatal(err)
	}
	s.Start()
	for n, want := range []error{failed, gocron.ErrPanicRecovered, rlock.ErrLeaseLost, nil} {
		if err := <-outcomes; !errors.Is(err, want) {
			t.Errorf("run %d: %v; want %v", n+1, err, want)
		}
	}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	run, known, err := j.CronJob().Last(t.Context())
	if err != nil || !known || run.Err != nil {
		t.Errorf("the last run is %+v, %v, %v", run, known, err)
	}
}

// What has no ticks is refused when it is added; an interval in a crontab is aligned.
func TestIntervalsAreRefusedOrAligned(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	s := scheduler(t, 0)
	for _, definition := range []gocron.JobDefinition{
		gocron.DurationJob(time.Hour), gocron.DailyJob(1, gocron.NewAtTimes(gocron.NewAtTime(1, 0, 0))),
	} {
		j := NewJob(srv.Client(), "a")
		if _, err := j.AddTo(s, definition, gocron.NewTask(func() {})); !errors.Is(err, ErrNoTicks) || !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%T: %v", definition, err)
		}
		if _, err := j.Lock(t.Context(), "a"); !errors.Is(err, ErrNoTicks) {
			t.Errorf("%T: %v", definition, err)
		}
	}
	if n := len(s.Jobs()); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
	j := NewJob(srv.Client(), "b")
	if _, err := j.AddTo(s, gocron.CronJob("@every 1h", false), gocron.NewTask(func() {})); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 26, 7, 14, 15, 16, time.UTC)
	if next := j.Next(at); !next.Equal(at.Truncate(time.Hour).Add(time.Hour)) {
		t.Errorf("the next hour is at %v", next)
	}
	if _, err := j.AddTo(s, gocron.CronJob("@hourly", false), gocron.NewTask(func() {})); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("a second AddTo: %v", err)
	}
	for _, crontab := range []string{"", "every hour", "0 0 31 2 *"} {
		if _, err := NewJob(srv.Client(), "c").AddTo(s, gocron.CronJob(crontab, false), gocron.NewTask(func() {})); err == nil {
			t.Errorf("%q was not refused", crontab)
		}
	}
	// A zone of the scheduler counts.
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	noon := NewJob(srv.Client(), "d")
	if err := noon.IsValid("0 12 * * *", zone, at); err != nil || !noon.Next(at).Equal(time.Date(2026, 11, 27, 6, 30, 0, 0, time.UTC)) {
		t.Errorf("noon is at %v, %v", noon.Next(at), err)
	}
}

func TestNobodyRunsWithoutRedis(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	client := srv.NewClient(rlock.WithCommandTimeout(100 * time.Millisecond))
	j, s := newJob(client, "report", 0), scheduler(t, 0)
	srv.Disconnect()
	refused := make(chan error, 100)
	task := j.Task(func(context.Context, time.Time) error { t.Error("it ran"); return nil })
	if _, err := j.AddTo(s, gocron.CronJob("* * * * * *", true), task, gocron.WithEventListeners(
		gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err }))); err != nil {
		t.Fatal(err)
	}
	s.Start()
	if err := <-refused; !errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, ErrElsewhere) {
		t.Errorf("without Redis: %v", err)
	}
	_ = s.Shutdown()
	srv.Recover()
}

func TestElectorHasOneSchedulerRunTheJobs(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var running, most atomic.Int32
	type member struct {
		s       gocron.Scheduler
		elector *Elector
		resign  func()
	}
	runs := make(chan int, 1000)
	members := make([]member, 3)
	for i := range members {
		e, err := NewElector(srv.NewClient().NewElection("scheduler"), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("before Run: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		resign := sync.OnceFunc(func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
		t.Cleanup(resign)
		s := scheduler(t, 0, gocron.WithDistributedElector(e))
		if _, err := s.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(func() {
			most.Store(max(most.Load(), running.Add(1)))
			runs <- i
			time.Sleep(10 * time.Millisecond)
			running.Add(-1)
		})); err != nil {
			t.Fatal(err)
		}
		s.Start()
		members[i] = member{s, e, resign}
	}
	first := <-runs
	if again := <-runs; again != first {
		t.Errorf("%d and %d ran", first, again)
	}
	_ = members[first].s.Shutdown()
	members[first].resign()
	if err := members[first].elector.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Errorf("after it has resigned: %v", err)
	}
	for next := range runs {
		if next != first {
			break
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d ran at once", most.Load())
	}
	if _, err := NewElector(nil, ""); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
}

// gocron asks the Job for the next time: in the nights in which the clocks change a time of day comes once.
func TestTimeOfDayComesOnceWhenTheClocksChange(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		crontab string
		from    time.Time
		want    []string // in UTC
	}{
		{"30 2 * * *", time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), []string{"00:30"}},
		{"0 * * * *", time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), []string{"23:00", "00:00", "01:00", "02:00", "03:00"}},
		{"30 2 * * *", time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC), []string{"01:00"}},
		{"CRON_TZ=UTC 30 0 * * *", time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), []string{"00:30"}},
	} {
		job := NewJob(rlocktest.New(t).Client(), "report")
		if err := job.IsValid(c.crontab, berlin, c.from); err != nil {
			t.Fatal(err)
		}
		var ticks []string
		for at := job.Next(c.from); at.Sub(c.from) < 6*time.Hour; at = job.Next(at) {
			tick, err := rlock.ScheduledTime(at.Add(time.Minute).UTC(), job.Next)
			if err != nil || !tick.Equal(at) {
				t.Errorf("%s: a call after %v is for %v, %v", c.crontab, at, tick, err)
			}
			ticks = append(ticks, at.UTC().Format("15:04"))
		}
		if !slices.Equal(ticks, c.want) {
			t.Errorf("%s: %v, want %v", c.crontab, ticks, c.want)
		}
	}
}

package coordination

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

const (
	runsKey  = "{job}:rlock:cron"
	ticksKey = "{job}:rlock:cron:ticks"
)

func tickLock(tick time.Time) string { return fmt.Sprint(runsKey, ":", tick.UnixMilli()) }

// aTick is a tick of now.
func aTick() time.Time { return time.Now().Truncate(time.Second) }

func works(context.Context) error { return nil }

func mustNot(context.Context) error { panic("it ran") }

// wantRun calls Do, which must run the function.
func wantRun(t testing.TB, j *rlock.CronJob, tick time.Time, fn func(context.Context) error) rlock.CronRun {
	t.Helper()
	run, err := j.Do(bg, tick, fn)
	if !run.Here || err != nil || run.Err != nil || run.HoldID == "" || run.Token == 0 || run.Start.IsZero() || run.End.Before(run.Start) {
		t.Fatalf("Do: %+v, %v", run, err)
	}
	return run
}

// wantTold calls Do, which must not run the function, and checks whose run it tells of.
func wantTold(t testing.TB, j *rlock.CronJob, tick time.Time, whose string) rlock.CronRun {
	t.Helper()
	run, err := j.Do(bg, tick, mustNot)
	if run.Here || err != nil || run.HoldID != whose || !run.Scheduled.Equal(tick) {
		t.Fatalf("Do: %+v, %v; want a run of %s", run, err, whose)
	}
	return run
}

func peekRun(t testing.TB, j *rlock.CronJob, tick time.Time) rlock.CronRun {
	t.Helper()
	run, known, err := j.Peek(bg, tick)
	if !known || err != nil {
		t.Fatal(run, known, err)
	}
	return run
}

// ticking is a Do of a CronJob under way.
type ticking struct {
	inside chan context.Context // gets the context of its function
	fate   chan func() error    // what the function does
	cancel context.CancelFunc
	run    rlock.CronRun
	err    error
	done   chan struct{}
}

func ticks(j *rlock.CronJob, tick time.Time) *ticking {
	ctx, cancel := context.WithCancel(bg)
	d := &ticking{inside: make(chan context.Context, 1), fate: make(chan func() error, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		defer func() {
			if p := recover(); p != nil {
				d.err = fmt.Errorf("panic: %v", p)
			}
		}()
		d.run, d.err = j.Do(ctx, tick, func(ctx context.Context) error {
			d.inside <- ctx
			return (<-d.fate)()
		})
	}()
	return d
}

// runs waits until its function runs, and returns the context of that.
func (d *ticking) runs(t testing.TB) context.Context {
	t.Helper()
	select {
	case ctx := <-d.inside:
		return ctx
	case <-d.done:
		t.Fatalf("it does not run: %+v, %v", d.run, d.err)
	case <-time.After(locktest.Patience):
		t.Fatal("it does not run")
	}
	return nil
}

func (d *ticking) end(t testing.TB) {
	t.Helper()
	select {
	case <-d.done:
	case <-time.After(locktest.Patience):
		t.Fatal("Do does not return")
	}
}

func (d *ticking) ends(t testing.TB, fate func() error) {
	t.Helper()
	d.fate <- fate
	d.end(t)
}

func TestOneCallRunsATickAndTheOthersGetItsRun(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		j, other := b.NewClient(t).NewCronJob("job"), b.NewClient(t).NewCronJob("job")
		if _, known, err := other.Last(bg); known || err != nil {
			t.Fatal(known, err)
		}
		tick := aTick()
		mine := ticks(j, tick)
		lease, ok := rlock.LeaseFrom(mine.runs(t))
		if !ok {
			t.Fatal("its context has no lease")
		}
		now := wantTold(t, other, tick, lease.HoldID())
		if !now.End.IsZero() || now.Err != nil || now.Token != lease.Token() || now.TakenOver {
			t.Fatalf("%+v", now)
		}
		if run, known, err := other.Last(bg); run != now || !known || err != nil {
			t.Fatal(run, known, err)
		}
		mine.ends(t, func() error { return nil })
		if !mine.run.Here || mine.err != nil || mine.run.HoldID != lease.HoldID() {
			t.Fatal(mine.run, mine.err)
		}
		// The same instant, as another clock and another zone show it.
		for _, same := range []time.Time{tick, tick.In(time.FixedZone("", 7*3600)), time.UnixMilli(tick.UnixMilli())} {
			for _, j := range []*rlock.CronJob{j, other} {
				told, err := j.Do(bg, same, mustNot)
				if err != nil || told.Here || told.HoldID != lease.HoldID() || told.End.IsZero() || told.Err != nil || !told.Scheduled.Equal(tick) || told.Scheduled.Location() != time.UTC {
					t.Fatalf("%+v, %v", told, err)
				}
			}
		}
		// An earlier tick that nobody has run, and later ones.
		wantRun(t, other, tick.Add(-time.Second), works)
		if run, _, _ := j.Last(bg); !run.Scheduled.Equal(tick) {
			t.Fatalf("%+v is the latest", run)
		}
		next := wantRun(t, other, tick.Add(time.Second), works)
		if run, known, err := j.Last(bg); !known || err != nil || run.HoldID != next.HoldID {
			t.Fatalf("%+v, %v, %v", run, known, err)
		}
		if _, known, err := j.Peek(bg, tick.Add(time.Hour)); known || err != nil {
			t.Fatal(known, err)
		}

		for _, key := range []string{runsKey, ticksKey} {
			locktest.WantTTL(t, b.Client(t), key, rlock.DefaultRetention+rlock.DefaultRetention/100)
		}
		if n := b.Client(t).Exists(bg, tickLock(tick)).Val(); n != 0 {
			t.Error("the lock of the tick is held")
		}
	})
}

// Whose run it was is known for as long as the run is, by its record alone.
func TestProcessOfATick(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const label = "nightly reports, second try"
		open := func(opts ...rlock.Option) (*rlock.CronJob, *rlock.Client) {
			c := b.NewClient(t, opts...)
			return c.NewCronJob("job"), c
		}
		j, c := open(rlock.WithLabel(label))
		other, _ := open()
		nobody, _ := open(rlock.WithAnonymity())
		tick := aTick()
		is := func(run rlock.CronRun, who string) {
			t.Helper()
			host, _ := os.Hostname()
			if p := run.Process; who == "" && p != (rlock.Process{}) || who != "" && (p.Label != label || p.PID != os.Getpid() || p.Host != host || p.Started.IsZero()) {
				t.Errorf("the run of %+v, want %q", p, who)
			}
		}
		mine := ticks(j, tick)
		mine.runs(t)
		is(peekRun(t, other, tick), label)
		mine.ends(t, func() error { return errors.New("a text with spaces") })
		is(mine.run, label)
		c.Close()
		for _, key := range b.Client(t).Keys(bg, "rlock:client:*").Val() {
			b.Client(t).Del(bg, key)
		}
		for _, by := range []*rlock.CronJob{other, nobody} {
			told := wantTold(t, by, tick, mine.run.HoldID)
			if is(told, label); told.Err == nil || told.Err.Error() != "a text with spaces" {
				t.Errorf("%+v", told)
			}
		}
		last, _, err := other.Last(bg)
		if is(last, label); err != nil {
			t.Error(err)
		}
		is(wantRun(t, nobody, tick.Add(time.Second), works), "")
		is(peekRun(t, other, tick.Add(time.Second)), "")
	})
}

// Whatever the function returns, it has run.
func TestOutcomeOfATick(t *testing.T) {
	t.Parallel()
	failed := errors.New("no paper\nin the printer")
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		j, other := b.NewClient(t).NewCronJob("job"), b.NewClient(t).NewCronJob("job")
		tick := aTick()
		for i, c := range []struct {
			fate func(d *ticking) error
			want string // of the error that others are told
			is   error  // what Do returns
		}{
			{func(*ticking) error { return failed }, `no paper\nin the printer`, failed},
			{func(*ticking) error { return errors.New("") }, "", nil},
			{func(*ticking) error { return errors.New(strings.Repeat("é", 2000)) }, strings.Repeat("é", 512), nil},
			{func(*ticking) error { return errors.New("Jürgen 日本\x1b[2J\n\u202e") }, `Jürgen 日本\x1b[2J\n\u202e`, nil},
			{func(*ticking) error { panic("on purpose") }, "broken off: panic", nil},
			{func(*ticking) error { runtime.Goexit(); return nil }, "broken off: panic", nil},
			{func(d *ticking) error { d.cancel(); return context.Canceled }, "broken off: context canceled", context.Canceled},
		} {
			at := tick.Add(time.Duration(i) * time.Second)
			mine := ticks(j, at)
			mine.runs(t)
			mine.ends(t, func() error { return c.fate(mine) })
			if c.is != nil && !errors.Is(mine.err, c.is) {
				t.Errorf("%d: %v", i, mine.err)
			}
			told, err := other.Do(bg, at, mustNot)
			if err != nil || told.Err == nil || told.Err.Error() != c.want || errors.Is(told.Err, rlock.ErrLeaseLost) || told.End.IsZero() {
				t.Errorf("%d: %+v, %v", i, told, err)
			}
		}
	})
}

func TestOneOfManySchedulersRunsEachTick(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		var jobs []*rlock.CronJob
		for range 3 {
			c := b.NewClient(t)
			jobs = append(jobs, c.NewCronJob("job"), c.NewCronJob("job", rlock.WithMaxHold(time.Hour)), c.NewCronJob("job", rlock.WithTakeover()))
		}
		tick := aTick()
		var runs [5]atomic.Int32
		var wg sync.WaitGroup
		for i := range runs {
			for _, j := range jobs {
				wg.Go(func() {
					run, err := j.Do(bg, tick.Add(time.Duration(i)*time.Second), func(context.Context) error {
						runs[i].Add(1)
						return nil
					})
					if err != nil || run.HoldID == "" {
						t.Error(run, err)
					}
				})
			}
		}
		wg.Wait()
		for i := range runs {
			if n := runs[i].Load(); n != 1 {
				t.Errorf("tick %d ran %d times", i, n)
			}
		}
	})
}

// Five processes have an interval schedule, and began one second after the other.
func TestIntervalScheduleRunsOnceForAll(t *testing.T) {
	t.Parallel()
	const interval, processes, span = 4 * time.Second, 5, 20 * time.Second
	b := locktest.OnMiniredis(t)
	from := aTick().Add(-time.Minute).Truncate(interval)
	ran := map[string]int{}
	for i := range processes {
		j := b.NewClient(t).NewCronJob("job")
		every := cron(rlock.Every(interval))
		for tick := every.Next(from.Add(time.Duration(i) * time.Second)); tick.Before(from.Add(span)); tick = every.Next(tick) {
			// What robfig/cron says is the scheduled time, and what a call finds out that comes a little late.
			late, err := rlock.ScheduledTime(tick.Add(300*time.Millisecond), every.Next)
			if err != nil || !late.Equal(tick) {
				t.Fatalf("%v: %v, %v", tick, late, err)
			}
			if _, err := j.Do(bg, tick, func(context.Context) error { ran[tick.String()]++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(ran) != 4 { // after the beginning, and before the end
		t.Errorf("%d ticks", len(ran))
	}
	for tick, n := range ran {
		if n != 1 {
			t.Errorf("the tick of %v ran %d times", tick, n)
		}
	}
}

// cron is as cron.Schedule of robfig/cron.
func cron(s interface{ Next(time.Time) time.Time }) interface{ Next(time.Time) time.Time } { return s }

func TestLostRepliesOfACronJob(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"cron/enter", "cron/finish"} {
		locktest.EachLoss(t, script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
			c, proxy, rdb := b.Faulty(t)
			j, other := c.NewCronJob("job"), b.NewClient(t).NewCronJob("job")
			locktest.LoadScripts(t, rdb, "cron/enter", "cron/finish")
			locktest.OnNth(t, proxy, script, 1, action)
			tick, ran := aTick(), 0
			run := wantRun(t, j, tick, func(context.Context) error { ran++; return nil })
			for _, j := range []*rlock.CronJob{j, other} {
				if told := wantTold(t, j, tick, run.HoldID); told.End.IsZero() || told.Err != nil || told.Token != run.Token {
					t.Errorf("%+v", told)
				}
			}
			if ran != 1 || rdb.Exists(bg, tickLock(tick)).Val() != 0 {
				t.Errorf("it ran %d times, or the lock is held", ran)
			}
		})
	}
}

// A copy of a claim, of its end or of a claim that was given up changes nothing, whenever it comes: also
// when its tombstone has gone.
func TestLateCopiesOfACronJobChangeNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		j, other := c.NewCronJob("job"), b.NewClient(t).NewCronJob("job")
		locktest.LoadScripts(t, rdb, "cron/enter", "cron/finish", "cron/abandon")
		tick := aTick()
		replay := func(script string) {
			t.Helper()
			n := 0
			for _, c := range proxy.Commands() {
				if c.IsScript(locktest.SHA(script)) {
					n++
					if err := proxy.Replay(c); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n == 0 {
				t.Fatalf("no copy of %s", script)
			}
		}
		// While it runs, and that is known.
		mine := ticks(j, tick)
		lease, _ := rlock.LeaseFrom(mine.runs(t))
		wantTold(t, other, tick, lease.HoldID())
		before := rdb.HGetAll(bg, runsKey).Val()
		replay("cron/enter")
		if after := rdb.HGetAll(bg, runsKey).Val(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("%v, and before %v", after, before)
		}
		if owners := rdb.HGetAll(bg, tickLock(tick)).Val(); len(owners) != 1 {
			t.Fatal(owners)
		}
		// Afterwards.
		mine.ends(t, func() error { return nil })
		before = rdb.HGetAll(bg, runsKey).Val()
		for range 2 {
			replay("cron/enter")
			replay("cron/finish")
			if after := rdb.HGetAll(bg, runsKey).Val(); fmt.Sprint(after) != fmt.Sprint(before) || rdb.Exists(bg, tickLock(tick)).Val() != 0 {
				t.Fatalf("%v, and before %v", after, before)
			}
			for _, key := range rdb.Keys(bg, "*:rlock:gone:*").Val() {
				rdb.Del(bg, key)
			}
		}
		wantTold(t, other, tick, mine.run.HoldID)

		// A claim that was given up: its first copy is held up, and the caller goes away.
		proxy.ResetLog()
		locktest.OnNth(t, proxy, "cron/enter", 1, faultproxy.Hold)
		tick = tick.Add(time.Second)
		mine = ticks(j, tick)
		locktest.HeldUp(t, proxy, 1)
		mine.cancel()
		mine.end(t)
		if !errors.Is(mine.err, context.Canceled) || mine.run.Here {
			t.Fatal(mine.run, mine.err)
		}
		locktest.Eventually(t, "the claim is taken back", func() bool { return len(rdb.Keys(bg, "*:rlock:gone:*").Val()) == 1 })
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		if rdb.Exists(bg, tickLock(tick)).Val() != 0 {
			t.Fatal("the lock is held")
		}
		theirs := wantRun(t, other, tick, works)
		replay("cron/abandon")
		wantTold(t, j, tick, theirs.HoldID)
	})
}

// No answer, no run. The tick is left to others, and to a later call of the same process, even if the
// claim was written and only its answer lost.
func TestOutageFailsClosed(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]bool{"before the claim": false, "after the claim": true} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(locktest.Ample(500*time.Millisecond)))
				j, other := c.NewCronJob("job"), b.NewClient(t).NewCronJob("job")
				locktest.LoadScripts(t, rdb, "cron/enter", "cron/abandon")
				wantRun(t, other, aTick().Add(-time.Hour), works)
				tick := aTick()
				enter := locktest.SHA("cron/enter")
				proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					switch {
					case written && c.IsScript(enter):
						return faultproxy.SwallowReply
					case c.Name == "evalsha" || c.Name == "eval":
						return faultproxy.ResetBefore
					}
					return faultproxy.Pass
				})
				run, err := j.Do(bg, tick, mustNot)
				locktest.WantErr(t, err, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
				if run != (rlock.CronRun{}) {
					t.Errorf("%+v", run)
				}
				if !written && rdb.Exists(bg, tickLock(tick)).Val() == 1 {
					t.Fatal("the claim is in Redis")
				}
				if written {
					locktest.Eventually(t, "the claim is in Redis", func() bool { return rdb.Exists(bg, tickLock(tick)).Val() == 1 })
					// Another process cannot know that nobody runs, nor that somebody does.
					ctx, cancel := context.WithTimeout(bg, locktest.Ample(3*time.Second)) // for its request
					_, err := other.Do(ctx, tick, mustNot)
					cancel()
					locktest.WantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded, nil, rlock.ErrUnreachable)
					var said *rlock.Error
					if !errors.As(err, &said) || !strings.HasPrefix(said.HolderID, c.ID()) {
						t.Errorf("%v does not say who has claimed it", err)
					}
				}
				proxy.Handle(nil)
				run = rlock.CronRun{}
				locktest.Eventually(t, "it runs after all", func() bool {
					run, err = j.Do(bg, tick, works)
					return err == nil
				})
				if !run.Here {
					t.Fatalf("%+v", run)
				}
				wantTold(t, other, tick, run.HoldID)
			})
		})
	}
}

// A call claims a tick, its answer is lost, and its context ends. Others who ask for the tick meanwhile are
// not told that it runs: they run it when the claim has been taken back.
func TestClaimThatIsTakenBackIsNotReported(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		var sent locktest.SentCommands
		theirs := b.Client(t)
		theirs.AddHook(&sent)
		j, other := c.NewCronJob("job"), locktest.NewClient(t, theirs).NewCronJob("job")
		locktest.LoadScripts(t, rdb, "cron/enter", "cron/abandon", "cron/finish")
		locktest.OnNth(t, proxy, "cron/enter", 1, faultproxy.SwallowReply)
		tick := aTick()
		mine := ticks(j, tick)
		locktest.Eventually(t, "it has claimed", func() bool { return rdb.Exists(bg, tickLock(tick)).Val() == 1 })
		next := ticks(other, tick)
		locktest.Eventually(t, "another asks again", func() bool {
			select {
			case <-next.done:
				t.Fatalf("it was told that another runs: %+v, %v", next.run, next.err)
			default:
			}
			return sent.N.Load() > 3
		})
		mine.cancel()
		if mine.end(t); mine.run.Here || !errors.Is(mine.err, context.Canceled) {
			t.Fatal(mine.run, mine.err)
		}
		next.runs(t)
		next.ends(t, func() error { return nil })
		if !next.run.Here || next.run.TakenOver || next.err != nil {
			t.Fatalf("%+v, %v", next.run, next.err)
		}
		wantTold(t, j, tick, next.run.HoldID)
	})
}

// A claim that nobody can take back is lost with its lease, and told as that. While its function runs, or
// has run, others are told at once.
func TestLostClaimIsReportedWithItsLease(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		j, other := c.NewCronJob("job"), b.NewClient(t).NewCronJob("job")
		locktest.LoadScripts(t, rdb, "cron/enter", "cron/abandon", "cron/renew")
		locktest.OnNth(t, proxy, "cron/enter", 1, faultproxy.SwallowReply)
		tick := aTick()
		mine := ticks(j, tick)
		locktest.Eventually(t, "it has claimed", func() bool { return rdb.Exists(bg, tickLock(tick)).Val() == 1 })
		proxy.Blackhole(true)
		mine.cancel()
		mine.end(t)
		next := ticks(other, tick)
		rdb.Del(bg, tickLock(tick)) // as its lease would
		if next.end(t); next.run.Here || next.err != nil || !errors.Is(next.run.Err, rlock.ErrLeaseLost) {
			t.Fatalf("%+v, %v", next.run, next.err)
		}
		proxy.Blackhole(false)
		locktest.Eventually(t, "the claim was to be taken back", func() bool { return len(rdb.Keys(bg, "*:rlock:gone:*").Val()) == 1 })
		wantTold(t, other, tick, next.run.HoldID)

		// The first note of the beginning is lost, and repeated.
		tick = tick.Add(time.Second)
		locktest.OnNth(t, proxy, "cron/renew", 1, faultproxy.ResetBefore)
		mine = ticks(j, tick)
		lease, _ := rlock.LeaseFrom(mine.runs(t))
		if told := wantTold(t, other, tick, lease.HoldID()); told.Err != nil || !told.End.IsZero() {
			t.Errorf("%+v", told)
		}
		mine.ends(t, func() error { return nil })
		if mine.err != nil || !mine.run.Here {
			t.Error(mine.run, mine.err)
		}
	})
}

// What was reported as lost stays lost, whatever comes late of the request that has claimed it.
func TestLateCopyOfALostClaimIsNoClaim(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		j, other := c.NewCronJob("job"), b.NewClient(t).NewCronJob("job")
		locktest.LoadScripts(t, rdb, "cron/enter", "cron/abandon")
		enter, copies := locktest.SHA("cron/enter"), atomic.Int64{}
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			switch {
			case !c.IsScript(enter):
				return faultproxy.Pass
			case copies.Add(1) == 1:
				return faultproxy.SwallowReply
			}
			return faultproxy.Hold
		})
		tick := aTick()
		mine := ticks(j, tick)
		locktest.HeldUp(t, proxy, 1)
		rdb.Del(bg, tickLock(tick)) // as its lease would
		told, err := other.Do(bg, tick, mustNot)
		if err != nil || !errors.Is(told.Err, rlock.ErrLeaseLost) {
			t.Fatalf("%+v, %v", told, err)
		}
		if n := proxy.Release(); n == 0 {
			t.Fatal("no copy was late")
		}
		if rdb.Exists(bg, tickLock(tick)).Val() != 0 {
			t.Error("the claim is back")
		}
		mine.cancel()
		if mine.end(t); mine.run.Here {
			t.Error(mine.run, mine.err)
		}
		wantTold(t, other, tick, told.HoldID)
	})
}

// A call may find that the lease of its own claim has ended before it had a reply. Nobody has run the tick then: that is
// no success. With WithTakeover the call takes it over.
func TestCallWhoseOwnClaimIsLost(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		other := b.NewClient(t).NewCronJob("job")
		mine, tick := loseClaim(t, proxy, rdb, c.NewCronJob("job"))
		mine.end(t)
		locktest.WantErr(t, mine.err, rlock.ErrLeaseLost, rlock.ErrNotRun, nil, rlock.ErrNotAcquired, rlock.ErrUnreachable)
		if mine.run != (rlock.CronRun{}) {
			t.Errorf("%+v", mine.run)
		}
		var said *rlock.Error
		errors.As(mine.err, &said)
		if told := wantTold(t, other, tick, said.HoldID); !errors.Is(told.Err, rlock.ErrLeaseLost) {
			t.Errorf("%+v", told)
		}

		mine, tick = loseClaim(t, proxy, rdb, c.NewCronJob("other", rlock.WithTakeover()))
		mine.runs(t)
		mine.ends(t, func() error { return nil })
		if !mine.run.Here || !mine.run.TakenOver || mine.err != nil {
			t.Errorf("%+v, %v", mine.run, mine.err)
		}
		wantTold(t, b.NewClient(t).NewCronJob("other"), tick, mine.run.HoldID)
	})
}

// loseClaim lets the lease of a call's claim end before the call has a reply. Its next request gets one.
func loseClaim(t testing.TB, proxy *faultproxy.Proxy, rdb redis.UniversalClient, j *rlock.CronJob) (mine *ticking, tick time.Time) {
	t.Helper()
	locktest.LoadScripts(t, rdb, "cron/enter", "cron/abandon")
	enter, copies := locktest.SHA("cron/enter"), atomic.Int64{}
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		switch {
		case !c.IsScript(enter):
			return faultproxy.Pass
		case copies.Add(1) == 1:
			return faultproxy.ResetAfter
		}
		return faultproxy.Hold
	})
	tick = aTick()
	mine = ticks(j, tick)
	locktest.HeldUp(t, proxy, 1)
	if rdb.Del(bg, strings.Replace(tickLock(tick), "{job}", "{"+j.Name()+"}", 1)).Val() != 1 { // as its lease would
		t.Fatal("no claim")
	}
	proxy.Handle(nil)
	proxy.Release()
	return mine, tick
}

// loseTick takes the lease of a run away, and waits until its function is told.
func loseTick(t testing.TB, rdb redis.UniversalClient, clock *locktest.Clock, tick time.Time, inside context.Context) {
	t.Helper()
	if n := rdb.Del(bg, tickLock(tick)).Val(); n != 1 {
		t.Fatal("the lock of the tick is not held")
	}
	clock.Forward(locktest.Lease / 2) // it is renewed
	select {
	case <-inside.Done():
	case <-time.After(locktest.Patience):
		t.Fatal("its context does not end")
	}
	if cause := context.Cause(inside); !errors.Is(cause, rlock.ErrLeaseLost) {
		t.Fatal(cause)
	}
}

func TestLostRunIsNotRepeatedUnlessItIsTakenOver(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		var clock locktest.Clock
		rdb := b.Client(t)
		open := func(opts ...rlock.CronJobOption) *rlock.CronJob {
			return b.NewClient(t, clock.Option(), rlock.WithLongestPoll(20*time.Millisecond)).NewCronJob("job", opts...)
		}
		plain := []*rlock.CronJob{open(), open()}
		tick := aTick()
		mine := ticks(plain[0], tick)
		loseTick(t, rdb, &clock, tick, mine.runs(t))
		told, err := plain[1].Do(bg, tick, mustNot)
		if err != nil || !errors.Is(told.Err, rlock.ErrLeaseLost) || told.Here {
			t.Fatal(told, err)
		}
		mine.ends(t, func() error { return nil })
		if locktest.WantErr(t, mine.err, rlock.ErrLeaseLost); !mine.run.Here || mine.run.Err == nil {
			t.Fatalf("%+v", mine.run)
		}
		if run := peekRun(t, plain[1], tick); !errors.Is(run.Err, rlock.ErrLeaseLost) || run.HoldID != mine.run.HoldID {
			t.Fatalf("%+v", run)
		}

		// One that waits takes over, and the first does not overwrite what becomes of it.
		takes := []*rlock.CronJob{open(rlock.WithTakeover()), open(rlock.WithTakeover()), open(rlock.WithTakeover())}
		tick = tick.Add(time.Second)
		mine = ticks(takes[0], tick)
		inside := mine.runs(t)
		waiting := []*ticking{ticks(takes[1], tick), ticks(takes[2], tick)}
		loseTick(t, rdb, &clock, tick, inside)
		next, last := waiting[0], waiting[1]
		select {
		case <-next.inside:
		case <-last.inside:
			next, last = last, next
		case <-time.After(locktest.Patience):
			t.Fatal("nobody takes over")
		}
		mine.ends(t, func() error { return nil })
		locktest.WantErr(t, mine.err, rlock.ErrLeaseLost)
		next.ends(t, func() error { return nil })
		last.end(t)
		if !next.run.Here || !next.run.TakenOver || next.err != nil || next.run.Token <= mine.run.Token {
			t.Fatalf("%+v, %v", next.run, next.err)
		}
		if last.run.Here || last.err != nil || last.run.HoldID != next.run.HoldID || !last.run.TakenOver || last.run.Err != nil {
			t.Fatalf("%+v, %v", last.run, last.err)
		}

		// Once: who takes over is lost too, and a later call does not run a third time. Nor does one that
		// does not take over.
		tick = tick.Add(time.Second)
		for i := range 2 {
			d := ticks(takes[i], tick)
			loseTick(t, rdb, &clock, tick, d.runs(t))
			d.ends(t, func() error { return nil })
			if locktest.WantErr(t, d.err, rlock.ErrLeaseLost); d.run.TakenOver != (i == 1) {
				t.Fatalf("%+v", d.run)
			}
		}
		for _, j := range []*rlock.CronJob{takes[2], plain[1]} {
			if run, err := j.Do(bg, tick, mustNot); err != nil || !errors.Is(run.Err, rlock.ErrLeaseLost) || !run.TakenOver {
				t.Fatal(run, err)
			}
		}
	})
}

// A run that its process has broken off is taken over; one that has failed by itself is not.
func TestWhichRunsAreTakenOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate func(d *ticking) error
		over bool
	}{
		"success": {func(*ticking) error { return nil }, false},
		"failure": {func(*ticking) error { return errors.New("failed") }, false},
		"panic":   {func(*ticking) error { panic("on purpose") }, true},
		"goexit":  {func(*ticking) error { runtime.Goexit(); return nil }, true},
		"cancel":  {func(d *ticking) error { d.cancel(); return context.Canceled }, true},
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				opts := rlock.WithLongestPoll(locktest.Patient) // only messages wake
				c1, c2 := b.NewClient(t, opts), b.NewClient(t, opts)
				tick := aTick()
				mine := ticks(c1.NewCronJob("job", rlock.WithTakeover()), tick)
				mine.runs(t)
				theirs := ticks(c2.NewCronJob("job", rlock.WithTakeover()), tick)
				here := ticks(c1.NewCronJob("job", rlock.WithTakeover()), tick)
				select {
				case <-theirs.done:
					t.Fatalf("it does not wait: %+v, %v", theirs.run, theirs.err)
				case <-here.done:
					t.Fatalf("it does not wait: %+v, %v", here.run, here.err)
				case <-theirs.inside:
					t.Fatal("two run")
				case <-here.inside:
					t.Fatal("two run")
				case <-time.After(50 * time.Millisecond):
				}
				for _, d := range []*ticking{theirs, here} {
					d.fate <- func() error { return nil }
				}
				mine.ends(t, func() error { return c.fate(mine) })
				theirs.end(t)
				here.end(t)
				if theirs.err != nil || here.err != nil {
					t.Fatal(theirs.err, here.err)
				}
				if n := len(theirs.inside) + len(here.inside); c.over != (n == 1) || n > 1 {
					t.Fatalf("%d have taken over", n)
				}
				if theirs.run.TakenOver != c.over || here.run.TakenOver != c.over || theirs.run.HoldID != here.run.HoldID {
					t.Fatalf("%+v\n%+v", theirs.run, here.run)
				}
			})
		})
	}
}

// A claim to take over that is given up leaves the run as lost as it was.
func TestAbandonedTakeoverIsLeftToTheNext(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		j, other := c.NewCronJob("job", rlock.WithTakeover()), b.NewClient(t).NewCronJob("job", rlock.WithTakeover())
		locktest.LoadScripts(t, rdb, "cron/enter", "cron/abandon")
		tick := aTick()
		lost := ticks(other, tick)
		lost.runs(t)
		lost.ends(t, func() error { panic("on purpose") })
		locktest.OnNth(t, proxy, "cron/enter", 1, faultproxy.SwallowReply)
		mine := ticks(j, tick)
		locktest.Eventually(t, "it has claimed", func() bool { return rdb.Exists(bg, tickLock(tick)).Val() == 1 })
		mine.cancel()
		if mine.end(t); mine.run.Here || !errors.Is(mine.err, context.Canceled) {
			t.Fatal(mine.run, mine.err)
		}
		if run := wantRun(t, other, tick, works); !run.TakenOver {
			t.Fatalf("%+v", run)
		}
	})
}

// Redis keeps a bounded number of runs, and a tick whose run was dropped is never run again.
func TestOldRunsAreDroppedAndNotRepeated(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		j, rdb := b.NewClient(t).NewCronJob("job", rlock.WithRetention(time.Hour)), b.Client(t)
		const n = rlock.MaxRuns + 30
		first := aTick().Add(-10 * time.Minute)
		for i := range n {
			wantRun(t, j, first.Add(time.Duration(i)*time.Second), works)
		}
		if kept := rdb.ZCard(bg, ticksKey).Val(); kept != rlock.MaxRuns || rdb.HLen(bg, runsKey).Val() != kept+1 {
			t.Errorf("%d ticks, %d fields", kept, rdb.HLen(bg, runsKey).Val())
		}
		for i := range n {
			run, err := j.Do(bg, first.Add(time.Duration(i)*time.Second), mustNot)
			if dropped := i < n-rlock.MaxRuns; dropped {
				locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable)
			} else if err != nil || run.End.IsZero() {
				t.Fatal(i, run, err)
			}
		}
		_, err := j.Do(bg, first.Add(-time.Second), mustNot) // nobody knows
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		_, err = j.Do(bg, time.Now().Truncate(time.Second).Add(-time.Hour-time.Second), mustNot)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		_, err = j.Do(bg, time.Now().Truncate(time.Second).Add(time.Hour+time.Minute), mustNot)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "it is 1.0 hours ahead of the clock of Redis") {
			t.Error(err)
		}
		// Young ones stay, however many they are: a clock that is behind still finds them.
		young := aTick().Add(-20 * time.Second)
		for i := range n {
			wantRun(t, j, young.Add(time.Duration(i)*100*time.Millisecond), works)
		}
		wantTold(t, j, young, peekRun(t, j, young).HoldID)
		if kept := rdb.ZCard(bg, ticksKey).Val(); kept < n || kept > n+rlock.MaxRuns {
			t.Errorf("%d ticks", kept)
		}
		// What has outlived its retention goes, too, a few with each claim.
		for i := range rlock.MaxRuns {
			old := time.Now().Add(-2*time.Hour - time.Duration(i)*time.Minute).UnixMilli()
			rdb.ZAdd(bg, ticksKey, redis.Z{Score: float64(old), Member: old})
			rdb.HSet(bg, runsKey, old, "s 1 1 1 1 somebody:1 - ")
		}
		for i := range rlock.MaxRuns / 10 {
			wantRun(t, j, aTick().Add(time.Duration(i+1)*time.Second), works)
		}
		if old := rdb.ZCount(bg, ticksKey, "-inf", fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli())).Val(); old != 0 {
			t.Errorf("%d old ticks", old)
		}
		if fields, ticks := rdb.HLen(bg, runsKey).Val(), rdb.ZCard(bg, ticksKey).Val(); fields != ticks+1 {
			t.Errorf("%d fields of %d ticks", fields, ticks)
		}
	})
}

// However old its tick is, and however many newer ones have run, a run that goes on is kept: others wait for
// it, and one takes over if it is lost.
func TestRunThatGoesOnIsNotDropped(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		open := func() *rlock.CronJob {
			return b.NewClient(t, rlock.WithLongestPoll(20*time.Millisecond)).NewCronJob("job", rlock.WithTakeover(), rlock.WithRetention(time.Hour))
		}
		j, other := open(), open()
		const long, n = 12, rlock.MaxRuns + 30
		first := aTick().Add(-15 * time.Minute)
		tick := func(i int) time.Time { return first.Add(time.Duration(i) * time.Second) }
		var run, wait [long]*ticking
		for i := range run {
			run[i] = ticks(j, tick(i))
			run[i].runs(t)
			wait[i] = ticks(other, tick(i))
		}
		for i := range n {
			wantRun(t, j, tick(long+i), works)
		}
		if kept := rdb.ZCard(bg, ticksKey).Val(); kept != rlock.MaxRuns {
			t.Errorf("%d runs are kept", kept)
		}
		for i := range run {
			if now := peekRun(t, other, tick(i)); now.Err != nil || !now.End.IsZero() {
				t.Errorf("%+v", now)
			}
			select {
			case <-wait[i].done:
				t.Fatalf("it does not wait: %+v, %v", wait[i].run, wait[i].err)
			default:
			}
		}
		_, err := j.Do(bg, tick(long), mustNot)
		locktest.WantErr(t, err, rlock.ErrNotAcquired) // that was dropped

		// One succeeds, one is broken off, and the lease of one is lost. Others run meanwhile.
		run[0].ends(t, func() error { return nil })
		run[1].ends(t, func() error { panic("on purpose") })
		rdb.Del(bg, tickLock(tick(2)))
		for i := range 20 {
			wantRun(t, j, tick(long+n+i), works)
		}
		if wait[0].end(t); wait[0].run.Here || wait[0].run.Err != nil || wait[0].err != nil {
			t.Errorf("%+v, %v", wait[0].run, wait[0].err)
		}
		for i := range wait {
			if i > 2 {
				run[i].ends(t, func() error { return nil })
				wait[i].end(t)
			} else if i > 0 {
				wait[i].runs(t)
				wait[i].ends(t, func() error { return nil })
			}
			if over := i == 1 || i == 2; wait[i].run.Here != over || wait[i].run.TakenOver != over || wait[i].err != nil {
				t.Errorf("%d: %+v, %v", i, wait[i].run, wait[i].err)
			}
		}
		run[2].ends(t, func() error { return nil })
	})
}

// The keys of a job outlive the lease of a run, however short the retention is: each renewal sees to it.
func TestRunOutlivesItsRetention(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		j, rdb := b.NewClient(t).NewCronJob("job", rlock.WithRetention(rlock.MinRetention)), b.Client(t)
		wantRun(t, j, aTick(), func(ctx context.Context) error {
			for _, key := range []string{runsKey, ticksKey} {
				rdb.PExpire(bg, key, locktest.Patience)
			}
			lease, _ := rlock.LeaseFrom(ctx)
			err := lease.Extend(ctx, time.Hour)
			for _, key := range []string{runsKey, ticksKey} {
				locktest.WantTTL(t, rdb, key, time.Hour+time.Minute)
			}
			return err
		})
	})
}

func TestMissedTicks(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		j := b.NewClient(t).NewCronJob("job")
		every := func(after time.Time) time.Time { return after.Truncate(time.Minute).Add(time.Minute) }
		if missed, err := j.Missed(bg, every, rlock.MaxRuns); missed != nil || err != nil {
			t.Fatal(missed, err) // of a job that never ran
		}
		last := aTick().Truncate(time.Minute).Add(-10*time.Minute + 7*time.Second) // no minute: a schedule that has changed
		wantRun(t, j, last, works)
		want := 9
		for _, most := range []int{rlock.MaxRuns, 3, 1} {
			missed, err := j.Missed(bg, every, most)
			if err != nil || most > want && len(missed) != want && len(missed) != want+1 && len(missed) != want+2 || most < want && len(missed) != most {
				t.Fatal(most, missed, err)
			}
			if !slices.IsSortedFunc(missed, time.Time.Compare) || time.Since(missed[len(missed)-1]) > 2*time.Minute || most > want && !missed[0].Equal(every(last)) {
				t.Fatal(missed)
			}
		}
		missed, _ := j.Missed(bg, every, 5)
		for _, tick := range missed {
			wantRun(t, j, tick, works)
		}
		if missed, err := j.Missed(bg, every, 5); len(missed) > 1 || err != nil { // a minute may have begun
			t.Fatal(missed, err)
		}
		for what, next := range map[string]func(time.Time) time.Time{
			"never": func(time.Time) time.Time { return time.Time{} }, "Every(0)": rlock.Every(0).Next,
			"counts from when it is asked": func(after time.Time) time.Time { return after.Add(time.Millisecond) },
		} {
			missed, err := j.Missed(bg, next, 5)
			if locktest.WantErr(t, err, rlock.ErrInvalidArgument); missed != nil {
				t.Errorf("%s: %v", what, missed)
			}
		}
	})
}

// The ticks of an outage are missed, whether one asks before the next Do or after it.
func TestMissedTicksOfAnOutage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		j, other := b.NewClient(t).NewCronJob("job"), b.NewClient(t).NewCronJob("job")
		now := aTick().Add(-30 * time.Minute) // the latest, whenever the test runs
		offset := now.Sub(now.Truncate(time.Hour))
		every := func(after time.Time) time.Time { return rlock.Every(time.Hour).Next(after.Add(-offset)).Add(offset) }
		tick := func(ago int) time.Time { return now.Add(-time.Duration(ago) * time.Hour) }
		wants := func(most int, want ...int) {
			t.Helper()
			missed, err := j.Missed(bg, every, most)
			if len(missed) != len(want) || err != nil {
				t.Fatalf("%v, %v, want those %v hours ago", missed, err, want)
			}
			for i, at := range missed {
				if !at.Equal(tick(want[i])) {
					t.Fatalf("%v, want those %v hours ago", missed, want)
				}
			}
		}
		for ago := 30; ago > 5; ago-- {
			wantRun(t, j, tick(ago), works)
		}
		wants(rlock.MaxRuns, 5, 4, 3, 2, 1, 0)
		wantRun(t, other, tick(1), works) // Redis is back
		wants(rlock.MaxRuns, 5, 4, 3, 2, 0)
		wantRun(t, other, tick(0), works)
		wants(rlock.MaxRuns, 5, 4, 3, 2)
		wants(4, 3, 2) // of the latest four
		wants(1)
		// Another that makes up for them at the same time has claimed some; one failed.
		if run, err := other.Do(bg, tick(4), func(context.Context) error { return errors.New("failed") }); !run.Here || err == nil {
			t.Fatal(run, err)
		}
		wants(rlock.MaxRuns, 5, 3, 2)
		for _, ago := range []int{5, 3, 2} {
			wantRun(t, j, tick(ago), works)
		}
		wants(rlock.MaxRuns)
		// What was dropped, or is older than all, is not missed.
		for i := range rlock.MaxRuns {
			wantRun(t, j, tick(0).Add(time.Duration(i+1)*10*time.Second), works)
		}
		if rdb := b.Client(t); rdb.ZCard(bg, ticksKey).Val() != rlock.MaxRuns {
			t.Error("it keeps more")
		}
		wants(rlock.MaxRuns)
	})
}

// The client shuts down while a function runs: its end is kept all the same. And a function that waits is
// told.
func TestRunOfAClientThatShutsDown(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c, other := b.NewClient(t), b.NewClient(t).NewCronJob("job")
	tick := aTick()
	mine := ticks(c.NewCronJob("job", rlock.WithTakeover()), tick)
	inside := mine.runs(t)
	waits := ticks(c.NewCronJob("job", rlock.WithTakeover()), tick)
	down := make(chan error, 1)
	go func() { down <- c.Shutdown(bg) }()
	waits.end(t)
	locktest.WantErr(t, waits.err, rlock.ErrClosed)
	<-inside.Done()
	mine.ends(t, func() error { return nil })
	if err := <-down; err != nil || mine.err != nil || !mine.run.Here {
		t.Fatal(err, mine.run, mine.err)
	}
	if told := wantTold(t, other, tick, mine.run.HoldID); told.Err != nil || told.End.IsZero() {
		t.Fatalf("%+v", told)
	}
}

// A function that hangs is lost after WithMaxHold; its successor does not wait longer.
func TestTickThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var clock locktest.Clock
	opts := []rlock.CronJobOption{rlock.WithTakeover(), rlock.WithMaxHold(time.Minute)}
	tick := aTick()
	mine := ticks(b.NewClient(t, clock.Option()).NewCronJob("job", opts...), tick)
	inside := mine.runs(t)
	clock.Forward(2 * time.Minute)
	<-inside.Done()
	next := ticks(b.NewClient(t).NewCronJob("job", opts...), tick)
	mine.ends(t, func() error { return nil })
	locktest.WantErr(t, mine.err, rlock.ErrLeaseLost, rlock.ErrMaxHold)
	next.runs(t)
	next.ends(t, func() error { return nil })
	if !next.run.TakenOver || next.err != nil {
		t.Fatal(next.run, next.err)
	}
}

// Processes that count an interval from their own start have ticks of their own. WithLeastInterval lets one
// of them run, whichever is first, and says to the others why not.
func TestTicksThatAreTooNear(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		jobs := make([]*rlock.CronJob, 3)
		for i := range jobs {
			jobs[i] = b.NewClient(t).NewCronJob("job", rlock.WithLeastInterval(3*time.Second))
		}
		first, runs := aTick(), 0
		for at := time.Duration(0); at < 16*time.Second; at += 4 * time.Second { // @every 4s, begun 1 s apart
			for i, j := range jobs {
				run, err := j.Do(bg, first.Add(at+time.Duration(i)*time.Second), func(context.Context) error { runs++; return nil })
				if i == 0 {
					if err != nil || !run.Here {
						t.Error(run, err)
					}
					continue
				}
				locktest.WantErr(t, err, rlock.ErrNotAcquired, rlock.ErrNotRun)
				if want := fmt.Sprintf("a tick %d.000 s away was claimed, and there have to be 3.000 s between two", i); !strings.Contains(err.Error(), want) {
					t.Error(err)
				}
			}
		}
		if runs != 4 {
			t.Errorf("%d runs", runs)
		}
		// Before one that was claimed is as near as after it. The tick itself is told of its run, as ever.
		_, err := jobs[1].Do(bg, first.Add(-2999*time.Millisecond), mustNot)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if run, err := jobs[1].Do(bg, first, mustNot); err != nil || run.Here {
			t.Error(run, err)
		}
		if run, err := jobs[1].Do(bg, first.Add(-3*time.Second), func(context.Context) error { return nil }); err != nil || !run.Here {
			t.Error(run, err)
		}
	})
}

func TestInvalidArgumentsOfACronJob(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for _, j := range []*rlock.CronJob{
		c.NewCronJob(""), c.NewCronJob("a{b"), c.NewCronJob("job", nil), c.NewCronJob("job", rlock.WithMaxHold(-1)),
		c.NewCronJob("job", rlock.WithRetention(time.Second)), c.NewCronJob("job", rlock.WithRetention(rlock.MaxKeep+1)), c.NewCronJob("job", rlock.WithLeastInterval(-1)),
		c.NewCronJob("job", rlock.WithLeastInterval(time.Microsecond)), c.NewCronJob("job", rlock.WithLeastInterval(rlock.DefaultRetention+1)), (*rlock.Client)(nil).NewCronJob("job"), {}, nil,
	} {
		_, err := j.Do(bg, aTick(), mustNot)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, _, err = j.Peek(bg, aTick())
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, _, err = j.Last(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, err = j.Missed(bg, func(t time.Time) time.Time { return t }, 1)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	j := c.NewCronJob("job")
	if j.Name() != "job" {
		t.Error(j.Name())
	}
	_, err := j.Do(bg, aTick(), nil)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	for _, tick := range []time.Time{{}, time.Unix(-1, 0), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		_, err = j.Do(bg, tick, mustNot)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, _, err = j.Peek(bg, tick)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	// The time of the call is no scheduled time: each call would run.
	for _, part := range []time.Duration{1, time.Microsecond, time.Millisecond - 1} {
		_, err = j.Do(bg, aTick().Add(part), mustNot)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		if !strings.Contains(err.Error(), "rlock.ScheduledTime(time.Now(), schedule.Next)") {
			t.Error(err)
		}
	}
	for _, most := range []int{-1, 0, rlock.MaxRuns + 1} {
		_, err = j.Missed(bg, func(t time.Time) time.Time { return t }, most)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	_, err = j.Missed(bg, nil, 1)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	tick := aTick()
	wantRun(t, j, tick, func(ctx context.Context) error {
		_, err := j.Do(ctx, tick, mustNot)
		locktest.WantErr(t, err, rlock.ErrReentrant)
		wantRun(t, j, tick.Add(time.Second), works) // another tick is another run
		return nil
	})
}

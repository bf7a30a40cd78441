package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// countingJudge knows what must be true of a semaphore, a latch and a barrier.
type countingJudge struct {
	w *World

	mu     sync.Mutex // guards the rest
	wrong  []string
	said   []string
	inside int // permits that workers have
	most   int // that were ever taken at once
	begun  int // count-downs
	opened int // waits for the latch that have ended
	set    time.Duration
	sure   bool // since then the barrier is set for sure
	passed int
	given  int // acquires that failed
}

func (j *countingJudge) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked(format, args...)
}

func (j *countingJudge) sayLocked(format string, args ...any) {
	j.said = append(j.said, fmt.Sprintf("%v ", j.w.Elapsed())+fmt.Sprintf(format, args...))
}

func (j *countingJudge) accuseLocked(format string, args ...any) {
	j.sayLocked("VIOLATION: "+format, args...)
	j.wrong = append(j.wrong, j.said[len(j.said)-1])
}

func (j *countingJudge) accuse(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.accuseLocked(format, args...)
}

// takes notes that a worker has n permits more.
func (j *countingJudge) takes(who string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.inside += n
	if n > 0 {
		j.most = max(j.most, j.inside)
	}
	j.sayLocked("%s: %+d permits, %d are taken", who, n, j.inside)
	if j.inside > simPermits {
		j.accuseLocked("%s: %d permits are taken of %d", who, j.inside, simPermits)
	}
}

const (
	simPermits = 4
	simCounts  = 5 // of each worker
)

// countingRun plays a seed: hosts whose workers take permits, count a latch down, wait for it,
// and pass a barrier that one host sets and lifts. When all have left and the faults are over,
// nothing is missing and nothing too much.
func countingRun(t *testing.T, seed uint64, s scenario) (j *countingJudge, trace []string) {
	bubble(t, seed, Config{}, func(w *World) {
		j = &countingJudge{w: w}
		const span = 6 * time.Second
		ctx := context.Background()
		var players []*player
		var work, opening, waits sync.WaitGroup
		for i := range 3 {
			players = append(players, newPlayer(w, s, string(rune('a'+i))))
		}
		first := players[0].c
		if ok, err := first.NewSemaphore("permits").TrySetPermits(ctx, simPermits); !ok || err != nil {
			t.Error(ok, err)
		}
		if ok, err := first.NewCountDownLatch("latch").TrySetCount(ctx, len(players)*2*simCounts); !ok || err != nil {
			t.Error(ok, err)
		}
		w.SetRates(s.rates)

		for i, p := range players {
			sem, latch, barrier := p.c.NewSemaphore("permits"), p.c.NewCountDownLatch("latch"), p.c.NewBarrier("barrier")
			for n := range 2 {
				who := fmt.Sprint(p.h.Name, n)
				r := w.Rand("worker " + who)
				pause := func(most time.Duration) { p.h.Sleep(who, time.Duration(r.Int64N(int64(most)))) }
				work.Go(func() {
					counted := 0
					countDown := func() {
						j.mu.Lock()
						j.begun++
						j.mu.Unlock()
						counted++
						err := latch.CountDown(ctx)
						j.say("%s counted down: %v", who, err)
						if err != nil && !unanswered(err) {
							j.accuse("%s: CountDown failed with %v", who, err)
						}
					}
					for w.Elapsed() < span {
						pause(60 * time.Millisecond)
						if counted < simCounts && r.IntN(10) == 0 {
							countDown()
						}
						if r.IntN(12) == 0 {
							if got, err := sem.TrySetPermits(ctx, 100); got {
								j.accuse("%s: the permits were set again, %v", who, err)
							}
						}
						take := 1 + r.IntN(3)
						wait, cancel := context.WithCancel(ctx)
						most := giveUpWithin
						if r.IntN(3) > 0 {
							most = 4 * time.Second
						}
						opts := rlock.WithWait(time.Duration(r.Int64N(int64(most))))
						if r.IntN(4) == 0 { // canceled at any time: before, under way, after
							after := time.Duration(r.Int64N(int64(50 * time.Millisecond)))
							waits.Go(func() { p.h.Sleep(who+" canceler", after); cancel() })
						}
						err := sem.Acquire(wait, take, opts)
						if err != nil {
							j.mu.Lock()
							j.given++
							j.sayLocked("%s: %v", who, err)
							j.mu.Unlock()
							cancel()
							continue
						}
						j.takes(who, take)
						pause(40 * time.Millisecond)
						j.takes(who, -take)
						err = sem.Release(wait, take)
						j.say("%s released: %v", who, err)
						if err != nil && !unanswered(err) {
							j.accuse("%s: Release failed with %v", who, err)
						}
						cancel()
					}
					for counted < simCounts {
						pause(20 * time.Millisecond)
						countDown()
					}
				})
			}
			late := w.Rand("latch " + p.h.Name)
			opening.Go(func() {
				for try := 0; try < 20; try++ { // an outage may end it
					wait, cancel := context.WithTimeout(ctx, 5*time.Second+time.Duration(late.Int64N(int64(time.Second))))
					err := latch.Wait(wait)
					cancel()
					j.mu.Lock()
					j.sayLocked("%s waited for the latch: %v", p.h.Name, err)
					switch {
					case err != nil && !unanswered(err) && !errors.Is(err, context.DeadlineExceeded):
						j.accuseLocked("%s: Wait failed with %v", p.h.Name, err)
					case err == nil && j.begun < len(players)*2*simCounts:
						j.accuseLocked("%s: the latch opened after %d count-downs", p.h.Name, j.begun)
					case err == nil:
						j.opened++
					}
					j.mu.Unlock()
					if err == nil {
						return
					}
				}
			})
			who := p.h.Name + " barrier"
			r := w.Rand(who)
			work.Go(func() {
				for w.Elapsed() < span {
					p.h.Sleep(who, time.Duration(r.Int64N(int64(200*time.Millisecond))))
					if i > 0 {
						before := w.Elapsed()
						wait, cancel := context.WithTimeout(ctx, time.Second+time.Duration(r.Int64N(int64(time.Second))))
						err := barrier.Wait(wait)
						cancel()
						j.mu.Lock()
						j.sayLocked("%s passed: %v", who, err)
						if err == nil {
							j.passed++
							if j.sure && j.set <= before {
								j.accuseLocked("%s: passed a barrier that was set", who)
							}
						}
						j.mu.Unlock()
						continue
					}
					err := barrier.Set(ctx)
					j.mu.Lock()
					j.set, j.sure = w.Elapsed(), err == nil
					j.sayLocked("set: %v", err)
					j.mu.Unlock()
					p.h.Sleep(who, time.Duration(r.Int64N(int64(200*time.Millisecond))))
					j.mu.Lock()
					j.sure = false
					j.sayLocked("lifts")
					j.mu.Unlock()
					// Until it is lifted for sure: others wait for it.
					for barrier.Lift(ctx) != nil {
						p.h.Sleep(who, 50*time.Millisecond)
					}
				}
			})
		}
		work.Go(func() { countingSetter(w, j, players[1], span, &waits) })
		w.Play(w.Schedule(s.mix, s.faults, span))
		time.Sleep(max(0, span-w.Elapsed()))
		w.Heal()
		j.say("healed")
		work.Wait()
		opening.Wait()
		j.say("all have left")
		if j.opened < len(players) {
			j.accuse("only %d have seen the latch open", j.opened)
		}
		for i, p := range players[1:] { // the first one looks on
			if err := p.c.Shutdown(ctx); err != nil {
				j.accuse("%s: Shutdown: %v", players[i+1].h.Name, err)
			}
		}
		time.Sleep(time.Minute) // late copies, and what the first client has still to undo
		sem, latch := first.NewSemaphore("permits"), first.NewCountDownLatch("latch")
		for range 5 { // the connections that broke before
			_, _ = sem.Available(ctx)
		}
		free, err := sem.Available(ctx)
		if err != nil || free != simPermits {
			j.accuse("%d permits at the end, of %d, %v", free, simPermits, err)
		}
		if left, err := latch.Count(ctx); err != nil || left != 0 {
			j.accuse("%d are left to count down, %v", left, err)
		}
		if got, _ := w.Redis(0).Get("latch"); got != "" {
			j.accuse("the latch is %q at the end", got)
		}
		trace = w.Trace()
		for _, p := range players {
			p.close()
		}
		waits.Wait()
	})
	return j, trace
}

// countingSetter wants fewer permits, and then all of them, and takes some away before: an
// AddPermits that has failed may be undone after the number was set.
func countingSetter(w *World, j *countingJudge, p *player, span time.Duration, waits *sync.WaitGroup) {
	ctx := context.Background()
	sem, who := p.c.NewSemaphore("permits"), p.h.Name+" setter"
	r := w.Rand(who)
	set := func(n int) bool {
		err := sem.SetPermits(ctx, n)
		j.say("%s wants %d: %v", who, n, err)
		if err != nil && !unanswered(err) {
			j.accuse("%s: SetPermits failed with %v", who, err)
			return true // for good
		}
		return err == nil
	}
	for w.Elapsed() < span {
		p.h.Sleep(who, time.Duration(r.Int64N(int64(300*time.Millisecond))))
		n := simPermits
		switch r.IntN(3) {
		case 0:
			n = 1 + r.IntN(simPermits-1)
		case 1:
			add, cancel := context.WithCancel(ctx)
			after := time.Duration(r.Int64N(int64(10 * time.Millisecond)))
			waits.Go(func() { p.h.Sleep(who+" canceler", after); cancel() })
			err := sem.AddPermits(add, -1)
			j.say("%s takes one away: %v", who, err)
			cancel()
		}
		set(n)
	}
	for !set(simPermits) {
		p.h.Sleep(who, 50*time.Millisecond)
	}
}

// countingScenarios are those of locks in which no data is lost: permits have no lease.
func countingScenarios() (all []scenario) {
	for _, s := range scenarios {
		if s.name == "everything" {
			s.mix = append(slices.Clone(Network), Pause)
		}
		all = append(all, s)
	}
	return all
}

func TestCountingKeepsItsPromises(t *testing.T) {
	for _, s := range countingScenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			byTurns(t)
			given, most, passed := 0, 0, 0
			for i, seed := range seedsOf(ordinary(max(s.runs/2, 2))) {
				j, trace := countingRun(t, seed, s)
				if len(j.wrong) > 0 {
					t.Fatalf("seed %d: %d violations, first:\n%s\n%s", seed, len(j.wrong), j.wrong[0], strings.Join(j.said[max(0, len(j.said)-60):], "\n"))
				}
				given, most, passed = given+j.given, max(most, j.most), passed+j.passed
				if i > 0 || brief() && s.name != "harsh" {
					continue
				}
				again, other := countingRun(t, seed, s)
				if !slices.Equal(trace, other) {
					t.Errorf("seed %d: two runs differ: %s", seed, firstDifference(trace, other))
				}
				if len(again.wrong) > 0 {
					t.Error(again.wrong[0])
				}
			}
			t.Logf("%d acquires failed, %d permits at most, %d passed the barrier", given, most, passed)
			if most < simPermits || passed == 0 || given == 0 {
				t.Error("something that should be tried never happened")
			}
		})
	}
}

// countingMutations are mistakes that the runs must find.
var countingMutations = []struct {
	name, script, old, instead, in string
}{
	{name: "no request knows that it has run", script: "shared/record", old: "if latest == number then", instead: "if false then", in: "late"},
	{name: "a late copy of an older operation runs", script: "shared/record", old: "tonumber(latest) > tonumber(number)", instead: "false", in: "late"},
	{name: "an acquire counts twice", script: "semaphore/acquire", old: "local what = recorded(record, number)", instead: "local what = nil", in: "harsh"},
	{name: "a count-down counts twice", script: "latch/count_down", old: "local what = recorded(record, number)", instead: "local what = nil", in: "harsh"},
	{name: "a give-up gives back twice", script: "semaphore/undo", old: "note(record, number, 'gone')\n", instead: "", in: "harsh"},
	{name: "a give-up does not stop late copies", script: "semaphore/undo", old: "note(record, number, 'gone')\n", instead: "if what then note(record, number, 'gone') end\n", in: "late"},
	{name: "an addition is undone out of a number that was set since", script: "semaphore/undo", old: "added ~= '' and times ~= tonumber(set)", instead: "false", in: "harsh"},
	{name: "a number is set late", script: "semaphore/set", old: "if what then\n", instead: "if what == 'set' then\n", in: "late"},
	{name: "a barrier is set or lifted late", script: "barrier/change", old: "if recorded(record, number) then", instead: "if recorded(record, number) and false then", in: "late"},
}

func TestCountingMutationsAreFound(t *testing.T) {
	if brief() {
		t.Skip("takes long: RLOCK_THOROUGH=1 or -sim.all plays it")
	}
	for _, m := range countingMutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			all := countingScenarios()
			s := all[slices.IndexFunc(all, func(s scenario) bool { return s.name == m.in })]
			s.scripts = changed(t, change{m.script, m.old, m.instead})
			shows(t, "", func(seed uint64) []string {
				j, _ := countingRun(t, seed, s)
				return j.wrong
			})
		})
	}
}

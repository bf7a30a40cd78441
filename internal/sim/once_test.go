package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// onceJudge sees to it that what a Once returns never goes back to an earlier result, and
// that nobody runs while another runs whose result is kept.
type onceJudge struct {
	w     *World
	mu    sync.Mutex // guards the rest
	runs  int        // that have begun; the result of each is its number
	kept  int        // the latest result that was returned to anybody
	begun []time.Duration
	good  int // runs whose result was kept
	found int // results of others that were returned
	wrong []string
}

func (j *onceJudge) do(k *worker, o *rlock.Once) {
	ctx, cancel := context.Background(), func() {}
	if k.r.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, k.between(0, 2*time.Second))
	}
	defer cancel()
	j.mu.Lock()
	before := j.kept
	j.mu.Unlock()
	var span [2]time.Duration
	result, ran, err := o.Do(ctx, func(context.Context) ([]byte, error) {
		j.mu.Lock()
		j.runs++
		n := j.runs
		span[0] = j.w.Elapsed()
		j.begun = append(j.begun, span[0])
		j.mu.Unlock()
		pause := k.between(0, 60*time.Millisecond)
		if k.r.IntN(10) == 0 {
			pause = k.between(lockLease, longestHold)
		}
		k.h.Sleep(k.who, pause)
		span[1] = j.w.Elapsed()
		if k.r.IntN(10) == 0 {
			return nil, fmt.Errorf("run %d fails", n)
		}
		return []byte(strconv.Itoa(n)), nil
	})
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	n, err := strconv.Atoi(string(result))
	if err != nil || n < before {
		j.wrong = append(j.wrong, fmt.Sprintf("%v: %s got result %q, an earlier one than %d", j.w.Elapsed(), k.who, result, before))
	}
	j.kept = max(j.kept, n)
	if !ran {
		j.found++
		return
	}
	j.good++
	for _, at := range j.begun {
		if span[0] < at && at < span[1] {
			j.wrong = append(j.wrong, fmt.Sprintf("%s ran from %v to %v, and another began at %v", k.who, span[0], span[1], at))
		}
	}
}

func onceRun(t *testing.T, seed uint64, s scenario) (j *onceJudge) {
	bubble(t, seed, Config{Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		j = &onceJudge{w: w}
		var players []*player
		var work sync.WaitGroup
		var last *rlock.Once
		for i := range 3 {
			p := newPlayer(w, s, string(rune('a'+i)))
			players = append(players, p)
			// A result is over soon, so that there are many.
			o := p.c.NewOnce("job", 100*time.Millisecond)
			last = o
			for n := range 2 {
				who := fmt.Sprint(p.h.Name, n)
				k := &worker{player: p, who: who, r: w.Rand("worker " + who)}
				work.Go(func() {
					for w.Elapsed() < span {
						k.h.Sleep(who, k.between(0, 100*time.Millisecond))
						j.do(k, o)
					}
				})
			}
		}
		w.Play(w.Schedule(s.mix, s.faults, span))
		time.Sleep(max(0, span-w.Elapsed())) // the rates stay until then
		w.Heal()
		work.Wait()
		time.Sleep(lockLease + 10*time.Second) // what was left behind has run out
		if _, ran, err := last.Do(context.Background(), func(context.Context) ([]byte, error) { return nil, nil }); !ran || err != nil {
			j.wrong = append(j.wrong, fmt.Sprintf("in peace: %v, %v", ran, err))
		}
		for _, p := range players {
			p.close()
		}
	})
	return j
}

// onceScenarios are those without a loss of data, which brings other results.
func onceScenarios() []scenario {
	return slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool { return s.name == "everything" })
}

func TestOnceKeepsItsPromises(t *testing.T) {
	for _, s := range onceScenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			byTurns(t)
			for _, seed := range seedsOf((ordinary(s.runs) + 4) / 5) {
				j := onceRun(t, seed, s)
				for _, v := range j.wrong {
					t.Errorf("seed %d: %s", seed, v)
				}
				if j.found == 0 || j.good == 0 {
					t.Errorf("seed %d: %d runs, %d results of others", seed, j.good, j.found)
				}
			}
		})
	}
}

func TestSimulationFindsMutationsOfOnce(t *testing.T) {
	finds(t, []mistake{
		{"a result is written without a look at the token", "an earlier one", "once/finish",
			"local freed = redis.call('hdel', lock, id) == 1", "redis.call('del', lock)\nlocal freed = true"},
		{"nobody looks for one who runs", "and another began", "lock/enter",
			"redis.call('exists', lock, tombstone) == 0", "redis.call('exists', tombstone) == 0"},
	}, func(t *testing.T, seed uint64, s scenario) []string { return onceRun(t, seed, s).wrong })
}

// mistake is one that somebody could make in a script, and a part of a violation that shows it.
type mistake struct{ name, want, script, old, instead string }

// finds checks that runs show each mistake.
func finds(t *testing.T, mistakes []mistake, run func(t *testing.T, seed uint64, s scenario) (wrong []string)) {
	t.Helper()
	if brief() || !thorough() && locktest.UnderRace() {
		t.Skip("takes long, and the race detector does not look into scripts")
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == "late" })]
			s.scripts = changed(t, change{m.script, m.old, m.instead})
			shows(t, m.want, func(seed uint64) []string { return run(t, seed, s) })
		})
	}
}

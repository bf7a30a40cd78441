package sim

import (
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/locktest"
)

// lockSeeds is how many seeds a test plays: what it says, unless -sim.seeds
// says otherwise.
func lockSeeds(n int) int {
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "sim.seeds" {
			n = *seeds
		}
	})
	return n
}

// thorough reports whether there is time for what takes long: in CI, in the nightly run and in
// make seeds.
func thorough() bool { return *all || len(seedsOf(0)) > 0 }

// brief reports whether each kind has few scenarios: in a run that is neither CI's nor one of those. In CI's run under the
// race detector, which takes five times as long, too: without it, CI plays all of a third of the cases.
func brief() bool {
	return !thorough() && (testing.Short() || !locktest.IsThorough() || locktest.UnderRace() && !locktest.IsNightly())
}

// ordinary is how many of so many seeds a test plays where there is not.
func ordinary(runs int) int {
	switch {
	case thorough():
		return runs
	case brief():
		return (runs + 39) / 40
	default:
		return (runs + 19) / 20
	}
}

// byTurns leaves a case to the runs that play another third (-sim.third). Its name decides which third it is in, so that the
// three together play all.
func byTurns(t *testing.T) {
	t.Helper()
	if *third != 0 && *third != thirdOf(t.Name()) {
		t.Skipf("needs -sim.third=%d", thirdOf(t.Name()))
	}
}

func thirdOf(name string) int { return int(crc32.ChecksumIEEE([]byte(name))%3) + 1 }

// seedsOf are the seeds that a test plays: the fixed ones, and fresh ones if they
// are asked for.
func seedsOf(n int) (chosen []uint64) {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	for i := range lockSeeds(n) {
		chosen = append(chosen, uint64(i)+1)
	}
	for i := range *fresh {
		chosen = append(chosen, *first+uint64(i))
	}
	return chosen
}

// play plays a number of seeds, or the one that is asked for, and sees to it that
// things happened.
func (s scenario) play(t *testing.T, runs int, enough func(sum *judge) bool) {
	if *seedFlag != 0 {
		o := lockRun(t, *seedFlag, s)
		for _, l := range merged(o) {
			t.Log(l)
		}
		complain(t, *seedFlag, o)
		return
	}
	byTurns(t)
	var (
		mu     sync.Mutex
		sum    judge
		faults Stats
	)
	all := append(seedsOf(runs), s.found...)
	total := len(all)
	t.Cleanup(func() {
		t.Logf("%d seeds: %d holds, %d re-entries, %d extensions, %d unlocks, %d of them hand-overs, %d holds given to waiters, %d pipelines of callers, %d refusals, %d of them without an answer, %d leases lost; %d double holds, %d tokens out of order; excused by a loss of data: %d holds that were not alone, %d early losses, %d holds of nobody; %+v",
			total, sum.acquired, sum.nested, sum.extended, sum.released, sum.handedOver, sum.given, sum.combined, sum.refused, sum.unreachable, sum.lost, sum.doubles, sum.disorders, sum.excused.holds, sum.excused.losses, sum.excused.left, faults)
		enoughSeeds := total >= 3 // one or two need not have everything
		// Under faults, hand-overs are too rare for a few seeds.
		if sum.acquired < 3*total || !enough(&sum) ||
			enoughSeeds && (sum.nested == 0 && !s.kind.enteredOnce || s.kind.combined && sum.combined == 0 || sum.refused == 0) ||
			enoughSeeds && s.calm() && s.kind.handsOver && sum.handedOver == 0 {
			t.Error("something that should be tried never happened")
		}
	})
	shards := min(runtime.GOMAXPROCS(0), total)
	for shard := range shards {
		t.Run(fmt.Sprint("shard ", shard), func(t *testing.T) {
			t.Parallel()
			for i := shard; i < total; i += shards {
				o := lockRun(t, all[i], s)
				complain(t, all[i], o)
				mu.Lock()
				sum.acquired += o.judge.acquired
				sum.nested += o.judge.nested
				sum.extended += o.judge.extended
				sum.released += o.judge.released
				sum.handedOver += o.judge.handedOver
				sum.combined += o.judge.combined
				sum.given += o.judge.given
				sum.refused += o.judge.refused
				sum.unreachable += o.judge.unreachable
				sum.lost += o.judge.lost
				sum.doubles += o.judge.doubles
				sum.disorders += o.judge.disorders
				sum.excused.add(o.judge.excused)
				faults.add(o.stats)
				mu.Unlock()
			}
		})
	}
}

func complain(t *testing.T, seed uint64, o outcome) {
	t.Helper()
	if len(o.judge.wrong) > 0 {
		t.Errorf("seed %d: %d violations, first:\n%s\n%s\ntrace: %s", seed, len(o.judge.wrong), o.judge.wrong[0], replay(t, seed), o.keep(t))
	}
}

// replay says how to play a seed again.
func replay(t *testing.T, seed uint64) string {
	test, _, _ := strings.Cut(t.Name(), "/shard")
	return fmt.Sprintf("replay: go test ./internal/sim -run '^%s$' -v -args -sim.seed=%d", strings.ReplaceAll(test, "/", "$/^"), seed)
}

// traces counts the files that this process has written: if everything fails, a few will do.
var traces atomic.Int32

// keep writes the trace to a file, in the directory RLOCK_SIM_TRACES if there is
// one. It stays there: not every run can be repeated exactly.
func (o outcome) keep(t *testing.T) string {
	if traces.Add(1) > 10 {
		return "not written, there are ten"
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/ ,", r) {
			return '-'
		}
		return r
	}, t.Name())
	f, err := os.CreateTemp(os.Getenv("RLOCK_SIM_TRACES"), fmt.Sprintf("rlock-%s-seed-%d-*.txt", name, o.world.Seed))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Join(merged(o), "\n") + "\n"); err != nil {
		return err.Error()
	}
	return f.Name()
}

// merged is what the judge saw between what the servers saw.
func merged(o outcome) []string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, l := range append(o.world.Trace(), o.judge.log...) {
		at, _, _ := strings.Cut(l, " ")
		d, _ := time.ParseDuration(at)
		lines = append(lines, line{d, l})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = l.text
	}
	return out
}

//go:build linux

package check

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

var (
	long      = flag.Bool("long", false, "a minute of faults, instead of ten seconds")
	givenSeed = flag.Uint64("seed", 0, "plays these faults again, as far as two runs of several processes are alike; 0 plays the same every day, and draws new ones in make check and at night")
)

func TestMain(m *testing.M) { locktest.Main(m) }

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"works": childWorks})
}

// kind is a type of lock, and what it promises.
type kind struct {
	name  string
	model porcupine.Model
}

var types = []kind{
	{"Lock", Excludes(1)},
	{"FencedLock", Excludes(1)},
	{"FairLock", Excludes(1)},
	{"ReadWriteLock", Excludes(readers)},
	{"PermitSemaphore", Excludes(permits)},
	{"Election", Excludes(1)},
	{"Once", Excludes(1)},
	{"CronJob", Excludes(1)},
}

// arena has the processes of a run, and what befalls them.
type arena struct {
	t      *testing.T
	b      *locktest.Backend
	dir    string
	broken string // how its Lock is, on purpose
	rnd    *rand.Rand
	log    *Log // of faults
	teams  []*team
	stop   time.Duration // how long a process is stopped
	starts int
}

// team is a process, and those that follow it when it is killed, with a proxy to Redis.
type team struct {
	*locktest.Child
	name    string
	proxy   *faultproxy.Proxy
	lossy   atomic.Bool  // whether replies get lost
	lost    atomic.Int64 // how many have
	stopped time.Time    // since when, as far as was seen; zero if it runs
}

func newArena(t *testing.T, seed uint64, broken string) *arena {
	a := &arena{t: t, b: locktest.OnServer(t), dir: t.TempDir(), broken: broken}
	a.rnd, a.stop = rand.New(rand.NewPCG(seed, 0)), lease*13/10
	var err error
	if a.log, err = NewLog(a.dir, "faults"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		one := &team{proxy: faultproxy.New(t, a.b.Addr)}
		var commands atomic.Uint64
		one.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if !one.lossy.Load() || c.Name != "evalsha" || commands.Add(1)%4 > 0 {
				return faultproxy.Pass
			}
			one.lost.Add(1)
			return faultproxy.ResetAfter // no later reply can take the place of this one
		})
		a.teams = append(a.teams, one)
		a.start(one)
	}
	for _, one := range a.teams {
		one.Report("works")
	}
	return a
}

// start starts the next process of a team.
func (a *arena) start(one *team) {
	a.starts++
	one.name = fmt.Sprint("p", a.starts)
	one.Child = locktest.StartChild(a.t, "works", one.proxy.Addr(), a.dir, one.name, fmt.Sprint(a.rnd.Uint64()), a.b.Addr, a.broken)
}

// fault logs that a fault of a process begins. What it returns logs that it is over.
func (a *arena) fault(one *team, what string) func() {
	end := a.log.Call(Operation{Do: Fault, Key: one.name, Value: what})
	return func() { end(Operation{Out: OK}) }
}

// play draws faults for that long.
func (a *arena) play(d time.Duration) {
	var kinds []int
	for end := time.Now().Add(d); time.Now().Before(end); kinds = kinds[1:] {
		a.rest(time.Duration(50+a.rnd.IntN(200)) * time.Millisecond)
		one := a.teams[a.rnd.IntN(len(a.teams))]
		one.proxy.ResetLog() // or it would grow
		if len(kinds) == 0 {
			kinds = a.rnd.Perm(len(faults)) // each as often as the others
		}
		a.strike(one, faults[kinds[0]])
	}
}

// finish lets all processes finish, and returns what they have logged.
func (a *arena) finish() *History {
	for _, one := range a.teams {
		one.Order("stop")
	}
	rdb := a.b.Client(a.t)
	locktest.Eventually(a.t, "all processes have done what they had begun", func() bool {
		a.rest(0) // some may have stopped themselves
		return rdb.SCard(bg, "done").Val() == int64(len(a.teams))
	})
	for _, one := range a.teams {
		one.Finish()
	}
	h, err := ReadHistory(a.dir)
	if err != nil {
		a.t.Fatal(err)
	}
	return h
}

// faults are what the arena does to processes. They stop themselves, too: "pause".
var faults = []string{"kill", "stop", "reset", "lose replies", "cut", "delay"}

// strike lets a fault happen to a process.
func (a *arena) strike(one *team, fault string) {
	over := a.fault(one, fault)
	switch fault {
	case "kill":
		one.Kill()
		a.start(one)
		one.Report("works")
		return // that is never over
	case "stop":
		one.Signal(syscall.SIGSTOP)
		a.rest(a.stop)
		one.Signal(syscall.SIGCONT)
	case "reset":
		one.proxy.ResetAll()
	case "lose replies":
		one.lossy.Store(true)
		a.rest(lease / 3)
		one.lossy.Store(false)
	case "cut":
		one.proxy.Blackhole(true)
		a.rest(time.Duration(a.rnd.Int64N(int64(a.stop))))
		one.proxy.Blackhole(false)
	case "delay":
		// A request is sent again when no answer comes: then the first copy runs after the second.
		late := time.Duration(a.rnd.Int64N(int64(a.stop)))
		one.proxy.Delay(func(faultproxy.Command) time.Duration { return late })
		a.rest(lease / 3)
		one.proxy.Delay(nil)
		a.rest(late) // until the last has run
	}
	over()
}

// rest waits, and continues processes that have stopped themselves, when they have been stopped for long enough.
func (a *arena) rest(d time.Duration) {
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		for _, one := range a.teams {
			a.awake(one)
		}
		if time.Now().After(end) {
			return
		}
	}
}

func (a *arena) awake(one *team) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", one.Pid()))
	_, state, _ := bytes.Cut(stat, []byte(") "))
	switch {
	case !bytes.HasPrefix(state, []byte("T")):
		one.stopped = time.Time{}
	case one.stopped.IsZero():
		one.stopped = time.Now()
	case time.Since(one.stopped) > a.stop:
		one.Signal(syscall.SIGCONT)
	}
}

// figures are what a history is worth.
type figures struct {
	acquires   int
	unknown    int      // outcomes
	losses     int      // that the holder saw
	unprovoked []string // of these, without a fault before
	ghosts     int      // holds whose end nobody saw
	keys       int
	steps      int // that were explained
	updates    int // of the register without a fence
	lost       int // of these
	lostFenced int // of those of the register with a fence
	took       time.Duration
	wrong      []string // what cannot be explained
}

const header = "| type | acquires | unknown | losses | without a fault | ghosts | operations | keys | explained in | updates lost | with the fence |"

func (f figures) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %d ms | %d of %d | %d |", name,
		f.acquires, f.unknown, f.losses, len(f.unprovoked), f.ghosts, f.steps, f.keys, f.took.Milliseconds(), f.lost, f.updates, f.lostFenced)
}

// plus adds the figures of another round.
func (f figures) plus(g figures) figures {
	return figures{
		f.acquires + g.acquires, f.unknown + g.unknown, f.losses + g.losses, append(f.unprovoked, g.unprovoked...), f.ghosts + g.ghosts,
		f.keys + g.keys, f.steps + g.steps, f.updates + g.updates, f.lost + g.lost, f.lostFenced + g.lostFenced,
		f.took + g.took, append(f.wrong, g.wrong...),
	}
}

// explain checks all histories of a type: who had it, what its fenced register took, and what was decided.
func explain(t *testing.T, h *History, k kind) (f figures) {
	t.Helper()
	start, keys := time.Now(), map[string]bool{}
	for _, op := range h.Operations {
		if name, _, _ := strings.Cut(op.Key, " "); name != k.name {
			continue
		}
		keys[op.Key] = true
		if op.Do == Acquire && op.Out == OK {
			f.acquires++
		} else if op.Out == Unknown {
			f.unknown++
		}
	}
	for key := range keys {
		holds, ends, err := h.lockSteps(key)
		if err != nil {
			f.wrong = append(f.wrong, err.Error())
			continue
		}
		for _, end := range ends {
			f.count(end)
		}
		f.check(t, "holds of "+key, k.model, holds)
		f.check(t, "decisions of "+key, Agrees(), h.decisionSteps(key))
		if strings.HasSuffix(key, " fenced") {
			f.check(t, "register "+key, Fenced(), h.registerSteps(key))
		}
	}
	f.keys, f.took = len(keys), time.Since(start)
	return f
}

func (f *figures) count(end End) {
	switch {
	case end.Ghost:
		f.ghosts++
	case end.Lost:
		f.losses++
	}
	if end.Unprovoked {
		f.unprovoked = append(f.unprovoked, end.Process+": "+end.Value)
	}
}

// check lets porcupine explain a history. That it has not found out in time is wrong, too.
func (f *figures) check(t *testing.T, what string, m porcupine.Model, steps []porcupine.Operation) {
	t.Helper()
	f.steps += len(steps)
	result, info := porcupine.CheckOperationsVerbose(m, steps, time.Minute)
	if result != porcupine.Ok {
		f.wrong = append(f.wrong, fmt.Sprintf("%s: %s", what, result))
		t.Logf("%s: %s, of %d operations\nWhere the longest explanation ends:\n%s", what, result, len(steps), ending(m, steps, info))
	}
}

// ending shows the last operations of the longest explanation there is, and the first of those that are not in it.
func ending(m porcupine.Model, steps []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, partial := range info.PartialLinearizations() {
		for _, ids := range partial {
			if len(ids) > len(longest) {
				longest = ids
			}
		}
	}
	var text strings.Builder
	show := func(mark string, op porcupine.Operation) {
		fmt.Fprintf(&text, "%s [%d, %d] %s\n", mark, op.Call, op.Return, m.DescribeOperation(op.Input, op.Output))
	}
	for _, id := range longest[max(0, len(longest)-12):] {
		show("   ", steps[id])
	}
	var rest []porcupine.Operation
	for id, op := range steps {
		if !slices.Contains(longest, id) {
			rest = append(rest, op)
		}
	}
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, op := range rest[:min(12, len(rest))] {
		show("???", op)
	}
	return text.String()
}

// lostUpdates counts the writes of a register that were not computed from what they replaced.
func (a *arena) lostUpdates(key string) (writes, lost int) {
	writes, lost, err := Registers{a.b.Client(a.t)}.Updates(bg, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return writes, lost
}

// lacking says what a run has too little of to show anything.
func lacking(all map[string]figures, hits map[string]int, times int) (lacks []string) {
	least := func(what string, got, want int) {
		if got < want*times {
			lacks = append(lacks, fmt.Sprintf("%d %s instead of %d", got, what, want*times))
		}
	}
	sum := figures{}
	for _, k := range types {
		f := all[k.name]
		least("acquires of "+k.name, f.acquires, 60)
		sum.unknown, sum.losses, sum.ghosts = sum.unknown+f.unknown, sum.losses+f.losses, sum.ghosts+f.ghosts
	}
	least("unknown outcomes", sum.unknown, 4)
	least("losses", sum.losses, 3)
	least("ghosts", sum.ghosts, 2)
	for _, fault := range append(faults, "pause") {
		least("faults: "+fault, hits[fault], 1)
	}
	least("lost replies", hits["lost replies"], 5)
	return lacks
}

// A run in which nothing has happened is not taken for one that has found nothing.
func TestARunOfNothingIsRefused(t *testing.T) {
	if got, want := len(lacking(nil, nil, 1)), len(types)+11; got != want {
		t.Errorf("%d complaints instead of %d", got, want)
	}
}

// newSeed is the seed that is asked for. Every day it is the same, each night a new one.
func newSeed(t *testing.T) uint64 {
	s := *givenSeed
	switch {
	case s == 0 && (locktest.IsNightly() || *long):
		s = uint64(time.Now().UnixNano())
	case s == 0:
		s = 1
	}
	t.Logf("again: go test -run '^%s$' . -args -long=%t -seed=%d", t.Name(), *long, s)
	return s
}

// Whatever happens to its processes, a history of a lock can be explained by a lock. A round has enough of everything by
// a wide margin, but on a machine that does something else at the time: then another follows.
func TestHistoriesAreExplained(t *testing.T) {
	least, most := 1, 4
	if *long {
		least, most = 6, 9
	}
	all, hits, seed := map[string]figures{}, map[string]int{}, newSeed(t)
	for round := 1; !t.Failed(); round++ {
		playRound(t, seed+uint64(round), all, hits)
		lacks := lacking(all, hits, least)
		if round == most && lacks != nil {
			t.Errorf("too little: %q", lacks)
		}
		if round == most || round >= least && lacks == nil {
			break
		}
	}
	t.Log(header)
	for _, k := range types {
		t.Log(all[k.name].row(k.name))
	}
	t.Logf("faults: %v", hits)
}

// playRound plays ten seconds, explains them, and adds up what they are worth.
func playRound(t *testing.T, seed uint64, all map[string]figures, hits map[string]int) {
	t.Helper()
	a := newArena(t, seed, "")
	a.play(10 * time.Second)
	h := a.finish()
	for _, k := range types {
		f := explain(t, h, k)
		f.updates, f.lost = a.lostUpdates(k.name + " plain")
		_, f.lostFenced = a.lostUpdates(k.name + " fenced")
		for _, wrong := range f.wrong {
			t.Error(wrong)
		}
		for _, loss := range f.unprovoked {
			t.Logf("without a fault, %s", loss)
		}
		if f.lostFenced > 0 {
			t.Errorf("%s: %d updates lost through the fence", k.name, f.lostFenced)
		}
		all[k.name] = all[k.name].plus(f)
	}
	a.countFaults(h, hits)
}

// countFaults adds those of a history, by kind.
func (a *arena) countFaults(h *History, count map[string]int) {
	for _, faults := range h.faults {
		for _, fault := range faults {
			count[fault.Value]++
		}
	}
	for _, one := range a.teams {
		count["lost replies"] += int(one.lost.Load())
	}
}

// A lock that is broken leaves a history that cannot be explained.
func TestHistoryOfABrokenLockIsNotExplained(t *testing.T) {
	for broken, wrong := range map[string]string{
		unshared:  "holds of Lock: Illegal",
		unchecked: "holds of Lock: Illegal",
		unfenced:  "register Lock fenced: Illegal",
	} {
		t.Run(broken, func(t *testing.T) {
			a := newArena(t, newSeed(t), broken)
			a.rest(lease) // which needs no faults
			if f := explain(t, a.finish(), types[0]); !slices.Contains(f.wrong, wrong) {
				t.Errorf("%v; wrong: %q", f, f.wrong)
			}
		})
	}
}

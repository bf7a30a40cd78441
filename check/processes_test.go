//go:build linux

package check

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
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
	givenSeed = flag.Uint64("seed", 0, "plays these faults again, as far as two runs of several processes are alike; 0 draws new ones")
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
	broken bool
	seed   uint64
	rnd    *rand.Rand
	log    *Log // of faults
	teams  []*team
	stop   time.Duration // how long a process is stopped
	count  map[string]int
}

// team is a process, and those that follow it when it is killed, with a proxy to Redis.
type team struct {
	*locktest.Child
	name      string
	proxy     *faultproxy.Proxy
	swallow   atomic.Bool
	swallowed atomic.Int64
	stopped   time.Time // since when, as far as was seen; zero if it runs
}

func newArena(t *testing.T, seed uint64, broken bool) *arena {
	a := &arena{t: t, b: locktest.OnServer(t), dir: t.TempDir(), broken: broken, seed: seed, count: map[string]int{}}
	a.rnd, a.stop = rand.New(rand.NewPCG(seed, 1<<32)), lease*13/10
	var err error
	if a.log, err = NewLog(a.dir, "faults"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		one := &team{proxy: faultproxy.New(t, a.b.Addr)}
		var commands atomic.Uint64
		one.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if !one.swallow.Load() || c.Name != "evalsha" || commands.Add(1)%4 > 0 {
				return faultproxy.Pass
			}
			one.swallowed.Add(1)
			return faultproxy.SwallowReply
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
	a.count["start"]++
	one.name = fmt.Sprint("p", a.count["start"])
	one.Child = locktest.StartChild(a.t, "works", one.proxy.Addr(), a.dir, one.name, fmt.Sprint(a.seed+uint64(a.count["start"])), a.b.Addr, fmt.Sprint(a.broken))
}

// fault counts a fault of a process, and logs that it begins. What it returns logs that it is over.
func (a *arena) fault(one *team, what string) func() {
	a.count[what]++
	end := a.log.Call(Operation{Do: Fault, Key: one.name, Value: what})
	return func() { end(Operation{Out: OK}) }
}

// play draws faults for that long, then lets all processes finish.
func (a *arena) play(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		a.rest(time.Duration(100+a.rnd.IntN(300)) * time.Millisecond)
		one := a.teams[a.rnd.IntN(len(a.teams))]
		switch a.rnd.IntN(4) {
		case 0:
			a.fault(one, "kill") // never over
			one.Kill()
			a.start(one)
			one.Report("works")
		case 1:
			over := a.fault(one, "stop")
			one.Signal(syscall.SIGSTOP)
			a.rest(a.stop)
			one.Signal(syscall.SIGCONT)
			over()
		case 2:
			over := a.fault(one, "reset")
			one.proxy.ResetAll()
			over()
		case 3:
			over := a.fault(one, "swallow")
			one.swallow.Store(true)
			a.rest(lease / 3)
			one.swallow.Store(false)
			over()
		}
	}
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
		a.count["swallowed"] += int(one.swallowed.Load())
	}
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

// figures are what a history is worth: one that nothing has happened in explains nothing.
type figures struct {
	acquires, unknown, losses, unprovoked, ghosts, keys, steps int
	took                                                       time.Duration
}

func (f figures) String() string {
	return fmt.Sprintf("%d acquires, %d unknown, %d losses (%d without a fault), %d ghosts; %d operations on %d keys explained in %v",
		f.acquires, f.unknown, f.losses, f.unprovoked, f.ghosts, f.steps, f.keys, f.took.Round(time.Millisecond))
}

// explain checks all histories of a type: who had it, what the fenced register took, and what was decided.
func explain(t *testing.T, h *History, k kind) (f figures, explained bool) {
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
	explained = true
	try := func(what, key string, m porcupine.Model, steps []porcupine.Operation) {
		f.steps += len(steps)
		result := porcupine.CheckOperationsTimeout(m, steps, time.Minute)
		if result != porcupine.Ok {
			t.Logf("%s: %s of %d operations: %s", key, what, len(steps), result)
			explained = false
		}
	}
	for key := range keys {
		f.keys++
		steps, ends, err := h.lockSteps(key)
		if err != nil {
			t.Log(err)
			explained = false
			continue
		}
		for _, end := range ends {
			f.count(end)
		}
		try("holds", key, k.model, steps)
		try("decisions", key, Agrees(), h.decisionSteps(key))
		if strings.HasSuffix(key, " fenced") {
			try("register", key, Fenced(), h.registerSteps(key))
		}
	}
	f.took = time.Since(start)
	return f, explained
}

func (f *figures) count(end End) {
	switch {
	case end.Ghost:
		f.ghosts++
	case end.Lost:
		f.losses++
	}
	if end.Unprovoked {
		f.unprovoked++
	}
}

// lostUpdates counts the writes of a register that were not computed from what they replaced.
func (a *arena) lostUpdates(key string) (writes, lost int) {
	entries, err := a.b.Client(a.t).LRange(bg, key+":writes", 0, -1).Result()
	if err != nil {
		a.t.Fatal(err)
	}
	last := ""
	for _, entry := range entries {
		value, prev, _ := strings.Cut(entry, " ")
		if prev != last {
			lost++
		}
		last = value
	}
	return len(entries), lost
}

func duration() time.Duration {
	if *long {
		return time.Minute
	}
	return 10 * time.Second
}

func seedOfRun(t *testing.T) uint64 {
	s := *givenSeed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test -run '^%s$' . -args -seed=%d", t.Name(), s)
	return s
}

// Whatever happens to its processes, a history of a lock can be explained by a lock.
func TestHistoriesAreExplained(t *testing.T) {
	a := newArena(t, seedOfRun(t), false)
	a.play(duration())
	h, err := ReadHistory(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range types {
		f, ok := explain(t, h, k)
		if !ok {
			t.Errorf("%s: not explained", k.name)
		}
		_, fenced := a.lostUpdates(k.name + " fenced")
		writes, plain := a.lostUpdates(k.name + " plain")
		t.Logf("%-15s %v; of %d updates %d lost, with the fence %d", k.name, f, writes, plain, fenced)
	}
	t.Logf("faults: %v", a.count)
}

// A lock that processes do not share leaves a history that the checker refuses.
func TestHistoryOfABrokenLockIsNotExplained(t *testing.T) {
	a := newArena(t, seedOfRun(t), true)
	a.play(time.Second)
	h, err := ReadHistory(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := explain(t, h, types[0]); ok {
		t.Errorf("explained: %v", f)
	}
}

package sim

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// several is what a kind has that needs more than one server.
type several struct {
	servers int
	openAll func(cs []*rlock.Client, name string) rlock.Locker // instead of open
	begin   func(p *player) error                              // is called once in a run

	// everywhere is instead of holds. anywhere are what holds have left behind,
	// if that can be less. ghost tells of one that cannot be.
	everywhere, anywhere func(w *World, lock string) map[hold]string
	ghost                func(w *World, lock string) string
	uncounted            bool // the servers do not know how often an owner has entered
	membersHandOver      bool // as handsOver, if others of the client wait for a member

	sturdy    bool          // no loss of data and no clock excuses two holders
	forgetful int           // how many of the servers may lose data
	jumps     bool          // the clock of one may jump
	longest   time.Duration // of fixed leases; 0: longestFix
	recovers  time.Duration // how long the servers need after the last fault
}

// schedule draws the faults of a run.
func (s scenario) schedule(w *World, span time.Duration) []Fault {
	mix := s.mix
	if s.kind.jumps && slices.Contains(mix, Lose) {
		mix = append(slices.Clone(mix), Jump)
	}
	faults := w.Schedule(mix, s.faults, span)
	if s.kind.sturdy {
		for i, f := range faults {
			switch {
			case f.Kind == Lose && s.kind.forgetful == 0:
				faults[i].Kind = Restart
			case f.Kind == Lose:
				faults[i].Server = f.Server % s.kind.forgetful
			case f.Kind == Jump:
				faults[i].Server = int(w.Seed) % s.kind.servers
			}
		}
	}
	return faults
}

const (
	redNodeTimeout = 179 * time.Millisecond
	redLongest     = 3011 * time.Millisecond // lease of a RedLock with a quarantine
)

func red(opts ...rlock.RedLockOption) func([]*rlock.Client, string) rlock.Locker {
	return func(cs []*rlock.Client, name string) rlock.Locker {
		l, err := rlock.NewRedLock(name, cs, append(slices.Clone(opts), rlock.WithNodeTimeout(redNodeTimeout))...)
		if err != nil {
			panic(err)
		}
		return l
	}
}

// vote is for whom a node has voted, or "".
func vote(w *World, node int, lock string) string {
	m := w.Redis(node)
	record := derived(lock, "rlock:red")
	if !m.Exists(record) {
		return ""
	}
	var until int64
	fmt.Sscan(m.HGet(record, "until"), &until)
	if until <= w.Now(node).UnixMicro() {
		return ""
	}
	return m.HGet(record, "attempt")
}

func votes(w *World, lock string) map[string]int {
	votes := map[string]int{}
	for i := range w.servers {
		if v := vote(w, i, lock); v != "" {
			votes[v]++
		}
	}
	return votes
}

// redHolds are the attempts that have so many votes.
func redHolds(quorum int) func(w *World, lock string) map[hold]string {
	return func(w *World, lock string) map[hold]string {
		holds := map[hold]string{}
		for id, n := range votes(w, lock) {
			if n >= quorum {
				holds[hold{id, false}] = ""
			}
		}
		return holds
	}
}

// redGhost is a vote that was taken back, and is there.
func redGhost(w *World, lock string) string {
	for i := range w.servers {
		if v := vote(w, i, lock); v != "" && w.Redis(i).Exists(derived(lock, "rlock:gone:"+v)) {
			return fmt.Sprintf("server %d votes for %s, which has left", i, v)
		}
	}
	return ""
}

func redKind(name string, quorum int, s several, opts ...rlock.RedLockOption) kind {
	s.servers = 5
	s.openAll = red(append(opts, rlock.WithQuorum(quorum))...)
	s.everywhere, s.anywhere, s.ghost = redHolds(quorum), redHolds(1), redGhost
	s.uncounted, s.sturdy = true, true
	return kind{name: name, several: s}
}

var redKinds = []kind{
	redKind("redlock", 3, several{}),
	redKind("redlock, 4 of 5", 4, several{forgetful: 2}),
	redKind("redlock with quarantine", 3, several{
		forgetful: 5, jumps: true, longest: redLongest, recovers: 2*redLongest + 5*time.Second,
		begin: func(p *player) error {
			return p.locks[lockNames[0]].(*rlock.RedLock).BootstrapNodes(context.Background())
		},
	}, rlock.WithRestartQuarantine(), rlock.WithLongestLease(redLongest)),
}

// redScenarios are what the ones for all kinds have too little of.
var redScenarios = []scenario{
	{name: "losses", rates: lossy, mix: Mix{Lose, Lose, Lose, Partition, Restart}, faults: 30, runs: 20},
	{name: "clocks", rates: lossy, mix: Mix{Jump, Jump, Partition}, faults: 30, runs: 20},
}

// part is a member of a MultiLock.
type part struct {
	server int
	name   func(lock string) string
	open   func(cs []*rlock.Client, name string) rlock.Locker
	holds  func(m contents, lock string) map[hold]string
}

func plainPart(server int, name func(lock string) string) part {
	return part{server, name, func(cs []*rlock.Client, name string) rlock.Locker { return cs[server].NewLock(name) }, plainHolds}
}

func prefix(s string) func(string) string { return func(lock string) string { return s + lock } }
func suffix(s string) func(string) string { return func(lock string) string { return lock + s } }

// always is the name of a member that all MultiLocks of a run have in common.
func always(name string) func(string) string { return func(string) string { return name } }

func multiKind(name string, servers int, parts ...part) kind {
	return kind{name: name, several: several{
		servers: servers, membersHandOver: true,
		openAll: func(cs []*rlock.Client, name string) rlock.Locker {
			var members []rlock.Locker
			for _, p := range parts {
				members = append(members, p.open(cs, p.name(name)))
			}
			l, err := rlock.NewMultiLock(members)
			if err != nil {
				panic(err)
			}
			return l
		},
		everywhere: func(w *World, lock string) map[hold]string {
			holds := map[hold]string{}
			for _, p := range parts {
				for h, n := range p.holds(contentsOf(w, p.server), p.name(lock)) {
					holds[h] = n
				}
			}
			return holds
		},
	}}
}

var multiKinds = []kind{
	multiKind("multi", 2, plainPart(0, suffix("-a")), plainPart(1, suffix("-a")), plainPart(1, always("both"))),
	multiKind("multi at once", 1, plainPart(0, prefix("{m}a-")), plainPart(0, prefix("{m}b-")), plainPart(0, always("{m}both"))),
	multiKind("multi of many kinds", 2,
		plainPart(0, suffix("-a")),
		part{1, suffix("-b"), func(cs []*rlock.Client, name string) rlock.Locker { return cs[1].NewFairLock(name) }, plainHolds},
		part{1, suffix("-c"), func(cs []*rlock.Client, name string) rlock.Locker {
			return cs[1].NewReadWriteLock(name).Writer
		}, writeHolds},
		part{0, always("both"), func(cs []*rlock.Client, name string) rlock.Locker { return cs[0].NewPriorityLock(name) }, queuedHolds("priority")},
	),
}

// writeHolds are those of the write side of a read-write lock, by hold id.
func writeHolds(m contents, lock string) map[hold]string {
	holds := map[hold]string{}
	for h, n := range sidedHolds(m, lock) {
		holds[hold{h.owner, false}] = n
	}
	return holds
}

// A run of a RedLock takes as long as five of another lock, so what says the least
// or takes the longest is left to CI and make seeds.
//
// Two runs of one seed have the same faults, but are not equal: renewals of two
// holds, and questions to several nodes that fail together, begin in one instant
// (rule 3).
func TestRedLockKeepsItsPromises(t *testing.T) {
	everyDay := map[string][]string{
		"redlock":                 {"calm", "network", "everything"},
		"redlock, 4 of 5":         {"harsh"},
		"redlock with quarantine": {"everything", "losses", "clocks"},
	}
	if brief() {
		everyDay["redlock"] = []string{"network"}
		everyDay["redlock with quarantine"] = []string{"everything"}
	}
	for _, kind := range redKinds {
		for _, s := range append(slices.Clone(scenarios), redScenarios...) {
			if s.name == "clocks" && !kind.jumps || s.name == "losses" && kind.forgetful == 0 {
				continue
			}
			s.kind = kind
			if kind.name == "redlock" && s.name == "late" {
				s.found = []uint64{17} // a hold was called lost that no round alone had confirmed for a while
			}
			t.Run(kind.name+"/"+s.name, func(t *testing.T) {
				if !thorough() && *seedFlag == 0 && !slices.Contains(everyDay[kind.name], s.name) {
					t.Skip("needs -sim.all")
				}
				t.Parallel()
				s.play(t, 1, func(*judge) bool { return true })
			})
		}
	}
}

func TestMultiLockKeepsItsPromises(t *testing.T) {
	for i, kind := range multiKinds {
		for j, s := range scenarios {
			s.kind = kind
			t.Run(kind.name+"/"+s.name, func(t *testing.T) {
				if ((i+j)%2 > 0 || brief() && j != len(scenarios)-1-i) && !thorough() && *seedFlag == 0 {
					t.Skip("needs -sim.all")
				}
				t.Parallel()
				s.play(t, (ordinary(s.runs)+49)/50, func(*judge) bool { return true })
			})
		}
	}
}

func (s *Stats) add(other Stats) {
	sum, v := reflect.ValueOf(s).Elem(), reflect.ValueOf(other)
	for i := range v.NumField() {
		sum.Field(i).SetInt(sum.Field(i).Int() + v.Field(i).Int())
	}
}

// figures are the faults of the runs that tell how often what RedLock promises
// breaks if it is not asked for. Where a kind promises nothing it breaks.
var figures = []struct {
	scenario
	breaks string // the kind of which that is expected
}{
	{scenario: scenario{name: "lossy network", rates: lossy}},
	{scenario: scenario{name: "data loss on two nodes", rates: lossy, mix: Mix{Lose}, faults: 12, kind: kind{several: several{forgetful: 2}}}, breaks: "redlock"},
	{scenario: scenario{name: "clock jump on one", rates: lossy, mix: Mix{Jump}, faults: 12}, breaks: "redlock"},
	{scenario: scenario{name: "client pauses", rates: Rates{Stall: 0.01}, mix: Mix{Pause}, faults: 12}},
	{scenario: scenario{name: "all mixed", rates: Harsh, mix: append(slices.Clone(Everything), Jump), faults: 16, kind: kind{several: several{forgetful: 2}}}, breaks: "redlock"},
}

var lossy = Rates{
	Swallow: 0.02, ResetBefore: 0.02, ResetAfter: 0.02, Late: 0.5, Again: 0.03,
	DropMessage: 0.1, Deafen: 0.01,
}

// It takes hundreds of seeds to say something: a part of make seeds.
func TestFiguresOfRedLock(t *testing.T) {
	if lockSeeds(0) == 0 {
		t.Skip("needs -sim.seeds")
	}
	for _, f := range figures {
		for _, kind := range redKinds {
			t.Run(f.name+"/"+kind.name, func(t *testing.T) {
				s := f.scenario
				s.kind = kind
				s.kind.forgetful = f.kind.forgetful
				var (
					mu                        sync.Mutex
					holds, doubles, disorders int
					faults                    Stats
					wrong                     []string
				)
				var work sync.WaitGroup
				for shard := range 2 {
					work.Go(func() {
						for seed := uint64(1 + shard); seed <= uint64(lockSeeds(0)); seed += 2 {
							o := lockRun(t, seed, s)
							mu.Lock()
							holds += o.judge.acquired
							doubles += o.judge.doubles
							disorders += o.judge.disorders
							faults.add(o.stats)
							if len(o.judge.wrong) > 0 {
								wrong = append(wrong, fmt.Sprintf("seed %d: %s", seed, o.judge.wrong[0]))
							}
							mu.Unlock()
						}
					})
				}
				work.Wait()
				t.Logf("%d holds, %d double, %d tokens out of order, %+v", holds, doubles, disorders, faults)
				if disorders > 0 && faults.Jumps == 0 {
					t.Error("tokens are in order whoever forgets")
				}
				if len(wrong) > 0 && f.breaks != kind.name || holds == 0 {
					t.Errorf("%d of %d seeds went wrong: %s", len(wrong), lockSeeds(0), strings.Join(wrong[:min(5, len(wrong))], "\n"))
				}
			})
		}
	}
}

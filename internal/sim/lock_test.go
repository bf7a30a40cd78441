package sim

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// The library itself, under faults. Each run has a few hosts with a Client
// each, and two workers on each host, which do with locks whatever the API
// allows, in an order that the seed draws. A judge looks on: it knows at every
// instant of virtual time who believes to hold what.

// The times have no common multiples, or a renewal would fall due in the instant
// in which an earlier one times out, and the scheduler would decide (rule 3).
const (
	lockLease   = 1503 * time.Millisecond // of the watchdog
	lockPoll    = 1009 * time.Millisecond
	lockWaiter  = 1297 * time.Millisecond
	lockCommand = 887 * time.Millisecond // a second copy is sent at half of it
	lockUnlock  = 1193 * time.Millisecond
	longestFix  = 20 * time.Second // fixed leases are at most this long
	longestHold = 4500 * time.Millisecond

	// giveUpWithin is longer than an acquire waits to see itself undone, and
	// shorter than a command takes to time out.
	giveUpWithin = 300 * time.Millisecond
)

// lockNames are the locks of a run. The first is drawn most often.
var lockNames = []string{"stock", "audit:{7}"}

// kind is a type of lock, and how its holds look in Redis.
type kind struct {
	name string
	// open returns the lock, or its two sides.
	open func(c *rlock.Client, name string) (exclusive, shared rlock.Locker)
	// holds reads the counts in Redis.
	holds         func(m contents, lock string) map[hold]string
	queuedInRedis bool // each waiter has a channel of its own
	forgets       bool // a loss of data takes its tokens along
	handsOver     bool // holds are handed over inside a client, under one id
	crowded       bool // more workers
	combined      bool // more workers, whose requests are combined if only two are under way
	enteredOnce   bool // there is no re-entry
	permits       bool // a semaphore: see permits_test.go
	// called is what Redis has instead of a hold id; nil: the id.
	called func(id string) string
	// proclaim has a holder tell something, for the n-th time.
	proclaim func(l rlock.Locker, lease *rlock.Lease, n int) error
	// neighbors: more workers, so that a waiter of the client that releases is often next in the queue in Redis.
	neighbors bool

	several // servers
}

// holdsIn are the holds of a lock, wherever they are.
func (k kind) holdsIn(w *World, lock string) map[hold]string {
	if k.everywhere != nil {
		return k.everywhere(w, lock)
	}
	return k.holds(contentsOf(w, 0), lock)
}

// workers is how many goroutines of a client use locks.
func (k kind) workers() int {
	if k.combined || k.crowded {
		return 9
	}
	if k.neighbors {
		return 3
	}
	return 2
}

// traces are what holds have left behind, if only on some servers.
func (k kind) traces(w *World, lock string) map[hold]string {
	if k.anywhere != nil {
		return k.anywhere(w, lock)
	}
	return k.holdsIn(w, lock)
}

// hold is what Redis has for an owner.
type hold struct {
	owner  string
	shared bool
}

// contents are what a server has at one moment of its clock.
type contents struct {
	*miniredis.Miniredis
	now time.Time
}

func contentsOf(w *World, server int) contents { return contents{w.Redis(server), w.Now(server)} }

func plainHolds(m contents, lock string) map[hold]string {
	holds := map[hold]string{}
	if !m.Exists(lock) {
		return holds // expired: miniredis drops it when it is asked for
	}
	owners, _ := m.HKeys(lock)
	for _, o := range owners {
		holds[hold{o, false}] = m.HGet(lock, o)
	}
	return holds
}

var plainLock = kind{
	name: "lock",
	// Sections are long here, and so is the time for hand-overs.
	open: func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) {
		return c.NewLock(name, rlock.WithHandOver(4, time.Second)), nil
	},
	holds: plainHolds, handsOver: true,
}

// grip is a lease of one side.
type grip struct {
	*rlock.Lease
	shared bool
}

func (g grip) hold() hold { return hold{g.HoldID(), g.shared} }

// scenario is a kind of run.
type scenario struct {
	name   string
	kind   kind // plainLock if there is none
	rates  Rates
	mix    Mix
	faults int
	runs   int      // seeds, if there is time
	found  []uint64 // seeds that went wrong once, for which no test was so good

	scripts  map[string]string        // mutations of the library
	named    bool                     // clients introduce themselves
	heedless bool                     // holders do not look at their leases
	garble   func(cmds []redis.Cmder) // a mutation of what combined requests are told
}

func (s scenario) calm() bool { return s.faults == 0 && s.rates == Rates{} }

var scenarios = []scenario{
	{name: "calm", runs: 10},
	{name: "network", mix: Network, faults: 14, runs: 80},
	{name: "late", rates: Rates{Swallow: 0.1, ResetAfter: 0.1, Late: 1, LateWithin: 6 * time.Second}, runs: 20},
	{name: "harsh", rates: Harsh, mix: Network, faults: 8, runs: 70},
	{name: "everything", rates: Harsh, mix: Everything, faults: 14, runs: 50},
}

// outcome is what one run comes to.
type outcome struct {
	world *World
	stats Stats
	judge *judge
}

// lockRun plays one seed.
func lockRun(t *testing.T, seed uint64, s scenario) (o outcome) {
	if s.kind.name == "" {
		s.kind = plainLock
	}
	over := false
	defer func() {
		if !over { // a panic is on its way, or everybody waits for ever
			fmt.Fprintf(os.Stderr, "%s\ntrace: %s\n", replay(t, seed), o.keep(t))
		}
	}()
	bubble(t, seed, Config{Servers: s.kind.servers, Rates: s.rates}, func(w *World) {
		j := &judge{w: w, s: s, locks: map[string]*verdicts{}, holds: map[*rlock.Lease][]*openHold{}, forgot: make([][]time.Duration, len(w.servers))}
		o = outcome{world: w, judge: j}
		for _, name := range lockNames {
			j.locks[name] = &verdicts{gone: map[hold]int{}}
		}
		var (
			work, bg sync.WaitGroup
			players  []*player
			workers  []*worker
			span     = 8 * time.Second
		)
		for i := range 3 + int(seed%2) {
			p := newPlayer(w, s, string(rune('a'+i)))
			if i == 0 && s.kind.begin != nil {
				w.SetRates(Rates{})
				if err := s.kind.begin(p); err != nil {
					t.Error(err)
				}
				w.SetRates(s.rates)
			}
			players = append(players, p)
			for n := range s.kind.workers() {
				who := fmt.Sprint(p.h.Name, n)
				workers = append(workers, &worker{p, j, who, w.Rand("worker " + who), &bg})
			}
		}
		for _, k := range workers {
			work.Go(func() {
				for w.Elapsed() < span {
					k.h.Sleep(k.who, k.between(0, 50*time.Millisecond))
					k.turn()
				}
			})
		}
		for _, f := range s.schedule(w, span) {
			w.Play([]Fault{f})
			j.say("fault: %v", f)
			if i := f.Server % len(w.servers); f.Kind == Lose {
				j.forgot[i] = append(j.forgot[i], w.Elapsed())
			}
		}
		time.Sleep(max(0, span-w.Elapsed())) // the rates stay until then
		w.Heal()
		j.say("healed")
		healed := w.Elapsed()
		work.Wait()
		for _, p := range players {
			j.given += int(p.given.Load())
		}
		if late := w.Elapsed() - max(healed, span); late > time.Minute {
			j.accuse("the workers came to an end only %v after the faults", late)
		}
		j.say("all have left")
		after(w, j, s, players, workers, healed)
		bg.Wait()
		for _, p := range players {
			j.combined += int(p.combined.Load())
		}
		o.stats = w.Stats()
	})
	over = true
	return o
}

func TestLockKeepsItsPromises(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.play(t, ordinary(s.runs), func(sum *judge) bool {
				return sum.extended > 0 && (s.faults == 0 || sum.unreachable > 0 && sum.lost > 0)
			})
		})
	}
}

func TestSameSeedSameLockRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for i, s := range append(slices.Clone(scenarios), repeatable("everything")...) {
		few, runs := 1, 2
		if thorough() {
			runs = 3
		}
		if i >= len(scenarios) {
			if !thorough() && (i%3 > 0 || brief()) {
				continue
			}
		} else if thorough() {
			few = 4
		}
		for seed := range uint64(min(lockSeeds(few), 50)) {
			var first outcome
			for run := range runs {
				runtime.GOMAXPROCS(1 + run%2)
				o := lockRun(t, seed+1, s)
				if run == 0 {
					first = o
				} else if o.world.Digest() != first.world.Digest() || o.stats != first.stats {
					t.Errorf("%s %s, seed %d: run %d differs: %s", s.kind.name, s.name, seed+1, run, firstDifference(first.world.Trace(), o.world.Trace()))
				}
			}
		}
	}
}

//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/check"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// everybody is whom the faults of servers hit, in the log.
const everybody = "all"

// arena has the processes and servers of a run.
type arena struct {
	t      *testing.T
	top    *topology
	d      *deployment
	dir    string
	broken string
	log    *check.Log // of faults
	store  check.Registers
	addr   string // of the registers
	teams  []*team
	starts int
	denied []string       // what servers have refused to users
	late   sync.WaitGroup // copies of requests that are under way
}

// team is a process, and those that follow it when it is killed, with a proxy to each node.
type team struct {
	*locktest.Child
	name  string
	links []*link
}

// link is the way of a process to a node.
type link struct {
	*faultproxy.Proxy
	sent  atomic.Int64 // requests
	lost  atomic.Int64 // requests that a cut has swallowed: the greeting of a new connection, often
	isCut atomic.Bool
	delay atomic.Int64 // of each request, in nanoseconds
	rule  atomic.Int64 // what happens to each third script: a faultproxy.Action
	hurt  atomic.Int64 // scripts that it happened to

	mu     sync.Mutex // guards the rest
	copies []faultproxy.Command
}

// copied is the rule that a copy of a request runs later.
const copied = -1

func newLink(t *testing.T, addr string) *link {
	l := &link{Proxy: faultproxy.New(t, addr)}
	isScript := func(c faultproxy.Command) bool { return strings.HasPrefix(c.Name, "eval") }
	l.Delay(func(c faultproxy.Command) time.Duration {
		if l.isCut.Load() {
			l.lost.Add(1)
		}
		if l.sent.Add(1)%256 == 0 {
			l.ResetLog() // or it would grow
		}
		return time.Duration(l.delay.Load())
	})
	var scripts atomic.Int64
	l.Handle(func(c faultproxy.Command) faultproxy.Action {
		rule := l.rule.Load()
		if rule == int64(faultproxy.Pass) || !isScript(c) || scripts.Add(1)%3 != 0 {
			return faultproxy.Pass
		}
		l.hurt.Add(1)
		if rule == copied {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.copies = append(l.copies, c)
			return faultproxy.Pass
		}
		return faultproxy.Action(rule)
	})
	return l
}

func newArena(t *testing.T, top *topology, seed uint64, broken string) *arena {
	t.Helper()
	a := &arena{t: t, top: top, dir: t.TempDir(), broken: broken}
	registers := redistest.Start(t)
	a.addr, a.store.Store = registers.Addr(), registers.Client()
	a.d = top.start(t)
	if a.d.ways == nil {
		for _, node := range a.d.nodes {
			a.d.ways = append(a.d.ways, way{node.Addr(), node.Addr()})
		}
	}
	var err error
	if a.log, err = check.NewLog(a.dir, "faults"); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range processes {
		one := &team{}
		for _, way := range a.d.ways {
			one.links = append(one.links, newLink(t, way.addr))
		}
		a.teams = append(a.teams, one)
		a.start(one, rnd.Uint64())
	}
	for _, one := range a.teams {
		one.Report("works")
	}
	return a
}

// start starts the next process of a team.
func (a *arena) start(one *team, seed uint64) {
	a.starts++
	one.name = fmt.Sprint("p", a.starts)
	var ways []string
	for i, l := range one.links {
		ways = append(ways, a.d.ways[i].name+"="+l.Addr())
	}
	one.Child = locktest.StartChild(a.t, "works", a.addr, a.dir, one.name, fmt.Sprint(seed), a.top.name, a.broken, strings.Join(ways, ","), a.d.sentinels)
}

// play lets faults of clients and of servers happen, side by side, for that long and until each has happened once.
func (a *arena) play(seed uint64, d time.Duration) {
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	lane := func(stream uint64, faults []string, strike func(*rand.Rand, string)) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, stream))
			for first := true; first || time.Now().Before(end); first = false {
				for _, i := range rnd.Perm(len(faults)) {
					a.rest(rnd, a.top.lease/20, a.top.lease/4)
					strike(rnd, faults[i])
					if !first && time.Now().After(end) {
						return
					}
				}
			}
		})
	}
	lane(2, a.clientFaults(), a.strikeClient)
	lane(3, a.top.faults, a.strikeServer)
	wg.Wait()
	a.late.Wait()
	if a.t.Failed() {
		a.t.FailNow() // a lane may have ended before its time
	}
}

// rest sleeps for a time that is drawn.
func (a *arena) rest(rnd *rand.Rand, least, most time.Duration) {
	time.Sleep(least + time.Duration(rnd.Int64N(int64(most-least))))
}

// clientFaults are those that fit the topology.
func (a *arena) clientFaults() []string {
	faults := []string{"kill", "stop", "cut", "reset", "delay", "lose replies", "duplicate", "late copies"}
	if len(a.d.ways) > 1 {
		faults = append(faults, "cut from some nodes")
	}
	return faults
}

// strikeClient lets a fault happen to a process, or on its way to the servers.
func (a *arena) strikeClient(rnd *rand.Rand, fault string) {
	one := a.teams[rnd.IntN(len(a.teams))]
	over := a.log.Call(check.Operation{Do: check.Fault, Key: one.name, Value: fault})
	before, most := sum(one.links, (*link).requests), a.top.lease*13/10
	hit := func() bool { return sum(one.links, (*link).requests) > before }
	switch fault {
	case "kill":
		one.Kill()
		a.start(one, rnd.Uint64())
		one.Report("works")
		hit = func() bool { return before > 0 }
	case "stop":
		one.Signal(syscall.SIGSTOP)
		a.rest(rnd, most, 2*most) // a hold is lost
		one.Signal(syscall.SIGCONT)
		hit = func() bool { return before > 0 }
	case "reset":
		for _, l := range one.links {
			l.ResetAll()
		}
		hit = func() bool { return before > 0 }
	case "cut":
		hit = a.cut(rnd, one.links)
	case "cut from some nodes":
		some := slices.Clone(one.links)
		rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		hit = a.cut(rnd, some[:1+rnd.IntN(len(some)-1)])
	case "delay":
		for _, l := range one.links { // by a different time for each node
			l.delay.Store(rnd.Int64N(int64(most)))
		}
		a.rest(rnd, most/4, most/2)
		for _, l := range one.links {
			l.delay.Store(0)
		}
		time.Sleep(most) // until the last has run
	default:
		hit = a.rule(rnd, one.links, fault)
	}
	over(outcome(hit()))
}

// cut ends when it has swallowed something, too.
func (a *arena) cut(rnd *rand.Rand, links []*link) (hit func() bool) {
	before := sum(links, (*link).swallowed)
	for _, l := range links {
		l.isCut.Store(true)
		l.Blackhole(true)
	}
	hit = func() bool { return sum(links, (*link).swallowed) > before }
	a.rest(rnd, a.top.lease/2, a.top.lease*13/10)
	a.await(hit)
	for _, l := range links {
		l.Blackhole(false)
		l.isCut.Store(false)
	}
	return hit
}

// await lets a fault last until it has hit, within reason: the process may wait for a server that is stopped.
func (a *arena) await(hit func() bool) {
	for began := time.Now(); !hit() && time.Since(began) < 3*a.top.lease; time.Sleep(a.top.lease / 50) {
	}
}

// rule lets something happen to each third script for a while. A lost reply ends its connection: a later one would be
// taken for it.
func (a *arena) rule(rnd *rand.Rand, links []*link, fault string) (hit func() bool) {
	rules := map[string]int64{"lose replies": int64(faultproxy.ResetAfter), "duplicate": int64(faultproxy.Duplicate), "late copies": copied}
	before := sum(links, (*link).harmed)
	for _, l := range links {
		l.rule.Store(rules[fault])
	}
	a.rest(rnd, a.top.lease/4, a.top.lease/2)
	hit = func() bool { return sum(links, (*link).harmed) > before }
	a.await(hit)
	for _, l := range links {
		l.rule.Store(int64(faultproxy.Pass))
		a.replay(rnd, l)
	}
	return hit
}

// replay runs copies of requests, after a while.
func (a *arena) replay(rnd *rand.Rand, l *link) {
	l.mu.Lock()
	copies := l.copies
	l.copies = nil
	l.mu.Unlock()
	for _, c := range copies[:min(20, len(copies))] {
		after := time.Duration(rnd.Int64N(int64(a.top.lease)))
		a.late.Go(func() {
			time.Sleep(after)
			_ = l.Replay(c) // the server may be down
		})
	}
}

func (l *link) requests() int64  { return l.sent.Load() }
func (l *link) swallowed() int64 { return l.lost.Load() }
func (l *link) harmed() int64    { return l.hurt.Load() }

// sum adds up a counter of links.
func sum(links []*link, counter func(*link) int64) (n int64) {
	for _, l := range links {
		n += counter(l)
	}
	return n
}

// outcome is OK for a fault that has hit, and Refused for one that nobody can have noticed.
func outcome(hit bool) check.Operation {
	if hit {
		return check.Operation{Out: check.OK}
	}
	return check.Operation{Out: check.Refused}
}

// strikeServer lets a fault happen to servers. It has hit if a process has sent anything to them meanwhile, or before.
func (a *arena) strikeServer(rnd *rand.Rand, fault string) {
	before := a.sent()
	over := a.log.Call(check.Operation{Do: check.Fault, Key: everybody, Value: fault})
	if special := a.d.faults[fault]; special != nil {
		special(a, rnd)
	} else {
		a.strikeNodes(rnd, fault)
	}
	if a.d.settle != nil {
		a.d.settle()
	}
	a.await(func() bool { return a.sent() > before })
	over(outcome(a.sent() > before))
}

// strikeNodes lets something happen to some nodes.
func (a *arena) strikeNodes(rnd *rand.Rand, fault string) {
	nodes := a.some(rnd)
	switch fault {
	case "server stops", "servers stop":
		for _, s := range nodes {
			s.Pause()
		}
		a.rest(rnd, a.top.lease/8, a.top.lease*13/10)
		for _, s := range nodes {
			s.Resume()
		}
	case "clocks jump":
		a.jump(rnd)
	case "restart with data":
		a.restart(rnd, nodes, func(*redistest.Server) {})
	case "restart without data":
		a.restart(rnd, nodes, (*redistest.Server).Wipe)
	case "restart with old data":
		for _, s := range nodes {
			command(a.t, s, "save")
		}
		a.rest(rnd, a.top.lease/4, a.top.lease)
		a.restart(rnd, nodes, func(*redistest.Server) {})
		for _, s := range nodes {
			s.Wipe() // the next restart is to be one without data
		}
	case "flush":
		if quorum := len(a.d.nodes)/2 + 1; len(nodes) < quorum {
			nodes = a.d.nodes[:quorum]
		}
		for _, s := range nodes {
			command(a.t, s, "flushall")
		}
		a.rest(rnd, a.top.lease/4, a.top.lease/2) // it is noticed
	default:
		panic("no fault " + fault)
	}
}

// some are mostly one or two of the nodes, and sometimes all, or all but one.
func (a *arena) some(rnd *rand.Rand) []*redistest.Server {
	n := min(1+rnd.IntN(2), len(a.d.nodes))
	if rnd.IntN(3) == 0 {
		n = len(a.d.nodes) - rnd.IntN(min(2, len(a.d.nodes)))
	}
	nodes := slices.Clone(a.d.nodes)
	rnd.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes[:n]
}

// longestJump is that of a wrong time zone.
const longestJump = 3 * time.Hour

// jump sets the clocks of fewer servers than a quorum, and then sets them right. One server alone would keep what a dead
// holder has left for as long as its clock was ahead: there a jump is short.
func (a *arena) jump(rnd *rand.Rand) {
	n := max(1, (len(a.d.clocks)-1)/2)
	for range n {
		most := []time.Duration{a.top.lease / 4, 3 * a.top.lease, longestJump}[rnd.IntN(min(3, 1+len(a.d.clocks)))]
		a.d.clocks[rnd.IntN(len(a.d.clocks))].SetClock(time.Duration((2*rnd.Float64() - 1) * float64(most)))
	}
	a.rest(rnd, a.top.lease/2, a.top.lease)
	for _, s := range a.d.clocks {
		s.SetClock(0)
	}
}

// sent are the requests of all processes.
func (a *arena) sent() (requests int64) {
	for _, one := range a.teams {
		requests += sum(one.links, (*link).requests)
	}
	return requests
}

// restart kills servers and starts them again, after what is done to their files.
func (a *arena) restart(rnd *rand.Rand, nodes []*redistest.Server, files func(*redistest.Server)) {
	for _, s := range nodes {
		a.kill(s)
		files(s)
	}
	a.rest(rnd, 0, a.top.lease/2)
	for _, s := range nodes {
		s.Restart()
	}
	a.rest(rnd, a.top.lease/4, a.top.lease/2) // it is noticed
}

// kill kills a server, when it is known what it has refused to users: its process alone has that.
func (a *arena) kill(s *redistest.Server) {
	a.readDenials(s)
	s.Kill()
}

// readDenials adds what a server has refused to users since it was started.
func (a *arena) readDenials(s *redistest.Server) {
	// A machine that is busy with others may let it wait for long.
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), DialTimeout: locktest.Patience, ReadTimeout: locktest.Patience})
	defer rdb.Close()
	entries, err := rdb.Do(bg, "acl", "log").Slice()
	if err != nil {
		a.t.Errorf("acl log of %s: %v", s.Addr(), err)
	}
	for _, entry := range entries {
		a.denied = append(a.denied, fmt.Sprintf("denied: %v", entry))
	}
}

// command sends one to a server, past all proxies.
func command(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	if err := rdb.Do(bg, args...).Err(); err != nil {
		t.Errorf("%v at %s: %v", args, s.Addr(), err)
	}
}

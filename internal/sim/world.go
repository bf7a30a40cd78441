package sim

import (
	"bufio"
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	mserver "github.com/alicebob/miniredis/v2/server"
)

// spread is how far apart waiters for one event go on (rule 3).
const spread = 100 * time.Microsecond

// Config describes a World. The zero Config is one server and no faults.
type Config struct {
	Servers int // default 1
	Rates   Rates
}

// World is one simulated deployment: servers, hosts and the network between
// them. It must be made, used and closed in one synctest bubble.
type World struct {
	Seed    uint64
	start   time.Time
	servers []*server

	mu     sync.Mutex // guards all below; never held while waiting
	hosts  []*Host
	links  map[string]*link
	rates  Rates
	stats  Stats
	lost   time.Time // when a server last lost its data, or its clock jumped ahead
	trace  []event
	closed bool
}

// Stats counts what happened. A fault that a test relies on should be counted
// there: one that never fires proves nothing.
type Stats struct {
	Requests int // that reached a server, late copies and repetitions included

	Swallowed, ResetsBefore, ResetsAfter int
	Again                                int // answered requests that ran twice
	LateCopies                           int // requests that ran after their reply was lost ...
	OnlyLate                             int // ... and were due to run only then; a subset unless a server was down
	DroppedMessages, Deafened            int
	Stalls                               int

	Pauses, Partitions, Slows, Resets int
	Restarts, Losses, Freezes, Jumps  int
	Leaps                             int // of the jumps: those ahead, which end what has a TTL too early
}

// event is one request that reached a server.
type event struct {
	at  time.Duration
	who string
	seq int
	b   []byte
}

// New makes a World. Its clock starts with the call.
func New(seed uint64, cfg Config) *World {
	w := &World{Seed: seed, start: time.Now(), links: map[string]*link{}}
	w.SetRates(cfg.Rates)
	for i := range max(1, cfg.Servers) {
		w.servers = append(w.servers, newServer(w, i))
	}
	return w
}

// Host adds a client machine.
func (w *World) Host(name string) *Host {
	h := &Host{Name: name, w: w, dials: map[int]int{}, cut: map[int]time.Time{}, far: map[int]time.Duration{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = append(w.hosts, h)
	return h
}

// Now is the time by the clock of the i-th server.
func (w *World) Now(i int) time.Time { return w.servers[i].now() }

// Redis is the i-th server, for inspection. What a test does to it is not
// part of the trace.
func (w *World) Redis(i int) *miniredis.Miniredis { return w.servers[i].redis }

// Start is when the World was made.
func (w *World) Start() time.Time { return w.start }

// Elapsed is the virtual time since Start.
func (w *World) Elapsed() time.Duration { return time.Since(w.start) }

// Rates returns the chances of faults to single requests.
func (w *World) Rates() Rates {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rates
}

// SetRates changes them for requests sent from now on.
func (w *World) SetRates(r Rates) {
	r.LateWithin = cmp.Or(r.LateWithin, 4*time.Second)
	r.StallFor = cmp.Or(r.StallFor, 4*time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rates = r
}

// Stats returns what happened so far.
func (w *World) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// LastLoss is when a server last lost its data, or its clock jumped ahead, which ends holds as well; zero:
// none has.
func (w *World) LastLoss() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Heal sets all rates to zero and returns when the last pause, partition and
// outage is over. A test that asks whether everybody gets on in the end does so
// after it. Late copies and half-dead connections of before remain.
func (w *World) Heal() {
	w.SetRates(Rates{})
	w.mu.Lock()
	hosts := slices.Clone(w.hosts)
	w.mu.Unlock()
	var t time.Time
	for _, h := range hosts {
		t = latest(t, h.healthyAt())
	}
	for _, s := range w.servers {
		t = latest(t, s.healthyAt())
	}
	time.Sleep(time.Until(t) + 2*spread)
}

// Close ends the run. All clients are closed already; it waits for what they
// still do in the background, and for late copies (rule 5).
func (w *World) Close() {
	time.Sleep(5 * time.Second)
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	for _, s := range w.servers {
		s.redis.Close()
	}
}

// Rand returns a stream of random numbers that depends on the seed and the name
// only. Each caller draws by a name that no other has (rule 2).
func (w *World) Rand(name string) *rand.Rand {
	return rand.New(rand.NewPCG(w.Seed, hash(name)))
}

// unit is a number in [0,1) for something that happens to who at t. It has no
// state, so goroutines can draw in any order.
func (w *World) unit(who string, t time.Time) float64 {
	p := rand.NewPCG(w.Seed^hash(who), uint64(t.Sub(w.start)))
	p.Uint64()
	return float64(p.Uint64()>>11) / (1 << 53)
}

func (w *World) chance(rate float64, who string, t time.Time) bool {
	return rate > 0 && w.unit(who, t) < rate
}

// offset is how much later than the others who notices an event.
func (w *World) offset(who string) time.Duration {
	return time.Duration(w.unit(who, w.start) * float64(spread))
}

func hash(s string) uint64 {
	f := fnv.New64a()
	io.WriteString(f, s)
	return f.Sum64()
}

func (w *World) count(f func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.stats)
}

func (w *World) record(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Requests++
	w.trace = append(w.trace, e)
}

// events returns the trace in an order that does not depend on the scheduler:
// requests on different connections may arrive at one instant.
func (w *World) events() []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	order := func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.who, b.who), cmp.Compare(a.seq, b.seq))
	}
	if !slices.IsSortedFunc(w.trace, order) {
		slices.SortFunc(w.trace, order)
	}
	return slices.Clone(w.trace)
}

// Trace lists every request that reached a server: virtual time, connection
// ("a>0#3" is the third of host a to server 0, "p" stands for pub/sub and "~"
// for a late copy), number on the connection, and the request.
func (w *World) Trace() []string {
	var out []string
	for _, e := range w.events() {
		out = append(out, fmt.Sprintf("%v %s %d %q", e.at, e.who, e.seq, strings.Join(words(e.b), " ")))
	}
	return out
}

// Digest identifies the run: it is equal for two runs if and, chances apart,
// only if their traces are.
func (w *World) Digest() uint64 {
	f := fnv.New64a()
	for _, e := range w.events() {
		fmt.Fprintln(f, int64(e.at), e.who, e.seq, len(e.b))
		f.Write(e.b)
	}
	return f.Sum64()
}

// runLate runs a request once more, or for the first time, when its caller has
// long seen it fail. It comes over a connection of its own, in database 0.
func (w *World) runLate(l *link, r late) {
	time.AfterFunc(r.after, func() {
		w.mu.Lock()
		over := w.closed
		w.mu.Unlock()
		if over || l.server.isDown() {
			return
		}
		w.count(func(s *Stats) { s.LateCopies++ })
		l.mu.Lock()
		l.seq++
		seq := l.seq
		l.mu.Unlock()
		w.record(event{at: w.Elapsed(), who: l.name + "~", seq: seq, b: encode(r.words)})
		l.server.run(r.words...)
	})
}

func (w *World) remember(l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links[l.name] = l
}

func (w *World) forget(l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.links, l.name)
}

// established lists the connections that their servers have open, in a fixed
// order.
func (w *World) established() []*link {
	w.mu.Lock()
	defer w.mu.Unlock()
	ls := make([]*link, 0, len(w.links))
	for _, l := range w.links {
		ls = append(ls, l)
	}
	slices.SortFunc(ls, func(a, b *link) int { return cmp.Compare(a.name, b.name) })
	return ls
}

func (w *World) serverAt(address string) *server {
	for _, s := range w.servers {
		if s.addr == address {
			return s
		}
	}
	return nil
}

// server is one Redis.
type server struct {
	w     *World
	index int
	addr  string
	redis *miniredis.Miniredis
	srv   *mserver.Server

	mu      sync.Mutex    // guards all below; never held while waiting
	down    time.Time     // refuses connections until then
	frozen  time.Time     // takes no requests until then
	ahead   time.Duration // of its clock before the others'
	process int           // how often it has restarted
}

func newServer(w *World, i int) *server {
	// An address, not a name: go-redis looks names up, and a bubble has no DNS.
	s := &server{w: w, index: i, addr: fmt.Sprintf("192.0.2.%d:6379", i+1), redis: miniredis.NewMiniRedis()}
	s.redis.Seed(int(w.Seed) + i)
	s.redis.ClockTTL(true)   // keys expire by the bubble's clock
	c, err := s.redis.Dial() // starts the server without a listener
	if err != nil {
		panic(err)
	}
	c.Close()
	s.srv = s.redis.Server()
	s.srv.SetPreHook(s.answers)
	return s
}

// answers replies to what miniredis cannot, in scripts too: TIME, of a clock that
// may have jumped, and what INFO says of a process.
func (s *server) answers(c *mserver.Peer, cmd string, args ...string) bool {
	s.mu.Lock()
	now, process := time.Now().Add(s.ahead), s.process
	s.mu.Unlock()
	switch {
	case cmd == "TIME":
		us := now.UnixMicro()
		c.WriteLen(2)
		c.WriteBulk(strconv.FormatInt(us/1e6, 10))
		c.WriteBulk(strconv.FormatInt(us%1e6, 10))
	case cmd == "INFO" && len(args) == 1 && args[0] == "server":
		c.WriteBulk(fmt.Sprintf("# Server\r\nrun_id:%036x%04x\r\n", s.index, process))
	case cmd == "INFO" && len(args) == 1 && args[0] == "memory":
		c.WriteBulk("# Memory\r\nmaxmemory_policy:noeviction\r\n")
	default:
		return false
	}
	return true
}

// now is the time by its clock.
func (s *server) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead)
}

// run executes a request on a connection of its own and drops the reply.
func (s *server) run(words ...string) {
	p := mserver.NewPeer(bufio.NewWriter(io.Discard))
	s.srv.Dispatch(p, words)
	p.Flush()
}

func (s *server) until(t *time.Time, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*t = latest(*t, time.Now().Add(d))
}

func (s *server) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.down)
}

func (s *server) thawsAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

func (s *server) healthyAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return latest(s.down, s.frozen)
}

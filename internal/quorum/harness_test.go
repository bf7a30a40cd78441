package quorum

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // they wait half of the time; with more, nodes answer late under the race detector
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // each script that miniredis runs makes a Lua state of 80 kB
	}
	goleak.VerifyTestMain(redistest.Run{Tests: m})
}

var bg = context.Background()

// budget is what calls are given here, and nodeTimeout what a node is: a busy machine
// answers within it.
const (
	budget      = 20 * time.Second
	nodeTimeout = 3 * time.Second
	lease       = time.Minute
)

var loaded = sync.OnceValue(func() protocol.Scripts {
	s, err := protocol.Load(os.DirFS("../.."), nil)
	if err != nil {
		panic(err)
	}
	return s
})

// server is one node: a server, and a proxy in front of it.
type server struct {
	addr  string
	proxy *faultproxy.Proxy
	rdb   *redis.Client // past the proxy
}

// miniServers starts n servers.
func miniServers(t *testing.T, n int) (all []*server) {
	for range n {
		all = append(all, newServer(t, miniredis.RunT(t).Addr()))
	}
	return all
}

func newServer(t *testing.T, addr string) *server {
	s := &server{addr: addr, proxy: faultproxy.New(t, addr), rdb: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() { s.rdb.Close() })
	return s
}

// home is a client with the nodes of a lock.
type home struct {
	*Lock
	t       *testing.T
	servers []*server

	mu       sync.Mutex
	cleanUps []cleanUp
	closed   []bool // by node: its client does nothing any more
}

// cleanUp is what a client was asked to repeat.
type cleanUp struct {
	by   int // node
	task protocol.Task
}

type events struct{}

func (events) Retried(context.Context, string, error) {}
func (events) Unpublished(error)                      {}

var clients atomic.Int64

// join makes a client, and its lock on all servers. edit changes the configuration.
func join(t *testing.T, servers []*server, edit ...func(*Config)) *home {
	t.Helper()
	h := &home{t: t, servers: servers, closed: make([]bool, len(servers))}
	stock := &protocol.Names{}
	if err := stock.Derive("stock"); err != nil {
		t.Fatal(err)
	}
	var serial atomic.Int64
	client := clients.Add(1)
	cfg := Config{
		Names: stock, Quorum: len(servers)/2 + 1, NodeTimeout: nodeTimeout, CommandTimeout: budget, LongestPoll: time.Second,
		Scripts: loaded(), Ballots: &Ballots{}, WatchdogLease: lease, LongestLease: lease,
		NewID: func() protocol.HoldID {
			n := serial.Add(1)
			return protocol.HoldID{ID: fmt.Sprintf("client-%d:%d", client, n), Number: n}
		},
		Validity: func(lease time.Duration) time.Duration { return lease },
	}
	for _, e := range edit {
		e(&cfg)
	}
	var nodes []Node
	for i, s := range servers {
		rdb := redis.NewClient(&redis.Options{Addr: s.proxy.Addr(), DialTimeout: nodeTimeout, ReadTimeout: cfg.NodeTimeout, MaxRetries: -1})
		d, err := wire.Open(rdb, wire.Config{
			Clock: seam.SystemClock{}, CommandTimeout: budget, UnlockTimeout: budget, LongestCall: budget, Publish: wire.PublishAuto, Events: events{},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			d.Stop()
			rdb.Close()
			ctx, cancel := context.WithTimeout(bg, budget)
			defer cancel()
			if err := d.Wait(ctx); err != nil {
				t.Error("something is under way still")
			}
		})
		nodes = append(nodes, Node{
			Wire: d, Name: fmt.Sprint("node ", i+1), Calls: &wire.Tally{}, Knowledge: &Knowledge{},
			Listen: func(string, func()) func() { return nil },
			CleanUp: func(task protocol.Task, _, _ time.Time) bool {
				h.mu.Lock()
				defer h.mu.Unlock()
				if !h.closed[i] {
					h.cleanUps = append(h.cleanUps, cleanUp{i, task})
				}
				return !h.closed[i]
			},
		})
	}
	l, err := New(nodes, cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.Lock = l
	return h
}

// entry is what an acquire begins with.
func (h *home) entry() *protocol.Acquire {
	return &protocol.Acquire{HoldID: h.NewID(), Lease: lease, Tries: 1}
}

// look looks once.
func (h *home) look(e *protocol.Acquire) protocol.Result[protocol.Entered] {
	return h.Enter(e).Do(bg, budget)
}

// mustEnter acquires, and returns the id of the hold and its token.
func (h *home) mustEnter() (id string, token int64) {
	h.t.Helper()
	e := h.entry()
	got := h.look(e)
	if got.Err != nil || got.Outcome.Verdict != protocol.Granted {
		h.t.Fatalf("not granted: %+v", got)
	}
	return e.ID, got.Outcome.Token
}

func (h *home) mustRelease(id string) {
	h.t.Helper()
	if got := h.Release(id, 0).Do(bg, budget); got.Err != nil || got.Outcome != protocol.Done {
		h.t.Fatalf("%+v", got)
	}
}

// missed takes the clean-ups that were asked for since the last call.
func (h *home) missed() []cleanUp {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.cleanUps
	h.cleanUps = nil
	slices.SortFunc(all, func(a, b cleanUp) int { return cmp.Compare(a.by, b.by) })
	return all
}

// settled waits until nothing is under way that a shutdown waits for.
func (h *home) settled() {
	h.t.Helper()
	for _, n := range h.nodes {
		if err := n.Calls.Wait(bg); err != nil {
			h.t.Fatal(err)
		}
	}
}

// votes says whom each node votes for: "client-1:1 - -".
func (h *home) votes() string {
	h.t.Helper()
	var all []string
	for _, s := range h.servers {
		all = append(all, cmp.Or(s.rdb.HGet(bg, h.record, "attempt").Val(), "-"))
	}
	return strings.Join(all, " ")
}

// tombstones says for how many holds each node keeps one.
func (h *home) tombstones() (all []int) {
	for _, s := range h.servers {
		all = append(all, len(s.rdb.Keys(bg, "*:rlock:gone:*").Val()))
	}
	return all
}

// counters are those of the lock on each node.
func (h *home) counters() (all []int64) {
	for _, s := range h.servers {
		n, _ := s.rdb.Get(bg, h.counter).Int64()
		all = append(all, n)
	}
	return all
}

// warm has the servers know the scripts, and the connections be there.
func (h *home) warm() {
	h.t.Helper()
	for range 2 {
		id, _ := h.mustEnter()
		h.quiet()
		if got := h.Renew(id, lease).Do(bg, budget); got.Err != nil {
			h.t.Fatal(got.Err)
		}
		h.quiet()
		h.mustRelease(id)
		h.settled()
	}
	for _, s := range h.servers {
		s.rdb.Del(bg, h.record)
	}
}

// quiet waits until all nodes have answered what they were asked, and that was noted.
func (h *home) quiet() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(bg, budget)
	defer cancel()
	if err := h.home().Wire.Wait(ctx); err != nil {
		h.t.Fatal(err)
	}
}

// on has a node do something with each run of a script. met waits until it has been done: a
// request that a call does not wait for may come to the node after the call.
func (h *home) on(node int, script string, action faultproxy.Action) (met func()) {
	sha := loaded()["quorum/"+script].SHA()
	var n atomic.Int64
	h.servers[node].proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(sha) {
			n.Add(1)
			return action
		}
		return faultproxy.Pass
	})
	return func() {
		h.t.Helper()
		eventually(h.t, fmt.Sprintf("node %d is asked for %s", node+1, script), func() bool { return n.Load() > 0 })
	}
}

func (h *home) pass() {
	for _, s := range h.servers {
		s.proxy.Handle(nil)
	}
}

// patience is how long these nodes have to be silent to be named as such: it depends on how fast they have been.
func (h *home) patience(nodes ...int) time.Duration {
	longest := protocol.GiveUpGrace
	for _, i := range nodes {
		longest = max(longest, h.nodes[i].Wire.Patience())
	}
	return longest
}

// eventually waits for something.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(budget); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// fixedClock stands still.
type fixedClock struct {
	seam.SystemClock
	now time.Time
}

func (c fixedClock) Now() time.Time { return c.now }

// shiftedClock is ahead of the time by what it was told.
type shiftedClock struct {
	seam.SystemClock
	by atomic.Int64
}

func (c *shiftedClock) Now() time.Time { return c.SystemClock.Now().Add(time.Duration(c.by.Load())) }

package quorum

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/redistest"
)

// longest is the longest lease here, and how long a quarantine takes at least.
const longest = 12 * time.Second

func quarantined(c *Config) {
	c.Quarantine, c.LongestLease, c.WatchdogLease = true, longest, longest
	c.DriftFactor, c.DriftFloor = 0.01, 2*time.Millisecond
	c.NodeTimeout = longest / 6
}

// tries is one look with a lease that a quarantine allows.
func (h *home) tries(wait bool) (id string, got protocol.Result[protocol.Entered]) {
	e := h.entry()
	e.Lease, e.Wait = longest, wait
	got = h.look(e)
	return e.ID, got
}

// enters looks until it has the lock: on a busy machine a request is under way for too
// long now and then.
func (h *home) enters() (id string, token int64) {
	h.t.Helper()
	eventually(h.t, "the lock is held", func() bool {
		tried, got := h.tries(false)
		id, token = tried, got.Outcome.Token
		return got.Err == nil && got.Outcome.Verdict == protocol.Granted
	})
	return id, token
}

// bootstraps lets a new deployment vote.
func (h *home) bootstraps() {
	h.t.Helper()
	if err := h.Bootstrap(bg); err != nil {
		h.t.Fatal(err)
	}
}

func realServers(t *testing.T, n int) (all []*server, processes []*redistest.Server) {
	redistest.Need(t)
	processes = redistest.StartMasters(t, n)
	for _, p := range processes {
		all = append(all, newServer(t, p.Addr()))
	}
	return all, processes
}

func TestNewDeploymentIsInQuarantineUntilBootstrap(t *testing.T) {
	t.Parallel()
	servers, _ := realServers(t, 3)
	h := join(t, servers, quarantined)
	if h.Margin() != longest/60*2+longest/30 || h.LongestLease() != longest {
		t.Errorf("margin %v, longest lease %v", h.Margin(), h.LongestLease())
	}
	for _, waits := range []bool{false, true} {
		_, got := h.tries(waits)
		if got.Outcome.Verdict != protocol.Busy || got.Outcome.Known || got.Outcome.Rest <= 0 || got.Outcome.Rest > 2*longest {
			t.Errorf("waits: %v: nobody has the lock, and it is known when to look again: %+v", waits, got)
		}
		if why := got.Outcome.Votes; !regexp.MustCompile("^(1 of 3 nodes is|[23] of 3 nodes are) in quarantine for [0-9]").MatchString(why) {
			t.Errorf("a waiter is told %q", why)
		}
	}
	h.bootstraps()
	id, _ := h.enters()
	h.mustRelease(id)
	h.settled()
	if err := h.Bootstrap(bg); err != nil {
		t.Errorf("all may vote already: %v", err)
	}
}

// A node that has lost its data does not vote for the longest lease, and then with a
// counter that is not below the tokens of before.
func TestRestartedNodeIsAdmittedAfterTheLongestLease(t *testing.T) {
	t.Parallel()
	servers, processes := realServers(t, 3)
	h := join(t, servers, quarantined)
	h.bootstraps()
	var token int64
	for range 5 {
		var id string
		id, token = h.enters()
		h.mustRelease(id)
	}
	h.settled()
	processes[2].Kill()
	processes[2].Wipe()
	processes[2].Restart()
	began := time.Now()
	eventually(t, "the node is known to have restarted", func() bool {
		return errors.Is(h.Bootstrap(bg), ErrInvalidArgument) // this is no new deployment
	})
	for time.Since(began) < longest-100*time.Millisecond {
		id, next := h.enters()
		if next <= token {
			t.Fatalf("token %d after %d", next, token)
		}
		token = next
		h.quiet()
		if votes := h.votes(); time.Since(began) < longest && !strings.HasSuffix(votes, " -") {
			t.Fatalf("the node votes after %v: %s", time.Since(began), votes)
		}
		h.mustRelease(id)
		h.settled()
		time.Sleep(50 * time.Millisecond)
	}
	eventually(t, "the node votes again", func() bool {
		id, next := h.enters()
		if next <= token {
			t.Fatalf("token %d after %d", next, token)
		}
		token = next
		h.quiet()
		voted := strings.HasSuffix(h.votes(), " "+id)
		h.mustRelease(id)
		h.settled()
		return voted
	})
	if highest, _ := servers[2].rdb.Get(bg, keyHighest).Int64(); highest < token-2 {
		t.Errorf("the node counts from %d, the last token was %d", highest, token)
	}
}

// A voter that has come back without its data has forgotten its vote, but can have voted for no
// other hold since: the hold has lasted.
func TestReleaseCountsVotersInQuarantine(t *testing.T) {
	t.Parallel()
	servers, _ := realServers(t, 5)
	for _, s := range servers {
		s.proxy.ErrorText = "-ERR refused"
	}
	h := join(t, servers, quarantined, func(c *Config) {
		c.LongestLease, c.WatchdogLease, c.NodeTimeout = lease, lease, nodeTimeout
	})
	h.bootstraps()
	hold := func(refuse ...int) string {
		for _, i := range refuse {
			h.on(i, "acquire", faultproxy.Error)
		}
		id, _ := h.enters()
		h.quiet()
		h.pass()
		return id
	}
	id := hold(3, 4)
	servers[2].rdb.FlushAll(bg)
	h.mustRelease(id)
	h.settled()
	id = hold(4) // nor does the third node vote, in quarantine
	servers[3].rdb.Del(bg, h.record)
	if got := h.Release(id, 0).Do(bg, budget); got.Err != nil || got.Outcome != protocol.Removed {
		t.Errorf("a node that may vote may have voted for another: %+v", got)
	}
}

func TestNodeThatMayEvictDoesNotVote(t *testing.T) {
	t.Parallel()
	servers, _ := realServers(t, 3)
	h := join(t, servers, quarantined)
	h.bootstraps()
	servers[0].rdb.ConfigSet(bg, "maxmemory-policy", "allkeys-lru")
	other := join(t, servers, quarantined)
	if err := other.Bootstrap(bg); !errors.Is(err, ErrNoQuorum) || !strings.Contains(err.Error(), "node 1: maxmemory-policy allkeys-lru may evict") {
		t.Errorf("%v", err)
	}
	id, _ := other.enters()
	other.quiet()
	if votes := other.votes(); votes != "- "+id+" "+id {
		t.Errorf("votes %s", votes)
	}
}

func TestTwoNodesThatAreOneServer(t *testing.T) {
	t.Parallel()
	servers, _ := realServers(t, 2)
	servers = append(servers, newServer(t, servers[0].addr))
	h := join(t, servers, quarantined)
	if err := h.Bootstrap(bg); !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "node 1 and node 3 are one server") {
		t.Errorf("%v", err)
	}
	if _, got := h.tries(false); !errors.Is(got.Err, ErrInvalidArgument) {
		t.Errorf("%+v", got)
	}
}

func TestQuarantineNeedsRoomAndNodes(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 3)
	h := join(t, servers)
	if err := h.Bootstrap(bg); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	if h.Margin() != 0 || h.LongestLease() != 0 {
		t.Errorf("margin %v, longest lease %v", h.Margin(), h.LongestLease())
	}
	var nodes []Node
	for _, n := range h.nodes {
		nodes = append(nodes, n.Node)
	}
	cfg := h.cfg
	quarantined(&cfg)
	if _, err := New(nodes[:2], cfg); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	cfg.WatchdogLease = time.Second
	cfg.LongestLease = time.Minute
	if _, err := New(nodes, cfg); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
}

// What two looks at a clock agree on is known better than from the last one alone, unless
// the clock was set in between.
func TestClockBoundsNarrowWithEachReply(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var v nodeView
	v.noteClock(time.Hour, now.Add(-10*time.Millisecond), now) // it took 10 ms
	if v.fuzz != 5*time.Millisecond {
		t.Errorf("fuzz %v", v.fuzz)
	}
	v.noteClock(time.Hour+100*time.Millisecond, now.Add(99*time.Millisecond), now.Add(100*time.Millisecond))
	if v.fuzz > time.Millisecond/2 {
		t.Errorf("fuzz %v after a quick look", v.fuzz)
	}
	before := v.fuzz
	v.noteClock(time.Hour+200*time.Millisecond, now.Add(150*time.Millisecond), now.Add(200*time.Millisecond))
	if v.fuzz > before+time.Millisecond/4 {
		t.Errorf("fuzz %v after a slow look, and %v before", v.fuzz, before)
	}
	early, late := v.times(now.Add(10 * time.Second))
	if late-early < 2*10*time.Second/clockDrift {
		t.Errorf("clocks part, but this one is known within %v", late-early)
	}
	v.noteClock(2*time.Hour, now.Add(300*time.Millisecond), now.Add(302*time.Millisecond))
	if e, l := v.times(now.Add(302 * time.Millisecond)); e > 2*time.Hour+2*time.Millisecond || l < 2*time.Hour {
		t.Errorf("the clock was set, and is taken to be between %v and %v", e, l)
	}
}

// A clock that has jumped moves the window of nobody else.
func TestWindowIsThatOfTheMedian(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &Lock{size: size{3, 2}, clock: fixedClock{now: now}}
	q := &quarantine{Lock: l, skew: 50 * time.Millisecond, flight: 100 * time.Millisecond}
	for _, off := range []time.Duration{0, 10 * time.Millisecond, time.Hour} {
		n := &node{Node: Node{Knowledge: &Knowledge{}}}
		n.Knowledge.view = nodeView{clockAt: now, clock: time.Minute + off}
		l.nodes = append(l.nodes, n)
	}
	median := (time.Minute + 10*time.Millisecond).Microseconds()
	if lo, hi := q.window(); lo != median-50_000 || hi != median+150_000 {
		t.Errorf("from %d to %d, the median is %d", lo, hi, median)
	}
	if q.time() != median {
		t.Errorf("%d", q.time())
	}
	if err := q.agree(); err != nil {
		t.Errorf("two of three agree: %v", err)
	}
	l.nodes = slices.Delete(l.nodes, 0, 1)
	if err := q.agree(); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("no third tells which of two is right: %v", err)
	}
}

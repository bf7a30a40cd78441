package quorum

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// masters are masters, usually five, each behind a proxy.
type masters struct {
	servers []*redistest.Server
	proxies []*faultproxy.Proxy
	plain   []redis.UniversalClient // past the proxies
	calls   locktest.CountHook      // of all clients

	mu         sync.Mutex
	unanswered map[request]bool // requests that were sent and not answered
}

// request is a request to a node.
type request struct {
	node int
	raw  string
}

// patience is how long clients wait for a quorum whose test says nothing else.
const patience = 20 * time.Second

func startMasters(t testing.TB) *masters {
	t.Helper()
	return startSome(t, 5)
}

func startSome(t testing.TB, size int) *masters {
	t.Helper()
	n := &masters{servers: redistest.StartMasters(t, size)}
	for _, s := range n.servers {
		n.proxies = append(n.proxies, faultproxy.New(t, s.Addr()))
		n.plain = append(n.plain, locktest.Dialer(s.Addr())(t, nil))
	}
	return n
}

// clients are those of one process: one for each node, the first is the home.
func (n *masters) clients(t testing.TB, opts ...rlock.Option) (cs []*rlock.Client) {
	t.Helper()
	for _, p := range n.proxies {
		cs = append(cs, n.client(t, p.Addr(), opts))
	}
	return cs
}

func (n *masters) client(t testing.TB, addr string, opts []rlock.Option) *rlock.Client {
	t.Helper()
	rdb := locktest.Dialer(addr)(t, locktest.DialOnce)
	rdb.AddHook(&n.calls)
	// Node timeouts are the subject of tests; those of the clients end what lasts longer.
	opts = append([]rlock.Option{rlock.WithCommandTimeout(patience), rlock.WithUnlockTimeout(patience)}, opts...)
	return locktest.NewClient(t, rdb, opts...)
}

// answered waits until no client waits for an answer. A request that is on its way while a node
// dies twice could outlast its tombstone.
func (n *masters) answered(t testing.TB) {
	t.Helper()
	locktest.Eventually(t, "all requests are answered", func() bool { return n.calls.UnderWay.Load() == 0 })
}

// straight is clients without the proxies: the second process of a test whose
// faults are meant for the first.
func (n *masters) straight(t testing.TB, opts ...rlock.Option) (cs []*rlock.Client) {
	t.Helper()
	for _, s := range n.servers {
		cs = append(cs, n.client(t, s.Addr(), opts))
	}
	return cs
}

func (n *masters) pass() {
	for _, p := range n.proxies {
		p.Handle(nil)
		p.Delay(nil)
	}
}

// onScript has fn called once, when the first run of a script reaches a node,
// before it does. The runs on other nodes wait until fn has returned.
func (n *masters) onScript(script string, fn func()) (happened func() bool) {
	id := locktest.SHA(script)
	var once sync.Once
	done := make(chan struct{})
	for _, p := range n.proxies {
		p.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(id) {
				once.Do(func() { fn(); close(done) })
			}
			return faultproxy.Pass
		})
	}
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

func recordKey(lock string) string { return "{" + lock + "}:rlock:red" }

func counterKey(lock string) string { return "{" + lock + "}:rlock:red:counter" }

// unequal gives the nodes different counters, so that a token has to be written
// back.
func (n *masters) unequal(t testing.TB, lock string) {
	t.Helper()
	for i, rdb := range n.plain {
		if err := rdb.Set(bg, counterKey(lock), 100+10*i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// votes is whom each node has voted for, by its record; "" if for nobody.
func (n *masters) votes(t testing.TB, lock string, nodes ...int) (attempts []string) {
	t.Helper()
	for _, i := range orAll(nodes) {
		a, err := n.plain[i].HGet(bg, recordKey(lock), "attempt").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatalf("node %d: %v", i+1, err)
		}
		attempts = append(attempts, a)
	}
	return attempts
}

func orAll(nodes []int) []int {
	if nodes == nil {
		return []int{0, 1, 2, 3, 4}
	}
	return nodes
}

// nothing waits until all that is left on the nodes is counters, and tombstones
// that will go. A request that was on its way may still come, and be undone, a
// moment later.
func (n *masters) nothing(t testing.TB, lock string, nodes ...int) {
	t.Helper()
	var left string
	defer func() {
		if left != "" {
			t.Log(left)
		}
	}()
	locktest.Eventually(t, "nothing is left", func() bool {
		left = ""
		for _, i := range orAll(nodes) {
			for _, k := range locktest.Keys(t, n.plain[i]) {
				switch {
				case k == "rlock:red:highest", strings.HasSuffix(k, ":rlock:red:counter"):
				case strings.Contains(k, ":rlock:gone:"):
					// A negative one: it has just gone.
					if ttl := n.plain[i].PTTL(bg, k).Val(); ttl == -1 || ttl > locktest.Lease+2*time.Minute {
						t.Errorf("node %d: tombstone %s has TTL %v", i+1, k, ttl)
					}
				default:
					left += fmt.Sprintf("node %d: %s %v; ", i+1, k, n.plain[i].HGetAll(bg, k).Val())
				}
			}
		}
		return left == ""
	})
}

func (n *masters) allVoteFor(t testing.TB, l *rlock.Lease) {
	t.Helper()
	locktest.Eventually(t, "all have voted for the hold", func() bool {
		return !slices.ContainsFunc(n.votes(t, l.Name()), func(a string) bool { return a != l.HoldID() })
	})
}

// forget has nodes die and come back without their data.
func (n *masters) forget(nodes ...int) {
	for _, i := range nodes {
		n.servers[i].Kill()
		n.servers[i].Restart()
	}
}

// silence has some nodes run a script and not reply, and returns how many of them have
// been asked to.
func (n *masters) silence(scripts map[string][]int) (reached func(script string) int) {
	for i, p := range n.proxies {
		p.Handle(func(c faultproxy.Command) faultproxy.Action {
			for script, nodes := range scripts {
				if c.IsScript(locktest.SHA(script)) && slices.Contains(nodes, i) {
					return faultproxy.SwallowReply
				}
			}
			return faultproxy.Pass
		})
	}
	return func(script string) (asked int) {
		id := locktest.SHA(script)
		for _, i := range scripts[script] {
			asked += min(n.proxies[i].Count(func(c faultproxy.Command) bool { return c.IsScript(id) }), 1)
		}
		return asked
	}
}

// onFirst applies an action to the first run of a script on some nodes, and
// returns on how many of them that has happened.
func (n *masters) onFirst(script string, action faultproxy.Action, nodes []int) (struck func() int) {
	id := locktest.SHA(script)
	var count atomic.Int64
	for _, i := range nodes {
		var done atomic.Bool
		n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(id) && done.CompareAndSwap(false, true) {
				count.Add(1)
				n.faulty(i, c, action)
				return action
			}
			return faultproxy.Pass
		})
	}
	return func() int { return int(count.Load()) }
}

// faulty notes a request to a node whose sender gets no answer because of an action: it may
// come late.
func (n *masters) faulty(i int, c faultproxy.Command, action faultproxy.Action) {
	switch action {
	case faultproxy.SwallowReply, faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Hold:
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.unanswered == nil {
			n.unanswered = map[request]bool{}
		}
		n.unanswered[request{i, string(c.Raw)}] = true
	}
}

// replay has every script arrive once more that was sent to a node and not answered:
// of the others there are no copies.
func (n *masters) replay(t testing.TB) (copies int) {
	t.Helper()
	for i, p := range n.proxies {
		for _, c := range p.Commands() {
			n.mu.Lock()
			unanswered := n.unanswered[request{i, string(c.Raw)}]
			n.mu.Unlock()
			if !unanswered {
				continue
			}
			if err := p.Replay(c); err != nil {
				t.Fatal(err)
			}
			copies++
		}
	}
	return copies
}

// onlyVoteFor checks that a hold has its quorum, and nobody else a vote.
func (n *masters) onlyVoteFor(t testing.TB, l *rlock.Lease) {
	t.Helper()
	had := 0
	for i, a := range n.votes(t, l.Name()) {
		switch a {
		case l.HoldID():
			had++
		case "":
		default:
			t.Errorf("node %d has voted for %s, and not for the holder, %s", i+1, a, l.HoldID())
		}
	}
	if had < 3 {
		t.Errorf("the holder has %d votes", had)
	}
}

// warm makes the scripts known to the nodes, so that the first run is by hash,
// and the one that counts.
func (n *masters) warm(t testing.TB) {
	t.Helper()
	clients := n.straight(t)
	for range 2 {
		n.unequal(t, "warm-up")
		l := locktest.NewRedLock(t, "warm-up", clients, rlock.WithNodeTimeout(2*time.Second)) // a new one, as its tokens start again
		lease := locktest.MustLock(t, l)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
		n.nothing(t, "warm-up")
	}
}

// tombstones are those on all nodes.
func (n *masters) tombstones(t testing.TB) (count int) {
	t.Helper()
	for _, rdb := range n.plain {
		for _, k := range locktest.Keys(t, rdb) {
			if strings.Contains(k, ":rlock:gone:") {
				count++
			}
		}
	}
	return count
}

// voteFor makes nodes vote for attempts, as tries do that are under way.
func (n *masters) voteFor(t testing.TB, lock string, attempts ...string) {
	t.Helper()
	until := time.Now().Add(time.Minute).UnixMicro()
	for i, a := range attempts {
		if a == "" {
			continue
		}
		if err := n.plain[i].HSet(bg, recordKey(lock), "attempt", a, "stamp", 5, "until", until).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func isScript(c faultproxy.Command) bool { return c.Name == "evalsha" || c.Name == "eval" }

func do(t testing.TB, rdb redis.UniversalClient, args ...any) {
	t.Helper()
	if err := rdb.(*redis.Client).Do(bg, args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// scriptCalls is how many scripts the nodes have run.
func scriptCalls(t testing.TB, n *masters) (calls int) {
	t.Helper()
	for _, rdb := range n.plain {
		info, err := rdb.Info(bg, "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(info) {
			var c int
			if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &c); err == nil {
				calls += c
			}
		}
	}
	return calls
}

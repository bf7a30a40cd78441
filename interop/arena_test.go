//go:build unix

package interop

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-rlock/rlock/internal/redistest"
)

// nightly is whether everything is played, much of which waits for leases to end. What stands
// between a change and main needs no clock: no lease ends, and nothing has to be quick.
var nightly = os.Getenv("RLOCK_NIGHTLY") == "1"

// watchdog is the lease without WithLease, in both languages. It is renewed each third, so at night it
// leaves two seconds for a slow machine.
var watchdog = everyDay(30*time.Second, 3*time.Second)

// soon is the bound of what takes milliseconds, for a machine with two cores
// and ten processes. It is far below what the timers below would take.
var soon = everyDay(time.Minute, 10*time.Second)

func everyDay(day, night time.Duration) time.Duration {
	if nightly {
		return night
	}
	return day
}

const (
	// waiterLease is that of Go waiters in a queue.
	waiterLease = 3 * time.Second

	// long is a lease that no test waits for the end of, and longestPoll the pause of
	// a waiter in Go that hears nothing. In Java the rest of the lease is that pause.
	long        = 5 * time.Minute
	longestPoll = 5 * time.Minute
)

var bg = context.Background()

// arena is a Redis and the processes that meet there.
type arena struct {
	kind  string        // single, replica, cluster or sentinel
	lease time.Duration // the watchdog lease of the peers; watchdog if 0
	addrs []string
	rdb   redis.UniversalClient // the test's own
	nodes []*redis.Client

	optimizes bool // Java compiles what runs often as a server does

	javas, gos []*peer
	names      atomic.Int64
}

// TestMatrix runs every case on one server and on a cluster, each with two processes
// of each language: on an ordinary day those that need no clock, on one server.
func TestMatrix(t *testing.T) {
	for _, kind := range []string{"single", "cluster"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "cluster" && !nightly {
				t.Skip("a part of make nightly")
			}
			a := newArena(t, kind)
			t.Run("counting", a.counting)
			t.Run("exclusion", a.exclusion)
			if !nightly {
				a.leave(t)
				return
			}
			t.Run("handover", a.handOver)
			// What follows waits most of the time, and so runs at once.
			t.Run("patience", func(t *testing.T) {
				t.Run("loss", func(t *testing.T) { t.Parallel(); a.loss(t) })
				t.Run("renewal", func(t *testing.T) { t.Parallel(); a.renewal(t) })
				t.Run("fair", func(t *testing.T) { t.Parallel(); a.fair(t) })
				t.Run("apart", func(t *testing.T) { t.Parallel(); a.apart(t) })
				t.Run("leased permits", func(t *testing.T) { t.Parallel(); a.leasedPermits(t) })
			})
			a.leave(t)
		})
	}
}

func newArena(t *testing.T, kind string) *arena {
	a := &arena{kind: kind}
	var servers []*redistest.Server
	if kind == "cluster" {
		c := redistest.StartCluster(t, 3, 0)
		a.rdb, servers = c.Client(func(o *redis.ClusterOptions) { o.MaintNotificationsConfig = noNotices }), c.Nodes
	} else {
		s := redistest.Start(t)
		a.rdb, servers = s.Client(quietly), []*redistest.Server{s}
	}
	for _, s := range servers {
		a.addrs = append(a.addrs, s.Addr())
		a.nodes = append(a.nodes, s.Client(quietly))
	}
	for range 2 {
		a.javas = append(a.javas, startPeer(t, java, a))
		a.gos = append(a.gos, startPeer(t, golang, a))
	}
	return a
}

// noNotices turns off what these servers do not have, and for which go-redis may leave a
// goroutine behind.
var noNotices = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

func quietly(o *redis.Options) { o.MaintNotificationsConfig = noNotices }

// leave shuts all clients down in good order, which leaves nothing in Redis but what
// is to stay.
func (a *arena) leave(t *testing.T) {
	for _, p := range slices.Concat(a.javas, a.gos) {
		p.do(t, "1", "exit")
	}
}

// peers are a process of the language and one of the other.
func (a *arena) peers(l language) (first, second *peer) {
	if l == java {
		return a.javas[0], a.gos[0]
	}
	return a.gos[0], a.javas[0]
}

// name is one that nobody has used, and no part of another.
func (a *arena) name(what string) string {
	return fmt.Sprintf("%s-%03d", what, a.names.Add(1))
}

// derived is what Redisson makes of a name: prefix:{name}, or without braces if
// there are some.
func derived(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// channelOf is where the release of a lock is published, but for fair ones.
func channelOf(kind, name string) string {
	switch kind {
	case "read", "write":
		return derived("redisson_rwlock", name)
	case "semaphore":
		return derived("redisson_sc", name)
	case "latch":
		return "redisson_countdownlatch__channel__{" + name + "}"
	}
	return derived("redisson_lock__channel", name)
}

// listeners is how many connections listen to a channel, plainly and sharded.
func (a *arena) listeners(t testing.TB, channel string) (plain, sharded int64) {
	t.Helper()
	for _, node := range a.nodes {
		n, err := node.PubSubNumSub(bg, channel).Result()
		if err != nil {
			t.Fatal(err)
		}
		plain += n[channel]
		if n, err = node.PubSubShardNumSub(bg, channel).Result(); err != nil {
			t.Fatal(err)
		}
		sharded += n[channel]
	}
	return plain, sharded
}

// queue is the line of a fair lock.
func (a *arena) queue(t testing.TB, name string) []string {
	t.Helper()
	line, err := a.rdb.LRange(bg, derived("redisson_lock_queue", name), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// scripts is how many script calls the servers have executed.
func (a *arena) scripts(t testing.TB) (n int64) {
	t.Helper()
	for _, node := range a.nodes {
		info, err := node.Info(bg, "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(info) {
			var calls int64
			name, rest, _ := strings.Cut(line, ":")
			if strings.HasPrefix(name, "cmdstat_eval") {
				_, _ = fmt.Sscanf(rest, "calls=%d", &calls)
				n += calls
			}
		}
	}
	return n
}

// fields is the hash of a lock.
func (a *arena) fields(t testing.TB, name string) map[string]string {
	t.Helper()
	fields, err := a.rdb.HGetAll(bg, name).Result()
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func (a *arena) ttl(t testing.TB, key string) time.Duration {
	t.Helper()
	ttl, err := a.rdb.PTTL(bg, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return ttl
}

// waiting sends an acquire that has to wait, and returns when it does.
func (a *arena) waiting(t testing.TB, p *peer, thread, kind, name string, args ...any) *call {
	t.Helper()
	verb := "lock"
	if len(args) == 2 {
		verb = "try"
	}
	return a.blocked(t, thread, kind, name, func() *call {
		return p.send(t, thread, verb, append([]any{kind, name}, args...)...)
	})
}

// blocked sends a request, and returns when it waits for a lock: when one more
// process listens, or stands in the line, or has looked again and again. (Two
// threads of a process listen as one.)
//
// A thread of Redisson has to be asleep, too: one that listens, but has not gone to sleep
// yet, does not notice the release of a writer, and sleeps for the rest of the lease.
func (a *arena) blocked(t testing.TB, thread, kind, name string, send func() *call) *call {
	t.Helper()
	channel := channelOf(kind, name)
	plain, sharded := a.listeners(t, channel)
	line, looks := len(a.queue(t, name)), a.scripts(t)
	c := send()
	eventually(t, fmt.Sprintf("%s waits for %s", c.p.language, name), func() bool {
		if !c.pending() {
			t.Fatalf("%s: %q is answered %q; it should wait", c.p.language, c.what, c.wait(t))
		}
		switch kind {
		case "fair":
			if len(a.queue(t, name)) <= line {
				return false
			}
		case "spin":
			return a.scripts(t) > looks+2
		default:
			if now, nowSharded := a.listeners(t, channel); now+nowSharded <= plain+sharded {
				return false
			}
		}
		return c.p.language == golang || c.p.send(t, thread, "asleep").wait(t).outcome == "ok"
	})
	return c
}

// eventually waits for a condition that must come true soon.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited too long until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// wakeUps are the times from the call of an unlock in one process to the return
// of the waiting lock in the other.
type wakeUps struct {
	mu    sync.Mutex // guards times
	times map[string][]time.Duration
}

// note checks a wake-up, and keeps its time for the log.
func (w *wakeUps) note(t testing.TB, what string, release, acquired reply) {
	t.Helper()
	took := acquired.time().Sub(release.time())
	t.Logf("woken after %v", took)
	if took > soon {
		t.Errorf("woken after %v", took)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.times == nil {
		w.times = map[string][]time.Duration{}
	}
	w.times[what] = append(w.times[what], took)
}

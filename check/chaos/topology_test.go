//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// promises are what a topology guarantees whatever befalls it. What it does not guarantee is counted.
type promises struct {
	excludes bool // two never hold a lock, each by a lease that is valid to its knowledge
	ordered  bool // tokens grow in the order of holds
	fenced   bool // no update of a register with a fence is lost
	reported bool // of two that held a lock, one gets an error from Unlock
}

// deployment is what runs of a topology.
type deployment struct {
	nodes     []*redistest.Server  // that have locks
	clocks    []*redistest.Clocked // of the same servers, if a test can set their clocks
	ways      []way                // how clients reach them; nil if by the addresses of the nodes
	sentinels string               // their addresses, which have no faults
	faults    map[string]func(*arena, *rand.Rand)
	settle    func() // waits until all servers have their roles again; nil if they have none
}

// way is an address that clients dial, and the address to which it leads.
type way struct{ name, addr string }

// connector connects a process to the nodes that it is given, by routes.
type connector func(nodes, sentinels string) (open func(kind, name string) rlock.Locker, err error)

// topology is a way to run Redis.
type topology struct {
	name    string
	start   func(t *testing.T) *deployment
	connect connector
	lease   time.Duration // the watchdog lease
	more    time.Duration // added to the bound, for a quarantine or a failover
	locks   []string      // types
	faults  []string      // of servers; there are faults of clients too
	promises
}

// keys are the names of its locks, and of what they protect.
func (top *topology) keys() (keys []string) {
	for _, kind := range top.locks {
		for i := range names {
			keys = append(keys, fmt.Sprintf("%s-%d", kind, i))
		}
	}
	return keys
}

// bound is in what time a waiter gets its turn when all faults are over: the lease of a hold that was left behind, the
// places of dead waiters, the poll of the waiter, a request in flight to each of two connections that are dead, and a
// second until go-redis dials again. The turns of others take little. All of it is doubled for a busy machine.
func (top *topology) bound() time.Duration {
	return 2 * (top.lease + top.lease + top.lease/2 + 2*top.lease/2 + time.Second + top.more)
}

// options are those of each client. A reply that is lost costs half of the command timeout: a lease outlasts one, and not
// two.
func options(lease time.Duration, more ...rlock.Option) []rlock.Option {
	return append([]rlock.Option{rlock.WithWatchdogLease(lease), rlock.WithWaiterLease(lease), rlock.WithLongestPoll(lease / 2),
		rlock.WithCommandTimeout(lease / 2), rlock.WithUnlockTimeout(lease / 2)}, more...)
}

var (
	short   = locktest.Ample(time.Second)             // as a busy machine can keep
	ofMany  = locktest.Ample(1500 * time.Millisecond) // of a lock that waits for several servers
	longest = 2 * ofMany                              // of a quarantine
	// failover is how long one may take that begins when the faults are over: a server that was stopped is noticed late.
	failover = locktest.Ample(5 * time.Second)
)

// ofNodes is for RedLocks: the timeout of a node is at most a sixth of the lease.
var ofNodes = rlock.WithNodeTimeout(ofMany / 6)

var topologies = []*topology{
	{
		name: "standalone, appendfsync always", lease: short, locks: ofOneServer,
		start: one(always...), connect: toOne(options(short)...),
		faults:   []string{"server stops", "restart with data"},
		promises: promises{excludes: true, ordered: true, fenced: true, reported: true},
	},
	{
		name: "standalone, users of docs/acl.md", lease: short, locks: ofOneServer,
		start: withUser, connect: asUser(options(short, rlock.WithPrefix("app:"))...),
		faults:   []string{"server stops", "restart with data"},
		promises: promises{excludes: true, ordered: true, fenced: true, reported: true},
	},
	{
		name: "standalone, no persistence", lease: short, locks: ofTime,
		start: one(), connect: toOne(options(short)...),
		faults:   []string{"server stops", "restart without data", "restart with old data", "flush"},
		promises: promises{ordered: true, fenced: true},
	},
	{
		name: "standalone, WithFailoverQuarantine", lease: ofMany, more: longest, locks: ofTime,
		start: remembers, connect: toOne(remembering...),
		faults:   []string{"server stops", "restart without data", "restart with old data", "flush"},
		promises: promises{excludes: true, ordered: true, fenced: true, reported: true},
	},
	{
		name: "standalone, clock that jumps", lease: short, more: 3 * short, locks: ofTime,
		start: clocked(always...), connect: toOne(options(short)...),
		faults:   []string{"server stops", "clocks jump", "restart with data"},
		promises: promises{ordered: true, fenced: true},
	},
	{
		name: "primary and replica, WithReplicaAck", lease: ofMany, more: ofMany, locks: ofOneServer,
		start: startPair(0), connect: toOne(confirmed()...),
		faults:   []string{"servers stop", "promotion", "promotion of a replica that was away", "replica is away", "replica forgets"},
		promises: promises{excludes: true, ordered: true, fenced: true, reported: true},
	},
	{
		name: "primary and replica, WithReplicaAck and WithFailoverQuarantine", lease: ofMany, more: longest + ofMany, locks: ofTime,
		start: startPair(longest, remembering...), connect: toOne(confirmed(remembering...)...),
		faults:   []string{"servers stop", "promotion", "promotion of a replica that was away", "promotion of a replica without data", "replica forgets"},
		promises: promises{excludes: true, ordered: true, fenced: true, reported: true},
	},
	{
		name: "Sentinel", lease: ofMany, more: failover, locks: ofTime,
		start: startSentinel, connect: toSentinels(options(ofMany)...),
		faults:   []string{"servers stop", "failover", "master crashes"},
		promises: promises{ordered: true, fenced: true},
	},
	{
		name: "cluster", lease: ofMany, more: failover, locks: ofTime,
		start: startCluster, connect: toCluster(options(ofMany)...),
		faults:   []string{"servers stop", "failover", "master crashes", "slot moves"},
		promises: promises{ordered: true, fenced: true},
	},
	{
		name: "five masters, WithRestartQuarantine", lease: ofMany, more: longest + ofMany, locks: []string{"RedLock"},
		start: masters(quarantined...), connect: toMasters(quarantined...),
		faults:   []string{"servers stop", "restart without data", "restart with old data", "flush", "clocks jump"},
		promises: promises{excludes: true, ordered: true, fenced: true, reported: true},
	},
	{
		name: "five masters", lease: ofMany, locks: []string{"RedLock"},
		start: masters(), connect: toMasters(ofNodes),
		faults:   []string{"servers stop", "restart without data", "flush"},
		promises: promises{ordered: true, fenced: true, reported: true},
	},
	{
		name: "five masters, old data", lease: ofMany, locks: []string{"RedLock"},
		start: masters(), connect: toMasters(ofNodes),
		// Old data issue tokens again. And a counter that has not passed the token of a hold then does not prove that the node has
		// voted for no other since, so even Unlock of both holders may find a quorum: nothing is promised.
		faults: []string{"servers stop", "restart with old data"},
	},
}

// unconfirmed is one that promises nothing: its replica confirms no hold.
var unconfirmed = &topology{
	name: "primary and replica, no option", lease: ofMany, locks: ofTime,
	start: startPair(0), connect: toOne(options(ofMany)...),
	faults: []string{"promotion of a replica that was away"},
}

// always has a server write everything before it answers.
var always = []string{"--appendonly", "yes", "--appendfsync", "always"}

// remembering are the options of clients of a server that may forget, and confirmed those of clients with a replica.
var remembering = options(ofMany, rlock.WithFailoverQuarantine(longest))

func confirmed(opts ...rlock.Option) []rlock.Option {
	if opts == nil {
		opts = options(ofMany)
	}
	return append(slices.Clone(opts), rlock.WithReplicaAck(1, ofMany/4))
}

// quarantined are the options of a RedLock whose nodes may forget.
var quarantined = []rlock.RedLockOption{ofNodes, rlock.WithRestartQuarantine(), rlock.WithLongestLease(longest)}

// The types of locks: FencedLocks have a counter, which is lost with the data, and the tokens of the others grow by the
// time of the server.
var (
	ofTime      = []string{"Lock", "FairLock"}
	ofOneServer = append([]string{"FencedLock"}, ofTime...)
)

// find returns the topology of a name.
func find(name string) *topology {
	for _, top := range append([]*topology{unconfirmed}, topologies...) {
		if top.name == name {
			return top
		}
	}
	panic("no topology " + name)
}

// one starts a server.
func one(args ...string) func(t *testing.T) *deployment {
	return func(t *testing.T) *deployment {
		return &deployment{nodes: []*redistest.Server{redistest.Start(t, args...)}}
	}
}

// remembers starts a server for clients with the quarantine.
func remembers(t *testing.T) *deployment {
	d := one()(t)
	bootstrap(t, d.nodes[0], remembering)
	return d
}

// clocked starts a server with a clock of its own.
func clocked(args ...string) func(t *testing.T) *deployment {
	return func(t *testing.T) *deployment {
		d := &deployment{clocks: redistest.StartClocked(t, 1, args...)}
		d.nodes = []*redistest.Server{d.clocks[0].Server}
		return d
	}
}

// withUser starts a server with a user of the lines of docs/acl.md, who is there after a restart.
func withUser(t *testing.T) *deployment {
	page, err := os.ReadFile("../../docs/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--user", "app"}, "resetchannels")
	for _, kind := range ofOneServer {
		line := regexp.MustCompile("\n## " + kind + "\n\n```\nACL SETUSER app (.*)\n").FindStringSubmatch(string(page))
		if line == nil {
			t.Fatalf("no user for a %s", kind)
		}
		args = append(args, strings.Fields(line[1])...)
	}
	return one(append(args, always...)...)(t)
}

// toOne connects to one server.
func toOne(opts ...rlock.Option) connector {
	return func(text, _ string) (func(kind, name string) rlock.Locker, error) {
		nodes, dial := routes(text)
		return types(redis.NewClient(&redis.Options{Addr: nodes[0], Dialer: dial}), opts)
	}
}

// asUser connects to one server as the user of withUser.
func asUser(opts ...rlock.Option) connector {
	return func(text, _ string) (func(kind, name string) rlock.Locker, error) {
		nodes, dial := routes(text)
		return types(redis.NewClient(&redis.Options{
			Addr: nodes[0], Dialer: dial, Username: "app", Password: "password", DisableIdentity: true,
		}), opts)
	}
}

// masters starts five servers with clocks of their own, and lets them vote if they are in quarantine.
func masters(quarantine ...rlock.RedLockOption) func(t *testing.T) *deployment {
	return func(t *testing.T) *deployment {
		d := &deployment{clocks: redistest.StartClocked(t, 5)}
		var clients []*rlock.Client
		for _, s := range d.clocks {
			d.nodes = append(d.nodes, s.Server)
			clients = append(clients, locktest.NewClient(t, s.Client(), options(ofMany)...))
		}
		if quarantine != nil {
			l, err := rlock.NewRedLock("bootstrap", clients, quarantine...)
			if err != nil {
				t.Fatal(err)
			}
			locktest.Eventually(t, "all nodes vote", func() bool { return l.BootstrapNodes(bg) == nil })
		}
		return d
	}
}

// toMasters connects to several servers that know nothing of each other.
func toMasters(opts ...rlock.RedLockOption) connector {
	return func(text, _ string) (func(kind, name string) rlock.Locker, error) {
		nodes, dial := routes(text)
		var clients []*rlock.Client
		for _, addr := range nodes {
			c, err := rlock.New(redis.NewClient(&redis.Options{Addr: addr, Dialer: dial}), options(ofMany)...)
			if err != nil {
				return nil, err
			}
			clients = append(clients, c)
		}
		if _, err := rlock.NewRedLock("any", clients, opts...); err != nil {
			return nil, err
		}
		return func(_, name string) rlock.Locker {
			l, _ := rlock.NewRedLock(name, clients, opts...) // as above
			return l
		}, nil
	}
}

// types opens locks by the names of their types.
func types(rdb redis.UniversalClient, opts []rlock.Option) (func(kind, name string) rlock.Locker, error) {
	c, err := rlock.New(rdb, opts...)
	return func(kind, name string) rlock.Locker {
		switch kind {
		case "Lock":
			return c.NewLock(name)
		case "FencedLock":
			return c.NewFencedLock(name)
		case "FairLock":
			return c.NewFairLock(name)
		}
		panic(fmt.Sprintf("no type %s", kind))
	}, err
}

package topologies

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// nameOn is a lock name in a slot of the server, another one for each i.
func nameOn(c *redistest.Cluster, s *redistest.Server, prefix string) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s%d", prefix, i)
		if c.MasterOf(c.Slot(name)) == s {
			return name
		}
	}
}

func TestClusterLocks(t *testing.T) {
	t.Parallel()
	// They count what is in the whole cluster, or disturb it: a cluster for each group.
	locktest.Beside(t, "Used", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, 0)
		on := nodes(c)
		t.Run("OfAllSlotsAreHandedOverByMessageAndLeaveNothing", func(t *testing.T) { clusterHandsOver(t, c, on) })
		t.Run("HaveNamesOfEveryKind", func(t *testing.T) { clusterNames(t, c) })
		t.Run("WithNamesOfTwoSlotsAreRefusedBeforeAnythingIsSent", func(t *testing.T) { clusterRefusesNames(t, c) })
		t.Run("AreLookedAtAfterTheConfirmationOfEachKind", func(t *testing.T) {
			redistest.NeedSharded(t)
			clusterConfirmsBoth(t, c)
		})
		t.Run("AreAwaitedInTheRightChannelAfterABadStart", func(t *testing.T) {
			redistest.NeedSharded(t)
			clusterBadStart(t, c)
		})
	})
	locktest.Beside(t, "Disturbed", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, 0)
		on := nodes(c)
		t.Run("HaveManyWaitersWhoseSubscriptionsAreKilled", func(t *testing.T) { clusterManyWaiters(t, c, on) })
		t.Run("OutliveScriptFlush", func(t *testing.T) { clusterScriptFlush(t, c, on) })
	})
	for _, mode := range []pubSubMode{
		{name: "Auto", mode: rlock.PubSubAuto, sharded: !redistest.IsOld(), plain: redistest.IsOld()},
		{name: "Sharded", mode: rlock.PubSubSharded, sharded: true},
		{name: "Plain", mode: rlock.PubSubPlain, plain: true},
		{name: "Both", mode: rlock.PubSubBoth, sharded: true, plain: true},
	} {
		locktest.Beside(t, "AreAnnounced"+mode.name, func(t *testing.T) {
			if mode.sharded {
				redistest.NeedSharded(t)
			}
			c := redistest.StartCluster(t, 3, 0)
			clusterPubSub(t, c, nodes(c), mode)
		})
	}
}

func clusterHandsOver(t *testing.T, c *redistest.Cluster, on []*redis.Client) {
	// Under a heavy load a reply that is late would leave a tombstone.
	slow := rlock.WithCommandTimeout(30 * time.Second)
	a, b := locktest.Join(t, c.Client(), slow), locktest.Join(t, c.Client(), slow)
	const n = 48
	bySlot := map[int]string{}
	perNode := map[*redistest.Server]int{}
	var names []string
	for i := range n {
		name := fmt.Sprintf("order:%d", i)
		names = append(names, name)
		slot := c.Slot(name)
		bySlot[slot] = name
		perNode[c.MasterOf(slot)]++
		if got := c.Slot("redisson_lock__channel:{" + name + "}"); got != slot {
			t.Errorf("the channel of %q is in slot %d, want %d", name, got, slot)
		}
	}
	if len(perNode) != len(c.Nodes) {
		t.Fatalf("%d names, and a node without any", n)
	}
	tokens := map[string]int64{}
	held := map[string]*rlock.Lease{}
	for _, name := range names {
		held[name] = locktest.MustLock(t, a.NewLock(name))
		tokens[name] = held[name].Token()
		if _, err := b.NewLock(name).TryLock(context.Background()); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Errorf("%q is held, and another client's TryLock returns %v", name, err)
		}
	}
	waiting := map[string]*locktest.Waiter{}
	for _, name := range names {
		waiting[name] = b.Line(t, name)
	}
	for _, name := range names {
		b.Parked(t, name, 3) // the first was TryLock's
	}
	var wakes []time.Duration
	for _, name := range names {
		released := time.Now()
		locktest.MustUnlock(t, held[name])
		lease, d := waiting[name].WokenByMessage(t, released)
		wakes = append(wakes, d)
		if lease.Token() <= tokens[name] {
			t.Errorf("token %d after %d", lease.Token(), tokens[name])
		}
		locktest.MustUnlock(t, lease)
	}
	t.Logf("woken one by one: %s", spread(wakes))
	noSubscriptionLeft(t, on)

	left := map[int]bool{}
	for _, node := range on {
		keys, err := node.Keys(context.Background(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if locktest.IsClient(key) {
				continue // the clients are open still
			}
			if !locktest.IsClock(key) {
				t.Errorf("%q is left", key)
			}
			if key != "rlock:clock" { // says that each slot has one
				left[c.Slot(key)] = true
			}
		}
	}
	for slot, name := range bySlot {
		if !left[slot] {
			t.Errorf("no fencing clock in slot %d, that of %q", slot, name)
		}
	}
	if len(left) != len(bySlot) {
		t.Errorf("%d fencing clocks for %d slots", len(left), len(bySlot))
	}
}

func clusterNames(t *testing.T, c *redistest.Cluster) {
	a, b := locktest.Join(t, c.Client()), locktest.Join(t, c.Client())
	for what, name := range map[string]string{
		"tag":          "{tag}x",
		"tag at end":   "x{tag}",
		"tag and more": "{tag}{other}}",
		"non-ASCII":    "Straße ☃ 東京",
		"spaces":       " a name \t with\r\nspaces ",
		"binary":       "\x00\xff\xfe\x80",
		"long":         strings.Repeat("long ", 10_000),
		"longest":      strings.Repeat("n", rlock.MaxNameLength),
		"number":       "0",
	} {
		t.Run(what, func(t *testing.T) {
			held := locktest.MustLock(t, a.NewLock(name))
			w := b.LineParked(t, name)
			released := time.Now()
			locktest.MustUnlock(t, held)
			lease, _ := w.WokenByMessage(t, released)
			locktest.MustUnlock(t, lease)
		})
	}
}

func clusterRefusesNames(t *testing.T, c *redistest.Cluster) {
	a := locktest.Join(t, c.Client())
	for _, name := range []string{"a{b", "{}z", "a}b", "", strings.Repeat("n", rlock.MaxNameLength+1)} {
		l := a.NewLock(name)
		_, err := l.TryLock(context.Background())
		_, lockErr := l.Lock(context.Background())
		_, stateErr := l.State(context.Background())
		_, forceErr := l.ForceUnlock(context.Background())
		for i, err := range []error{err, lockErr, stateErr, forceErr} {
			if !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Errorf("%.20q: call %d returns %v, want ErrInvalidArgument", name, i, err)
			}
		}
	}
	if n := a.Looks.Commands(); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
}

func clusterScriptFlush(t *testing.T, c *redistest.Cluster, on []*redis.Client) {
	flush := func() {
		t.Helper()
		for _, node := range on {
			if err := node.ScriptFlush(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, b := locktest.Join(t, c.Client(), rlock.WithWatchdogLease(3*time.Second)), locktest.Join(t, c.Client())
	flush()
	const n = 30
	var held []*rlock.Lease
	for i := range n {
		held = append(held, locktest.MustLock(t, a.NewLock(fmt.Sprintf("flush:%d", i))))
		if i%10 == 0 {
			flush()
		}
	}
	w := b.LineParked(t, held[0].Name())
	// Renewals go in pipelines, which have no way to fall back by themselves.
	for range 3 {
		before := map[string]int{}
		for _, l := range held {
			before[l.Name()] = a.Events.Renewals(l.Name())
		}
		flush()
		locktest.Eventually(t, "all were renewed after SCRIPT FLUSH", func() bool {
			for name, n := range before {
				if a.Events.Renewals(name) == n {
					return false
				}
			}
			return true
		})
	}
	flush()
	released := time.Now()
	for _, l := range held {
		locktest.MustUnlock(t, l)
	}
	lease, _ := w.WokenByMessage(t, released)
	flush()
	locktest.MustUnlock(t, lease)
}

func TestClusterFailover(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	t.Run("ReplicaConfirmsBeforeAnAcquireReturns", func(t *testing.T) { clusterAcks(t, c) })
	t.Run("KeepsConfirmedHoldsAndTellsOfLostOnes", func(t *testing.T) { clusterFailover(t, c) })
}

// holds reports whether a node has a key, if need be as a replica.
func holds(t testing.TB, node *redis.Client, key string) bool {
	t.Helper()
	conn := node.Conn()
	defer conn.Close()
	_ = conn.Do(context.Background(), "readonly").Err() // an error outside of a cluster
	n, err := conn.Exists(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

func clusterAcks(t *testing.T, c *redistest.Cluster) {
	ctx := context.Background()
	master := c.Nodes[0]
	replica := c.ReplicaOf(master)
	atReplica := replica.Client()
	name := nameOn(c, master, "ack")
	patient := locktest.Join(t, c.Client(), rlock.WithReplicaAck(1, 4*time.Second))
	for range 20 {
		lease := locktest.MustLock(t, patient.NewLock(name))
		if !holds(t, atReplica, name) {
			t.Error("acquired, and the replica has nothing")
		}
		locktest.MustUnlock(t, lease)
	}

	// WAIT and its acquire follow a slot together, though by themselves: a
	// pipeline to one node is not redirected.
	moved := nameOn(c, master, "moved")
	locktest.MustUnlock(t, locktest.MustLock(t, patient.NewLock(moved)))
	c.MigrateSlot(c.Slot(moved), c.Nodes[1])
	lease, err := patient.NewLock(moved).TryLock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !holds(t, c.ReplicaOf(c.Nodes[1]).Client(), moved) {
		t.Error("acquired, and the replica of the new node has nothing")
	}
	locktest.MustUnlock(t, lease)

	impatient := locktest.Join(t, c.Client(), rlock.WithReplicaAck(1, 100*time.Millisecond))
	greedy := locktest.Join(t, c.Client(), rlock.WithReplicaAck(2, 100*time.Millisecond))
	refused := func(m *locktest.Member, count string) {
		t.Helper()
		if _, err := m.NewLock(name).Lock(ctx); !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), count) {
			t.Errorf("%v, want ErrNotAcquired with %q", err, count)
		}
		locktest.Eventually(t, "the lock is free again", func() bool { return !holds(t, master.Client(), name) })
	}
	refused(greedy, "1 of 2 replicas")
	replica.Pause()
	refused(impatient, "0 of 1 replicas")
	replica.Resume()
	c.Settle()
	locktest.MustUnlock(t, locktest.MustLock(t, patient.NewLock(name)))
}

func clusterFailover(t *testing.T, c *redistest.Cluster) {
	ctx := context.Background()
	master := c.Nodes[0]
	replica := c.ReplicaOf(master)
	atReplica := replica.Client()
	// The first renewal, after 10 s, comes when there is a replica again, and there is time for others.
	lease := rlock.WithWatchdogLease(30 * time.Second)
	a := locktest.Join(t, c.Client(), lease, rlock.WithReplicaAck(1, 4*time.Second))
	b, unconfirmed := locktest.Join(t, c.Client(), lease), locktest.Join(t, c.Client(), lease)
	name := map[string]string{}
	for _, what := range []string{"held", "waited", "outage", "free", "lost"} {
		name[what] = nameOn(c, master, what)
	}
	held := locktest.MustLock(t, a.NewLock(name["held"]))
	waited := locktest.MustLock(t, a.NewLock(name["waited"]))
	outage := locktest.MustLock(t, a.NewLock(name["outage"]))
	forWaited, forOutage := b.LineParked(t, name["waited"]), b.LineParked(t, name["outage"])

	// A write that the replica never sees: its link is cut, and it cannot make
	// a new one.
	if knowsScript(t, atReplica, "lock/enter") {
		t.Error("the replica knows the scripts already")
	}
	replica.Pause()
	if err := master.Client().Do(ctx, "client", "kill", "type", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	lost := locktest.MustLock(t, unconfirmed.NewLock(name["lost"]))

	killed := time.Now()
	master.Kill()
	replica.Resume()
	forFree := b.Line(t, name["free"])
	// Either the new master is there in time, or the release goes on alone.
	if err := outage.Unlock(ctx); err != nil && !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("Unlock without a master: %v", err)
	}
	c.Settle()
	settled := time.Now()
	t.Logf("new master %v after the crash", settled.Sub(killed))
	if got := c.MasterOf(c.Slot(name["held"])); got != replica {
		t.Fatalf("the master is %s, want %s", got.Addr(), replica.Addr())
	}

	got, d := forFree.Lease(t, settled)
	t.Logf("an acquire in the outage succeeded %v after the cluster had settled", d)
	locktest.MustUnlock(t, got)
	if !knowsScript(t, atReplica, "lock/enter") {
		t.Error("the new master does not know the script")
	}
	got, d = forOutage.WokenByMessage(t, settled)
	t.Logf("what was released in the outage was had %v after the cluster had settled", d)
	if got.Token() <= outage.Token() {
		t.Errorf("token %d after %d", got.Token(), outage.Token())
	}
	locktest.MustUnlock(t, got)

	// Renewals count again once there is a replica that confirms them.
	master.Restart()
	c.Settle()
	t.Logf("a replica again %v after the crash", time.Since(killed))
	a.RenewedAgain(t, name["held"], 1)
	released := time.Now()
	locktest.MustUnlock(t, waited)
	got, d = forWaited.WokenByMessage(t, released)
	t.Logf("woken %v after the release at the new master", d)
	if got.Token() <= waited.Token() {
		t.Errorf("token %d after %d", got.Token(), waited.Token())
	}
	locktest.MustUnlock(t, got)
	locktest.MustUnlock(t, held)

	next := locktest.MustLock(t, b.NewLock(name["lost"]))
	if next.Token() <= lost.Token() {
		t.Errorf("token %d after %d, which the new master has never seen", next.Token(), lost.Token())
	}
	select {
	case <-lost.Done():
	case <-time.After(40 * time.Second):
		t.Fatal("a holder was not told that its hold is lost")
	}
	// Whichever came first there, its renewal or the next holder.
	if err := lost.Err(); !errors.Is(err, rlock.ErrLeaseLost) || !errors.Is(err, rlock.ErrRemoved) && !errors.Is(err, rlock.ErrTakenOver) {
		t.Errorf("lost with %v, want ErrRemoved or ErrTakenOver", err)
	}
	if err := lost.Unlock(ctx); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("Unlock of a lost hold: %v", err)
	}
	if err := next.Err(); err != nil {
		t.Errorf("the stale holder's Unlock hit its successor: %v", err)
	}
	locktest.MustUnlock(t, next)
}

// A master that hangs refuses nothing and redirects nobody.
func TestClusterMasterThatHangsIsLeftForItsSuccessor(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	master := c.Nodes[0]
	replica := c.ReplicaOf(master)
	atReplica, atOther := replica.Client(), c.Nodes[1].Client()
	name, free := nameOn(c, master, "held"), nameOn(c, master, "free")
	// Nothing helps the client but its own doubts: go-redis waits for long, and
	// asks a node that is well for the topology when told to.
	patient := func(o *redis.ClusterOptions) {
		o.ReadTimeout = time.Minute
		o.ClusterSlots = func(ctx context.Context) ([]redis.ClusterSlot, error) {
			cmd := redis.NewClusterSlotsCmd(ctx, "cluster", "slots")
			_ = atOther.Process(ctx, cmd)
			return cmd.Result()
		}
	}
	a := locktest.Join(t, c.Client(patient), rlock.WithWatchdogLease(15*time.Second))
	b := locktest.Join(t, c.Client(patient))
	held := locktest.MustLock(t, a.NewLock(name))
	locktest.Eventually(t, "the replica has the hold", func() bool { return holds(t, atReplica, name) })
	locktest.MustUnlock(t, locktest.MustLock(t, b.NewLock(free)))

	master.Pause()
	defer master.Resume() // ends what hangs there
	locktest.Eventually(t, "the replica is promoted", func() bool {
		role, err := atReplica.Do(context.Background(), "role").Slice()
		return err == nil && role[0] == "master"
	})
	promoted := time.Now()
	locktest.Eventually(t, "TryLock finds the new master", func() bool {
		lease, err := b.NewLock(free).TryLock(context.Background())
		if err != nil {
			return false
		}
		locktest.MustUnlock(t, lease)
		return true
	})
	t.Logf("TryLock succeeded %v after the promotion", time.Since(promoted))
	a.RenewedAgain(t, name, 1)
	locktest.MustUnlock(t, held)
}

// go-redis does not let go of a handshake before its own timeout.
func TestCloseIsBoundedWhileASubscriptionHangs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := faultproxy.New(t, s.Addr())
	a := locktest.Join(t, locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout = 2 * time.Minute }))
	foreignHold(t, s.Client(), "held")
	locktest.MustUnlock(t, locktest.MustLock(t, a.NewLock("free"))) // now it has a connection for commands
	hangs := make(chan struct{})
	var once sync.Once
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.Name == "hello" {
			once.Do(func() { close(hangs) })
			return faultproxy.Hold
		}
		return faultproxy.Pass
	})
	w := a.Line(t, "held")
	<-hangs
	began := time.Now()
	err := a.Close()
	if d := time.Since(began); d > locktest.ByMessage {
		t.Errorf("Close took %v", d)
	}
	if err != nil {
		t.Errorf("Close returns %v, though no lock and no waiter is left", err)
	}
	if g := <-w.Got; !errors.Is(g.Err, rlock.ErrClosed) {
		t.Errorf("the waiter got %v", g.Err)
	}
	proxy.ResetAll()
	if err := a.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

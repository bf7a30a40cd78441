package redistest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster. Nodes holds the masters of the start first, then
// the replicas; [Cluster.MasterOf] and [Cluster.ReplicaOf] tell the roles of
// the moment.
type Cluster struct {
	Nodes []*Server

	t   testing.TB
	ids map[*Server]string // node ids, which outlive a restart
}

// StartCluster runs a cluster with the slots spread evenly, for example 3, 0
// or 3, 1, and returns when every node serves and agrees with every other.
//
// A node that does not answer for 1.5 seconds counts as failed. A failover
// needs a majority of the masters, so three masters at least.
func StartCluster(t testing.TB, masters, replicasPerMaster int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, ids: map[*Server]string{}}
	c.Nodes = startAll(t, masters*(1+replicasPerMaster), clusterArgs)
	if err := c.join(masters); err != nil {
		t.Fatal(err)
	}
	for i, replica := range c.Nodes[masters:] {
		if err := c.replicate(replica, c.Nodes[i%masters]); err != nil {
			t.Fatal(err)
		}
	}
	c.Settle()
	return c
}

func clusterArgs(s *Server) []string {
	bus := []string{"--cluster-port", strconv.Itoa(s.busPort)} // the default, port+10000, may be taken or not exist
	if isOld() {
		bus = nil
	}
	return plain(append(bus,
		"--cluster-enabled", "yes",
		"--cluster-config-file", "nodes.conf",
		"--cluster-announce-ip", "127.0.0.1",
		"--cluster-node-timeout", "1500",
		// Roles change only when a test makes them change ...
		"--cluster-allow-replica-migration", "no",
		// ... and a replica takes over however long its link was down.
		"--cluster-replica-validity-factor", "0",
	)...)(s)
}

// join gives the masters their slots and makes the nodes known to each other.
func (c *Cluster) join(masters int) error {
	for i, n := range c.Nodes {
		id, err := n.do("cluster", "myid").Text()
		if err != nil {
			return fmt.Errorf("redistest: CLUSTER MYID of %s: %w", n.Addr(), err)
		}
		c.ids[n] = id
		// Epochs that differ from the start spare the nodes the settling of
		// collisions.
		if err := n.do("cluster", "set-config-epoch", i+1).Err(); err != nil {
			return fmt.Errorf("redistest: CLUSTER SET-CONFIG-EPOCH on %s: %w", n.Addr(), err)
		}
		if i < masters {
			first, last := i*slots/masters, (i+1)*slots/masters-1
			if err := n.do(addSlots(first, last)...).Err(); err != nil {
				return fmt.Errorf("redistest: CLUSTER ADDSLOTS on %s: %w", n.Addr(), err)
			}
		}
		// Everybody meets everybody: to wait for the gossip takes seconds.
		for _, m := range c.Nodes[:i] {
			if err := n.do("cluster", "meet", "127.0.0.1", m.Port(), m.busPort).Err(); err != nil {
				return fmt.Errorf("redistest: CLUSTER MEET on %s: %w", n.Addr(), err)
			}
		}
	}
	return nil
}

// addSlots is the command that gives a node these slots. ADDSLOTSRANGE came with Redis 7.
func addSlots(first, last int) []any {
	args := []any{"cluster", "addslots"}
	for slot := first; slot <= last; slot++ {
		args = append(args, slot)
	}
	return args
}

// replicate retries until the node knows its master.
func (c *Cluster) replicate(replica, master *Server) error {
	return await(fmt.Sprintf("%s to become a replica of %s", replica.Addr(), master.Addr()), func() error {
		return replica.do("cluster", "replicate", c.ids[master]).Err()
	})
}

// Client connects a new cluster client with go-redis defaults, which edit may
// change. It is closed when the test ends, before the servers are killed.
//
// With those defaults a client whose master has died dials the dead address
// until its slots are a minute old, unless some MOVED or READONLY reply makes
// it look earlier. A test that does not want to wait that long sets
// ClusterStateReloadInterval or calls ReloadState.
func (c *Cluster) Client(edit ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	opts := &redis.ClusterOptions{}
	for _, n := range c.Nodes {
		opts.Addrs = append(opts.Addrs, n.Addr())
	}
	for _, e := range edit {
		e(opts)
	}
	client := redis.NewClusterClient(opts)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Slot is the slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	running := c.running()
	if len(running) == 0 {
		c.t.Fatal("redistest: no node of the cluster runs")
	}
	slot, err := running[0].do("cluster", "keyslot", key).Int()
	if err != nil {
		c.t.Fatalf("redistest: CLUSTER KEYSLOT on %s: %v", running[0].Addr(), err)
	}
	return slot
}

// MasterOf is the server that owns the slot by its own account, the newest one
// if there are several. Right after a master has died there is none, and
// MasterOf waits for the next.
func (c *Cluster) MasterOf(slot int) *Server {
	c.t.Helper()
	var master *Server
	err := await(fmt.Sprintf("an owner of slot %d", slot), func() error {
		var epoch int
		master = nil
		for _, n := range c.running() {
			view, err := c.view(n)
			if err != nil {
				return err
			}
			if me := view[c.ids[n]]; me.has(slot) && (master == nil || me.epoch > epoch) {
				master, epoch = n, me.epoch
			}
		}
		if master == nil {
			return errors.New("no node that runs owns it")
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return master
}

// ReplicaOf is a running replica of this master, which may be dead. It waits
// for one, for tests that restart a node.
func (c *Cluster) ReplicaOf(master *Server) *Server {
	c.t.Helper()
	var replica *Server
	err := await("a replica of "+master.Addr(), func() error {
		for _, n := range c.running() {
			view, err := c.view(n)
			if err != nil {
				return err
			}
			if view[c.ids[n]].master == c.ids[master] {
				replica = n
				return nil
			}
		}
		return errors.New("no node that runs is one")
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return replica
}

// Failover kills the master and waits until one of its replicas has taken over
// and the nodes that are left agree. It returns the new master. It takes about
// three seconds. The old one comes back, as a replica, with [Server.Restart];
// [Cluster.Settle] then waits for it.
func (c *Cluster) Failover(master *Server) *Server {
	c.t.Helper()
	view, err := c.view(master)
	if err != nil {
		c.t.Fatal(err)
	}
	me := view[c.ids[master]]
	if len(me.slots) == 0 {
		c.t.Fatalf("redistest: Failover of %s, which owns no slot", master.Addr())
	}
	c.ReplicaOf(master)
	master.Kill()
	c.Settle()
	return c.MasterOf(me.slots[0].first)
}

// MigrateSlot moves a slot and its keys to another master, as redis-cli does
// when it reshards, and returns when every node knows.
func (c *Cluster) MigrateSlot(slot int, to *Server) {
	c.t.Helper()
	c.MigrateSlotWith(slot, to, func() {})
}

// MigrateSlotWith is MigrateSlot with a check in the middle: between runs when
// all keys are at the new master and the old one still owns the slot, so it
// answers with ASK, and the new one with MOVED unless asked with ASKING.
func (c *Cluster) MigrateSlotWith(slot int, to *Server, between func()) {
	c.t.Helper()
	from := c.MasterOf(slot)
	if from == to {
		c.t.Fatalf("redistest: slot %d is at %s already", slot, to.Addr())
	}
	// This order, importing first: from then on the new master must be able to
	// serve whom the old one sends.
	if err := to.do("cluster", "setslot", slot, "importing", c.ids[from]).Err(); err != nil {
		c.t.Fatalf("redistest: SETSLOT IMPORTING on %s: %v", to.Addr(), err)
	}
	if err := from.do("cluster", "setslot", slot, "migrating", c.ids[to]).Err(); err != nil {
		c.t.Fatalf("redistest: SETSLOT MIGRATING on %s: %v", from.Addr(), err)
	}
	if err := moveKeys(slot, from, to); err != nil {
		c.t.Fatal(err)
	}
	between()
	// The new owner first: if the old one knew earlier, it would redirect to a
	// node that redirects back. Replicas cannot be set, they learn it by gossip.
	masters := []*Server{to, from}
	for _, n := range c.running() {
		view, err := c.view(n)
		if err != nil {
			c.t.Fatal(err)
		}
		if n != to && n != from && view[c.ids[n]].master == "" {
			masters = append(masters, n)
		}
	}
	for _, n := range masters {
		if err := n.do("cluster", "setslot", slot, "node", c.ids[to]).Err(); err != nil {
			c.t.Fatalf("redistest: SETSLOT NODE on %s: %v", n.Addr(), err)
		}
	}
	c.Settle()
}

func moveKeys(slot int, from, to *Server) error {
	for {
		keys, err := from.do("cluster", "getkeysinslot", slot, 100).StringSlice()
		if err != nil {
			return fmt.Errorf("redistest: GETKEYSINSLOT on %s: %w", from.Addr(), err)
		}
		if len(keys) == 0 {
			return nil
		}
		args := []any{"migrate", "127.0.0.1", to.Port(), "", 0, 5000, "keys"}
		for _, k := range keys {
			args = append(args, k)
		}
		if err := from.do(args...).Err(); err != nil {
			return fmt.Errorf("redistest: MIGRATE from %s to %s: %w", from.Addr(), to.Addr(), err)
		}
	}
}

// Settle waits until the nodes that run serve all slots and see each other as
// each sees itself, and every replica is online.
func (c *Cluster) Settle() {
	c.t.Helper()
	if err := await("the cluster to settle", c.settled); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) settled() error {
	nodes := c.running()
	views := map[*Server]map[string]node{}
	served := 0
	for _, n := range nodes {
		info, err := n.do("cluster", "info").Text()
		if err != nil {
			return fmt.Errorf("CLUSTER INFO of %s: %w", n.Addr(), err)
		}
		if state := field(info, "cluster_state"); state != "ok" {
			return fmt.Errorf("cluster_state of %s is %q", n.Addr(), state)
		}
		if views[n], err = c.view(n); err != nil {
			return err
		}
		for _, r := range views[n][c.ids[n]].slots {
			served += r.last - r.first + 1
		}
	}
	if served != slots {
		return fmt.Errorf("the nodes that run serve %d slots, want %d", served, slots)
	}
	for _, n := range nodes {
		self := views[n][c.ids[n]]
		for _, m := range nodes {
			if seen := views[m][c.ids[n]]; !seen.up || fmt.Sprint(seen) != fmt.Sprint(self) {
				return fmt.Errorf("%s sees %s as %+v, which sees itself as %+v", m.Addr(), n.Addr(), seen, self)
			}
		}
		if self.master == "" {
			continue
		}
		for _, m := range nodes {
			if c.ids[m] == self.master {
				if err := online(m, n); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *Cluster) running() []*Server {
	var up []*Server
	for _, n := range c.Nodes {
		if n.alive() {
			up = append(up, n)
		}
	}
	return up
}

type slotRange struct{ first, last int }

// node is a line of CLUSTER NODES. Whole lines are compared.
type node struct {
	up     bool   // connected, and neither failed, nor suspected, nor unknown
	master string // id of the master, "" for a master
	epoch  int
	slots  []slotRange
}

func (n node) has(slot int) bool {
	for _, r := range n.slots {
		if r.first <= slot && slot <= r.last {
			return true
		}
	}
	return false
}

// view is what one node knows of all, by node id.
func (c *Cluster) view(s *Server) (map[string]node, error) {
	text, err := s.do("cluster", "nodes").Text()
	if err != nil {
		return nil, fmt.Errorf("CLUSTER NODES of %s: %w", s.Addr(), err)
	}
	view := map[string]node{}
	for line := range strings.Lines(text) {
		// id addr flags master ping pong epoch link slot ...
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("CLUSTER NODES of %s has a line %q", s.Addr(), line)
		}
		n := node{up: f[7] == "connected", master: strings.Trim(f[3], "-")}
		for flag := range strings.SplitSeq(f[2], ",") {
			switch flag {
			case "fail", "fail?", "handshake", "noaddr":
				n.up = false
			}
		}
		if n.epoch, err = strconv.Atoi(f[6]); err != nil {
			return nil, fmt.Errorf("CLUSTER NODES of %s has a line %q", s.Addr(), line)
		}
		for _, r := range f[8:] {
			if strings.HasPrefix(r, "[") {
				continue // a slot on its way in or out: ownership is as it was
			}
			first, last, ok := strings.Cut(r, "-")
			if !ok {
				last = first
			}
			a, errA := strconv.Atoi(first)
			b, errB := strconv.Atoi(last)
			if errA != nil || errB != nil {
				return nil, fmt.Errorf("CLUSTER NODES of %s has a line %q", s.Addr(), line)
			}
			n.slots = append(n.slots, slotRange{a, b})
		}
		view[f[0]] = n
	}
	return view, nil
}

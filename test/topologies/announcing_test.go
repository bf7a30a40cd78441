package topologies

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// A waiter whose client could not find out yet how releases are announced.
func clusterBadStart(t *testing.T, c *redistest.Cluster) {
	const name = "bad start"
	holder := locktest.NewClient(t, c.Client()).NewLock(name)
	lease := locktest.MustLock(t, holder, rlock.WithLease(time.Hour))
	rdb := c.Client()
	var asked atomic.Int64
	rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
		if cmd.Name() == "hello" && len(cmd.Args()) == 1 && asked.Add(1) <= 2 {
			cmd.SetErr(net.ErrClosed)
			return cmd.Err()
		}
		return next()
	}})
	waiter := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewLock(name)
	got := make(chan *rlock.Lease, 1)
	go func() { got <- locktest.MustLock(t, waiter) }()
	channel := "redisson_lock__channel:{" + name + "}"
	node := c.MasterOf(c.Slot(name)).Client()
	locktest.Eventually(t, "it listens", func() bool { return node.PubSubShardNumSub(bg, channel).Val()[channel] == 1 })
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, <-got)
}

type pubSubMode struct {
	name           string
	mode           rlock.PubSubMode
	sharded, plain bool
}

// kinds is how many kinds of subscription a waiter has.
func (m pubSubMode) kinds() int {
	if m.sharded && m.plain {
		return 2
	}
	return 1
}

func clusterPubSub(t *testing.T, c *redistest.Cluster, on []*redis.Client, mode pubSubMode) {
	ctx := context.Background()
	a, b := locktest.Join(t, c.Client(), rlock.WithPubSub(mode.mode)), locktest.Join(t, c.Client(), rlock.WithPubSub(mode.mode))
	name := "mode:" + mode.name
	channel := "redisson_lock__channel:{" + name + "}"
	node := c.MasterOf(c.Slot(name)).Client()
	want := func(kind bool) int64 {
		if kind {
			return 1
		}
		return 0
	}

	// A release by a client of another kind, announced in one way only.
	for _, publish := range []string{"publish", "spublish"} {
		if publish == "publish" && !mode.plain || publish == "spublish" && !mode.sharded {
			continue
		}
		foreignHold(t, node, name)
		confirmed := a.Events.Confirmations(channel)
		w := a.LineParked(t, name)
		locktest.Eventually(t, "each kind of subscription is confirmed", func() bool {
			return a.Events.Confirmations(channel) == confirmed+mode.kinds()
		})
		if n := listeners(t, on, "shardnumsub", channel); n != want(mode.sharded) {
			t.Errorf("%d sharded subscribers, want %d", n, want(mode.sharded))
		}
		if n := listeners(t, on, "numsub", channel); n != want(mode.plain) {
			t.Errorf("%d plain subscribers, want %d", n, want(mode.plain))
		}
		released := time.Now()
		if err := node.Del(ctx, name).Err(); err != nil {
			t.Fatal(err)
		}
		if err := node.Do(ctx, publish, channel, "0").Err(); err != nil {
			t.Fatal(err)
		}
		lease, d := w.WokenByMessage(t, released)
		t.Logf("woken by a foreign %s after %v", strings.ToUpper(publish), d)
		locktest.MustUnlock(t, lease)
		noSubscriptionLeft(t, on)
	}

	// Our own releases, as strangers hear them.
	type stranger struct {
		kind, publish string
		ps            *redis.PubSub
		want          bool
	}
	strangers := []stranger{{"plain", "publish", node.Subscribe(ctx, channel), mode.plain}}
	if !redistest.IsOld() {
		strangers = append(strangers, stranger{"sharded", "spublish", node.SSubscribe(ctx, channel), mode.sharded})
	}
	for _, s := range strangers {
		defer s.ps.Close()
		if _, err := s.ps.ReceiveTimeout(ctx, locktest.Patience); err != nil {
			t.Fatal(err)
		}
	}
	locktest.MustUnlock(t, locktest.MustLock(t, b.NewLock(name)))
	if ok, err := func() (bool, error) {
		locktest.MustLock(t, b.NewLock(name))
		return a.NewLock(name).ForceUnlock(ctx)
	}(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, s := range strangers {
		if err := node.Do(ctx, s.publish, channel, "end").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, heard := range strangers {
		var got []string
		for {
			m, err := heard.ps.ReceiveTimeout(ctx, locktest.Patience)
			if err != nil {
				t.Fatal(err)
			}
			if m.(*redis.Message).Payload == "end" {
				break
			}
			got = append(got, m.(*redis.Message).Payload)
		}
		var want []string
		if heard.want {
			want = []string{"0", "0"} // of the Unlock and the ForceUnlock
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s messages %q, want %q", heard.kind, got, want)
		}
	}
}

// clusterConfirmsBoth releases a lock when one of two subscriptions is
// confirmed, and announces it on the other only.
func clusterConfirmsBoth(t *testing.T, c *redistest.Cluster) {
	ctx := context.Background()
	for _, late := range []string{"subscribe", "ssubscribe"} {
		t.Run(late+" is late", func(t *testing.T) {
			name := "late:" + late
			channel := "redisson_lock__channel:{" + name + "}"
			node := c.MasterOf(c.Slot(name)).Client()
			gate := make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			defer open()
			a := locktest.Join(t, c.Client(func(o *redis.ClusterOptions) {
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					return &gatedConn{conn, "\r\n" + late + "\r\n", gate}, err
				}
			}), rlock.WithPubSub(rlock.PubSubBoth))
			foreignHold(t, node, name)
			w := a.LineParked(t, name)
			if err := node.Del(ctx, name).Err(); err != nil {
				t.Fatal(err)
			}
			publish := strings.TrimSuffix(late, "ubscribe") // "s" or "ss"
			publish = strings.TrimPrefix(publish, "s") + "publish"
			if err := node.Do(ctx, publish, channel, "0").Err(); err != nil {
				t.Fatal(err)
			}
			opened := time.Now()
			open()
			lease, _ := w.WokenByMessage(t, opened)
			locktest.MustUnlock(t, lease)
		})
	}
}

// gatedConn holds a command back until its gate is opened.
type gatedConn struct {
	net.Conn
	command string
	gate    chan struct{}
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if strings.Contains(string(b), c.command) {
		<-c.gate
	}
	return c.Conn.Write(b)
}

func clusterManyWaiters(t *testing.T, c *redistest.Cluster, on []*redis.Client) {
	a, b := locktest.Join(t, c.Client()), locktest.Join(t, c.Client())
	var names []string
	slots := map[int]bool{}
	for i := range 60 {
		name := fmt.Sprintf("many:%d", i)
		names = append(names, name)
		slots[c.Slot(name)] = true
	}
	if len(slots) < 50 {
		t.Fatalf("only %d slots", len(slots))
	}
	held := map[string]*rlock.Lease{}
	for _, name := range names {
		held[name] = locktest.MustLock(t, a.NewLock(name))
	}

	// round lets to wait for all that from holds, disturbs, and hands over. looks is how
	// often a waiter looks before it sleeps.
	round := func(what string, from, to *locktest.Member, looks int, disturb func()) {
		t.Helper()
		waiting := map[string]*locktest.Waiter{}
		before := map[string]int{}
		for _, name := range names {
			before[name] = to.Looks.At(name)
			waiting[name] = to.Line(t, name)
		}
		for _, name := range names {
			to.Parked(t, name, before[name]+looks)
		}
		if disturb != nil {
			disturb()
		}
		released := map[string]time.Time{}
		for _, name := range names {
			released[name] = time.Now()
			locktest.MustUnlock(t, held[name])
		}
		var wakes []time.Duration
		for _, name := range names {
			lease, d := waiting[name].WokenByMessage(t, released[name])
			held[name] = lease
			wakes = append(wakes, d)
		}
		t.Logf("%s: %s", what, spread(wakes))
	}
	kill := func() {
		t.Helper()
		for _, node := range on {
			if err := node.Do(context.Background(), "client", "kill", "type", "pubsub").Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	round("60 locks released in a row", a, b, locktest.LooksBeforeSleep, nil)
	round("released in the moment when all subscriptions are killed", b, a, locktest.LooksBeforeSleep, kill)
	round("released when the subscriptions are rebuilt", a, b, 1, func() {
		before := map[string]int{}
		for _, name := range names {
			before[name] = b.Looks.At(name)
		}
		began := time.Now()
		kill()
		for _, name := range names {
			b.Parked(t, name, before[name]+1)
		}
		t.Logf("all 60 subscribed again after %v", time.Since(began))
	})
	for _, lease := range held {
		locktest.MustUnlock(t, lease)
	}
	noSubscriptionLeft(t, on)
}

package topologies

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// tokenSource is a type whose holds have tokens of the fencing clock.
type tokenSource struct {
	name string
	take func(t *testing.T, c *rlock.Client, name string) *rlock.Lease // a token of 0: it has none
}

// tokenSources are all of them.
func tokenSources() (all []tokenSource) {
	for _, k := range locktest.Types {
		if k.Shared || k.Name == "FencedLock" {
			continue
		}
		all = append(all, tokenSource{k.Name, func(t *testing.T, c *rlock.Client, name string) *rlock.Lease {
			return locktest.MustLock(t, k.Open(c, name))
		}})
	}
	must := func(t *testing.T, lease *rlock.Lease, err error) *rlock.Lease {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	return append(all,
		tokenSource{"Election", func(t *testing.T, c *rlock.Client, name string) *rlock.Lease {
			lease, err := c.NewElection(name).Campaign(bg, "")
			return must(t, lease, err)
		}},
		tokenSource{"DoubleBarrier", func(t *testing.T, c *rlock.Client, name string) *rlock.Lease {
			lease, err := c.NewDoubleBarrier(name, 1).Enter(bg)
			return must(t, lease, err)
		}},
		tokenSource{"fair PermitSemaphore", func(t *testing.T, c *rlock.Client, name string) *rlock.Lease {
			s := locktest.MustSetPermits(t, c.NewPermitSemaphore(name, rlock.WithFairness()), 1)
			lease, err := s.Acquire(bg, 1)
			must(t, lease, err)
			// Who waits draws its place in the queue.
			next := locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) { return s.Acquire(ctx, 1) })
			locktest.Eventually(t, "it waits", func() bool { state, err := s.State(bg); return err == nil && state.Waiters == 1 })
			locktest.MustUnlock(t, lease)
			return next.Held()
		}},
		tokenSource{"MultiLock", func(t *testing.T, c *rlock.Client, name string) *rlock.Lease {
			l, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("{" + name + "}1"), c.NewLock("{" + name + "}2")})
			if err != nil {
				t.Fatal(err)
			}
			return locktest.MustLock(t, l)
		}},
	)
}

// wantTokensAbove has a client take locks of all types, and checks their tokens.
func wantTokensAbove(t *testing.T, c *rlock.Client, names string, least int64) {
	t.Helper()
	for _, s := range tokenSources() {
		lease := s.take(t, c, names+s.name)
		if token := lease.Token(); token != 0 && token <= least {
			t.Errorf("%s: token %d, and %d was given before", s.name, token, least)
		}
		locktest.MustUnlock(t, lease)
	}
	name := names + "Once"
	_, _, err := c.NewOnce(name, time.Minute).Do(bg, func(context.Context) ([]byte, error) {
		if s, err := c.NewOnce(name, time.Minute).State(bg); err != nil || s.Token != 0 && s.Token <= least {
			t.Errorf("Once: %+v, %v", s, err)
		}
		return nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// clockKeys are the fencing clocks of some servers.
func clockKeys(t *testing.T, servers ...*redistest.Server) (keys []string) {
	t.Helper()
	for _, s := range servers {
		all, err := s.Client().Keys(bg, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range all {
			if locktest.IsClock(key) {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// moveData copies all keys of some servers to where the client puts them, as redis-cli --cluster
// import does, or a restore.
func moveData(t *testing.T, to redis.UniversalClient, from ...*redistest.Server) {
	t.Helper()
	for _, s := range from {
		rdb := s.Client()
		keys, err := rdb.Keys(bg, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			dump, err := rdb.Dump(bg, key).Result()
			if err == nil {
				err = to.Restore(bg, key, max(0, rdb.PTTL(bg, key).Val()), dump).Err()
			}
			if err != nil {
				t.Fatal(key, err)
			}
		}
	}
}

// inMicros is the time in µs, some way off.
func inMicros(d time.Duration) int64 { return time.Now().Add(d).UnixMicro() }

// The fencing clocks of a cluster are those of the slots in use, all with the prefix, and a key that
// keeps clients from using one clock.
func TestFencingClocksOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for prefix, rdb := range map[string]redis.UniversalClient{"": c.Client(), "app:": c.Client(), "wrapped:": opaque{c.Client()}} {
		client := locktest.NewClient(t, rdb, rlock.WithPrefix(prefix))
		want := map[string]bool{prefix + "rlock:clock": true}
		slots := map[int]bool{}
		for i := range 40 {
			name := fmt.Sprint("order:", i)
			locktest.Pair(t, client.NewLock(name))
			slots[c.Slot(prefix+name)] = true
		}
		keys := slices.DeleteFunc(clockKeys(t, c.Nodes...), func(key string) bool { return !strings.HasPrefix(key, prefix+"rlock:") })
		for _, key := range keys {
			if !want[key] && !slots[c.Slot(key)] {
				t.Errorf("%q is in the slot of no lock", key)
			}
		}
		if len(keys) != len(slots)+1 {
			t.Errorf("with the prefix %q: %d clocks for %d slots: %q", prefix, len(keys), len(slots), keys)
		}
	}
	// A hash tag in the prefix: one slot, and one clock.
	client := locktest.NewClient(t, c.Client(), rlock.WithPrefix("{tagged}:"))
	wantTokensAbove(t, client, "a", 0)
	for _, key := range clockKeys(t, c.Nodes...) {
		if strings.HasPrefix(key, "{tagged}:") && key != "{tagged}:rlock:clock" {
			t.Errorf("%q", key)
		}
	}
}

// saysStandalone is a hook that makes the server say that it is not in cluster mode, as a proxy does.
type saysStandalone struct{ redis.Hook }

func (saysStandalone) DialHook(next redis.DialHook) redis.DialHook { return next }

func (saysStandalone) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (saysStandalone) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if reply, ok := cmd.(interface{ SetVal(any) }); ok && cmd.Name() == "hello" && err == nil {
			reply.SetVal([]any{"version", "7.0.0", "mode", "standalone"})
		}
		return err
	}
}

// Whatever a client believes of a cluster, it draws the tokens of a lock from the key from which
// others draw them.
func TestClientsOfAClusterShareAFencingClock(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	names := []string{"order:1", "order:2"}
	for i := 0; len(names) < 3; i++ { // one in the slot where a single clock would be
		if name := fmt.Sprint("lock:", i); c.Slot(name) == c.Slot("rlock:clock") {
			names = append(names, name)
		}
	}
	for _, name := range names {
		node := c.MasterOf(c.Slot(name))
		lying, lyingNode := c.Client(), node.Client()
		lying.AddHook(saysStandalone{})
		lyingNode.AddHook(saysStandalone{})
		last, ahead := int64(0), inMicros(time.Hour)
		for i, rdb := range []redis.UniversalClient{c.Client(), node.Client(), lying, lyingNode, opaque{c.Client()}, c.Client()} {
			modes := []rlock.PubSubMode{rlock.PubSubAuto, rlock.PubSubPlain, rlock.PubSubSharded}
			client := locktest.NewClient(t, rdb, rlock.WithPubSub(modes[i%3]))
			for range 2 {
				lease := locktest.MustLock(t, client.NewLock(name))
				token := lease.Token()
				locktest.MustUnlock(t, lease)
				switch {
				case last == 0: // from here on only the key tells which token is next
					for _, key := range clockKeys(t, node) {
						if c.Slot(key) == c.Slot(name) && strings.HasSuffix(key, "}") {
							c.Client().Set(bg, key, ahead, 0)
						}
					}
					last = ahead
				case token != last+1:
					t.Errorf("client %d of %q: token %d after %d", i, name, token, last)
					last = token
				default:
					last = token
				}
			}
		}
	}
}

// Tokens do not go back when the data of a server become those of a cluster, nor when they become
// those of one server again, though the clocks of the new servers are behind.
func TestTokensOverAMoveToAClusterAndBack(t *testing.T) {
	t.Parallel()
	before, c, after := redistest.Start(t), redistest.StartCluster(t, 3, 0), redistest.Start(t)
	prefix := rlock.WithPrefix("app:")
	old := locktest.NewClient(t, before.Client(), prefix)
	wantTokensAbove(t, old, "", 0)
	if keys := clockKeys(t, before); !slices.Equal(keys, []string{"app:rlock:clock"}) {
		t.Fatalf("%q", keys)
	}
	ahead := inMicros(30 * time.Minute)
	before.Client().Set(bg, "app:rlock:clock", ahead, 0)
	moveData(t, c.Client(), before)
	wantTokensAbove(t, locktest.NewClient(t, c.Client(), prefix), "", ahead)
	wantTokensAbove(t, locktest.NewClient(t, opaque{c.Client()}, prefix), "more ", ahead)

	// And back: each slot has a clock, any of which may be the highest.
	ahead = inMicros(2 * time.Hour)
	rdb := c.Client()
	for _, key := range clockKeys(t, c.Nodes...) {
		if key != "app:rlock:clock" {
			rdb.Set(bg, key, ahead, 0)
			break
		}
	}
	moveData(t, after.Client(), c.Nodes...)
	for _, names := range []string{"", "more ", "others "} {
		wantTokensAbove(t, locktest.NewClient(t, after.Client(), prefix), names, ahead)
	}
	if keys := clockKeys(t, after); !slices.Equal(keys, []string{"app:rlock:clock"}) {
		t.Errorf("left: %q", keys)
	}
	if kind := after.Client().Type(bg, "app:rlock:clock").Val(); kind != "string" {
		t.Errorf("the clock is a %s", kind)
	}
}

// Each type finds the right clock by itself when the first thing that it does is to draw from the
// wrong one.
func TestEachTypeNoticesThatDataWereACluster(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client()
	for i, source := range tokenSources() {
		prefix := fmt.Sprint(i, ":")
		client := locktest.NewClient(t, rdb, rlock.WithPrefix(prefix))
		ahead := inMicros(time.Hour)
		rdb.HSet(bg, prefix+"rlock:clock", "floor", ahead)
		lease := source.take(t, client, "a")
		if token := lease.Token(); token != 0 && token != ahead+1 {
			t.Errorf("%s: token %d, want %d", source.name, token, ahead+1)
		}
		locktest.MustUnlock(t, lease)
		if keys := rdb.Keys(bg, prefix+"rlock:clock*").Val(); len(keys) != 1 || rdb.Get(bg, keys[0]).Val() == "" {
			t.Errorf("%s: %q", source.name, keys)
		}
	}
}

// A client that runs while its server is replaced by a node of a cluster finds the clocks of the
// slots.
func TestClientOverAMoveToACluster(t *testing.T) {
	t.Parallel()
	before, c := redistest.Start(t), redistest.StartCluster(t, 1, 0)
	var addr atomic.Value
	addr.Store(before.Addr())
	rdb := before.Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		}
	})
	client := locktest.NewClient(t, rdb)
	wantTokensAbove(t, client, "", 0)
	multi := locktest.MultiLockOf(t, client, "a", "b", "c") // of three slots
	locktest.MustUnlock(t, locktest.MustLock(t, multi))
	ahead := inMicros(30 * time.Minute)
	before.Client().Set(bg, "rlock:clock", ahead, 0)
	moveData(t, c.Client(), before)
	addr.Store(c.Nodes[0].Addr())
	before.Kill()
	for _, acquire := range locktest.Acquires(multi) {
		lease, err := acquire(bg)
		if err != nil {
			t.Fatal(err)
		}
		if token := lease.Token(); token <= ahead {
			t.Errorf("token %d after %d", token, ahead)
		}
		locktest.MustUnlock(t, lease)
	}
	wantTokensAbove(t, client, "", ahead)
	wantTokensAbove(t, locktest.NewClient(t, c.Client()), "", ahead)
}

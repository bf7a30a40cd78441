package topologies

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// embedding is a wrapper that hands on all that the cluster client can do.
type embedding struct{ *redis.ClusterClient }

// opaque is a wrapper that shows nothing of the client inside.
type opaque struct{ redis.UniversalClient }

// Clients that lead to one deployment wake each other by message, whatever the Go
// type of their go-redis client and the permissions of their user.
func TestReleaseWakesClientsOfEveryKind(t *testing.T) {
	t.Parallel()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		for _, s := range c.Nodes {
			err := s.Client().Do(bg, "acl", "setuser", "shy", "on", ">pw", "~*", "&*", "+@all", "-pubsub").Err()
			if err != nil {
				t.Fatal(err)
			}
		}
		const name = "kinds"
		shy := func(o *redis.ClusterOptions) { o.Username, o.Password = "shy", "pw" }
		wakeEachOther(t, name, c.Client(), map[string]redis.UniversalClient{
			"embedded":               embedding{c.Client()},
			"wrapped":                opaque{c.Client()},
			"may not ask":            c.Client(shy),
			"of the node, by itself": c.MasterOf(c.Slot(name)).Client(),
		})
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t)
		// What UniversalOptions with a MasterName and RouteRandomly make, but for a
		// goroutine that outlives its Close.
		nodes := []redis.ClusterNode{{Addr: s.Master.Addr()}}
		for _, r := range s.Replicas {
			nodes = append(nodes, redis.ClusterNode{Addr: r.Addr()})
		}
		random := redis.NewClusterClient(&redis.ClusterOptions{
			RouteRandomly: true,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 1<<14 - 1, Nodes: nodes}}, nil
			},
		})
		t.Cleanup(func() { _ = random.Close() })
		wakeEachOther(t, "kinds", s.Client(), map[string]redis.UniversalClient{"routed at random": random})
	})
}

// wakeEachOther hands a lock from an ordinary client to others and back. No poll
// comes in between.
func wakeEachOther(t *testing.T, name string, ordinary redis.UniversalClient, others map[string]redis.UniversalClient) {
	opts := []rlock.Option{rlock.WithLongestPoll(5 * time.Minute), rlock.WithWatchdogLease(10 * time.Minute)}
	a := locktest.Join(t, ordinary, opts...)
	for kind, rdb := range others {
		b := locktest.Join(t, rdb, opts...)
		lock := "{" + name + "}:" + kind // a client that has waited for it stays subscribed
		for _, pair := range []struct {
			text     string
			from, to *locktest.Member
		}{{"to", a, b}, {"from", b, a}} {
			lease := locktest.MustLock(t, pair.from.NewLock(lock))
			w := pair.to.LineParked(t, lock)
			released := time.Now()
			locktest.MustUnlock(t, lease)
			next, after := w.Lease(t, released)
			t.Logf("%s a client that is %s: %v", pair.text, kind, after)
			locktest.MustUnlock(t, next)
		}
	}
}

package topologies

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// The client of a wrapped cluster client listens over one connection to each node, however many slots
// it waits for, also after one has moved.
func TestWrappedClusterClientListensOnAConnectionForEachNode(t *testing.T) {
	redistest.NeedSharded(t)
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	holder := locktest.NewClient(t, c.Client())
	waits := locktest.NewClient(t, opaque{c.Client()}, rlock.WithLongestPoll(time.Second))
	const locks = 30
	var held []*rlock.Lease
	var waiters []*locktest.Attempt
	for i := range locks {
		name := fmt.Sprint("lock", i)
		held = append(held, locktest.MustLock(t, holder.NewLock(name), rlock.WithLease(time.Hour)))
		waiters = append(waiters, locktest.Begin(t, bg, waits.NewLock(name)))
	}
	var nodes []*redis.Client
	for _, s := range c.Nodes {
		nodes = append(nodes, s.Client())
	}
	channels, connections := 0, 0
	settled := func() bool {
		channels, connections = 0, 0
		for _, rdb := range nodes {
			for _, channel := range rdb.PubSubShardChannels(bg, "*").Val() {
				if strings.HasSuffix(channel, "}") { // those with the id of the client behind it come later
					channels++
				}
			}
			connections += strings.Count(rdb.Do(bg, "client", "list", "type", "pubsub").String(), "id=")
		}
		return channels == locks && connections <= len(nodes)
	}
	t.Cleanup(func() { t.Logf("%d channels over %d connections", channels, connections) })
	locktest.Eventually(t, "it listens to all, over few connections", settled)
	slot := c.Slot("lock7")
	c.MigrateSlot(slot, elsewhere(c, slot))
	to := c.MasterOf(slot).Client()
	locktest.Eventually(t, "it listens at the new node", func() bool {
		return len(to.PubSubShardChannels(bg, "*{lock7}").Val()) == 1 && settled()
	})
	for i := range held {
		locktest.MustUnlock(t, held[i])
		locktest.MustUnlock(t, waiters[i].Held())
	}
}

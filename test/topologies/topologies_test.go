package topologies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// spread is the median and maximum, for logs.
func spread(d []time.Duration) string {
	slices.Sort(d)
	return fmt.Sprintf("median %v, longest %v of %d", d[len(d)/2], d[len(d)-1], len(d))
}

// nodes are clients of the single servers of a cluster.
func nodes(c *redistest.Cluster) []*redis.Client {
	var all []*redis.Client
	for _, s := range c.Nodes {
		all = append(all, s.Client(func(o *redis.Options) { o.MaxRetries = -1 }))
	}
	return all
}

// listeners sums up what PUBSUB NUMSUB or SHARDNUMSUB says on all nodes.
func listeners(t testing.TB, on []*redis.Client, command, channel string) (n int64) {
	t.Helper()
	if command == "shardnumsub" && redistest.IsOld() {
		return 0
	}
	for _, node := range on {
		r, err := node.Do(context.Background(), "pubsub", command, channel).Result()
		if err != nil {
			t.Fatal(err)
		}
		switch r := r.(type) {
		case []any:
			n += r[1].(int64)
		case map[any]any:
			n += r[channel].(int64)
		default:
			t.Fatalf("PUBSUB %s: %T", command, r)
		}
	}
	return n
}

// noSubscriptionLeft waits until no node has a channel with a subscriber.
func noSubscriptionLeft(t testing.TB, on []*redis.Client) {
	t.Helper()
	for _, command := range []string{"channels", "shardchannels"} {
		if command == "shardchannels" && redistest.IsOld() {
			continue // it has none
		}
		locktest.Eventually(t, "PUBSUB "+strings.ToUpper(command)+" is empty", func() bool {
			for _, node := range on {
				list, err := node.Do(context.Background(), "pubsub", command).StringSlice()
				if err != nil {
					t.Fatal(err)
				}
				// Sentinels and their masters have channels of their own.
				list = slices.DeleteFunc(list, func(c string) bool { return strings.HasPrefix(c, "__") })
				if len(list) > 0 {
					return false
				}
			}
			return true
		})
	}
}

// foreignHold is a hold of a client of another kind.
func foreignHold(t testing.TB, node redis.Cmdable, name string) {
	t.Helper()
	ctx := context.Background()
	if err := node.HSet(ctx, name, "1b4e28ba-2fa1-41d2-883f-0016d3cca427:42", 1).Err(); err != nil {
		t.Fatal(err)
	}
	if err := node.PExpire(ctx, name, 5*time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
}

func knowsScript(t testing.TB, node *redis.Client, name string) bool {
	t.Helper()
	known, err := node.ScriptExists(context.Background(), locktest.SHA(name)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return known[0]
}

package processes

import (
	"context"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// What docs/operations.md says of the memory of locks in Redis, and that nothing stays of them but the fencing
// clock, and the key of the client.
func TestMemoryOfLocksInRedis(t *testing.T) {
	t.Parallel()
	const locks = 5_000
	b := locktest.OnServer(t)
	ctx, rdb := context.Background(), b.Client(t)
	c := b.NewClient(t, rlock.WithWatchdogLease(rlock.MaxLease))
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("order:0000000"))) // scripts, connections, the clock
	before := usedMemory(t, rdb)
	held := make([]*rlock.Lease, locks)
	for i := range held {
		held[i] = locktest.MustLock(t, c.NewLock("order:"+strconv.Itoa(1_000_000+i)))
	}
	if n := rdb.MemoryUsage(ctx, "order:1000007").Val(); n <= 0 || n > 136 {
		t.Errorf("the key of a lock takes %d bytes", n)
	}
	// The tables of a server that has few keys grow in steps.
	if each := (usedMemory(t, rdb) - before) / locks; each <= 0 || each > 300 {
		t.Errorf("a held lock takes %d bytes of Redis", each)
	}
	for _, lease := range held {
		locktest.MustUnlock(t, lease)
	}
	if keys := locktest.Keys(t, rdb); len(keys) != 0 || rdb.Exists(ctx, "rlock:clock").Val() != 1 {
		t.Errorf("%d keys are left, %.200q", len(keys), keys)
	}
}

func usedMemory(t *testing.T, rdb redis.UniversalClient) int {
	info, err := rdb.Info(context.Background(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^used_memory:(\d+)`).FindStringSubmatch(info)
	if m == nil {
		t.Fatal(info)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

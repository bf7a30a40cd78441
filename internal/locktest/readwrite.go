package locktest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ReaderTimer is the key of a read hold's timer.
func ReaderTimer(name, owner string, n int) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return fmt.Sprintf("%s:%s:rwlock_timeout:%d", name, owner, n)
}

// ReadWriteChannel is where the releases of a lock are published.
func ReadWriteChannel(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_rwlock:" + name
	}
	return "redisson_rwlock:{" + name + "}"
}

// ReadWriteSubscribers is how many connections listen to a lock, on all nodes.
func ReadWriteSubscribers(t testing.TB, rdb redis.UniversalClient, name string) int64 {
	t.Helper()
	var total atomic.Int64
	look := func(ctx context.Context, node *redis.Client) error {
		n, err := node.PubSubNumSub(ctx, ReadWriteChannel(name)).Result()
		total.Add(n[ReadWriteChannel(name)])
		return err
	}
	var err error
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(bg, look)
	case *redis.Client:
		err = look(bg, rdb)
	}
	if err != nil {
		t.Fatal(err)
	}
	return total.Load()
}

// HearReadWrite listens to the channel of a lock. Each call returns what was
// published since the one before.
func HearReadWrite(t testing.TB, rdb redis.UniversalClient, name string) func() []string {
	t.Helper()
	sub := rdb.Subscribe(bg, ReadWriteChannel(name))
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(bg); err != nil {
		t.Fatal(err)
	}
	return func() (heard []string) {
		t.Helper()
		// From the node of the lock: messages of different nodes may overtake each other.
		if err := rdb.Eval(bg, "return redis.call('publish', ARGV[1], 'end')", []string{name}, ReadWriteChannel(name)).Err(); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := sub.ReceiveMessage(bg)
			if err != nil {
				t.Fatal(err)
			}
			if m.Payload == "end" {
				return heard
			}
			heard = append(heard, m.Payload)
		}
	}
}

// JavaReadLock does with raw commands what Redisson's scripts do, step by step.
type JavaReadLock struct {
	RDB  redis.UniversalClient
	Name string
}

// Read adds a hold, or a count to one.
func (j JavaReadLock) Read(owner string, lease time.Duration) {
	ttl := max(j.RDB.PTTL(bg, j.Name).Val(), lease)
	j.RDB.HSet(bg, j.Name, "mode", "read")
	n := j.RDB.HIncrBy(bg, j.Name, owner, 1).Val()
	j.RDB.Set(bg, ReaderTimer(j.Name, owner, int(n)), 1, lease)
	j.RDB.PExpire(bg, j.Name, ttl)
}

// Renew gives the timers of an owner 30 s.
func (j JavaReadLock) Renew(owner string) {
	n := 0
	fmt.Sscan(j.RDB.HGet(bg, j.Name, owner).Val(), &n)
	for ; n > 0; n-- {
		j.RDB.PExpire(bg, ReaderTimer(j.Name, owner, n), 30*time.Second)
	}
	j.RDB.PExpire(bg, j.Name, 30*time.Second)
}

// Release returns Redisson's reply: 1 if it deleted the lock.
func (j JavaReadLock) Release(owner string) int {
	n := j.RDB.HIncrBy(bg, j.Name, owner, -1).Val()
	if n == 0 {
		j.RDB.HDel(bg, j.Name, owner)
	}
	j.RDB.Del(bg, ReaderTimer(j.Name, owner, int(n)+1))
	fields := j.RDB.HGetAll(bg, j.Name).Val()
	if len(fields) > 1 {
		longest := time.Duration(-3)
		for field, value := range fields {
			n := 0
			if _, err := fmt.Sscan(value, &n); err != nil {
				continue
			}
			for ; n > 0; n-- {
				longest = max(longest, j.RDB.PTTL(bg, ReaderTimer(j.Name, field, n)).Val())
			}
		}
		if longest > 0 {
			j.RDB.PExpire(bg, j.Name, longest)
			return 0
		}
		if fields["mode"] == "write" {
			return 0
		}
	}
	j.RDB.Del(bg, j.Name)
	j.RDB.Publish(bg, ReadWriteChannel(j.Name), "0")
	return 1
}

// JavaOwner is an owner as Redisson writes it.
const JavaOwner = "6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:57"

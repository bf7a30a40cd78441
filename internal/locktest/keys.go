package locktest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// IsClock reports whether a key is a fencing clock, of any prefix.
func IsClock(key string) bool {
	return strings.HasSuffix(key, "rlock:clock") || strings.Contains(key, "rlock:clock:{")
}

// IsClient reports whether a client introduces itself under a key, of any prefix.
func IsClient(key string) bool { return strings.Contains(key, "rlock:client:") }

// Keys are all keys but the fencing clocks, which are there for good, and the keys of clients, which
// last for ten minutes.
func Keys(t testing.TB, rdb redis.UniversalClient) (keys []string) {
	t.Helper()
	all, err := rdb.Keys(bg, "*").Result()
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		all = nil
		err = cluster.ForEachMaster(bg, func(ctx context.Context, node *redis.Client) error {
			some, err := node.Keys(ctx, "*").Result()
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if !IsClock(k) && !IsClient(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// MustBeEmpty checks that Redis holds nothing but fencing clocks, and clients.
func MustBeEmpty(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	if keys := Keys(t, rdb); len(keys) > 0 {
		t.Fatalf("left in Redis: %q", keys)
	}
}

// HoldCount is the count that the hash of a lock has for an owner; "" if there is none.
func HoldCount(t testing.TB, rdb redis.UniversalClient, name, owner string) string {
	t.Helper()
	n, err := rdb.HGet(bg, name, owner).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// Tombstones counts the keys that expire: tombstones of hold ids.
func Tombstones(keys []string) (n int) {
	for _, k := range keys {
		// The key of the round of a read-write lock goes within a second.
		if strings.Contains(k, ":rlock:gone:") || strings.HasSuffix(k, ":rlock:admitted") {
			n++
		}
	}
	return n
}

// OnlyTombstones checks that nothing else is left, or not for long: a request that
// is on its way when its waiter leaves is undone a moment later.
func OnlyTombstones(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	keys := Keys(t, rdb)
	for began := time.Now(); Tombstones(keys) != len(keys); keys = Keys(t, rdb) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("left in Redis: %q", keys)
		}
		Pause(began)
	}
	for _, k := range keys {
		ttl := rdb.PTTL(bg, k).Val()
		if ttl == -2 {
			continue // it has just gone
		}
		if ttl <= 0 || ttl > time.Minute {
			t.Fatalf("tombstone %s has TTL %v", k, ttl)
		}
	}
}

// MustBeForgotten checks that nothing is left of locks with such a name but
// tombstones and the counters of fenced ones.
func MustBeForgotten(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("left in Redis: %q", left)
		}
	}()
	Eventually(t, "Redis has forgotten the lock", func() bool {
		left = nil
		for _, key := range Keys(t, rdb) {
			if strings.Contains(key, name) && !strings.Contains(key, ":rlock:gone:") && !strings.HasPrefix(key, "redisson_lock_token:") {
				left = append(left, key)
			}
		}
		return len(left) == 0
	})
}

// NothingLeft waits until nothing is left of any lock; a release or give-up
// that had no answer in time goes on in the background.
func NothingLeft(t testing.TB, rdbs ...redis.UniversalClient) {
	t.Helper()
	for _, rdb := range rdbs {
		var left []string
		ok := func() bool {
			left = slices.DeleteFunc(Keys(t, rdb), func(key string) bool {
				return strings.Contains(key, ":rlock:gone:") || strings.HasPrefix(key, "redisson_lock_token:") ||
					strings.HasPrefix(key, "rlock:red:") || strings.HasSuffix(key, "rlock:red:counter")
			})
			return len(left) == 0
		}
		for began := time.Now(); !ok(); Pause(began) {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("left in Redis: %q", left)
			}
		}
	}
}

// WantKeys checks that Redis holds these keys and nothing else but fencing clocks, and clients: see
// WantClients.
func WantKeys(t testing.TB, rdb redis.UniversalClient, want ...string) {
	t.Helper()
	left := map[string]bool{}
	for _, key := range Keys(t, rdb) {
		// Tombstones expire. They are made only when a reply was so
		// late that a request was sent again, which a busy machine may cause.
		if !strings.Contains(key, ":rlock:gone:") {
			left[key] = true
		}
	}
	for _, key := range want {
		if !left[key] {
			t.Errorf("key %q is gone", key)
		}
		delete(left, key)
	}
	if keys := slices.Collect(maps.Keys(left)); len(keys) > 0 {
		t.Errorf("%d keys are left behind, such as %q", len(keys), keys[:min(len(keys), 5)])
	}
}

// WantClients checks that the keys that say who clients were expire.
func WantClients(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	keys, err := rdb.Keys(bg, "*rlock:client:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if ttl := rdb.PTTL(bg, key).Val(); ttl == -1 || ttl > 10*time.Minute {
			t.Errorf("the key of a client lasts for %v", ttl)
		}
	}
}

// MustClose closes clients.
func MustClose(t testing.TB, clients ...*rlock.Client) {
	t.Helper()
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Subscribers is how many connections listen to a lock's releases.
func Subscribers(t testing.TB, rdb redis.UniversalClient, lock string) int64 {
	t.Helper()
	channel := "redisson_lock__channel:{" + lock + "}"
	n, err := rdb.PubSubNumSub(context.Background(), channel).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n[channel]
}

// Waiters is how many wait for a lock in its client.
func Waiters(t testing.TB, l rlock.Inspector) int {
	t.Helper()
	if _, err := l.State(bg); err != nil {
		t.Fatal(err)
	}
	return seam.Waiters(l)
}

// DeleteAll deletes all keys but the fencing clocks.
func DeleteAll(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	if keys := Keys(t, rdb); len(keys) > 0 {
		if err := rdb.Del(bg, keys...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// WantHash checks the fields of a hash.
func WantHash(t testing.TB, rdb redis.UniversalClient, name string, want map[string]string) {
	t.Helper()
	got, err := rdb.HGetAll(bg, name).Result()
	if err != nil || !maps.Equal(got, want) {
		t.Helper()
		t.Fatalf("hash of %s: %v (%v), want %v", name, got, err, want)
	}
}

// WantTTL checks that a key's time is at most d and not much less: a busy machine may take its time.
func WantTTL(t testing.TB, rdb redis.UniversalClient, key string, d time.Duration) {
	t.Helper()
	if ttl := rdb.PTTL(bg, key).Val(); ttl > d || ttl < d-max(8*time.Second, min(d/2, 2*time.Minute)) {
		t.Fatalf("TTL of %s is %v, want up to %v", key, ttl, d)
	}
}

package processes

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// 10,000 locks are found among 100,000 keys of others, a fifth of both every day, on a server and in a cluster. What the search keeps
// does not grow with them. Not in parallel: others allocate too.
func TestLocksAreFoundAmongForeignKeys(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *locktest.Backend{
		"standalone": func(t testing.TB) *locktest.Backend { return locktest.OnServer(t) },
		"cluster":    locktest.OnCluster,
	} {
		t.Run(name, func(t *testing.T) {
			locks, foreign := 10_000, 100_000
			if !locktest.IsThorough() {
				locks, foreign = locks/5, foreign/5
			}
			b := open(t)
			rdb := b.Client(t)
			fill := func(n int, put func(pipe redis.Pipeliner, i int)) {
				t.Helper()
				for i := 0; i < n; i += 1000 {
					if _, err := rdb.Pipelined(bg, func(pipe redis.Pipeliner) error {
						for j := i; j < i+1000; j++ {
							put(pipe, j)
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
			}
			client := uuid.NewString()
			fill(locks, func(pipe redis.Pipeliner, i int) {
				key := fmt.Sprint("app:lock ", i)
				pipe.HSet(bg, key, fmt.Sprint(client, ":", i), 1)
				pipe.PExpire(bg, key, time.Hour)
			})
			fill(foreign, func(pipe redis.Pipeliner, i int) {
				switch key := fmt.Sprint("app:other ", i); i % 4 {
				case 0:
					pipe.Set(bg, key, i, 0)
				case 1:
					pipe.HSet(bg, key, "page:1", i)
					pipe.PExpire(bg, key, time.Hour)
				case 2:
					pipe.ZAdd(bg, key, redis.Z{Score: 1, Member: i})
				case 3:
					pipe.HSet(bg, fmt.Sprint("others:", i), fmt.Sprint(client, ":", i), 1) // without the prefix
				}
			})
			c := locktest.NewClient(t, rdb, rlock.WithPrefix("app:"))
			seen := make([]bool, locks)
			var before, during runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			began, n := time.Now(), 0
			for f, err := range c.Locks(bg, "") {
				if err != nil {
					t.Fatal(err)
				}
				i := -1
				if _, err := fmt.Sscanf(f.Name, "lock %d", &i); err != nil || f.Type != "Lock" || len(f.State.Holders) != 1 || f.State.Holders[0].HoldID != fmt.Sprint(client, ":", i) || f.State.TTL <= 0 {
					t.Fatalf("%+v", f)
				}
				seen[i] = true
				if n++; n == locks*9/10 {
					runtime.GC()
					runtime.ReadMemStats(&during)
				}
			}
			for i, seen := range seen {
				if !seen {
					t.Errorf("lock %d was not found", i)
				}
			}
			kept := int64(during.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("%d locks in %v, %d KiB kept", n, time.Since(began), kept>>10)
			if kept > 8<<20 {
				t.Errorf("%d bytes are kept", kept)
			}
		})
	}
}

package main

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// What is at the name of a lock and is no lock is never freed.
func TestUnlockLeavesDataAlone(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	for name, fields := range map[string][]any{
		"cart:7":    {"product:12", 3},
		"session:7": {"285475da-9152-4c83-822a-67ee2f116a79", 1, "mode", "read"},
		"kept:7":    {"285475da-9152-4c83-822a-67ee2f116a79:52", 1}, // as a hold, but without a TTL
	} {
		if err := rdb.HSet(t.Context(), name, fields...).Err(); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"--force"}, {"--hold", fields[0].(string)}, {"--force", "--type", "lock"}, {"--force", "--type", "rw"}, {"--hold", fields[0].(string), "--type", "fair"},
		} {
			if r := tl.run(append([]string{"unlock", name}, args...)...); r.code == 0 {
				t.Errorf("unlock %s %q: %v", name, args, r)
			}
			if n := rdb.HLen(t.Context(), name).Val(); n != int64(len(fields)/2) {
				t.Fatalf("unlock %s %q: %d fields are left", name, args, n)
			}
		}
	}
}

// Permits are deleted with their number, and only once.
func TestSemDelete(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	for _, more := range [][]string{nil, {"--fair"}} {
		remove := append([]string{"sem", "pool", "--delete"}, more...)
		has(t, tl.want(exitBusy, remove...).err, "pool has no permits")
		tl.want(0, append([]string{"sem", "pool", "--permits", "2", "--set"}, more...)...)
		tl.want(0, remove...)
		has(t, tl.want(exitBusy, append(remove, "--json")...).out, `"deleted":false`)
		tl.want(exitUsage, append(remove, "--permits", "2")...)
		tl.want(exitUsage, append(remove, "--", "true")...)
	}
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	if n := rdb.Exists(t.Context(), "pool", "{pool}:timeout", "{pool}:rlock:all", "{pool}:rlock:permits", "{pool}:rlock:permits:ends").Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

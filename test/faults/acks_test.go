package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// An error of WAIT says nothing of the script before it, which has run: an acquire that fails by
// it leaves no hold, whether a user of Redis may not WAIT, or the error usually means "not now".
func TestErrorOfWaitLeavesNoHold(t *testing.T) {
	t.Parallel()
	attempt := func(t *testing.T, ctx context.Context, rdb, admin redis.UniversalClient) {
		c := locktest.NewClient(t, rdb, rlock.WithReplicaAck(1, 100*time.Millisecond))
		if lease, err := c.NewLock("a").TryLock(ctx); err == nil {
			locktest.MustUnlock(t, lease)
			t.Fatal("granted")
		}
		locktest.Eventually(t, "the hold is ended", func() bool { return admin.Exists(bg, "a").Val() == 0 })
		if n := locktest.Tombstones(locktest.Keys(t, admin)); n == 0 {
			t.Error("the script has not run") // or the test shows nothing
		}
	}
	locktest.Beside(t, "forbidden", func(t *testing.T) {
		b := locktest.OnServer(t)
		admin := b.Client(t)
		if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "&*", "+@all", "-wait").Err(); err != nil {
			t.Fatal(err)
		}
		rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "p"})
		t.Cleanup(func() { _ = rdb.Close() })
		attempt(t, bg, rdb, admin)
	})
	locktest.Beside(t, "not now", func(t *testing.T) {
		b := locktest.OnServer(t)
		proxy := faultproxy.New(t, b.Addr)
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		refused := 0
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.Name == "wait" {
				if refused++; refused == 3 {
					cancel() // those before have been heard, and are tried again
				}
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
		attempt(t, ctx, locktest.Dialer(proxy.Addr())(t, nil), b.Client(t))
	})
}

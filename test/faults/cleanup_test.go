package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// While Redis does not answer, a client asks with a PING whether it does, and sends its clean-ups
// when it does.
func TestCleanUpsWaitUntilRedisAnswers(t *testing.T) {
	t.Parallel()
	const callers = 40
	b := locktest.OnMiniredis(t)
	proxy := faultproxy.New(t, b.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 2 * callers, MaxRetries: -1, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = rdb.Close() })
	locktest.LoadScripts(t, rdb, "lock/enter", "lock/abandon")
	each := seam.Option(seam.Env{Alone: 2 * callers}).(rlock.Option) // none waits in this process
	c := locktest.NewClient(t, rdb, each, rlock.WithCommandTimeout(time.Minute), rlock.WithWatchdogLease(5*time.Minute))
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("warm")))

	enter, abandon := locktest.SHA("lock/enter"), locktest.SHA("lock/abandon")
	isEnter := func(cmd faultproxy.Command) bool { return cmd.IsScript(enter) }
	isAbandon := func(cmd faultproxy.Command) bool { return cmd.IsScript(abandon) }
	isPing := func(cmd faultproxy.Command) bool { return cmd.Name == "ping" }
	proxy.ResetLog()
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		switch {
		case isEnter(cmd):
			return faultproxy.Hold
		case isAbandon(cmd), isPing(cmd):
			return faultproxy.ResetBefore
		}
		return faultproxy.Pass
	})
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			if _, err := c.NewLock(fmt.Sprint("lock", i)).TryLock(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	locktest.Eventually(t, "all acquires are sent", func() bool { return proxy.Count(isEnter) == callers })
	cancel()
	wg.Wait()
	locktest.Eventually(t, "it asks whether Redis answers", func() bool {
		return proxy.Count(isPing) >= 5 || proxy.Count(isAbandon) > 5*callers
	})
	if n := proxy.Count(isAbandon); n == 0 || n > callers {
		t.Errorf("%d clean-ups were sent for %d acquires while Redis did not answer", n, callers)
	}
	proxy.Handle(nil)
	direct := b.Client(t)
	locktest.Eventually(t, "all acquires are undone", func() bool {
		return len(direct.Keys(bg, "*:gone:*").Val()) == callers
	})
}

package scale

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestNoGoroutineOrTimerForEachHold(t *testing.T) {
	if !locktest.Alone(t) {
		return
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		warm := locktest.MustLock(t, c.NewLock("warm-up"))
		defer locktest.MustUnlock(t, warm)
		before := runtime.NumGoroutine()
		leases := make([]*rlock.Lease, 500)
		for i := range leases {
			leases[i] = locktest.MustLock(t, c.NewLock(fmt.Sprint("l", i)))
			leases[i].Done()
			leases[i].Context(bg)
		}
		if now := runtime.NumGoroutine(); now > before+10 {
			t.Errorf("%d goroutines for 500 holds", now-before)
		}
		for _, lease := range leases {
			locktest.MustUnlock(t, lease)
		}
	})
}

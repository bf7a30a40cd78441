package rlock_test

import (
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// skipping is a clock that jumps ahead without waking anybody, and that tells who reads it.
type skipping struct {
	locktest.Clock
	ahead atomic.Int64
	read  atomic.Pointer[func()]
}

func (c *skipping) Now() time.Time {
	if read := c.read.Load(); read != nil {
		(*read)()
	}
	return c.Clock.Now().Add(time.Duration(c.ahead.Load()))
}

// The caller finds out that its lease is over while the client shuts down, and a copy of the acquire is
// under way still. Shutdown waits until the copy cannot take the lock for nobody, although the hold is
// over.
func TestShutdownBesideALossStopsLateCopies(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		clock := &skipping{}
		c, proxy, rdb := b.Faulty(t, rlock.WithWatchdogLease(time.Hour), seam.Option(seam.Env{Clock: clock}).(rlock.Option))
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.Hold)
		lease := locktest.MustLock(t, c.NewLock("late"))
		shutdown := make(chan error, 1)
		go func() { shutdown <- c.Shutdown(bg) }()
		<-lease.Done()
		locktest.StillRunning(t, shutdown)

		losing := false
		stopped := func() { // whoever loses the hold, where Shutdown could go on
			if !strings.Contains(string(debug.Stack()), ".loseLocked(") {
				return
			}
			losing = true
			if !rlock.Idle(c) {
				return
			}
			select {
			case err := <-shutdown:
				shutdown <- err
			case <-time.After(locktest.Patience):
				t.Error("Shutdown does not return")
			}
		}
		clock.ahead.Store(int64(time.Hour))
		clock.read.Store(&stopped)
		locktest.WantErr(t, lease.Err(), rlock.ErrExpired)
		clock.read.Store(nil)
		if !losing {
			t.Fatal("the loss did not read the clock")
		}
		if err := <-shutdown; err != nil {
			t.Fatal(err)
		}
		locktest.HeldUp(t, proxy, 1)
		rdb.Del(bg, "late") // its lease is over there too
		proxy.Release()
		if n := rdb.Exists(bg, "late").Val(); n != 0 {
			t.Error("a late copy has taken the lock for nobody")
		}
	})
}

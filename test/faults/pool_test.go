package faults

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Connections whose replies never come go back to the pool, though the go-redis
// client has no read timeout: the Client works again within its own.
func TestLostRepliesDoNotUseUpThePool(t *testing.T) {
	t.Parallel()
	const size = 4
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		proxy := faultproxy.New(t, b.Addr)
		rdb := locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) {
			o.PoolSize, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = size, -1, -1, time.Minute
		})
		c := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(500*time.Millisecond), rlock.WithUnlockTimeout(500*time.Millisecond))
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a"))) // loads the scripts
		var lost atomic.Int32
		id := locktest.SHA("lock/inspect")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) && lost.Add(1) <= size {
				return faultproxy.SwallowReply
			}
			return faultproxy.Pass
		})
		for range size / 2 { // each is sent twice
			_, err := c.NewLock("a").State(bg)
			locktest.WantErr(t, err, rlock.ErrUnreachable)
		}
		locktest.Eventually(t, "it works again", func() bool {
			_, err := c.NewLock("a").State(bg)
			return err == nil
		})
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
		if stats := rdb.PoolStats(); stats.TotalConns > size {
			t.Errorf("%d connections", stats.TotalConns)
		}
		if o := rdb.(*redis.Client).Options(); o.ReadTimeout != 0 {
			t.Errorf("the user's client was changed: %v", o.ReadTimeout)
		}
	})
}

// With the timeouts that go-redis has by default its hooks see the commands of the
// Client, those too that are added later.
func TestHooksSeeTheCommands(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(time.Second), rlock.WithUnlockTimeout(time.Second)) // a lease that a busy machine keeps
	hook := &locktest.CountHook{}
	rdb.AddHook(hook)
	lease := locktest.MustLock(t, c.NewLock("a"))
	n := hook.N.Load()
	if n == 0 {
		t.Error("the acquire was not seen")
	}
	locktest.Eventually(t, "the renewals are seen", func() bool { return hook.N.Load() > n+2 })
	_ = lease.Unlock(bg)
}

// A cluster client cannot be given timeouts by somebody else.
func TestClusterClientNeedsTimeouts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		edit func(o *redis.ClusterOptions)
		ok   bool
	}{
		{func(*redis.ClusterOptions) {}, true},
		{func(o *redis.ClusterOptions) { o.ReadTimeout = -1 }, false},
		{func(o *redis.ClusterOptions) { o.WriteTimeout = -2 }, false},
		{func(o *redis.ClusterOptions) { o.ReadTimeout, o.ContextTimeoutEnabled = -1, true }, true},
	} {
		o := &redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}} // nobody is asked
		test.edit(o)
		rdb := redis.NewClusterClient(o)
		c, err := rlock.New(rdb)
		if (err == nil) != test.ok || err != nil && !strings.Contains(err.Error(), "Timeout") {
			t.Errorf("%v, %v: %v", o.ReadTimeout, o.WriteTimeout, err)
		}
		if c != nil {
			locktest.Stop(c)
		}
		_ = rdb.Close()
	}
}

// With a pool for pipelines, as New recommends, commands that block on all other
// connections do not keep leases from being renewed.
func TestRenewalsDuringBlockingCommands(t *testing.T) {
	t.Parallel()
	const size = 4
	b := locktest.OnServer(t)
	rdb := locktest.Dialer(b.Addr)(t, func(o *redis.Options) {
		o.PoolSize, o.PoolTimeout, o.PipelineReadBufferSize = size, time.Minute, 32<<10
	})
	var clock locktest.Clock
	c := locktest.NewClient(t, rdb, clock.Option())
	lease := locktest.MustLock(t, c.NewLock("a"))
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{}, size)
	for range size {
		go func() {
			rdb.BLPop(ctx, time.Minute, "list")
			done <- struct{}{}
		}()
	}
	plain := b.Client(t)
	locktest.Eventually(t, "all connections are blocked", func() bool {
		return strings.Contains(plain.Info(bg, "clients").Val(), "blocked_clients:4")
	})
	for range 3 {
		was := lease.Deadline()
		clock.Forward(locktest.Lease / 3)
		locktest.Eventually(t, "it is renewed, or lost", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	plain.RPush(bg, "list", 1, 2, 3, 4)
	for range size {
		<-done
	}
	locktest.MustUnlock(t, lease)
}

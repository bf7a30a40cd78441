package rlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
)

// Connections whose replies never come go back to the pool, though the go-redis
// client has no read time-out: the Client works again within its own.
func TestLostRepliesDoNotUseUpThePool(t *testing.T) {
	t.Parallel()
	const size = 4
	eachRedis(t, func(t *testing.T, b *backend) {
		proxy := faultproxy.New(t, b.addr)
		rdb := dialer(proxy.Addr())(t, func(o *redis.Options) {
			o.PoolSize, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = size, -1, -1, time.Minute
		})
		c := newClientOn(t, rdb, rlock.WithCommandTimeout(500*time.Millisecond), rlock.WithUnlockTimeout(500*time.Millisecond))
		mustUnlock(t, mustLock(t, c.NewLock("a"))) // loads the scripts
		var lost atomic.Int32
		id := sha("inspect")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) && lost.Add(1) <= size {
				return faultproxy.SwallowReply
			}
			return faultproxy.Pass
		})
		for range size / 2 { // each is sent twice
			_, err := c.NewLock("a").State(bg)
			wantErr(t, err, rlock.ErrUnreachable)
		}
		eventually(t, "it works again", func() bool {
			_, err := c.NewLock("a").State(bg)
			return err == nil
		})
		mustUnlock(t, mustLock(t, c.NewLock("a")))
		if stats := rdb.PoolStats(); stats.TotalConns > size {
			t.Errorf("%d connections", stats.TotalConns)
		}
		if o := rdb.(*redis.Client).Options(); o.ReadTimeout != 0 {
			t.Errorf("the user's client was changed: %v", o.ReadTimeout)
		}
	})
}

// With the time-outs that go-redis has by default its hooks see the commands of the
// Client, those too that are added later.
func TestHooksSeeTheCommands(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	rdb := redis.NewClient(&redis.Options{Addr: b.addr})
	t.Cleanup(func() { _ = rdb.Close() })
	c := newClientOn(t, rdb, rlock.WithWatchdogLease(100*time.Millisecond), rlock.WithUnlockTimeout(time.Second))
	hook := &countHook{}
	rdb.AddHook(hook)
	lease := mustLock(t, c.NewLock("a"))
	n := hook.n.Load()
	if n == 0 {
		t.Error("the acquire was not seen")
	}
	eventually(t, "the renewals are seen", func() bool { return hook.n.Load() > n+2 })
	_ = lease.Unlock(bg)
}

// A cluster client cannot be given time-outs by somebody else.
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
			stop(c)
		}
		_ = rdb.Close()
	}
}

// With a pool for pipelines, as New recommends, commands that block on all other
// connections do not keep leases from being renewed.
func TestRenewalsBesideBlockingCommands(t *testing.T) {
	t.Parallel()
	const size = 4
	b := onServer(t)
	rdb := dialer(b.addr)(t, func(o *redis.Options) {
		o.PoolSize, o.PoolTimeout, o.PipelineReadBufferSize = size, time.Minute, 32<<10
	})
	c := newClientOn(t, rdb, rlock.WithWatchdogLease(time.Second))
	lease := mustLock(t, c.NewLock("a"))
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{}, size)
	for range size {
		go func() {
			rdb.BLPop(ctx, time.Minute, "list")
			done <- struct{}{}
		}()
	}
	plain := b.client(t)
	eventually(t, "all connections are blocked", func() bool {
		return strings.Contains(plain.Info(bg, "clients").Val(), "blocked_clients:4")
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); { // three leases
		was := lease.Deadline()
		eventually(t, "it is renewed, or lost", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	plain.RPush(bg, "list", 1, 2, 3, 4)
	for range size {
		<-done
	}
	mustUnlock(t, lease)
}

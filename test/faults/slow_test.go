package faults

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func isPing(cmd faultproxy.Command) bool { return cmd.Name == "ping" }

// apart gives a go-redis client a pool for pipelines, as it has by default from 9.23 on, and has contexts bound its
// handshakes.
func apart(o *redis.Options) {
	o.PipelineReadBufferSize, o.ContextTimeoutEnabled, o.Protocol = 32<<10, true, 3
}

// A server that becomes slow between an acquire and the first renewal answers that in time, but would not answer a
// handshake too: the connection of the renewals was opened when the hold began.
func TestServerBecomesSlowBeforeTheFirstRenewal(t *testing.T) {
	t.Parallel()
	const (
		slow   = 1200 * time.Millisecond // two replies take longer than a command may
		within = 2 * time.Second
	)
	for name, open := range map[string]func(t *testing.T, opts ...rlock.Option) (locks []rlock.Locker, nodes []*faultproxy.Proxy){
		"one server": func(t *testing.T, opts ...rlock.Option) ([]rlock.Locker, []*faultproxy.Proxy) {
			p := faultproxy.New(t, locktest.OnServer(t).Addr)
			c := locktest.NewClient(t, locktest.Dialer(p.Addr())(t, apart), opts...)
			return []rlock.Locker{c.NewLock("a")}, []*faultproxy.Proxy{p}
		},
		"cluster": func(t *testing.T, opts ...rlock.Option) (locks []rlock.Locker, nodes []*faultproxy.Proxy) {
			cluster := redistest.StartCluster(t, 3, 0)
			through := map[string]string{}
			for _, n := range cluster.Nodes {
				p := faultproxy.New(t, n.Addr())
				through[n.Addr()], nodes = p.Addr(), append(nodes, p)
			}
			c := locktest.NewClient(t, cluster.Client(func(o *redis.ClusterOptions) {
				o.PipelineReadBufferSize, o.ContextTimeoutEnabled = 32<<10, true
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, through[addr])
				}
			}), opts...)
			for i := 0; len(locks) < len(nodes); i++ { // one on each
				name := fmt.Sprint("lock ", i)
				if cluster.MasterOf(cluster.Slot(name)) == cluster.Nodes[len(locks)] {
					locks = append(locks, c.NewLock(name))
				}
			}
			return locks, nodes
		},
		"RedLock": func(t *testing.T, opts ...rlock.Option) ([]rlock.Locker, []*faultproxy.Proxy) {
			var clients []*rlock.Client
			var nodes []*faultproxy.Proxy
			for range 3 {
				p := faultproxy.New(t, locktest.OnServer(t).Addr)
				clients = append(clients, locktest.NewClient(t, locktest.Dialer(p.Addr())(t, apart), opts...))
				nodes = append(nodes, p)
			}
			var locks []rlock.Locker
			for _, name := range []string{"a", "b", "c"} { // several renewals are a pipeline
				locks = append(locks, locktest.NewRedLock(t, name, clients, rlock.WithNodeTimeout(within)))
			}
			return locks, nodes
		},
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			var clock locktest.Clock
			locks, nodes := open(t, clock.Option(), rlock.WithCommandTimeout(within), rlock.WithAnonymity())
			var leases []*rlock.Lease
			for _, l := range locks {
				lease := locktest.MustLock(t, l)
				if err := lease.Extend(bg, locktest.Lease); err != nil { // the server knows the script, unless it is new
					t.Fatal(err)
				}
				leases = append(leases, lease)
			}
			for _, p := range nodes {
				locktest.Eventually(t, "a PING has opened the connection", func() bool { return p.Count(isPing) > 0 })
			}
			clock.Rest(t) // it is answered
			for _, p := range nodes {
				p.Delay(func(faultproxy.Command) time.Duration { return slow })
			}
			was := leases[0].Deadline()
			clock.Forward(locktest.Lease / 3)
			locktest.Eventually(t, "all are renewed, or lost", func() bool {
				for _, l := range leases {
					if l.Err() == nil && !l.Deadline().After(was.Add(locktest.Lease/4)) {
						return false
					}
				}
				return true
			})
			for _, p := range nodes {
				p.Delay(nil)
			}
			for _, l := range leases {
				locktest.MustUnlock(t, l)
			}
		})
	}
}

// A server that takes longer to answer than a command may, and does not know the script of the first renewal, as after a
// failover, gets its text too: the answers are late, but in time for the lease.
func TestSlowServerThatDoesNotKnowTheScript(t *testing.T) {
	t.Parallel()
	const slow, within = 900 * time.Millisecond, 600 * time.Millisecond
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		p := faultproxy.New(t, b.Addr)
		var clock locktest.Clock
		rdb := redis.NewClient(&redis.Options{Addr: p.Addr()}) // whose own timeouts are longer
		t.Cleanup(func() { _ = rdb.Close() })
		c := locktest.NewClient(t, rdb, clock.Option(), rlock.WithCommandTimeout(within), rlock.WithUnlockTimeout(10*time.Second))
		lease := locktest.MustLock(t, c.NewLock("a"))
		clock.Rest(t)
		p.Delay(func(faultproxy.Command) time.Duration { return slow })
		was := lease.Deadline()
		clock.Forward(locktest.Lease / 3)
		locktest.Eventually(t, "it is renewed, or lost", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
		p.Delay(nil)
		locktest.MustUnlock(t, lease)
	})
}

//go:build linux

package chaos

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// pair is a primary, which clients know by a name, and its replica.
type pair struct {
	t                *testing.T
	primary, replica *redistest.Server
	apart            time.Duration // between two failovers, at least
}

// primaryName is what clients dial.
const primaryName = "primary:6379"

// startPair starts a primary and its replica, and lets the primary grant locks if clients have the quarantine.
func startPair(apart time.Duration, opts ...rlock.Option) func(t *testing.T) *deployment {
	return func(t *testing.T) *deployment {
		servers := redistest.StartMasters(t, 2)
		p := &pair{t: t, primary: servers[0], replica: servers[1], apart: apart}
		bootstrap(t, p.primary, opts)
		p.follow()
		return &deployment{nodes: servers, ways: []way{{primaryName, p.primary.Addr()}}, settle: p.settle, faults: map[string]func(*arena, *rand.Rand){
			"promotion": p.promote,
			"promotion of a replica that was away": func(a *arena, rnd *rand.Rand) {
				p.leave(a, rnd)
				p.promote(a, rnd)
			},
			"promotion of a replica without data": func(a *arena, rnd *rand.Rand) {
				p.forget(a)
				p.promote(a, rnd)
			},
			"replica is away": func(a *arena, rnd *rand.Rand) {
				p.leave(a, rnd)
				p.follow()
			},
			"replica forgets": func(a *arena, _ *rand.Rand) {
				p.forget(a)
				p.follow()
			},
		}}
	}
}

// bootstrap lets a new server grant locks, if the options have a quarantine.
func bootstrap(t *testing.T, s *redistest.Server, opts []rlock.Option) {
	t.Helper()
	err := locktest.NewClient(t, s.Client(), opts...).BootstrapServer(bg)
	if err != nil && !errors.Is(err, rlock.ErrInvalidArgument) { // there is none
		t.Fatal(err)
	}
}

// follow makes the replica one, until it has all data.
func (p *pair) follow() {
	replicate(p.t, p.replica, p.primary.Addr())
	p.settle()
}

// replicate makes a server a replica of an address.
func replicate(t *testing.T, s *redistest.Server, addr string) {
	t.Helper()
	host, port, _ := strings.Cut(addr, ":")
	command(t, s, "replicaof", host, port)
}

func (p *pair) settle() {
	(&redistest.Replicated{Master: p.primary, Replicas: []*redistest.Server{p.replica}}).Settle()
}

// leave cuts the replica off for a while.
func (p *pair) leave(a *arena, rnd *rand.Rand) {
	replicate(p.t, p.replica, "127.0.0.1:1") // where nobody listens
	a.rest(rnd, a.top.lease/4, a.top.lease)
}

// forget restarts the replica without its data, as a server of its own.
func (p *pair) forget(a *arena) {
	a.kill(p.replica)
	p.replica.Wipe()
	p.replica.Restart()
}

// promote makes the replica the primary. Clients learn that one after the other, and the old one takes writes meanwhile.
func (p *pair) promote(a *arena, rnd *rand.Rand) {
	command(p.t, p.replica, "replicaof", "no", "one")
	p.primary, p.replica = p.replica, p.primary
	for _, i := range rnd.Perm(len(a.teams)) {
		l := a.teams[i].links[0]
		l.Upstream(p.primary.Addr())
		l.ResetAll()
		a.rest(rnd, 0, a.top.lease/4)
	}
	p.follow()
	time.Sleep(p.apart)
}

// startSentinel starts a master, two replicas and three sentinels.
func startSentinel(t *testing.T) *deployment {
	s := redistest.StartSentinel(t)
	d := &deployment{nodes: append([]*redistest.Server{s.Master}, s.Replicas...), settle: s.Settle}
	var addrs []string
	for _, o := range s.Sentinels {
		addrs = append(addrs, o.Addr())
	}
	d.sentinels = strings.Join(addrs, ",")
	d.faults = map[string]func(*arena, *rand.Rand){
		"failover": func(*arena, *rand.Rand) { s.Failover() },
		"master crashes": func(a *arena, _ *rand.Rand) {
			old := s.CurrentMaster()
			a.kill(old)
			locktest.Eventually(t, "the sentinels name a new master", func() bool { return s.CurrentMaster() != old })
			old.Restart()
		},
	}
	return d
}

// toSentinels connects to the master that sentinels name.
func toSentinels(opts ...rlock.Option) connector {
	return func(text, sentinels string) (func(kind, name string) rlock.Locker, error) {
		_, dial := routes(text)
		return types(redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "mymaster", SentinelAddrs: strings.Split(sentinels, ","), Dialer: dial,
		}), opts)
	}
}

// startCluster starts three masters with a replica each.
func startCluster(t *testing.T) *deployment {
	c := redistest.StartCluster(t, 3, 1)
	// slotOf is of a lock that is drawn.
	slotOf := func(a *arena, rnd *rand.Rand) int {
		keys := a.top.keys()
		return c.Slot(keys[rnd.IntN(len(keys))])
	}
	return &deployment{nodes: c.Nodes, settle: c.Settle, faults: map[string]func(*arena, *rand.Rand){
		"master crashes": func(a *arena, rnd *rand.Rand) {
			old := c.MasterOf(slotOf(a, rnd))
			a.readDenials(old)
			c.Failover(old) // kills it
			old.Restart()
		},
		"failover": func(a *arena, rnd *rand.Rand) {
			slot := slotOf(a, rnd)
			replica := c.ReplicaOf(c.MasterOf(slot))
			rdb := redis.NewClient(&redis.Options{Addr: replica.Addr()})
			defer rdb.Close()
			asked := time.Time{}
			locktest.Eventually(t, "the replica has taken over", func() bool {
				if c.MasterOf(slot) == replica {
					return true
				}
				if time.Since(asked) > 10*time.Second { // Redis gives up after 5 s, as on a busy machine
					asked = time.Now()
					rdb.Do(bg, "cluster", "failover") // refused if it has taken over since
				}
				return false
			})
		},
		"slot moves": func(a *arena, rnd *rand.Rand) {
			slot := slotOf(a, rnd)
			from := c.MasterOf(slot)
			for {
				if to := c.MasterOf(rnd.IntN(1 << 14)); to != from {
					c.MigrateSlot(slot, to)
					return
				}
			}
		},
	}}
}

// toCluster connects to a cluster.
func toCluster(opts ...rlock.Option) connector {
	return func(text, _ string) (func(kind, name string) rlock.Locker, error) {
		nodes, dial := routes(text)
		return types(redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes, Dialer: dial}), opts)
	}
}

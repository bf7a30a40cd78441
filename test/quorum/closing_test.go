package quorum

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// orders are those in which a process closes the clients of five nodes, each with its go-redis client. The
// first is the home.
var orders = map[string][]int{
	"home first": {0, 1, 2, 3, 4},
	"home last":  {4, 3, 2, 1, 0}, // by defer, after each was made
}

// process is a process whose clients wait for long when they are closed: two of them for 40 s.
type process struct {
	clients []*rlock.Client
	redis   []*redis.Client
}

func (n *masters) process(t testing.TB) *process {
	t.Helper()
	p := &process{}
	for _, s := range n.servers {
		rdb := s.Client()
		c, err := rlock.New(rdb, rlock.WithUnlockTimeout(patience))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { locktest.Stop(c) })
		p.clients, p.redis = append(p.clients, c), append(p.redis, rdb)
	}
	return p
}

// close closes all clients, and returns how long that took.
func (p *process) close(t testing.TB, order []int) time.Duration {
	t.Helper()
	began := time.Now()
	for _, i := range order {
		if err := p.clients[i].Close(); err != nil {
			t.Errorf("client of node %d: %v", i+1, err)
		}
		if err := p.redis[i].Close(); err != nil {
			t.Error(err)
		}
	}
	return time.Since(began)
}

// Two of five nodes are dead. Their clients have nothing to wait for: what the dead have of a vote keeps nobody
// from a quorum, and it runs out.
func TestClosingClientsOfDeadNodesCostsNothing(t *testing.T) {
	t.Parallel()
	for name, order := range orders {
		for _, dead := range [][]int{{3, 4}, {0, 1}} {
			t.Run(fmt.Sprint(name, dead), func(t *testing.T) {
				t.Parallel()
				n := startMasters(t)
				p := n.process(t)
				lease := locktest.MustLock(t, locktest.NewRedLock(t, "stock", p.clients, rlock.WithNodeTimeout(5*time.Second)))
				n.allVoteFor(t, lease)
				for _, i := range dead {
					n.servers[i].Kill()
				}
				locktest.MustUnlock(t, lease)
				took := p.close(t, order)
				t.Log(took)
				if took > patience/2 {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// Three of five nodes are dead: no quorum has confirmed the release, and the votes that are left may keep all
// others out when the nodes are back. Whoever closes the clients is told.
func TestClosingClientsReportsAReleaseWithoutAQuorum(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	var clients []*rlock.Client
	for _, s := range n.servers {
		c, err := rlock.New(locktest.Dialer(s.Addr())(t, locktest.DialOnce), rlock.WithUnlockTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	lease := locktest.MustLock(t, locktest.NewRedLock(t, "stock", clients, rlock.WithNodeTimeout(5*time.Second)))
	n.allVoteFor(t, lease)
	for _, s := range n.servers[2:] {
		s.Kill()
	}
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed)
	for i, c := range clients {
		switch err := c.Close(); {
		case i < 2 && err != nil:
			t.Errorf("client of node %d, which has confirmed it: %v", i+1, err)
		case i >= 2 && (err == nil || !strings.Contains(err.Error(), "releases that Redis has not confirmed: 1")):
			t.Errorf("client of node %d, which is dead: %v", i+1, err)
		}
	}
}

// Whoever closes the client of a node goes on with the lock, and with locks that are made later of the same clients.
func TestLockGoesOnWithoutTheClientsOfSomeNodes(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	p := n.process(t)
	lease := locktest.MustLock(t, locktest.NewRedLock(t, "stock", p.clients, rlock.WithNodeTimeout(5*time.Second)))
	n.allVoteFor(t, lease)
	if err := lease.Extend(bg, time.Minute); err != nil { // now it is known of all votes that they are as old as the hold
		t.Fatal(err)
	}
	p.close(t, []int{3, 4})
	if err := lease.Extend(bg, time.Minute); err != nil {
		t.Error(err)
	}
	more := locktest.MustLock(t, locktest.NewRedLock(t, "more", p.clients, rlock.WithNodeTimeout(5*time.Second)))
	locktest.MustUnlock(t, more)
	locktest.MustUnlock(t, lease)
	p.close(t, []int{2, 1, 0})
}

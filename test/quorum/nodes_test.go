package quorum

import (
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// deployment is the nodes that a process names, and its quorum.
type deployment struct {
	nodes  []int
	quorum int
}

// site is all nodes that any deployment names, and what connects to them.
type site struct {
	*testing.T
	addrs   []string
	proxies []*faultproxy.Proxy
}

func newSite(t *testing.T, nodes int) *site {
	s := &site{T: t}
	for range nodes {
		addr := miniredis.RunT(t).Addr()
		p := faultproxy.New(t, addr)
		p.ErrorText = "-ERR refused"
		s.addrs, s.proxies = append(s.addrs, addr), append(s.proxies, p)
	}
	return s
}

// join is a process of a deployment, by way of the proxies or past them.
func (s *site) join(d deployment, proxied bool) *rlock.RedLock {
	var clients []*rlock.Client
	for _, i := range d.nodes {
		addr := s.addrs[i]
		if proxied {
			addr = s.proxies[i].Addr()
		}
		clients = append(clients, locktest.NewClient(s.T, locktest.Dialer(addr)(s.T, nil)))
	}
	return locktest.NewRedLock(s.T, "stock", clients, rlock.WithQuorum(d.quorum), rlock.WithNodeTimeout(5*time.Second))
}

// sides has a process of one deployment hold the lock, by the votes of each of its quorums in turn,
// and then one of another try.
func (s *site) sides(holds, tries deployment, check func(voters []int, lease *rlock.Lease, other *rlock.RedLock)) {
	holder, other := s.join(holds, true), s.join(tries, false)
	acquire := locktest.SHA("quorum/acquire")
	for _, voters := range subsets(holds.nodes, holds.quorum) {
		for i, p := range s.proxies {
			p.Handle(func(c faultproxy.Command) faultproxy.Action {
				if c.IsScript(acquire) && !slices.Contains(voters, i) {
					return faultproxy.Error
				}
				return faultproxy.Pass
			})
		}
		// Not renewed: that would take the votes of the others too.
		lease, err := holder.Lock(bg, rlock.WithLease(rlock.DefaultWatchdogLease), rlock.WithWait(20*time.Second))
		if err != nil {
			s.Fatal(err)
		}
		check(voters, lease, other)
	}
}

// subsets are all of n nodes.
func subsets(nodes []int, n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for i, first := range nodes {
		for _, rest := range subsets(nodes[i+1:], n-1) {
			all = append(all, append([]int{first}, rest...))
		}
	}
	return all
}

// The two tables of docs/redlock.md: processes of two successive deployments exclude each other, with
// tokens in order, whichever nodes miss a vote.
func TestChangeOfNodesAsDocumented(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		steps []deployment
	}{
		{"one of five is replaced", []deployment{{[]int{0, 1, 2, 3, 4}, 3}, {[]int{0, 1, 2, 3, 5}, 4}, {[]int{0, 1, 2, 3, 5}, 3}}},
		{"one of three is replaced", []deployment{{[]int{0, 1, 2}, 2}, {[]int{0, 1, 3}, 3}, {[]int{0, 1, 3}, 2}}},
		{"three become five", []deployment{{[]int{0, 1, 2}, 2}, {[]int{0, 1, 2, 3, 4}, 4}, {[]int{0, 1, 2, 3, 4}, 3}}},
		{"five become three", []deployment{{[]int{0, 1, 2, 3, 4}, 3}, {[]int{0, 1, 2}, 3}, {[]int{0, 1, 2}, 2}}},
		// By one node with each deployment, always with the default quorum.
		{"three, four, five", []deployment{{[]int{0, 1, 2}, 2}, {[]int{0, 1, 2, 3}, 3}, {[]int{0, 1, 2, 3, 4}, 3}}},
		{"five, four, three", []deployment{{[]int{0, 1, 2, 3, 4}, 3}, {[]int{0, 1, 2, 3}, 3}, {[]int{0, 1, 2}, 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 6)
			last := int64(0)
			excluded := func(voters []int, lease *rlock.Lease, other *rlock.RedLock) {
				_, err := other.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.MustUnlock(t, lease)
				next, err := other.Lock(bg, rlock.WithWait(20*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if lease.Token() <= last || next.Token() <= lease.Token() {
					t.Errorf("tokens %d, %d, %d", last, lease.Token(), next.Token())
				}
				last = next.Token()
				locktest.MustUnlock(t, next)
			}
			for i := range c.steps[1:] {
				s.sides(c.steps[i], c.steps[i+1], excluded)
				s.sides(c.steps[i+1], c.steps[i], excluded)
			}
		})
	}
}

// What the steps are for: with one deployment there may be two owners.
func TestChangeOfNodesInOneStepHasTwoOwners(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		holds, tries deployment
		voters       []int
	}{
		{"one of five is replaced", deployment{[]int{0, 1, 2, 3, 4}, 3}, deployment{[]int{0, 1, 2, 3, 5}, 3}, []int{0, 1, 4}},
		{"three become five", deployment{[]int{0, 1, 2}, 2}, deployment{[]int{0, 1, 2, 3, 4}, 3}, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 6)
			s.sides(c.holds, c.tries, func(voters []int, lease *rlock.Lease, other *rlock.RedLock) {
				if slices.Equal(voters, c.voters) {
					second, err := other.Lock(bg, rlock.WithWait(20*time.Second))
					if err != nil || lease.Err() != nil {
						t.Fatalf("the documentation warns of what cannot be: %v, %v", err, lease.Err())
					}
					locktest.MustUnlock(t, second)
				}
				locktest.MustUnlock(t, lease)
			})
		})
	}
}

// A node that is added is in quarantine, as one that has lost its data. With one of them the others are
// a quorum; with two, of which one has to vote, they are none.
func TestNodeThatIsAddedIsInQuarantine(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	addrs := addressesOf(redistest.StartMasters(t, 5))
	lock := func(nodes int, opts ...rlock.RedLockOption) *rlock.RedLock {
		opts = append(opts, rlock.WithRestartQuarantine(), rlock.WithNodeTimeout(10*time.Second))
		// None ends while this runs.
		return locktest.NewRedLock(t, "stock", clientsAt(t, addrs[:nodes], rlock.WithWatchdogLease(10*time.Minute)), opts...)
	}
	three := lock(3)
	locktest.Eventually(t, "all nodes vote", func() bool { return three.BootstrapNodes(bg) == nil })
	lease, err := lock(4).Lock(bg, rlock.WithWait(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	_, err = three.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.MustUnlock(t, lease)
	_, err = lock(5, rlock.WithQuorum(4)).TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
}

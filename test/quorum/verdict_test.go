package quorum

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// gap is a hold, and another owner that has had the lock since, because nodes had lost their data.
type gap struct {
	*masters
	hold  *rlock.Lease
	other *rlock.Lease
}

// secondOwner has some nodes vote for a hold, with the others away; then some of these lose their data, and
// another owner takes the lock by them and those that were away.
func secondOwner(t *testing.T, size int, voters, forget []int) *gap {
	t.Helper()
	n := startSome(t, size)
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(time.Second))
	other := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(time.Second))
	var away, theirs []int
	for i := range size {
		if !slices.Contains(voters, i) {
			away = append(away, i)
		}
	}
	theirs = append(slices.Clone(away), forget...)
	n.mayVote(voters)
	g := &gap{masters: n, hold: n.lockBy(t, l, voters)}
	// Those that were away go on refusing it, as a request that is late may come yet. The other owner has
	// connections of its own.
	n.forget(forget...)
	g.other = n.lockBy(t, other, theirs)
	if g.other.Token() <= g.hold.Token() {
		t.Fatalf("token %d after %d", g.other.Token(), g.hold.Token())
	}
	return g
}

// mayVote has the proxies refuse acquires to all nodes but some.
func (n *masters) mayVote(nodes []int) {
	acquire := locktest.SHA("quorum/acquire")
	for i, p := range n.proxies {
		p.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(acquire) && !slices.Contains(nodes, i) {
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
	}
}

// lockBy acquires a lock by the votes of some nodes, and of all of them: one that was late may not be asked
// while the others are a quorum.
func (n *masters) lockBy(t *testing.T, l *rlock.RedLock, nodes []int) (lease *rlock.Lease) {
	t.Helper()
	var err error
	defer func() {
		if t.Failed() {
			t.Logf("%v; the votes are %q", err, n.votes(t, l.Name(), nodes...))
		}
	}()
	locktest.Eventually(t, "they have voted for the hold", func() bool {
		if lease, err = l.TryLock(bg, rlock.WithLease(5*time.Minute)); err != nil {
			return false
		}
		for range 50 {
			if !slices.ContainsFunc(n.votes(t, l.Name(), nodes...), func(a string) bool { return a != lease.HoldID() }) {
				return true
			}
			time.Sleep(2 * time.Millisecond)
		}
		_ = lease.Unlock(bg)
		return false
	})
	return lease
}

// leaves has the other owner leave.
func (g *gap) leaves(t *testing.T, nodes []int) {
	t.Helper()
	locktest.MustUnlock(t, g.other)
	locktest.Eventually(t, "it has left", func() bool {
		return !slices.Contains(g.votes(t, "stock", nodes...), g.other.HoldID())
	})
}

// No call says that a hold has lasted if the nodes show that another owner may have had the lock since.
func TestRedLockSaysNoNilOverAnotherOwner(t *testing.T) {
	t.Parallel()
	var (
		killed  = func(n *masters, i int) { n.servers[i].Kill() }
		stopped = func(n *masters, i int) { n.servers[i].Pause() }
		cutOff  = func(n *masters, i int) {
			n.proxies[i].Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.SwallowReply })
			n.proxies[i].ResetAll()
		}
		lostOnce = func(n *masters, i int) { n.onFirst("quorum/release", faultproxy.ResetBefore, []int{i}) }
	)
	all := []int{0, 1, 2, 3, 4}
	for _, c := range []struct {
		name           string
		size           int
		voters, forget []int
		node           int // that fails before the hold ends
		fails          func(n *masters, i int)
	}{
		{"the first copy of a release is lost", 5, all, []int{2, 3, 4}, 4, lostOnce},
		{"three of five have forgotten, one of them is stopped", 5, all, []int{2, 3, 4}, 4, stopped},
		{"three of five have forgotten, one of them is killed", 5, all, []int{2, 3, 4}, 4, killed},
		{"one of three was away, one has forgotten and is stopped", 3, []int{0, 1}, []int{1}, 1, stopped},
		{"two of five were away, one has forgotten and is stopped", 5, []int{0, 1, 2}, []int{0}, 0, stopped},
		{"two of five were away, one has forgotten and is killed", 5, []int{0, 1, 2}, []int{0}, 0, killed},
		{"two of five were away, one has forgotten and is cut off", 5, []int{0, 1, 2}, []int{0}, 0, cutOff},
	} {
		for _, left := range []bool{false, true} {
			for _, by := range []string{"Unlock", "Extend"} {
				name := c.name + ", " + by
				if left {
					name += ", the other has left"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					g := secondOwner(t, c.size, c.voters, c.forget)
					if left {
						g.leaves(t, all[:c.size])
					}
					c.fails(g.masters, c.node)
					if by == "Extend" {
						if err := g.hold.Extend(bg, time.Minute); err == nil {
							t.Error("Extend: nil")
						} else if !errors.Is(err, rlock.ErrLeaseLost) && !errors.Is(err, rlock.ErrNoQuorum) {
							t.Errorf("Extend: %v", err)
						}
					}
					if err := g.hold.Unlock(bg); err == nil {
						t.Error("Unlock: nil")
					} else if !errors.Is(err, rlock.ErrLeaseLost) && !errors.Is(err, rlock.ErrUnconfirmed) {
						t.Errorf("Unlock: %v", err)
					} else {
						t.Log(err)
					}
				})
			}
		}
	}
}

// One node is away at a time, and none loses its data: the hold goes on, and its end is confirmed, also if it
// had no more votes than it needs.
func TestRedLockOutlivesOneNodeAwayAfterAnother(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"Unlock", "Extend"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			for tries := 1; ; tries++ {
				twice, err := outlives(t, by == "Extend")
				if err == nil {
					return
				}
				// The reply to a release that a stall has sent to a node twice proves less.
				if !twice || !errors.Is(err, rlock.ErrUnconfirmed) || tries == 5 {
					t.Fatal(err)
				}
			}
		})
	}
}

// outlives unlocks a hold of two votes of three, one of which is away, and reports whether a node that was not has got the
// release twice.
func outlives(t *testing.T, extends bool) (twice bool, err error) {
	n := startSome(t, 3)
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(2*time.Second))
	for _, rdb := range n.plain { // equal: they have voted for each hold before
		do(t, rdb, "set", counterKey("stock"), 100)
	}
	n.mayVote([]int{0, 1})
	lease := n.lockBy(t, l, []int{0, 1})
	n.pass()
	n.servers[1].Pause()
	defer n.servers[1].Resume()
	if extends {
		if err := lease.Extend(bg, 5*time.Minute); err != nil {
			t.Error(err)
		}
	}
	err = lease.Unlock(bg)
	release := locktest.SHA("quorum/release")
	for _, i := range []int{0, 2} {
		twice = twice || n.proxies[i].Count(func(c faultproxy.Command) bool { return c.IsScript(release) }) > 1
	}
	return twice, err
}

package quorum

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Whatever becomes of the requests to some or all of the nodes, or of the
// replies, there is one hold, its verdicts are right, and copies of all its
// requests that come late neither vote nor take anything from the next holder.
func TestRedLockWithLostReplies(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"quorum/acquire", "quorum/raise", "quorum/renew", "quorum/release"} {
		locktest.Beside(t, script, func(t *testing.T) { redLockWithLostReplies(t, script) })
	}
}

func redLockWithLostReplies(t *testing.T, script string) {
	n := startMasters(t)
	n.warm(t)
	const timeout = 3 * time.Second // a lost reply is asked for again after half of it; the rest is for a busy machine
	home := n.clients(t)
	others := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
	l := locktest.NewRedLock(t, "stock", home, rlock.WithNodeTimeout(timeout))
	locktest.MustUnlock(t, locktest.MustLock(t, l)) // connections are made
	var lastToken int64
	for _, action := range slices.Sorted(maps.Keys(locktest.LossyActions)) {
		for where, nodes := range map[string][]int{"two": {1, 3}, "all": {0, 1, 2, 3, 4}} {
			t.Run(fmt.Sprintf("%s on %s", action, where), func(t *testing.T) {
				n.pass()
				// A node that was late may not be asked while the others are a quorum.
				locktest.Eventually(t, "all nodes are asked", func() bool {
					lease := locktest.MustLock(t, l)
					defer locktest.MustUnlock(t, lease)
					lastToken = lease.Token()
					for range 50 {
						if !slices.ContainsFunc(n.votes(t, "stock"), func(a string) bool { return a != lease.HoldID() }) {
							return true
						}
						time.Sleep(2 * time.Millisecond)
					}
					return false
				})
				n.nothing(t, "stock")
				for _, p := range n.proxies {
					p.ResetLog()
				}
				// So that there is something to write back, and tokens go on growing.
				for i, rdb := range n.plain {
					if err := rdb.Set(bg, counterKey("stock"), lastToken+int64(10*(i+1)), 0).Err(); err != nil {
						t.Fatal(err)
					}
				}
				struck := n.onFirst(script, locktest.LossyActions[action], nodes)
				lease := locktest.MustLock(t, l)
				if lease.Token() <= lastToken {
					t.Errorf("token %d after %d", lease.Token(), lastToken)
				}
				for range 2 {
					// All may refuse the first time: the lease is as it was then.
					if err := lease.Extend(bg, time.Minute); err != nil && action != "loading" {
						t.Errorf("Extend: %v", err)
					}
				}
				if script == "quorum/renew" {
					// A node that was late with an answer may not be asked by each of them.
					locktest.Eventually(t, "all nodes are asked", func() bool {
						if struck() < len(nodes) {
							_ = lease.Extend(bg, time.Minute)
						}
						return struck() == len(nodes)
					})
				}
				if rest := time.Until(lease.Deadline()); rest < 50*time.Second {
					t.Errorf("valid for %v after Extend", rest)
				}
				if err := lease.Err(); err != nil {
					t.Error(err)
				}
				unconfirmed := action == "loading" || script == "quorum/release" && where == "all" && locktest.LosesReply(locktest.LossyActions[action])
				if err := lease.Unlock(bg); err != nil && !(unconfirmed && errors.Is(err, rlock.ErrUnreachable)) {
					t.Errorf("Unlock: %v", err)
				}
				// Of five nodes only some have to be written back to.
				if script != "quorum/raise" {
					locktest.Eventually(t, "the fault has happened", func() bool { return struck() == len(nodes) })
				} else if where == "all" && struck() == 0 {
					t.Errorf("nothing was written back")
				}
				n.pass()
				n.nothing(t, "stock")

				copies := n.replay(t)
				if left := strings.Join(n.votes(t, "stock"), ""); left != "" {
					t.Errorf("after %d late copies: votes for %s", copies, left)
				}
				next := locktest.MustLock(t, others)
				if next.Token() <= lease.Token() {
					t.Errorf("token %d after %d", next.Token(), lease.Token())
				}
				n.replay(t)
				n.onlyVoteFor(t, next)
				if err := next.Extend(bg, time.Minute); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, next)
				n.nothing(t, "stock")
				lastToken = next.Token()
			})
		}
	}
}

// Requests that hang on their way until their hold is over meet its tombstone:
// those of a try that failed, of a wait that was given up, and of a hold.
func TestRedLockRequestsThatComeLate(t *testing.T) {
	t.Parallel() // it waits for timeouts most of the time
	locktest.Beside(t, "acquire of a try that failed", func(t *testing.T) {
		n := withLateRequests(t)
		l := n.fresh(t)
		n.hold(t, "quorum/acquire", 0, 2, 4)
		_, err := l.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNoQuorum)
		n.reached(t, 0, 2, 4)
		n.arrive(t, 3, 3)
	})
	locktest.Beside(t, "acquire of a wait that was given up", func(t *testing.T) {
		n := withLateRequests(t)
		l := n.fresh(t)
		n.hold(t, "quorum/acquire", 0, 1, 2, 3, 4)
		w := locktest.Begin(t, bg, l)
		n.reached(t, 0, 1, 2, 3, 4)
		locktest.WantEnded(t, w.GiveUp(), context.Canceled)
		n.arrive(t, 5, 5)
	})
	locktest.Beside(t, "acquire of a hold", func(t *testing.T) {
		n := withLateRequests(t)
		l := n.fresh(t)
		n.hold(t, "quorum/acquire", 0, 3)
		lease := locktest.MustLock(t, l)
		n.reached(t, 0, 3)
		locktest.MustUnlock(t, lease)
		n.arrive(t, 2, 2)
	})
	locktest.Beside(t, "renewal of a hold", func(t *testing.T) {
		n := withLateRequests(t)
		l := n.fresh(t)
		lease := locktest.MustLock(t, l)
		n.hold(t, "quorum/renew", 0, 3)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		n.reached(t, 0, 3)
		locktest.MustUnlock(t, lease)
		n.arrive(t, 2, 2)
	})
	locktest.Beside(t, "renewal of a hold that is lost", func(t *testing.T) {
		n := withLateRequests(t)
		var clock locktest.Clock
		l := n.fresh(t, clock.Option())
		lease := locktest.MustLock(t, l, rlock.WithLease(time.Minute))
		n.hold(t, "quorum/renew", 0, 1, 3)
		if err := lease.Extend(bg, 2*time.Minute); err == nil {
			t.Fatal("Extend without a quorum")
		}
		n.reached(t, 0, 1, 3)
		clock.Forward(time.Minute)
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
		n.nothing(t, "stock")
		n.arrive(t, 3, 3)
	})
	locktest.Beside(t, "release of a hold", func(t *testing.T) {
		n := withLateRequests(t)
		l := n.fresh(t)
		lease := locktest.MustLock(t, l)
		n.hold(t, "quorum/release", 0, 3)
		locktest.MustUnlock(t, lease)
		n.reached(t, 0, 3)
		n.arrive(t, 2, 0)
	})
}

// lateRequests are servers with requests that come late.
type lateRequests struct {
	*masters
	others *rlock.RedLock
	gone   []int // tombstones of what was before
}

// lateTimeout: a quorum answers within it on a busy machine, too; the clients wait for that longer.
const lateTimeout = 3 * time.Second

var lateOptions = []rlock.Option{rlock.WithCommandTimeout(5 * lateTimeout), rlock.WithUnlockTimeout(5 * lateTimeout)}

func withLateRequests(t *testing.T) *lateRequests {
	t.Helper()
	n := startMasters(t)
	n.warm(t)
	return &lateRequests{n, locktest.NewRedLock(t, "stock", n.straight(t, lateOptions...), rlock.WithNodeTimeout(lateTimeout)), make([]int, len(n.plain))}
}

// fresh is a lock whose clients have their connections: a request that waits for one need not be
// sent any more when it is late.
func (n *lateRequests) fresh(t *testing.T, opts ...rlock.Option) *rlock.RedLock {
	t.Helper()
	l := locktest.NewRedLock(t, "stock", n.clients(t, append(opts, lateOptions...)...), rlock.WithNodeTimeout(lateTimeout))
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	locktest.MustUnlock(t, lease)
	n.nothing(t, "stock")
	return l
}

// hold holds up a script on some nodes.
func (n *lateRequests) hold(t *testing.T, script string, nodes ...int) {
	t.Helper()
	for i, rdb := range n.plain {
		n.gone[i] = locktest.Tombstones(locktest.Keys(t, rdb))
	}
	id := locktest.SHA(script)
	for _, i := range nodes {
		n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(id) {
				n.faulty(i, c, faultproxy.Hold)
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
	}
}

// reached waits until a request to each of some nodes is held up: a quorum of the others
// is quicker.
func (n *lateRequests) reached(t *testing.T, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		locktest.HeldUp(t, n.proxies[i], 1)
	}
}

// arrive lets what was held up through, while another holds the lock and after that.
// Tombstones stop it on so many nodes: before they are there a vote may come, which
// the release that brings the tombstone takes back.
func (n *lateRequests) arrive(t *testing.T, atLeast, stopped int) {
	t.Helper()
	n.pass()
	n.nothing(t, "stock")
	if stopped > 0 {
		locktest.Eventually(t, "the nodes have the tombstones", func() bool {
			have := 0
			for i, rdb := range n.plain {
				if locktest.Tombstones(locktest.Keys(t, rdb)) > n.gone[i] {
					have++
				}
			}
			return have >= stopped
		})
	}
	for _, held := range []bool{true, false} {
		var next *rlock.Lease
		if held {
			next = locktest.MustLock(t, n.others)
		}
		copies := 0
		for _, p := range n.proxies {
			if held {
				copies += p.Release()
			}
		}
		if held && copies < atLeast {
			t.Errorf("%d requests were late, not %d", copies, atLeast)
		}
		n.replay(t)
		if held {
			n.onlyVoteFor(t, next)
		}
		if held {
			locktest.MustUnlock(t, next)
		}
		n.nothing(t, "stock")
	}
	for _, p := range n.proxies {
		p.ResetLog()
	}
}

// Votes that come when the lease that they are for is over are no hold: they are
// taken back, and do not stand in the way of the next try.
func TestRedLockVotesThatComeTooLate(t *testing.T) {
	t.Parallel() // it waits for timeouts most of the time
	n := startMasters(t)
	n.warm(t)
	const lease = 2 * time.Second
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(5*time.Second))
	locktest.MustUnlock(t, locktest.MustLock(t, l)) // connections are made
	n.nothing(t, "stock")
	id := locktest.SHA("quorum/acquire")
	round := func() time.Duration {
		var first [5]atomic.Bool
		for i, p := range n.proxies {
			p.ResetLog()
			p.Delay(func(c faultproxy.Command) time.Duration {
				if c.IsScript(id) && first[i].CompareAndSwap(false, true) {
					return lease
				}
				return 0
			})
		}
		start := time.Now()
		held := locktest.MustLock(t, l, rlock.WithLease(lease))
		took := time.Since(start)
		if took < lease {
			t.Errorf("took %v", took)
		}
		locktest.Eventually(t, "what the tries before it had is taken back", func() bool {
			return !slices.ContainsFunc(n.votes(t, "stock"), func(a string) bool { return a != "" && a != held.HoldID() })
		})
		n.onlyVoteFor(t, held)
		locktest.MustUnlock(t, held)
		n.nothing(t, "stock")
		return took
	}
	// The votes of the first try would last until twice the lease has passed, in
	// every round. A busy machine takes as long in some.
	for rounds := 1; ; rounds++ {
		took := round()
		if took < 2*lease {
			break
		}
		if rounds == 5 {
			t.Errorf("took %v", took)
			break
		}
	}
}

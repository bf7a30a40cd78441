package quorum

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A lock is free only if no holder can have a quorum, with all the nodes whose votes
// were not read. Otherwise nobody knows, and says so; the holder too.
func TestRedLockUnknownIsNotFree(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	acquire := locktest.SHA("quorum/acquire")
	for _, i := range []int{3, 4} {
		n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(acquire) {
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
	}
	// No renewal comes in between: it would get the votes that are missing.
	l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithWatchdogLease(time.Hour)), rlock.WithNodeTimeout(locktest.Ample(time.Second)))
	lease := locktest.MustLock(t, l)
	locktest.Eventually(t, "exactly a quorum has voted", func() bool { return len(fmt.Sprint(n.votes(t, "stock", 0, 1, 2))) > 3*len(lease.HoldID()) })
	admin := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(locktest.Ample(time.Second)))
	for _, away := range [][]int{{}, {1}, {1, 2}, {1, 2, 3}, {3, 4}} {
		for _, i := range away {
			n.servers[i].Pause()
		}
		read := 3
		for _, i := range away {
			if i < 3 {
				read--
			}
		}
		var wg sync.WaitGroup // all of them wait for the nodes that are away
		for who, l := range map[string]*rlock.RedLock{"the holder": l, "another": admin} {
			wg.Go(func() {
				s, err := l.State(bg)
				if read == 3 && (err != nil || len(s.Holders) != 1) || read < 3 && (!errors.Is(err, rlock.ErrNoQuorum) || !errors.Is(err, rlock.ErrUnreachable)) {
					t.Errorf("%s, without %v: %+v, %v", who, away, s, err)
				}
			})
			wg.Go(func() {
				is, err := l.IsLocked(bg)
				if read == 3 && (err != nil || !is) || read < 3 && !errors.Is(err, rlock.ErrNoQuorum) {
					t.Errorf("%s, without %v: locked: %v, %v", who, away, is, err)
				}
			})
		}
		wg.Go(func() {
			if held, err := l.HoldCount(lease.Context(bg)); held == 0 && !errors.Is(err, rlock.ErrNoQuorum) {
				t.Errorf("without %v, its owner holds it %d times, %v", away, held, err)
			}
		})
		wg.Wait()
		for _, i := range away {
			n.servers[i].Resume()
		}
	}
	locktest.MustUnlock(t, lease)
	n.nothing(t, "stock")

	// A try that passes has a vote, and one node is away: that is no quorum.
	n.voteFor(t, "stock", "passing")
	n.servers[1].Pause()
	if s, err := admin.State(bg); err != nil || s.Locked() {
		t.Errorf("%+v, %v", s, err)
	}
	n.servers[1].Resume()
}

// Two of five nodes vote for a hold, and two do not say for whom: it may be the holder. Who does not
// get the lock is told that. Nobody waits in a queue.
func TestRedLockRefusalOfWhoMayHoldIt(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	n.voteFor(t, "stock", "dead:1", "dead:1")
	acquire := locktest.SHA("quorum/acquire")
	for _, i := range []int{3, 4} {
		n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(acquire) {
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
	}
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(patience))
	// It waits for no more replies when it is clear that there is no quorum.
	_, err := l.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	if !regexp.MustCompile("[12] of 5 nodes have voted for others, and [12] could not vote").MatchString(err.Error()) {
		t.Errorf("TryLock: %v", err)
	}
	_, err = l.Lock(bg, rlock.WithWait(locktest.Ample(3*time.Second)))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	if strings.Contains(err.Error(), "reserved for a waiter") {
		t.Errorf("Lock: %v", err)
	}
}

// ForceUnlock tells that the lock was held if one holder had a quorum, and not if
// several tries that pass had a vote each.
func TestRedLockForceUnlockCountsVotesForOne(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	admin := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
	for _, c := range []struct {
		votes []string
		held  bool
	}{
		{[]string{"a", "b", "c"}, false},
		{[]string{"a", "a", "b", "b", "c"}, false},
		{[]string{"a", "b", "a", "b", "a"}, true},
	} {
		n.voteFor(t, "stock", c.votes...)
		if did, err := admin.ForceUnlock(bg); did != c.held || err != nil {
			t.Errorf("%v: %v, %v", c.votes, did, err)
		}
		for i, rdb := range n.plain {
			if rdb.Exists(bg, recordKey("stock")).Val() > 0 {
				t.Errorf("%v: node %d still votes", c.votes, i+1)
			}
		}
	}
	n.voteFor(t, "stock", "a", "a", "", "b")
	n.servers[2].Kill()
	if did, err := admin.ForceUnlock(bg); did || !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("the third vote was not read: %v, %v", did, err)
	}
}

// When the replies are lost, and the requests are sent again and find nothing, nobody
// knows whether it was they who freed the lock.
func TestRedLockForceUnlockIfWithLostReplies(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	admin := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(2*time.Second))
	if _, err := admin.ForceUnlockIf(bg, "nobody"); err != nil { // loads the script
		t.Fatal(err)
	}
	l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
	for _, c := range []struct {
		lost []int
		did  bool
		err  error
	}{
		{[]int{0, 1, 2}, false, rlock.ErrUnreachable},
		{[]int{0, 1}, true, nil},
		{nil, true, nil},
	} {
		lease := locktest.MustLock(t, l)
		n.allVoteFor(t, lease)
		struck := n.onFirst("quorum/force_unlock", faultproxy.SwallowReply, c.lost)
		did, err := admin.ForceUnlockIf(bg, lease.HoldID())
		if did != c.did || !errors.Is(err, c.err) {
			t.Errorf("%d replies were lost: %v, %v", len(c.lost), did, err)
		}
		if struck() != len(c.lost) {
			t.Errorf("%d replies were lost, not %d", struck(), len(c.lost))
		}
		n.pass()
		if s, err := admin.State(bg); err != nil || s.Locked() {
			t.Errorf("%+v, %v", s, err)
		}
		locktest.WantErr(t, lease.Extend(bg, time.Minute), rlock.ErrLeaseLost)
		n.nothing(t, "stock")
	}
}

// A quorum of nodes says that the lock is held, or one of it does while two are silent. That another node hangs when
// it is to take its vote back is no outage of the lock.
func TestRedLockHeldIsNoOutage(t *testing.T) {
	t.Parallel()
	acquire, release := locktest.SHA("quorum/acquire"), locktest.SHA("quorum/release")
	for _, silent := range [][]int{nil, {1, 2}} {
		locktest.Beside(t, fmt.Sprint("silent ", silent), func(t *testing.T) {
			n := startMasters(t)
			n.warm(t)
			n.lockBy(t, locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second)), []int{0, 1, 2})
			for i := 3; i < 5; i++ {
				do(t, n.plain[i], "del", recordKey("stock"))
			}
			for i, held := range map[int]string{4: release, 1: acquire, 2: acquire} {
				n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
					if (i == 4 || slices.Contains(silent, i)) && c.IsScript(held) {
						return faultproxy.Hold
					}
					return faultproxy.Pass
				})
			}
			l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(5*time.Second))
			for range 2 {
				_, err := l.Lock(bg, rlock.WithWait(2*time.Second))
				locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable, rlock.ErrNoQuorum)
			}
			for _, p := range n.proxies {
				p.Release()
			}
			n.pass()
		})
	}
}

// A wait that ends while the votes of the others are taken back has the same error as one that ends before.
func TestWaitThatEndsAfterNodesHaveRefusedForGood(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(20*time.Second))
	locktest.MustUnlock(t, locktest.MustLock(t, l))
	n.nothing(t, "stock")
	acquire, release := locktest.SHA("quorum/acquire"), locktest.SHA("quorum/release")
	for i, p := range n.proxies {
		delayed, by := release, 6*time.Second
		if i%2 == 0 {
			do(t, n.plain[i], "acl", "setuser", "default", "-evalsha", "-eval")
			delayed, by = acquire, 500*time.Millisecond // the others have voted by then
		}
		p.Delay(func(c faultproxy.Command) time.Duration {
			if c.IsScript(delayed) {
				return by
			}
			return 0
		})
	}
	start := time.Now()
	_, err := l.Lock(bg, rlock.WithWait(3*time.Second))
	if took := time.Since(start); took < 3*time.Second {
		t.Fatalf("it ended after %v: %v", took, err)
	}
	locktest.WantErr(t, err, rlock.ErrRefused, rlock.ErrNoQuorum, nil, rlock.ErrUnreachable, rlock.ErrNotAcquired)
	if !strings.Contains(err.Error(), "3 of 5 nodes refuse for good, 3 have to vote; node 1 ") {
		t.Error(err)
	}
	for _, p := range n.proxies {
		p.Delay(nil)
	}
}

// If so many nodes refuse for good that the others are no quorum, waiting does not help: the error says so at once,
// and what to do. With fewer the others may come back, and the error names those that are away and those that refuse.
func TestRedLockRefusedForGood(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		refuse, killed []int
		refused        bool
	}{
		{[]int{0, 1, 2, 3, 4}, nil, true},
		{[]int{0, 2, 4}, nil, true},
		{[]int{0, 2, 4}, []int{1, 3}, true},
		{[]int{0, 2}, []int{3}, false},
	} {
		t.Run(fmt.Sprint(c.refuse, c.killed), func(t *testing.T) {
			t.Parallel()
			n := startMasters(t)
			l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithCommandTimeout(2*time.Second)), rlock.WithNodeTimeout(time.Second))
			locktest.MustUnlock(t, locktest.MustLock(t, l))
			n.nothing(t, "stock")
			for _, i := range c.refuse {
				do(t, n.plain[i], "acl", "setuser", "default", "-evalsha", "-eval")
			}
			for _, i := range c.killed {
				n.servers[i].Kill()
			}
			calls := map[string]func() error{
				"TryLock": func() error { _, err := l.TryLock(bg); return err },
			}
			if c.refused {
				calls["Lock"] = func() error { _, err := l.Lock(bg, rlock.WithWait(time.Minute)); return err }
			}
			for name, call := range calls {
				start := time.Now()
				err := call()
				if !c.refused {
					locktest.WantErr(t, err, rlock.ErrNoQuorum, nil, rlock.ErrRefused, rlock.ErrNotAcquired)
				} else {
					locktest.WantErr(t, err, rlock.ErrRefused, rlock.ErrNoQuorum, nil, rlock.ErrUnreachable, rlock.ErrNotAcquired)
					if took := time.Since(start); took > 15*time.Second {
						t.Errorf("%s: took %v", name, took)
					}
				}
				var reply redis.Error
				if !errors.As(err, &reply) || !strings.Contains(reply.Error(), "NOPERM") {
					t.Errorf("%s: no reply of Redis in %v", name, err)
				}
				for _, want := range []string{"NOPERM", "docs/acl.md has a user for each type"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: no %q in %v", name, want, err)
					}
				}
				for _, i := range slices.Concat(c.refuse, c.killed) {
					if !strings.Contains(err.Error(), fmt.Sprintf("node %d (%s): ", i+1, n.proxies[i].Addr())) {
						t.Errorf("%s: does not name node %d: %v", name, i+1, err)
					}
				}
			}
		})
	}
}

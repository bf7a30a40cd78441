package quorum

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A Lock whose context is cancelled returns then, whatever it waits for at that moment,
// and however long nodes that hang may take to answer. What it had is given back.
func TestCancelledRedLockDoesNotWaitForHungNodes(t *testing.T) {
	t.Parallel()
	const timeout, bound = 5 * time.Second, 2 * time.Second
	all := orAll(nil)
	for name, step := range map[string]struct {
		rival   int // nodes that have voted for another
		silent  map[string][]int
		reaches string // script that the try waits for ...
		nodes   int    // ... on so many nodes at least
	}{
		"votes are asked for":      {0, map[string][]int{"quorum/acquire": all}, "quorum/acquire", 5},
		"some votes are there":     {0, map[string][]int{"quorum/acquire": {2, 3, 4}, "quorum/release": all}, "quorum/acquire", 3},
		"the token is written":     {0, map[string][]int{"quorum/raise": all, "quorum/release": all}, "quorum/raise", 1},
		"votes are being returned": {3, map[string][]int{"quorum/release": {3, 4}}, "quorum/release", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startMasters(t)
			n.warm(t)
			l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(timeout))
			locktest.MustUnlock(t, locktest.MustLock(t, l)) // connections are made
			n.nothing(t, "stock")
			n.unequal(t, "stock")
			n.voteFor(t, "stock", slices.Repeat([]string{"another"}, step.rival)...)
			for _, p := range n.proxies {
				p.ResetLog()
			}
			reached := n.silence(step.silent)
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			failed := make(chan error, 1)
			go func() { _, err := l.Lock(ctx); failed <- err }()
			locktest.Eventually(t, "it waits for nodes that hang", func() bool { return reached(step.reaches) >= step.nodes })
			cancelled := time.Now()
			cancel()
			err := <-failed
			took := time.Since(cancelled)
			locktest.WantEnded(t, err, context.Canceled)
			t.Logf("returned after %v", took)
			if took > bound {
				t.Errorf("returned %v after it was cancelled", took)
			}
			n.pass()
			for i := range step.rival {
				n.plain[i].Del(bg, recordKey("stock"))
			}
			n.nothing(t, "stock")
		})
	}
}

// A try has a quorum of votes, of which it has read none: others take it for a holder
// and wait. When it gives up it tells them.
func TestRedLockThatGivesUpUnreadVotesWakesWhoWaits(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(5*time.Second))
	locktest.MustUnlock(t, locktest.MustLock(t, l)) // connections are made
	n.nothing(t, "stock")
	for _, p := range n.proxies {
		p.ResetLog()
	}
	reached := n.silence(map[string][]int{"quorum/acquire": orAll(nil)})
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	failed := make(chan error, 1)
	go func() { _, err := l.Lock(ctx); failed <- err }()
	locktest.Eventually(t, "all nodes have voted", func() bool {
		return reached("quorum/acquire") == 5 && !slices.Contains(n.votes(t, "stock"), "")
	})
	// It looks again by itself when the lease of that hold would be over, or after a minute.
	waiter := locktest.NewRedLock(t, "stock", n.straight(t, rlock.WithLongestPoll(time.Minute)))
	waiting, stop := context.WithCancel(bg)
	defer stop()
	type result struct {
		lease *rlock.Lease
		err   error
	}
	got := make(chan result, 1)
	go func() { lease, err := waiter.Lock(waiting); got <- result{lease, err} }()
	channel := recordKey("stock") + ":free"
	locktest.Eventually(t, "another one waits", func() bool {
		heard := 0
		for _, rdb := range n.plain {
			heard += int(rdb.PubSubNumSub(bg, channel).Val()[channel])
		}
		s, err := waiter.State(bg)
		return err == nil && s.Waiters == 1 && heard == 5
	})
	cancelled := time.Now()
	cancel()
	select {
	case r := <-got:
		t.Logf("the waiter had it %v after the other gave up: %v", time.Since(cancelled), r.err)
		locktest.MustUnlock(t, r.lease)
	case <-time.After(15 * time.Second):
		t.Error("the waiter sleeps though the other gave up")
		stop()
		_ = (<-got).lease.Unlock(bg) // if it had one after all
	}
	locktest.WantEnded(t, <-failed, context.Canceled)
	n.pass()
	n.nothing(t, "stock")
}

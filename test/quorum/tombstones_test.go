package quorum

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A node that has answered all that it was asked needs no tombstone, also if it has
// answered later than the quorum that the holder needed. Whoever only takes turns
// leaves none.
func TestRedLockPairsLeaveNoTombstones(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	// As long as the test bears: nothing must be sent twice on a busy machine.
	l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(12*time.Second))
	for range 100 {
		locktest.MustUnlock(t, locktest.MustLock(t, l))
	}
	for range 3 {
		lease := locktest.MustLock(t, l)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	}
	n.nothing(t, "stock")
	if left := n.tombstones(t); left != 0 {
		t.Errorf("%d tombstones", left)
	}
}

// Who is refused by a node has nothing to take back from it, and leaves nothing.
func TestRedLockWaitersLeaveNoTombstones(t *testing.T) {
	t.Parallel()
	const clients, holds = 16, 5
	n := startMasters(t)
	var wg sync.WaitGroup
	for range clients {
		l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(12*time.Second))
		wg.Go(func() {
			for range holds {
				locktest.MustUnlock(t, locktest.MustLock(t, l))
			}
		})
	}
	wg.Wait()
	n.nothing(t, "stock")
	if left := n.tombstones(t); left != 0 {
		t.Errorf("%d tombstones", left)
	}
	t.Logf("%.1f scripts for each hold", float64(scriptCalls(t, n))/(clients*holds))

	holder := locktest.MustLock(t, locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(12*time.Second)))
	n.allVoteFor(t, holder)
	before := scriptCalls(t, n)
	l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(12*time.Second))
	const looks = 20
	for range looks {
		if _, err := l.TryLock(bg); err == nil {
			t.Fatal("acquired")
		}
	}
	if calls := scriptCalls(t, n) - before; calls > 5*looks {
		t.Errorf("%d scripts for %d looks at five nodes that refuse", calls, looks)
	}
	locktest.MustUnlock(t, holder)
}

// A request that was not answered, or of which a copy was not, may come late: there
// has to be a tombstone for it, and only on its node.
func TestRedLockTombstonesOnlyForWhatMayComeLate(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	for _, script := range []string{"quorum/acquire", "quorum/renew"} {
		t.Run(script, func(t *testing.T) {
			name := "stock " + script
			l := locktest.NewRedLock(t, name, n.clients(t), rlock.WithNodeTimeout(3*time.Second))
			locktest.MustUnlock(t, locktest.MustLock(t, l)) // connections are made
			n.nothing(t, name)
			before := n.tombstones(t)
			struck := n.onFirst(script, faultproxy.SwallowReply, []int{1})
			lease := locktest.MustLock(t, l)
			if err := lease.Extend(bg, time.Minute); err != nil {
				t.Fatal(err)
			}
			locktest.Eventually(t, "a reply is lost", func() bool { return struck() == 1 })
			locktest.MustUnlock(t, lease)
			n.pass()
			n.nothing(t, name)
			if left := n.tombstones(t) - before; left != 1 {
				t.Errorf("%d tombstones", left)
			}
			if n.replay(t) == 0 {
				t.Error("nothing came late")
			}
			n.nothing(t, name)
			if v := strings.Join(n.votes(t, name), ""); v != "" {
				t.Errorf("a late request has made a node vote for %s", v)
			}
		})
	}
}

// Redis deletes the record of a vote 30 days after the longest lease at the earliest: until
// then a node's clock may be ahead for a while.
func TestRedLockRecordsOutlastTheLongestLease(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	lease := locktest.MustLock(t, locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(12*time.Second)), rlock.WithLease(rlock.MaxLease))
	defer locktest.MustUnlock(t, lease)
	n.allVoteFor(t, lease)
	for _, what := range []string{"acquired", "renewed"} {
		for i, rdb := range n.plain {
			if ttl := rdb.PTTL(bg, recordKey("stock")).Val(); ttl < rlock.MaxLease+30*24*time.Hour-time.Minute {
				t.Errorf("%s: node %d deletes the record in %v", what, i+1, ttl)
			}
		}
		if err := lease.Extend(bg, rlock.MaxLease); err != nil {
			t.Fatal(err)
		}
	}
}

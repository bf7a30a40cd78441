package quorum

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A hold survives the loss of the data of all nodes, one after the other: each
// votes for it again with the next renewal, and counts from the one after.
func TestRedLockHoldOutlivesEachOfItsNodes(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithWatchdogLease(locktest.RedLockLease)), rlock.WithNodeTimeout(locktest.RedLockTimeout))
	other := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
	lease := locktest.MustLock(t, l)
	for i := range n.servers {
		n.allVoteFor(t, lease)
		n.forget(i)
		if _, err := other.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatalf("another one's try: %v", err)
		}
		// Once by itself; to wait for that with each node would take long.
		if i > 0 {
			locktest.Eventually(t, "Extend finds the node again", func() bool {
				if err := lease.Extend(bg, locktest.RedLockLease); err != nil {
					t.Fatal(err)
				}
				return n.votes(t, "stock", i)[0] == lease.HoldID()
			})
		}
	}
	n.allVoteFor(t, lease)
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	token := lease.Token()
	locktest.MustUnlock(t, lease)
	n.nothing(t, "stock")
	next := locktest.MustLock(t, other)
	if next.Token() <= token {
		t.Errorf("token %d after %d", next.Token(), token)
	}
	locktest.MustUnlock(t, next)
}

// What a RedLock without a quarantine does not survive: that so many of the
// nodes that voted lose their data within a lease that with the others there is
// another quorum. That takes 2q-n nodes at least, all those having voted that
// must. The test shows both sides of the limit.
func TestRedLockDataLossWithinALease(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	for _, c := range []struct {
		quorum, voted, lost int
		two                 bool
	}{
		{3, 3, 0, false}, {3, 3, 1, true}, {3, 3, 2, true}, {3, 4, 1, false}, {3, 4, 2, true}, {3, 5, 2, false}, {3, 5, 3, true},
		{4, 4, 2, false}, {4, 4, 3, true}, {4, 5, 3, false}, {4, 5, 4, true},
		{5, 5, 4, false}, {5, 5, 5, true},
	} {
		t.Run(fmt.Sprintf("quorum %d, %d voted, %d forgot", c.quorum, c.voted, c.lost), func(t *testing.T) {
			var refused atomic.Int64
			for i, rdb := range n.plain {
				rdb.FlushAll(bg)
				rdb.Set(bg, counterKey("stock"), 100, 0) // equal: no vote comes too late to count
				acquire := locktest.SHA("quorum/acquire")
				n.proxies[i].Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if cmd.IsScript(acquire) && i >= c.voted {
						refused.Add(1)
						return faultproxy.Error // it is away for the moment of the vote
					}
					return faultproxy.Pass
				})
			}
			options := []rlock.RedLockOption{rlock.WithQuorum(c.quorum), rlock.WithNodeTimeout(5 * time.Second)}
			l := locktest.NewRedLock(t, "stock", n.clients(t), options...)
			other := locktest.NewRedLock(t, "stock", n.straight(t), options...)
			// Not renewed: that would take the votes of those who forgot, and come to a loss.
			first := locktest.MustLock(t, l, rlock.WithLease(rlock.DefaultWatchdogLease))
			locktest.Eventually(t, "so many have voted", func() bool {
				return !slices.Contains(n.votes(t, "stock")[:c.voted], "") && int(refused.Load()) >= 5-c.voted
			})
			n.pass()
			n.forget([]int{0, 1, 2, 3, 4}[:c.lost]...)

			second, err := other.TryLock(bg)
			if c.two {
				// A try that meets the first at some nodes does not wait for long for
				// the others, which are slow on a busy machine; nor does it take its votes
				// back from these at once, and the next one meets those.
				locktest.Eventually(t, "a second gets in", func() bool {
					if err != nil {
						time.Sleep(100 * time.Millisecond)
						second, err = other.TryLock(bg)
					}
					return err == nil
				})
			}
			if c.two != (err == nil) {
				t.Fatalf("a second holder: %v (%v), want %v", err == nil, err, c.two)
			}
			if !c.two {
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.Eventually(t, "the try is taken back", func() bool {
					return !slices.ContainsFunc(n.votes(t, "stock"), func(a string) bool { return a != "" && a != first.HoldID() })
				})
				// The hold goes on, or it cannot know: but it is not told a lie.
				if err := first.Extend(bg, time.Minute); err != nil && !errors.Is(err, rlock.ErrNoQuorum) {
					t.Errorf("Extend: %v", err)
				}
				locktest.MustUnlock(t, first)
				n.nothing(t, "stock")
				return
			}
			if first.Err() != nil || second.Err() != nil {
				t.Fatalf("nobody has told them yet, but %v, %v", first.Err(), second.Err())
			}
			// The first is told with its next renewal, also if the second has left
			// by then: a hold that was broken is not mended.
			locktest.MustUnlock(t, second)
			n.nothing(t, "stock", []int{0, 1, 2, 3, 4}[:c.lost]...)
			locktest.WantErr(t, first.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrRemoved)
			locktest.WantErr(t, first.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			n.nothing(t, "stock")
		})
	}
}

// A voter loses its data, another owner comes and goes, and then a late acquire of the first one gets a
// vote. With that the first has as many votes as before, and it does not know that it had lost the lock.
func TestRedLockUnlockAfterALateVote(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	began := time.Now()
	n.warm(t)
	for _, rdb := range n.plain {
		do(t, rdb, "set", counterKey("stock"), 100) // equal: each vote of the first quorum counts
	}
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(patience))
	other := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(patience))
	acquire, late := locktest.SHA("quorum/acquire"), make(chan struct{})
	let := sync.OnceFunc(func() { close(late) })
	defer let()
	for i := 3; i < 5; i++ {
		n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
			if !c.IsScript(acquire) {
				return faultproxy.Pass
			}
			if i == 4 {
				return faultproxy.Error
			}
			<-late
			return faultproxy.Pass
		})
	}
	lease := locktest.MustLock(t, l)
	slow := time.Since(began) // no answer has taken longer
	n.plain[2].FlushAll(bg)
	second := locktest.MustLock(t, other)
	if second.Token() <= lease.Token() {
		t.Errorf("token %d after %d", second.Token(), lease.Token())
	}
	locktest.MustUnlock(t, second)
	n.nothing(t, "stock", 2, 3, 4)
	time.Sleep(max(time.Second, 3*slow)) // so that it is not taken for the slowness of a busy machine
	let()
	locktest.Eventually(t, "the late acquire has got a vote", func() bool { return n.votes(t, "stock", 3)[0] == lease.HoldID() })
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed, nil, rlock.ErrUnreachable, rlock.ErrLeaseLost)
	n.nothing(t, "stock")
}

// A hold that another one has taken over is told so, by a renewal and by Unlock.
func TestRedLockTakenOver(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	for _, by := range []string{"a renewal", "Extend", "Unlock"} {
		t.Run(by, func(t *testing.T) {
			l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithWatchdogLease(locktest.RedLockLease)), rlock.WithNodeTimeout(locktest.RedLockTimeout))
			other := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
			first := locktest.MustLock(t, l, rlock.WithLease(time.Minute))
			if by == "a renewal" {
				locktest.MustUnlock(t, first)
				first = locktest.MustLock(t, l)
			}
			n.allVoteFor(t, first)
			for _, rdb := range n.plain {
				rdb.FlushAll(bg)
			}
			second := locktest.MustLock(t, other)
			n.allVoteFor(t, second)
			switch by {
			case "a renewal":
				<-first.Done()
			case "Extend":
				locktest.WantErr(t, first.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrTakenOver)
			}
			locktest.WantErr(t, first.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
			n.onlyVoteFor(t, second)
			if err := second.Extend(bg, time.Minute); err != nil {
				t.Error(err)
			}
			locktest.MustUnlock(t, second)
			n.nothing(t, "stock")
		})
	}
}

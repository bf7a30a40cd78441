package quorum

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// With a quorum of four of five, as long as two nodes have stood nobody else can
// have had the lock: its holder has not lost it, and Unlock says so.
func TestRedLockUnlockWithLargeQuorumAfterDataLoss(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithQuorum(4), rlock.WithNodeTimeout(2*time.Second))
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	n.forget(3, 4)
	if err := lease.Unlock(bg); err != nil {
		t.Errorf("two of five have forgotten: %v", err)
	}
	n.nothing(t, "stock")
	lease = locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	n.forget(1, 2, 3, 4)
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	n.nothing(t, "stock")
}

// On two nodes one vote keeps others from a quorum, and they take it for a hold. It
// is announced when it is taken back, also if its reply came after the try was over.
func TestRedLockReportsAVoteThatWasNotRead(t *testing.T) {
	t.Parallel()
	var cs []*rlock.Client
	var rdbs []redis.UniversalClient
	var proxies []*faultproxy.Proxy
	for _, s := range redistest.StartMasters(t, 2) {
		p := faultproxy.New(t, s.Addr())
		proxies = append(proxies, p)
		cs = append(cs, locktest.NewClient(t, locktest.Dialer(p.Addr())(t, nil)))
		rdbs = append(rdbs, locktest.Dialer(s.Addr())(t, nil))
	}
	l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(2*time.Second))
	locktest.MustUnlock(t, locktest.MustLock(t, l)) // connections, scripts
	heard := rdbs[0].Subscribe(bg, recordKey("stock")+":free")
	defer heard.Close()
	if _, err := heard.Receive(bg); err != nil {
		t.Fatal(err)
	}
	// Another one's vote on the second node; the first one's reply comes later.
	until := time.Now().Add(time.Minute).UnixMicro()
	if err := rdbs[1].HSet(bg, recordKey("stock"), "attempt", "other", "stamp", 5, "until", until).Err(); err != nil {
		t.Fatal(err)
	}
	id := locktest.SHA("quorum/acquire")
	asked, once := make(chan struct{}), sync.Once{}
	proxies[0].Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(id) {
			once.Do(func() { close(asked) })
			return faultproxy.SwallowReply
		}
		return faultproxy.Pass
	})
	proxies[1].Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(id) {
			<-asked // if this one answered before, the first one might not be asked at all
		}
		return faultproxy.Pass
	})
	if _, err := l.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatal(err)
	}
	start := time.Now()
	select {
	case <-heard.Channel():
		t.Logf("told after %v", time.Since(start))
	case <-time.After(locktest.Patience):
		t.Error("nobody was told")
	}
}

// While nodes are away, a release that is repeated leaves no more to be done on
// each of them than it did at first.
func TestRedLockRepeatedReleaseLeavesOneOnEachNode(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(5*time.Second))
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	for i := range 3 {
		n.servers[i+2].Kill()
	}
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnreachable)
	time.Sleep(5 * time.Second) // how long the nodes are away: about as many repetitions
	for i := range 3 {
		n.servers[i+2].Restart()
	}
	time.Sleep(3 * time.Second) // for those that are too many to come
	// They count from their restart. Besides what was left for each, the whole
	// release may have been repeated once or twice.
	calls := scriptCalls(t, &masters{plain: n.plain[2:]})
	t.Logf("%d scripts", calls)
	if calls > 12 {
		t.Errorf("%d scripts have run on three nodes", calls)
	}
	n.nothing(t, "stock")
}

// Unlock is bounded by its own timeout, also where that of a node is longer.
func TestRedLockUnlockTimeout(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.straight(t, rlock.WithUnlockTimeout(100*time.Millisecond)), rlock.WithNodeTimeout(40*time.Second))
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	for i := range 3 {
		n.servers[i].Pause()
	}
	start := time.Now()
	err := lease.Unlock(bg)
	took := time.Since(start)
	locktest.WantErr(t, err, rlock.ErrUnreachable)
	if took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	for i := range 3 {
		n.servers[i].Resume()
	}
	n.nothing(t, "stock")
	if _, err := l.TryLock(bg); err != nil && !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
}

// What is left on the node of a client that was shut down is taken back by the home
// of the lock.
func TestRedLockTakesBackFromTheNodeOfAClosedClient(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	cs := n.clients(t)
	l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(5*time.Second))
	if err := cs[1].Close(); err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	id := locktest.SHA("quorum/release")
	var reset atomic.Int64
	n.proxies[1].Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(id) {
			reset.Add(1)
			return faultproxy.ResetBefore
		}
		return faultproxy.Pass
	})
	locktest.MustUnlock(t, lease)
	locktest.Eventually(t, "the release is repeated in vain", func() bool { return reset.Load() > 1 })
	n.pass()
	n.nothing(t, "stock")
}

// Also a client that was shut down is a way to its node: one that was away is found
// again.
func TestRedLockNodeOfAClosedClientComesBack(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	cs := n.straight(t)
	l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(2*time.Second))
	if err := cs[1].Close(); err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	n.servers[1].Pause()
	locktest.MustUnlock(t, lease)
	time.Sleep(4 * time.Second) // the node hangs for longer than its timeouts
	n.servers[1].Kill()
	n.servers[1].Restart()
	n.servers[2].Kill()
	n.servers[3].Kill()
	locktest.Eventually(t, "the node is back", func() bool {
		lease, err := l.TryLock(bg)
		if err == nil {
			locktest.MustUnlock(t, lease)
		}
		return err == nil
	})
	n.nothing(t, "stock", 0, 1, 4)
}

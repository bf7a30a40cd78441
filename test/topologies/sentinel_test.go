package topologies

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// successor waits until the sentinels name another master and returns it.
func successor(t testing.TB, s *redistest.Sentinel, old *redistest.Server) *redistest.Server {
	t.Helper()
	var now *redistest.Server
	locktest.Eventually(t, "the sentinels name a new master", func() bool {
		now = s.CurrentMaster()
		return now != old
	})
	return now
}

func TestSentinelCrashKeepsConfirmedHolds(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	s := redistest.StartSentinel(t)
	ctx := context.Background()
	lease := rlock.WithWatchdogLease(30 * time.Second)
	// Confirmed by both replicas: either may be promoted.
	a := locktest.Join(t, s.Client(), lease, rlock.WithReplicaAck(2, 4*time.Second))
	b := locktest.Join(t, s.Client(), lease)
	held, waited, outage := locktest.MustLock(t, a.NewLock("held")), locktest.MustLock(t, a.NewLock("waited")), locktest.MustLock(t, a.NewLock("outage"))
	forWaited, forOutage := b.LineParked(t, "waited"), b.LineParked(t, "outage")

	master := s.CurrentMaster()
	killed := time.Now()
	master.Kill()
	forFree := b.Line(t, "free")
	// Either the new master is there in time, or the release goes on alone.
	if err := outage.Unlock(ctx); err != nil && !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("Unlock without a master: %v", err)
	}
	next := successor(t, s, master)
	named := time.Now()
	t.Logf("new master named %v after the crash", named.Sub(killed))

	got, d := forFree.Lease(t, named)
	t.Logf("an acquire in the outage succeeded %v after that", d)
	locktest.MustUnlock(t, got)
	if !knowsScript(t, next.Client(), "lock/enter") {
		t.Error("the new master does not know the script")
	}
	got, d = forOutage.WokenByMessage(t, named)
	t.Logf("what was released in the outage was had %v after that", d)
	if got.Token() <= outage.Token() {
		t.Errorf("token %d after %d", got.Token(), outage.Token())
	}
	locktest.MustUnlock(t, got)

	// Renewals count again once there are two replicas that confirm them.
	master.Restart()
	s.Settle()
	a.RenewedAgain(t, "held", 1)
	// On a busy machine the sentinels may fail over a second time, and for some
	// seconds there are two masters. The message is promised when that is over.
	locktest.Eventually(t, "there is one master, with the waiter subscribed to it", func() bool {
		masters := 0
		for _, r := range s.Replicas {
			if strings.Contains(r.Client().Info(ctx, "replication").Val(), "role:master") {
				masters++
			}
		}
		return masters == 1 && locktest.Subscribers(t, s.CurrentMaster().Client(), "waited") == 1
	})
	released := time.Now()
	locktest.MustUnlock(t, waited)
	got, d = forWaited.WokenByMessage(t, released)
	t.Logf("woken %v after the release at the new master", d)
	if got.Token() <= waited.Token() {
		t.Errorf("token %d after %d", got.Token(), waited.Token())
	}
	locktest.MustUnlock(t, got)
	locktest.MustUnlock(t, held)
}

// A failover on demand leaves the old master at work for a few seconds. A
// client that has not heard of it is there alone, and so is its hold.
func TestSentinelFailoverAndItsSplitBrain(t *testing.T) {
	locktest.Thorough(t)
	t.Parallel()
	s := redistest.StartSentinel(t)
	ctx := context.Background()
	old := s.CurrentMaster()
	a := locktest.Join(t, s.Client(), rlock.WithWatchdogLease(24*time.Second), rlock.WithReplicaAck(2, 4*time.Second))
	b := locktest.Join(t, s.Client())
	// These stay with the old master, as if the news had not reached them.
	atOld := func(ack time.Duration) *locktest.Member {
		opts := []rlock.Option{rlock.WithWatchdogLease(1500 * time.Millisecond)}
		if ack > 0 {
			opts = append(opts, rlock.WithReplicaAck(2, ack))
		}
		return locktest.Join(t, old.Client(), opts...)
	}
	stale, confirmed, unconfirmed := atOld(4*time.Second), atOld(100*time.Millisecond), atOld(0)
	held, waited := locktest.MustLock(t, a.NewLock("held")), locktest.MustLock(t, a.NewLock("waited"))
	forWaited := b.LineParked(t, "waited")
	split := locktest.MustLock(t, stale.NewLock("split"))

	s.Failover()
	promoted := time.Now()
	next := s.CurrentMaster()
	locktest.Eventually(t, "the news has reached a client", func() bool {
		lease, err := b.NewLock("news").TryLock(ctx)
		if err != nil {
			return false
		}
		there := holds(t, next.Client(), "news")
		_ = lease.Unlock(ctx)
		return there
	})
	forSplit := b.Line(t, "split")

	// Both masters grant one lock, unless the old one was quick to step down.
	here, err := unconfirmed.NewLock("both").TryLock(ctx)
	if err == nil {
		there := locktest.MustLock(t, b.NewLock("both"))
		t.Logf("held at both masters %v after the promotion; stale holder: %v", time.Since(promoted), here.Err())
		if there.Token() <= here.Token() {
			t.Errorf("token %d at the new master after %d at the old", there.Token(), here.Token())
		}
		defer locktest.MustUnlock(t, there)
	} else {
		t.Logf("acquire at the old master %v after the promotion: %v", time.Since(promoted), err)
		if !errors.Is(err, rlock.ErrUnreachable) {
			t.Error(err)
		}
	}
	// Who asks for confirmation is not fooled.
	if _, err := confirmed.NewLock("another").TryLock(ctx); !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("acquire with confirmation at the old master: %v", err)
	} else {
		t.Logf("acquire with confirmation at the old master: %v", err)
	}

	// The hold at the old master is no longer renewed at the new one, so it
	// runs out there, whatever its holder believes.
	got, d := forSplit.Lease(t, promoted)
	t.Logf("the lock was had at the new master %v after the promotion; its stale holder then: %v", d, split.Err())
	if got.Token() <= split.Token() {
		t.Errorf("token %d after %d", got.Token(), split.Token())
	}
	if here != nil {
		select {
		case <-here.Done():
			t.Logf("the stale holder of the other lock was told %v after the promotion: %v", time.Since(promoted), here.Err())
		case <-time.After(40 * time.Second):
			t.Error("the stale holder was not told")
		}
	}
	select {
	case <-split.Done():
	case <-time.After(40 * time.Second):
		t.Fatal("the stale holder was not told that its hold is lost")
	}
	t.Logf("its stale holder was told %v after the promotion: %v", time.Since(promoted), split.Err())
	if err := split.Err(); !errors.Is(err, rlock.ErrLeaseLost) ||
		!errors.Is(err, rlock.ErrTakenOver) && !errors.Is(err, rlock.ErrRemoved) && !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("lost with %v", err)
	}
	if err := split.Unlock(ctx); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("Unlock of a lost hold: %v", err)
	}
	if err := got.Err(); err != nil {
		t.Errorf("the new holder: %v", err)
	}
	locktest.MustUnlock(t, got)

	// Whoever heard of the failover goes on at the new master.
	s.Settle()
	a.RenewedAgain(t, "held", 2)
	if !holds(t, next.Client(), "held") {
		t.Error("the new master does not have the hold")
	}
	released := time.Now()
	locktest.MustUnlock(t, waited)
	got, d = forWaited.WokenByMessage(t, released)
	t.Logf("woken %v after the release at the new master", d)
	if got.Token() <= waited.Token() {
		t.Errorf("token %d after %d", got.Token(), waited.Token())
	}
	locktest.MustUnlock(t, got)
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, locktest.MustLock(t, a.NewLock("free")))
}

// A master that hangs closes no connection, and tells subscribers nothing.
func TestSentinelMasterThatHangsIsLeftForItsSuccessor(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	s := redistest.StartSentinel(t)
	lease := rlock.WithWatchdogLease(30 * time.Second)
	a := locktest.Join(t, s.Client(), lease, rlock.WithReplicaAck(2, 4*time.Second))
	b := locktest.Join(t, s.Client(), lease)
	held, waited := locktest.MustLock(t, a.NewLock("held")), locktest.MustLock(t, a.NewLock("waited"))
	forWaited := b.LineParked(t, "waited")
	looked := b.Looks.At("waited")

	master := s.CurrentMaster()
	master.Pause()
	defer master.Resume()
	successor(t, s, master)
	named := time.Now()
	locktest.Eventually(t, "TryLock finds the new master", func() bool {
		lease, err := b.NewLock("free").TryLock(context.Background())
		if err != nil {
			return false
		}
		locktest.MustUnlock(t, lease)
		return true
	})
	t.Logf("TryLock succeeded %v after the new master was named", time.Since(named))
	b.Parked(t, "waited", looked+1)
	t.Logf("subscribed at the new master %v after it was named", time.Since(named))
	released := time.Now()
	locktest.MustUnlock(t, waited)
	got, d := forWaited.WokenByMessage(t, released)
	t.Logf("woken %v after the release at the new master", d)
	if got.Token() <= waited.Token() {
		t.Errorf("token %d after %d", got.Token(), waited.Token())
	}
	locktest.MustUnlock(t, got)
	// Renewals count again once there are two replicas that confirm them.
	master.Resume()
	s.Settle()
	a.RenewedAgain(t, "held", 1)
	locktest.MustUnlock(t, held)
}

package quorum

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// With a quarantine a holder gives up twice the skew of the clocks and the flight of
// a request before its lease is over, beside the drift: however it came to the lease.
func TestQuarantineTakesItsMarginOffEachLease(t *testing.T) {
	t.Parallel()
	const (
		lease  = 15 * time.Second // so that the half of the margin is long for any machine
		short  = lease / 3
		margin = 2*lease/60 + lease/30
	)
	valid := func(lease time.Duration) time.Duration { // DefaultDriftFactor, DefaultDriftFloor, and the margin
		return lease - lease/100 - 2*time.Millisecond - margin
	}
	addrs := addressesOf(redistest.StartMasters(t, 3))
	cs := clientsAt(t, addrs, rlock.WithWatchdogLease(lease))
	l := locktest.NewRedLock(t, "stock", cs, rlock.WithRestartQuarantine())
	locktest.Eventually(t, "all nodes vote", func() bool { return l.BootstrapNodes(bg) == nil })

	// A deadline is counted from before its request was sent: so it is never farther
	// from now than what is valid of the lease. What the machine took in between hides
	// as much of a missing margin: one that is late tries again.
	check := func(what string, lease time.Duration, get func() *rlock.Lease) {
		t.Helper()
		for range 100 {
			before := time.Now()
			deadline := get().Deadline()
			took := time.Until(deadline.Add(-valid(lease))) // negative: since the request was sent
			switch {
			case took > 0:
				t.Errorf("%s: the deadline is %v too late, the margin is %v", what, took, margin)
				return
			case deadline.Before(before.Add(valid(lease))):
				t.Errorf("%s: the deadline is %v too early", what, before.Add(valid(lease)).Sub(deadline))
				return
			case -took < margin/2:
				return
			}
		}
		t.Errorf("%s: not one of 100 was quick enough", what)
	}

	check("acquire", short, func() *rlock.Lease {
		held := lockPatiently(t, l, rlock.WithLease(short))
		defer unlock(held)
		return held
	})
	held := lockPatiently(t, l, rlock.WithLease(short))
	check("Extend", 2*short, func() *rlock.Lease {
		for held.Extend(bg, 2*short) != nil {
			held = lockPatiently(t, l, rlock.WithLease(short))
		}
		return held
	})
	check("re-entry", lease, func() *rlock.Lease {
		inner := locktest.MustLockCtx(t, held.Context(bg), l, rlock.WithLease(lease))
		locktest.MustUnlock(t, inner)
		return held
	})
	unlock(held)

	held = lockPatiently(t, l)
	defer unlock(held)
	check("renewal", lease, func() *rlock.Lease {
		for before := held.Deadline(); held.Deadline().Equal(before) && held.Err() == nil; {
			time.Sleep(time.Millisecond) // the pace of looking
		}
		return held
	})
}

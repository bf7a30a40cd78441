//go:build unix

package processes

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// The lease of a process that was killed ends by itself, and a waiter of each type
// has the lock then, and not before. With pauses and polls of an hour it is the
// rest of the lease that makes it look.
func TestWaitersGetTheLockOfAKilledProcess(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	for kind, open := range map[string]func(*rlock.Client) rlock.Locker{
		"FencedLock": func(c *rlock.Client) rlock.Locker { return c.NewFencedLock("processes") },
		"SpinLock": func(c *rlock.Client) rlock.Locker {
			return c.NewSpinLock("processes", rlock.WithBackoff(rlock.ConstantBackoff(locktest.Patient)))
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			holder := locktest.StartChild(t, "hold", b.Addr)
			if token, err := strconv.ParseInt(holder.Report("held"), 10, 64); err != nil || token <= 0 {
				t.Fatal(token, err)
			}
			rdb := b.Client(t)
			l := open(locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)))
			got := make(chan *rlock.Lease)
			go func() { got <- locktest.MustLock(t, l) }()
			holder.Kill()
			killed := time.Now()
			rest := rdb.PTTL(bg, "processes").Val()
			lease := <-got
			// PTTL rounds to milliseconds; the upper bound leaves room for a busy
			// machine, and for a renewal that was under way.
			if took := time.Since(killed); took < rest-time.Millisecond || took > 2*lockLease+30*time.Second {
				t.Errorf("the lock of a killed process, locked for another %v, was taken after %v", rest, took)
			}
			locktest.MustUnlock(t, lease)
		})
	}
}

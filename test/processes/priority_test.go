//go:build unix

package processes

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// waiterLease is that of the processes that wait for a priority lock.
const waiterLease = 2 * time.Second

// childPriority takes the priority lock "processes" with the priority that it is
// given, and unlocks it when told.
func childPriority(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(waiterLease), rlock.WithWaiterLease(waiterLease), rlock.WithLongestPoll(locktest.Patient))
	priority, _ := strconv.Atoi(args[0])
	p.Report("begins")
	lease := locktest.MustLockCtx(t, context.Background(), c.NewPriorityLock("processes").At(priority))
	p.Report("held %d", lease.Token())
	p.Await("unlock")
	locktest.MustUnlock(t, lease)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The holder is killed, and the most urgent waiter too: the others come in by
// their priorities when the leases of both are over, and nothing is left.
func TestKilledHolderAndKilledUrgentWaiter(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	l := b.NewClient(t).NewPriorityLock("processes")
	holder := locktest.StartChild(t, "priority", b.Addr, "1")
	holder.Report("begins")
	token, _ := strconv.ParseInt(holder.Report("held"), 10, 64)
	waiting := map[int]*locktest.Child{}
	for i, p := range []int{3, 9, 6} { // the order of arrival
		waiting[p] = locktest.StartChild(t, "priority", b.Addr, fmt.Sprint(p))
		waiting[p].Report("begins")
		locktest.Eventually(t, "it stands in the queue", func() bool { return locktest.MustState(t, l).Waiters == i+1 })
	}
	waiting[9].Kill()
	holder.Kill()
	killed := time.Now()
	for _, p := range []int{6, 3} {
		next, _ := strconv.ParseInt(waiting[p].Report("held"), 10, 64)
		if next <= token {
			t.Errorf("token %d after %d", next, token)
		}
		token = next
		if p == 6 {
			took := time.Since(killed)
			t.Logf("taken %v after both were killed", took.Round(time.Millisecond))
			// Both leases run out beside each other; the rest is for a busy machine.
			if took > waiterLease+30*time.Second {
				t.Errorf("taken %v after both were killed", took)
			}
		}
		waiting[p].Order("unlock")
		waiting[p].Finish()
	}
	locktest.OnlyTombstones(t, rdb)
}

//go:build unix

package rlock_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// queuedWaiterLease is that of the processes that wait for a priority lock.
const queuedWaiterLease = 2 * time.Second

func init() { childModes["priority"] = childPriority }

// childPriority takes the priority lock "processes" with the priority that it is
// given, and unlocks it when told.
func childPriority(t *testing.T, p *parent, addr string, args []string) {
	c, _ := childClient(t, addr, rlock.WithWatchdogLease(queuedWaiterLease), rlock.WithWaiterLease(queuedWaiterLease), rlock.WithLongestPoll(patient))
	priority, _ := strconv.Atoi(args[0])
	p.report("begins")
	lease := mustLockCtx(t, context.Background(), c.NewPriorityLock("processes"), rlock.WithPriority(priority))
	p.report("held %d", lease.Token())
	p.await("unlock")
	mustUnlock(t, lease)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The holder is killed, and the most urgent waiter too: the others come in by
// their priorities when the leases of both are over, and nothing is left.
func TestKilledHolderAndKilledUrgentWaiter(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	l := b.newClient(t).NewPriorityLock("processes")
	holder := startChild(t, "priority", b.addr, "1")
	holder.report("begins")
	token, _ := strconv.ParseInt(holder.report("held"), 10, 64)
	waiting := map[int]*child{}
	for i, p := range []int{3, 9, 6} { // the order of arrival
		waiting[p] = startChild(t, "priority", b.addr, fmt.Sprint(p))
		waiting[p].report("begins")
		eventually(t, "it stands in the queue", func() bool { return queuedState(t, l).Waiters == i+1 })
	}
	waiting[9].kill()
	holder.kill()
	killed := time.Now()
	for _, p := range []int{6, 3} {
		next, _ := strconv.ParseInt(waiting[p].report("held"), 10, 64)
		if next <= token {
			t.Errorf("token %d after %d", next, token)
		}
		token = next
		if p == 6 {
			took := time.Since(killed)
			t.Logf("taken %v after both were killed", took.Round(time.Millisecond))
			// Both leases run out beside each other; the rest is for a busy machine.
			if took > queuedWaiterLease+6*time.Second {
				t.Errorf("taken %v after both were killed", took)
			}
		}
		waiting[p].order("unlock")
		waiting[p].finish()
	}
	onlyTombstones(t, rdb)
}

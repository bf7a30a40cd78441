//go:build unix

package processes

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// multiLockLease is longer than a busy machine may stop a process.
const multiLockLease = 3 * time.Second

// Processes that take the same locks in opposite orders, among them the same name
// on two servers, never wait for each other in a circle; and the death of one
// that holds all holds the others up for no longer than its leases last.
func TestProcessesWithMultiLocksInOppositeOrder(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	const processes, sections, killedAfter = 4, 60, 20
	one, two := locktest.OnServer(t), locktest.OnServer(t)
	children := make([]*locktest.Child, processes)
	for i := range children {
		n := sections
		if i == 0 {
			n = killedAfter
		}
		children[i] = locktest.StartChild(t, "multi", one.Addr, two.Addr, strconv.FormatBool(i%2 == 1), strconv.Itoa(n), strconv.FormatBool(i == 0))
	}
	for _, c := range children {
		c.Report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.Order("go")
	}
	children[0].Report("holds")
	children[0].Kill()
	for _, c := range children[1:] {
		c.Report("done")
		c.Finish()
	}
	took := time.Since(start)
	n, err := one.Client(t).Get(bg, "counter").Int()
	if want := killedAfter + (processes-1)*sections; err != nil || n != want {
		t.Errorf("the counter is %d (%v) after %d sections", n, err, want)
	}
	t.Logf("%d sections in %v", n, took.Round(time.Millisecond))
	// A circle at every tenth section would take longer than this, which leaves
	// room for a busy machine beside the lease of the dead one.
	if took > multiLockLease+20*time.Second {
		t.Errorf("took %v", took)
	}
	locktest.WantKeys(t, one.Client(t), "counter")
	// The counter of a fenced lock stays.
	locktest.WantKeys(t, two.Client(t), "redisson_lock_token:{b}")
	for _, server := range []*locktest.Backend{one, two} {
		locktest.WantClients(t, server.Client(t))
	}
}

// childMulti counts under all the locks. At the end it either closes its clients
// or stays in the last section.
func childMulti(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(multiLockLease))
	d, _ := locktest.ChildClient(t, args[0], rlock.WithWatchdogLease(multiLockLease))
	locks := []rlock.Locker{c.NewLock("multi"), d.NewLock("multi"), c.NewFairLock("a"), d.NewFencedLock("b")}
	if args[1] == "true" {
		slices.Reverse(locks)
	}
	m := locktest.NewMultiLock(t, locks...)
	sections, _ := strconv.Atoi(args[2])
	p.Report("ready")
	p.Await("go")
	for i := range sections {
		lease := locktest.MustLock(t, m)
		n, err := rdb.Get(bg, "counter").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
		if err := rdb.Set(bg, "counter", n+1, 0).Err(); err != nil {
			t.Error(err)
		}
		if i == sections-1 && args[3] == "true" {
			p.Report("holds")
			select {} // until it is killed
		}
		locktest.MustUnlock(t, lease)
	}
	for _, c := range []*rlock.Client{c, d} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	p.Report("done")
}

//go:build unix

package rlock_test

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// multiProcessLease is longer than a busy machine may stop a process.
const multiProcessLease = 3 * time.Second

func init() { childModes["multi"] = childMulti }

// Processes that take the same locks in opposite orders, among them the same name
// on two servers, never wait for each other in a circle; and the death of one
// that holds all holds the others up for no longer than its leases last.
func TestProcessesWithMultiLocksInOppositeOrder(t *testing.T) {
	t.Parallel()
	const processes, sections, killedAfter = 4, 60, 20
	one, two := onServer(t), onServer(t)
	children := make([]*child, processes)
	for i := range children {
		n := sections
		if i == 0 {
			n = killedAfter
		}
		children[i] = startChild(t, "multi", one.addr, two.addr, strconv.FormatBool(i%2 == 1), strconv.Itoa(n), strconv.FormatBool(i == 0))
	}
	for _, c := range children {
		c.report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.order("go")
	}
	children[0].report("holds")
	children[0].kill()
	for _, c := range children[1:] {
		c.report("done")
		c.finish()
	}
	took := time.Since(start)
	n, err := one.client(t).Get(bg, "counter").Int()
	if want := killedAfter + (processes-1)*sections; err != nil || n != want {
		t.Errorf("the counter is %d (%v) after %d sections", n, err, want)
	}
	t.Logf("%d sections in %v", n, took.Round(time.Millisecond))
	// A circle at every tenth section would take longer than this, which leaves
	// room for a busy machine beside the lease of the dead one.
	if took > multiProcessLease+20*time.Second {
		t.Errorf("took %v", took)
	}
	wantKeys(t, one.client(t), "counter")
	// The counter of a fenced lock stays.
	wantKeys(t, two.client(t), "redisson_lock_token:{b}")
}

// childMulti counts under all the locks. At the end it either closes its clients
// or stays in the last section.
func childMulti(t *testing.T, p *parent, addr string, args []string) {
	c, rdb := childClient(t, addr, rlock.WithWatchdogLease(multiProcessLease))
	d, _ := childClient(t, args[0], rlock.WithWatchdogLease(multiProcessLease))
	locks := []rlock.Locker{c.NewLock("multi"), d.NewLock("multi"), c.NewFairLock("a"), d.NewFencedLock("b")}
	if args[1] == "true" {
		slices.Reverse(locks)
	}
	m := multi(t, locks...)
	sections, _ := strconv.Atoi(args[2])
	p.report("ready")
	p.await("go")
	for i := range sections {
		lease := mustLock(t, m)
		n, err := rdb.Get(bg, "counter").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
		if err := rdb.Set(bg, "counter", n+1, 0).Err(); err != nil {
			t.Error(err)
		}
		if i == sections-1 && args[3] == "true" {
			p.report("holds")
			select {} // until it is killed
		}
		mustUnlock(t, lease)
	}
	for _, c := range []*rlock.Client{c, d} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	p.report("done")
}

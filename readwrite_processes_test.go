//go:build unix

package rlock_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

func init() {
	childModes["rw sections"] = childReadWriteSections
	childModes["rw hold"] = childReadWriteHold
}

// Readers and writers in several processes: what is written in two steps is
// read whole, and no write is lost.
func TestProcessesReadAndWriteInTurn(t *testing.T) {
	t.Parallel()
	const processes, goroutines, sections = 4, 4, 60 // sections of each goroutine
	b := onServer(t)
	children := make([]*child, processes)
	for i := range children {
		children[i] = startChild(t, "rw sections", b.addr, strconv.Itoa(goroutines), strconv.Itoa(sections))
	}
	for _, c := range children {
		c.report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.order("go")
	}
	writes := 0
	for _, c := range children {
		n, _ := strconv.Atoi(c.report("done"))
		writes += n
		c.finish()
	}
	t.Logf("%d sections, %d of them writes, in %v", processes*goroutines*sections, writes, time.Since(start).Round(time.Millisecond))
	rdb := b.client(t)
	first, _ := rdb.Get(bg, "first").Int()
	second, _ := rdb.Get(bg, "second").Int()
	if first != writes || second != writes {
		t.Errorf("%d and %d after %d writes", first, second, writes)
	}
	// Who was let in when the last writer left is noted for a second.
	eventually(t, "nothing of the lock is left", func() bool { return len(keysOf(t, rdb)) <= 2 })
	wantKeys(t, rdb, "first", "second")
}

func childReadWriteSections(t *testing.T, p *parent, addr string, args []string) {
	goroutines, _ := strconv.Atoi(args[0])
	sections, _ := strconv.Atoi(args[1])
	c, rdb := childClient(t, addr)
	l := c.NewReadWriteLock("processes")
	p.report("ready")
	p.await("go")
	get := func(key string) int {
		n, err := rdb.Get(bg, key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
		return n
	}
	read := func() {
		if first, second := get("first"), get("second"); first != second {
			t.Errorf("a reader sees %d and %d", first, second)
		}
	}
	var wg sync.WaitGroup
	writes := 0
	for g := range goroutines {
		for i := range sections {
			if (g+i)%5 == 0 {
				writes++
			}
		}
		wg.Go(func() {
			for i := range sections {
				writes, side := (g+i)%5 == 0, rlock.Locker(l.Reader)
				if writes {
					side = l.Writer
				}
				lease, err := side.Lock(bg)
				if err != nil {
					t.Error(err)
					return
				}
				if !writes {
					read()
					mustUnlock(t, lease)
					continue
				}
				n := get("first")
				rdb.Set(bg, "first", n+1, 0)
				if n != get("second") {
					t.Errorf("a writer finds %d and %d", n, get("second"))
				}
				rdb.Set(bg, "second", n+1, 0)
				if i%2 == 0 {
					on := mustLockCtx(t, lease.Context(bg), l.Reader)
					mustUnlock(t, lease)
					read()
					lease = on
				}
				mustUnlock(t, lease)
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	p.report("done %d", writes)
}

// A side whose process is killed is free when its lease is over, and not
// before, whatever other readers do.
func TestKilledSideFreesAfterItsLease(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"read", "write", "both"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			b := onServer(t)
			rdb := b.client(t)
			c := b.newClient(t, rlock.WithWatchdogLease(processLease))
			l := c.NewReadWriteLock("processes")
			holder := startChild(t, "rw hold", b.addr, side)
			owner := holder.report("held")
			if side == "read" {
				// The hash gets ten minutes; the reader that asked for it leaves.
				mustUnlock(t, mustLock(t, l.Reader, rlock.WithLease(10*time.Minute)))
			}
			// It is renewed: it lasts for longer than its lease.
			_, err := l.Writer.Lock(bg, rlock.WithWait(3*processLease/2))
			if !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatalf("beside a living holder: %v", err)
			}
			holder.kill()
			killed := time.Now()
			key := "processes"
			if side == "read" {
				key = rwTimer("processes", owner, 1)
			}
			rest := rdb.PTTL(bg, key).Val()
			lease := mustLock(t, l.Writer)
			took := time.Since(killed)
			// PTTL rounds to milliseconds; the upper bound leaves room for a busy machine.
			if took < rest-time.Millisecond || took > processLease+6*time.Second {
				t.Errorf("locked for another %v, taken after %v", rest, took)
			}
			t.Logf("locked for another %v, taken after %v", rest, took.Round(time.Millisecond))
			mustUnlock(t, lease)
			if n := rdb.Exists(bg, "processes").Val(); n != 0 {
				t.Error("the lock is left")
			}
		})
	}
}

func childReadWriteHold(t *testing.T, p *parent, addr string, args []string) {
	c, _ := childClient(t, addr, rlock.WithWatchdogLease(processLease))
	l := c.NewReadWriteLock("processes")
	var lease *rlock.Lease
	switch args[0] {
	case "read":
		lease = mustLock(t, l.Reader)
	case "write":
		lease = mustLock(t, l.Writer)
	case "both":
		lease = mustLock(t, l.Writer)
		mustLockCtx(t, lease.Context(bg), l.Reader)
	}
	p.report("held %s", lease.Owner())
	p.await("never")
}

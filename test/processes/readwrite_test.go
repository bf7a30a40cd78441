//go:build unix

package processes

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Readers and writers in several processes: what is written in two steps is
// read whole, and no write is lost.
func TestProcessesReadAndWriteInTurn(t *testing.T) {
	t.Parallel()
	const processes, goroutines, sections = 4, 4, 60 // sections of each goroutine
	b := locktest.OnServer(t)
	children := make([]*locktest.Child, processes)
	for i := range children {
		children[i] = locktest.StartChild(t, "rw sections", b.Addr, strconv.Itoa(goroutines), strconv.Itoa(sections))
	}
	for _, c := range children {
		c.Report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.Order("go")
	}
	writes := 0
	for _, c := range children {
		n, _ := strconv.Atoi(c.Report("done"))
		writes += n
		c.Finish()
	}
	t.Logf("%d sections, %d of them writes, in %v", processes*goroutines*sections, writes, time.Since(start).Round(time.Millisecond))
	rdb := b.Client(t)
	first, _ := rdb.Get(bg, "first").Int()
	second, _ := rdb.Get(bg, "second").Int()
	if first != writes || second != writes {
		t.Errorf("%d and %d after %d writes", first, second, writes)
	}
	// Who was let in when the last writer left is noted for a second.
	locktest.Eventually(t, "nothing of the lock is left", func() bool { return len(locktest.Keys(t, rdb)) <= 2 })
	locktest.WantKeys(t, rdb, "first", "second")
}

func childReadWriteSections(t *testing.T, p *locktest.Parent, addr string, args []string) {
	goroutines, _ := strconv.Atoi(args[0])
	sections, _ := strconv.Atoi(args[1])
	c, rdb := locktest.ChildClient(t, addr)
	l := c.NewReadWriteLock("processes")
	p.Report("ready")
	p.Await("go")
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
					locktest.MustUnlock(t, lease)
					continue
				}
				n := get("first")
				rdb.Set(bg, "first", n+1, 0)
				if n != get("second") {
					t.Errorf("a writer finds %d and %d", n, get("second"))
				}
				rdb.Set(bg, "second", n+1, 0)
				if i%2 == 0 {
					on := locktest.MustLockCtx(t, lease.Context(bg), l.Reader)
					locktest.MustUnlock(t, lease)
					read()
					lease = on
				}
				locktest.MustUnlock(t, lease)
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	p.Report("done %d", writes)
}

// A side whose process is killed is free when its lease is over, and not
// before, whatever other readers do.
func TestKilledSideFreesAfterItsLease(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	for _, side := range []string{"read", "write", "both"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			c := b.NewClient(t, rlock.WithWatchdogLease(lockLease))
			l := c.NewReadWriteLock("processes")
			holder := locktest.StartChild(t, "rw hold", b.Addr, side)
			owner := holder.Report("held")
			if side == "read" {
				// The hash gets ten minutes; the reader that asked for it leaves.
				locktest.MustUnlock(t, locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute)))
			}
			// It is renewed: it lasts for longer than its lease.
			_, err := l.Writer.Lock(bg, rlock.WithWait(3*lockLease/2))
			if !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatalf("beside a living holder: %v", err)
			}
			holder.Kill()
			killed := time.Now()
			key := "processes"
			if side == "read" {
				key = locktest.ReaderTimer("processes", owner, 1)
			}
			rest := rdb.PTTL(bg, key).Val()
			lease := locktest.MustLock(t, l.Writer)
			took := time.Since(killed)
			// PTTL rounds to milliseconds; the upper bound leaves room for a busy machine.
			if took < rest-time.Millisecond || took > lockLease+30*time.Second {
				t.Errorf("locked for another %v, taken after %v", rest, took)
			}
			t.Logf("locked for another %v, taken after %v", rest, took.Round(time.Millisecond))
			locktest.MustUnlock(t, lease)
			if n := rdb.Exists(bg, "processes").Val(); n != 0 {
				t.Error("the lock is left")
			}
		})
	}
}

func childReadWriteHold(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lockLease))
	l := c.NewReadWriteLock("processes")
	var lease *rlock.Lease
	switch args[0] {
	case "read":
		lease = locktest.MustLock(t, l.Reader)
	case "write":
		lease = locktest.MustLock(t, l.Writer)
	case "both":
		lease = locktest.MustLock(t, l.Writer)
		locktest.MustLockCtx(t, lease.Context(bg), l.Reader)
	}
	p.Report("held %s", lease.HoldID())
	p.Await("never")
}

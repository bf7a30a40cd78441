//go:build unix

package processes

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// startRedChild runs a mode in a process that is told of all nodes.
func startRedChild(t testing.TB, servers []*redistest.Server, mode string, args ...string) *locktest.Child {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return locktest.StartChild(t, mode, append([]string{strings.Join(addrs, ",")}, args...)...)
}

// childRedLock is a RedLock in a child. Its clients are not closed: processes just
// end.
func childRedLock(t *testing.T, addrs string) *rlock.RedLock {
	var cs []*rlock.Client
	for _, addr := range strings.Split(addrs, ",") {
		c, err := rlock.New(redis.NewClient(&redis.Options{Addr: addr}), rlock.WithWatchdogLease(locktest.RedLockLease))
		if err != nil {
			t.Fatal(err)
		}
		cs = append(cs, c)
	}
	l, err := rlock.NewRedLock("processes", cs, rlock.WithNodeTimeout(locktest.RedLockTimeout))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Processes exclude each other, also when one after the other is killed while it
// holds the lock: a number that is read and written by separate commands is never
// given twice, and the tokens grow in the order of the sections.
func TestRedLockProcessesOneOfWhichIsKilled(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	const processes, goroutines, sections = 4, 3, 240
	servers := redistest.StartMasters(t, 5)
	b := locktest.OnServer(t) // what the lock protects
	children := make([]*locktest.Child, processes)
	for i := range children {
		children[i] = startRedChild(t, servers, "red sections", b.Addr, strconv.Itoa(goroutines), strconv.Itoa(sections/processes))
	}
	for _, c := range children {
		c.Report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.Order("go")
	}
	rdb := b.Client(t)
	killed := 0
	for killed < 2 {
		// In the middle of its work; often it holds the lock, or is at it.
		locktest.Eventually(t, "some sections are done", func() bool {
			return rdb.LLen(bg, "done").Val() >= int64(20*(killed+1))
		})
		children[killed].Kill()
		killed++
	}
	for _, c := range children[killed:] {
		c.Report("done")
		c.Finish()
	}
	done, err := rdb.LRange(bg, "done", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sections of %d processes, %d of them killed, in %v", len(done), processes, killed, time.Since(start).Round(time.Millisecond))
	if least := sections / processes * (processes - killed); len(done) < least {
		t.Errorf("%d sections, and not at least %d", len(done), least)
	}
	var lastToken, lastNumber int64
	for i, text := range done {
		var token, number int64
		if _, err := fmt.Sscan(text, &token, &number); err != nil {
			t.Fatal(err)
		}
		// One that was killed may have written its number and not said so.
		if token <= lastToken || number <= lastNumber {
			t.Fatalf("section %d has token %d and number %d, the one before it %d and %d", i, token, number, lastToken, lastNumber)
		}
		lastToken, lastNumber = token, number
	}
}

func childRedSections(t *testing.T, p *locktest.Parent, addrs string, args []string) {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	goroutines, _ := strconv.Atoi(args[1])
	sections, _ := strconv.Atoi(args[2])
	l := childRedLock(t, addrs)
	ctx := context.Background()
	p.Report("ready")
	p.Await("go")
	var left atomic.Int64
	left.Store(int64(sections))
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				lease := locktest.MustLock(t, l)
				number, _ := rdb.Get(ctx, "number").Int()
				if err := rdb.Set(ctx, "number", number+1, 0).Err(); err != nil {
					t.Error(err)
				}
				if err := rdb.RPush(ctx, "done", fmt.Sprint(lease.Token(), " ", number+1)).Err(); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, lease)
			}
		})
	}
	wg.Wait()
	p.Report("done")
}

// The lock of a process that was killed is free when its lease is over on the
// nodes, and not before, also if two nodes die with it.
func TestRedLockKilledHolderFreesAfterItsLease(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel() // it waits for leases to run out
	servers := redistest.StartMasters(t, 5)
	var cs []*rlock.Client
	for _, s := range servers {
		cs = append(cs, locktest.NewClient(t, locktest.Dialer(s.Addr())(t, locktest.DialOnce), rlock.WithWatchdogLease(locktest.RedLockLease)))
	}
	l := locktest.NewRedLock(t, "processes", cs, rlock.WithNodeTimeout(locktest.RedLockTimeout))
	for _, nodes := range []int{0, 2} {
		holder := startRedChild(t, servers, "red hold")
		first, _ := strconv.ParseInt(holder.Report("held"), 10, 64)
		if s, err := l.State(bg); err != nil || !s.Locked() {
			t.Fatalf("%+v, %v", s, err)
		}
		holder.Kill()
		killed := time.Now()
		s, err := l.State(bg)
		if err != nil || !s.Locked() {
			t.Fatalf("%+v, %v", s, err)
		}
		for i := range nodes {
			servers[1+i].Kill()
		}
		lease := locktest.MustLock(t, l)
		took := time.Since(killed)
		if lease.Token() <= first {
			t.Errorf("token %d after %d", lease.Token(), first)
		}
		// Of the three votes that are left all are needed; the first to run out is
		// a few ms before that which State has told. The upper bound leaves room
		// for a busy machine.
		if took < s.TTL-500*time.Millisecond || took > locktest.RedLockLease+30*time.Second {
			t.Errorf("the lock of a killed process, locked for another %v, was taken after %v", s.TTL, took)
		}
		t.Logf("locked for another %v, taken after %v", s.TTL, took.Round(time.Millisecond))
		locktest.MustUnlock(t, lease)
		for i := range nodes {
			servers[1+i].Restart()
		}
	}
}

func childRedHold(t *testing.T, p *locktest.Parent, addrs string, _ []string) {
	lease := locktest.MustLock(t, childRedLock(t, addrs))
	p.Report("held %d", lease.Token())
	p.Await("unlock")
}

//go:build unix

package processes

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// With 8 processes of 8 goroutines each, a counter that is read and written by
// separate commands loses nothing, and the tokens grow in the order of the
// sections.
func TestProcessesExcludeEachOther(t *testing.T) {
	t.Parallel()
	const processes, goroutines = 8, 8
	sections := 20_000
	if testing.Short() || !locktest.IsThorough() {
		sections = 4_000
	}
	b := locktest.OnServer(t)
	children := make([]*locktest.Child, processes)
	for i := range children {
		children[i] = locktest.StartChild(t, "sections", b.Addr, strconv.Itoa(goroutines), strconv.Itoa(sections/processes))
	}
	for _, c := range children {
		c.Report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.Order("go")
	}
	for _, c := range children {
		c.Report("done")
		c.Finish()
	}
	t.Logf("%d sections of %d processes in %v", sections, processes, time.Since(start).Round(time.Millisecond))

	ctx, rdb := context.Background(), b.Client(t)
	if n, err := rdb.Get(ctx, "counter").Int(); err != nil || n != sections {
		t.Errorf("the counter is %d (%v) after %d sections", n, err, sections)
	}
	tokens, err := rdb.LRange(ctx, "tokens", 0, -1).Result()
	if err != nil || len(tokens) != sections {
		t.Errorf("%d tokens (%v) of %d sections", len(tokens), err, sections)
	}
	last := int64(0)
	for i, text := range tokens {
		token, err := strconv.ParseInt(text, 10, 64)
		if err != nil || token <= last {
			t.Fatalf("section %d has token %s, the one before it %d", i, text, last)
		}
		last = token
	}
	locktest.WantKeys(t, rdb, "counter", "tokens")
	locktest.WantClients(t, rdb)
}

func childSections(t *testing.T, p *locktest.Parent, addr string, args []string) {
	goroutines, _ := strconv.Atoi(args[0])
	sections, _ := strconv.Atoi(args[1])
	c, rdb := locktest.ChildClient(t, addr)
	lock := c.NewLock("processes")
	ctx := context.Background()
	p.Report("ready")
	p.Await("go")
	var left atomic.Int64
	left.Store(int64(sections))
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				lease, err := lock.Lock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				n, err := rdb.Get(ctx, "counter").Int()
				if err != nil && !errors.Is(err, redis.Nil) {
					t.Error(err)
				}
				if err := rdb.Set(ctx, "counter", n+1, 0).Err(); err != nil {
					t.Error(err)
				}
				if err := rdb.RPush(ctx, "tokens", lease.Token()).Err(); err != nil {
					t.Error(err)
				}
				if err := lease.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	p.Report("done")
}

// lockLease is the watchdog lease of the tests that wait until one is over.
const lockLease = time.Second

// The lock of a process that was killed is free when its lease is over, and
// not before.
func TestKilledHolderFreesAfterItsLease(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	b := locktest.OnServer(t)
	holder := locktest.StartChild(t, "hold", b.Addr)
	first, _ := strconv.ParseInt(holder.Report("held"), 10, 64)
	// The hold is renewed: it lasts for longer than its lease.
	l := b.NewClient(t, rlock.WithWatchdogLease(lockLease)).NewLock("processes")
	_, err := l.Lock(context.Background(), rlock.WithWait(2*lockLease))
	if !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatalf("beside a living holder: %v", err)
	}

	holder.Kill()
	killed := time.Now()
	rest := b.Client(t).PTTL(context.Background(), "processes").Val()
	lease := locktest.MustLock(t, l)
	took := time.Since(killed)
	if lease.Token() <= first {
		t.Errorf("token %d after %d", lease.Token(), first)
	}
	// PTTL rounds to milliseconds; the upper bound leaves room for a busy
	// machine.
	if took < rest-time.Millisecond || took > lockLease+30*time.Second {
		t.Errorf("the lock of a killed process, locked for another %v, was taken after %v", rest, took)
	}
	t.Logf("locked for another %v, taken after %v", rest, took.Round(time.Millisecond))
	locktest.MustUnlock(t, lease)
}

func childHold(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lockLease))
	lease := locktest.MustLock(t, c.NewLock("processes"))
	p.Report("held %d", lease.Token())
	p.Await("unlock")
	locktest.MustUnlock(t, lease)
}

// A holder that was stopped for longer than its lease sees the loss with its
// first look, and its Unlock does not touch its successor.
func TestStoppedHolderSeesLossAtFirstLook(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	b := locktest.OnServer(t)
	ctx, rdb := context.Background(), b.Client(t)
	holder := locktest.StartChild(t, "watch", b.Addr)
	first, _ := strconv.ParseInt(holder.Report("held"), 10, 64)
	holder.Signal(syscall.SIGSTOP)

	c := b.NewClient(t)
	lease := locktest.MustLock(t, c.NewLock("processes"))
	if lease.Token() <= first {
		t.Errorf("token %d after %d", lease.Token(), first)
	}
	before := rdb.HGetAll(ctx, "processes").Val()
	// So that the stop is far longer than any pause of a busy machine.
	time.Sleep(3 * lockLease)
	holder.Signal(syscall.SIGCONT)
	t.Logf("first look: %s", holder.Report("lost"))
	t.Logf("unlock: %s", holder.Report("unlocked"))
	holder.Finish()

	after := rdb.HGetAll(ctx, "processes").Val()
	if len(after) != 1 || after[lease.HoldID()] != "1" || before[lease.HoldID()] != "1" {
		t.Errorf("the successor's hold was %v and is %v", before, after)
	}
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	locktest.MustUnlock(t, lease)
	locktest.MustClose(t, c)
	locktest.WantKeys(t, rdb)
	locktest.WantClients(t, rdb)
}

// childWatch holds the lock and looks at its lease all the time.
func childWatch(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lockLease))
	lease := locktest.MustLock(t, c.NewLock("processes"))
	p.Report("held %d", lease.Token())
	var err error
	for last, end := time.Now(), time.Now().Add(locktest.ChildPatience); err == nil; {
		now := time.Now()
		err = lease.Err()
		if gap := now.Sub(last); err == nil && gap > 2*lockLease {
			t.Errorf("a look after a stop of %v sees no loss", gap)
		}
		last = now
		if now.After(end) {
			t.Fatal("never lost")
		}
		time.Sleep(100 * time.Microsecond) // the pace of looking
	}
	// Only the local clock can tell so soon; whether a renewal was under way
	// when the stop came makes the difference between the causes.
	if !errors.Is(err, rlock.ErrLeaseLost) || !errors.Is(err, rlock.ErrExpired) && !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("after the stop: %v", err)
	}
	p.Report("lost %v", err)
	err = lease.Unlock(context.Background())
	if !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("Unlock: %v", err)
	}
	p.Report("unlocked %v", err)
	if err := c.Close(); err != nil { // also waits for what Unlock left to be done
		t.Error(err)
	}
}

// Processes that are killed while they wait leave nothing, and the others get
// the lock.
func TestKilledWaitersLeaveNothing(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	const waiters = 4
	b := locktest.OnServer(t)
	rdb, holder := b.Client(t), b.NewClient(t)
	lease := locktest.MustLock(t, holder.NewLock("processes"))
	children := make([]*locktest.Child, waiters)
	for i := range children {
		children[i] = locktest.StartChild(t, "wait", b.Addr)
	}
	locktest.Eventually(t, "all processes wait", func() bool { return locktest.Subscribers(t, rdb, "processes") == waiters })
	for _, c := range children[1:] {
		c.Kill()
	}
	locktest.Eventually(t, "the killed are no longer subscribed", func() bool { return locktest.Subscribers(t, rdb, "processes") == 1 })
	locktest.WantKeys(t, rdb, "processes")
	locktest.MustUnlock(t, lease)

	token, _ := strconv.ParseInt(children[0].Report("held"), 10, 64)
	if token <= lease.Token() {
		t.Errorf("token %d after %d", token, lease.Token())
	}
	children[0].Order("unlock")
	children[0].Finish()
	locktest.Eventually(t, "nobody is subscribed", func() bool { return locktest.Subscribers(t, rdb, "processes") == 0 })
	locktest.MustClose(t, holder)
	locktest.WantKeys(t, rdb)
	locktest.WantClients(t, rdb)
}

func childWait(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr)
	lease, err := c.NewLock("processes").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	p.Report("held %d", lease.Token())
	p.Await("unlock")
	locktest.MustUnlock(t, lease)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkHandOverBetweenProcesses is the time from the call of Unlock in one
// process until Lock returns in another that waited, by the clock that the two
// share.
func BenchmarkHandOverBetweenProcesses(b *testing.B) {
	server := locktest.OnServer(b)
	lock := server.NewClient(b).NewLock("bench")
	evals := locktest.EvalCounter(b, server)
	other := locktest.StartChild(b, "handover", server.Addr)
	other.Report("ready")
	var times locktest.Latencies
	looks := locktest.LooksBeforeSleep
	for b.Loop() {
		lease := locktest.MustLock(b, lock)
		before := evals()
		other.Order("lock")
		locktest.Eventually(b, "the other waits", func() bool { return evals() >= before+looks })
		looks = 1 // the other's line is kept
		called := time.Now()
		locktest.MustUnlock(b, lease)
		at, err := strconv.ParseInt(other.Report("held"), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Duration(at-called.UnixNano()))
		other.Report("free")
	}
	times.Report(b)
}

func childHandOver(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr)
	lock := c.NewLock("bench")
	p.Report("ready")
	for {
		p.Await("lock")
		lease := locktest.MustLock(t, lock)
		p.Report("held %d", time.Now().UnixNano())
		locktest.MustUnlock(t, lease)
		p.Report("free")
	}
}

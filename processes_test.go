//go:build unix

package rlock_test

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
)

// With 8 processes of 8 goroutines each, a counter that is read and written by
// separate commands loses nothing, and the tokens grow in the order of the
// sections.
func TestProcessesExcludeEachOther(t *testing.T) {
	t.Parallel()
	const processes, goroutines = 8, 8
	sections := 20_000
	if testing.Short() {
		sections = 4_000
	}
	b := onServer(t)
	children := make([]*child, processes)
	for i := range children {
		children[i] = startChild(t, "sections", b.addr, strconv.Itoa(goroutines), strconv.Itoa(sections/processes))
	}
	for _, c := range children {
		c.report("ready")
	}
	start := time.Now()
	for _, c := range children {
		c.order("go")
	}
	for _, c := range children {
		c.report("done")
		c.finish()
	}
	t.Logf("%d sections of %d processes in %v", sections, processes, time.Since(start).Round(time.Millisecond))

	ctx, rdb := context.Background(), b.client(t)
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
	wantKeys(t, rdb, "counter", "tokens")
}

func childSections(t *testing.T, p *parent, addr string, args []string) {
	goroutines, _ := strconv.Atoi(args[0])
	sections, _ := strconv.Atoi(args[1])
	c, rdb := childClient(t, addr)
	lock := c.NewLock("processes")
	ctx := context.Background()
	p.report("ready")
	p.await("go")
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
	p.report("done")
}

// processLease is the watchdog lease of the tests that wait until one is over.
const processLease = time.Second

// The lock of a process that was killed is free when its lease is over, and
// not before.
func TestKilledHolderFreesAfterItsLease(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	holder := startChild(t, "hold", b.addr)
	first, _ := strconv.ParseInt(holder.report("held"), 10, 64)
	// The hold is renewed: it lasts for longer than its lease.
	l := b.newClient(t, rlock.WithWatchdogLease(processLease)).NewLock("processes")
	_, err := l.Lock(context.Background(), rlock.WithWait(2*processLease))
	if !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatalf("beside a living holder: %v", err)
	}

	holder.kill()
	killed := time.Now()
	rest := b.client(t).PTTL(context.Background(), "processes").Val()
	lease := mustLock(t, l)
	took := time.Since(killed)
	if lease.Token() <= first {
		t.Errorf("token %d after %d", lease.Token(), first)
	}
	// PTTL rounds to milliseconds; the upper bound leaves room for a busy
	// machine.
	if took < rest-time.Millisecond || took > processLease+5*time.Second {
		t.Errorf("the lock of a killed process, locked for another %v, was taken after %v", rest, took)
	}
	t.Logf("locked for another %v, taken after %v", rest, took.Round(time.Millisecond))
	mustUnlock(t, lease)
}

func childHold(t *testing.T, p *parent, addr string, _ []string) {
	c, _ := childClient(t, addr, rlock.WithWatchdogLease(processLease))
	lease := mustLock(t, c.NewLock("processes"))
	p.report("held %d", lease.Token())
	p.await("unlock")
	mustUnlock(t, lease)
}

// A holder that was stopped for longer than its lease sees the loss with its
// first look, and its Unlock does not touch its successor.
func TestStoppedHolderSeesLossAtFirstLook(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	ctx, rdb := context.Background(), b.client(t)
	holder := startChild(t, "watch", b.addr)
	first, _ := strconv.ParseInt(holder.report("held"), 10, 64)
	holder.signal(syscall.SIGSTOP)

	l := b.newClient(t).NewLock("processes")
	lease := mustLock(t, l)
	if lease.Token() <= first {
		t.Errorf("token %d after %d", lease.Token(), first)
	}
	before := rdb.HGetAll(ctx, "processes").Val()
	// So that the stop is far longer than any pause of a busy machine.
	time.Sleep(3 * processLease)
	holder.signal(syscall.SIGCONT)
	t.Logf("first look: %s", holder.report("lost"))
	t.Logf("unlock: %s", holder.report("unlocked"))
	holder.finish()

	after := rdb.HGetAll(ctx, "processes").Val()
	if len(after) != 1 || after[lease.Owner()] != "1" || before[lease.Owner()] != "1" {
		t.Errorf("the successor's hold was %v and is %v", before, after)
	}
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	mustUnlock(t, lease)
	wantKeys(t, rdb)
}

// childWatch holds the lock and looks at its lease all the time.
func childWatch(t *testing.T, p *parent, addr string, _ []string) {
	c, _ := childClient(t, addr, rlock.WithWatchdogLease(processLease))
	lease := mustLock(t, c.NewLock("processes"))
	p.report("held %d", lease.Token())
	var err error
	for last, end := time.Now(), time.Now().Add(childPatience); err == nil; {
		now := time.Now()
		err = lease.Err()
		if gap := now.Sub(last); err == nil && gap > 2*processLease {
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
	p.report("lost %v", err)
	err = lease.Unlock(context.Background())
	if !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("Unlock: %v", err)
	}
	p.report("unlocked %v", err)
	if err := c.Close(); err != nil { // also waits for what Unlock left to be done
		t.Error(err)
	}
}

// Processes that are killed while they wait leave nothing, and the others get
// the lock.
func TestKilledWaitersLeaveNothing(t *testing.T) {
	t.Parallel()
	const waiters = 4
	b := onServer(t)
	rdb := b.client(t)
	lease := mustLock(t, b.newClient(t).NewLock("processes"))
	children := make([]*child, waiters)
	for i := range children {
		children[i] = startChild(t, "wait", b.addr)
	}
	eventually(t, "all processes wait", func() bool { return subscribers(t, rdb, "processes") == waiters })
	for _, c := range children[1:] {
		c.kill()
	}
	eventually(t, "the killed are no longer subscribed", func() bool { return subscribers(t, rdb, "processes") == 1 })
	wantKeys(t, rdb, "processes")
	mustUnlock(t, lease)

	token, _ := strconv.ParseInt(children[0].report("held"), 10, 64)
	if token <= lease.Token() {
		t.Errorf("token %d after %d", token, lease.Token())
	}
	children[0].order("unlock")
	children[0].finish()
	eventually(t, "nobody is subscribed", func() bool { return subscribers(t, rdb, "processes") == 0 })
	wantKeys(t, rdb)
}

func childWait(t *testing.T, p *parent, addr string, _ []string) {
	c, _ := childClient(t, addr)
	lease, err := c.NewLock("processes").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	p.report("held %d", lease.Token())
	p.await("unlock")
	mustUnlock(t, lease)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkHandOverBetweenProcesses is the time from the call of Unlock in one
// process until Lock returns in another that waited, by the clock that the two
// share.
func BenchmarkHandOverBetweenProcesses(b *testing.B) {
	server := onServer(b)
	lock := server.newClient(b).NewLock("bench")
	evals := evalCounter(b, server)
	other := startChild(b, "handover", server.addr)
	other.report("ready")
	var times latencies
	for b.Loop() {
		lease := mustLock(b, lock)
		before := evals()
		other.order("lock")
		eventually(b, "the other waits", func() bool { return evals() >= before+looksBeforeSleep })
		called := time.Now()
		mustUnlock(b, lease)
		at, err := strconv.ParseInt(other.report("held"), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Duration(at-called.UnixNano()))
		other.report("free")
	}
	times.report(b)
}

func childHandOver(t *testing.T, p *parent, addr string, _ []string) {
	c, _ := childClient(t, addr)
	lock := c.NewLock("bench")
	p.report("ready")
	for {
		p.await("lock")
		lease := mustLock(t, lock)
		p.report("held %d", time.Now().UnixNano())
		mustUnlock(t, lease)
		p.report("free")
	}
}

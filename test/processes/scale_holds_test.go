package processes

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// 10,000 holds of one client are renewed for as long as three leases: none is
// lost, no goroutine is added, and each costs one command for each third of
// its lease.
func TestTenThousandHoldsAreRenewed(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) {
		return
	}
	const holds, leases = 10_000, 2
	lease := locktest.Ample(5 * time.Second)
	b := locktest.OnServer(t)
	ctx, rdb := context.Background(), b.Client(t)
	c := b.NewClient(t, rlock.WithWatchdogLease(lease))
	held := make([]*rlock.Lease, holds)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < holds; i = next.Add(1) - 1 {
				l, err := c.NewLock("held:" + strconv.Itoa(int(i))).Lock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				held[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}

	goroutines, most := runtime.NumGoroutine(), 0
	scripts, renewals := locktest.CommandCount(t, rdb, "evalsha", "eval"), locktest.CommandCount(t, rdb, "pexpire")
	start := time.Now()
	for time.Since(start) < leases*lease {
		most = max(most, runtime.NumGoroutine())
		time.Sleep(10 * time.Millisecond) // the pace of looking
	}
	scripts = locktest.CommandCount(t, rdb, "evalsha", "eval") - scripts
	renewals = locktest.CommandCount(t, rdb, "pexpire") - renewals
	took := time.Since(start)
	for _, l := range held {
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if n := rdb.Exists(ctx, names(holds)...).Val(); n != holds {
		t.Errorf("%d of %d holds are in Redis", n, holds)
	}
	// Beside the watchdog itself a goroutine for each of a few batches.
	if most > goroutines+10 {
		t.Errorf("%d goroutines with %d holds, then %d", goroutines, holds, most)
	}
	// A third of a lease passes between renewals of a hold, or a little less,
	// since what is due soon is done along.
	rounds := float64(took) / float64(lease/3)
	perHold := float64(renewals) / holds
	t.Logf("%.2f renewals of each hold in %.2f thirds of a lease by %d scripts, at most %d goroutines beside %d", perHold, rounds, scripts, most, goroutines)
	if scripts > renewals/5 { // up to a hundred by one, if as many are due together
		t.Errorf("%d scripts for %d renewals", scripts, renewals)
	}
	if perHold < 2*leases-1 || perHold > 1.1*rounds+1 {
		t.Errorf("%.2f renewals of each hold in %.2f thirds of a lease", perHold, rounds)
	}

	shutdown, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start = time.Now()
	done := locktest.ShutDown(shutdown, c, held...)
	t.Logf("Shutdown told them in %v", time.Since(start).Round(time.Millisecond))
	for _, l := range held {
		if err := l.Err(); !errors.Is(err, rlock.ErrClosed) {
			t.Fatalf("during Shutdown: %v", err)
		}
	}
	var unlockers sync.WaitGroup
	for part := range slices.Chunk(held, (len(held)+63)/64) {
		unlockers.Go(func() {
			for _, l := range part {
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	unlockers.Wait()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("they are unlocked after %v", time.Since(start).Round(time.Millisecond))
	locktest.WantKeys(t, rdb)
}

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = "held:" + strconv.Itoa(i)
	}
	return all
}

// A thousand waiters that are cancelled at once return at once and leave
// nothing, whether they wait for one lock or for a lock each.
func TestThousandWaitersCanceledTogether(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) {
		return
	}
	t.Run("one lock", func(t *testing.T) {
		locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) { cancelAtOnce(t, b, 1) })
	})
	t.Run("a lock each", func(t *testing.T) { cancelAtOnce(t, locktest.OnServer(t), 1000) })
}

func cancelAtOnce(t *testing.T, b *locktest.Backend, locks int) {
	const waiters = 1000
	ctx, rdb := context.Background(), b.Client(t)
	holder, c := b.NewClient(t), b.NewClient(t)
	held := make([]*rlock.Lease, locks)
	for i := range held {
		held[i] = locktest.MustLock(t, holder.NewLock("held:"+strconv.Itoa(i)))
	}
	channels := func() int { return len(rdb.PubSubChannels(ctx, "*").Val()) }
	// One that came and went, so that the subscribed connection and
	// its goroutines, which are kept for a while, are there before.
	one, cancelOne := context.WithCancel(ctx)
	gone := make(chan error, waiters)
	go func() { _, err := c.NewLock("held:0").Lock(one); gone <- err }()
	locktest.Eventually(t, "the first waits", func() bool { return channels() == 1 })
	cancelOne()
	<-gone
	locktest.Eventually(t, "the first has left", func() bool { return channels() == 0 })
	before := runtime.NumGoroutine()

	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range waiters {
		l := c.NewLock("held:" + strconv.Itoa(i%locks))
		go func() { _, err := l.Lock(waiting); gone <- err }()
	}
	locktest.Eventually(t, "all wait", func() bool {
		n := 0
		for i := range locks {
			s, err := c.NewLock("held:" + strconv.Itoa(i)).State(ctx)
			if err != nil {
				return false // the looks of a thousand keep a slow server busy
			}
			n += s.Waiters
		}
		return n == waiters && channels() == locks
	})
	start := time.Now()
	cancel()
	for range waiters {
		select {
		case err := <-gone:
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("a cancelled waiter: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a cancelled waiter does not return")
		}
	}
	took := time.Since(start)
	t.Logf("all returned in %v", took.Round(100*time.Microsecond))
	// It takes some 20 ms, and with one round trip each it would too. What
	// must not happen is that they wait for a poll or a timeout, of 3 s at
	// least, or for each other.
	if took > 2*time.Second {
		t.Errorf("the last returned after %v", took)
	}

	locktest.Eventually(t, "nobody is subscribed", func() bool { return channels() == 0 })
	if b.Mini == nil { // which has goroutines of its own in here
		// Fewer is possible: those of the first waiter may end by now.
		locktest.Eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	}
	locktest.WantKeys(t, rdb, names(locks)...)
	for _, l := range held {
		locktest.MustUnlock(t, l)
	}
	locktest.MustClose(t, holder, c)
	locktest.WantKeys(t, rdb)
	locktest.WantClients(t, rdb)
}

// Locks that come and go leave nothing in the client.
func TestHundredThousandLocksLeaveNoGrowth(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) {
		return
	}
	locks := 100_000
	if testing.Short() || locktest.UnderRace() {
		locks = 20_000
	}
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	c := b.NewClient(t)
	turnOver := func(from, to int) {
		var next atomic.Int64
		next.Store(int64(from))
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for i := next.Add(1); i <= int64(to); i = next.Add(1) {
					locktest.Pair(t, c.NewLock("passing:"+strconv.FormatInt(i, 10)))
				}
			})
		}
		wg.Wait()
	}
	turnOver(0, locks/10) // opens connections, fills pools
	before := locktest.Heap()
	turnOver(locks/10, locks)
	after := locktest.Heap()
	growth := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(locks-locks/10)
	t.Logf("the heap went from %d to %d kB: %.2f bytes for each lock", before.HeapAlloc>>10, after.HeapAlloc>>10, growth)
	// A name that is kept anywhere costs well over 10 bytes. The clocks, in
	// Redis, are one for each slot at most.
	if growth > 10 {
		t.Errorf("the heap grew by %.1f bytes for each lock", growth)
	}
	locktest.MustClose(t, c)
	locktest.WantKeys(t, rdb)
	locktest.WantClients(t, rdb)
	if n := rdb.DBSize(context.Background()).Val(); n > 16384 {
		t.Errorf("%d keys are left in Redis", n)
	}
}

// Waiters that come and go leave nothing either: no channel, no place in line.
func TestManyWaitersLeaveNoGrowth(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) {
		return
	}
	waiters := 10_000
	if testing.Short() || locktest.UnderRace() {
		waiters = 8_000
	}
	b := locktest.OnServer(t)
	ctx := context.Background()
	rdb := b.Client(t)
	holder, c := b.NewClient(t), b.NewClient(t)
	comeAndGo := func(from, to int) {
		var next atomic.Int64
		next.Store(int64(from))
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for i := next.Add(1); i <= int64(to); i = next.Add(1) {
					name := "passing:" + strconv.FormatInt(i, 10)
					lease, err := holder.NewLock(name).Lock(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					_, err = c.NewLock(name).Lock(ctx, rlock.WithWait(5*time.Millisecond))
					locktest.WantEnded(t, err, nil)
					if err := lease.Unlock(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(ctx, "*").Val()) == 0 })
	}
	const first = 4_000 // by then all connections are open, and pools are full
	comeAndGo(0, first)
	before := locktest.Heap()
	comeAndGo(first, first+waiters)
	// The waits that Redis had not answered are cleaned up after a while. What waiters leave stays.
	var after runtime.MemStats
	growth := func() float64 {
		after = locktest.Heap()
		return (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(waiters)
	}
	locktest.Eventually(t, "what the waiters needed is gone", func() bool { return growth() < 100 })
	t.Logf("the heap went from %d to %d kB", before.HeapAlloc>>10, after.HeapAlloc>>10)
	locktest.MustClose(t, holder, c)
	locktest.WantKeys(t, rdb)
	locktest.WantClients(t, rdb)
}

func TestNoGoroutineOrTimerForEachHold(t *testing.T) {
	if !locktest.Alone(t) {
		return
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		warm := locktest.MustLock(t, c.NewLock("warm-up"))
		defer locktest.MustUnlock(t, warm)
		before := runtime.NumGoroutine()
		leases := make([]*rlock.Lease, 500)
		for i := range leases {
			leases[i] = locktest.MustLock(t, c.NewLock(fmt.Sprint("l", i)))
			leases[i].Done()
			leases[i].Context(bg)
		}
		if now := runtime.NumGoroutine(); now > before+10 {
			t.Errorf("%d goroutines for 500 holds", now-before)
		}
		for _, lease := range leases {
			locktest.MustUnlock(t, lease)
		}
	})
}

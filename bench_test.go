package rlock_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// floor does by hand what a lock does at the least: SET NX PX, and a script
// that compares and deletes.
type floor struct {
	rdb redis.UniversalClient
	del *redis.Script
}

func newFloor(t testing.TB, b *locktest.Backend) *floor {
	f := &floor{b.Client(t), redis.NewScript(`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`)}
	if err := f.del.Load(context.Background(), f.rdb).Err(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *floor) pair(t testing.TB, name string) {
	ctx := context.Background()
	if ok, err := f.rdb.SetNX(ctx, name, "me", 30*time.Second).Result(); !ok || err != nil {
		t.Error(ok, err)
	}
	if err := f.del.EvalSha(ctx, f.rdb, []string{name}, "me").Err(); err != nil {
		t.Error(err)
	}
}

// evalPair is two runs of a script that does nothing: what go-redis itself
// costs.
func (f *floor) evalPair(t testing.TB, name string) {
	for range 2 {
		if err := f.del.EvalSha(context.Background(), f.rdb, []string{name}, "nobody").Err(); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	server := locktest.OnServer(b)
	c := server.NewClient(b)
	parallel(b, func(worker int) func() {
		l := c.NewLock("bench:" + strconv.Itoa(worker))
		return func() { locktest.Pair(b, l) }
	})
}

// BenchmarkFloor is what BenchmarkLockUnlock is to be compared with: the
// least that a lock without re-entry, tokens and renewal does.
func BenchmarkFloor(b *testing.B) {
	f := newFloor(b, locktest.OnServer(b))
	parallel(b, func(worker int) func() {
		name := "bench:" + strconv.Itoa(worker)
		return func() { f.pair(b, name) }
	})
}

// BenchmarkFloorScripts is go-redis alone: two scripts that do nothing.
func BenchmarkFloorScripts(b *testing.B) {
	f := newFloor(b, locktest.OnServer(b))
	parallel(b, func(worker int) func() {
		name := "bench:" + strconv.Itoa(worker)
		return func() { f.evalPair(b, name) }
	})
}

// parallel runs an operation from 1 and from 64 goroutines.
func parallel(b *testing.B, make func(worker int) func()) {
	for _, n := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			shared(b, n, make)
		})
	}
}

// shared divides b.N operations among n goroutines.
func shared(b *testing.B, n int, make func(worker int) func()) {
	ops := []func(){}
	for w := range n {
		ops = append(ops, make(w))
		ops[w]() // opens connections, loads scripts
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for _, op := range ops {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				op()
			}
		})
	}
	wg.Wait()
}

// BenchmarkContended is one section when 8 goroutines of one client want the
// same lock.
func BenchmarkContended(b *testing.B) {
	server := locktest.OnServer(b)
	c := server.NewClient(b)
	evals := locktest.EvalCounter(b, server)
	b.ReportAllocs()
	shared(b, 8, func(int) func() {
		l := c.NewLock("bench")
		return func() { locktest.Pair(b, l) }
	})
	b.ReportMetric(float64(evals())/float64(b.N+8), "scripts/op")
}

// BenchmarkHandOver is the time from the call of Unlock until the Lock of a
// waiter returns: in one client, and between two that share nothing but the
// server. BenchmarkHandOverBetweenProcesses has another process wait.
func BenchmarkHandOver(b *testing.B) {
	for _, test := range []struct {
		name    string
		clients int
	}{{"InProcess", 1}, {"BetweenClients", 2}} {
		b.Run(test.name, func(b *testing.B) {
			server := locktest.OnServer(b)
			c := server.NewClient(b)
			mine, others := c.NewLock("bench"), c.NewLock("bench")
			if test.clients == 2 {
				others = server.NewClient(b).NewLock("bench")
			}
			evals := locktest.EvalCounter(b, server)
			got := make(chan time.Time)
			free := make(chan struct{})
			var times locktest.Latencies
			looks := locktest.LooksBeforeSleep
			for b.Loop() {
				lease := locktest.MustLock(b, mine)
				before := evals()
				go func() {
					lease, err := others.Lock(context.Background())
					got <- time.Now()
					if err == nil {
						err = lease.Unlock(context.Background())
					}
					if err != nil {
						b.Error(err)
					}
					free <- struct{}{}
				}()
				locktest.Eventually(b, "the other waits", func() bool { return evals() >= before+looks })
				looks = 1 // the other's line is kept
				called := time.Now()
				locktest.MustUnlock(b, lease)
				times = append(times, (<-got).Sub(called))
				<-free
			}
			times.Report(b)
		})
	}
}

// BenchmarkHeld is the memory of a held lock, and the time to take one of many.
func BenchmarkHeld(b *testing.B) {
	server := locktest.OnServer(b)
	var bytes, objects float64
	for b.Loop() {
		const holds = 10_000
		c := server.NewClient(b)
		locktest.Pair(b, c.NewLock("held")) // opens a connection, starts the watchdog
		leases := make([]*rlock.Lease, 0, holds)
		before := locktest.Heap()
		for i := range holds {
			leases = append(leases, locktest.MustLock(b, c.NewLock("held:"+strconv.Itoa(i))))
		}
		after := locktest.Heap()
		bytes += float64(after.HeapAlloc-before.HeapAlloc) / holds
		objects += float64(after.HeapObjects-before.HeapObjects) / holds
		for _, lease := range leases {
			locktest.MustUnlock(b, lease)
		}
		locktest.Stop(c)
	}
	b.ReportMetric(bytes/float64(b.N), "B/hold")
	b.ReportMetric(objects/float64(b.N), "objects/hold")
}

// BenchmarkPairOfEachType is an uncontended Lock and Unlock of each type, beside
// the floor in the same run.
func BenchmarkPairOfEachType(b *testing.B) {
	server := locktest.OnServer(b)
	f := newFloor(b, server)
	for _, k := range locktest.Types {
		b.Run(strings.ReplaceAll(k.Name, " ", "-"), func(b *testing.B) {
			l := k.Open(server.NewClient(b), "bench:"+k.Name)
			locktest.Pair(b, l)
			f.pair(b, "floor")
			var ours, least time.Duration
			for b.Loop() {
				start := time.Now()
				locktest.Pair(b, l)
				middle := time.Now()
				f.pair(b, "floor")
				ours, least = ours+middle.Sub(start), least+time.Since(middle)
			}
			b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/pair")
			b.ReportMetric(float64(ours)/float64(least), "x-floor")
		})
	}
}

package rlock_test

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// looksBeforeSleep is how often a waiter runs a script before it sleeps: it
// finds the lock held, and looks again when its subscription is confirmed.
const looksBeforeSleep = 2

// evalCounter returns a function that counts the scripts that a server has run
// since.
func evalCounter(t testing.TB, b *backend) func() int {
	rdb := b.client(t)
	count := func() int { return commandCount(t, rdb, "evalsha", "eval") }
	start := count()
	return func() int { return count() - start }
}

// commandCount is how often a server has executed some commands.
func commandCount(t testing.TB, rdb redis.UniversalClient, names ...string) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if slices.Contains(names, name) {
			calls, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(calls)
			if err != nil {
				t.Fatalf("commandstats: %q", line)
			}
			total += n
		}
	}
	return total
}

// sentCommands is a go-redis hook that counts what a client sends, but for the
// handshakes of its connections.
type sentCommands struct{ n atomic.Int64 }

func (s *sentCommands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "hello" && name != "client" {
			s.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (s *sentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "hello" && name != "client" {
			s.n.Add(int64(len(cmds)))
		}
		return next(ctx, cmds)
	}
}

// floor does by hand what a lock does at the least: SET NX PX, and a script
// that compares and deletes.
type floor struct {
	rdb redis.UniversalClient
	del *redis.Script
}

func newFloor(t testing.TB, b *backend) *floor {
	f := &floor{b.client(t), redis.NewScript(`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`)}
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

func pair(t testing.TB, l rlock.Locker) {
	ctx := context.Background()
	lease, err := l.Lock(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Error(err)
	}
}

// An uncontended Lock and Unlock are one command each.
func TestCostOfPair(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	sent := &sentCommands{}
	rdb.AddHook(sent)
	l := newClientOn(t, rdb).NewLock("cost")
	pair(t, l) // loads the scripts
	const pairs = 500
	stats := b.client(t)
	scripts, all := commandCount(t, stats, "evalsha"), sent.n.Load()
	for range pairs {
		pair(t, l)
	}
	scripts, all = commandCount(t, stats, "evalsha")-scripts, sent.n.Load()-all
	// A reply that is a second late is asked for again: rare, but possible.
	if scripts < 2*pairs || scripts > 2*pairs+2 || all != int64(scripts) {
		t.Errorf("%d pairs sent %d commands and ran %d scripts", pairs, all, scripts)
	}
}

// When a lock is contended, the commands for each section stay few: within one
// client, and between two.
func TestCostOfContention(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name               string
		clients, goroutine int
		most               float64 // scripts for each section
	}{
		// 2 would be perfect. Each release also wakes the head of every other
		// client, which may look in vain.
		{"one client", 1, 8, 4},
		{"two clients", 2, 4, 6},
		{"two clients, one goroutine each", 2, 1, 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := onServer(t)
			rdb := b.client(t)
			clients := make([]*rlock.Client, test.clients)
			for i := range clients {
				clients[i] = b.newClient(t)
				pair(t, clients[i].NewLock("cost"))
			}
			scripts, subs := commandCount(t, rdb, "evalsha"), commandCount(t, rdb, "subscribe", "unsubscribe")
			const sections = 1000 // of each client
			start := time.Now()
			var wg sync.WaitGroup
			for _, c := range clients {
				l := c.NewLock("cost")
				for range test.goroutine {
					wg.Go(func() {
						for range sections / test.goroutine {
							pair(t, l)
						}
					})
				}
			}
			wg.Wait()
			total := float64(sections * test.clients)
			took := time.Since(start)
			perSection := float64(commandCount(t, rdb, "evalsha")-scripts) / total
			subs = commandCount(t, rdb, "subscribe", "unsubscribe") - subs
			t.Logf("a section: %.2f scripts, %.2f (un)subscribes, %v", perSection, float64(subs)/total, (took / time.Duration(total)).Round(time.Microsecond))
			if perSection > test.most {
				t.Errorf("a section took %.2f scripts, more than %v", perSection, test.most)
			}
		})
	}
}

// The allocations of a pair, beside what go-redis needs for two scripts.
func TestCostInAllocations(t *testing.T) {
	if testing.Short() {
		t.Skip("counts allocations")
	}
	b := onServer(t)
	f := newFloor(t, b)
	l := b.newClient(t).NewLock("cost")
	pair(t, l)
	lock := testing.AllocsPerRun(500, func() { pair(t, l) })
	raw := testing.AllocsPerRun(500, func() { f.evalPair(t, "floor") })
	t.Logf("allocations of a pair: %.0f; of two scripts by go-redis alone: %.0f", lock, raw)
	// Far above what is measured, far below what one copy of a script's text,
	// or of a table, for each call would cost.
	if lock > raw+100 {
		t.Errorf("a pair allocates %.0f times, go-redis %.0f", lock, raw)
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	server := onServer(b)
	c := server.newClient(b)
	parallel(b, func(worker int) func() {
		l := c.NewLock("bench:" + strconv.Itoa(worker))
		return func() { pair(b, l) }
	})
}

// BenchmarkFloor is what BenchmarkLockUnlock is to be compared with: the
// least that a lock without re-entry, tokens and renewal does.
func BenchmarkFloor(b *testing.B) {
	f := newFloor(b, onServer(b))
	parallel(b, func(worker int) func() {
		name := "bench:" + strconv.Itoa(worker)
		return func() { f.pair(b, name) }
	})
}

// BenchmarkFloorScripts is go-redis alone: two scripts that do nothing.
func BenchmarkFloorScripts(b *testing.B) {
	f := newFloor(b, onServer(b))
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
	server := onServer(b)
	c := server.newClient(b)
	evals := evalCounter(b, server)
	b.ReportAllocs()
	shared(b, 8, func(int) func() {
		l := c.NewLock("bench")
		return func() { pair(b, l) }
	})
	b.ReportMetric(float64(evals())/float64(b.N+8), "scripts/op")
}

// latencies are measured times.
type latencies []time.Duration

func (l latencies) report(b *testing.B) {
	slices.Sort(l)
	var sum time.Duration
	for _, d := range l {
		sum += d
	}
	n := len(l)
	// What the loop does between the measured times is not of interest.
	b.ReportMetric(float64(sum.Nanoseconds())/float64(n), "ns/op")
	b.ReportMetric(float64(l[n/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(l[n*99/100].Nanoseconds()), "p99-ns")
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
			server := onServer(b)
			c := server.newClient(b)
			mine, others := c.NewLock("bench"), c.NewLock("bench")
			if test.clients == 2 {
				others = server.newClient(b).NewLock("bench")
			}
			evals := evalCounter(b, server)
			got := make(chan time.Time)
			free := make(chan struct{})
			var times latencies
			for b.Loop() {
				lease := mustLock(b, mine)
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
				eventually(b, "the other waits", func() bool { return evals() >= before+looksBeforeSleep })
				called := time.Now()
				mustUnlock(b, lease)
				times = append(times, (<-got).Sub(called))
				<-free
			}
			times.report(b)
		})
	}
}

// BenchmarkHeld is the memory of a held lock, and the time to take one of many.
func BenchmarkHeld(b *testing.B) {
	server := onServer(b)
	var bytes, objects float64
	for b.Loop() {
		const holds = 10_000
		c := server.newClient(b)
		pair(b, c.NewLock("held")) // opens a connection, starts the watchdog
		leases := make([]*rlock.Lease, 0, holds)
		before := heap()
		for i := range holds {
			leases = append(leases, mustLock(b, c.NewLock("held:"+strconv.Itoa(i))))
		}
		after := heap()
		bytes += float64(after.HeapAlloc-before.HeapAlloc) / holds
		objects += float64(after.HeapObjects-before.HeapObjects) / holds
		for _, lease := range leases {
			mustUnlock(b, lease)
		}
		stop(c)
	}
	b.ReportMetric(bytes/float64(b.N), "B/hold")
	b.ReportMetric(objects/float64(b.N), "objects/hold")
}

// heap is the state of the heap without garbage.
func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // the first may only empty pools into their second stage
	runtime.ReadMemStats(&m)
	return m
}

// BenchmarkPairOfEachType is an uncontended Lock and Unlock of each type, beside
// the floor in the same run.
func BenchmarkPairOfEachType(b *testing.B) {
	server := onServer(b)
	f := newFloor(b, server)
	for _, k := range typesOfLocks {
		b.Run(strings.ReplaceAll(k.name, " ", "-"), func(b *testing.B) {
			l := k.open(server.newClient(b), "bench:"+k.name)
			pair(b, l)
			f.pair(b, "floor")
			var ours, least time.Duration
			for b.Loop() {
				start := time.Now()
				pair(b, l)
				middle := time.Now()
				f.pair(b, "floor")
				ours, least = ours+middle.Sub(start), least+time.Since(middle)
			}
			b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/pair")
			b.ReportMetric(float64(ours)/float64(least), "x-floor")
		})
	}
}

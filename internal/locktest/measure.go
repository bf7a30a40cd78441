package locktest

import (
	"context"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// CommandCount is how often a server has executed some commands.
func CommandCount(t testing.TB, rdb redis.UniversalClient, names ...string) int {
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

// EvalCounter returns a function that counts the scripts that a server has run
// since.
func EvalCounter(t testing.TB, b *Backend) func() int {
	rdb := b.Client(t)
	count := func() int { return CommandCount(t, rdb, "evalsha", "eval") }
	start := count()
	return func() int { return count() - start }
}

// LooksBeforeSleep is how often a waiter runs a script before it sleeps: it finds the lock
// held, and looks again when its subscription is confirmed. A waiter that comes soon after
// another of its client has got the lock looks once: the subscription was kept.
const LooksBeforeSleep = 2

// Latencies are measured times.
type Latencies []time.Duration

// Report gives a benchmark their mean, median and 99th percentile.
func (l Latencies) Report(b *testing.B) {
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

// Heap is the state of the heap without garbage.
func Heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // the first may only empty pools into their second stage
	runtime.ReadMemStats(&m)
	return m
}

// Pair is a Lock and an Unlock.
func Pair(t testing.TB, l rlock.Locker) {
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

// SentCommands is a go-redis hook that counts what a client sends for its locks: no
// handshakes of its connections, and no introduction.
type SentCommands struct{ N atomic.Int64 }

func (s *SentCommands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *SentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "hello" && name != "client" {
			s.N.Add(ofLocks(cmd))
		}
		return next(ctx, cmd)
	}
}

func (s *SentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "hello" && name != "client" {
			s.N.Add(ofLocks(cmds...))
		}
		return next(ctx, cmds)
	}
}

// ScriptCommands is how often each command was called that tests do not send
// themselves.
func ScriptCommands(t testing.TB, rdb redis.UniversalClient) map[string]int {
	t.Helper()
	calls := map[string]int{}
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(rdb.Info(bg, "commandstats").Val(), -1) {
		calls[m[1]], _ = strconv.Atoi(m[2])
	}
	for _, own := range []string{"info", "eval", "evalsha", "hello", "client|setinfo", "client|maint_notifications", "subscribe", "unsubscribe", "ping", "slowlog|get", "slowlog|reset", "config|set", "pubsub|numsub"} {
		delete(calls, own)
	}
	return calls
}

// Package bench measures the library beside others on the same servers, in the
// same run. It is a module of its own, so that nobody who uses the library has
// them in his module graph.
package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

var table = flag.Duration("table", 0, "how long to measure each line of the table of TestQuorumLocks; 0: only see that all works")

const nodes, quorum = 5, 5/2 + 1

// quiet drops what go-redis logs of the servers that are dead on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// contender makes, for each goroutine, a function that acquires and releases a
// lock of its own.
type contender struct {
	name string
	pair func(lock string) func(ctx context.Context) error
}

// contenders are what is compared, each with connections of its own.
func contenders(t testing.TB, servers []*redistest.Server) []contender {
	connect := func(edit ...func(*redis.Options)) (all []redis.UniversalClient) {
		for _, s := range servers {
			all = append(all, s.Client(edit...))
		}
		return all
	}
	// What is dead is dead. By default go-redis dials a dead server five times
	// within half a second, and does that four times for most commands.
	impatient := func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }
	return []contender{
		{"floor", floor(connect(impatient))},
		{"rlock", redLock(t, connect())},
		{"redsync", mutexes(connect())},
		{"redsync, fail fast", mutexes(connect(), redsync.WithFailFast(true))},
		{"redsync, fail fast, no retries", mutexes(connect(impatient), redsync.WithFailFast(true))},
	}
}

func redLock(t testing.TB, rdbs []redis.UniversalClient) func(string) func(context.Context) error {
	var clients []*rlock.Client
	for _, rdb := range rdbs {
		c, err := rlock.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// The servers are dead, or about to be: nothing is worth waiting for.
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_ = c.Shutdown(ctx)
		})
		clients = append(clients, c)
	}
	return func(lock string) func(context.Context) error {
		l, err := rlock.NewRedLock(lock, clients)
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) error {
			lease, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			return lease.Unlock(ctx)
		}
	}
}

func mutexes(rdbs []redis.UniversalClient, opts ...redsync.Option) func(string) func(context.Context) error {
	var pools []syncredis.Pool
	for _, rdb := range rdbs {
		pools = append(pools, goredis.NewPool(rdb))
	}
	all := redsync.New(pools...)
	var pairs atomic.Int64
	return func(lock string) func(context.Context) error {
		return func(ctx context.Context) error {
			// A name for each pair: when it fails fast, a SET that is slow may come
			// after the release, and keep a name taken for eight seconds.
			m := all.NewMutex(fmt.Sprint(lock, ":", pairs.Add(1)), opts...)
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			// With true, the error is that of a minority.
			if ok, err := m.UnlockContext(ctx); !ok {
				return errors.Join(errors.New("not released"), err)
			}
			return nil
		}
	}
}

// floor is the least that a lock of a quorum takes: SET NX PX on all nodes at
// once, until a quorum has answered, and a script that compares and deletes, the
// same way. It has no tokens, no renewal, and does not take back what it gives up.
func floor(rdbs []redis.UniversalClient) func(string) func(context.Context) error {
	del := redis.NewScript(`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`)
	onAll := func(do func(redis.UniversalClient) error) error {
		errs := make(chan error, len(rdbs))
		for _, rdb := range rdbs {
			go func() { errs <- do(rdb) }()
		}
		for yes, no := 0, 0; yes < quorum; {
			if err := <-errs; err == nil {
				yes++
			} else if no++; no > len(rdbs)-quorum {
				return err
			}
		}
		return nil
	}
	var pairs atomic.Int64
	return func(lock string) func(context.Context) error {
		return func(ctx context.Context) error {
			// A key of its own for each pair: on the slower nodes the last one may
			// be there yet, or again.
			key := fmt.Sprint(lock, ":", pairs.Add(1))
			err := onAll(func(rdb redis.UniversalClient) error {
				return rdb.SetArgs(ctx, key, "me", redis.SetArgs{Mode: "NX", TTL: 30 * time.Second}).Err()
			})
			if err != nil {
				return err
			}
			return onAll(func(rdb redis.UniversalClient) error { return del.Run(ctx, rdb, []string{key}, "me").Err() })
		}
	}
}

// result is what one contender did in one case.
type result struct {
	took  time.Duration
	pairs []time.Duration // sorted
}

func (r result) rate() float64 { return float64(len(r.pairs)) / r.took.Seconds() }

func (r result) percentile(p int) time.Duration {
	if len(r.pairs) == 0 {
		return 0
	}
	return r.pairs[len(r.pairs)*p/100]
}

// measure lets goroutines acquire and release, each its own lock, for as long as
// more says so.
func measure(t testing.TB, c contender, goroutines int, more func() bool) result {
	t.Helper()
	all := make([][]time.Duration, goroutines)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range all {
		pair := c.pair(fmt.Sprintf("bench:%s:%d", c.name, i))
		wg.Go(func() {
			for more() {
				begin := time.Now()
				// Far above what any takes: what does not end by then is broken.
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				err := pair(ctx)
				cancel()
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					return
				}
				all[i] = append(all[i], time.Since(begin))
			}
		})
	}
	wg.Wait()
	r := result{took: time.Since(start), pairs: slices.Concat(all...)}
	slices.Sort(r.pairs)
	return r
}

// during says more until the time is over, and at least so many times.
func during(d time.Duration, least int) func() bool {
	end := time.Now().Add(d)
	some := times(least)
	return func() bool { return some() || time.Now().Before(end) }
}

// times says more so many times.
func times(n int) func() bool {
	var left atomic.Int64
	left.Store(int64(n))
	return func() bool { return left.Add(-1) >= 0 }
}

// Every contender works with none, one and two of five servers dead. To measure
// them, and have a table of it: go test -v -run TestQuorumLocks . -args -table=2s
func TestQuorumLocks(t *testing.T) {
	servers := redistest.StartMasters(t, nodes)
	all := contenders(t, servers)
	var text strings.Builder
	crowds := []int{1, 64}
	if *table == 0 {
		crowds = []int{4}
	}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "dead\tgoroutines\tlock\tpairs/s\tof the floor\tp50\tp99")
	for dead := range nodes - quorum + 1 {
		if dead > 0 {
			servers[nodes-dead].Kill()
		}
		for _, goroutines := range crowds {
			base := 0.0
			for _, c := range all {
				if *table > 0 {
					measure(t, c, goroutines, times(goroutines)) // connects, and finds out who is dead
				} else if dead > 0 && c.name == "redsync" {
					continue // it waits for the dead, for seconds
				}
				r := measure(t, c, goroutines, during(*table, goroutines))
				if t.Failed() {
					t.Fatalf("with %d dead, %d goroutines", dead, goroutines)
				}
				if base == 0 {
					base = r.rate()
				}
				fmt.Fprintf(w, "%d\t%d\t%s\t%.0f\t%.0f %%\t%v\t%v\n", dead, goroutines, c.name, r.rate(), 100*r.rate()/base,
					r.percentile(50).Round(10*time.Microsecond), r.percentile(99).Round(10*time.Microsecond))
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if *table > 0 {
		fmt.Print(text.String())
	}
}

func BenchmarkQuorumLocks(b *testing.B) {
	servers := redistest.StartMasters(b, nodes)
	all := contenders(b, servers)
	for dead := range nodes - quorum + 1 {
		if dead > 0 {
			servers[nodes-dead].Kill()
		}
		for _, goroutines := range []int{1, 64} {
			for _, c := range all {
				name := strings.NewReplacer(", ", "-", " ", "-").Replace(c.name)
				b.Run(fmt.Sprintf("dead=%d/goroutines=%d/%s", dead, goroutines, name), func(b *testing.B) {
					measure(b, c, goroutines, times(goroutines)) // connects, and finds out who is dead
					b.ResetTimer()
					r := measure(b, c, goroutines, times(b.N))
					b.ReportMetric(r.rate(), "pairs/s")
					b.ReportMetric(float64(r.percentile(99).Nanoseconds()), "p99-ns")
				})
			}
		}
	}
}

package rlock_test

import (
	"context"
	"flag"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

// sideBySide is how many tests run at once. They wait most of the time, for
// leases, renewals and time-outs, so it does not follow from the number of CPUs.
func sideBySide() int {
	if underRace() {
		return 8 // these compute most of the time
	}
	return 20
}

// ample is a time-out or a lease that is not the subject of its test: long enough
// for what has to happen within it, and longer where everything takes longer.
func ample(d time.Duration) time.Duration {
	if underRace() {
		return 2 * d
	}
	return d
}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	flag.Parse()
	if !given("test.parallel") {
		_ = flag.Set("test.parallel", strconv.Itoa(sideBySide()))
	}
	if os.Getenv(childEnv) != "" {
		os.Exit(m.Run()) // a child process of a test; see processes_test.go
	}
	// After some failed dials go-redis probes the server once a second, and
	// looks whether its pool was closed only in between.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// given reports whether a flag is on the command line.
func given(name string) (is bool) {
	flag.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

// quiet drops what go-redis logs of broken connections, which tests cause on
// purpose all the time.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// backend is a Redis that a scenario runs on.
type backend struct {
	name string
	addr string               // of the server, or of one node
	mini *miniredis.Miniredis // nil if it is a real server
	real *redistest.Server    // nil if it is not one standalone server
	dial func(t testing.TB, edit func(*redis.Options)) redis.UniversalClient
}

// client is a go-redis client that is closed at the end of the test.
func (b *backend) client(t testing.TB) redis.UniversalClient { return b.dial(t, nil) }

// eachRedis runs a scenario on miniredis and on a real server.
func eachRedis(t *testing.T, scenario func(t *testing.T, b *backend)) {
	t.Helper()
	beside(t, "miniredis", func(t *testing.T) { scenario(t, onMiniredis(t)) })
	beside(t, "standalone", func(t *testing.T) { scenario(t, onServer(t)) })
}

// everyRedis runs a scenario on a cluster as well.
func everyRedis(t *testing.T, scenario func(t *testing.T, b *backend)) {
	t.Helper()
	eachRedis(t, scenario)
	beside(t, "cluster", func(t *testing.T) { scenario(t, onCluster(t)) })
}

// beside is t.Run of a subtest that runs beside the others. It begins only when
// the function that called it has returned.
func beside(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		test(t)
	})
}

func onMiniredis(t testing.TB) *backend {
	t.Helper()
	m := miniredis.RunT(t)
	m.ClockTTL(true) // leases run out by themselves
	return &backend{name: "miniredis", addr: m.Addr(), mini: m, dial: dialer(m.Addr())}
}

func onServer(t testing.TB, args ...string) *backend {
	t.Helper()
	s := redistest.Start(t, args...)
	return &backend{name: "standalone", addr: s.Addr(), real: s, dial: dialer(s.Addr())}
}

func onCluster(t testing.TB) *backend {
	t.Helper()
	c := redistest.StartCluster(t, 3, 0)
	return &backend{
		name: "cluster", addr: c.Nodes[0].Addr(),
		dial: func(testing.TB, func(*redis.Options)) redis.UniversalClient { return c.Client() },
	}
}

// dialer makes clients of one server. The time-outs of go-redis are short so
// that goroutines that a test leaves in a hung call end with the test.
func dialer(addr string) func(testing.TB, func(*redis.Options)) redis.UniversalClient {
	return func(t testing.TB, edit func(*redis.Options)) redis.UniversalClient {
		o := &redis.Options{Addr: addr, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second}
		if edit != nil {
			edit(o)
		}
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
}

// newClient is a Client on the backend that is stopped at the end of the test,
// before its Redis client and its server.
func (b *backend) newClient(t testing.TB, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	return newClientOn(t, b.client(t), opts...)
}

func newClientOn(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	c, err := rlock.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(c) })
	return c
}

// stop ends a client at once, whatever is held by it.
func stop(c *rlock.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Shutdown(ctx)
}

// eventually waits for a condition that must come true soon. The bound is far
// above what a busy machine needs.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited too long until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func mustLock(t testing.TB, l rlock.Locker, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	return mustLockCtx(t, context.Background(), l, opts...)
}

func mustLockCtx(t testing.TB, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	lease, err := l.Lock(ctx, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t testing.TB, l *rlock.Lease) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// subscribers is how many connections listen to a lock's releases.
func subscribers(t testing.TB, rdb redis.UniversalClient, lock string) int64 {
	t.Helper()
	channel := "redisson_lock__channel:{" + lock + "}"
	n, err := rdb.PubSubNumSub(context.Background(), channel).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n[channel]
}

// underRace reports whether the race detector is on, which makes everything
// several times slower.
var underRace = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

const childEnv = "RLOCK_TEST_CHILD"

// countHook counts commands, those in pipelines too.
type countHook struct{ n atomic.Int64 }

func (h *countHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *countHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.n.Add(1)
		return next(ctx, cmd)
	}
}

func (h *countHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

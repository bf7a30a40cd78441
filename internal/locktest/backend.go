package locktest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/loopback"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Backend is a Redis that a scenario runs on.
type Backend struct {
	Addr string               // of the server, or of one node
	Mini *miniredis.Miniredis // nil if it is a real server
	Real *redistest.Server    // nil if it is not one standalone server
	dial func(t testing.TB, edit func(*redis.Options)) redis.UniversalClient
}

// Client is a go-redis client that is closed at the end of the test.
func (b *Backend) Client(t testing.TB) redis.UniversalClient { return b.dial(t, nil) }

// NewClient is a Client on the backend that is stopped at the end of the test,
// before its Redis client and its server.
func (b *Backend) NewClient(t testing.TB, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	return NewClient(t, b.Client(t), opts...)
}

// faultyTimeout is for the commands of Faulty: a lost reply costs half of it, and the other half is
// for the answer to the copy.
var faultyTimeout = Ample(4 * time.Second)

// Behind is the backend as it is seen through a proxy to it.
func (b *Backend) Behind(proxy *faultproxy.Proxy) *Backend {
	seen := *b
	seen.Addr, seen.dial = proxy.Addr(), Dialer(proxy.Addr())
	return &seen
}

// Faulty is a client behind a proxy, and another client around it.
func (b *Backend) Faulty(t testing.TB, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	proxy := faultproxy.New(t, b.Addr)
	// go-redis with its defaults where they could hurt: it would retry by
	// itself, and does not look at contexts.
	rdb := Dialer(proxy.Addr())(t, nil)
	opts = append([]rlock.Option{rlock.WithCommandTimeout(faultyTimeout), rlock.WithUnlockTimeout(faultyTimeout)}, opts...)
	c := NewClient(t, rdb, opts...)
	plain := b.Client(t)
	// Load the scripts, so that the first EVALSHA is the one that counts.
	l := NewClient(t, plain).NewLock("warm-up:" + t.Name()) // tests run in parallel
	MustUnlock(t, MustLock(t, l))
	if _, err := l.ForceUnlock(bg); err != nil {
		t.Fatal(err)
	}
	return c, proxy, plain
}

// EachRedis runs a scenario on miniredis and on a real server; where there is one, and not in CI, on that alone.
func EachRedis(t *testing.T, scenario func(t *testing.T, b *Backend)) {
	t.Helper()
	Beside(t, "miniredis", func(t *testing.T) {
		Repeated(t)
		scenario(t, OnMiniredis(t))
	})
	Beside(t, "standalone", func(t *testing.T) { scenario(t, OnServer(t)) })
}

// EveryRedis runs a scenario on a cluster as well.
func EveryRedis(t *testing.T, scenario func(t *testing.T, b *Backend)) {
	t.Helper()
	EachRedis(t, scenario)
	Beside(t, "cluster", func(t *testing.T) { scenario(t, OnCluster(t)) })
}

// Beside runs a subtest in parallel with the others. It begins only when the function that
// called Beside has returned.
func Beside(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		test(t)
	})
}

// OnMiniredis is an in-memory Redis in which leases expire in real time.
func OnMiniredis(t testing.TB) *Backend {
	t.Helper()
	m := miniredis.NewMiniRedis()
	err := errors.New("never started")
	for range 3 { // a port that was free a moment ago may not be now
		var port int
		if port, err = loopback.Port(); err == nil {
			err = m.StartAddr(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		}
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	m.ClockTTL(true) // leases expire in real time
	return &Backend{Addr: m.Addr(), Mini: m, dial: Dialer(m.Addr())}
}

// OnServer is a Redis server of its own, started with args. The test is skipped if there
// is no redis-server.
func OnServer(t testing.TB, args ...string) *Backend {
	t.Helper()
	return At(redistest.Start(t, args...))
}

// At is a server that is there.
func At(s *redistest.Server) *Backend {
	return &Backend{Addr: s.Addr(), Real: s, dial: Dialer(s.Addr())}
}

// OnCluster is a cluster of three masters.
func OnCluster(t testing.TB) *Backend {
	t.Helper()
	c := redistest.StartCluster(t, 3, 0)
	return &Backend{
		Addr: c.Nodes[0].Addr(),
		dial: func(testing.TB, func(*redis.Options)) redis.UniversalClient { return c.Client() },
	}
}

// Dialer makes clients of one server. The timeouts of go-redis are as long as the timeouts of
// our clients: a reply that is late on a busy machine does not count as lost.
func Dialer(addr string) func(testing.TB, func(*redis.Options)) redis.UniversalClient {
	return func(t testing.TB, edit func(*redis.Options)) redis.UniversalClient {
		o := &redis.Options{Addr: addr, ReadTimeout: timeout, WriteTimeout: timeout}
		if edit != nil {
			edit(o)
		}
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
}

// Lease is the watchdog lease of clients whose test sets none. It is longer than Patience: who
// waits for a lock until a hold that leaked has run out does not get it.
const Lease = 5 * time.Minute

// timeout is for the commands of clients whose test sets none: a busy machine answers within half
// of it.
const timeout = 10 * time.Second

// NewClient is a Client that is stopped at the end of the test, before rdb is closed. A copy of a request that is lost in
// a proxy is repeated after the command timeout, however near the server is: the Client sends by its workers then, which a
// hook makes it do.
func NewClient(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	c, err := rlock.New(rdb, append([]rlock.Option{rlock.WithWatchdogLease(Lease), rlock.WithCommandTimeout(timeout), rlock.WithUnlockTimeout(timeout)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Stop(c) })
	if one, ok := rdb.(*redis.Client); ok && faultproxy.Is(one.Options().Addr) {
		one.AddHook(passing{})
	}
	return c
}

// passing is a hook that does nothing.
type passing struct{}

func (passing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (passing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, cmd) }
}
func (passing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Stop ends a client immediately, even if it holds locks.
func Stop(c *rlock.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Shutdown(ctx)
}

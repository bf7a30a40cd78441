package processes

import (
	"context"
	"flag"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

// The run for a machine of one's own: 10,000 holds, 30 s, 12 s, beside busy loops.
var (
	redHolds  = flag.Int("redlock.holds", 500, "number of RedLocks held through an outage of nodes")
	redLease  = flag.Duration("redlock.lease", locktest.RedLockLease, "their watchdog lease")
	redOutage = flag.Duration("redlock.outage", locktest.RedLockLease*3/2, "length of the outage of two nodes; of all, a quarter of the lease")
)

// wayHook counts the commands that were sent alone, and the pipelines.
type wayHook struct{ alone, pipelines atomic.Int64 }

func (h *wayHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *wayHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.alone.Add(1)
		return next(ctx, cmd)
	}
}

func (h *wayHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.pipelines.Add(1)
		return next(ctx, cmds)
	}
}

// renewalCount counts renewals and what failed.
type renewalCount struct {
	locktest.Ignoring
	renewed, failed atomic.Int64
}

func (o *renewalCount) Renewed(context.Context, rlock.RenewalEvent) { o.renewed.Add(1) }

func (o *renewalCount) Retry(context.Context, rlock.RetryEvent) { o.failed.Add(1) }

// redHold takes many locks at once.
func redHold(t testing.TB, cs []*rlock.Client, n int, opts ...rlock.RedLockOption) []*rlock.Lease {
	t.Helper()
	held := make([]*rlock.Lease, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				l, err := rlock.NewRedLock("held:"+strconv.FormatInt(i, 10), cs, opts...)
				if err == nil {
					held[i], err = l.Lock(bg)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return held
}

// redRelease unlocks them, and tells how many had been lost.
func redRelease(t testing.TB, held []*rlock.Lease) (lost int) {
	t.Helper()
	var first error
	var wg sync.WaitGroup
	for _, l := range held {
		if err := l.Err(); err != nil {
			lost++
			first = err
		}
	}
	for i, l := range held {
		if i%8 == 0 {
			wg.Wait()
		}
		wg.Go(func() { _ = l.Unlock(bg) })
	}
	wg.Wait()
	if first != nil {
		t.Log(first)
	}
	return lost
}

// Two of five nodes stop for longer than a lease, and then all for a quarter of
// one. No hold is lost. All are renewed in pipelines, and there are no more
// goroutines for many of them than for few.
func TestRedLocksAreRenewedThroughOutages(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) {
		return
	}
	servers := redistest.StartMasters(t, 5)
	count := &renewalCount{}
	ways := &wayHook{}
	var cs []*rlock.Client
	for _, s := range servers {
		rdb := locktest.Dialer(s.Addr())(t, nil)
		rdb.AddHook(ways)
		cs = append(cs, locktest.NewClient(t, rdb, rlock.WithWatchdogLease(*redLease), rlock.WithObserver(count)))
	}
	began := time.Now()
	held := redHold(t, cs, *redHolds, rlock.WithNodeTimeout(min(*redLease/6, rlock.DefaultNodeTimeout)))
	t.Logf("%d locks taken in %v", len(held), time.Since(began))

	goroutines, most := runtime.NumGoroutine(), 0
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); {
			most = max(most, runtime.NumGoroutine())
			time.Sleep(5 * time.Millisecond) // the pace of looking
		}
	}
	outage := func(nodes []*redistest.Server, d time.Duration) {
		for _, s := range nodes {
			s.Pause()
		}
		watch(d)
		for _, s := range nodes {
			s.Resume()
		}
		watch(*redLease / 2)
	}
	alone, pipelines, renewed := ways.alone.Load(), ways.pipelines.Load(), count.renewed.Load()
	watch(*redLease / 2)
	outage(servers[3:], *redOutage)
	outage(servers, *redLease/4)
	alone, pipelines, renewed = ways.alone.Load()-alone, ways.pipelines.Load()-pipelines, count.renewed.Load()-renewed
	lost := redRelease(t, held)
	t.Logf("%d of %d lost; %d goroutines, then up to %d; %d renewals in %d pipelines, %d commands alone", lost, len(held), goroutines, most, renewed, pipelines, alone)
	if lost > 0 {
		t.Errorf("%d of %d holds were lost", lost, len(held))
	}
	// A few for each node, those that go-redis keeps in calls to one that hangs, and no more however many are held: of what
	// is overdue, the renewals of one pipeline for each node get a goroutine each. All of them would be five for each hold.
	if most > goroutines+60+5*wire.BatchSize {
		t.Errorf("%d goroutines with %d holds, then %d", goroutines, len(held), most)
	}
	// Some acquires are still on their way to the last nodes, and a renewal that finds no
	// other on its way goes alone: one of 25, and of 7 where the machine has no time.
	if alone > renewed/4 {
		t.Errorf("%d commands were sent alone", alone)
	}
	if renewed < int64(len(held)) {
		t.Errorf("%d renewals of %d holds", renewed, len(held))
	}
}

// What waits for its turn here is no fault of a node: the timeout of a renewal
// begins when it is sent. All of them together take longer than that.
func TestRedLockRenewalsMayWaitForTheirTurn(t *testing.T) {
	locktest.Thorough(t)
	t.Parallel()
	const holds = 800
	lease, timeout := locktest.Ample(6*time.Second), locktest.Ample(500*time.Millisecond)
	count := &renewalCount{}
	var cs []*rlock.Client
	var proxies []*faultproxy.Proxy
	for _, s := range redistest.StartMasters(t, 5) {
		p := faultproxy.New(t, s.Addr())
		proxies = append(proxies, p)
		rdb := locktest.Dialer(p.Addr())(t, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, 1 })
		cs = append(cs, locktest.NewClient(t, rdb, rlock.WithWatchdogLease(lease), rlock.WithObserver(count)))
	}
	held := redHold(t, cs, holds, rlock.WithNodeTimeout(timeout))
	id := locktest.SHA("quorum/renew")
	for _, p := range proxies {
		var mu sync.Mutex
		var free time.Time // when the node has done what has arrived
		p.Delay(func(c faultproxy.Command) time.Duration {
			if !c.IsScript(id) {
				return 0
			}
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			if free.Before(now) {
				free = now
			}
			free = free.Add(time.Millisecond)
			return free.Sub(now)
		})
	}
	before := count.failed.Load()
	time.Sleep(lease) // two renewals of each hold
	for _, p := range proxies {
		p.Delay(nil)
	}
	failed := count.failed.Load() - before
	if lost := redRelease(t, held); lost > 0 {
		t.Errorf("%d of %d holds were lost", lost, holds)
	}
	t.Logf("%d renewals, %d failed", count.renewed.Load(), failed)
	if failed > holds/10 {
		t.Errorf("%d renewals of %d holds failed", failed, holds)
	}
}

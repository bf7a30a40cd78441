package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var errBoom = errors.New("boom")

// panicky panics in the commands that run a script, before or after they run.
func panicky(rdb redis.UniversalClient, times int64, scripts ...string) (seen *atomic.Int64) {
	seen = new(atomic.Int64)
	boom := func(cmd redis.Cmder, next func() error) error {
		for _, script := range scripts {
			if cmd.Name() == "evalsha" && locktest.Runs(cmd, script) {
				if n := seen.Add(1); n <= times {
					if n%2 == 0 {
						_ = next()
					}
					panic(errBoom)
				}
			}
		}
		return next()
	}
	rdb.(*redis.Client).AddHook(&locktest.ScriptHook{One: boom, Pipe: func(cmds []redis.Cmder, next func() error) error {
		return boom(cmds[0], next)
	}})
	return seen
}

// A hook that panics in a goroutine of the library must not end the process. The
// caller is told, and nothing is left behind: the request may have run or not.
func TestPanicOfAHookIsAnErrorOfItsRequest(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, plain := b.Client(t), b.Client(t)
		log := &logLines{}
		var clock locktest.Clock
		c := locktest.NewClient(t, rdb, rlock.WithLogger(slog.New(log)), clock.Option())
		l := c.NewLock("a")
		locktest.MustUnlock(t, locktest.MustLock(t, l)) // loads the scripts
		panicky(rdb, 2, "lock/enter")
		for range 2 { // once before it runs, once after
			_, err := l.TryLock(bg)
			locktest.WantErr(t, err, errBoom)
			locktest.Eventually(t, "it is given back", func() bool { return plain.Exists(bg, "a").Val() == 0 })
		}
		lease := locktest.MustLock(t, l)
		renewals := panicky(rdb, 2, "lock/renew")
		for range 2 {
			was := lease.Deadline()
			clock.Forward(locktest.Lease / 3)
			locktest.Eventually(t, "it is renewed all the same", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
		}
		if n := renewals.Load(); n < 4 {
			t.Errorf("%d renewals, two of which panic", n)
		}
		panicky(rdb, 1, "lock/inspect")
		_, err := l.State(bg)
		locktest.WantErr(t, err, errBoom)
		panicky(rdb, 2, "lock/release", "lock/abandon") // the second after it has run
		locktest.WantErr(t, lease.Unlock(bg), errBoom)
		locktest.Eventually(t, "it is released in the background", func() bool { return plain.Exists(bg, "a").Val() == 0 })
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		locktest.OnlyTombstones(t, plain)
		locktest.Eventually(t, "it is logged", func() bool { return log.count("panic in code") > 0 })
		if n := log.count("panic in code"); n != 1 {
			t.Errorf("%d log lines for one place", n)
		}
	})
}

// A hold that cannot be renewed for panics is lost at its deadline, and says why.
func TestPanicOfAHookAtEachRenewal(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clock locktest.Clock
		c := locktest.NewClient(t, rdb, clock.Option())
		lease := locktest.MustLock(t, c.NewLock("a"))
		renewals := panicky(rdb, 1<<40, "lock/renew")
		clock.Forward(locktest.Lease / 3)
		locktest.Eventually(t, "a renewal has failed", func() bool { return renewals.Load() > 1 }) // the one before it has been heard of
		clock.Forward(locktest.Lease)
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrUnreachable, errBoom)
	})
}

// dialPanics panics while on.
type dialPanics struct {
	locktest.ScriptHook
	on, seen atomic.Bool
}

func (h *dialPanics) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if h.on.Load() {
			h.seen.Store(true)
			panic(errBoom)
		}
		return next(ctx, network, addr)
	}
}

// The subscribed connection is dialed in a goroutine of the library.
func TestPanicOfADialHook(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		hook := &dialPanics{}
		rdb.(*redis.Client).AddHook(hook)
		c := locktest.NewClient(t, rdb)
		lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		_, err := c.NewLock("a").TryLock(bg) // the pool has a connection
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		hook.on.Store(true)
		got := make(chan *rlock.Lease, 1)
		go func() { got <- locktest.MustLock(t, c.NewLock("a")) }()
		locktest.Eventually(t, "it has panicked", hook.seen.Load)
		hook.on.Store(false)
		locktest.Eventually(t, "it is subscribed later", func() bool { return locktest.Subscribers(t, b.Client(t), "a") == 1 })
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, <-got)
	})
}

// panickyObserver panics in all of its methods.
type panickyObserver struct {
	seen   sync.Map
	failed atomic.Bool // a renewal
}

func (o *panickyObserver) boom(what string) {
	o.seen.Store(what, true)
	panic(what)
}

func (o *panickyObserver) AcquireStart(context.Context, rlock.StartEvent) context.Context {
	o.boom("AcquireStart")
	return nil
}

func (o *panickyObserver) AcquireEnd(context.Context, rlock.AcquireEvent) { o.boom("AcquireEnd") }

func (o *panickyObserver) Contended(context.Context, rlock.ContentionEvent) { o.boom("Contended") }

func (o *panickyObserver) Renewed(_ context.Context, e rlock.RenewalEvent) {
	if e.Err != nil {
		o.failed.Store(true)
	}
	o.boom("Renewed")
}

func (o *panickyObserver) Lost(context.Context, rlock.LossEvent) { o.boom("Lost") }

func (o *panickyObserver) Leadership(context.Context, rlock.LeadershipEvent) { o.boom("Leadership") }

func (o *panickyObserver) Unlocked(context.Context, rlock.UnlockEvent) { o.boom("Unlocked") }

func (o *panickyObserver) Retry(context.Context, rlock.RetryEvent) { o.boom("Retry") }

func (o *panickyObserver) Subscription(rlock.SubscriptionEvent) { o.boom("Subscription") }

func (o *panickyObserver) Unpublished(error) { o.boom("Unpublished") }

func (o *panickyObserver) Dropped(int) { o.boom("Dropped") }

// Whatever an Observer does, locks are taken, renewed, lost and released as ever.
func TestPanicsOfAnObserver(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o, log := &panickyObserver{}, &logLines{}
	c := b.NewClient(t, rlock.WithObserver(o), rlock.WithLogger(slog.New(log)), rlock.WithWatchdogLease(locktest.Ample(3*time.Second)),
		rlock.WithCommandTimeout(locktest.Ample(4*time.Second)))
	l := c.NewLock("a")
	lease := locktest.MustLock(t, l)
	got := make(chan *rlock.Lease, 1)
	go func() { got <- locktest.MustLock(t, l) }()
	subscribed := func() bool { return locktest.Subscribers(t, b.Client(t), "a") == 1 }
	locktest.Eventually(t, "another waits", subscribed)
	was := lease.Deadline()
	locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) })
	b.Mini.SetError("LOADING Redis is loading the dataset in memory")
	locktest.Eventually(t, "a renewal is tried again", func() bool { return o.failed.Load() })
	b.Mini.SetError("")
	_ = lease.Unlock(bg) // on a busy machine it may be lost
	locktest.MustUnlock(t, <-got)
	lost := locktest.MustLock(t, l, rlock.WithLease(300*time.Millisecond))
	<-lost.Done()
	locktest.WantErr(t, lost.Unlock(bg), rlock.ErrExpired)
	b.Mini.SetError("LOADING Redis is loading the dataset in memory")
	if _, err := l.TryLock(bg); err == nil {
		t.Error("locked")
	}
	b.Mini.SetError("")
	led, err := c.NewElection("job").Campaign(bg, "")
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, led)
	want := []string{"AcquireStart", "AcquireEnd", "Contended", "Renewed", "Lost", "Leadership", "Unlocked", "Retry", "Subscription"}
	for _, method := range want {
		locktest.Eventually(t, method+" is logged", func() bool { return log.count("Observer."+method) > 0 })
		if n := log.count("where=Observer." + method + " "); n != 1 {
			t.Errorf("%d log lines about %s", n, method)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A log handler may panic too; nobody is left who could be told.
func TestPanicOfALogHandler(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	log := &logLines{boom: true}
	c := b.NewClient(t, rlock.WithLogger(slog.New(log)))
	for range 3 {
		lost := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(300*time.Millisecond))
		<-lost.Done()
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrExpired)
	}
	locktest.Eventually(t, "all losses are logged", func() bool { return log.count("lease lost") == 3 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// logLines keeps what is logged.
type logLines struct {
	boom  bool
	mu    sync.Mutex // guards the rest
	lines []string
}

func (*logLines) Enabled(context.Context, slog.Level) bool { return true }

func (h *logLines) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *logLines) WithGroup(string) slog.Handler { return h }

func (h *logLines) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += fmt.Sprintf(" %s=%v ", a.Key, a.Value); return true })
	h.lines = append(h.lines, line)
	if h.boom {
		panic("the handler")
	}
	return nil
}

func (h *logLines) count(part string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range h.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

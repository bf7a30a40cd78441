package rlock_test

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
)

var errBoom = errors.New("boom")

// panicky panics in the commands that run a script, before or after they run.
func panicky(rdb redis.UniversalClient, times int64, scripts ...string) (seen *atomic.Int64) {
	seen = new(atomic.Int64)
	boom := func(cmd redis.Cmder, next func() error) error {
		for _, script := range scripts {
			if cmd.Name() == "evalsha" && runs(cmd, script) {
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
	rdb.(*redis.Client).AddHook(&scriptHook{one: boom, pipe: func(cmds []redis.Cmder, next func() error) error {
		return boom(cmds[0], next)
	}})
	return seen
}

// A hook that panics in a goroutine of the library must not end the process. The
// caller is told, and nothing is left behind: the request may have run or not.
func TestPanicOfAHookIsAnErrorOfItsRequest(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb, plain := b.client(t), b.client(t)
		log := &logLines{}
		c := newClientOn(t, rdb, rlock.WithLogger(slog.New(log)), rlock.WithWatchdogLease(600*time.Millisecond))
		l := c.NewLock("a")
		mustUnlock(t, mustLock(t, l)) // loads the scripts
		panicky(rdb, 2, "acquire")
		for range 2 { // once before it runs, once after
			_, err := l.TryLock(bg)
			wantErr(t, err, errBoom)
			eventually(t, "it is given back", func() bool { return plain.Exists(bg, "a").Val() == 0 })
		}
		lease := mustLock(t, l)
		renewals := panicky(rdb, 2, "renew")
		eventually(t, "it is renewed all the same", func() bool {
			return renewals.Load() > 3 && lease.Err() == nil
		})
		panicky(rdb, 1, "inspect")
		_, err := l.State(bg)
		wantErr(t, err, errBoom)
		panicky(rdb, 2, "release", "abandon") // the second after it has run
		wantErr(t, lease.Unlock(bg), errBoom)
		eventually(t, "it is released in the background", func() bool { return plain.Exists(bg, "a").Val() == 0 })
		mustUnlock(t, mustLock(t, l))
		onlyTombstones(t, plain)
		eventually(t, "it is logged", func() bool { return log.count("panic in code") > 0 })
		if n := log.count("panic in code"); n != 1 {
			t.Errorf("%d log lines for one place", n)
		}
	})
}

// A hold that cannot be renewed for panics is lost at its deadline, and says why.
func TestPanicOfAHookAtEachRenewal(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(300*time.Millisecond))
		lease := mustLock(t, c.NewLock("a"))
		panicky(rdb, 1<<40, "renew")
		<-lease.Done()
		wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrUnreachable, errBoom)
	})
}

// dialPanics panics while on.
type dialPanics struct {
	scriptHook
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
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		hook := &dialPanics{}
		rdb.(*redis.Client).AddHook(hook)
		c := newClientOn(t, rdb)
		lease := mustLock(t, b.newClient(t).NewLock("a"))
		_, err := c.NewLock("a").TryLock(bg) // the pool has a connection
		wantErr(t, err, rlock.ErrNotAcquired)
		hook.on.Store(true)
		got := make(chan *rlock.Lease, 1)
		go func() { got <- mustLock(t, c.NewLock("a")) }()
		eventually(t, "it has panicked", hook.seen.Load)
		hook.on.Store(false)
		eventually(t, "it is subscribed later", func() bool { return subscribers(t, b.client(t), "a") == 1 })
		mustUnlock(t, lease)
		mustUnlock(t, <-got)
	})
}

// panickyObserver panics in all of its methods.
type panickyObserver struct{ seen sync.Map }

func (o *panickyObserver) boom(what string) {
	o.seen.Store(what, true)
	panic(what)
}
func (o *panickyObserver) AcquireStart(context.Context, string) context.Context {
	o.boom("AcquireStart")
	return nil
}
func (o *panickyObserver) AcquireEnd(context.Context, rlock.AcquireEvent) { o.boom("AcquireEnd") }
func (o *panickyObserver) Contended(string)                               { o.boom("Contended") }
func (o *panickyObserver) Renewed(string, string)                         { o.boom("Renewed") }
func (o *panickyObserver) Lost(rlock.LossEvent)                           { o.boom("Lost") }
func (o *panickyObserver) Unlocked(rlock.UnlockEvent)                     { o.boom("Unlocked") }
func (o *panickyObserver) Retry(string, error)                            { o.boom("Retry") }
func (o *panickyObserver) Subscription(string, bool)                      { o.boom("Subscription") }
func (o *panickyObserver) Unpublished(error)                              { o.boom("Unpublished") }
func (o *panickyObserver) Dropped(int)                                    { o.boom("Dropped") }

// Whatever an Observer does, locks are taken, renewed, lost and released as ever.
func TestPanicsOfAnObserver(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	o, log := &panickyObserver{}, &logLines{}
	c := b.newClient(t, rlock.WithObserver(o), rlock.WithLogger(slog.New(log)), rlock.WithWatchdogLease(ample(900*time.Millisecond)))
	l := c.NewLock("a")
	lease := mustLock(t, l)
	got := make(chan *rlock.Lease, 1)
	go func() { got <- mustLock(t, l) }()
	subscribed := func() bool { return subscribers(t, b.client(t), "a") == 1 }
	eventually(t, "another waits", subscribed)
	was := lease.Deadline()
	eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) })
	b.mini.SetError("LOADING Redis is loading the dataset in memory")
	eventually(t, "a renewal is tried again", func() bool { _, ok := o.seen.Load("Retry"); return ok })
	b.mini.SetError("")
	_ = lease.Unlock(bg) // on a busy machine it may be lost
	mustUnlock(t, <-got)
	lost := mustLock(t, l, rlock.WithLease(300*time.Millisecond))
	<-lost.Done()
	wantErr(t, lost.Unlock(bg), rlock.ErrExpired)
	want := []string{"AcquireStart", "AcquireEnd", "Contended", "Renewed", "Lost", "Unlocked", "Retry", "Subscription"}
	for _, method := range want {
		eventually(t, method+" is logged", func() bool { return log.count("Observer."+method) > 0 })
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
	b := onMiniredis(t)
	log := &logLines{boom: true}
	c := b.newClient(t, rlock.WithLogger(slog.New(log)))
	for range 3 {
		lost := mustLock(t, c.NewLock("a"), rlock.WithLease(300*time.Millisecond))
		<-lost.Done()
		wantErr(t, lost.Unlock(bg), rlock.ErrExpired)
	}
	eventually(t, "all losses are logged", func() bool { return log.count("lease lost") == 3 })
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
func (h *logLines) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h *logLines) WithGroup(string) slog.Handler          { return h }
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

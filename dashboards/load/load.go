package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// leaseTime is short, so that renewals and losses come soon.
const leaseTime = 3 * time.Second

// run uses locks until ctx ends.
func run(ctx context.Context, addr string, registerer prometheus.Registerer) (err error) {
	observer, err := rlockprom.New(registerer)
	if err != nil {
		return err
	}
	var line outages
	var clients [3]*rlock.Client // the last one's connections fail now and then
	for i := range clients {
		opts := &redis.Options{Addr: addr}
		if i == len(clients)-1 {
			opts.Dialer = line.dial
			opts.DialerRetries = 1
		}
		rdb := redis.NewClient(opts)
		defer func() { _ = rdb.Close() }()
		c, err := rlock.New(rdb, rlock.WithObserver(observer), rlock.WithWatchdogLease(leaseTime), rlock.WithCommandTimeout(500*time.Millisecond))
		if err != nil {
			return err
		}
		clients[i] = c
	}
	l := &loads{ctx: ctx}
	a, b, unsteady := clients[0], clients[1], clients[2]
	for i := range 6 {
		l.repeat(20*time.Millisecond, func() { l.order(clients[i%2]) })
		l.repeat(30*time.Millisecond, func() { l.catalog(clients[i%2], i) })
	}
	l.repeat(time.Second, func() { l.hold(a.NewLock("report"), 4*time.Second) })
	l.repeat(200*time.Millisecond, func() { l.try(b.NewLock("report")) })
	l.repeat(300*time.Millisecond, func() { l.impatient(b.NewLock("report")) })
	l.repeat(5*time.Second, func() { l.removed(b.NewLock("import"), a.NewLock("import")) })
	l.repeat(6*time.Second, func() { l.expired(a.NewLock("export")) })
	for i, c := range clients[:2] {
		l.repeat(time.Second, func() { l.lead(c.NewElection("scheduler"), fmt.Sprint("process ", i)) })
	}
	l.repeat(10*time.Second, func() { line.fail(l, 1500*time.Millisecond) })
	l.repeat(time.Second, func() { l.hold(unsteady.NewLock("sync"), 8*time.Second) })
	l.repeat(500*time.Millisecond, func() { l.try(unsteady.NewLock("upload")) })
	l.all.Wait()

	ended, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, c := range clients {
		err = errors.Join(err, c.Shutdown(ended))
	}
	return err
}

// loads are all things that go on at the same time.
type loads struct {
	ctx context.Context
	all sync.WaitGroup
}

// repeat calls fn again and again, with random pauses around the given one.
func (l *loads) repeat(pause time.Duration, fn func()) {
	l.all.Go(func() {
		for l.ctx.Err() == nil {
			fn()
			l.sleep(pause/2 + rand.N(pause))
		}
	})
}

func (l *loads) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.ctx.Done():
	}
}

// under works for a while, or until the lease ends. What Unlock says is in the metrics.
func (l *loads) under(lease *rlock.Lease, err error, d time.Duration) {
	if err != nil {
		return
	}
	select {
	case <-time.After(d):
	case <-lease.Done():
	case <-l.ctx.Done():
	}
	_ = lease.Unlock(context.WithoutCancel(l.ctx))
}

// order is one of a few orders, for which several processes wait.
func (l *loads) order(c *rlock.Client) {
	lease, err := c.NewLock(fmt.Sprint("order:", rand.IntN(4))).Lock(l.ctx, rlock.WithWait(2*time.Second))
	l.under(lease, err, rand.N(20*time.Millisecond))
}

// catalog is read by many and written now and then.
func (l *loads) catalog(c *rlock.Client, i int) {
	rw := c.NewReadWriteLock("catalog")
	var of rlock.Locker = rw.Reader
	if i == 0 {
		of = rw.Writer
	}
	lease, err := of.Lock(l.ctx, rlock.WithWait(time.Second))
	l.under(lease, err, rand.N(10*time.Millisecond))
}

func (l *loads) hold(lock *rlock.Lock, d time.Duration) {
	lease, err := lock.Lock(l.ctx)
	l.under(lease, err, d)
}

func (l *loads) try(lock *rlock.Lock) {
	lease, err := lock.TryLock(l.ctx)
	l.under(lease, err, 0)
}

// impatient leaves soon.
func (l *loads) impatient(lock *rlock.Lock) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
	lease, err := lock.Lock(ctx)
	l.under(lease, err, 0)
	cancel()
}

// removed loses its lock to an operator.
func (l *loads) removed(mine, operators *rlock.Lock) {
	lease, err := mine.Lock(l.ctx)
	if err == nil {
		_, _ = operators.ForceUnlock(l.ctx)
	}
	l.under(lease, err, leaseTime)
}

// expired works for longer than its lease.
func (l *loads) expired(lock *rlock.Lock) {
	lease, err := lock.Lock(l.ctx, rlock.WithLease(500*time.Millisecond))
	l.under(lease, err, time.Second)
}

func (l *loads) lead(e *rlock.Election, who string) {
	lease, err := e.Campaign(l.ctx, who)
	l.under(lease, err, 5*time.Second)
}

// outages are the outages of a connection to Redis.
type outages struct{ down atomic.Bool }

func (o *outages) fail(l *loads, d time.Duration) {
	l.sleep(2 * time.Second)
	o.down.Store(true)
	l.sleep(d)
	o.down.Store(false)
}

var errDown = errors.New("the line is down")

func (o *outages) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if o.down.Load() {
		return nil, errDown
	}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return lineConn{c, o}, nil
}

type lineConn struct {
	net.Conn
	of *outages
}

func (c lineConn) Write(b []byte) (int, error) {
	if c.of.down.Load() {
		return 0, errDown
	}
	return c.Conn.Write(b)
}

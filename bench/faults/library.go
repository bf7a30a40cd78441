package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/go-rlock/rlock"
)

// driver is what one process has of a library.
type driver interface {
	// lock waits for a lock as the library's own call does, once.
	lock(ctx context.Context, name string) (held, error)
}

// held is a lock that was granted.
type held interface {
	// unlock returns what the library returns. errNoResult stands for a call that returns nothing.
	unlock(ctx context.Context) error
	// lost is closed when the library, or the watchdog that its documentation shows, notifies the holder. It may be closed
	// by unlock too.
	lost() <-chan struct{}
}

var errNoResult = errors.New("no result")

// library is one of those that are compared.
type library struct {
	Name   string
	Module string // its module, for the version; empty: rlock
	nodes  int    // independent servers; 1 but for quorums
	java   bool   // driven through interop/java
	older  string // the version of Redisson; empty: the one of interop/java
	silent bool   // it notifies no holder of a loss
	open   func(addrs []string, lease time.Duration) (driver, error)
}

const (
	rlockName     = "rlock `Lock`"
	redisMod      = "github.com/bsm/redislock"
	syncMod       = "github.com/go-redsync/redsync/v4"
	rueidisMod    = "github.com/redis/rueidis"
	redissonMod   = "org.redisson:redisson"
	redLockName   = "rlock `RedLock`"
	guardedName   = "rlock `RedLock`, `WithRestartQuarantine`"
	syncFiveName  = "redsync, five pools"
	redislockName = "redislock"
	redsyncName   = "redsync"
	rueidisName   = "rueidislock"
	redissonName  = "Redisson `RLock`"
	redisson3Name = "Redisson 3 `RLock`"
)

var libraries = []library{
	{Name: rlockName, nodes: 1, open: openRlock},
	{Name: redislockName, Module: redisMod, nodes: 1, open: openRedislock},
	{Name: redsyncName, Module: syncMod, nodes: 1, open: openRedsync},
	{Name: rueidisName, Module: rueidisMod, nodes: 1, open: openRueidis},
	{Name: redissonName, Module: redissonMod, nodes: 1, java: true, silent: true},
	{Name: redisson3Name, Module: redissonMod, nodes: 1, java: true, older: redisson3, silent: true},
	{Name: redLockName, nodes: 5, open: openRedLock()},
	{Name: guardedName, nodes: 5, open: openRedLock(rlock.WithRestartQuarantine())},
	{Name: syncFiveName, Module: syncMod, nodes: 5, open: openRedsync},
}

// libraryNamed panics for a name that a parent does not give.
func libraryNamed(name string) library {
	for _, l := range libraries {
		if l.Name == name {
			return l
		}
	}
	panic(fmt.Sprintf("no library %q", name))
}

// patience is the timeout of clients' dials and replies. The default of go-redis is 5 s, a sixth of the usual lease of 30 s:
// it is shortened with the lease, so that a library is not measured with a timeout that is longer than its lease.
func patience(lease time.Duration) time.Duration { return lease / 6 }

func connect(addr string, lease time.Duration) *redis.Client {
	p := patience(lease)
	return redis.NewClient(&redis.Options{Addr: addr, DialTimeout: p, ReadTimeout: p, WriteTimeout: p})
}

// rlock renews and notifies.

type rlockDriver struct {
	make func(name string) (rlock.Locker, error)
}

func openRlock(addrs []string, lease time.Duration) (driver, error) {
	c, err := rlock.New(connect(addrs[0], lease), rlock.WithWatchdogLease(lease))
	return rlockDriver{func(name string) (rlock.Locker, error) { return c.NewLock(name), nil }}, err
}

func openRedLock(opts ...rlock.RedLockOption) func([]string, time.Duration) (driver, error) {
	return func(addrs []string, lease time.Duration) (driver, error) {
		var nodes []*rlock.Client
		for _, addr := range addrs {
			c, err := rlock.New(connect(addr, lease), rlock.WithWatchdogLease(lease))
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, c)
		}
		return rlockDriver{func(name string) (rlock.Locker, error) { return rlock.NewRedLock(name, nodes, opts...) }}, nil
	}
}

func (d rlockDriver) lock(ctx context.Context, name string) (held, error) {
	l, err := d.make(name)
	if err != nil {
		return nil, err
	}
	lease, err := l.Lock(ctx)
	return rlockHeld{lease}, err
}

type rlockHeld struct{ *rlock.Lease }

func (h rlockHeld) unlock(ctx context.Context) error { return h.Unlock(ctx) }
func (h rlockHeld) lost() <-chan struct{}            { return h.Done() }

// watched is a hold with the watchdog of redislock's README: it refreshes each third of the lease, and cancels the work when
// a refresh fails.
type watched struct {
	release func(context.Context) error
	work    context.Context
	cancel  context.CancelFunc // ends the watchdog too
}

func watch(lease time.Duration, refresh, release func(context.Context) error) *watched {
	w := &watched{release: release}
	w.work, w.cancel = context.WithCancel(context.Background())
	go func() {
		t := time.NewTicker(lease / 3)
		defer t.Stop()
		for {
			select {
			case <-w.work.Done():
				return
			case <-t.C:
				if refresh(w.work) != nil {
					w.cancel()
					return
				}
			}
		}
	}()
	return w
}

func (w *watched) lost() <-chan struct{} { return w.work.Done() }

func (w *watched) unlock(ctx context.Context) error {
	w.cancel() // first, in the order of the README's defers
	return w.release(ctx)
}

// redislock has no watchdog of its own; its README shows one.

type redislockDriver struct {
	c     *redislock.Client
	lease time.Duration
}

// retryEach is a pause between attempts, as in redislock's example of a retry.
const retryEach = 100 * time.Millisecond

func openRedislock(addrs []string, lease time.Duration) (driver, error) {
	return redislockDriver{redislock.New(connect(addrs[0], lease)), lease}, nil
}

func (d redislockDriver) lock(ctx context.Context, name string) (held, error) {
	l, err := d.c.Obtain(ctx, name, d.lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retryEach)})
	if err != nil {
		return nil, err
	}
	refresh := func(ctx context.Context) error { return l.Refresh(ctx, d.lease, nil) }
	return watch(d.lease, refresh, l.Release), nil
}

// redsync has Extend and no watchdog: the same one calls it.

type redsyncDriver struct {
	s     *redsync.Redsync
	lease time.Duration
}

func openRedsync(addrs []string, lease time.Duration) (driver, error) {
	var pools []syncredis.Pool
	for _, addr := range addrs {
		pools = append(pools, goredis.NewPool(connect(addr, lease)))
	}
	return redsyncDriver{redsync.New(pools...), lease}, nil
}

func (d redsyncDriver) lock(ctx context.Context, name string) (held, error) {
	m := d.s.NewMutex(name, redsync.WithExpiry(d.lease))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	h := &redsyncHeld{}
	h.keep(m)
	h.watched = watch(d.lease, func(ctx context.Context) error {
		defer h.keep(m)
		return done(m.ExtendContext)(ctx)
	}, done(m.UnlockContext))
	return h, nil
}

// redsyncHeld checks Until too, which sends no request.
type redsyncHeld struct {
	*watched
	until atomic.Pointer[time.Time] // as a Mutex is not for several goroutines
}

func (h *redsyncHeld) keep(m *redsync.Mutex) {
	until := m.Until()
	h.until.Store(&until)
}

func (h *redsyncHeld) lost() <-chan struct{} {
	if time.Now().After(*h.until.Load()) {
		h.cancel()
	}
	return h.watched.lost()
}

var errNotDone = errors.New("false, without an error")

// done makes an error of redsync's boolean.
func done(call func(context.Context) (bool, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		ok, err := call(ctx)
		if err == nil && !ok {
			err = errNotDone
		}
		return err
	}
}

// rueidislock renews, and ends the context.

type rueidisDriver struct{ l rueidislock.Locker }

func openRueidis(addrs []string, lease time.Duration) (driver, error) {
	p := patience(lease)
	o := rueidis.ClientOption{InitAddress: addrs, ConnWriteTimeout: p}
	o.Dialer.Timeout = p
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: o, KeyMajority: 1, KeyValidity: lease, NoLoopTracking: true,
	})
	return rueidisDriver{l}, err
}

func (d rueidisDriver) lock(ctx context.Context, name string) (held, error) {
	work, cancel, err := d.l.WithContext(ctx, name)
	return rueidisHeld{work, cancel}, err
}

type rueidisHeld struct {
	work   context.Context
	cancel context.CancelFunc
}

func (h rueidisHeld) lost() <-chan struct{} { return h.work.Done() }

func (h rueidisHeld) unlock(context.Context) error {
	h.cancel()
	return errNoResult
}

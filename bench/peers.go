package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/go-rlock/rlock"
)

// peer is a library that locks, or a way to do it by hand. Each has its defaults, but for
// what is said here.
type peer struct {
	name   string
	about  string
	module string // whose version is reported
	direct []string
	batch  int  // callers of one handle; 0: one
	waits  bool // for a lock that is held
	open   func(addr string, lease time.Duration) (session, error)
}

// session is what one process has of a peer.
type session interface {
	// handle is one caller's use of a lock.
	handle(name string) handle
	close()
}

// handle acquires and releases a lock, in turn. It keeps what it needs in between, so
// that the measuring adds no allocation.
type handle interface {
	lock(ctx context.Context) error
	unlock(ctx context.Context) error
}

// keeper is a session that renews what it holds.
type keeper interface {
	// hold acquires a lock and returns what its owner would keep.
	hold(ctx context.Context, name string) (any, error)
	// lost is how many of these have been lost.
	lost(kept []any) int
}

// lease is how long Redis keeps a lock, where no other is said.
const lease = 30 * time.Second

// poll is how often those look at a held lock that can only poll.
const poll = 5 * time.Millisecond

const (
	ours      = "rlock"
	rawName   = "raw"
	autoName  = "raw, auto-pipelined"
	batchName = "raw, pipelines of 64"
	redisson  = "redisson-style"
	rueidisN  = "rueidislock"
	bsmName   = "redislock"
	syncName  = "redsync"
)

var peers = []peer{
	{name: ours, about: "this library, `NewLock`", waits: true, open: openRlock},
	{name: rawName, about: "`SET NX PX` and a script that compares and deletes, by go-redis: no token, no renewal, no waiting",
		module: "github.com/redis/go-redis/v9", direct: []string{"set"}, open: openRaw},
	{name: autoName, about: "the same through `Client.AutoPipeline` of go-redis",
		direct: []string{"set"}, open: openAuto},
	{name: batchName, about: "the same, 64 locks in one pipeline and then their releases in another: what a program can do that has them at hand at once",
		direct: []string{"set"}, batch: 64, open: openBatches},
	{name: bsmName, about: fmt.Sprintf("bsm/redislock; where a lock is held, it polls each %v", poll), waits: true,
		module: "github.com/bsm/redislock", open: openRedislock},
	{name: syncName, about: "redsync on one server; it polls as redislock does, where a lock is held", waits: true,
		module: "github.com/go-redsync/redsync/v4", direct: []string{"set"}, open: openRedsync},
	{name: rueidisN, about: "rueidislock with `KeyMajority` 1 and `NoLoopTracking`, as its documentation advises for one server", waits: true,
		module: "github.com/redis/rueidis", open: openRueidis},
	{name: redisson, about: "a hash, a channel and a timer for each hold: how a plain port of Redisson's lock works (`bench/baseline.go`)", waits: true,
		open: openBaseline},
}

func peerNamed(name string) peer {
	for _, p := range peers {
		if p.name == name {
			return p
		}
	}
	panic(fatal{fmt.Errorf("no peer %q", name)})
}

// rlock

type rlockSession struct {
	rdb  *redis.Client
	c    *rlock.Client
	make func(c *rlock.Client, name string) rlock.Locker
}

func openRlock(addr string, lease time.Duration) (session, error) {
	return openType(addr, lease, func(c *rlock.Client, name string) rlock.Locker { return c.NewLock(name) })
}

func openType(addr string, lease time.Duration, make func(*rlock.Client, string) rlock.Locker) (session, error) {
	s := &rlockSession{rdb: redis.NewClient(&redis.Options{Addr: addr}), make: make}
	var err error
	s.c, err = rlock.New(s.rdb, rlock.WithWatchdogLease(lease))
	return s, err
}

func (s *rlockSession) lost([]any) int { return int(s.c.Stats().Losses) }

func (s *rlockSession) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.c.Shutdown(ctx)
	_ = s.rdb.Close()
}

func (s *rlockSession) handle(name string) handle { return &rlockHandle{l: s.make(s.c, name)} }

func (s *rlockSession) hold(ctx context.Context, name string) (any, error) {
	return s.make(s.c, name).Lock(ctx)
}

type rlockHandle struct {
	l     rlock.Locker
	lease *rlock.Lease
}

func (h *rlockHandle) lock(ctx context.Context) (err error) {
	h.lease, err = h.l.Lock(ctx)
	return err
}

func (h *rlockHandle) unlock(ctx context.Context) error { return h.lease.Unlock(ctx) }

// raw

var compareAndDelete = redis.NewScript(`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`)

type rawSession struct {
	rdb  *redis.Client
	cmds redis.Cmdable // of rdb, or of its auto-pipeliner
}

func openRaw(addr string, _ time.Duration) (session, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	return &rawSession{rdb, rdb}, compareAndDelete.Load(context.Background(), rdb).Err()
}

// openAuto opens an AutoPipeliner, narrowed to what a raw lock sends.
func openAuto(addr string, _ time.Duration) (session, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	if err := compareAndDelete.Load(context.Background(), rdb).Err(); err != nil {
		return nil, err
	}
	auto, err := rdb.AutoPipeline()
	return &rawSession{rdb, auto}, err
}

func (s *rawSession) close() { _ = s.rdb.Close() }

func (s *rawSession) handle(name string) handle { return &rawHandle{s.cmds, name} }

type rawHandle struct {
	cmds redis.Cmdable
	name string
}

const rawToken = "0123456789abcdef"

var errHeld = errors.New("held")

func (h *rawHandle) lock(ctx context.Context) error {
	return h.cmds.SetArgs(ctx, h.name, rawToken, redis.SetArgs{Mode: "NX", TTL: lease}).Err()
}

func (h *rawHandle) unlock(ctx context.Context) error {
	n, err := h.cmds.EvalSha(ctx, compareAndDelete.Hash(), []string{h.name}, rawToken).Int()
	if err == nil && n != 1 {
		return errHeld
	}
	return err
}

// raw in pipelines that the caller makes

type batchSession struct{ rawSession }

func openBatches(addr string, _ time.Duration) (session, error) {
	s, err := openRaw(addr, 0)
	if err != nil {
		return nil, err
	}
	return &batchSession{*s.(*rawSession)}, nil
}

func (s *batchSession) handle(name string) handle {
	h := &batchHandle{rdb: s.rdb}
	for i := range 64 {
		h.names = append(h.names, fmt.Sprint(name, ":", i))
	}
	return h
}

type batchHandle struct {
	rdb   *redis.Client
	names []string
}

func (h *batchHandle) lock(ctx context.Context) error {
	_, err := h.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, n := range h.names {
			p.SetArgs(ctx, n, rawToken, redis.SetArgs{Mode: "NX", TTL: lease})
		}
		return nil
	})
	return err
}

func (h *batchHandle) unlock(ctx context.Context) error {
	_, err := h.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, n := range h.names {
			p.EvalSha(ctx, compareAndDelete.Hash(), []string{n}, rawToken)
		}
		return nil
	})
	return err
}

// bsm/redislock

type redislockSession struct {
	rdb   *redis.Client
	c     *redislock.Client
	lease time.Duration
}

func openRedislock(addr string, lease time.Duration) (session, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	return &redislockSession{rdb, redislock.New(rdb), lease}, nil
}

func (s *redislockSession) close() { _ = s.rdb.Close() }

func (s *redislockSession) handle(name string) handle {
	return &redislockHandle{s: s, name: name, opts: &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)}}
}

type redislockHandle struct {
	s    *redislockSession
	name string
	opts *redislock.Options
	l    *redislock.Lock
}

func (h *redislockHandle) lock(ctx context.Context) (err error) {
	h.l, err = h.s.c.Obtain(ctx, h.name, h.s.lease, h.opts)
	return err
}

func (h *redislockHandle) unlock(ctx context.Context) error { return h.l.Release(ctx) }

// redsync

type redsyncSession struct {
	rdb   *redis.Client
	s     *redsync.Redsync
	lease time.Duration
}

func openRedsync(addr string, lease time.Duration) (session, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	return &redsyncSession{rdb, redsync.New(goredis.NewPool(rdb)), lease}, nil
}

func (s *redsyncSession) close() { _ = s.rdb.Close() }

func (s *redsyncSession) handle(name string) handle {
	return &redsyncHandle{s.s.NewMutex(name, redsync.WithExpiry(s.lease), redsync.WithTries(1<<30), redsync.WithRetryDelay(poll))}
}

type redsyncHandle struct{ m *redsync.Mutex }

func (h *redsyncHandle) lock(ctx context.Context) error { return h.m.LockContext(ctx) }

func (h *redsyncHandle) unlock(ctx context.Context) error {
	ok, err := h.m.UnlockContext(ctx)
	if err == nil && !ok {
		return errHeld
	}
	return err
}

// rueidislock

type rueidisSession struct{ l rueidislock.Locker }

func openRueidis(addr string, lease time.Duration) (session, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:    1,
		KeyValidity:    lease,
		NoLoopTracking: true,
	})
	return &rueidisSession{l: l}, err
}

func (s *rueidisSession) close() { s.l.Close() }

func (s *rueidisSession) handle(name string) handle { return &rueidisHandle{l: s.l, name: name} }

// hold tries again itself: WithContext hangs if an attempt takes longer than
// TryNextAfter and nobody else touches the key.
func (s *rueidisSession) hold(ctx context.Context, name string) (any, error) {
	for {
		held, _, err := s.l.TryWithContext(ctx, name)
		if err == nil || ctx.Err() != nil {
			return held, err
		}
	}
}

func (s *rueidisSession) lost(kept []any) (n int) {
	for _, held := range kept {
		if held != nil && held.(context.Context).Err() != nil {
			n++
		}
	}
	return n
}

type rueidisHandle struct {
	l      rueidislock.Locker
	name   string
	cancel context.CancelFunc
}

func (h *rueidisHandle) lock(ctx context.Context) (err error) {
	_, h.cancel, err = h.l.WithContext(ctx, h.name)
	return err
}

func (h *rueidisHandle) unlock(context.Context) error {
	h.cancel() // returns when the key is deleted
	return nil
}

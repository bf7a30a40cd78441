package main

import (
	"context"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// Several locks of one server together: all or none.

const (
	multiFree      = "multi"
	multiContended = "multi, contended"
	multiName      = "rlock, `MultiLock`"
	obtainName     = "redislock, `ObtainMulti`"
	multiCallers   = 8 // of the contended ones
)

// namesOf are the locks of a handle.
func namesOf(name string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(name, ":", i))
	}
	return names
}

// multiLockOf is a MultiLock of so many locks.
func multiLockOf(n int) func(*rlock.Client, string) rlock.Locker {
	return func(c *rlock.Client, name string) rlock.Locker {
		var locks []*rlock.Lock
		for _, name := range namesOf(name, n) {
			locks = append(locks, c.NewLock(name))
		}
		m, err := rlock.NewMultiLock(locks)
		if err != nil {
			panic(fatal{err})
		}
		return m
	}
}

// obtainSession is redislock with several keys.
type obtainSession struct {
	redislockSession
	n int
}

func (s *obtainSession) handle(name string) handle {
	opts := &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)}
	return &obtainHandle{redislockHandle{s: &s.redislockSession, name: name, opts: opts}, namesOf(name, s.n)}
}

type obtainHandle struct {
	redislockHandle
	keys []string
}

func (h *obtainHandle) lock(ctx context.Context) (err error) {
	h.l, err = h.s.c.ObtainMulti(ctx, h.keys, h.s.lease, h.opts)
	return err
}

func (b *bench) multi() {
	s := b.server()
	for _, n := range []int{2, 5, 10} {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		obtain := &obtainSession{redislockSession{rdb, redislock.New(rdb), lease}, n}
		b.host.Cleanup(obtain.close)
		all := []entrant{b.enterType(s.Addr(), multiName, multiLockOf(n)), {peer{name: obtainName}, obtain}}
		var free, wanted []job
		for _, e := range all {
			own := []handle{e.handle(fmt.Sprint("own:", n, ":", e.name))}
			turn := func(d time.Duration) sample { return pairs([]*server{s}, e.peer, own, d) }
			turn(b.slice / 5)
			free = append(free, job{multiFree, e.name, float64(n), func() sample { return turn(b.slice) }})
			wanted = append(wanted, b.crowdJob(s, multiContended, float64(n), multiCallers, e))
		}
		b.interleave(b.rounds, free)
		b.interleave(b.rounds, wanted)
		b.say("%s; %s", b.results.line(multiFree, float64(n), "p50"), b.results.line(multiContended, float64(n), "hand-overs/s"))
	}
}

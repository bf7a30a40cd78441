//go:build unix

package rlock_test

import (
	"context"
	"errors"
	"flag"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

var cancelled = flag.Int("waiters", 1_000, "number of waiters that are cancelled at once; ten thousand take some ten seconds for each type")

func init() { childModes["pings"] = childPings }

// childPings is another client of the same Redis, in a process of its own. It tells
// how long its longest PING took.
func childPings(t *testing.T, p *parent, addr string, _ []string) {
	_, rdb := childClient(t, addr)
	p.report("ready")
	var longest time.Duration
	for {
		select {
		case <-p.orders:
			p.report("longest %v", longest)
			return
		default:
		}
		start := time.Now()
		if err := rdb.Ping(bg).Err(); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(start))
	}
}

// Thousands of waiters of one client are cancelled at once. Each leaves by one
// script, few at a time, so that Redis serves others between them.
func TestThousandsOfPlacesAreGivenUpAtOnce(t *testing.T) {
	waiters := *cancelled
	for _, k := range placeKinds() {
		if k.name == "read" {
			continue // as write
		}
		t.Run(k.name, func(t *testing.T) {
			b := onServer(t)
			rdb := b.client(t)
			most := &pipelineHook{}
			mine := b.client(t)
			mine.AddHook(most)
			c := newClientOn(t, mine, rlock.WithWaiterLease(patient), rlock.WithLongestPoll(patient), rlock.WithCommandTimeout(time.Minute))
			l := k.open(c, "a")
			holder := mustLock(t, k.rival(newClientOn(t, rdb), "a"), rlock.WithLease(time.Hour))
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() {
					if _, err := l.Lock(ctx); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			eventually(t, "all stand in line", func() bool {
				return len(k.line(rdb, "a")) == waiters
			})
			other := startChild(t, "pings", b.addr)
			other.report("ready")
			rdb.Do(bg, "config", "resetstat")
			rdb.ConfigSet(bg, "slowlog-log-slower-than", "1000")
			start := time.Now()
			cancel()
			wg.Wait()
			returned := time.Since(start)
			eventually(t, "the line is empty", func() bool { return queuedState(t, k.open(c, "a")).Waiters == 0 })
			took := time.Since(start)
			other.order("stop")
			longest := other.report("longest")
			other.finish()
			var slowest time.Duration
			for _, e := range rdb.SlowLogGet(bg, -1).Val() {
				slowest = max(slowest, e.Duration)
			}
			stats := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`).FindStringSubmatch(rdb.Info(bg, "commandstats").Val())
			t.Logf("%d waiters returned in %v and had left in %v; evalsha, usec: %s; slowest %v; longest PING %v", waiters, returned, took, stats[1:], slowest, longest)
			if n := most.most(); n > 32 {
				t.Errorf("%d give-ups in one pipeline", n)
			}
			// Those whose looks were under way may have been asked to look once more.
			if n := commandCount(t, rdb, "lrem", "zrem"); n > 4*waiters {
				t.Errorf("%d removals for %d waiters", n, waiters)
			}
			mustUnlock(t, holder)
			onlyTombstones(t, rdb)
		})
	}
}

// pipelineHook knows the longest pipeline.
type pipelineHook struct {
	mu sync.Mutex // guards n
	n  int
}

func (h *pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		scripts := slices.DeleteFunc(slices.Clone(cmds), func(c redis.Cmder) bool { return c.Name() != "evalsha" && c.Name() != "eval" })
		h.mu.Lock()
		h.n = max(h.n, len(scripts))
		h.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (h *pipelineHook) most() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

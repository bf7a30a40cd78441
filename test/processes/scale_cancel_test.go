//go:build unix

package processes

import (
	"context"
	"errors"
	"flag"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var cancelled = flag.Int("waiters", 1_000, "number of waiters that are cancelled at once; ten thousand take some ten seconds for each type")

// childPings is another client of the same Redis, in a process of its own. It tells
// how long its longest PING took.
func childPings(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	_, rdb := locktest.ChildClient(t, addr)
	p.Report("ready")
	var longest time.Duration
	for {
		select {
		case <-p.Orders:
			p.Report("longest %v", longest)
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
func TestThousandsOfPlacesAreGivenUpTogether(t *testing.T) {
	locktest.Nightly(t)
	waiters := *cancelled
	for _, k := range locktest.OrderedTypes() {
		if k.Name == "read" {
			continue // as write
		}
		t.Run(k.Name, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			most := &pipelineHook{}
			mine := b.Client(t)
			mine.AddHook(most)
			c := locktest.NewClient(t, mine, rlock.WithWaiterLease(locktest.Patient), rlock.WithLongestPoll(locktest.Patient), rlock.WithCommandTimeout(time.Minute))
			l := k.Open(c, "a")
			holder := locktest.MustLock(t, k.Rival(locktest.NewClient(t, rdb), "a"), rlock.WithLease(time.Hour))
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
			locktest.Eventually(t, "all stand in line", func() bool {
				return len(k.Line(rdb, "a")) == waiters
			})
			other := locktest.StartChild(t, "pings", b.Addr)
			other.Report("ready")
			rdb.Do(bg, "config", "resetstat")
			rdb.ConfigSet(bg, "slowlog-log-slower-than", "1000")
			start := time.Now()
			cancel()
			wg.Wait()
			returned := time.Since(start)
			locktest.Eventually(t, "the line is empty", func() bool { return locktest.MustState(t, k.Open(c, "a")).Waiters == 0 })
			took := time.Since(start)
			other.Order("stop")
			longest := other.Report("longest")
			other.Finish()
			var slowest time.Duration
			for _, e := range rdb.SlowLogGet(bg, -1).Val() {
				slowest = max(slowest, e.Duration)
			}
			stats := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`).FindStringSubmatch(rdb.Info(bg, "commandstats").Val())
			t.Logf("%d waiters returned in %v and had left in %v; evalsha, usec: %s; slowest %v; longest PING %v", waiters, returned, took, stats[1:], slowest, longest)
			if n := most.most(); n == 0 || n > 32 {
				t.Errorf("%d give-ups in one pipeline", n)
			}
			// Those whose looks were under way may have been asked to look once more.
			if n := locktest.CommandCount(t, rdb, "lrem", "zrem"); n > 4*waiters {
				t.Errorf("%d removals for %d waiters", n, waiters)
			}
			locktest.MustUnlock(t, holder)
			locktest.OnlyTombstones(t, rdb)
		})
	}
}

// pipelineHook knows how many waiters gave up in one pipeline at most. Looks that are under way
// while they are cancelled may fill longer ones.
type pipelineHook struct {
	mu sync.Mutex // guards n
	n  int
}

func (h *pipelineHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := 0
		for _, cmd := range cmds {
			if locktest.Runs(cmd, "fair/abandon") || locktest.Runs(cmd, "queue/abandon") || locktest.Runs(cmd, "rw/write_abandon") {
				n++
			}
		}
		h.mu.Lock()
		h.n = max(h.n, n)
		h.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (h *pipelineHook) most() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

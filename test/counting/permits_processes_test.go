//go:build unix

package counting

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var acquisitions = flag.Int("permits.acquisitions", 1000, "by all processes of a run of TestKilledProcessesLosePermitsToNobody")

const (
	inside     = "inside" // hash: who is inside -> how many permits it has
	entered    = "entered"
	violations = "violations"
)

// killLease is the lease of the permits and the places of processes that are killed.
var killLease = locktest.Ample(1500 * time.Millisecond)

// enter notes who is inside, and how many permits that makes.
var enter = redis.NewScript(`
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
local sum = 0
for _, n in ipairs(redis.call('hvals', KEYS[1])) do sum = sum + n end
return {sum, redis.call('incr', KEYS[2])}`)

// open makes the semaphore that a run is about.
func open(c *rlock.Client, kind string) *rlock.PermitSemaphore {
	if kind == "fair" {
		return c.NewPermitSemaphore(kind, rlock.WithFairness())
	}
	return c.NewPermitSemaphore(kind)
}

func childSections(t *testing.T, p *locktest.Parent, addr string, args []string) {
	permits, _ := strconv.Atoi(args[1])
	total, _ := strconv.Atoi(args[2])
	c, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(killLease), rlock.WithWaiterLease(killLease))
	s := open(c, args[0])
	p.Report("ready")
	p.Await("go")
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for !over.Load() {
				n := 1 + rand.Intn(3)
				lease, err := s.Acquire(bg, n)
				if err != nil {
					t.Error(err)
					return
				}
				who := fmt.Sprintf("%d %s", os.Getpid(), lease.HoldID())
				got, err := enter.Run(bg, rdb, []string{inside, entered}, who, n).Int64Slice()
				if err != nil {
					t.Error(err)
					return
				}
				// A lease that was lost meanwhile, on a machine that stood still, has told so.
				if got[0] > int64(permits) && lease.Err() == nil {
					rdb.RPush(bg, violations, fmt.Sprintf("%d permits are out, when %s entered", got[0], who))
				}
				if got[1] >= int64(total) {
					over.Store(true)
				}
				if err := rdb.HDel(bg, inside, who).Err(); err != nil {
					t.Error(err)
				}
				if err := lease.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrLeaseLost) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	p.Report("done")
}

// Processes that take permits are killed one after the other. There are never more inside
// than there are permits, and none is missing at the end.
func TestKilledProcessesLosePermitsToNobody(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	killedProcesses(t, "plain")
}

// Here waiters die in the queue too.
func TestKilledProcessesLoseFairPermitsToNobody(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	killedProcesses(t, "fair")
}

func killedProcesses(t *testing.T, kind string) {
	const permits = 10
	total := *acquisitions
	if testing.Short() {
		total = min(total, 400)
	}
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	s := open(b.NewClient(t), kind)
	if _, err := s.TrySetPermits(bg, permits); err != nil {
		t.Fatal(err)
	}
	start := func() *locktest.Child {
		c := locktest.StartChild(t, "sections", b.Addr, kind, strconv.Itoa(permits), strconv.Itoa(total))
		c.Report("ready")
		c.Order("go")
		return c
	}
	count := func() int { n, _ := rdb.Get(bg, entered).Int(); return n }
	var children []*locktest.Child
	for range 4 {
		children = append(children, start())
	}
	kills, killed := 2, 0
	if total > 10_000 {
		kills = 8
	}
	for killed < kills {
		at := total * (killed + 1) / (kills + 2)
		locktest.Eventually(t, "they take permits", func() bool { return count() >= at })
		victim := children[0]
		victim.Kill()
		killed++
		// Its permits come back no sooner than most of a lease from now.
		for who := range rdb.HGetAll(bg, inside).Val() {
			if strings.HasPrefix(who, fmt.Sprintf("%d ", victim.Pid())) {
				rdb.HDel(bg, inside, who)
			}
		}
		children = append(children[1:], start())
	}
	for _, c := range children {
		c.Report("done")
		c.Finish()
	}
	if list := rdb.LRange(bg, violations, 0, -1).Val(); len(list) > 0 {
		t.Errorf("%d violations: %.10q", len(list), list)
	}
	locktest.Eventually(t, "all permits are back", func() bool { n, _ := s.Available(bg); return n == permits })
	state, err := s.State(bg)
	if err != nil || state.Available != permits || len(state.Holders) > 0 {
		t.Errorf("%+v %v", state, err)
	}
	t.Logf("%d acquisitions, %d processes were killed", count(), killed)
}

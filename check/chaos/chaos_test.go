//go:build linux

package chaos

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/check"
	"github.com/go-rlock/rlock/internal/locktest"
)

var (
	long      = flag.Bool("long", false, "a minute for each topology, with a new seed")
	total     = flag.Duration("for", 0, "how long all topologies take, with a new seed")
	givenSeed = flag.Uint64("seed", 0, "plays these faults again, as far as two runs of several processes are alike; 0 plays the same every day")
)

// together is how many topologies are under fire at a time: they wait most of the time.
const together = 3

func TestMain(m *testing.M) { locktest.MainAtMost(m, together) }

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"works": childWorks})
}

// roundTime is how long the faults of a round take: as many follow as there is time for, each with new servers.
const roundTime = 20 * time.Second

// plan says how long a topology is under fire, and with which seed.
func plan(t *testing.T) (d time.Duration, seed uint64) {
	d, seed = 6*time.Second, *givenSeed
	switch {
	case *total > 0:
		d = *total * together / time.Duration(len(topologies))
	case *long:
		d = time.Minute
	}
	switch {
	case seed == 0 && (*total > 0 || *long || locktest.IsNightly()):
		seed = uint64(time.Now().UnixNano())
	case seed == 0:
		seed = 1
	}
	t.Logf("again: go test -run '^%s$' ./chaos -args -long=%t -for=%v -seed=%d", t.Name(), *long, *total, seed)
	if deadline, ends := t.Deadline(); ends && time.Until(deadline) < needs(d) {
		t.Fatalf("%v for each topology needs go test -timeout=%v", d, (2 * needs(d)).Round(time.Minute))
	}
	return d, seed
}

// needs is how long the tests take at the least if each topology is under fire for that long: its servers start, and there
// are a calm and turns; and there are other tests.
func needs(d time.Duration) time.Duration {
	return waves(len(topologies))*(d+locktest.Ample(20*time.Second)) + locktest.Ample(2*time.Minute)
}

// waves is how often as many topologies as may be under fire together begin, until all have begun.
func waves(topologies int) time.Duration {
	return time.Duration((topologies + together - 1) / together)
}

// hasTime reports whether go test leaves enough time for another round like the longest so far, of all topologies that have
// not ended, and for the other tests.
func hasTime(t *testing.T, longest time.Duration, topologies int) bool {
	deadline, ends := t.Deadline()
	return !ends || time.Until(deadline) > (1+waves(topologies))*longest+locktest.Ample(2*time.Minute)
}

// Each topology keeps its promises under fire, and each waiter gets its turn when that is over.
func TestPromisesHoldUnderFire(t *testing.T) {
	d, seed := plan(t)
	t.Log(header)
	var left atomic.Int64
	left.Store(int64(len(topologies)))
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			t.Parallel()
			defer left.Add(-1)
			v, faults := underFire(t, top, seed, d, &left)
			t.Log(v.row(top.name))
			for _, broken := range v.broken(top.promises) {
				t.Error(broken)
			}
			if lacks := v.lacking(faults); lacks != nil {
				t.Errorf("too little: %q", lacks)
			}
			if t.Failed() {
				t.Log(strings.Join(v.wrong[:min(len(v.wrong), 50)], "\n"))
			}
		})
	}
}

// underFire plays rounds until that long has passed. A busy machine may need more of them to meet all faults: it gets them if
// there is time, also for the topologies that are left.
func underFire(t *testing.T, top *topology, seed uint64, d time.Duration, left *atomic.Int64) (sum verdict, faults []string) {
	const most = 4
	longest := time.Duration(0)
	for began, round := time.Now(), uint64(1); ; round++ {
		roundBegan := time.Now()
		// A test of its own, so that its servers end with it.
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			a := newArena(t, top, seed+round, "")
			a.play(seed+round, min(d, roundTime))
			sum.plus(a.finish())
			faults = slices.Concat(a.clientFaults(), top.faults)
		})
		longest = max(longest, time.Since(roundBegan))
		if t.Failed() || sum.broken(top.promises) != nil {
			return sum, faults
		}
		if time.Since(began) < d {
			continue
		}
		lacks := sum.lacking(faults)
		if lacks == nil || round >= most || !hasTime(t, longest, int(left.Load())) {
			return sum, faults
		}
		t.Logf("another round, for too little: %q", lacks)
	}
}

// finish lets all processes work on without a fault, have each lock once more, and end, and judges what they have logged.
func (a *arena) finish() verdict {
	calm := check.Now()
	// Faults are so dense that there is one near each loss. Losses of this time have none, but those of its beginning.
	a.idle(4*a.top.lease + a.top.more)
	for _, one := range a.teams {
		one.Order("stop")
	}
	for _, one := range a.teams {
		one.Report("done")
		one.Finish()
	}
	h, err := check.ReadHistory(a.dir)
	if err != nil {
		a.t.Fatal(err)
	}
	v := judge(h, a.top, calm)
	a.countUpdates(&v)
	a.countKeys(&v)
	return v
}

// idle lets no fault happen for a while. It logs a server that is late: the machine had no time for it.
func (a *arena) idle(d time.Duration) {
	var wg sync.WaitGroup
	for _, node := range a.d.nodes {
		wg.Go(func() {
			rdb := redis.NewClient(&redis.Options{Addr: node.Addr()})
			defer rdb.Close()
			for began := time.Now(); time.Since(began) < d; time.Sleep(a.top.lease / 20) {
				sent := check.Now()
				if err := rdb.Ping(bg).Err(); err != nil {
					a.t.Errorf("%s without a fault: %v", node.Addr(), err)
				}
				if check.Now()-sent > int64(a.top.lease/4) {
					a.log.Call(check.Operation{Do: check.Fault, Key: everybody, Value: "late", Call: sent})(check.Operation{Out: check.OK})
				}
			}
		})
	}
	wg.Wait()
}

func (a *arena) countUpdates(v *verdict) {
	for _, key := range a.top.keys() {
		for _, register := range []struct {
			name         string
			writes, lost *int
		}{{" plain", &v.updates, &v.lost}, {" fenced", &v.fenced, &v.lostFenced}} {
			writes, lost, err := a.store.Updates(bg, key+register.name)
			if err != nil {
				a.t.Fatal(err)
			}
			*register.writes += writes
			*register.lost += lost
		}
	}
}

// countKeys counts denials, and the keys that docs/keys.md does not name, when each lease is over that a killed process, or a copy of a
// request, has left.
func (a *arena) countKeys(v *verdict) {
	ahead := time.Duration(0)
	if a.d.clocks != nil {
		ahead = longestJump // what was written while the clock was ahead lasts for longer
	}
	for _, node := range a.d.nodes {
		rdb := redis.NewClient(&redis.Options{Addr: node.Addr()})
		defer rdb.Close()
		a.readDenials(node)
		if strings.Contains(rdb.Info(bg, "replication").Val(), "role:slave") {
			continue // it has what its master has
		}
		var left []string
		for began := time.Now(); time.Since(began) < 2*a.top.lease; time.Sleep(a.top.lease / 20) {
			if left = unexpected(a.t, rdb, ahead); len(left) == 0 {
				break
			}
		}
		v.left += len(left)
		if len(left) > 0 {
			v.wrong = append(v.wrong, fmt.Sprintf("left at %s: %q", node.Addr(), left))
		}
	}
	v.denied += len(a.denied)
	v.wrong = append(v.wrong, a.denied...)
}

// lasting are the keys that outlive all holds, and how long they do; 0 is forever.
var lasting = []struct {
	is  func(key string) bool
	ttl time.Duration
}{
	{locktest.IsClock, 0},
	{func(key string) bool { return strings.HasPrefix(strings.TrimPrefix(key, "app:"), "rlock:red:") }, 0},
	{func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") }, 0},
	{func(key string) bool { return strings.HasSuffix(key, "rlock:served") }, 0},
	{locktest.IsClient, 10 * time.Minute},
	{func(key string) bool { return strings.Contains(key, ":rlock:gone:") }, time.Minute},
	{func(key string) bool { return strings.HasSuffix(key, ":rlock:red:counter") }, time.Hour},
	{func(key string) bool { return strings.HasSuffix(key, ":rlock:red") }, 31 * 24 * time.Hour}, // a vote that is over
}

// unexpected are the keys that are none of these, or that last for longer, even if the clock was ahead when they were
// written.
func unexpected(t *testing.T, rdb *redis.Client, ahead time.Duration) (left []string) {
	keys, err := rdb.Keys(bg, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		ttl := rdb.PTTL(bg, key).Val()
		expected := false
		for _, kind := range lasting {
			expected = expected || kind.is(key) && (kind.ttl == 0 || 0 < ttl && ttl <= kind.ttl+ahead)
		}
		if !expected && ttl != -2 { // it has just gone
			left = append(left, fmt.Sprintf("%s (%v)", key, ttl))
		}
	}
	return left
}

//go:build linux

package soak

import (
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// sample is what there is at a quiet point.
type sample struct {
	goroutines map[string]int // by the function that started them
	heap       uint64         // bytes that live, after collections
	objects    uint64
	keys       map[string]int // that last, by kind
	pages      int            // the highest number of a page, of all clients: see protocol.Page
	strange    []string       // keys that docs/keys.md does not name, or that last for longer than it says
	channels   []string       // that somebody is subscribed to
	subscribed int            // connections that are
	connected  int            // connections of all servers
	stats      rlock.Stats    // of all clients: holds, waiters and clean-ups
	took       time.Duration  // until it was quiet
}

const header = "| quiet point | goroutines | heap | objects | keys | pages | strange | channels | connections | subscribed | holds | waiters | clean-ups | quiet after | keys by kind |"

func (s sample) String() string {
	kinds := strings.Trim(fmt.Sprint(s.keys), "map[]")
	return fmt.Sprintf("%d | %d kB | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %v | %s |",
		sum(s.goroutines), s.heap>>10, s.objects, sum(s.keys), s.pages, len(s.strange), len(s.channels), s.connected, s.subscribed,
		s.stats.Holds, s.stats.Waiters, s.stats.CleanUps, s.took.Round(time.Millisecond), kinds)
}

func sum(counts map[string]int) (n int) {
	for _, one := range counts {
		n += one
	}
	return n
}

// settled is for how long nothing has to change: a client keeps idle goroutines for a second, and subscriptions without
// listeners for three.
const settled = 1500 * time.Millisecond

// patience is how long it takes at the most until all is quiet: a lease that was left behind, the place of a dead waiter, and
// a release that is repeated, four times over for a busy machine; and the seconds of settled.
const patience = 8*lease + 10*time.Second

// sample waits until all is quiet and goroutines have stopped to end, for that long at the most, and measures. What a leak has
// left is there after any time.
func (h *house) sample(patience time.Duration) (s sample) {
	began := time.Now()
	s = h.measure()
	for same := began; time.Since(began) < patience && (!s.isQuiet() || time.Since(same) < settled); {
		time.Sleep(50 * time.Millisecond)
		next := h.measure()
		if !next.isQuiet() || !maps.Equal(s.goroutines, next.goroutines) {
			same = time.Now()
		}
		s = next
	}
	s.took = time.Since(began)
	for _, m := range h.members {
		for _, l := range m.links {
			l.ResetLog()
		}
	}
	m := locktest.Heap()
	s.heap, s.objects = m.HeapAlloc, m.HeapObjects
	return s
}

// isQuiet reports whether nothing is held or waited for.
func (s sample) isQuiet() bool {
	return s.stats == rlock.Stats{} && len(s.strange) == 0 && len(s.channels) == 0
}

// measure counts everything but the heap.
func (h *house) measure() (s sample) {
	s.goroutines = goroutines()
	for _, m := range h.members {
		for _, c := range m.clients {
			one := c.Stats()
			s.stats.Holds, s.stats.Waiters, s.stats.CleanUps = s.stats.Holds+one.Holds, s.stats.Waiters+one.Waiters, s.stats.CleanUps+one.CleanUps
		}
	}
	s.keys = map[string]int{}
	for _, rdb := range h.direct {
		h.countKeys(&s, rdb)
		channels, err := rdb.PubSubChannels(bg, "*").Result()
		if err != nil {
			h.t.Fatal(err)
		}
		clients, err := rdb.ClientList(bg).Result()
		if err != nil {
			h.t.Fatal(err)
		}
		s.channels = append(s.channels, channels...)
		s.connected += strings.Count(clients, "\n")
		s.subscribed += len(regexp.MustCompile(`(?m) flags=[^ ]*P`).FindAllString(clients, -1))
	}
	return s
}

// goroutines counts them by the function that started them: without those of proxies, of which each connection of a pool has
// some.
func goroutines() map[string]int {
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	for ; n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	buf = buf[:n]
	by := map[string]int{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "rlock/internal/faultproxy.") {
			continue
		}
		by[starter(stack)]++
	}
	return by
}

var createdBy = regexp.MustCompile(`created by (\S+)`)

// starter is the function that started the goroutine of a stack.
func starter(stack string) string {
	if m := createdBy.FindStringSubmatch(stack); m != nil {
		return strings.Clone(m[1]) // or the sample would keep all stacks
	}
	return "the runtime"
}

// lasting is a kind of keys that outlive all holds.
type lasting struct {
	name string
	is   *regexp.Regexp
	ttl  time.Duration // the longest; 0 is forever
	most int           // in all servers; 0 if each hold may leave one, so that only its time bounds them
}

func kind(name, pattern string, ttl time.Duration, most int) lasting {
	return lasting{name, regexp.MustCompile(pattern), ttl, most}
}

// outcomeKey is the key of the latest operation of a page.
var outcomeKey = regexp.MustCompile(`:rlock:op:[^:]+:(\d+)$`)

// kinds are the kinds of keys that outlive all holds according to docs/keys.md, and how many keys of a kind all servers may have.
var kinds = []lasting{
	kind("fencing clock", `^rlock:clock$`, 0, nodes),
	kind("highest token of a RedLock", `^rlock:red:highest$`, 0, nodes),
	kind("client", `^rlock:client:`, 10*time.Minute, nodes*members),
	kind("counter of a FencedLock", `^redisson_lock_token:\{FencedLock-\d+\}$`, 0, names),
	kind("permits", `^(Permit)?Semaphore-\d+$`, 0, 2*names),
	kind("fair permits", `^\{FairPermits-\d+\}:rlock:permits$`, 0, names),
	kind("count of a latch", `^CountDownLatch-\d+$`, 0, names),   // that a fault has kept from opening
	kind("barrier", `^\{Barrier-\d+\}:rlock:barrier$`, 0, names), // that a fault has kept from being lifted
	kind("type", `^\{((Permit)?Semaphore|CountDownLatch)-\d+\}:rlock:all$`, 0, 3*names),
	kind("setter of permits", `^\{(PermitSemaphore|FairPermits)-\d+\}:rlock:op:set$`, 10*time.Minute, 2*names),
	kind("runs", `^\{CronJob-\d+\}:rlock:cron(:ticks)?$`, 2*rlock.MinRetention, 2*names),
	kind("counter of a RedLock", `^\{RedLock-\d+\}:rlock:red:counter$`, time.Hour, nodes*names),
	kind("vote", `^\{RedLock-\d+\}:rlock:red$`, 31*24*time.Hour, nodes*names),
	kind("outcome", outcomeKey.String(), 10*time.Minute, 0), // one for each page and name: the pages are bounded
	kind("tombstone", `:rlock:gone:`, time.Minute+lease, 0),
	kind("request of a release", `:rlock:asked:`, 10*time.Minute, 0),
	kind("failure of a Once", `^\{Once-\d+\}:rlock:once:result$`, time.Minute, names),
}

// countKeys counts the keys of a server.
func (h *house) countKeys(s *sample, rdb *redis.Client) {
	keys, err := rdb.Keys(bg, "*").Result()
	if err != nil {
		h.t.Fatal(err)
	}
	ttls, err := rdb.Pipelined(bg, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.PTTL(bg, key)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	for i, key := range keys {
		ttl := ttls[i].(*redis.DurationCmd).Val()
		if ttl == -2 {
			continue // it has just gone
		}
		at := slices.IndexFunc(kinds, func(k lasting) bool {
			return k.is.MatchString(key) && (k.ttl == 0 || 0 < ttl && ttl <= k.ttl)
		})
		if at < 0 {
			s.strange = append(s.strange, fmt.Sprintf("%s (%v)", key, ttl))
			continue
		}
		s.keys[kinds[at].name]++
		if page := outcomeKey.FindStringSubmatch(key); page != nil {
			n, err := strconv.Atoi(page[1])
			if err != nil {
				h.t.Fatal(err)
			}
			s.pages = max(s.pages, n)
		}
	}
}

// grown are the functions with more goroutines than before.
func grown(before, after map[string]int) (all []string) {
	for _, by := range slices.Sorted(maps.Keys(after)) {
		if after[by] > before[by] {
			all = append(all, fmt.Sprintf("%s: %d, before %d", by, after[by], before[by]))
		}
	}
	return all
}

package processes

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// fill puts n waiters that live into the line, behind all others.
func fill(t testing.TB, k locktest.OrderedType, rdb redis.UniversalClient, name string, n int) {
	t.Helper()
	keys := locktest.FairKeysOf(name)
	base := "{" + name + "}:rlock:" + k.Signs
	if k.Name != "fair" {
		keys.Alive, keys.Queue = base, regexp.MustCompile("alive$").ReplaceAllString(base, "queue")
		if k.Name == "read" {
			keys.Queue += ":shared"
		}
	}
	err := rdb.Eval(bg, `
		local time = redis.call('time')
		local now = time[1] * 1000
		for i = 1, tonumber(ARGV[1]) do
			local id = '6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:' .. i
			redis.call('zadd', KEYS[3], now + 3600000, id)
			if ARGV[2] == 'fair' then
				redis.call('rpush', KEYS[1], id)
				redis.call('zadd', KEYS[2], now + 3600000, id)
			else
				redis.call('zadd', KEYS[1], time[1] * 1000000 + time[2] + i, id)
			end
		end`, []string{keys.Queue, keys.Deadlines, keys.Alive}, n, k.Name).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
}

// What Redis does for one operation does not depend on how many wait. Java waiters
// in the line of a fair lock do not change that. It is not beside the others, which take all of
// the machine: who is woken late looks once more.
func TestOperationsCostTheSameHoweverManyWait(t *testing.T) {
	for _, k := range locktest.OrderedTypes() {
		javas := []int{0}
		if k.Name == "fair" {
			javas = []int{0, 1, 50}
		}
		for _, java := range javas {
			t.Run(fmt.Sprint(k.Name, " ", java), func(t *testing.T) {
				t.Parallel()
				b := locktest.OnServer(t)
				rdb := b.Client(t)
				rdb.ConfigSet(bg, "slowlog-log-slower-than", "0")
				rdb.ConfigSet(bg, "slowlog-max-len", "1000")
				var costs []map[string]map[string]int
				for _, n := range []int{10, 1000, 10_000} {
					cost := map[string]map[string]int{}
					// Anonymous: its introduction would be counted too.
					m := locktest.Join(t, b.Client(t), rlock.WithAnonymity(), rlock.WithWaiterLease(locktest.Patient), rlock.WithLongestPoll(locktest.Patient))
					name := fmt.Sprint("line", n)
					l := k.Open(m.Client, name)
					first := "{" + name + "}:rlock:" + regexp.MustCompile(":alive$").ReplaceAllString(k.Signs, "")
					if k.Name == "fair" {
						first = name
					}
					measure := func(what string, do func()) {
						t.Helper()
						before := locktest.ScriptCommands(t, rdb)
						rdb.Do(bg, "slowlog", "reset")
						do()
						var slowest time.Duration
						for _, e := range rdb.SlowLogGet(bg, -1).Val() {
							if len(e.Args) > 0 && e.Args[0] == "evalsha" {
								slowest = max(slowest, e.Duration)
							}
						}
						calls := map[string]int{}
						for command, n := range locktest.ScriptCommands(t, rdb) {
							// Whether a TTL has to be set again depends on the time.
							if n > before[command] && command != "pexpire" {
								calls[command] = n - before[command]
							}
						}
						cost[what] = calls
						total := 0
						for _, n := range calls {
							total += n
						}
						t.Logf("%6d waiters: %-20s %3d commands, slowest script %v", n, what, total, slowest)
					}
					parked := func(looks int, opts ...rlock.AcquireOption) *locktest.Attempt {
						from := m.Looks.At(first)
						e := locktest.Begin(t, bg, l, opts...)
						m.Parked(t, first, from+looks)
						return e
					}
					holder := locktest.MustLock(t, k.Rival(m.Client, name), rlock.WithLease(time.Hour))
					head := parked(2)
					for i := range java {
						j := &locktest.JavaFairLock{RDB: rdb, Keys: locktest.FairKeysOf(name), Owner: redistest.HoldID(fmt.Sprint("java:", i)), Wait: 300_000}
						j.Try(time.Hour)
					}
					fill(t, k, rdb, name, n)
					var newcomer *locktest.Attempt
					looks := 1
					if k.Name == "fair" { // its channel is its own, and it looks again when that is subscribed
						looks = 2
					}
					measure("a newcomer", func() { newcomer = parked(looks) })
					measure("a visitor", func() { _, _ = l.TryLock(bg) })
					measure("one gives up", func() { newcomer.Cancel(); <-newcomer.Done })
					if k.Name != "read" { // whose successors come in beside it
						measure("a hand-over", func() {
							locktest.MustUnlock(t, holder)
							head.Held()
						})
					} else {
						locktest.MustUnlock(t, holder)
						head.Held()
					}
					costs = append(costs, cost)
				}
				for _, cost := range costs[1:] {
					for what, calls := range cost {
						if !maps.Equal(calls, costs[0][what]) {
							t.Errorf("%s: %v with ten waiters, then %v", what, costs[0][what], calls)
						}
					}
				}
			})
		}
	}
}

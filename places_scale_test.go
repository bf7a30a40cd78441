package rlock_test

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// fill puts n waiters that live into the line, behind all others.
func (k placeKind) fill(t testing.TB, rdb redis.UniversalClient, name string, n int) {
	t.Helper()
	keys := fairKeysOf(name)
	base := "{" + name + "}:rlock:" + k.signs
	if k.name != "fair" {
		keys.alive, keys.queue = base, regexp.MustCompile("alive$").ReplaceAllString(base, "queue")
		if k.name == "read" {
			keys.queue += ":shared"
		}
	}
	err := rdb.Eval(bg, `
		local time = redis.call('time')
		local now = time[1] * 1000
		for i = 1, tonumber(ARGV[1]) do
			local stay = '6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:' .. i
			redis.call('zadd', KEYS[3], now + 3600000, stay)
			if ARGV[2] == 'fair' then
				redis.call('rpush', KEYS[1], stay)
				redis.call('zadd', KEYS[2], now + 3600000, stay)
			else
				redis.call('zadd', KEYS[1], time[1] * 1000000 + time[2] + i, stay)
			end
		end`, []string{keys.queue, keys.deadlines, keys.alive}, n, k.name).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
}

// scriptCommands is how often each command was called that tests do not send
// themselves.
func scriptCommands(t testing.TB, rdb redis.UniversalClient) map[string]int {
	t.Helper()
	calls := map[string]int{}
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(rdb.Info(bg, "commandstats").Val(), -1) {
		calls[m[1]], _ = strconv.Atoi(m[2])
	}
	for _, own := range []string{"info", "eval", "evalsha", "hello", "client|setinfo", "client|maint_notifications", "subscribe", "unsubscribe", "ping", "slowlog|get", "slowlog|reset", "config|set", "pubsub|numsub"} {
		delete(calls, own)
	}
	return calls
}

// What Redis does for one operation does not depend on how many wait. Java waiters
// in the line of a fair lock do not change that.
func TestOperationsCostTheSameHoweverManyWait(t *testing.T) {
	t.Parallel()
	for _, k := range placeKinds() {
		javas := []int{0}
		if k.name == "fair" {
			javas = []int{0, 1, 50}
		}
		for _, java := range javas {
			t.Run(fmt.Sprint(k.name, " ", java), func(t *testing.T) {
				t.Parallel()
				b := onServer(t)
				rdb := b.client(t)
				rdb.ConfigSet(bg, "slowlog-log-slower-than", "0")
				rdb.ConfigSet(bg, "slowlog-max-len", "1000")
				var costs []map[string]map[string]int
				for _, n := range []int{10, 1000, 10_000} {
					cost := map[string]map[string]int{}
					m := join(t, b.client(t), rlock.WithWaiterLease(patient), rlock.WithLongestPoll(patient))
					name := fmt.Sprint("line", n)
					l := k.open(m.Client, name)
					first := "{" + name + "}:rlock:" + regexp.MustCompile(":alive$").ReplaceAllString(k.signs, "")
					if k.name == "fair" {
						first = name
					}
					measure := func(what string, do func()) {
						t.Helper()
						before := scriptCommands(t, rdb)
						rdb.Do(bg, "slowlog", "reset")
						do()
						var slowest time.Duration
						for _, e := range rdb.SlowLogGet(bg, -1).Val() {
							if len(e.Args) > 0 && e.Args[0] == "evalsha" {
								slowest = max(slowest, e.Duration)
							}
						}
						calls := map[string]int{}
						for command, n := range scriptCommands(t, rdb) {
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
					parked := func(looks int, opts ...rlock.AcquireOption) *queuedEntry {
						from := m.looks.at(first)
						e := queuedLock(t, bg, l, opts...)
						m.parked(t, first, from+looks)
						return e
					}
					holder := mustLock(t, k.rival(m.Client, name), rlock.WithLease(time.Hour))
					head := parked(2)
					for i := range java {
						j := &fairJava{rdb, fairKeysOf(name), fmt.Sprint("java:", i), 300_000}
						j.try(time.Hour)
					}
					k.fill(t, rdb, name, n)
					var newcomer *queuedEntry
					measure("a newcomer", func() { newcomer = parked(2) })
					measure("a visitor", func() { _, _ = l.TryLock(bg) })
					measure("one gives up", func() { newcomer.cancel(); <-newcomer.done })
					if k.name != "read" { // whose successors come in beside it
						measure("a hand-over", func() {
							mustUnlock(t, holder)
							head.held()
						})
					} else {
						mustUnlock(t, holder)
						head.held()
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

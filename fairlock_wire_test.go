package rlock_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// fairJava is a waiter or holder of Redisson, by the rules of its wire. It is
// made of single commands: only for tests in which nobody else is at work.
type fairJava struct {
	rdb   redis.UniversalClient
	k     fairKeys
	owner string
	wait  float64 // ms
}

func (j *fairJava) score(owner string) (float64, bool) {
	s, err := j.rdb.ZScore(bg, j.k.deadlines, owner).Result()
	return s, err == nil
}

func (j *fairJava) head() string { return j.rdb.LIndex(bg, j.k.queue, 0).Val() }

func (j *fairJava) purge() {
	for {
		h := j.head()
		if s, ok := j.score(h); h == "" || !ok || s > fairNow(j.rdb) {
			return
		}
		j.rdb.ZRem(bg, j.k.deadlines, h)
		j.rdb.LPop(bg, j.k.queue)
	}
}

// try is an acquire that queues; it reports whether the lock was taken.
func (j *fairJava) try(lease time.Duration) bool {
	j.purge()
	free, h := j.rdb.Exists(bg, j.k.lock).Val() == 0, j.head()
	if free && (h == "" || h == j.owner) {
		j.rdb.LPop(bg, j.k.queue)
		j.rdb.ZRem(bg, j.k.deadlines, j.owner)
		for _, other := range j.rdb.ZRange(bg, j.k.deadlines, 0, -1).Val() {
			j.rdb.ZIncrBy(bg, j.k.deadlines, -j.wait, other)
		}
		j.rdb.HSet(bg, j.k.lock, j.owner, 1)
		j.rdb.PExpire(bg, j.k.lock, lease)
		return true
	}
	if _, ok := j.score(j.owner); ok {
		return false
	}
	now := fairNow(j.rdb)
	base := float64(j.rdb.PTTL(bg, j.k.lock).Val().Milliseconds())
	if s, ok := j.score(j.rdb.LIndex(bg, j.k.queue, -1).Val()); ok {
		base = s - now
	}
	j.rdb.ZAdd(bg, j.k.deadlines, redis.Z{Score: base + j.wait + now, Member: j.owner})
	j.rdb.RPush(bg, j.k.queue, j.owner)
	return false
}

func (j *fairJava) unlock() {
	j.purge()
	j.rdb.Del(bg, j.k.lock)
	if h := j.head(); h != "" {
		j.rdb.Publish(bg, j.k.channel+h, "0")
	}
}

// giveUp tells nobody.
func (j *fairJava) giveUp() {
	queue := j.rdb.LRange(bg, j.k.queue, 0, -1).Val()
	for _, other := range queue[slices.Index(queue, j.owner)+1:] {
		j.rdb.ZIncrBy(bg, j.k.deadlines, -j.wait, other)
	}
	j.rdb.ZRem(bg, j.k.deadlines, j.owner)
	j.rdb.LRem(bg, j.k.queue, 1, j.owner)
}

// fairEar hears what is published about a lock.
type fairEar struct {
	mu    sync.Mutex // guards the rest
	heard []string
}

func fairListen(t testing.TB, rdb redis.UniversalClient) *fairEar {
	t.Helper()
	sub := rdb.PSubscribe(bg, "redisson_lock__channel*")
	if _, err := sub.Receive(bg); err != nil {
		t.Fatal(err)
	}
	e := &fairEar{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for m := range sub.Channel() {
			e.mu.Lock()
			e.heard = append(e.heard, m.Channel+" "+m.Payload)
			e.mu.Unlock()
		}
	})
	t.Cleanup(func() { _ = sub.Close(); wg.Wait() })
	return e
}

func (e *fairEar) take(t testing.TB, rdb redis.UniversalClient) []string {
	t.Helper()
	// A message of the test's own comes after all that were published before.
	mark := fmt.Sprint("redisson_lock__channel:mark:", time.Now().UnixNano())
	rdb.Publish(bg, mark, "0")
	var heard []string
	eventually(t, "the messages have come", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		i := slices.Index(e.heard, mark+" 0")
		if i >= 0 {
			heard, e.heard = e.heard[:i], e.heard[i+1:]
		}
		return i >= 0
	})
	return heard
}

// One line of waiters of both kinds, and after each operation what stands in
// Redis. Times are in minutes from the beginning. A waiter of ours adds its waiter
// lease to the deadlines, unless another of ours has.
func TestFairLineOnTheWire(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"order:7", "{t}x"} {
		eachRedis(t, func(t *testing.T, b *backend) {
			const (
				lease = 30 * time.Minute
				term  = 10 * time.Minute
				slack = 20 * time.Second // of a busy machine; all differences are minutes
			)
			rdb := b.client(t)
			ear := fairListen(t, rdb)
			m := join(t, b.client(t), rlock.WithWaiterLease(term), rlock.WithLongestPoll(patient))
			l := m.NewFairLock(name)
			k := fairKeysOf(name)
			begin := fairNow(rdb)
			ids := map[string]string{} // what the test calls them -> id
			turns := map[string]*fairTurn{}
			leases := map[string]*rlock.Lease{}
			javas := map[string]*fairJava{}
			line := func(who string) func() {
				return func() {
					turns[who] = fairParked(t, rdb, m, name, rlock.WithLease(lease))
					ids[who] = turns[who].stay
				}
			}
			java := func(who string, wait time.Duration) func() {
				return func() {
					ids[who] = "6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:" + who
					javas[who] = &fairJava{rdb, k, ids[who], float64(wait.Milliseconds())}
					if javas[who].try(lease) {
						t.Fatalf("%s has the lock", who)
					}
				}
			}
			takes := func(who string) {
				t.Helper()
				leases[who] = turns[who].wait(t)
				ids[who] = leases[who].Owner()
			}
			for _, step := range []struct {
				what  string
				do    func()
				hold  string
				queue string
				ends  []float64 // deadlines, as the queue
				heard string    // whose channels, in order
			}{
				{"first", func() { leases["h"] = mustLock(t, l, rlock.WithLease(lease)); ids["h"] = leases["h"].Owner() }, "h", "", nil, ""},
				{"ours, first in line", line("g1"), "h", "g1", []float64{40}, ""},
				{"Java's", java("j1", 5*time.Minute), "h", "g1 j1", []float64{40, 45}, ""},
				{"ours behind Java's", line("g2"), "h", "g1 j1 g2", []float64{40, 45, 55}, ""},
				{"Java's", java("j2", 20*time.Minute), "h", "g1 j1 g2 j2", []float64{40, 45, 55, 75}, ""},
				{"ours", line("g3"), "h", "g1 j1 g2 j2 g3", []float64{40, 45, 55, 75, 85}, ""},
				{"ours", line("g4"), "h", "g1 j1 g2 j2 g3 g4", []float64{40, 45, 55, 75, 85, 85}, ""},
				{"ours gives up", func() { turns["g3"].cancel(); turns["g3"].left(t) }, "h", "g1 j1 g2 j2 g4", []float64{40, 45, 55, 75, 85}, ""},
				{"partial release", func() { mustUnlock(t, mustLockCtx(t, leases["h"].Context(bg), l)) }, "h", "g1 j1 g2 j2 g4", []float64{40, 45, 55, 75, 85}, ""},
				{"hand-over to ours", func() { mustUnlock(t, leases["h"]); takes("g1") }, "g1", "j1 g2 j2 g4", []float64{45, 55, 75, 85}, "g1"},
				{"released, Java is next", func() { mustUnlock(t, leases["g1"]) }, "", "j1 g2 j2 g4", []float64{45, 55, 75, 85}, "j1"},
				{"TryLock", func() { _, err := l.TryLock(bg); wantErr(t, err, rlock.ErrNotAcquired) }, "", "j1 g2 j2 g4", []float64{45, 55, 75, 85}, "j1"},
				{"Java takes it", func() { javas["j1"].try(lease) }, "j1", "g2 j2 g4", []float64{50, 70, 80}, ""},
				{"hand-over by Java", func() { javas["j1"].unlock(); takes("g2") }, "g2", "j2 g4", []float64{70, 80}, "g2"},
				{"force unlock", func() { _, _ = l.ForceUnlock(bg) }, "", "j2 g4", []float64{70, 80}, "j2"},
				{"Java gives up in silence", func() { javas["j2"].giveUp() }, "", "g4", []float64{60}, ""},
				{"a look wakes the head", func() { _, _ = l.TryLock(bg); takes("g4") }, "g4", "", nil, "g4"},
				{"Java's", java("j3", 5*time.Minute), "g4", "j3", []float64{35}, ""},
				{"release removes a dead one", func() {
					rdb.ZIncrBy(bg, k.deadlines, -float64((40 * time.Minute).Milliseconds()), ids["j3"])
					mustUnlock(t, leases["g4"])
				}, "", "", nil, ""},
			} {
				step.do()
				t.Run(step.what, func(t *testing.T) {
					v := fairLook(rdb, name)
					hold, queue := map[string]string{}, []string{}
					if step.hold != "" {
						hold[ids[step.hold]] = "1"
						if ttl := rdb.PTTL(bg, k.lock).Val(); ttl > lease || ttl < lease-slack {
							t.Errorf("TTL %v", ttl)
						}
					}
					if fmt.Sprint(v.hold) != fmt.Sprint(hold) {
						t.Errorf("held by %v, want %v", v.hold, hold)
					}
					alive, last := 0, 0.0
					for i, who := range strings.Fields(step.queue) {
						queue = append(queue, ids[who])
						end := (v.deadlines[ids[who]] - begin) / time.Minute.Seconds() / 1000
						if math.Abs(end-step.ends[i]) > slack.Minutes() {
							t.Errorf("the deadline of %s is at %.2f minutes, want %v", who, end, step.ends[i])
						}
						if who[0] == 'g' {
							alive, last = alive+1, step.ends[i]
							if left := v.alive[ids[who]] - fairNow(rdb); left > float64(term.Milliseconds()) || left < float64((term-slack).Milliseconds()) {
								t.Errorf("%s counts as alive for %v ms", who, left)
							}
						}
					}
					if !slices.Equal(v.queue, queue) || len(v.deadlines) != len(queue) || len(v.alive) != alive {
						t.Errorf("queue %q, want %q, in step with %v and %v", v.queue, queue, v.deadlines, v.alive)
					}
					if alive > 0 {
						ttl := rdb.PTTL(bg, k.alive).Val().Minutes()
						if gone := ttl + (fairNow(rdb)-begin)/60_000; gone < last-slack.Minutes() {
							t.Errorf("the signs of life are gone at %.2f minutes, the last deadline of ours is at %v", gone, last)
						}
					}
					for key, kind := range map[string]string{k.queue: "list", k.deadlines: "zset", k.alive: "zset", k.lock: "hash"} {
						if got := rdb.Type(bg, key).Val(); got != kind && got != "none" {
							t.Errorf("%s is a %s", key, got)
						}
						// Redisson's waiters know of no TTL: it is far beyond their deadlines.
						if ttl := rdb.TTL(bg, key).Val(); kind != "hash" && (ttl >= 0 && ttl < 12*time.Hour+90*time.Minute || ttl == -1 && alive > 0) {
							t.Errorf("%s has TTL %v", key, ttl)
						}
					}
					var want []string
					for _, who := range strings.Fields(step.heard) {
						want = append(want, k.channel+ids[who]+" 0")
					}
					if heard := ear.take(t, rdb); !slices.Equal(heard, want) {
						t.Errorf("published %q, want %q", heard, want)
					}
				})
			}
			wantErr(t, leases["g2"].Unlock(bg), rlock.ErrLeaseLost) // it was ended by force
			onlyTombstones(t, rdb)
		})
	}
}

// In a cluster messages are sharded: each waiter's channel lies in the lock's slot,
// and a hand-over needs no poll.
func TestFairHandOverByMessage(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		for _, name := range []string{"order:7", "{t}x"} {
			m := join(t, b.client(t), rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(patient))
			lease := mustLock(t, m.NewFairLock(name))
			w := []*fairTurn{fairParked(t, rdb, m, name), fairParked(t, rdb, m, name), fairParked(t, rdb, m, name)}
			w[1].cancel()
			w[1].left(t)
			start := time.Now()
			mustUnlock(t, lease)
			mustUnlock(t, w[0].wait(t))
			mustUnlock(t, w[2].wait(t))
			if took := time.Since(start); took > byMessage {
				t.Fatalf("two hand-overs took %v", took)
			}
		}
		onlyTombstones(t, rdb)
	})
}

// Redisson takes its waiting time from all who stand behind it, and at times more
// than it had added: its tryLock by an owner that was left at the head, for
// one. That brings no live waiter of ours to its end.
func TestFairWaiterSurvivesWrongAccounts(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		k := fairKeysOf("a")
		const term = 1500 * time.Millisecond
		c := newClientOn(t, rdb, rlock.WithWaiterLease(term))
		lease := mustLock(t, c.NewFairLock("a"))
		w, other := fairMustLine(t, rdb, c.NewFairLock("a")), fairMustLine(t, rdb, c.NewFairLock("a"))
		for range 3 {
			for _, stay := range []string{w.stay, other.stay} {
				rdb.ZIncrBy(bg, k.deadlines, -float64(time.Hour.Milliseconds()), stay)
			}
			// Ours do not remove it, whatever its deadline says.
			if _, err := c.NewFairLock("a").TryLock(bg); err == nil {
				t.Fatal("TryLock")
			}
			eventually(t, "its deadline is put right", func() bool {
				v := fairLook(rdb, "a")
				if !slices.Equal(v.queue, []string{w.stay, other.stay}) {
					t.Fatalf("%+v", v)
				}
				now := fairNow(rdb)
				return v.deadlines[w.stay] > now && v.deadlines[other.stay] > now
			})
		}
		mustUnlock(t, lease)
		mustUnlock(t, w.wait(t))
		mustUnlock(t, other.wait(t))
		mustBeEmpty(t, rdb)
	})
}

// Redisson's waiters may wait for ever, in numbers that no TTL can hold.
func TestFairLineBehindAnEndlessWait(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		k := fairKeysOf("a")
		m := join(t, b.client(t))
		lease := mustLock(t, m.NewFairLock("a"))
		j := &fairJava{rdb, k, "java:1", math.MaxInt64}
		j.try(time.Minute)
		w := fairParked(t, rdb, m, "a")
		mustUnlock(t, lease)
		if _, err := m.NewFairLock("a").Lock(bg, rlock.WithWait(100*time.Millisecond)); err == nil {
			t.Fatal("it is Java's turn")
		}
		eventually(t, "the impatient one has left", func() bool { return len(fairLook(rdb, "a").queue) == 2 })
		j.giveUp()
		_, _ = m.NewFairLock("a").TryLock(bg)
		mustUnlock(t, w.wait(t))
		onlyTombstones(t, rdb)
	})
}

// Somebody has removed the deadlines: a head without one must not stand for ever.
func TestFairHeadWithoutADeadlineIsRemoved(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		rdb.RPush(bg, fairKeysOf("a").queue, "java:1")
		c := newClientOn(t, rdb, rlock.WithWaiterLease(time.Second))
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		mustUnlock(t, mustLockCtx(t, ctx, c.NewFairLock("a")))
		mustBeEmpty(t, rdb)
	})
}

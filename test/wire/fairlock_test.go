package wire

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
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// ear hears what is published about a lock.
type ear struct {
	mu    sync.Mutex // guards the rest
	heard []string
}

func listen(t testing.TB, rdb redis.UniversalClient) *ear {
	t.Helper()
	sub := rdb.PSubscribe(bg, "redisson_lock__channel*")
	if _, err := sub.Receive(bg); err != nil {
		t.Fatal(err)
	}
	e := &ear{}
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

func (e *ear) take(t testing.TB, rdb redis.UniversalClient) []string {
	t.Helper()
	// A message of the test's own comes after all that were published before.
	mark := fmt.Sprint("redisson_lock__channel:mark:", time.Now().UnixNano())
	rdb.Publish(bg, mark, "0")
	var heard []string
	locktest.Eventually(t, "the messages have come", func() bool {
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
		locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
			const (
				lease = 30 * time.Minute
				term  = 10 * time.Minute
				slack = 20 * time.Second // of a busy machine; all differences are minutes
			)
			rdb := b.Client(t)
			ear := listen(t, rdb)
			m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(term), rlock.WithLongestPoll(locktest.Patient))
			l := m.NewFairLock(name)
			another := b.NewClient(t, rlock.WithWaiterLease(term)).NewFairLock(name)
			k := locktest.FairKeysOf(name)
			begin := locktest.ServerNow(rdb)
			ids := map[string]string{} // what the test calls them -> id
			turns := map[string]*locktest.FairWaiter{}
			leases := map[string]*rlock.Lease{}
			javas := map[string]*locktest.JavaFairLock{}
			line := func(who string) func() {
				return func() {
					turns[who] = locktest.Parked(t, rdb, m, name, rlock.WithLease(lease))
					ids[who] = turns[who].ID
				}
			}
			java := func(who string, wait time.Duration) func() {
				return func() {
					ids[who] = "6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:" + who
					javas[who] = &locktest.JavaFairLock{RDB: rdb, Keys: k, Owner: ids[who], Wait: float64(wait.Milliseconds())}
					if javas[who].Try(lease) {
						t.Fatalf("%s has the lock", who)
					}
				}
			}
			takes := func(who string) {
				t.Helper()
				leases[who] = turns[who].Wait(t)
				ids[who] = leases[who].HoldID()
			}
			for _, step := range []struct {
				what  string
				do    func()
				hold  string
				queue string
				ends  []float64 // deadlines, as the queue
				heard string    // whose channels, in order
			}{
				{"first", func() {
					leases["h"] = locktest.MustLock(t, another, rlock.WithLease(lease))
					ids["h"] = leases["h"].HoldID()
				}, "h", "", nil, ""},
				{"ours, first in line", line("g1"), "h", "g1", []float64{40}, ""},
				{"Java's", java("j1", 5*time.Minute), "h", "g1 j1", []float64{40, 45}, ""},
				{"ours behind Java's", line("g2"), "h", "g1 j1 g2", []float64{40, 45, 55}, ""},
				{"Java's", java("j2", 20*time.Minute), "h", "g1 j1 g2 j2", []float64{40, 45, 55, 75}, ""},
				{"ours", line("g3"), "h", "g1 j1 g2 j2 g3", []float64{40, 45, 55, 75, 85}, ""},
				{"ours", line("g4"), "h", "g1 j1 g2 j2 g3 g4", []float64{40, 45, 55, 75, 85, 85}, ""},
				{"ours gives up", func() {
					turns["g3"].Cancel()
					turns["g3"].Left(t)
					// Its leaving goes on in the background if the answer takes long.
					locktest.Eventually(t, "it is out of the line", func() bool { return !slices.Contains(locktest.FairState(rdb, "a").Queue, ids["g3"]) })
				}, "h", "g1 j1 g2 j2 g4", []float64{40, 45, 55, 75, 85}, ""},
				{"partial release", func() { locktest.MustUnlock(t, locktest.MustLockCtx(t, leases["h"].Context(bg), another)) }, "h", "g1 j1 g2 j2 g4", []float64{40, 45, 55, 75, 85}, ""},
				{"hand-over to ours", func() { locktest.MustUnlock(t, leases["h"]); takes("g1") }, "g1", "j1 g2 j2 g4", []float64{45, 55, 75, 85}, "g1"},
				{"released, Java is next", func() { locktest.MustUnlock(t, leases["g1"]) }, "", "j1 g2 j2 g4", []float64{45, 55, 75, 85}, "j1"},
				{"TryLock", func() { _, err := l.TryLock(bg); locktest.WantErr(t, err, rlock.ErrNotAcquired) }, "", "j1 g2 j2 g4", []float64{45, 55, 75, 85}, "j1"},
				{"Java takes it", func() { javas["j1"].Try(lease) }, "j1", "g2 j2 g4", []float64{50, 70, 80}, ""},
				{"hand-over by Java", func() { javas["j1"].Unlock(); takes("g2") }, "g2", "j2 g4", []float64{70, 80}, "g2"},
				{"force unlock", func() { _, _ = l.ForceUnlock(bg) }, "", "j2 g4", []float64{70, 80}, "j2"},
				{"Java gives up in silence", func() { javas["j2"].GiveUp() }, "", "g4", []float64{60}, ""},
				{"a look wakes the head", func() { _, _ = l.TryLock(bg); takes("g4") }, "g4", "", nil, "g4"},
				{"ours behind ours", line("g5"), "g4", "g5", []float64{40}, ""},
				{"Java's", java("j3", 5*time.Minute), "g4", "g5 j3", []float64{40, 45}, ""},
				{"hand-over inside a client", func() { locktest.MustUnlock(t, leases["g4"]); takes("g5") }, "g5", "j3", []float64{45}, "g5"},
				{"release removes a dead one", func() {
					rdb.ZIncrBy(bg, k.Deadlines, -float64((50 * time.Minute).Milliseconds()), ids["j3"])
					locktest.MustUnlock(t, leases["g5"])
				}, "", "", nil, ""},
			} {
				step.do()
				t.Run(step.what, func(t *testing.T) {
					v := locktest.FairState(rdb, name)
					hold, queue := map[string]string{}, []string{}
					if step.hold != "" {
						hold[ids[step.hold]] = "1"
						if ttl := rdb.PTTL(bg, k.Lock).Val(); ttl > lease || ttl < lease-slack {
							t.Errorf("TTL %v", ttl)
						}
					}
					if fmt.Sprint(v.Hold) != fmt.Sprint(hold) {
						t.Errorf("held by %v, want %v", v.Hold, hold)
					}
					alive, last := 0, 0.0
					for i, who := range strings.Fields(step.queue) {
						queue = append(queue, ids[who])
						end := (v.Deadlines[ids[who]] - begin) / time.Minute.Seconds() / 1000
						if math.Abs(end-step.ends[i]) > slack.Minutes() {
							t.Errorf("the deadline of %s is at %.2f minutes, want %v", who, end, step.ends[i])
						}
						if who[0] == 'g' {
							alive, last = alive+1, step.ends[i]
							if left := v.Alive[ids[who]] - locktest.ServerNow(rdb); left > float64(term.Milliseconds()) || left < float64((term-slack).Milliseconds()) {
								t.Errorf("%s counts as alive for %v ms", who, left)
							}
						}
					}
					if !slices.Equal(v.Queue, queue) || len(v.Deadlines) != len(queue) || len(v.Alive) != alive {
						t.Errorf("queue %q, want %q, in step with %v and %v", v.Queue, queue, v.Deadlines, v.Alive)
					}
					if alive > 0 {
						ttl := rdb.PTTL(bg, k.Alive).Val().Minutes()
						if gone := ttl + (locktest.ServerNow(rdb)-begin)/60_000; gone < last-slack.Minutes() {
							t.Errorf("the signs of life are gone at %.2f minutes, the last deadline of ours is at %v", gone, last)
						}
					}
					for key, kind := range map[string]string{k.Queue: "list", k.Deadlines: "zset", k.Alive: "zset", k.Lock: "hash"} {
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
						want = append(want, k.Channel+ids[who]+" 0")
					}
					if heard := ear.take(t, rdb); !slices.Equal(heard, want) {
						t.Errorf("published %q, want %q", heard, want)
					}
				})
			}
			locktest.WantErr(t, leases["g2"].Unlock(bg), rlock.ErrLeaseLost) // it was ended by force
			locktest.OnlyTombstones(t, rdb)
		})
	}
}

// In a cluster messages are sharded: each waiter's channel lies in the lock's slot,
// and a hand-over needs no poll.
func TestFairHandOverByMessage(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		for _, name := range []string{"order:7", "{t}x"} {
			m := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(locktest.Patient))
			other := locktest.Join(t, b.Client(t), rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(locktest.Patient))
			lease := locktest.MustLock(t, m.NewFairLock(name)) // a hand-over inside a client needs no message
			w := []*locktest.FairWaiter{locktest.Parked(t, rdb, other, name), locktest.Parked(t, rdb, other, name), locktest.Parked(t, rdb, m, name)}
			w[1].Cancel()
			w[1].Left(t)
			start := time.Now()
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, w[0].Wait(t))
			locktest.MustUnlock(t, w[2].Wait(t))
			if took := time.Since(start); took > locktest.ByMessage {
				t.Fatalf("two hand-overs took %v", took)
			}
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

// Redisson takes its waiting time from all who stand behind it, and at times more
// than it had added: its tryLock by an owner that was left at the head, for
// one. That brings no live waiter of ours to its end.
func TestFairWaiterSurvivesWrongAccounts(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		k := locktest.FairKeysOf("a")
		const term = 1500 * time.Millisecond
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(term))
		lease := locktest.MustLock(t, c.NewFairLock("a"))
		w, other := locktest.MustLineUp(t, rdb, c.NewFairLock("a")), locktest.MustLineUp(t, rdb, c.NewFairLock("a"))
		for range 3 {
			for _, id := range []string{w.ID, other.ID} {
				rdb.ZIncrBy(bg, k.Deadlines, -float64(time.Hour.Milliseconds()), id)
			}
			// Ours do not remove it, whatever its deadline says.
			if _, err := c.NewFairLock("a").TryLock(bg); err == nil {
				t.Fatal("TryLock")
			}
			locktest.Eventually(t, "its deadline is put right", func() bool {
				v := locktest.FairState(rdb, "a")
				if !slices.Equal(v.Queue, []string{w.ID, other.ID}) {
					t.Fatalf("%+v", v)
				}
				now := locktest.ServerNow(rdb)
				return v.Deadlines[w.ID] > now && v.Deadlines[other.ID] > now
			})
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, w.Wait(t))
		locktest.MustUnlock(t, other.Wait(t))
		locktest.MustBeEmpty(t, rdb)
	})
}

// Redisson's waiters may wait for ever, in numbers that no TTL can hold.
func TestFairLineBehindAnEndlessWait(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		k := locktest.FairKeysOf("a")
		m := locktest.Join(t, b.Client(t))
		lease := locktest.MustLock(t, m.NewFairLock("a"))
		j := &locktest.JavaFairLock{RDB: rdb, Keys: k, Owner: redistest.HoldID("java:1"), Wait: math.MaxInt64}
		j.Try(time.Minute)
		w := locktest.Parked(t, rdb, m, "a")
		locktest.MustUnlock(t, lease)
		if _, err := m.NewFairLock("a").Lock(bg, rlock.WithWait(100*time.Millisecond)); err == nil {
			t.Fatal("it is Java's turn")
		}
		locktest.Eventually(t, "the impatient one has left", func() bool { return len(locktest.FairState(rdb, "a").Queue) == 2 })
		j.GiveUp()
		_, _ = m.NewFairLock("a").TryLock(bg)
		locktest.MustUnlock(t, w.Wait(t))
		locktest.OnlyTombstones(t, rdb)
	})
}

// Somebody has removed the deadlines: a head without one must not stand for ever.
func TestFairHeadWithoutADeadlineIsRemoved(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		rdb.RPush(bg, locktest.FairKeysOf("a").Queue, redistest.HoldID("java:1"))
		c := locktest.NewClient(t, rdb, rlock.WithWaiterLease(time.Second))
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, c.NewFairLock("a")))
		locktest.MustBeEmpty(t, rdb)
	})
}

package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// fairKeys are the keys of a fair lock beside its hash.
type fairKeys struct{ lock, queue, deadlines, alive, channel string }

func fairKeysOf(name string) fairKeys {
	if strings.Contains(name, "{") {
		return fairKeys{name, "redisson_lock_queue:" + name, "redisson_lock_timeout:" + name, name + ":rlock:waiters", "redisson_lock__channel:" + name + ":"}
	}
	return fairKeys{name, "redisson_lock_queue:{" + name + "}", "redisson_lock_timeout:{" + name + "}", "{" + name + "}:rlock:waiters", "redisson_lock__channel:{" + name + "}:"}
}

// fairView is what stands in Redis of a fair lock.
type fairView struct {
	hold      map[string]string
	queue     []string
	deadlines map[string]float64
	alive     map[string]float64
}

func fairLook(rdb redis.UniversalClient, name string) fairView {
	k := fairKeysOf(name)
	v := fairView{hold: map[string]string{}, deadlines: map[string]float64{}, alive: map[string]float64{}}
	// One script, so that it is the state of one moment.
	parts, err := rdb.Eval(bg, `return {
		redis.call('hgetall', KEYS[1]), redis.call('lrange', KEYS[2], 0, -1),
		redis.call('zrange', KEYS[3], 0, -1, 'withscores'), redis.call('zrange', KEYS[4], 0, -1, 'withscores')}`,
		[]string{k.lock, k.queue, k.deadlines, k.alive}).Slice()
	if err != nil {
		return v // the server is away; whoever waits for something looks again
	}
	lists := make([][]string, len(parts))
	for i, part := range parts {
		for _, item := range part.([]any) {
			lists[i] = append(lists[i], item.(string))
		}
	}
	for fields := range slices.Chunk(lists[0], 2) {
		v.hold[fields[0]] = fields[1]
	}
	v.queue = lists[1]
	for i, scores := range []map[string]float64{v.deadlines, v.alive} {
		for z := range slices.Chunk(lists[2+i], 2) {
			scores[z[0]], _ = strconv.ParseFloat(z[1], 64)
		}
	}
	return v
}

// fairNow is the clock of the server, in the unit of the scores.
func fairNow(rdb redis.UniversalClient) float64 {
	now, _ := rdb.Time(bg).Result()
	return float64(now.UnixMilli())
}

// fairTurn is a Lock that waits in a goroutine.
type fairTurn struct {
	stay   string
	cancel context.CancelFunc
	done   chan struct{} // closed when it has returned
	lease  *rlock.Lease
	err    error
}

// fairLine lets a Lock wait, and returns when it stands in the queue: at its end,
// as long as the caller lets others in one by one.
func fairLine(rdb redis.UniversalClient, l *rlock.FairLock, opts ...rlock.AcquireOption) (*fairTurn, error) {
	before := fairLook(rdb, l.Name()).queue
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	w := &fairTurn{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = l.Lock(ctx, opts...)
	}()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		for _, stay := range fairLook(rdb, l.Name()).queue {
			if !slices.Contains(before, stay) {
				w.stay = stay
				return w, nil
			}
		}
		select {
		case <-w.done:
			return w, nil // it has not had to wait
		default:
		}
		if time.Now().After(end) {
			cancel()
			return w, errors.New("it does not get into the queue")
		}
	}
}

func fairMustLine(t testing.TB, rdb redis.UniversalClient, l *rlock.FairLock, opts ...rlock.AcquireOption) *fairTurn {
	t.Helper()
	w, err := fairLine(rdb, l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cancel)
	if w.stay == "" {
		t.Fatalf("it has not had to wait: %v, %v", w.lease, w.err)
	}
	return w
}

// fairParked is fairMustLine for a waiter that sleeps when it returns: it has looked
// twice, at first and after the confirmation of its subscription.
func fairParked(t testing.TB, rdb redis.UniversalClient, m *member, name string, opts ...rlock.AcquireOption) *fairTurn {
	t.Helper()
	from := m.looks.at(name)
	w := fairMustLine(t, rdb, m.NewFairLock(name), opts...)
	m.parked(t, name, from+2)
	return w
}

// wait waits for the end of the Lock.
func (w *fairTurn) wait(t testing.TB) *rlock.Lease {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(40 * time.Second):
		t.Fatalf("the waiter %s got nothing", w.stay)
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.lease
}

// left waits for the end of a Lock that was cancelled.
func (w *fairTurn) left(t testing.TB) {
	t.Helper()
	<-w.done
	if w.err == nil {
		t.Fatalf("the waiter %s got the lock", w.stay)
	}
}

func (w *fairTurn) waits() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

func TestFairLockIsGivenInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		clients := []*rlock.Client{newClientOn(t, rdb), b.newClient(t), b.newClient(t)}
		const n = 24
		lease := mustLock(t, clients[0].NewFairLock("a"))
		var mu sync.Mutex
		var served []string
		var tokens []int64
		var turns []*fairTurn
		var wg sync.WaitGroup
		for i := range n {
			w := fairMustLine(t, rdb, clients[i%len(clients)].NewFairLock("a"))
			turns = append(turns, w)
			wg.Go(func() {
				lease := w.wait(t)
				mu.Lock()
				served, tokens = append(served, lease.Owner()), append(tokens, lease.Token())
				mu.Unlock()
				mustUnlock(t, lease)
			})
		}
		var want []string
		for _, w := range turns {
			want = append(want, w.stay)
		}
		if v := fairLook(rdb, "a"); !slices.Equal(v.queue, want) {
			t.Fatalf("queue %q, want %q", v.queue, want)
		}
		if s, err := clients[1].NewFairLock("a").State(bg); err != nil || s.Waiters != n || s.Holders[0].Owner != lease.Owner() {
			t.Fatalf("%+v, %v", s, err)
		}
		mustUnlock(t, lease)
		wg.Wait()
		if !slices.Equal(served, want) {
			t.Errorf("served %q, came %q", served, want)
		}
		if !slices.IsSorted(tokens) || tokens[0] <= lease.Token() {
			t.Errorf("tokens %d after %d", tokens, lease.Token())
		}
		mustBeEmpty(t, rdb)
	})
}

func TestFairTryLockNeverOvertakes(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		l := c.NewFairLock("a")
		mustUnlock(t, mustLock(t, l, rlock.WithWait(0))) // free, and nobody waits

		// A waiter whose client has died a moment ago: it is next, and the lock is
		// free.
		now := fairNow(rdb)
		k := fairKeysOf("a")
		rdb.RPush(bg, k.queue, "next:1")
		rdb.ZAdd(bg, k.deadlines, redis.Z{Score: now + 60_000, Member: "next:1"})
		rdb.ZAdd(bg, k.alive, redis.Z{Score: now + 30_000, Member: "next:1"})
		for what, look := range map[string]func() (*rlock.Lease, error){
			"TryLock":    func() (*rlock.Lease, error) { return l.TryLock(bg) },
			"WithWait 0": func() (*rlock.Lease, error) { return l.Lock(bg, rlock.WithWait(0)) },
		} {
			if lease, err := look(); lease != nil || !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatalf("%s: %v, %v", what, lease, err)
			}
		}
		if v := fairLook(rdb, "a"); len(v.queue) != 1 || len(v.hold) != 0 {
			t.Fatalf("%+v", v)
		}
	})
}

func TestFairReentryDoesNotWait(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewFairLock("a")
		outer := mustLock(t, l)
		w := fairMustLine(t, rdb, b.newClient(t).NewFairLock("a"))
		inner := mustLockCtx(t, outer.Context(bg), l)
		again, err := l.TryLock(inner.Context(bg))
		if err != nil {
			t.Fatal(err)
		}
		if n := count(t, rdb, "a", outer.Owner()); n != "3" || inner.Token() != outer.Token() {
			t.Fatalf("count %s, tokens %d and %d", n, inner.Token(), outer.Token())
		}
		for _, lease := range []*rlock.Lease{outer, again} {
			mustUnlock(t, lease)
		}
		if v := fairLook(rdb, "a"); !w.waits() || len(v.queue) != 1 || v.hold[outer.Owner()] != "1" {
			t.Fatalf("%+v", v)
		}
		mustUnlock(t, inner)
		mustUnlock(t, w.wait(t))
		mustBeEmpty(t, rdb)
	})
}

func TestFairWaiterThatLeavesLeavesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		holder := newClientOn(t, rdb)
		lease := mustLock(t, holder.NewFairLock("a"))
		for what, end := range map[string]func(c *rlock.Client, w *fairTurn){
			"context": func(_ *rlock.Client, w *fairTurn) { w.cancel() },
			"shutdown": func(c *rlock.Client, _ *fairTurn) {
				if err := c.Shutdown(bg); err != nil {
					t.Error(err)
				}
			},
		} {
			c := newClientOn(t, b.client(t))
			first, second := fairMustLine(t, rdb, c.NewFairLock("a")), fairMustLine(t, rdb, c.NewFairLock("a"))
			for _, w := range []*fairTurn{first, second} {
				end(c, w)
				w.left(t)
			}
			want := map[string]error{"context": context.Canceled, "shutdown": rlock.ErrClosed}[what]
			wantErr(t, first.err, want)
			eventually(t, what+": its place is gone", func() bool {
				v := fairLook(rdb, "a")
				return len(v.queue)+len(v.deadlines)+len(v.alive) == 0
			})
		}
		_, err := newClientOn(t, b.client(t)).NewFairLock("a").Lock(bg, rlock.WithWait(50*time.Millisecond))
		wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
		eventually(t, "only the hold is left", func() bool {
			return slices.Equal(slices.DeleteFunc(keysOf(t, rdb), func(k string) bool { return tombstones([]string{k}) > 0 }), []string{"a"})
		})
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
	})
}

func TestFairHeadThatLeavesAFreeLockWakesTheNext(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		k := fairKeysOf("a")
		// Nobody looks by himself: what happens is done by messages.
		m := join(t, b.client(t), rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(patient))
		lease := mustLock(t, m.NewFairLock("a"))
		head := fairParked(t, rdb, m, "a")
		next := fairParked(t, rdb, m, "a")
		rdb.Del(bg, k.lock) // as if it had run out: nobody is told
		start := time.Now()
		head.cancel()
		head.left(t)
		mustUnlock(t, next.wait(t))
		if took := time.Since(start); took > byMessage {
			t.Fatalf("the next was woken after %v", took)
		}
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
		onlyTombstones(t, rdb)
	})
}

// The head of the line must know when a short lease ends, although it has looked
// for the last time when another was before it.
func TestFairNewHeadLearnsOfAShortLease(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		m := join(t, b.client(t), rlock.WithWaiterLease(time.Hour), rlock.WithLongestPoll(patient))
		lease := mustLock(t, m.NewFairLock("a"), rlock.WithLease(time.Hour))
		first := fairParked(t, rdb, m, "a", rlock.WithLease(300*time.Millisecond))
		second := fairParked(t, rdb, m, "a")
		mustUnlock(t, lease)
		first.wait(t) // and dies: its lease runs out, and nobody is told
		start := time.Now()
		mustUnlock(t, second.wait(t))
		if took := time.Since(start); took > byMessage {
			t.Fatalf("taken %v after a lease of 300ms", took)
		}
		_ = first.lease.Unlock(bg)
		onlyTombstones(t, rdb)
	})
}

// fairPut puts a waiter of another process into the line by hand, with a sign of
// life that is good for the given time from now.
func fairPut(t testing.TB, rdb redis.UniversalClient, name, stay string, alive, deadline time.Duration) {
	t.Helper()
	k, now := fairKeysOf(name), fairNow(rdb)
	if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
		p.RPush(bg, k.queue, stay)
		p.ZAdd(bg, k.deadlines, redis.Z{Score: now + float64(deadline.Milliseconds()), Member: stay})
		p.ZAdd(bg, k.alive, redis.Z{Score: now + float64(alive.Milliseconds()), Member: stay})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Ten dead waiters cost one waiter lease together, not ten.
func TestFairDeadWaitersAreRemovedTogether(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		const term = 1500 * time.Millisecond
		m := join(t, b.client(t), rlock.WithWaiterLease(term))
		start := time.Now()
		for i := range 10 {
			fairPut(t, rdb, "a", fmt.Sprint("dead:", i), term, time.Minute+time.Duration(i)*term)
		}
		lease := mustLock(t, m.NewFairLock("a"))
		took := time.Since(start)
		if took < term-100*time.Millisecond || took > term+5*time.Second {
			t.Fatalf("ten dead waiters cost %v with a waiter lease of %v", took, term)
		}
		if n := m.looks.at("a"); n > 12 {
			t.Fatalf("%d looks in %v", n, took)
		}
		mustUnlock(t, lease)
		mustBeEmpty(t, rdb)
	})
}

// While another is the head of a free lock, a waiter looks each third of its
// waiter lease, and no more often.
func TestFairWaiterDoesNotSpinOnAFreeLock(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		k := fairKeysOf("a")
		const term = 3 * time.Second
		m := join(t, b.client(t), rlock.WithWaiterLease(term))
		// Redisson's, dead, for some time to come.
		rdb.RPush(bg, k.queue, "java:1")
		rdb.ZAdd(bg, k.deadlines, redis.Z{Score: fairNow(rdb) + 3500, Member: "java:1"})
		start := time.Now()
		lease := mustLock(t, m.NewFairLock("a"))
		took := time.Since(start)
		// 3.5 s in looks a second apart, the first two at once, and the deadline.
		if n := m.looks.at("a"); n > 8 {
			t.Errorf("%d looks in %v", n, took)
		}
		if took < 3300*time.Millisecond || took > 10*time.Second {
			t.Errorf("a dead head with a deadline of 3.5s cost %v", took)
		}
		mustUnlock(t, lease)
		mustBeEmpty(t, rdb)
	})
}

// A waiter keeps its place however long it waits: nobody's purge may find it dead.
func TestFairWaiterKeepsItsPlaceFresh(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		const term = 600 * time.Millisecond
		c := newClientOn(t, rdb, rlock.WithWaiterLease(term))
		lease := mustLock(t, c.NewFairLock("a"), rlock.WithLease(10*time.Minute))
		w := fairMustLine(t, rdb, c.NewFairLock("a"))
		v := fairLook(rdb, "a")
		signs, seen := 0, v.alive[w.stay]
		residual := v.deadlines[w.stay] - (seen - float64(term.Milliseconds()))
		start := time.Now()
		eventually(t, "it has given twelve signs of life", func() bool {
			v := fairLook(rdb, "a")
			if len(v.queue) != 1 || len(v.deadlines) != 1 || len(v.alive) != 1 {
				t.Fatalf("%+v", v)
			}
			if v.alive[w.stay] != seen {
				seen = v.alive[w.stay]
				signs++
				if got := v.deadlines[w.stay] - (seen - float64(term.Milliseconds())); got != residual {
					t.Fatalf("%v ms were left to its deadline, now %v", residual, got)
				}
			}
			return signs >= 12
		})
		// The first is the look after its subscription was confirmed.
		if took := time.Since(start); took < 9*term/3 {
			t.Errorf("twelve signs of life in %v, the waiter lease is %v", took, term)
		}
		for _, key := range []string{fairKeysOf("a").queue, fairKeysOf("a").deadlines, fairKeysOf("a").alive, "{a}:rlock:line"} {
			if ttl := rdb.PTTL(bg, key).Val(); ttl < time.Duration(residual)*time.Millisecond+12*time.Hour {
				t.Errorf("%s is kept for %v, the deadline is in %v ms", key, ttl, residual)
			}
		}
		mustUnlock(t, lease)
		mustUnlock(t, w.wait(t))
		mustBeEmpty(t, rdb)
	})
}

// After an outage of Redis all waiters look dead to the first who comes back. They
// keep their places once; who gives no sign of life then is dead.
func TestFairLineSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		k := fairKeysOf("a")
		const notes, term = "{a}:rlock:line", 2 * time.Second
		l := newClientOn(t, rdb, rlock.WithWaiterLease(term)).NewFairLock("a")
		look := func(want int) fairView {
			t.Helper()
			if lease, err := l.TryLock(bg); want > 0 && !errors.Is(err, rlock.ErrNotAcquired) || want == 0 && err != nil {
				t.Fatal(lease, err)
			}
			v := fairLook(rdb, "a")
			if len(v.queue) != want || len(v.deadlines) != want || len(v.alive) != want {
				t.Fatalf("%d should stand in line: %+v", want, v)
			}
			return v
		}
		for i := range 4 {
			fairPut(t, rdb, "a", fmt.Sprint("cut-off:", i), -time.Duration(20+i)*time.Second, 10*time.Second)
		}
		// Time passes: the pardon ends.
		over := func() { rdb.HSet(bg, notes, "until", int64(fairNow(rdb))-1, "pardoned", int64(fairNow(rdb))-1000) }
		now := fairNow(rdb)
		look(4)
		if end, _ := rdb.HGet(bg, notes, "until").Float64(); end-now < 2000 || end-now > 7000 {
			t.Errorf("they count as alive for %v ms", end-now)
		}
		// One of them comes back, and keeps its place.
		rdb.ZAdd(bg, k.alive, redis.Z{Score: now + 60_000, Member: "cut-off:2"})
		look(4)
		over()
		if v := look(1); v.queue[0] != "cut-off:2" {
			t.Fatalf("%+v", v)
		}
		// Those who give no sign of life are not believed twice.
		fairPut(t, rdb, "a", "dead:1", -10*time.Millisecond, time.Minute)
		rdb.ZAdd(bg, k.alive, redis.Z{Score: fairNow(rdb) - 10, Member: "cut-off:2"})
		look(2)
		rdb.HSet(bg, notes, "until", int64(fairNow(rdb))-1)
		look(0)
		rdb.Del(bg, "a")
		// Nobody was heard of for very long: no outage takes that long.
		fairPut(t, rdb, "a", "old:1", -61*time.Second, time.Minute)
		look(0)
	})
}

// A waiter that finds itself gone from the queue waits at its end.
func TestFairWaiterThatWasRemovedWaitsAtTheEnd(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWaiterLease(time.Second))
		k := fairKeysOf("a")
		for what, remove := range map[string]func(stay string){
			"from all": func(stay string) {
				rdb.LRem(bg, k.queue, 0, stay)
				rdb.ZRem(bg, k.deadlines, stay)
				rdb.ZRem(bg, k.alive, stay)
			},
			"from the queue": func(stay string) { rdb.LRem(bg, k.queue, 0, stay) },
		} {
			lease := mustLock(t, c.NewFairLock("a"))
			w, other := fairMustLine(t, rdb, c.NewFairLock("a")), fairMustLine(t, rdb, c.NewFairLock("a"))
			remove(w.stay)
			eventually(t, what+": it stands at the end", func() bool {
				v := fairLook(rdb, "a")
				return slices.Equal(v.queue, []string{other.stay, w.stay}) && len(v.deadlines) == 2 && len(v.alive) == 2
			})
			mustUnlock(t, lease)
			mustUnlock(t, other.wait(t))
			mustUnlock(t, w.wait(t))
		}
		// The deadlines or the signs of life alone are put back.
		lease := mustLock(t, c.NewFairLock("a"))
		w, other := fairMustLine(t, rdb, c.NewFairLock("a")), fairMustLine(t, rdb, c.NewFairLock("a"))
		for _, key := range []string{k.deadlines, k.alive} {
			rdb.Del(bg, key)
			eventually(t, key+" is as it was", func() bool {
				v := fairLook(rdb, "a")
				return slices.Equal(v.queue, []string{w.stay, other.stay}) && len(v.deadlines) == 2 && len(v.alive) == 2
			})
		}
		mustUnlock(t, lease)
		mustUnlock(t, w.wait(t))
		mustUnlock(t, other.wait(t))
		mustBeEmpty(t, rdb)
	})
}

func TestFairLineSurvivesLossOfAllData(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	c := newClientOn(t, b.client(t), rlock.WithWaiterLease(2*time.Second))
	lease := mustLock(t, c.NewFairLock("a"))
	turns := map[string]*fairTurn{}
	for range 5 {
		w := fairMustLine(t, rdb, c.NewFairLock("a"))
		turns[w.stay] = w
	}
	b.real.Kill()
	b.real.Restart()
	// All are served, one at a time; in which order they came back is not said.
	last := lease.Token()
	for len(turns) > 0 {
		var now *fairTurn
		eventually(t, "one has the lock", func() bool {
			for _, w := range turns {
				if !w.waits() {
					now = w
				}
			}
			return now != nil
		})
		next := now.wait(t)
		if next.Token() <= last {
			t.Fatalf("token %d after %d", next.Token(), last)
		}
		last = next.Token()
		delete(turns, now.stay)
		for _, w := range turns {
			if !w.waits() && next.Err() == nil {
				t.Fatalf("two have the lock: %v and %v", w.stay, now.stay)
			}
		}
		mustUnlock(t, next)
	}
	wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	onlyTombstones(t, rdb)
}

// A hand-over costs a release and one look, however many wait.
func TestFairHandOverCostsTwoScripts(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		m := join(t, b.client(t))
		lease := mustLock(t, m.NewFairLock("a"))
		var turns []*fairTurn
		for range 10 {
			turns = append(turns, fairParked(t, rdb, m, "a"))
		}
		before := m.looks.at("a")
		start := time.Now()
		for _, w := range turns {
			mustUnlock(t, lease)
			lease = w.wait(t)
		}
		// A release and a look for each, and while it took, the signs of life.
		n, signs := m.looks.at("a")-before, 10*int(time.Since(start)/(rlock.DefaultWaiterLease/3)+1)
		if n > 2*len(turns)+signs {
			t.Errorf("%d scripts for %d hand-overs", n, len(turns))
		}
		mustUnlock(t, lease)
		mustBeEmpty(t, rdb)
	})
}

func TestFairLockAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	m := join(t, b.client(t), rlock.WithWaiterLease(500*time.Millisecond))
	l := m.NewFairLock("a")
	outer := mustLock(t, l)
	inner := mustLockCtx(t, outer.Context(bg), l)
	stays, leaves := fairMustLine(t, rdb, l), fairMustLine(t, rdb, l)
	rdb.ConfigSet(bg, "maxmemory", "1")
	oom := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatalf("%s at the memory limit: %v", what, err)
		}
	}
	_, err := l.Lock(bg)
	oom("a newcomer", err)
	_, err = m.NewFairLock("b").TryLock(bg)
	oom("TryLock", err)
	if v := fairLook(rdb, "a"); len(v.queue) != 2 || len(v.deadlines) != 2 || len(v.alive) != 2 {
		t.Fatalf("%+v", v)
	}
	// Who stands in line goes on, and may leave it.
	sign := fairLook(rdb, "a").alive[stays.stay]
	eventually(t, "it gives a sign of life", func() bool { return fairLook(rdb, "a").alive[stays.stay] > sign })
	leaves.cancel()
	leaves.left(t)
	eventually(t, "it has left", func() bool { return len(fairLook(rdb, "a").queue) == 1 })
	mustUnlock(t, inner)
	mustUnlock(t, outer)
	mustUnlock(t, stays.wait(t))
	onlyTombstones(t, rdb)
}

func TestFairLockIsAdministered(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		l := c.NewFairLock("a")
		lease := mustLock(t, l)
		w := fairMustLine(t, rdb, l)
		if ok, err := l.ForceUnlockIf(bg, "another:1"); ok || err != nil {
			t.Fatal(ok, err)
		}
		if n, err := l.HeldBy(lease.Context(bg)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		s, err := l.State(bg)
		if err != nil || s.Waiters != 1 || s.Token != lease.Token() || s.Mode != rlock.ModeExclusive || s.TTL <= 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		if ok, err := l.ForceUnlock(bg); !ok || err != nil {
			t.Fatal(ok, err)
		}
		next := w.wait(t)
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
		if ok, err := l.ForceUnlockIf(bg, next.Owner()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if locked, err := l.IsLocked(bg); locked || err != nil {
			t.Fatal(locked, err)
		}
		wantErr(t, next.Unlock(bg), rlock.ErrLeaseLost)
		mustBeEmpty(t, rdb)
		if v := fairLook(rdb, "a"); len(v.queue) > 0 || !maps.Equal(v.alive, map[string]float64{}) {
			t.Fatalf("%+v", v)
		}
		_, err = c.NewFairLock("").Lock(bg)
		wantErr(t, err, rlock.ErrInvalidArgument)
		_, err = c.NewFairLock("a{b").Lock(bg)
		wantErr(t, err, rlock.ErrInvalidArgument)
	})
}

package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// lineTest is the lines of a client, whose subscriptions are counted.
type lineTest struct {
	lines
	open   int
	notify func() // of the latest subscription
}

func keyOf(name string) lineKey { return lineKey{lock: protocol.LockID{Name: name}} }

// enter joins a line as its head and subscribes it.
func (q *lineTest) enter(key lineKey, news int64) *waiter {
	w, _ := q.join(key, time.Now(), news)
	q.subscribe(w, func(notify func()) func() {
		q.open++
		q.notify = notify
		return func() { q.open-- }
	})
	return w
}

func poked(w *waiter) bool {
	select {
	case <-w.wake:
		return true
	default:
		return false
	}
}

var gotIt = &handOver{hold: &hold{}}

// A waiter becomes the head, behind room that is too small for it. There is news before it has
// woken up to that, so both are one poke.
func TestNewsWakesAHeadThatFindsTooLittleRoom(t *testing.T) {
	for _, news := range []bool{false, true} {
		var q lineTest
		key := keyOf("a")
		first := q.enter(key, 0)
		second, _ := q.join(key, time.Now(), 0)
		q.needs(second, 2)
		q.sees(first)
		left := &room{left: 1}
		q.leave(first, &handOver{hold: left, beside: left})
		if news {
			q.notify()
		}
		if n := q.news(second); !poked(second) || !n.head || (n.behind == nil) != news {
			t.Errorf("with news: %v, it learns %+v", news, n)
		}
		q.leave(second, nil)
		q.close()
	}
}

func TestKeptLineTellsTheNextWaiterWhetherToLookAgain(t *testing.T) {
	for name, test := range map[string]struct {
		between func(q *lineTest, key lineKey)
		again   bool
	}{
		"nothing":         {func(*lineTest, lineKey) {}, false},
		"a message":       {func(q *lineTest, _ lineKey) { q.notify() }, true},
		"a local release": {func(q *lineTest, key lineKey) { q.wake(key.lock) }, true},
		"another waiter that heard a message": {func(q *lineTest, key lineKey) {
			w := q.enter(key, 0)
			q.notify()
			q.leave(w, gotIt)
		}, true},
		"its end, and a new line": {func(q *lineTest, key lineKey) {
			q.expireAll()
			q.leave(q.enter(key, 0), gotIt)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var q lineTest
			defer q.close()
			key := keyOf("a")
			q.leave(q.enter(key, 0), gotIt)
			_, news, _ := q.latest(key)
			test.between(&q, key) // while the first look is under way
			w := q.enter(key, news)
			if q.open != 1 {
				t.Errorf("%d subscriptions", q.open)
			}
			if poked(w) != test.again {
				t.Errorf("it looks again: %v", !test.again)
			}
			q.notify()
			if !poked(w) {
				t.Error("it hears no message")
			}
		})
	}
}

// expireAll removes the lines that are kept, before their time.
func (q *lines) expireAll() {
	q.close()
	q.closed = false
}

func TestLinesAreKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q lineTest
		a, b := keyOf("a"), keyOf("b")
		q.leave(q.enter(a, 0), gotIt)
		time.Sleep(keepLine / 2)
		synctest.Wait()
		q.leave(q.enter(b, 0), gotIt)
		time.Sleep(keepLine/2 - time.Nanosecond)
		synctest.Wait()
		if q.open != 2 {
			t.Fatalf("%d subscriptions are kept", q.open)
		}
		w := q.enter(a, 0) // it is not kept any more, but used
		time.Sleep(keepLine/2 + time.Second)
		synctest.Wait()
		if q.open != 1 || q.byKey[b] != nil {
			t.Fatalf("%d subscriptions are left", q.open)
		}
		q.leave(w, gotIt)
		time.Sleep(keepLine + time.Second)
		synctest.Wait()
		if q.open != 0 || len(q.byKey) != 0 || q.kept.Len() != 0 {
			t.Fatalf("%d subscriptions are left", q.open)
		}
	})
}

func TestLinesThatAreNotKept(t *testing.T) {
	var q lineTest
	q.leave(q.enter(keyOf("given up"), 0), nil)
	own := keyOf("place of its own in Redis")
	own.id = "1"
	q.leave(q.enter(own, 0), gotIt)
	if q.open != 0 || len(q.byKey) != 0 {
		t.Fatalf("%d subscriptions are kept", q.open)
	}
	for i := range mostKept + 10 {
		q.leave(q.enter(keyOf(fmt.Sprint(i)), 0), gotIt)
	}
	if q.open != mostKept || len(q.byKey) != mostKept || q.byKey[keyOf("9")] != nil || q.byKey[keyOf("10")] == nil {
		t.Fatalf("%d subscriptions are kept", q.open)
	}
	late := q.enter(keyOf("late"), 0)
	q.close()
	q.leave(late, gotIt)
	if q.open != 0 || len(q.byKey) != 0 {
		t.Fatalf("%d subscriptions are left after the end", q.open)
	}
}

// A client knows of those who listen beside it, and lets them go first.
func TestHeadMakesWayForThoseWhoListen(t *testing.T) {
	q := &lineTest{}
	key := keyOf("a")
	if n := q.heard(key, 5, false); n != 5 || q.byKey[key] != nil {
		t.Fatalf("%d others listen, and a line was made: %v", n, q.byKey[key])
	}
	w := q.enter(key, 0)
	for heard, others := range []int{0, 0, 1, 2} {
		if n := q.heard(key, heard, false); n != others || q.crowded(w) != (others > 1) {
			t.Fatalf("%d listen: %d others, a crowd: %v", heard, n, q.crowded(w))
		}
	}
	if d := q.yieldsFor(w, 0); d > 0 {
		t.Fatalf("it makes way for %v before it has had the lock", d)
	}
	q.yield(key, 100)
	if d := q.yieldsFor(w, 40); d != 60 {
		t.Fatalf("it makes way for %v, want 60ns", d)
	}
	q.leave(w, gotIt)
	if n := q.heard(keyOf("b"), 1, true); n != 1 {
		t.Fatalf("%d others", n)
	}
	q.yield(keyOf("b"), 100) // nobody waits, but the next one of this client knows it
	if waiting, _, yields := q.latest(keyOf("b")); waiting != 0 || yields != 100 {
		t.Fatalf("%d wait, it makes way until %v", waiting, yields)
	}
	q.close()
}

// pool is what inquiries of a test ask for: some units, as a semaphore has.
type pool struct {
	mu     sync.Mutex
	free   int64
	looks  int
	looked func() // during a look
}

type poolSeeker struct {
	*pool
	need int64
}

func (p poolSeeker) look(context.Context) found {
	p.mu.Lock()
	p.looks++
	free, looked := p.free, p.looked
	if free >= p.need {
		p.free -= p.need
	}
	p.mu.Unlock()
	if looked != nil {
		looked()
	}
	if free >= p.need {
		return found{done: true, room: free - p.need}
	}
	return found{rest: -1, said: said{"# are free", free}}
}

func (poolSeeker) giveUp() bool                      { return false }
func (poolSeeker) listen(notify func()) (end func()) { notify(); return func() {} }
func (p *pool) ask(c *Client, ctx context.Context, need int64, forAll bool) chan error {
	q := &inquiry{wait: true, forAll: forAll, sentinel: ErrNotAcquired}
	q.inquire(c, protocol.LockID{Name: "pool"}, poolSeeker{p, need})
	q.need = need
	done := make(chan error, 1)
	go func() { done <- q.run(ctx, ctx) }()
	return done
}

func (p *pool) add(c *Client, n int64) {
	p.mu.Lock()
	p.free += n
	p.mu.Unlock()
	c.lines.wake(protocol.LockID{Name: "pool"})
}

// Each wake-up comes when the waiter that gets it is canceled too. None is lost, and
// canceled waiters do not look.
func TestWakeUpsAreNotLostWithWaitersThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t, WithLongestPoll(MaxLease))
		defer c.watchdog.Close()
		p := &pool{}
		const waiters = 1000
		var ends []context.CancelFunc
		var outcomes []chan error
		for range waiters {
			ctx, cancel := context.WithCancel(t.Context())
			ends = append(ends, cancel)
			outcomes = append(outcomes, p.ask(c, ctx, 1, false))
			synctest.Wait()
		}
		last := p.ask(c, t.Context(), 1, false)
		synctest.Wait()
		before := p.looks
		// Who is woken goes on when the test says so.
		woken := make(chan struct{})
		c.env.Gate = func(string) { <-woken }
		p.add(c, 1)
		for _, cancel := range ends {
			synctest.Wait() // the first of them has been woken
			cancel()
			woken <- struct{}{}
		}
		woken <- struct{}{} // the last waiter
		for _, o := range outcomes {
			if err := <-o; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNotAcquired) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		select {
		case err := <-last:
			if err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal("the last waiter was not woken")
		}
		if n := p.looks - before; n != 1 {
			t.Errorf("%d looks, not that of the last waiter alone", n)
		}
		c.lines.close()
	})
}

// Units that come together admit several waiters at once, in order, and no more look than
// there is room for.
func TestRoomAdmitsSeveralWaitersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t, WithLongestPoll(MaxLease))
		defer c.watchdog.Close()
		p := &pool{}
		needs := []int64{2, 1, 1, 3, 1, 5, 1}
		var outcomes []chan error
		for _, n := range needs {
			outcomes = append(outcomes, p.ask(c, t.Context(), n, false))
			synctest.Wait()
		}
		p.mu.Lock()
		p.looks = 0
		p.looked = func() { time.Sleep(time.Second) } // a slow server
		p.mu.Unlock()
		start := time.Now()
		p.add(c, 9) // not enough for the sixth, behind whom the seventh waits
		for _, o := range outcomes[:5] {
			if err := <-o; err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took the time of %v looks", d)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if p.looks > 7 || p.free != 1 {
			t.Errorf("%d looks, %d are left", p.looks, p.free)
		}
		p.add(c, 5)
		for _, o := range outcomes[5:] {
			if err := <-o; err != nil {
				t.Fatal(err)
			}
		}
		c.lines.close()
	})
}

// What the head has found is true for all who waited before it looked, and for no other.
func TestOneLookServesAllWhoWaitedBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t, WithLongestPoll(MaxLease))
		defer c.watchdog.Close()
		p := &pool{}
		var outcomes []chan error
		for range 100 {
			outcomes = append(outcomes, p.ask(c, t.Context(), 1, true))
			synctest.Wait()
		}
		p.mu.Lock()
		p.looks = 0
		p.looked = func() { time.Sleep(time.Second) }
		p.mu.Unlock()
		p.add(c, 1)
		synctest.Wait()
		late := p.ask(c, t.Context(), 1, true)
		for _, o := range outcomes {
			if err := <-o; err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		select {
		case <-late:
			t.Fatal("a look served a waiter that came later")
		default:
		}
		if p.looks > 3 {
			t.Errorf("%d looks", p.looks)
		}
		p.add(c, 1)
		if err := <-late; err != nil {
			t.Fatal(err)
		}
		c.lines.close()
	})
}

// stand lets a waiter stand in a queue in Redis, with a rank. notify confirms its subscription,
// and then brings messages.
func (q *lineTest) stand(id string, rank int64) (w *waiter, notify func()) {
	key := keyOf("a")
	key.id = id
	w = q.enter(key, 0)
	q.stands(w, rank, protocol.Heir{ID: id})
	w.looks()
	return w, q.notify
}

// released begins a release of the lock, and grants has Redis grant it to the heir.
func (q *lineTest) released() *grant {
	_, g := q.heir(protocol.LockID{Name: "a"})
	return g
}

func (q *lineTest) grants(g *grant) {
	q.tell(g, 0, &protocol.Result[protocol.Released]{Outcome: protocol.Released{Token: 5}})
}

func TestWaiterBehindAnotherOfItsClientLooksIfItMayHaveMissedSomething(t *testing.T) {
	type two struct {
		lineTest
		first, second *waiter
		confirm       func() // the subscription of the second
	}
	for name, test := range map[string]struct {
		play func(q *two)
		look bool
	}{
		"confirmed": {func(q *two) { q.confirm() }, false},
		"a message": {func(q *two) { q.confirm(); q.confirm() }, true},
		"the first has left": {func(q *two) {
			q.confirm()
			q.leave(q.first, nil)
		}, true},
		"the first has left, and then it is confirmed": {func(q *two) {
			q.leave(q.first, gotIt)
			q.confirm()
		}, true},
		"a release grants the first its hold": {func(q *two) {
			q.confirm()
			g := q.released()
			q.grants(g)
			q.leave(q.first, gotIt)
		}, false},
		"a release grants it, and it is canceled": {func(q *two) {
			q.confirm()
			g := q.released()
			q.grants(g)
			q.leave(q.first, nil)
		}, true},
		"a release is under way when it is confirmed": {func(q *two) {
			g := q.released()
			q.confirm()
			q.grants(g)
			q.leave(q.first, gotIt)
		}, true},
		"the first looks and gets it": {func(q *two) {
			q.confirm()
			q.leave(q.first, gotIt)
		}, true},
		"the first has lost its place, and stands behind it": {func(q *two) {
			q.confirm()
			q.stands(q.first, 9, protocol.Heir{})
		}, true},
		"a third comes, and leaves": {func(q *two) {
			q.confirm()
			third, _ := q.stand("c:3", 3)
			q.leave(third, nil)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			q := &two{}
			defer q.close()
			q.first, _ = q.stand("c:1", 1)
			q.second, q.confirm = q.stand("c:2", 2)
			test.play(q)
			if look := poked(q.second); look != test.look {
				t.Errorf("it looks: %v", look)
			}
		})
	}
}

func TestHeirIsTheFirstInRedis(t *testing.T) {
	var q lineTest
	defer q.close()
	lock := protocol.LockID{Name: "a"}
	want := func(id string) {
		t.Helper()
		if as, g := q.heir(lock); (g == nil) != (id == "") || as.ID != id {
			t.Errorf("%q, want %q", as.ID, id)
		}
	}
	want("")
	b, _ := q.stand("c:2", 20)
	a, _ := q.stand("c:1", 10)
	c, _ := q.stand("c:3", 30)
	want("c:1")
	q.stands(a, 40, protocol.Heir{ID: "c:1"})
	want("c:2")
	q.leave(b, nil)
	want("c:3")
	q.leave(c, gotIt)
	want("c:1")
	q.leave(a, nil)
	want("")
	if len(q.queues) > 0 {
		t.Error("an empty queue remains")
	}
}

// aboutToListen returns the head of a line, which is about to listen for turns, and has been given
// a hold of its client just then.
func aboutToListen(t *testing.T, q *lines, key lineKey) *waiter {
	t.Helper()
	w, _ := q.join(key, time.Now(), 0)
	w.line.unsub = func() {}
	w.line.served = true
	if !q.sleeps(w, true, standby{}) {
		t.Fatal("does not listen")
	}
	if !q.give(key, &pass{}, sight{}) {
		t.Fatal("not given")
	}
	return w
}

func TestNextWaiterListensForTurns(t *testing.T) {
	var q lines
	key := lineKey{lock: protocol.LockID{Family: "lock", Name: "a"}}
	ended := 0
	w := aboutToListen(t, &q, key)
	next, _ := q.join(key, time.Now(), 0)
	if !q.sleeps(next, true, standby{}) {
		t.Fatal("does not listen")
	}
	q.hearTurns(next, func() { ended++ })
	q.hearTurns(w, func() { ended++ })
	q.leave(next, nil)
	q.close()
	if ended != 2 {
		t.Errorf("%d of 2 subscriptions were ended", ended)
	}
}

func TestTurnsOfARemovedLine(t *testing.T) {
	var q lines
	ended := 0
	w := aboutToListen(t, &q, lineKey{lock: protocol.LockID{Family: "lock", Name: "a"}})
	q.close() // or expire, or the line is the oldest of too many
	q.hearTurns(w, func() { ended++ })
	if ended != 1 {
		t.Error("the subscription is not ended")
	}
}

// A message that comes between a look and the sleep after it gives the waiter its hold, once: if it
// cannot use that, it has to look, and not to be given the same again.
func TestTurnBeforeTheWaiterSleeps(t *testing.T) {
	var q lines
	w, _ := q.join(lineKey{lock: protocol.LockID{Family: "lock", Name: "a"}}, time.Now(), 0)
	q.turn(w.line, &protocol.Turn{ID: "c:1", Token: 7, Look: 1}, 0, time.Hour)
	for _, is := range []struct {
		standby
		given bool
	}{{standby{id: "c:1", look: 2}, false}, {standby{id: "c:2", look: 1}, false}, {standby{}, false}, {standby{id: "c:1", look: 1}, true}, {standby{id: "c:1", look: 1}, false}, {standby{id: "c:1"}, false}} {
		q.sleeps(w, true, is.standby)
		if got := q.awake(w); (got.grant != nil) != is.given || is.given && got.grant.token != 7 {
			t.Errorf("%+v: %+v", is, got)
		}
	}
}

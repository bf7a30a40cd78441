package wait

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// lineTest is the lines of a client, whose subscriptions are counted.
type lineTest struct {
	*Lines
	open   int
	notify func() // of the latest subscription
}

func keyOf(name string) Key { return Key{Lock: protocol.LockID{Name: name}} }

// newLines returns the lines of a client that has no server.
func newLines() *Lines {
	env := &seam.Env{Clock: seam.SystemClock{}}
	timeline := clock.NewTimeline(env.Clock)
	return New(Config{
		Env: env, Timeline: &timeline, Running: &wire.Tally{}, Closing: make(chan struct{}), Closed: errors.New("closed"),
		LongestPoll: seam.FarAway, LongestOutage: time.Minute, Keep: keep, MostKept: mostKept,
		Transient: func(error) bool { return false },
	})
}

// The configuration of the lines in these tests.
const (
	keep     = 3 * time.Second
	mostKept = 1000
)

func newTest() *lineTest { return &lineTest{Lines: newLines()} }

// enter joins a line as its head and subscribes it.
func (q *lineTest) enter(key Key, news int64) *Waiter {
	w, _ := q.join(key, 1, time.Now(), news)
	q.subscribe(w, func(notify func()) func() {
		q.open++
		q.notify = notify
		return func() { q.open-- }
	})
	return w
}

func poked(w *Waiter) bool {
	select {
	case <-w.wake:
		return true
	default:
		return false
	}
}

var gotIt = &Exit{Hold: &noReleaseBefore{}}

// A waiter becomes the head, and too few permits are free for it. There is news before it has
// woken up to that, so both are one poke.
func TestNewsWakesAHeadThatFindsTooFewPermits(t *testing.T) {
	for _, news := range []bool{false, true} {
		q := newTest()
		key := keyOf("a")
		first := q.enter(key, 0)
		second, _ := q.join(key, 2, time.Now(), 0)
		q.notePoll(first)
		q.leave(first, &Exit{Remaining: 1, Until: q.cfg.Timeline.Now().Add(time.Minute)})
		if news {
			q.notify()
		}
		if n := q.takeUpdate(second); !poked(second) || !n.isHead || (n.previous == nil) != news {
			t.Errorf("with news: %v, it reads %+v", news, n)
		}
		q.leave(second, nil)
		q.Close()
	}
}

// Behind a hold that lasts the next head need not look.
func TestHeadDoesNotLookBehindAHoldThatLasts(t *testing.T) {
	for name, left := range map[string]*Exit{"a hold": gotIt, "nothing": nil} {
		q := newTest()
		key := keyOf("a")
		first := q.enter(key, 0)
		second, _ := q.join(key, 1, time.Now(), 0)
		q.leave(first, left)
		if n := q.takeUpdate(second); !poked(second) || !n.isHead || (n.previous == nil) != (left == nil) {
			t.Errorf("it leaves with %s: %+v", name, n)
		}
		q.leave(second, nil)
		q.Close()
	}
}

// News comes after the look that has found too few permits for the next waiter: that looks at once.
func TestPermitsCountedBeforeTheNewsHoldUpNobody(t *testing.T) {
	for _, news := range []bool{false, true} {
		q := newTest()
		key := keyOf("a")
		first := q.enter(key, 0)
		second, _ := q.join(key, 2, time.Now(), 0)
		q.notePoll(first)
		if news {
			q.notify()
		}
		q.leave(first, &Exit{Remaining: 1, Until: q.cfg.Timeline.Now().Add(time.Minute)})
		if n := q.takeUpdate(second); !poked(second) || (n.previous == nil) != news {
			t.Errorf("with news: %v, it reads %+v", news, n)
		}
		q.leave(second, nil)
		q.Close()
	}
}

func TestKeptLineTellsTheNextWaiterWhetherToLookAgain(t *testing.T) {
	for name, test := range map[string]struct {
		between func(q *lineTest, key Key)
		again   bool
	}{
		"nothing":         {func(*lineTest, Key) {}, false},
		"a message":       {func(q *lineTest, _ Key) { q.notify() }, true},
		"a local release": {func(q *lineTest, key Key) { q.Wake(key.Lock) }, true},
		"another waiter that heard a message": {func(q *lineTest, key Key) {
			w := q.enter(key, 0)
			q.notify()
			q.leave(w, gotIt)
		}, true},
		"its end, and a new line": {func(q *lineTest, key Key) {
			q.expireAll()
			q.leave(q.enter(key, 0), gotIt)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := newTest()
			defer q.Close()
			key := keyOf("a")
			q.leave(q.enter(key, 0), gotIt)
			_, news, _ := q.Latest(key)
			test.between(q, key) // while the first look is under way
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
func (q *lineTest) expireAll() {
	q.Close()
	q.isClosed = false
}

func TestLinesAreKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTest()
		a, b := keyOf("a"), keyOf("b")
		q.leave(q.enter(a, 0), gotIt)
		time.Sleep(keep / 2)
		synctest.Wait()
		q.leave(q.enter(b, 0), gotIt)
		time.Sleep(keep/2 - time.Nanosecond)
		synctest.Wait()
		if q.open != 2 {
			t.Fatalf("%d subscriptions are kept", q.open)
		}
		w := q.enter(a, 0) // it is not kept any more, but used
		time.Sleep(keep/2 + time.Second)
		synctest.Wait()
		if q.open != 1 || q.byKey[b] != nil {
			t.Fatalf("%d subscriptions are left", q.open)
		}
		q.leave(w, gotIt)
		time.Sleep(keep + time.Second)
		synctest.Wait()
		if q.open != 0 || len(q.byKey) != 0 || q.kept.Len() != 0 {
			t.Fatalf("%d subscriptions are left", q.open)
		}
	})
}

func TestLinesThatAreNotKept(t *testing.T) {
	q := newTest()
	q.leave(q.enter(keyOf("given up"), 0), nil)
	own := keyOf("place of its own in Redis")
	own.ID = "1"
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
	q.Close()
	q.leave(late, gotIt)
	if q.open != 0 || len(q.byKey) != 0 {
		t.Fatalf("%d subscriptions are left after the end", q.open)
	}
}

// A client knows of those who listen beside it, and lets them go first.
func TestHeadYieldsToOtherClientsThatListen(t *testing.T) {
	q := newTest()
	key := keyOf("a")
	if n := q.NoteListeners(key, 5, false); n != 5 || q.byKey[key] != nil {
		t.Fatalf("%d others listen, and a line was made: %v", n, q.byKey[key])
	}
	w := q.enter(key, 0)
	for heard, others := range []int{0, 0, 1, 2} {
		if n := q.NoteListeners(key, heard, false); n != others || q.Crowded(w) != (others > 1) {
			t.Fatalf("%d listen: %d others, a crowd: %v", heard, n, q.Crowded(w))
		}
	}
	if d := q.yieldTime(w, 0); d > 0 {
		t.Fatalf("it yields for %v before it has had the lock", d)
	}
	q.Yield(key, 100)
	if d := q.yieldTime(w, 40); d != 60 {
		t.Fatalf("it yields for %v, want 60ns", d)
	}
	q.leave(w, gotIt)
	if n := q.NoteListeners(keyOf("b"), 1, true); n != 1 {
		t.Fatalf("%d others", n)
	}
	q.Yield(keyOf("b"), 100) // nobody waits, but the next one of this client knows it
	if waiting, _, yields := q.Latest(keyOf("b")); waiting != 0 || yields != 100 {
		t.Fatalf("%d wait, it yields until %v", waiting, yields)
	}
	q.Close()
}

// pool is what waiters of a test ask for: some units, as a semaphore has.
type pool struct {
	*Lines
	mu     sync.Mutex
	free   int64
	looks  int
	looked func() // during a look
	serial int64
}

// poolCall is a call for some of them.
type poolCall struct {
	Call
	*pool
	forAll bool // what the head finds is true for all who waited before it looked
}

var poolLine = keyOf("pool")

func (c *poolCall) Line() Key { return poolLine }

func (c *poolCall) Poll(context.Context) (exit *Exit, rest time.Duration, err error) {
	p := c.pool
	p.mu.Lock()
	p.looks++
	free, looked := p.free, p.looked
	if free >= c.Need {
		p.free -= c.Need
	}
	p.mu.Unlock()
	if looked != nil {
		looked()
	}
	switch {
	case free < c.Need:
		return nil, -1, nil
	case c.Place == nil:
		return &Exit{}, 0, nil
	case c.forAll:
		return &Exit{ForAll: true}, 0, nil
	}
	return &Exit{Remaining: free - c.Need}, 0, nil
}

func (c *poolCall) Subscribe(notify func()) (end func()) { notify(); return func() {} }

func (c *poolCall) Withdraw() {}
func (c *poolCall) Pause(*Waiter, int, time.Duration, error) time.Duration {
	return seam.FarAway
}

func newPool() *pool { return &pool{Lines: newLines()} }

func (p *pool) ask(ctx context.Context, need int64, forAll bool) chan error {
	p.serial++
	c := &poolCall{pool: p, forAll: forAll}
	c.Call = Call{Lines: p.Lines, Poller: c, Status: &Status{}, Who: p.serial, Need: need, Longest: time.Minute}
	done := make(chan error, 1)
	go func() {
		c.Sleeper.Begin(p.cfg.Env)
		defer c.Sleeper.Stop()
		done <- c.Await(ctx, 0, 0)
	}()
	return done
}

func (p *pool) add(n int64) {
	p.mu.Lock()
	p.free += n
	p.mu.Unlock()
	p.Wake(poolLine.Lock)
}

// Each wake-up comes when the waiter that gets it is canceled too. None is lost, and
// canceled waiters do not look.
func TestWakeUpsAreNotLostWithWaitersThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		const waiters = 1000
		var ends []context.CancelFunc
		var outcomes []chan error
		for range waiters {
			ctx, cancel := context.WithCancel(t.Context())
			ends = append(ends, cancel)
			outcomes = append(outcomes, p.ask(ctx, 1, false))
			synctest.Wait()
		}
		last := p.ask(t.Context(), 1, false)
		synctest.Wait()
		before := p.looks
		// Who is woken goes on when the test says so.
		woken := make(chan struct{})
		p.cfg.Env.Gate = func(string) { <-woken }
		p.add(1)
		for _, cancel := range ends {
			synctest.Wait() // the first of them has been woken
			cancel()
			woken <- struct{}{}
		}
		woken <- struct{}{} // the last waiter
		for _, o := range outcomes {
			if err := <-o; !errors.Is(err, context.Canceled) {
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
		p.Close()
	})
}

// Units that come together admit several waiters at once, in order, and no more look than
// permits are free for.
func TestFreePermitsAdmitSeveralWaitersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		needs := []int64{2, 1, 1, 3, 1, 5, 1}
		var outcomes []chan error
		for _, n := range needs {
			outcomes = append(outcomes, p.ask(t.Context(), n, false))
			synctest.Wait()
		}
		p.mu.Lock()
		p.looks = 0
		p.looked = func() { time.Sleep(time.Second) } // a slow server
		p.mu.Unlock()
		start := time.Now()
		p.add(9) // not enough for the sixth, behind whom the seventh waits
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
		p.add(5)
		for _, o := range outcomes[5:] {
			if err := <-o; err != nil {
				t.Fatal(err)
			}
		}
		p.Close()
	})
}

// What the head has found is true for all who waited before it looked, and for no other.
func TestOneLookServesAllWhoWaitedBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		var outcomes []chan error
		for range 100 {
			outcomes = append(outcomes, p.ask(t.Context(), 1, true))
			synctest.Wait()
		}
		p.mu.Lock()
		p.looks = 0
		p.looked = func() { time.Sleep(time.Second) }
		p.mu.Unlock()
		p.add(1)
		synctest.Wait()
		late := p.ask(t.Context(), 1, true)
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
		p.add(1)
		if err := <-late; err != nil {
			t.Fatal(err)
		}
		p.Close()
	})
}

// Where Redis keeps the order, each waiter has a line of its own. A message may have come before its subscription, so it
// looks when that is confirmed, whoever else of its client waits; and a message wakes only the waiter that it is for.
func TestEachWaiterInAQueueLooksWhenItIsSubscribed(t *testing.T) {
	q := newTest()
	defer q.Close()
	join := func(id string) (w *Waiter, notify func()) {
		key := keyOf("a")
		key.ID = id
		w = q.enter(key, 0)
		w.drainWake()
		return w, q.notify
	}
	first, confirmFirst := join("c:1")
	second, confirmSecond := join("c:2")
	for _, step := range []struct {
		what          string
		do            func()
		first, second bool // who looks
	}{
		{"the second is subscribed", confirmSecond, false, true},
		{"the first is subscribed", confirmFirst, true, false},
		{"a message to the second", confirmSecond, false, true},
		{"the first leaves with the lock", func() { q.leave(first, gotIt) }, false, false},
		{"a release of its client", func() { q.Wake(keyOf("a").Lock) }, false, false},
		{"a message to the second again", confirmSecond, false, true},
	} {
		step.do()
		if one, two := poked(first), poked(second); one != step.first || two != step.second {
			t.Errorf("%s: the first looks: %v, the second: %v", step.what, one, two)
		}
	}
}

// aboutToListen returns the head of a line, which is about to subscribe to grants, and has been given
// a hold of its client just then.
func aboutToListen(t *testing.T, q *Lines, key Key) *Waiter {
	t.Helper()
	w, _ := q.join(key, 1, time.Now(), 0)
	w.line.unsub = func() {}
	w.line.hasServed = true
	if !q.Sleeps(w, true, StandBy{}) {
		t.Fatal("does not listen")
	}
	if !q.Give(key, "a hold", Status{}) {
		t.Fatal("not given")
	}
	return w
}

func TestNextWaiterSubscribesToGrants(t *testing.T) {
	q := newLines()
	key := Key{Lock: protocol.LockID{Family: "lock", Name: "a"}}
	ended := 0
	w := aboutToListen(t, q, key)
	next, _ := q.join(key, 1, time.Now(), 0)
	if !q.Sleeps(next, true, StandBy{}) {
		t.Fatal("does not listen")
	}
	q.AddSubscription(next, func() { ended++ })
	q.AddSubscription(w, func() { ended++ })
	q.leave(next, nil)
	q.Close()
	if ended != 2 {
		t.Errorf("%d of 2 subscriptions were ended", ended)
	}
}

func TestSubscriptionToGrantsOfARemovedLineEnds(t *testing.T) {
	q := newLines()
	ended := 0
	w := aboutToListen(t, q, Key{Lock: protocol.LockID{Family: "lock", Name: "a"}})
	q.Close() // or expire, or the line is the oldest of too many
	q.AddSubscription(w, func() { ended++ })
	if ended != 1 {
		t.Error("the subscription is not ended")
	}
}

// A message that comes between a look and the sleep after it gives the waiter its hold, once: if it
// cannot use that, it has to look, and not to be given the same again.
func TestGrantBeforeTheWaiterSleeps(t *testing.T) {
	q := newLines()
	w, _ := q.join(Key{Lock: protocol.LockID{Family: "lock", Name: "a"}}, 1, time.Now(), 0)
	q.Granted(w, &protocol.Grant{ID: "c:1", Token: 7, Poll: 1}, 0, time.Hour)
	for _, is := range []struct {
		StandBy
		given bool
	}{{StandBy{ID: "c:1", Poll: 2}, false}, {StandBy{ID: "c:2", Poll: 1}, false}, {StandBy{}, false}, {StandBy{ID: "c:1", Poll: 1}, true}, {StandBy{ID: "c:1", Poll: 1}, false}, {StandBy{ID: "c:1"}, false}} {
		q.Sleeps(w, true, is.StandBy)
		if got, was := q.takeGiven(w).(*Grant); was != is.given || was && got.Token != 7 {
			t.Errorf("%+v: %+v", is, got)
		}
	}
}

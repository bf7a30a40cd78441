package rlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// lineTest is the lines of a client, whose subscriptions are counted.
type lineTest struct {
	lines
	open   int
	notify func() // of the latest subscription
}

func keyOf(name string) lineKey { return lineKey{lock: lockID{name: name}} }

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
			q.leave(w, gotIt, 0)
		}, true},
		"its end, and a new line": {func(q *lineTest, key lineKey) {
			q.expireAll()
			q.leave(q.enter(key, 0), gotIt, 0)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var q lineTest
			defer q.close()
			key := keyOf("a")
			q.leave(q.enter(key, 0), gotIt, 0)
			_, news := q.latest(key)
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
		q.leave(q.enter(a, 0), gotIt, 0)
		time.Sleep(keepLine / 2)
		synctest.Wait()
		q.leave(q.enter(b, 0), gotIt, 0)
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
		q.leave(w, gotIt, 0)
		time.Sleep(keepLine + time.Second)
		synctest.Wait()
		if q.open != 0 || len(q.byKey) != 0 || q.kept.Len() != 0 {
			t.Fatalf("%d subscriptions are left", q.open)
		}
	})
}

func TestLinesThatAreNotKept(t *testing.T) {
	var q lineTest
	q.leave(q.enter(keyOf("given up"), 0), nil, 0)
	own := keyOf("place of its own in Redis")
	own.id = "1"
	q.leave(q.enter(own, 0), gotIt, 0)
	if q.open != 0 || len(q.byKey) != 0 {
		t.Fatalf("%d subscriptions are kept", q.open)
	}
	for i := range mostKept + 10 {
		q.leave(q.enter(keyOf(fmt.Sprint(i)), 0), gotIt, 0)
	}
	if q.open != mostKept || len(q.byKey) != mostKept || q.byKey[keyOf("9")] != nil || q.byKey[keyOf("10")] == nil {
		t.Fatalf("%d subscriptions are kept", q.open)
	}
	late := q.enter(keyOf("late"), 0)
	q.close()
	q.leave(late, gotIt, 0)
	if q.open != 0 || len(q.byKey) != 0 {
		t.Fatalf("%d subscriptions are left after the end", q.open)
	}
}

// After a batch the head makes way if more connections than its own listen.
func TestHeadMakesWayForThoseWhoListen(t *testing.T) {
	q := &lineTest{}
	key := keyOf("a")
	q.yield(key, 5, 100) // nobody waits
	w := q.enter(key, 0)
	if d := q.yieldsFor(w, 0); d > 0 {
		t.Fatalf("it makes way for %v before any batch", d)
	}
	q.yield(key, 1, 100)
	if d := q.yieldsFor(w, 0); d > 0 {
		t.Fatalf("it makes way for %v for itself", d)
	}
	q.yield(key, 2, 100)
	if d := q.yieldsFor(w, 40); d != 60 {
		t.Fatalf("it makes way for %v, want 60ns", d)
	}
	q.leave(w, gotIt, 0)
}

package rlock

import (
	"container/list"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// lines are the waiters of a client, by lock. Those who wait for one lock
// stand in line here, first come, first served, and only the head of the line
// asks Redis: traffic and herds grow with the number of processes, not of
// goroutines. The two sides of a read-write lock have a line each. Where Redis
// keeps the order of waiters, each is in a line of its own here.
//
// This is also where a hold could be passed on inside the process without a
// round trip.
type lines struct {
	mu    sync.Mutex // guards the rest and the lines
	byKey map[lineKey]*line
}

// lineKey says who stands in a line.
type lineKey struct {
	lock lockID
	side side
	id   string // of the hold to be, if each waiter has its own line
}

// line is one of them. It exists while somebody waits.
type line struct {
	key     lineKey
	waiters list.List // of *waiter; the head is the one that asks Redis
	unsub   func()    // ends the subscription, if there is one
	seen    sight     // by the head; or the hold that the head before it has got
}

// waiter is a place in a line.
type waiter struct {
	line  *line
	place *list.Element
	since time.Time // when it began to wait
	// wake (capacity 1) is poked when the waiter becomes the head, is admitted or
	// should leave, and while it is the head whenever it should look at the
	// lock. Pokes may be spurious or collapse into one; see news.
	wake chan struct{}

	// Guarded by lines.mu. behind is the hold that the head before this one
	// got: no need to ask Redis while that lasts. It is nil if that one left
	// without the lock, and may have had a wake-up that it did not use: then the new
	// head looks at once.
	behind   passed
	admitted bool  // the head has got what can be shared: look too
	round    int64 // the waiter counts as having waited since then; see protocol.Entry.Round
	err      error // why it should leave
}

// join puts a waiter at the end of the line, and reports whether it is the
// head.
func (q *lines) join(key lineKey, now time.Time) (w *waiter, head bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil {
		l = &line{key: key}
		if q.byKey == nil {
			q.byKey = map[lineKey]*line{}
		}
		q.byKey[key] = l
	}
	w = &waiter{line: l, wake: make(chan struct{}, 1), since: now, round: protocol.NoRound}
	w.place = l.waiters.PushBack(w)
	return w, l.waiters.Len() == 1
}

// waiting is how many stand in line.
func (q *lines) waiting(key lineKey) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len()
	}
	return 0
}

// passed is the hold with which a waiter leaves its line.
type passed interface {
	alive() bool
	restOfLease() time.Duration
}

// handOver is how the head of a line leaves it with a hold.
type handOver struct {
	hold   passed
	shared bool  // others can enter beside it
	seen   sight // what those behind it see from now on
}

// leave takes a waiter out of the line. got is the hold it leaves with, nil if
// none, and round the one in which it was refused: those behind it count as
// refused then too. It was refused itself: were it enough that it counts as such,
// newcomers would go first for as long as somebody stands in line. The last one to
// leave ends the subscription.
func (q *lines) leave(w *waiter, got *handOver, round int64) {
	q.mu.Lock()
	line := w.line
	wasHead := line.waiters.Front() == w.place
	if wasHead && got != nil {
		line.seen = got.seen
	}
	line.waiters.Remove(w.place)
	var unsub func()
	if front := line.waiters.Front(); front == nil {
		delete(q.byKey, line.key)
		unsub, line.unsub = line.unsub, nil
	} else if wasHead && got != nil && got.shared {
		// What one can read all can: they need not come in one by one.
		for e := front; e != nil; e = e.Next() {
			next := e.Value.(*waiter)
			next.admitted = true
			if next.round == protocol.NoRound {
				next.round = round
			}
			next.poke()
		}
	} else if wasHead {
		next := front.Value.(*waiter)
		if got != nil {
			next.behind = got.hold
		}
		next.poke()
	}
	q.mu.Unlock()
	if unsub != nil {
		unsub()
	}
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wake tells those who are the heads of a lock's lines to look at it.
func (q *lines) wake(lock lockID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, side := range []side{exclusive, shared} {
		q.byKey[lineKey{lock: lock, side: side}].pokeHead()
	}
}

// wakeHead tells the head of one line to look at the lock.
func (q *lines) wakeHead(key lineKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.byKey[key].pokeHead()
}

func (q *line) pokeHead() {
	if q == nil {
		return
	}
	if front := q.waiters.Front(); front != nil {
		front.Value.(*waiter).poke()
	}
}

// subscribe makes sure that the line hears of releases. It returns at once:
// the head is poked when the subscription is confirmed, and looks again then.
func (q *lines) subscribe(w *waiter, open func(notify func()) (end func())) {
	q.mu.Lock()
	line := w.line
	have := line.unsub != nil
	q.mu.Unlock()
	if have {
		return
	}
	// Only the head subscribes, so nobody else does it in between.
	unsub := open(func() { q.wakeHead(line.key) })
	q.mu.Lock()
	line.unsub = unsub
	q.mu.Unlock()
}

// fail tells everybody who has waited since the given time, or for longer, what w has
// found out: that Redis has given no answer since then. Without it each would find out
// for itself, one after the other.
func (q *lines) fail(w *waiter, since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// Those who become the head meanwhile may have seen the poke already and
	// find out for themselves: w is the head now, so that is at most the next.
	for e := w.line.waiters.Front(); e != nil; e = e.Next() {
		if other := e.Value.(*waiter); other != w && !other.since.After(since) {
			other.err = err
			other.poke()
		}
	}
}

// news is what a waiter that was behind others learns when it is poked: that it
// should leave; that it is the head now, and behind which hold; or that it is
// admitted all the same, once.
type news struct {
	err      error
	head     bool
	behind   passed
	admitted bool
	round    int64 // if admitted
}

func (q *lines) news(w *waiter) news {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := news{w.err, w.line.waiters.Front() == w.place, w.behind, w.admitted, w.round}
	w.admitted = false
	return n
}

// saw tells those who stand behind w what it has seen.
func (q *lines) saw(w *waiter, s sight) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.line.seen = s
}

// seen is what was seen by the head of the line in which w stands; own if it has
// not looked yet.
func (q *lines) seen(w *waiter, own sight) sight {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := w.line.seen; s != (sight{}) {
		return s
	}
	return own
}

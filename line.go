package rlock

import (
	"container/list"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// lines are the waiters of a client, by lock. The waiters for one lock form a line,
// first come, first served, and only its head asks Redis: traffic grows with the number
// of processes, not of goroutines. Each side of a read-write lock has a line. Where
// Redis keeps the order of waiters, each waiter has a line of its own.
//
// A hold can be handed over to the head: see handover.go. A release can grant it one: see passing.go
// and queue.go.
type lines struct {
	mu     sync.Mutex // guards the rest and the lines
	byKey  map[lineKey]*line
	serial int64       // of the latest news, of any line
	kept   list.List   // of *line: those without waiters, the one that is longest so first
	expiry *time.Timer // runs while lines are kept
	closed bool        // no line is kept any more
	rested bool        // the goroutine of glances runs
	// relieved are the heads for which glances look, and some that have left or look by themselves.
	relieved []*waiter
	queues   map[protocol.LockID]*queue
	looking  map[lineKey]bool // of a Once: see looksFirst
}

// A lock for which a waiter had to wait is likely to be waited for again soon. Its line
// stays subscribed for keepLine after the last waiter got the lock, so the next one need
// not subscribe, look again and unsubscribe. mostKept bounds what that costs Redis and the
// client.
const (
	keepLine = 3 * time.Second
	mostKept = 1000
)

// lineKey identifies a line.
type lineKey struct {
	lock protocol.LockID
	side protocol.Side
	id   string // of the hold to be, if each waiter has its own line
}

// line is the waiters of one lock. It exists while it has a waiter or is kept.
type line struct {
	key     lineKey
	waiters list.List     // of *waiter; the head is the one that asks Redis
	unsub   func()        // ends the subscription, if there is one
	turns   func()        // ends the subscription to turns, or to permits that are added: see passing.go
	turn    protocol.Turn // the latest
	seen    sight         // what the head saw; or the hold that the previous head got

	// news is the serial number of the latest reason to look: a message, a confirmed
	// subscription, a local release. No two lines ever have the same.
	news   int64
	joined int64 // how many waiters have ever joined it
	taken  int64 // how much inquiries have taken that have left it

	place  *list.Element // among the kept lines; nil: it has waiters
	since  time.Time     // when it was left, if it is kept
	served bool          // a waiter has left it with the lock
	others time.Time     // when other clients were last known to listen,
	rivals int           // and how many connections they had

	// quiet: an owner in this client has a hold that may be handed over. Until the alarm,
	// news does not wake the head: it is of the release before that hold.
	quiet  bool
	alarm  *time.Timer
	yields clock.Instant // until when the head lets waiters of other clients go first
	crowd  *crowd        // of those that wait for permits; nil: no message of any has come
}

// waiter is a place in a line.
type waiter struct {
	line  *line
	place *list.Element
	since time.Time // when it began to wait
	// wake (capacity 1) is poked when the waiter becomes the head, is admitted or
	// should leave, and whenever it should look at the lock as the head. Pokes may be
	// spurious, and several may become one; see news.
	wake chan struct{}

	// Guarded by lines.mu. behind is the hold that the previous head got: while it
	// lasts, there is no need to ask Redis. It is nil if the previous head left without
	// the lock. It may have received a wake-up then, so the new head looks at once.
	behind   passed
	admitted bool  // there may be room beside what the head got: look too
	round    int64 // the waiter counts as having waited since then; see protocol.Acquire.Round
	err      error // why it should leave
	looking  bool  // there was room for it: it looks, or is about to
	saw      int64 // the news as of its last look
	takes    bool  // it sleeps, and takes a hold that is handed over; it leaves its line then
	given    gift
	standing         // if Redis keeps its place
	standsBy standby // see passing.go

	need int64 // how much room it needs

	// Of an inquiry; see leave. The number says when it joined the line.
	number int64
	served bool // the head has found what it waits for; the waiter is not in its line any more

	look     *protocol.HashLock // what glances look at for it; nil: it looks by itself
	glancing time.Time          // when the glance began that is under way; zero: none is
	listed   bool               // it is in lines.relieved
}

// join puts a waiter at the end of the line, and reports whether it is the head. news is
// what latest returned before the waiter looked and found the lock busy; 0: it has not
// looked.
//
// The head looks again as soon as the line is subscribed: a release between its first look
// and the subscription was not heard. If the line was kept, its subscription began before
// that look was sent. Then each release after the look is heard: as a message; or, if the
// subscription was not confirmed yet or was interrupted, by the confirmation that follows.
// Either is news. So without news since then there is nothing to look for; and what came
// before the waiter joined the line, when there was no head to be poked, is made up for
// here.
func (q *lines) join(key lineKey, now time.Time, news int64) (w *waiter, head bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil {
		l = q.makeLocked(key)
	}
	if l.place != nil {
		q.kept.Remove(l.place)
		l.place = nil
	}
	l.joined++
	w = &waiter{line: l, wake: make(chan struct{}, 1), since: now, round: protocol.NoRound, number: l.joined}
	w.place = l.waiters.PushBack(w)
	head = l.waiters.Len() == 1
	if head && l.unsub != nil && l.news != news {
		w.poke()
	}
	return w, head
}

// makeLocked makes a line.
func (q *lines) makeLocked(key lineKey) *line {
	l := &line{key: key}
	q.newsLocked(l)
	if q.byKey == nil {
		q.byKey = map[lineKey]*line{}
	}
	q.byKey[key] = l
	return l
}

// latest returns the length of a line, the serial number of its latest news, and until when it lets
// others go first; 0: it does not exist.
func (q *lines) latest(key lineKey) (waiting int, news int64, yields clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len(), line.news, line.yields
	}
	return 0, 0, 0
}

// waiting is the length of a line.
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

// handOver is how the head of a line leaves it with a hold, or with what else it waited for.
type handOver struct {
	hold   passed // nil: it has none
	shared bool   // others can enter beside it
	passes bool   // it may be handed over to those behind it
	seen   sight  // what those behind it see from now on
	room   int64  // how much is left for those behind it, who may look together ...
	taken  int64  // ... when the line had taken so much
	upTo   int64  // those with a number up to that have what they waited for too
	beside *room  // it has permits of a semaphore: others enter beside it
	round  int64  // shared: the round in which Redis refused it
}

// leave takes a waiter out of the line. got is the hold with which it leaves; nil: none.
// Those behind it count as refused in the round in which Redis refused it. It must have been refused itself: if the refusals that it only counts for
// were handed on, newcomers would go first as long as the line has a waiter. With the last
// waiter the subscription ends, at once or, if that got the lock, after a while.
func (q *lines) leave(w *waiter, got *handOver) {
	q.mu.Lock()
	if w.place == nil { // it was given a hold
		q.mu.Unlock()
		return
	}
	line := w.line
	line.served = line.served || got != nil
	wasHead := line.waiters.Front() == w.place
	if wasHead && got != nil {
		line.seen = got.seen
	}
	ends := q.takeOutLocked(w, got != nil)
	if got != nil && got.hold == nil {
		if wasHead {
			ends = append(ends, q.serveLocked(line, got)...)
		}
		line.taken += w.need
	}
	switch front := line.waiters.Front(); {
	case front == nil || !wasHead:
	case got != nil && got.beside != nil:
		q.admitLocked(line, w, got)
	case got != nil && got.shared:
		// All readers can enter beside it: they need not wait for each other.
		for e := front; e != nil; e = e.Next() {
			next := e.Value.(*waiter)
			next.admitted = true
			if next.round == protocol.NoRound {
				next.round = got.round
			}
			next.poke()
		}
	case got != nil && got.passes:
		q.quietLocked(line)
	default:
		next := front.Value.(*waiter)
		if got != nil {
			next.behind = got.hold
		}
		next.poke()
	}
	q.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// takeOutLocked takes a waiter out of its line. It returns what emptyLocked does.
func (q *lines) takeOutLocked(w *waiter, got bool) (ends []func()) {
	w.line.waiters.Remove(w.place)
	w.place = nil
	if w.rank != 0 {
		q.standsNoMoreLocked(w, got)
	}
	if w.line.waiters.Len() == 0 {
		w.line.loudLocked()
		ends = q.emptyLocked(w.line, got)
	}
	return ends
}

// emptyLocked keeps a line that its last waiter has left, if it may be needed again soon, or
// removes it. A line of one waiter only is never needed again. It returns what ends the
// subscriptions that are not needed any more, to be called without the mutex.
func (q *lines) emptyLocked(l *line, got bool) (ends []func()) {
	if !got || l.unsub == nil && time.Since(l.others) > keepLine || l.key.id != "" || q.closed {
		return q.removeLocked(l, nil)
	}
	l.seen = sight{}
	return q.keepLocked(l)
}

// keepLocked keeps a line that has no waiters. It returns what emptyLocked does.
func (q *lines) keepLocked(l *line) (ends []func()) {
	l.since = time.Now() // as of subscriptions: by the real clock
	l.place = q.kept.PushBack(l)
	if q.kept.Len() > mostKept {
		ends = q.removeLocked(q.kept.Front().Value.(*line), nil)
	}
	if q.expiry == nil {
		q.expiry = time.AfterFunc(keepLine, q.expire)
	}
	return ends
}

func (q *lines) removeLocked(l *line, ends []func()) []func() {
	delete(q.byKey, l.key)
	l.crowd.stop()
	if l.place != nil {
		q.kept.Remove(l.place)
		l.place = nil
	}
	for _, end := range []*func(){&l.unsub, &l.turns} {
		if *end != nil {
			ends = append(ends, *end)
			*end = nil
		}
	}
	return ends
}

// expire removes the lines that were kept for long enough.
func (q *lines) expire() {
	q.mu.Lock()
	var ends []func()
	q.expiry = nil
	for first := q.kept.Front(); first != nil; first = q.kept.Front() {
		l := first.Value.(*line)
		if left := keepLine - time.Since(l.since); left > 0 {
			q.expiry = time.AfterFunc(left, q.expire)
			break
		}
		ends = q.removeLocked(l, ends)
	}
	q.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// close removes the lines that are kept. None is from now on.
func (q *lines) close() {
	q.mu.Lock()
	var ends []func()
	q.closed = true
	if q.expiry != nil {
		q.expiry.Stop()
	}
	for q.kept.Len() > 0 {
		ends = q.removeLocked(q.kept.Front().Value.(*line), ends)
	}
	q.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// looks is called by the head of a line before it looks: that look answers all pokes so far.
func (w *waiter) looks() {
	select {
	case <-w.wake:
	default:
	}
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wake tells the heads of a lock's lines to look at it.
func (q *lines) wake(lock protocol.LockID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, side := range []protocol.Side{protocol.Exclusive, protocol.Shared} {
		if l := q.byKey[lineKey{lock: lock, side: side}]; l != nil {
			l.loudLocked()
			q.newsLocked(l)
		}
	}
}

// newsLocked notes that there is a reason to look at the lock, for the head of the line or
// for the next waiter that becomes it.
func (q *lines) newsLocked(l *line) {
	q.serial++
	l.news = q.serial
	if head := l.head(); head != nil && !l.quiet {
		if _, is := head.behind.(*room); is {
			head.behind = nil // its poke may not be consumed yet, and be the same as this one
		}
		head.poke()
	}
}

// head is the waiter that asks Redis; nil: there is none. It is called with lines.mu locked.
func (l *line) head() *waiter {
	if front := l.waiters.Front(); front != nil {
		return front.Value.(*waiter)
	}
	return nil
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
	unsub := open(q.ear(line))
	q.mu.Lock()
	line.unsub = unsub
	q.mu.Unlock()
}

// ear returns what is to be called when a line is subscribed, and for each message.
func (q *lines) ear(l *line) (notify func()) {
	first := true
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		w, all := l.head(), q.queues[l.key.lock]
		if confirms := first; confirms && w != nil && w.rank != 0 && (*all)[0] != w {
			q.serial++
			w.subscribed = q.serial
		} else {
			q.newsLocked(l)
		}
		first = false
	}
}

// fail tells all waiters that joined before the given time what w has found out: that
// Redis has not answered since then, or that there is a result. Otherwise they would find
// out one after the other.
func (q *lines) fail(w *waiter, since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// A waiter that becomes the head meanwhile may have consumed the poke, and finds out
	// by itself. w is the head now, so that is at most the next one.
	for e := w.line.waiters.Front(); e != nil; e = e.Next() {
		if other := e.Value.(*waiter); other != w && other.err == nil && !other.since.After(since) {
			other.err = err
			other.poke()
		}
	}
}

// news is what a poked waiter learns: that it should leave; that it is the head now, and
// behind which hold; or that it is admitted though it is not the head, once.
type news struct {
	served   bool
	err      error
	head     bool
	behind   passed
	admitted bool
	round    int64 // if admitted
}

func (q *lines) news(w *waiter) news {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := news{w.served, w.err, w.line.waiters.Front() == w.place, w.behind, w.admitted, w.round}
	w.admitted = false
	return n
}

// saw tells the waiters behind w what it has seen.
func (q *lines) saw(w *waiter, s sight) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.line.seen = s
}

// seen is what the head of the line of w has seen; own if the head has not looked yet.
func (q *lines) seen(w *waiter, own sight) sight {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := w.line.seen; s != (sight{}) {
		return s
	}
	return own
}

// Package wait has the waiters of a client. Those for one lock form a line, first come, first served; only its
// head asks Redis. It knows no holds and no scripts: what one asks for is its [Asker]'s, and what it is given while
// it sleeps is opaque.
//
// await.go is how one waits; lines.go the lines; passing.go and queue.go how one is given a hold, by its client or by
// a release of another, and why that is safe; room.go how several enter beside each other; glance.go how many heads
// look by one command.
package wait

import (
	"container/list"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Lines are the waiters of a client, by lock. The waiters for one lock form a line,
// first come, first served, and only its head asks Redis: traffic grows with the number
// of processes, not of goroutines. Each side of a read-write lock has a line. Where
// Redis keeps the order of waiters, each waiter has a line of its own.
//
// A hold can be handed over to the head: see Give. A release can grant it one: see passing.go
// and queue.go. S is what a look has seen, which those behind it share; its zero value is nothing.
type Lines[S comparable] struct {
	cfg    Config[S]
	mu     sync.Mutex // guards the rest and the lines
	byKey  map[Key]*line[S]
	serial int64       // of the latest news, of any line
	kept   list.List   // of *line: those without waiters, the one that is longest so first
	expiry *time.Timer // runs while lines are kept
	closed bool        // no line is kept any more
	queues map[protocol.LockID]*queue[S]
	// looking are those of whom one looks who found no waiters: see LooksFirst.
	looking map[Key]bool

	rested   bool         // the goroutine of glances runs
	relieved []*Waiter[S] // the heads for which glances look, and some that have left or look by themselves
}

// Config is what the lines of a client need of it.
type Config[S comparable] struct {
	Env      *seam.Env
	Timeline *clock.Timeline
	Wire     *wire.Deployment
	Running  *wire.Tally   // Shutdown waits for it
	Closing  chan struct{} // closed when Shutdown begins
	Closed   error         // of those who wait then
	Seed     uint64

	LongestPoll   time.Duration // a head looks as often
	GlanceWithin  time.Duration // the answer to a glance comes, or its heads look by themselves
	LongestOutage time.Duration // that anybody outlasts
	// A line stays subscribed for Keep after its last waiter got the lock, so that the next one need not
	// subscribe, look again and unsubscribe: a lock for which a waiter had to wait is likely to be waited for
	// again soon. MostKept bounds what that costs Redis and the client.
	Keep     time.Duration
	MostKept int

	Saw       func(e *protocol.Entered, now time.Time) S // what a glance has seen of a lock that is held
	Transient func(err error) bool                       // Redis may answer again
}

// New returns the lines of a client.
func New[S comparable](cfg Config[S]) *Lines[S] { return &Lines[S]{cfg: cfg} }

// Key identifies a line.
type Key struct {
	Lock protocol.LockID
	Side protocol.Side
	ID   string // where each waiter has a line of its own: of its hold to be; or of those that stand aside
}

// line is the waiters of one lock. It exists while it has a waiter or is kept.
type line[S comparable] struct {
	key     Key
	waiters list.List     // of *Waiter; the head is the one that asks Redis
	unsub   func()        // ends the subscription, if there is one
	turns   func()        // ends the subscription to turns, or to permits that are added: see passing.go
	turn    protocol.Turn // the latest
	seen    S             // what the head saw; or the hold that the previous head got

	// news is the serial number of the latest reason to look: a message, a confirmed
	// subscription, a local release. No two lines ever have the same.
	news   int64
	joined int64 // how many waiters have ever joined it
	taken  int64 // how much was taken by those who have left it with what is no hold

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

// Waiter is a place in a line. What is not said to be otherwise is guarded by Lines.mu.
type Waiter[S comparable] struct {
	line  *line[S] // never changes
	place *list.Element
	since time.Time // when it began to wait; never changes
	// wake (capacity 1) is poked when the waiter becomes the head, is admitted or
	// should leave, and whenever it should look at the lock as the head. Pokes may be
	// spurious, and several may become one; see news.
	wake   chan struct{}
	number int64 // of those who ever joined the line
	learns news  // what it is to learn when it wakes
	room   share
	takes  bool // it sleeps, and takes a hold that is handed over; it leaves its line then
	given  any  // a hold that it was given meanwhile: what Give was called with, or a *Grant
	standing
	standsBy StandBy // see passing.go
	glance   watched
}

// share is how much room a waiter needs, where several can enter: permits.
type share struct {
	need    int64
	looking bool  // there was room for it: it looks, or is about to
	saw     int64 // the news as of its last look
}

// news is what a poked waiter learns: that it should leave; that it is the head now, and
// behind which hold; or that it is admitted though it is not the head, once.
type news struct {
	served bool  // the head has found what it waits for; it is not in its line any more
	err    error // why it should leave
	head   bool
	// behind is the hold that the previous head got: while it lasts, there is no need to ask Redis. It is nil
	// if the previous head left without the lock. It may have received a wake-up then, so the new head looks
	// at once.
	behind   passed
	admitted bool  // there may be room beside what the head got: look too
	round    int64 // it counts as having waited since then; see protocol.Acquire.Round
}

// join puts a waiter at the end of the line, and reports whether it is the head. news is
// what Latest returned before the waiter looked and found the lock busy; 0: it has not
// looked.
//
// The head looks again as soon as the line is subscribed: a release between its first look
// and the subscription was not heard. If the line was kept, its subscription began before
// that look was sent. Then each release after the look is heard: as a message; or, if the
// subscription was not confirmed yet or was interrupted, by the confirmation that follows.
// Either is news. So without news since then there is nothing to look for; and what came
// before the waiter joined the line, when there was no head to be poked, is made up for
// here.
func (q *Lines[S]) join(key Key, now time.Time, news int64) (w *Waiter[S], head bool) {
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
	w = &Waiter[S]{line: l, wake: make(chan struct{}, 1), since: now, number: l.joined}
	w.learns.round = protocol.NoRound
	w.place = l.waiters.PushBack(w)
	head = l.waiters.Len() == 1
	if head && l.unsub != nil && l.news != news {
		w.poke()
	}
	return w, head
}

func (q *Lines[S]) makeLocked(key Key) *line[S] {
	l := &line[S]{key: key}
	q.newsLocked(l)
	if q.byKey == nil {
		q.byKey = map[Key]*line[S]{}
	}
	q.byKey[key] = l
	return l
}

// Latest returns the length of a line, the serial number of its latest news, and until when it lets
// others go first; 0: it does not exist.
func (q *Lines[S]) Latest(key Key) (waiting int, news int64, yields clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len(), line.news, line.yields
	}
	return 0, 0, 0
}

// Waiting is the length of a line.
func (q *Lines[S]) Waiting(key Key) int {
	waiting, _, _ := q.Latest(key)
	return waiting
}

// passed is what a waiter leaves its line with, as those behind it know it.
type passed interface {
	Alive() bool // there is nothing to look for as long as it is
	RestOfLease() time.Duration
}

// Left is how a waiter leaves its line with a hold, or with what else it waited for.
type Left[S comparable] struct {
	Hold   passed // nil: it has none
	Shared bool   // others can enter beside it
	Passes bool   // it may be handed over to those behind it
	Seen   S      // what those behind it see from now on
	Round  int64  // Shared: the round in which Redis refused it

	// It has permits of a semaphore, and others enter beside it: so many are left, and none of those that
	// others hold expires before.
	Beside  bool
	Permits int64
	Until   clock.Instant

	// It has what is no hold.
	Room  int64 // how much is left for those behind it, who may look together ...
	Taken int64 // ... when the line had taken so much
	UpTo  int64 // those with a number up to that have what they waited for too
}

// leave takes a waiter out of the line. got is what it leaves with; nil: nothing. Those behind a reader count as refused
// in the round in which Redis refused the reader itself. A round that the reader has from those before it is not handed on: newcomers
// would go first as long as the line has a waiter. The subscription ends with the last waiter, at once or, if that got
// the lock, after a while.
func (q *Lines[S]) leave(w *Waiter[S], got *Left[S]) {
	q.mu.Lock()
	if w.place == nil { // it was given a hold
		q.mu.Unlock()
		return
	}
	line := w.line
	line.served = line.served || got != nil
	wasHead := line.waiters.Front() == w.place
	if wasHead && got != nil {
		line.seen = got.Seen
	}
	ends := q.takeOutLocked(w, got != nil)
	if got != nil && got.Hold == nil && !got.Beside {
		if wasHead {
			ends = append(ends, q.serveLocked(line, got)...)
		}
		line.taken += w.room.need
	}
	switch front := line.waiters.Front(); {
	case front == nil || !wasHead:
	case got != nil && got.Beside:
		q.admitLocked(line, w, got)
	case got != nil && got.Shared:
		// All readers can enter beside it: they need not wait for each other.
		for e := front; e != nil; e = e.Next() {
			next := e.Value.(*Waiter[S])
			next.learns.admitted = true
			if next.learns.round == protocol.NoRound {
				next.learns.round = got.Round
			}
			next.poke()
		}
	case got != nil && got.Passes:
		q.quietLocked(line)
	default:
		next := front.Value.(*Waiter[S])
		if got != nil {
			next.learns.behind = got.Hold
		}
		next.poke()
	}
	q.mu.Unlock()
	endAll(ends)
}

// takeOutLocked takes a waiter out of its line. It returns what emptyLocked does.
func (q *Lines[S]) takeOutLocked(w *Waiter[S], got bool) (ends []func()) {
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
func (q *Lines[S]) emptyLocked(l *line[S], got bool) (ends []func()) {
	if !got || l.unsub == nil && time.Since(l.others) > q.cfg.Keep || l.key.ID != "" || q.closed {
		return q.removeLocked(l, nil)
	}
	l.seen = *new(S)
	return q.keepLocked(l)
}

// keepLocked keeps a line that has no waiters. It returns what emptyLocked does.
func (q *Lines[S]) keepLocked(l *line[S]) (ends []func()) {
	l.since = time.Now() // as of subscriptions: by the real clock
	l.place = q.kept.PushBack(l)
	if q.kept.Len() > q.cfg.MostKept {
		ends = q.removeLocked(q.kept.Front().Value.(*line[S]), nil)
	}
	if q.expiry == nil {
		q.expiry = time.AfterFunc(q.cfg.Keep, q.expire)
	}
	return ends
}

func (q *Lines[S]) removeLocked(l *line[S], ends []func()) []func() {
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

func endAll(ends []func()) {
	for _, end := range ends {
		end()
	}
}

// expire removes the lines that were kept for long enough.
func (q *Lines[S]) expire() {
	q.mu.Lock()
	var ends []func()
	q.expiry = nil
	for first := q.kept.Front(); first != nil; first = q.kept.Front() {
		l := first.Value.(*line[S])
		if left := q.cfg.Keep - time.Since(l.since); left > 0 {
			q.expiry = time.AfterFunc(left, q.expire)
			break
		}
		ends = q.removeLocked(l, ends)
	}
	q.mu.Unlock()
	endAll(ends)
}

// Close removes the lines that are kept. None is from now on.
func (q *Lines[S]) Close() {
	q.mu.Lock()
	var ends []func()
	q.closed = true
	if q.expiry != nil {
		q.expiry.Stop()
	}
	for q.kept.Len() > 0 {
		ends = q.removeLocked(q.kept.Front().Value.(*line[S]), ends)
	}
	q.mu.Unlock()
	endAll(ends)
}

// looks is called by the head of a line before it looks: that look answers all pokes so far.
func (w *Waiter[S]) looks() {
	select {
	case <-w.wake:
	default:
	}
}

func (w *Waiter[S]) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Wake tells the heads of a lock's lines to look at it.
func (q *Lines[S]) Wake(lock protocol.LockID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, side := range []protocol.Side{protocol.Exclusive, protocol.Shared} {
		if l := q.byKey[Key{Lock: lock, Side: side}]; l != nil {
			l.loudLocked()
			q.newsLocked(l)
		}
	}
}

// newsLocked notes that there is a reason to look at the lock, for the head of the line or
// for the next waiter that becomes it.
func (q *Lines[S]) newsLocked(l *line[S]) {
	q.serial++
	l.news = q.serial
	if head := l.head(); head != nil && !l.quiet {
		if _, is := head.learns.behind.(*room); is {
			head.learns.behind = nil // its poke may not be consumed yet, and be the same as this one
		}
		head.poke()
	}
}

// head is the waiter that asks Redis; nil: there is none. It is called with lines.mu locked.
func (l *line[S]) head() *Waiter[S] {
	if front := l.waiters.Front(); front != nil {
		return front.Value.(*Waiter[S])
	}
	return nil
}

// subscribe makes sure that the line hears of releases. It returns at once:
// the head is poked when the subscription is confirmed, and looks again then.
func (q *Lines[S]) subscribe(w *Waiter[S], open func(notify func()) (end func())) {
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
func (q *Lines[S]) ear(l *line[S]) (notify func()) {
	first := true
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		w, all := l.head(), q.queues[l.key.Lock]
		if confirms := first; confirms && w != nil && w.rank != 0 && (*all)[0] != w {
			q.serial++
			w.subscribed = q.serial
		} else {
			q.newsLocked(l)
		}
		first = false
	}
}

// Fail gives all waiters that joined before the given time the error that w has found: Redis has not
// answered since then, or there is a result. Otherwise they would find that out one after the other.
func (q *Lines[S]) Fail(w *Waiter[S], since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// A waiter that becomes the head meanwhile may have consumed the poke, and finds out
	// by itself. w is the head now, so that is at most the next one.
	for e := w.line.waiters.Front(); e != nil; e = e.Next() {
		if other := e.Value.(*Waiter[S]); other != w && other.learns.err == nil && !other.since.After(since) {
			other.learns.err = err
			other.poke()
		}
	}
}

// news tells a waiter that was poked what it learns.
func (q *Lines[S]) news(w *Waiter[S]) news {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := w.learns
	n.head = w.line.waiters.Front() == w.place
	w.learns.admitted = false
	return n
}

// saw tells the waiters behind w what it has seen.
func (q *Lines[S]) saw(w *Waiter[S], s S) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.line.seen = s
}

// seen is what the head of the line of w has seen; own if the head has not looked yet.
func (q *Lines[S]) seen(w *Waiter[S], own S) S {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := w.line.seen; s != (*new(S)) {
		return s
	}
	return own
}

// FailAll tells all waiters of a line why they should leave.
func (q *Lines[S]) FailAll(key Key, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		for e := l.waiters.Front(); e != nil; e = e.Next() {
			w := e.Value.(*Waiter[S])
			w.learns.err = err
			w.poke()
		}
	}
}

// LooksFirst is called by who finds no waiters. It reports whether nobody looks who found none
// before, and notes then that one does, until Looked. Those who come meanwhile look together, by
// the head of their line: not by that look, which Redis may have answered before they came.
func (q *Lines[S]) LooksFirst(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.looking[key] {
		return false
	}
	if q.looking == nil {
		q.looking = map[Key]bool{}
	}
	q.looking[key] = true
	return true
}

// Looked ends what LooksFirst began.
func (q *Lines[S]) Looked(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.looking, key)
}

// Told is why a waiter should leave: see Fail. nil: it need not.
func (q *Lines[S]) Told(w *Waiter[S]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.learns.err
}

// Count is how many wait in any line.
func (q *Lines[S]) Count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.byKey {
		n += l.waiters.Len()
	}
	return n
}

// Head tells tests how far the head of a line is: whether it has looked since the latest news and sleeps, so
// that it can be given a hold, or there is none; and whether it was given a grant that it has not taken yet.
func (q *Lines[S]) Head(key Key) (sleeps, given bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil || l.head() == nil {
		return true, false
	}
	w := l.head()
	_, given = w.given.(*Grant)
	// One that has been woken, and is about to say so, has not looked since then.
	return w.takes && !l.quiet && len(w.wake) == 0 && w.room.saw == l.news, given
}

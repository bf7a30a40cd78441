// Package wait has the waiters of a client. The waiters for one lock form a line, first come, first served, and only
// its head polls. The package knows no holds and no scripts: an [Asker] sends the request, and a hold that a waiter is
// given while it sleeps is opaque.
//
// # States of a waiter
//
// A waiter is behind the head, or the head. The head subscribes, and polls: when it becomes the head, when the
// subscription is confirmed, after each message, when the lease of the holder ends, and at the longest poll. A waiter
// leaves with a hold, with an error, or because its context has ended.
//
// # What may be lost
//
// A message may be lost: then the head polls in time. A wake-up may not: a waiter that leaves pokes the next one, and
// news that came for it counts for the next head (line.news). While Redis does not answer, the head polls with growing
// pauses, and fails all waiters when the outage has lasted too long.
//
// # Files
//
// await.go: one call that waits. lines.go: the lines. handover.go: how a waiter is given a hold by its client. standby.go:
// how it is given one by the release of another client, and why that is safe. admit.go: how several waiters enter
// together. glance.go: how one command polls the locks of many heads.
package wait

import (
	"container/list"
	"math"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Lines has the waiters of a client by lock. The waiters for one lock form a line, first
// come, first served, and only its head polls: traffic grows with the number of processes,
// not of goroutines. Each side of a read-write lock has a line. Where Redis keeps the order
// of waiters, each waiter has a separate line.
//
// A hold can be handed over to the head: see Give. A release can grant it one: see standby.go.
type Lines struct {
	cfg    Config
	mu     sync.Mutex // guards the rest and the lines
	byKey  map[Key]*line
	serial int64       // of the latest news, of any line
	kept   list.List   // of *line: lines without waiters, the oldest first
	expiry *time.Timer // runs while lines are kept
	closed bool        // no line is kept any more

	rested   bool      // the goroutine of glances runs
	relieved []*Waiter // the heads for which glances poll, and some that have left or poll themselves
}

// Config configures the lines of a client.
type Config struct {
	Env      *seam.Env
	Timeline *clock.Timeline
	Wire     *wire.Deployment
	Running  *wire.Tally   // counts goroutines that Shutdown waits for
	Closing  chan struct{} // closed when Shutdown begins
	Closed   error         // error of the waiters then
	Seed     uint64

	LongestPoll   time.Duration // longest time between two polls of a head
	GlanceWithin  time.Duration // if a glance has no reply by then, its heads poll themselves
	LongestOutage time.Duration // longest outage of Redis that any waiter outlasts
	// Keep is how long a line stays subscribed after its last waiter got the lock: there will probably be another
	// waiter soon, which then need not subscribe, poll again and unsubscribe. MostKept is how many such lines stay.
	Keep     time.Duration
	MostKept int

	Seen      func(e *protocol.Entered, now time.Time) Seen // of a lock that a glance has found held
	Transient func(err error) bool                          // reports whether Redis may answer again after an error
}

// New returns the lines of a client.
func New(cfg Config) *Lines { return &Lines{cfg: cfg} }

// Seen is the result of the head's latest poll, which the waiters behind it share: the error of one of them says what the
// head has found out. The package passes it on. Its zero value means that nothing is known.
type Seen struct {
	Held        bool      // another owner has the lock, or it is reserved for a waiter
	HolderKnown bool      // Redis has said who holds it: no one, if Holder is empty and Others 0
	Holder      string    // one of the holders; empty if not known
	Others      int64     // how many other holders there were
	Until       time.Time // when the lease ends, by our clock; zero if not known
	At          time.Time // when the reply came
	Err         error     // why Redis, or a quorum, gave no reply
	Note        Note      // for an error text, in place of the fields above

	Semaphore bool // the lock is a semaphore, with so many permits:
	protocol.Supply

	// Pending is when a request was sent that has no reply; zero if none. The other fields then describe the poll before.
	Pending time.Time
}

// Note is a text for an error, and the number for its #.
type Note struct {
	Text string
	N    int64
}

// Key identifies a line.
type Key struct {
	Lock protocol.LockID
	Side protocol.Side
	ID   string // future hold id, if each waiter has a separate line; the need of Oversized waiters
}

// line has the waiters of one lock. It exists while it has a waiter or is kept.
type line struct {
	key        Key
	waiters    list.List      // of *Waiter; the first is the head, which polls
	unsub      func()         // ends the subscription; nil if unsubscribed
	unsubExtra func()         // ends the second subscription: see AddSubscription; nil without one
	granted    protocol.Grant // the latest grant by a release: see standby.go
	seen       Seen           // by the head's last poll; or the hold that the previous head got

	// news is the serial number of the latest reason to poll: a message, a confirmed subscription, a local
	// release. No two lines ever have the same.
	news   int64
	joined int64 // how many waiters have ever joined it
	taken  int64 // how much its waiters have taken, by their needs

	place          *list.Element // place among the kept lines; nil if it has waiters
	since          time.Time     // when the last waiter left, if it is kept
	served         bool          // a waiter has left it with the lock
	othersAt       time.Time     // when other clients were last known to be subscribed
	otherListeners int           // how many connections they had then

	// suppressed: an owner in this client has a hold that may be handed over. Until the timer fires, news does not
	// wake the head, because it comes from the release before that hold.
	suppressed bool
	wakeTimer  *time.Timer
	yields     clock.Instant // until when the head lets waiters of other clients go first
}

// Waiter is a place in a line. Lines.mu guards all fields without another comment.
type Waiter struct {
	line  *line // never changes
	place *list.Element
	since time.Time // when it began to wait; never changes
	// wake (capacity 1) is poked when the waiter becomes the head, is admitted or should leave, and
	// whenever it should poll as the head. Pokes may be spurious, and several may become one; see
	// update.
	wake     chan struct{}
	number   int64  // serial number in the line
	pending  update // read by the waiter when it wakes
	need     int64  // how much it takes of what several can have: so many permits, or 1
	takes    bool   // it sleeps, and a hold may be handed over to it; it leaves its line then
	given    any    // hold that it was given while it slept, by Give or as a *Grant
	admitted bool   // it polls, or is about to, although it is not the head
	poll     poll
	standBy  StandBy // see standby.go
	glance   watched
}

// poll is what a waiter's line was like when its last poll began.
type poll struct {
	news, joined, taken int64 // as in line
}

// update is read by a waiter that was poked.
type update struct {
	served bool  // the poll of the head has served the waiter too, and removed it from the line
	err    error // why it should leave
	head   bool  // it is the head now
	// previous is the hold that the previous head got: while that lasts, no poll is needed. It is nil if the
	// previous head left without the lock. A wake-up may have come for that head, so the new head polls
	// immediately.
	previous predecessor
	admitted bool  // it may enter together with the head, and polls too
	round    int64 // it counts as having waited since then; see protocol.Acquire.Round
}

// join puts a waiter with a need at the end of the line, and reports whether it is the head. news is
// what Latest returned before the waiter polled and found the lock busy; 0 if it has not
// polled.
//
// The head polls again when the line is subscribed: a release between its first poll and the subscription sent it no
// message. A line that was kept was subscribed before that poll. Each release after the poll is news there: by its
// message, or, if the subscription was not confirmed yet or was interrupted, by the confirmation that follows. So without
// news since the poll there is no reason to poll again. News that came before the waiter joined has poked no waiter, so
// join pokes this one.
func (q *Lines) join(key Key, need int64, now time.Time, news int64) (w *Waiter, head bool) {
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
	w = &Waiter{line: l, wake: make(chan struct{}, 1), since: now, number: l.joined, need: need}
	w.pending.round = protocol.NoRound
	w.place = l.waiters.PushBack(w)
	head = l.waiters.Len() == 1
	if head && l.unsub != nil && l.news != news {
		w.poke()
	}
	return w, head
}

func (q *Lines) makeLocked(key Key) *line {
	l := &line{key: key}
	q.newsLocked(l)
	if q.byKey == nil {
		q.byKey = map[Key]*line{}
	}
	q.byKey[key] = l
	return l
}

// Latest returns the length of a line, the serial number of its latest news, and until when it yields to other clients;
// zeros if the line does not exist.
func (q *Lines) Latest(key Key) (waiting int, news int64, yields clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len(), line.news, line.yields
	}
	return 0, 0, 0
}

// Waiting returns the length of a line.
func (q *Lines) Waiting(key Key) int {
	waiting, _, _ := q.Latest(key)
	return waiting
}

// predecessor is the hold of the previous head.
type predecessor interface {
	Alive() bool // while it is alive, the next head need not poll
	RestOfLease() time.Duration
}

// Left is how a waiter leaves its line, with a hold or with something else that it waited for.
type Left struct {
	Hold      predecessor   // an exclusive hold, or nil
	HandsOver bool          // the hold may be handed over to the waiters behind
	More      int64         // how much is left for the waiters behind: the rest of the permits, or Unlimited
	Until     clock.Instant // if they need more than that: nothing is given back before then, but for a message
	ForAll    bool          // who joined the line before the request has it too
	Seen      Seen          // for the waiters behind
	Round     int64         // the round in which Redis refused it, or NoRound
}

// Unlimited is Left.More of what any number of waiters can have.
const Unlimited = math.MaxInt64

// leave removes a waiter from the line. got is nil if it leaves without success. The waiters behind a reader count as
// refused in the round in which Redis refused that reader. A round that the reader has from waiters before it is not
// passed on: otherwise newcomers would go first as long as the line has a waiter. The subscription ends with the last
// waiter: immediately, or after a while if that waiter got the lock.
func (q *Lines) leave(w *Waiter, got *Left) {
	q.mu.Lock()
	if w.place == nil { // it has left: it was given a hold
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
	if got != nil && got.ForAll && wasHead {
		ends = append(ends, q.serveLocked(line, w.poll.joined)...)
	}
	switch head := line.head(); {
	case head == nil || !wasHead:
	case got == nil:
		head.poke()
	case got.HandsOver:
		q.suppressWakeLocked(line)
	default:
		q.admitLocked(line, w, got)
	}
	if got != nil {
		line.taken += w.need
	}
	q.mu.Unlock()
	endAll(ends)
}

// takeOutLocked removes a waiter from its line. It returns what emptyLocked does.
func (q *Lines) takeOutLocked(w *Waiter, got bool) (ends []func()) {
	w.line.waiters.Remove(w.place)
	w.place = nil
	if w.line.waiters.Len() == 0 {
		w.line.allowWakeLocked()
		ends = q.emptyLocked(w.line, got)
	}
	return ends
}

// emptyLocked keeps a line that its last waiter has left, if it may be needed again soon, or removes it. A line of
// one waiter only is never needed again. The caller has to call the functions that it returns, which end
// subscriptions, without the mutex.
func (q *Lines) emptyLocked(l *line, got bool) (ends []func()) {
	if !got || l.unsub == nil && time.Since(l.othersAt) > q.cfg.Keep || l.key.ID != "" || q.closed {
		return q.removeLocked(l, nil)
	}
	l.seen = Seen{}
	return q.keepLocked(l)
}

// keepLocked keeps a line that has no waiters. It returns what emptyLocked does.
func (q *Lines) keepLocked(l *line) (ends []func()) {
	l.since = time.Now() // by the real clock, as for subscriptions
	l.place = q.kept.PushBack(l)
	if q.kept.Len() > q.cfg.MostKept {
		ends = q.removeLocked(q.kept.Front().Value.(*line), nil)
	}
	if q.expiry == nil {
		q.expiry = time.AfterFunc(q.cfg.Keep, q.expire)
	}
	return ends
}

func (q *Lines) removeLocked(l *line, ends []func()) []func() {
	delete(q.byKey, l.key)
	if l.place != nil {
		q.kept.Remove(l.place)
		l.place = nil
	}
	for _, end := range []*func(){&l.unsub, &l.unsubExtra} {
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

// expire removes the lines that have been kept for Config.Keep.
func (q *Lines) expire() {
	q.mu.Lock()
	var ends []func()
	q.expiry = nil
	for first := q.kept.Front(); first != nil; first = q.kept.Front() {
		l := first.Value.(*line)
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
func (q *Lines) Close() {
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
	endAll(ends)
}

// drainWake is called by the head of a line before it looks: that look answers all pokes so far.
func (w *Waiter) drainWake() {
	select {
	case <-w.wake:
	default:
	}
}

func (w *Waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Wake has the heads of a lock's lines look at it.
func (q *Lines) Wake(lock protocol.LockID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, side := range []protocol.Side{protocol.Exclusive, protocol.Shared} {
		if l := q.byKey[Key{Lock: lock, Side: side}]; l != nil {
			l.allowWakeLocked()
			q.newsLocked(l)
		}
	}
}

// newsLocked records a reason to poll, for the head of the line or for the next waiter that
// becomes the head.
func (q *Lines) newsLocked(l *line) {
	q.serial++
	l.news = q.serial
	if head := l.head(); head != nil && !l.suppressed {
		if _, is := head.pending.previous.(*nothingBefore); is {
			head.pending.previous = nil // the waiter may read both updates after one poke
		}
		head.poke()
	}
}

// head returns the waiter that polls, or nil. The caller holds lines.mu.
func (l *line) head() *Waiter {
	if front := l.waiters.Front(); front != nil {
		return front.Value.(*Waiter)
	}
	return nil
}

// subscribe makes sure that the line is subscribed to releases. It does not wait: the head is poked when the
// subscription is confirmed, and polls again then.
func (q *Lines) subscribe(w *Waiter, open func(notify func()) (end func())) {
	q.mu.Lock()
	line := w.line
	have := line.unsub != nil
	q.mu.Unlock()
	if have {
		return
	}
	// Only the head subscribes, so no other goroutine does it in between.
	unsub := open(q.notifier(line))
	q.mu.Lock()
	line.unsub = unsub
	q.mu.Unlock()
}

// notifier returns the function that is called when the subscription of a line is confirmed, and for each message.
func (q *Lines) notifier(l *line) (notify func()) {
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.newsLocked(l)
	}
}

// Fail ends the waits of a line with an error that one caller has found out, and that is true for all who had joined by
// the given time: otherwise they would find it out one after the other.
func (q *Lines) Fail(key Key, since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil {
		return
	}
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*Waiter); w.pending.err == nil && !w.since.After(since) {
			w.pending.err = err
			w.poke()
		}
	}
}

// takeUpdate returns the update of a waiter that was poked.
func (q *Lines) takeUpdate(w *Waiter) update {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := w.pending
	n.head = w.line.waiters.Front() == w.place
	n.admitted = w.admitted
	return n
}

// setSeen shares what the head has seen with the waiters behind it.
func (q *Lines) setSeen(w *Waiter, s Seen) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.line.seen = s
}

// seenBy returns what the head of the line of w has seen; own if it has not polled yet.
func (q *Lines) seenBy(w *Waiter, own Seen) Seen {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := w.line.seen; s != (Seen{}) {
		return s
	}
	return own
}

// failure is the error with which a waiter has to leave: see Fail.
func (q *Lines) failure(w *Waiter) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.pending.err
}

// Count is how many wait in any line.
func (q *Lines) Count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.byKey {
		n += l.waiters.Len()
	}
	return n
}

// Head is for tests. It reports whether the head of a line has looked since the latest news and sleeps, so that it
// can be given a hold, or there is no head; and whether the head was given a grant that it has not taken yet.
func (q *Lines) Head(key Key) (sleeps, given bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil || l.head() == nil {
		return true, false
	}
	w := l.head()
	_, given = w.given.(*Grant)
	// A head that has been poked does not sleep, though it may still say that it takes a hold.
	return w.takes && !l.suppressed && len(w.wake) == 0 && w.poll.news == l.news, given
}

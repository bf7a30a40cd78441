// Package wait has the waiters of a client. The waiters for one lock form a line, first come, first served, and only
// its head polls. The package does not depend on holds or scripts: a [Poller] sends the request, and the hold that a
// waiter is given while it sleeps is opaque.
//
// # States of a waiter
//
// A waiter is behind the head, or the head. The head subscribes, and polls: when it becomes the head, when the
// subscription is confirmed, after each message, when the lease of the holder ends, and at the longest poll. A waiter
// leaves with a hold, with an error, or because its context has ended.
//
// # What may be lost
//
// A message may be lost: then the head polls in time. A wake-up must not be lost: a waiter that leaves pokes the next
// one, and an event that came for it counts for the next head (line.event). While Redis does not answer, the head polls
// with growing pauses, and fails all waiters when the outage has lasted too long.
//
// # Files
//
// await.go: one call that waits. lines.go: the lines. handover.go: a holder of the same client gives its hold to a waiter.
// standby.go: the release of another client grants a waiter the lock, and why that is safe. admit.go: several waiters
// enter together. glance.go: one command polls the locks of many heads.
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
	cfg      Config
	mu       sync.Mutex // guards the rest and the lines
	byKey    map[Key]*line
	serial   int64       // serial number of the latest event of any line
	kept     list.List   // of *line: lines without waiters, the oldest first
	expiry   *time.Timer // runs while lines are kept
	isClosed bool        // no line is kept any more

	glancing    bool      // the goroutine of glances runs
	glanceHeads []*Waiter // the heads for which glances poll, and some heads that have left or poll themselves
}

// Config configures the lines of a client.
type Config struct {
	Env      *seam.Env
	Timeline *clock.Timeline
	Wire     *wire.Deployment
	Running  *wire.Tally   // counts goroutines that Shutdown waits for
	Closing  chan struct{} // closed when Shutdown begins
	Closed   error         // error of the waiters when Shutdown begins
	Seed     uint64

	LongestPoll   time.Duration // longest time between two polls of a head
	GlanceWithin  time.Duration // if a glance has no reply by then, its heads poll themselves
	LongestOutage time.Duration // longest outage of Redis that any waiter outlasts
	// Keep is how long a line stays subscribed after its last waiter got the lock. The next waiter, which probably comes
	// soon, then need not subscribe, poll again and unsubscribe. MostKept bounds the number of such lines.
	Keep     time.Duration
	MostKept int

	StatusOf  func(e *protocol.Entered, now time.Time) Status // status of a lock that a glance has found held
	Transient func(err error) bool                            // reports whether Redis may answer again after an error
}

// New returns the lines of a client.
func New(cfg Config) *Lines { return &Lines{cfg: cfg} }

// Status is the result of the head's latest poll. The waiters behind the head share it, for their error texts. The zero
// value means that there was no result.
type Status struct {
	Held        bool      // another owner has the lock, or it is reserved for a waiter
	HolderKnown bool      // Redis reported the holders: none if Holder is empty and Others is 0
	Holder      string    // one of the holders; empty if not known
	Others      int64     // number of other holders
	Until       time.Time // when the lease ends, by the local clock; zero if not known
	At          time.Time // when the reply came
	Err         error     // why Redis, or a quorum, gave no reply
	Note        Note      // text for an error, in place of the fields above

	Semaphore bool // the lock is a semaphore, with the permits of Supply
	protocol.Supply

	// Pending is when an unanswered request was sent; zero if none. The other fields then describe the poll before it.
	Pending time.Time
}

// Note is a text for an error, and the number that replaces # in it.
type Note struct {
	Text string
	N    int64
}

// Key identifies a line.
type Key struct {
	Lock protocol.LockID
	Side protocol.Side
	ID   string // future hold id, if each waiter has a separate line; for Oversized waiters, their need
}

// line has the waiters of one lock. It exists while it has a waiter or is kept.
type line struct {
	key        Key
	waiters    list.List      // of *Waiter; the first is the head, which polls
	unsub      func()         // ends the subscription; nil if unsubscribed
	unsubExtra func()         // ends the second subscription: see AddSubscription; nil without one
	unsubOwn   func()         // ends the subscription by which the client can be recognized; nil without one
	granted    protocol.Grant // the latest grant by a release: see standby.go
	status     Status         // result of the head's last poll, or the hold that the previous head got

	// event is the serial number of the latest reason to poll: a message, a confirmed subscription, a local release. No
	// two lines ever have the same number, not even a removed line and a new one for the same key.
	event  int64
	joined int64 // number of waiters that have ever joined the line
	taken  int64 // sum of the needs of waiters that have left with success

	place          *list.Element // place among the kept lines; nil if it has waiters
	keptSince      time.Time     // when the last waiter left, if it is kept
	hasServed      bool          // a waiter has left the line with the lock
	othersAt       time.Time     // when other clients were last known to be subscribed
	otherListeners int           // connections of other clients at that time

	// wakeSuppressed: an owner in this client has a hold that may be handed over. Until wakeTimer fires, events do not wake
	// the head, because they come from the release before that hold.
	wakeSuppressed bool
	wakeTimer      *time.Timer
	yieldUntil     clock.Instant // the head lets waiters of other clients go first until then
}

// Waiter is a place in a line. Lines.mu guards all fields without another comment.
type Waiter struct {
	line     *line // never changes
	place    *list.Element
	joinedAt time.Time // when the wait began; never changes
	// wake (capacity 1) is poked when the waiter becomes the head, is admitted or should leave, and whenever it should poll
	// as the head. Pokes may be spurious, and several may become one: update has the reason.
	wake        chan struct{}
	number      int64  // serial number in the line
	pending     update // read by the waiter when it wakes
	need        int64  // permits that the waiter needs; 1 for other locks
	acceptsHold bool   // the waiter sleeps, and a hold may be handed over to it; it leaves its line then
	givenHold   any    // hold that the waiter was given while it slept, by Give or as a *Grant
	admitted    bool   // the waiter polls, or is about to, although it is not the head
	poll        poll
	standBy     StandBy // see standby.go
	glance      watched
}

// poll has fields of a waiter's line as they were when its last poll began.
type poll struct {
	event, joined, taken int64 // as in line
}

// update is what has changed for a waiter that was poked.
type update struct {
	isServed bool  // the poll of the head has served the waiter too, and removed it from the line
	err      error // why the waiter should leave
	isHead   bool  // the waiter is the head now
	// previous is the hold that the previous head got: while that hold lasts, no poll is needed. It is nil if the previous
	// head left without the lock. A wake-up may have come for that head, so the new head polls immediately.
	previous   predecessor
	admitted   bool  // the waiter may enter together with the head, and polls too
	sinceRound int64 // round since which the waiter counts as waiting; see protocol.Acquire.Round
}

// join puts a waiter with a need at the end of the line, and reports whether it is the head. serial is the result of
// Latest before the waiter polled and found the lock busy; 0 if it has not polled.
//
// The head polls again when the line is subscribed: a release between its first poll and the subscription sent it no
// message. A kept line was subscribed before that poll. Each release after the poll is an event there: by its message, or,
// if the subscription was not confirmed yet or was interrupted, by the confirmation that follows. So without an event
// since the poll there is no reason to poll again. An event that came before the waiter joined has poked no waiter, so
// join pokes this one.
func (q *Lines) join(key Key, need int64, now time.Time, serial int64) (w *Waiter, head bool) {
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
	w = &Waiter{line: l, wake: make(chan struct{}, 1), joinedAt: now, number: l.joined, need: need}
	w.pending.sinceRound = protocol.NoRound
	w.place = l.waiters.PushBack(w)
	head = l.waiters.Len() == 1
	if head && l.unsub != nil && l.event != serial {
		w.poke()
	}
	return w, head
}

func (q *Lines) makeLocked(key Key) *line {
	l := &line{key: key}
	q.noteEventLocked(l)
	if q.byKey == nil {
		q.byKey = map[Key]*line{}
	}
	q.byKey[key] = l
	return l
}

// Latest returns the length of a line, the serial number of its latest event, and until when the line yields to other
// clients; zeros if the line does not exist.
func (q *Lines) Latest(key Key) (waiting int, serial int64, yieldUntil clock.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.byKey[key]; line != nil {
		return line.waiters.Len(), line.event, line.yieldUntil
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
	Alive() bool // the hold lasts, so the next head need not poll
	RestOfLease() time.Duration
}

// Exit describes how a waiter leaves its line with success.
type Exit struct {
	Hold      predecessor   // an exclusive hold, or nil
	HandsOver bool          // the hold may be handed over to the waiters behind
	Remaining int64         // permits that are left for the waiters behind, or Unlimited
	Until     clock.Instant // no permits are given back before then without a message
	ForAll    bool          // the reply also serves all waiters that joined the line before the request
	Status    Status        // status for the waiters behind
	Round     int64         // the round in which Redis refused the waiter, or NoRound
}

// Unlimited is Exit.Remaining if any number of waiters can enter.
const Unlimited = math.MaxInt64

// leave removes a waiter from the line. got is nil if it leaves without success. The waiters behind a reader count as
// refused in the round in which Redis refused that reader. A round that the reader took over from waiters before it is not
// passed on: otherwise newcomers would go first while the line has a waiter. The subscription ends with the last waiter:
// immediately, or after a while if that waiter got the lock.
func (q *Lines) leave(w *Waiter, got *Exit) {
	q.mu.Lock()
	if w.place == nil { // the waiter has left already, with a hold that it was given
		q.mu.Unlock()
		return
	}
	line := w.line
	line.hasServed = line.hasServed || got != nil
	wasHead := line.waiters.Front() == w.place
	if wasHead && got != nil {
		line.status = got.Status
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

// takeOutLocked removes a waiter from its line. It returns the result of emptyLocked.
func (q *Lines) takeOutLocked(w *Waiter, got bool) (ends []func()) {
	w.line.waiters.Remove(w.place)
	w.place = nil
	if w.line.waiters.Len() == 0 {
		w.line.allowWakeLocked()
		ends = q.emptyLocked(w.line, got)
	}
	return ends
}

// emptyLocked keeps a line without waiters if it may be needed again soon, or removes it. A line with an ID is not
// kept. The caller has to call the returned functions, which end subscriptions, without the mutex.
func (q *Lines) emptyLocked(l *line, got bool) (ends []func()) {
	if !got || l.unsub == nil && time.Since(l.othersAt) > q.cfg.Keep || l.key.ID != "" || q.isClosed {
		return q.removeLocked(l, nil)
	}
	l.status = Status{}
	return q.keepLocked(l)
}

// keepLocked keeps a line without waiters. It returns the functions that end the subscriptions of removed lines.
func (q *Lines) keepLocked(l *line) (ends []func()) {
	l.keptSince = time.Now() // by the real clock, as for subscriptions
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
	for _, end := range []*func(){&l.unsub, &l.unsubExtra, &l.unsubOwn} {
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
		if left := q.cfg.Keep - time.Since(l.keptSince); left > 0 {
			q.expiry = time.AfterFunc(left, q.expire)
			break
		}
		ends = q.removeLocked(l, ends)
	}
	q.mu.Unlock()
	endAll(ends)
}

// Close removes the kept lines. From now on no line is kept.
func (q *Lines) Close() {
	q.mu.Lock()
	var ends []func()
	q.isClosed = true
	if q.expiry != nil {
		q.expiry.Stop()
	}
	for q.kept.Len() > 0 {
		ends = q.removeLocked(q.kept.Front().Value.(*line), ends)
	}
	q.mu.Unlock()
	endAll(ends)
}

// drainWake is called by the head of a line before it polls: that poll answers all pokes so far.
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

// Wake makes the heads of a lock's lines poll.
func (q *Lines) Wake(lock protocol.LockID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, side := range []protocol.Side{protocol.Exclusive, protocol.Shared} {
		if l := q.byKey[Key{Lock: lock, Side: side}]; l != nil {
			l.allowWakeLocked()
			q.noteEventLocked(l)
		}
	}
}

// noteEventLocked records a reason to poll, for the head of the line or for the next waiter that
// becomes the head.
func (q *Lines) noteEventLocked(l *line) {
	q.serial++
	l.event = q.serial
	if head := l.head(); head != nil && !l.wakeSuppressed {
		if _, is := head.pending.previous.(*noReleaseBefore); is {
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

// subscribe subscribes the line to releases if it is not subscribed. It does not wait: the head is poked when the
// subscription is confirmed, and polls again then.
func (q *Lines) subscribe(w *Waiter, subscribe func(notify func()) (end func())) {
	q.mu.Lock()
	line := w.line
	have := line.unsub != nil
	q.mu.Unlock()
	if have {
		return
	}
	// Only the head subscribes, so no other goroutine does it in between.
	unsub := subscribe(q.notifier(line))
	q.mu.Lock()
	line.unsub = unsub
	q.mu.Unlock()
}

// notifier returns the function that is called when the subscription of a line is confirmed, and for each message.
func (q *Lines) notifier(l *line) (notify func()) {
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.noteEventLocked(l)
	}
}

// Fail ends the waits of all waiters that had joined the line by a time, with an error that one caller got and that
// holds for all of them: an outage has lasted too long, or a Once has an outcome. Otherwise each of them would get that
// error only by its own poll, one after the other.
func (q *Lines) Fail(key Key, since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil {
		return
	}
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*Waiter); w.pending.err == nil && !w.joinedAt.After(since) {
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
	n.isHead = w.line.waiters.Front() == w.place
	n.admitted = w.admitted
	return n
}

// setStatus shares the status of the head with the waiters behind it.
func (q *Lines) setStatus(w *Waiter, s Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.line.status = s
}

// statusFor returns the status of the line of w; own if the head has not polled yet.
func (q *Lines) statusFor(w *Waiter, own Status) Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := w.line.status; s != (Status{}) {
		return s
	}
	return own
}

// failure returns the error with which a waiter has to leave, or nil: see Fail.
func (q *Lines) failure(w *Waiter) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.pending.err
}

// Count returns the number of waiters in all lines.
func (q *Lines) Count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.byKey {
		n += l.waiters.Len()
	}
	return n
}

// Head is for tests. sleeps reports whether the head of a line has polled since the latest event and sleeps, so that it
// can be given a hold; it is true without a head. given reports whether the head was given a grant that it has not taken.
func (q *Lines) Head(key Key) (sleeps, given bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil || l.head() == nil {
		return true, false
	}
	w := l.head()
	_, given = w.givenHold.(*Grant)
	// A head that has been poked does not sleep, even if acceptsHold is still set.
	return w.acceptsHold && !l.wakeSuppressed && len(w.wake) == 0 && w.poll.event == l.event, given
}

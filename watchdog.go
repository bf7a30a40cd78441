package rlock

import (
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// watchdog serves all holds of a client with one goroutine, one timer and one agenda. It
// never waits for Redis itself: goroutines that last as long as a round send the requests,
// so that a server that hangs delays neither the deadlines nor the renewals on other
// servers.
type watchdog struct {
	env      *seam.Env
	timeline clock.Timeline
	wire     *wire.Deployment
	lanes    *wire.Lanes
	events   *events
	slack    time.Duration // duties due within it are done together
	left     wire.Tally    // entries that have not ended
	poke     chan struct{} // capacity 1: something is due earlier than armed; see wakeLocked
	quit     chan struct{}
	ended    chan struct{} // closed when the goroutine has ended; nil: never began

	mu         sync.Mutex // guards the rest, ended, and the entries
	agenda     agenda
	self       *entry           // the client's introduction, which nobody waits for; nil: it is anonymous
	wanted     bool             // a hold or wait has begun since the introduction was last found due
	tokens     map[int64]*entry // by the number of the hold: the exclusive ones
	mostTokens int              // that it had
	armed      clock.Instant    // when the goroutine will look next
	woken      func()           // ends the work that a wake-up has begun; nil: there was none
	draining   bool
	closed     bool
	failing    failing
	holding    int      // entries that are holds
	cleaning   int      // and the others
	taken      []*entry // those that turn has taken out of the agenda, and some that are back
}

// spare is for how many holds that have ended the watchdog keeps room.
const spare = 1000

func newWatchdog(env *seam.Env, t clock.Timeline, d *wire.Deployment, events *events, lease time.Duration) *watchdog {
	return &watchdog{
		env: env, timeline: t, wire: d, lanes: wire.NewLanes(d), events: events,
		slack: min(lease/60, 100*time.Millisecond), failing: failing{lease: lease},
		poke: make(chan struct{}, 1),
		quit: make(chan struct{}),
	}
}

// add begins a duty. If the client is shutting down the duty is drained at once.
func (w *watchdog) add(e *entry, at clock.Instant) {
	w.mu.Lock()
	e.index = -1
	if w.closed {
		e.ended = true
		w.mu.Unlock()
		e.duty.drain() // the watchdog is closed: nothing else can be done
		return
	}
	defer w.mu.Unlock()
	w.left.Add(1)
	w.introduceLocked()
	_, number, token := e.duty.holds()
	*w.counterLocked(number)++
	if token != 0 {
		if w.tokens == nil {
			w.tokens = map[int64]*entry{}
		}
		w.tokens[number] = e
	}
	w.pushLocked(e, at)
	w.startLocked()
}

func (w *watchdog) startLocked() {
	if w.ended == nil {
		w.ended = make(chan struct{})
		w.armed = w.now().Add(seam.FarAway)
		go w.run(clock.NewSleeper(w.env), w.ended)
	}
}

// introduce has the client say who it is, from now on, for as long as it is in use.
func (w *watchdog) introduce() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && w.introduceLocked() {
		w.startLocked()
	}
}

// introduceLocked reports whether that begins.
func (w *watchdog) introduceLocked() bool {
	w.wanted = true
	if w.self == nil || !w.self.ended || w.draining {
		return false
	}
	w.self.ended, w.self.index = false, -1
	w.pushLocked(w.self, w.now())
	return true
}

// remove ends a duty from outside.
func (w *watchdog) remove(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(e)
}

// has reports whether a duty has not ended.
func (w *watchdog) has(e *entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !e.ended
}

// move sets when a duty is due; the zero time ends it.
func (w *watchdog) move(e *entry, at clock.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.ended:
	case at.IsZero():
		w.endLocked(e)
	default:
		w.pushLocked(e, at)
	}
}

// hurry makes a duty due now. Whoever has found out at the same time when it is due, from what it was
// before, does not put it off again.
func (w *watchdog) hurry(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !e.ended {
		e.hurried = true
		w.pushLocked(e, w.now())
	}
}

func (w *watchdog) pushLocked(e *entry, at clock.Instant) {
	if w.draining && !e.drained || e.hurried {
		at = w.now()
	}
	w.agenda.set(e, at)
	if at.Before(w.armed) && !w.closed {
		w.wakeLocked()
	}
}

// wakeLocked makes the goroutine look at once. For a test that moves the clock its work
// begins here: a duty that the goroutine does not know yet may be due.
func (w *watchdog) wakeLocked() {
	if w.woken == nil {
		w.woken = w.env.Begin()
	}
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// awake is called before the goroutine looks, which it does for all pokes so far. It ends
// the work that wakeLocked began.
func (w *watchdog) awake() {
	w.mu.Lock()
	select {
	case <-w.poke:
	default:
	}
	end := w.woken
	w.woken = nil
	w.mu.Unlock()
	if end != nil {
		end()
	}
}

func (w *watchdog) endLocked(e *entry) {
	if e.ended {
		return
	}
	if e == w.self && w.wanted && !w.draining {
		w.pushLocked(e, w.now()) // it had just found that nobody needs it
		return
	}
	e.ended = true
	w.agenda.remove(e)
	if e == w.self {
		return
	}
	w.left.Add(-1)
	_, number, _ := e.duty.holds()
	*w.counterLocked(number)--
	if w.holding == 0 {
		w.failing.forget()
	}
	if w.tokens[number] == e {
		delete(w.tokens, number)
		w.mostTokens = max(w.mostTokens, len(w.tokens)+1)
		if len(w.tokens) == 0 && w.mostTokens > spare {
			w.tokens, w.mostTokens = nil, 0 // a map does not shrink by itself
		}
	}
}

// counterLocked counts the entries of a kind: only a hold has a number.
func (w *watchdog) counterLocked(number int64) *int {
	if number == 0 {
		return &w.cleaning
	}
	return &w.holding
}

// drain tells every duty that the client shuts down, also those that are added later.
func (w *watchdog) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return
	}
	w.draining = true
	now := w.now()
	for _, e := range slices.Clone(w.agenda) {
		w.agenda.set(e, now)
	}
	if len(w.agenda) > 0 && !w.closed { // else close may follow at once
		w.wakeLocked()
	}
}

// tokenOf is the fencing token of an exclusive hold of this client, or 0.
func (w *watchdog) tokenOf(number int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.tokens[number]; e != nil {
		_, _, token := e.duty.holds()
		return token
	}
	return 0
}

// isClosed reports whether the watchdog serves nothing any more.
func (w *watchdog) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close ends the goroutine and returns the duties that are left undone.
func (w *watchdog) close() (left []duty) {
	w.mu.Lock()
	ended := w.ended
	if !w.closed {
		w.closed = true
		close(w.quit)
	}
	w.mu.Unlock()
	if ended != nil {
		<-ended
	}
	w.mu.Lock()
	for _, e := range w.agenda {
		if e != w.self {
			left = append(left, e.duty)
		}
	}
	w.mu.Unlock()
	for _, d := range left {
		d.drain() // the goroutine may not have done it: no lease is valid without a watchdog
	}
	return left
}

func (w *watchdog) run(s *clock.Sleeper, ended chan struct{}) {
	defer close(ended)
	defer s.Stop()
	var room []*entry
	for {
		w.env.Stop("watchdog")
		w.awake()
		now := w.now()
		var sends []sending
		if sends, room = w.turn(now, room); len(sends) > 0 {
			w.wire.Go(func() { w.send(sends) })
		}
		if s.Sleep(w.arm(now), w.poke, nil, w.quit, nil) == clock.ByEnd {
			w.awake()
			return
		}
	}
}

// turn does what is due, and returns what is to be sent. It takes and returns room for what is
// due in the next turn.
func (w *watchdog) turn(now clock.Instant, room []*entry) (sends []sending, _ []*entry) {
	due := w.pop(now, room)
	for i, e := range due {
		if w.begins(e) {
			e.duty.drain()
		}
		do, next := e.duty.due(now, w.slack)
		if do.task != nil {
			if sends == nil {
				sends = make([]sending, 0, len(due)-i)
			}
			sends = append(sends, sending{w, e, do})
			if last := len(sends) - 1; last > 0 && sends[last-1].e == w.self {
				sends[last], sends[last-1] = sends[last-1], sends[last] // renewals go first
			}
		}
		w.move(e, next)
	}
	w.mu.Lock()
	w.taken = nil
	w.mu.Unlock()
	clear(due) // what ends must not be kept
	return sends, due
}

// pop takes what is due out of the agenda, a few at a time: callers need the mutex meanwhile.
// It returns it in room if that is enough, and not much too large.
func (w *watchdog) pop(now clock.Instant, room []*entry) (due []*entry) {
	w.mu.Lock()
	if cap(room) <= len(w.agenda)+spare {
		due = room[:0]
	}
	w.mu.Unlock()
	for more := true; more; {
		w.mu.Lock()
		for range 50 {
			e := w.agenda.next(now.Add(w.slack))
			if more = e != nil; !more {
				break
			}
			e.hurried = false
			due = append(due, e)
		}
		w.taken = due
		w.mu.Unlock()
	}
	return due
}

// begins is called before a duty is done. It reports whether that has yet to be told that the client
// shuts down.
func (w *watchdog) begins(e *entry) (drains bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e == w.self {
		w.wanted = false
	}
	if !w.draining || e.drained {
		return false
	}
	e.drained = true
	return true
}

// arm decides when to look next and returns how long that is from now.
func (w *watchdog) arm(now clock.Instant) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, any := w.agenda.first()
	if !any {
		at = now.Add(seam.FarAway)
	}
	w.armed = at
	return max(w.armed.Sub(w.now()), 0)
}

// sending is a chore that is sent. It is the recipient of the outcome.
type sending struct {
	w  *watchdog
	e  *entry
	do chore
}

// GoesOn implements protocol.Recipient.
func (s *sending) GoesOn() bool { return s.w.has(s.e) }

// Done implements protocol.Recipient.
func (s *sending) Done(sent time.Time, r protocol.Result[protocol.Kept]) {
	if r.OfQuorum && s.do.renews {
		s.w.renewals(s.e.duty.nodes(), nil, r.Err == nil, r.Err)
	}
	s.w.move(s.e, s.e.duty.answered(s.do, s.w.timeline.At(sent), r))
}

// send sends what is due. It returns when the nodes of one deployment have answered,
// or are waited for by others.
func (w *watchdog) send(sends []sending) {
	round := w.wire.NewRound(len(sends))
	for i := range sends {
		s := &sends[i]
		s.do.task.Send(protocol.Dispatch{Round: round, Lanes: w.lanes, Recipient: s})
	}
	round.Send(func(node redis.UniversalClient, renewals []wire.Answer) {
		renewed, failed := false, error(nil)
		for _, a := range renewals {
			renewed = renewed || a.Err == nil
			if a.Err != nil && wire.Transient(a.Err) {
				failed = a.Err
			}
		}
		w.renewals(node, node, renewed, failed)
	})
}

func (w *watchdog) now() clock.Instant { return w.timeline.Now() }

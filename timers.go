package rlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// duty is something that must be done in time: renew a hold and end it at its
// deadline, or send a clean-up. A duty is called from one goroutine at a time,
// except answered, which may come late and concurrently.
type duty interface {
	// Due is called at about the time that was asked for, perhaps a slack too
	// early. It returns what to do now, if anything, and when to be called
	// again; the zero time ends the duty.
	Due(now clock.Instant, slack time.Duration) (chore, clock.Instant)
	// Answered is called with the result of a chore that was sent at sent, if there ever is
	// one. It returns when to be called again.
	Answered(did chore, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant
	// Drain is called when the client shuts down. The duty is due then.
	Drain()
}

// chore is something to send.
type chore struct {
	task protocol.Task // nil: nothing
	kind uint8         // the duty's own
}

// entry is a duty's place among the timers.
type entry struct {
	duty       duty
	at         clock.Instant // guarded by timers.mu, as the rest
	index      int32         // in the agenda, from 1; 0: it is not there
	background bool          // nobody waits for it: see addBackground
	drained    bool
	hurried    bool // it is due now, and has not been called since
	ended      bool
}

// timersConfig is what timers need.
type timersConfig struct {
	env      *seam.Env
	timeline clock.Timeline
	wire     *wire.Deployment
	slack    time.Duration // duties due within it are done together
	// answered is told of each pipeline that was sent, with the answers to the requests that say Told.
	answered func(node redis.UniversalClient, answers []wire.Answer)
}

// timers serve all duties of a client with one goroutine, one timer and one agenda. They
// never wait for Redis themselves: goroutines that last as long as a round send the requests,
// so that a server that hangs delays neither the deadlines nor the renewals on other
// servers.
type timers struct {
	timersConfig
	lanes *wire.Lanes
	left  wire.Tally    // entries that have not ended, without the background
	poke  chan struct{} // capacity 1: something is due earlier than armed; see wakeLocked
	quit  chan struct{}

	mu       sync.Mutex    // guards the rest, and the entries
	ended    chan struct{} // closed when the goroutine has ended; nil: never began
	agenda   agenda
	armed    clock.Instant // when the goroutine will look next
	woken    func()        // ends the work that a wake-up has begun; nil: there was none
	draining bool
	closed   bool
}

// spare is for how many duties that have ended the timers keep room.
const spare = 1000

func newTimers(c timersConfig) *timers {
	return &timers{timersConfig: c, lanes: wire.NewLanes(c.wire), poke: make(chan struct{}, 1), quit: make(chan struct{})}
}

// add begins a duty. If the client is shutting down the duty is drained at once.
func (w *timers) add(e *entry, d duty, at clock.Instant) {
	w.mu.Lock()
	e.duty = d
	if w.closed {
		e.ended = true
		w.mu.Unlock()
		e.duty.Drain() // the timers are closed: nothing else can be done
		return
	}
	defer w.mu.Unlock()
	if !e.ended { // else it was removed before it began
		w.left.Add(1)
		w.pushLocked(e, at)
	}
}

// addBackground adds a duty that nobody waits for, not even a shutdown. It is due when it is moved.
func (w *timers) addBackground(e *entry, d duty) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.duty, e.background = d, true
	w.agenda.set(e, w.now().Add(seam.FarAway))
}

// remove ends a duty from outside.
func (w *timers) remove(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(e)
}

// has reports whether a duty has not ended.
func (w *timers) has(e *entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !e.ended
}

// move sets when a duty is due; the zero time ends it.
func (w *timers) move(e *entry, at clock.Instant) {
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
func (w *timers) hurry(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !e.ended {
		e.hurried = true
		w.pushLocked(e, w.now())
	}
}

func (w *timers) pushLocked(e *entry, at clock.Instant) {
	if w.draining && !e.drained || e.hurried {
		at = w.now()
	}
	w.agenda.set(e, at)
	switch {
	case w.closed:
	case w.ended == nil:
		w.ended = make(chan struct{})
		w.armed = at
		go w.run(clock.NewSleeper(w.env), w.ended)
	case at.Before(w.armed):
		w.wakeLocked()
	}
}

// wakeLocked makes the goroutine look at once. For a test that moves the clock its work
// begins here: a duty that the goroutine does not know yet may be due.
func (w *timers) wakeLocked() {
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
func (w *timers) awake() {
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

func (w *timers) endLocked(e *entry) {
	if e.ended {
		return
	}
	e.ended = true
	w.agenda.remove(e)
	if e.duty != nil && !e.background {
		w.left.Add(-1)
	}
}

// drain tells every duty that the client shuts down, also those that are added later.
func (w *timers) drain() {
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
	if w.ended != nil && !w.closed {
		w.wakeLocked()
	}
}

// idle reports whether all duties have ended, but for the background.
func (w *timers) idle() bool { return w.left.None() }

// waitIdle waits for that, or for the end of ctx.
func (w *timers) waitIdle(ctx context.Context) error { return w.left.Wait(ctx) }

// isClosed reports whether nothing is served any more.
func (w *timers) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close ends the goroutine and returns the duties that are left undone.
func (w *timers) close() (left []duty) {
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
		if !e.background {
			left = append(left, e.duty)
		}
	}
	w.mu.Unlock()
	for _, d := range left {
		d.Drain() // the goroutine may not have done it: no lease is valid if nobody looks after it
	}
	return left
}

func (w *timers) run(s *clock.Sleeper, ended chan struct{}) {
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
func (w *timers) turn(now clock.Instant, room []*entry) (sends []sending, _ []*entry) {
	due := w.pop(now, room)
	var background []sending
	for i, e := range due {
		if w.begins(e) {
			e.duty.Drain()
		}
		do, next := e.duty.Due(now, w.slack)
		switch {
		case do.task == nil:
		case e.background:
			background = append(background, sending{w, e, do})
		default:
			if sends == nil {
				sends = make([]sending, 0, len(due)-i)
			}
			sends = append(sends, sending{w, e, do})
		}
		w.move(e, next)
	}
	clear(due)                               // what ends must not be kept
	return append(sends, background...), due // what keeps a lock goes first
}

// pop takes what is due out of the agenda, a few at a time: callers need the mutex meanwhile.
// It returns it in room if that is enough, and not much too large.
func (w *timers) pop(now clock.Instant, room []*entry) (due []*entry) {
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
		w.mu.Unlock()
	}
	return due
}

// begins is called before a duty is done. It reports whether that has yet to be told that the client
// shuts down.
func (w *timers) begins(e *entry) (drains bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.draining || e.drained {
		return false
	}
	e.drained = true
	return true
}

// arm decides when to look next and returns how long that is from now.
func (w *timers) arm(now clock.Instant) time.Duration {
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
	w  *timers
	e  *entry
	do chore
}

// GoesOn implements protocol.Recipient.
func (s *sending) GoesOn() bool { return s.w.has(s.e) }

// Done implements protocol.Recipient.
func (s *sending) Done(sent time.Time, r protocol.Result[protocol.Kept]) {
	s.w.move(s.e, s.e.duty.Answered(s.do, s.w.timeline.At(sent), r))
}

// send sends what is due. It returns when the nodes of one deployment have answered,
// or are waited for by others.
func (w *timers) send(sends []sending) {
	round := w.wire.NewRound(len(sends))
	for i := range sends {
		s := &sends[i]
		s.do.task.Send(protocol.Dispatch{Round: round, Lanes: w.lanes, Recipient: s})
	}
	round.Send(w.answered)
}

func (w *timers) now() clock.Instant { return w.timeline.Now() }

// Package timers calls tasks in time: what renews a hold or ends it at its deadline, and the clean-ups of what its
// callers have left behind in Redis. It sends what they have to say in pipelines, and so has one goroutine for
// a hundred thousand of them. It knows no locks: a task is whatever is [Timers.Add]ed.
package timers

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

// Task is something that must be done in time. It is called from one goroutine at a time, without a lock of the
// Timers, except Answered, which may come late and concurrently.
type Task interface {
	// Due is called at about the time that was asked for, perhaps a slack too
	// early. It returns what to do now, if anything, and when to be called
	// again; the zero time ends the task.
	Due(now clock.Instant, slack time.Duration) (Do, clock.Instant)
	// Answered is called with the result of what was sent at sent, if there ever is
	// one. It returns when to be called again.
	Answered(did Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant
	// Drain is called when the client shuts down. The task is due then.
	Drain()
}

// Do is what a task has to send now.
type Do struct {
	Task protocol.Task // nil: nothing
	Kind uint8         // the task's own
}

// Entry is a task's place among the timers. It is ready to be added when it has the task.
type Entry struct {
	Task       Task
	at         clock.Instant // guarded by Timers.mu, as the rest
	index      int32         // in the agenda, from 1; 0: it is not there
	background bool          // nobody waits for it: see AddBackground
	drained    bool
	hurried    bool // it is due now, and has not been called since
	ended      bool
}

// Config is what Timers need.
type Config struct {
	Env      *seam.Env
	Timeline clock.Timeline
	Wire     *wire.Deployment
	Slack    time.Duration // tasks due within it are done together
	// Answered is told of each pipeline that was sent, with the answers to the requests that say Told.
	Answered func(node redis.UniversalClient, answers []wire.Answer)
}

// Timers call the tasks of a client when they are due, with one goroutine, one timer and one agenda. They
// never wait for Redis themselves: goroutines that last as long as a round send the requests,
// so that a server that hangs delays neither the deadlines nor the renewals on other
// servers.
type Timers struct {
	Config
	left wire.Tally    // entries that have not ended, without the background
	poke chan struct{} // capacity 1: something is due earlier than armed; see wakeLocked
	quit chan struct{}

	mu       sync.Mutex    // guards the rest, and the entries
	ended    chan struct{} // closed when the goroutine has ended; nil: never began
	agenda   agenda
	armed    clock.Instant // when the goroutine will look next
	woken    func()        // ends the work that a wake-up has begun; nil: there was none
	draining bool
	closed   bool
}

// spare is for how many tasks that have ended there is room.
const spare = 1000

// New returns Timers without tasks. Their goroutine begins with the first.
func New(c Config) *Timers {
	return &Timers{Config: c, poke: make(chan struct{}, 1), quit: make(chan struct{})}
}

// Add begins a task, which is due at a time. If the client is shutting down it is drained at once.
func (t *Timers) Add(e *Entry, at clock.Instant) {
	t.mu.Lock()
	if t.closed {
		e.ended = true
		t.mu.Unlock()
		e.Task.Drain() // the timers are closed: nothing else can be done
		return
	}
	defer t.mu.Unlock()
	if !e.ended { // else it was removed before it began
		t.left.Add(1)
		t.pushLocked(e, at)
	}
}

// AddBackground adds a task that nobody waits for, not even a shutdown. It is due when it is moved.
func (t *Timers) AddBackground(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.background = true
	t.agenda.set(e, t.Now().Add(seam.FarAway))
}

// Remove ends a task, perhaps before it is added.
func (t *Timers) Remove(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(e)
}

func (t *Timers) has(e *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !e.ended
}

// Move sets when a task is due; the zero time ends it.
func (t *Timers) Move(e *Entry, at clock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.ended:
	case at.IsZero():
		t.endLocked(e)
	default:
		t.pushLocked(e, at)
	}
}

// Hurry makes a task due now, even if Due or Answered, called before, returns a later time after this.
func (t *Timers) Hurry(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !e.ended {
		e.hurried = true
		t.pushLocked(e, t.Now())
	}
}

func (t *Timers) pushLocked(e *Entry, at clock.Instant) {
	if t.draining && !e.drained || e.hurried {
		at = t.Now()
	}
	t.agenda.set(e, at)
	switch {
	case t.closed:
	case t.ended == nil:
		t.ended = make(chan struct{})
		t.armed = at
		go t.run(clock.NewSleeper(t.Env), t.ended)
	case at.Before(t.armed):
		t.wakeLocked()
	}
}

// wakeLocked makes the goroutine look at once. For a test that moves the clock its work
// begins here: a task that the goroutine does not know yet may be due.
func (t *Timers) wakeLocked() {
	if t.woken == nil {
		t.woken = t.Env.Begin()
	}
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

// awake is called before the goroutine looks, which it does for all pokes so far. It ends
// the work that wakeLocked began.
func (t *Timers) awake() {
	t.mu.Lock()
	select {
	case <-t.poke:
	default:
	}
	end := t.woken
	t.woken = nil
	t.mu.Unlock()
	if end != nil {
		end()
	}
}

func (t *Timers) endLocked(e *Entry) {
	if e.ended {
		return
	}
	e.ended = true
	t.agenda.remove(e)
	if !e.at.IsZero() && !e.background { // else it has yet to be added, or is not waited for
		t.left.Add(-1)
	}
}

// Drain tells every task that the client shuts down, also those that are added later.
func (t *Timers) Drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return
	}
	t.draining = true
	now, any := t.Now(), false
	for _, e := range slices.Clone(t.agenda) {
		if !e.background {
			t.agenda.set(e, now)
			any = true
		}
	}
	if any && !t.closed { // else Close may follow at once
		t.wakeLocked()
	}
}

// Idle reports whether all tasks have ended, but for the background.
func (t *Timers) Idle() bool { return t.left.None() }

// WaitIdle waits for that, or for the end of ctx.
func (t *Timers) WaitIdle(ctx context.Context) error { return t.left.Wait(ctx) }

// IsClosed reports whether nothing is served any more.
func (t *Timers) IsClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// Close ends the goroutine and returns the tasks that are left undone.
func (t *Timers) Close() (left []Task) {
	t.mu.Lock()
	ended := t.ended
	if !t.closed {
		t.closed = true
		close(t.quit)
	}
	t.mu.Unlock()
	if ended != nil {
		<-ended
	}
	t.mu.Lock()
	for _, e := range t.agenda {
		if !e.background {
			left = append(left, e.Task)
		}
	}
	t.mu.Unlock()
	for _, d := range left {
		d.Drain() // the goroutine may not have done it: no lease is valid if nobody looks after it
	}
	return left
}

func (t *Timers) run(s *clock.Sleeper, ended chan struct{}) {
	defer close(ended)
	defer s.Stop()
	var room []*Entry
	until := t.Now()
	for {
		t.Env.Stop("watchdog")
		t.awake()
		now := t.Now()
		busy := now.Sub(until) > oversleeps
		var sends []sending
		if sends, room = t.turn(now, room); len(sends) > 0 {
			t.Wire.Go(func() { t.send(sends, busy) })
		}
		sleep := t.arm(now)
		until = t.Now().Add(sleep)
		if s.Sleep(sleep, t.poke, nil, t.quit, nil) == clock.ByEnd {
			t.awake()
			return
		}
	}
}

// oversleeps is how much later than it wanted the goroutine wakes if the process is short of processors. Go looks at its
// timers whenever a goroutine is preempted, which is each 10 ms or so; an answer of Redis comes behind all that can run.
const oversleeps = 2 * time.Millisecond

// turn does what is due, and returns what is to be sent. It takes and returns room for what is
// due in the next turn.
func (t *Timers) turn(now clock.Instant, room []*Entry) (sends []sending, _ []*Entry) {
	due := t.pop(now, room)
	var background []sending
	for i, e := range due {
		if t.begins(e) {
			e.Task.Drain()
		}
		do, next := e.Task.Due(now, t.Slack)
		switch {
		case do.Task == nil:
		case e.background:
			background = append(background, sending{t, e, do})
		default:
			if sends == nil {
				sends = make([]sending, 0, len(due)-i)
			}
			sends = append(sends, sending{t, e, do})
		}
		t.Move(e, next)
	}
	clear(due)                               // what ends must not be kept
	return append(sends, background...), due // what keeps a lock goes first
}

// pop takes what is due out of the agenda, a few at a time: callers need the mutex meanwhile.
// It returns it in room if that is enough, and not much too large.
func (t *Timers) pop(now clock.Instant, room []*Entry) (due []*Entry) {
	t.mu.Lock()
	if cap(room) <= len(t.agenda)+spare {
		due = room[:0]
	}
	t.mu.Unlock()
	for more := true; more; {
		t.mu.Lock()
		for range 50 {
			e := t.agenda.next(now.Add(t.Slack))
			if more = e != nil; !more {
				break
			}
			e.hurried = false
			due = append(due, e)
		}
		t.mu.Unlock()
	}
	return due
}

// begins is called before a task is called. It reports whether that has yet to be told that the client
// shuts down.
func (t *Timers) begins(e *Entry) (drains bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.draining || e.drained {
		return false
	}
	e.drained = true
	return true
}

// arm decides when to look next and returns how long that is from now: at the beginning of the slack in which
// something is due first, as what is due in one is done together.
func (t *Timers) arm(now clock.Instant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, any := t.agenda.first()
	if !any {
		at = now.Add(seam.FarAway)
	}
	if t.Slack > 0 {
		if begin := at - at%clock.Instant(t.Slack); begin.After(now) {
			at = begin
		}
	}
	t.armed = at
	return max(t.armed.Sub(t.Now()), 0)
}

// sending is what a task has sent. It is the recipient of the outcome.
type sending struct {
	t  *Timers
	e  *Entry
	do Do
}

// GoesOn implements protocol.Recipient.
func (s *sending) GoesOn() bool { return s.t.has(s.e) }

// Done implements protocol.Recipient.
func (s *sending) Done(sent time.Time, r protocol.Result[protocol.Kept]) {
	s.t.Move(s.e, s.e.Task.Answered(s.do, s.t.Timeline.At(sent), r))
}

// send sends what is due. It returns when the nodes of one deployment have answered,
// or are waited for by others.
func (t *Timers) send(sends []sending, busy bool) {
	round := t.Wire.NewRound(len(sends))
	if busy {
		round.Busy()
	}
	for i := range sends {
		s := &sends[i]
		s.do.Task.Send(protocol.Dispatch{Round: round, Recipient: s})
	}
	round.Send(t.Answered)
}

func (t *Timers) Now() clock.Instant { return t.Timeline.Now() }

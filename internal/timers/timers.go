// Package timers calls tasks when they are due, and sends their requests in pipelines: one goroutine serves a hundred
// thousand tasks. The tasks are the renewals and deadlines of holds, and clean-ups in Redis. The package does not depend on
// locks.
//
// # States of a task
//
// A task is added, due from time to time, and ended: by [Timers.Remove], or by the zero time that its Due or Answered
// returns. [Timers.Drain] makes all tasks due, because the client shuts down.
//
// # Failures
//
// The goroutine never waits for Redis, so a server that hangs delays neither the deadlines nor the renewals on other
// servers. Each task decides when a request without a reply is repeated.
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

// Task is called when it is due. One goroutine at a time calls it, without a lock of the Timers, except for Answered, which
// may be called late and concurrently.
type Task interface {
	// Due is called at about the time that was set, perhaps a slack too early. It returns what
	// to send now, if anything, and when to be called again; the zero time ends the task.
	Due(now clock.Instant, slack time.Duration) (Do, clock.Instant)
	// Answered is called with the result of the request sent at sent, if there is one. It
	// returns when to be called again.
	Answered(did Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant
	// Drain is called when the client shuts down. The task is due then.
	Drain()
}

// Do is what a task sends now.
type Do struct {
	Task protocol.Task // nil if there is nothing to send
	Kind uint8         // passed back to the task with the result
}

// Entry is a task's place among the timers. Set Task before adding it.
type Entry struct {
	Task         Task
	dueAt        clock.Instant // guarded by Timers.mu, as the rest
	index        int32         // index in the agenda, from 1; 0 if the entry is not in it
	isBackground bool          // a shutdown does not wait for the task: see AddBackground
	isDrained    bool
	isHurried    bool // the task is due now, and was not called since
	hasEnded     bool
}

// Config configures Timers.
type Config struct {
	Env      *seam.Env
	Timeline clock.Timeline
	Wire     *wire.Deployment
	Slack    time.Duration // tasks that are due within it are done together
	// Answered is called after each pipeline, with the replies that Round.Send passes on.
	Answered func(node redis.UniversalClient, answers []wire.Answer)
}

// Timers call the tasks of a client when they are due, with one goroutine, one timer and one agenda. Other
// goroutines, which last as long as a round, send the requests.
type Timers struct {
	Config
	active wire.Tally    // entries that have not ended, except background ones
	poke   chan struct{} // capacity 1: something is due earlier than armed; see wakeLocked
	quit   chan struct{}

	mu         sync.Mutex    // guards the rest, and the entries
	ended      chan struct{} // closed when the goroutine has ended; nil before it begins
	agenda     agenda
	armed      clock.Instant // when the goroutine wakes next
	woken      func()        // ends the work that a wake-up has begun; nil without one
	isDraining bool
	isClosed   bool
}

// spare is how much larger than needed the agenda and its buffers may be.
const spare = 1000

// New returns Timers without tasks. The goroutine begins with the first.
func New(c Config) *Timers {
	return &Timers{Config: c, poke: make(chan struct{}, 1), quit: make(chan struct{})}
}

// Add begins a task that is due at a time. If the client is shutting down, the task is drained immediately.
func (t *Timers) Add(e *Entry, at clock.Instant) {
	t.mu.Lock()
	if t.isClosed {
		e.hasEnded = true
		t.mu.Unlock()
		e.Task.Drain() // the timers are closed: nothing else can be done
		return
	}
	defer t.mu.Unlock()
	if !e.hasEnded { // otherwise the task was removed before it began
		t.active.Add(1)
		t.pushLocked(e, at)
	}
}

// AddBackground adds a task that a shutdown does not wait for. It is due when it is moved.
func (t *Timers) AddBackground(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.isBackground = true
	t.agenda.set(e, t.Now().Add(seam.FarAway))
}

// Remove ends a task, perhaps before it is added.
func (t *Timers) Remove(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(e)
}

func (t *Timers) goesOn(e *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !e.hasEnded
}

// Move sets when a task is due; the zero time ends it.
func (t *Timers) Move(e *Entry, at clock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.hasEnded:
	case at.IsZero():
		t.endLocked(e)
	default:
		t.pushLocked(e, at)
	}
}

// Hurry makes a task due now, even if a call of Due or Answered that is under way returns a later time.
func (t *Timers) Hurry(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !e.hasEnded {
		e.isHurried = true
		t.pushLocked(e, t.Now())
	}
}

func (t *Timers) pushLocked(e *Entry, at clock.Instant) {
	if t.isDraining && !e.isDrained || e.isHurried {
		at = t.Now()
	}
	t.agenda.set(e, at)
	switch {
	case t.isClosed:
	case t.ended == nil:
		t.ended = make(chan struct{})
		t.armed = at
		go t.run(clock.NewSleeper(t.Env), t.ended)
	case at.Before(t.armed):
		t.wakeLocked()
	}
}

// wakeLocked wakes the goroutine. For a test that moves the clock, the goroutine's work begins here: a
// task may be due for which the goroutine would not wake in time.
func (t *Timers) wakeLocked() {
	if t.woken == nil {
		t.woken = t.Env.Begin()
	}
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

// awake is called before the goroutine serves the due tasks, for all pokes so far. It ends the work that wakeLocked began.
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
	if e.hasEnded {
		return
	}
	e.hasEnded = true
	t.agenda.remove(e)
	if !e.dueAt.IsZero() && !e.isBackground { // otherwise the entry is not counted, or not added yet
		t.active.Add(-1)
	}
}

// Drain drains every task, because the client shuts down; also those that are added later.
func (t *Timers) Drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isDraining {
		return
	}
	t.isDraining = true
	now, any := t.Now(), false
	for _, e := range slices.Clone(t.agenda) {
		if !e.isBackground {
			t.agenda.set(e, now)
			any = true
		}
	}
	if any && !t.isClosed { // otherwise no task has to be called, or the goroutine has ended
		t.wakeLocked()
	}
}

// Idle reports whether all tasks have ended, except background tasks.
func (t *Timers) Idle() bool { return t.active.None() }

// WaitIdle waits until all tasks have ended, except background tasks, or until ctx ends.
func (t *Timers) WaitIdle(ctx context.Context) error { return t.active.Wait(ctx) }

// IsClosed reports whether Close was called.
func (t *Timers) IsClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isClosed
}

// Close ends the goroutine, and returns the tasks that have not ended.
func (t *Timers) Close() (left []Task) {
	t.mu.Lock()
	ended := t.ended
	if !t.isClosed {
		t.isClosed = true
		close(t.quit)
	}
	t.mu.Unlock()
	if ended != nil {
		<-ended
	}
	t.mu.Lock()
	for _, e := range t.agenda {
		if !e.isBackground {
			left = append(left, e.Task)
		}
	}
	t.mu.Unlock()
	for _, d := range left {
		d.Drain() // the goroutine may not have drained it, and no lease is valid without a watchdog
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

// oversleeps is how late the goroutine wakes at least if the process is short of processors. Go checks its timers
// when a goroutine is preempted, about every 10 ms; a reply of Redis waits behind all runnable goroutines.
const oversleeps = 2 * time.Millisecond

// turn calls the due tasks, and returns the requests to send. It takes and returns a buffer for the next turn.
func (t *Timers) turn(now clock.Instant, room []*Entry) (sends []sending, _ []*Entry) {
	due := t.pop(now, room)
	var background []sending
	for i, e := range due {
		if t.mustDrain(e) {
			e.Task.Drain()
		}
		do, next := e.Task.Due(now, t.Slack)
		switch {
		case do.Task == nil:
		case e.isBackground:
			background = append(background, sending{t, e, do})
		default:
			if sends == nil {
				sends = make([]sending, 0, len(due)-i)
			}
			sends = append(sends, sending{t, e, do})
		}
		t.Move(e, next)
	}
	clear(due)                               // for the garbage collector
	return append(sends, background...), due // renewals go first
}

// pop removes the due entries from the agenda, a few at a time, because callers need the mutex meanwhile. It reuses room if
// its capacity fits.
func (t *Timers) pop(now clock.Instant, room []*Entry) (due []*Entry) {
	t.mu.Lock()
	if cap(room) <= len(t.agenda)+spare {
		due = room[:0]
	}
	t.mu.Unlock()
	for more := true; more; {
		t.mu.Lock()
		for range 50 {
			e := t.agenda.takeDue(now.Add(t.Slack))
			if more = e != nil; !more {
				break
			}
			e.isHurried = false
			due = append(due, e)
		}
		t.mu.Unlock()
	}
	return due
}

// mustDrain reports whether a task has to be drained before it is called, and records that it is.
func (t *Timers) mustDrain(e *Entry) (must bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isDraining || e.isDrained {
		return false
	}
	e.isDrained = true
	return true
}

// arm sets when the goroutine wakes next, and returns the time until then. The goroutine wakes at the beginning of the slack
// in which the first task is due. Tasks that are due in one slack are called together.
func (t *Timers) arm(now clock.Instant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, any := t.agenda.first()
	if !any {
		at = now.Add(seam.FarAway)
	}
	if t.Slack > 0 {
		if slackStart := at - at%clock.Instant(t.Slack); slackStart.After(now) {
			at = slackStart
		}
	}
	t.armed = at
	return max(t.armed.Sub(t.Now()), 0)
}

// sending is a request of a task, and the recipient of its outcome.
type sending struct {
	t  *Timers
	e  *Entry
	do Do
}

// GoesOn implements protocol.Recipient.
func (s *sending) GoesOn() bool { return s.t.goesOn(s.e) }

// Done implements protocol.Recipient.
func (s *sending) Done(sent time.Time, r protocol.Result[protocol.Kept]) {
	s.t.Move(s.e, s.e.Task.Answered(s.do, s.t.Timeline.At(sent), r))
}

// send sends requests. It returns when the server has replied; in a cluster it may return earlier.
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

package rlock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// cleanupsConfig is what cleanups need.
type cleanupsConfig struct {
	wire     *wire.Deployment
	timers   *timers
	retried  func(of any, operation string, err error) // is told of a failure
	patience time.Duration                             // for the first copy of a request
}

// newCleanups returns cleanups of which there are none.
func newCleanups(c cleanupsConfig) *cleanups { return &cleanups{cleanupsConfig: c} }

// cleanups are what a client still has to end in Redis after the callers have returned.
// Only some clean-ups of a lock run at once: if ten thousand waiters are canceled
// together, as at a deploy, Redis serves others between them. A clean-up that is not
// answered soon lets the next one run, and is repeated with growing pauses. While the server does
// not answer, only a PING asks whether it does. What was held up by that comes a few at a
// time afterwards: an outage may leave tens of thousands, and the server has to serve others.
type cleanups struct {
	cleanupsConfig

	open  atomic.Int64 // those that are not over
	mu    sync.Mutex   // guards the rest, and cleanup.phase
	lines map[any]*cleanupLine
	turn  clock.Instant // the last that a clean-up was given
	taken int           // how many have that turn
}

// mostCleanups is how many clean-ups of one lock a client has under way at once.
const mostCleanups = 32

// One pipeline of clean-ups that were held up is sent each turnEvery: a thousand in a second.
const turnEvery = wire.RoundSize * time.Millisecond

// cleanupLine are the clean-ups of one lock.
type cleanupLine struct {
	underWay int
	waiting  []*cleanup
}

// cleanupPhase is how far a clean-up has got in its line.
type cleanupPhase int

const (
	unbounded cleanupPhase = iota // it does not count, or not any more
	waiting                       // it is not called
	admitted                      // it is one of those under way
)

// cleanup ends a hold in Redis: that of an acquire that was given up, or of a release
// without an answer. It is repeated until Redis confirms it, or until the hold would have
// run out by itself.
type cleanup struct {
	entry
	of    *cleanups
	lock  any // whose line it is in
	task  protocol.Task
	until clock.Instant
	done  chan struct{} // closed when it is over
	then  func()        // called when it is over, if not nil; it must be quick

	phase cleanupPhase // guarded by cleanups.mu

	mu     sync.Mutex // guards the rest
	pause  time.Duration
	copies int // sent since the last answer
	next   clock.Instant
	late   bool // the copy that was sent last is, and the server was doubted for that
	held   bool // it was held up, and has to wait for its turn
	turn   bool // which it has
	over   bool
	last   bool // the client shuts down: a lasting error ends the clean-up
}

var _ duty = (*cleanup)(nil)

// add begins a clean-up of a lock at the time from. It is repeated until the time until. When it is over it
// calls then, if that is not nil.
func (s *cleanups) add(lock any, task protocol.Task, from, until clock.Instant, then func()) *cleanup {
	u := &cleanup{of: s, lock: lock, task: task, until: until, done: make(chan struct{}), then: then, next: from, pause: 50 * time.Millisecond}
	s.open.Add(1)
	now := s.timers.now()
	if task.OfQuorum() || from.After(now) {
		s.timers.add(&u.entry, u, from)
		return u
	}
	s.timers.add(&u.entry, u, now.Add(seam.FarAway))
	if s.admit(u) {
		s.timers.move(&u.entry, from)
	}
	return u
}

// count is how many are not over.
func (s *cleanups) count() int { return int(s.open.Load()) }

// admit reports whether u may run now. Otherwise pass returns it when it may.
func (s *cleanups) admit(u *cleanup) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		s.lines = map[any]*cleanupLine{}
	}
	line := s.lines[u.lock]
	if line == nil {
		line = &cleanupLine{}
		s.lines[u.lock] = line
	}
	if line.underWay == mostCleanups {
		u.phase = waiting
		line.waiting = append(line.waiting, u)
		return false
	}
	u.phase = admitted
	line.underWay++
	return true
}

// pass takes u out of those under way, and returns the clean-up that may run instead, or
// nil.
func (s *cleanups) pass(u *cleanup) (next *cleanup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := u.phase == admitted
	u.phase = unbounded
	if !had {
		return nil
	}
	line := s.lines[u.lock]
	for len(line.waiting) > 0 {
		next, line.waiting = line.waiting[0], line.waiting[1:]
		if next.phase == waiting { // else a shutdown has started it
			next.phase = admitted
			return next
		}
	}
	line.underWay--
	if line.underWay == 0 {
		delete(s.lines, u.lock)
	}
	return nil
}

// turnAfter returns when a clean-up that was held up may be sent.
func (s *cleanups) turnAfter(now clock.Instant) clock.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.turn.Before(now):
		s.turn, s.taken = now, 0
	case s.taken == wire.RoundSize:
		s.turn, s.taken = s.turn.Add(turnEvery), 0
	}
	s.taken++
	return s.turn
}

// yield lets the next clean-up of the lock run.
func (u *cleanup) yield() {
	if next := u.of.pass(u); next != nil {
		u.of.timers.move(&next.entry, u.of.timers.now())
	}
}

// Due implements duty.
func (u *cleanup) Due(now clock.Instant, _ time.Duration) (chore, clock.Instant) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || now.After(u.until) {
		u.endLocked()
		return chore{}, 0
	}
	if u.needlessLocked() {
		u.endLocked()
		return chore{}, 0
	}
	if now.Before(u.next) {
		return chore{}, u.next
	}
	if !u.task.OfQuorum() {
		if u.copies > 0 && !u.late {
			u.late, u.held = true, true
			u.of.wire.Failed(wire.NoAnswer(u.of.patience, nil)) // not to be sure, but a PING will tell
		}
		if u.of.wire.IsLost(u.of.patience) {
			u.yield()
			u.held, u.turn = true, false
			u.next = now.Add(u.pause)
			u.pause = min(2*u.pause, time.Second)
			return chore{}, u.next
		}
		if u.held && !u.turn {
			u.turn = true
			if at := u.of.turnAfter(now); at.After(now) {
				u.next = at
				return chore{}, at
			}
		}
	}
	// The next copy is sent if this one is not answered: it may hang. The server may
	// also be slow, so the pauses grow.
	if u.copies > 0 {
		u.yield()
	}
	patience := u.of.patience << min(u.copies, 4)
	u.copies++
	u.late, u.held, u.turn = false, false, false
	u.next = now.Add(max(u.pause, patience))
	return chore{task: u.task}, u.next
}

// Answered implements duty.
func (u *cleanup) Answered(_ chore, _ clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return 0
	}
	// An error reply of Redis, such as NOPERM, or a closed go-redis client may last, so
	// the pauses grow longer. A key that is no lock any more holds nothing.
	lasts := r.Err != nil && !wire.Transient(r.Err) && !wire.Panicked(r.Err)
	if r.Err == nil || lasts && (u.last || wire.IsWrongType(r.Err)) {
		u.endLocked()
		return 0
	}
	u.of.retried(u.lock, u.task.Name(), r.Err)
	u.yield()
	u.copies, u.held = 0, true
	if !u.task.OfQuorum() {
		u.of.wire.Failed(r.Err)
	}
	if u.needlessLocked() {
		u.endLocked()
		return 0
	}
	u.next = u.of.timers.now().Add(u.pause)
	longest := time.Second
	if lasts {
		longest = 10 * time.Second
	}
	u.pause = min(2*u.pause, longest)
	return u.next
}

// needlessLocked reports whether the client shuts down and nobody needs the clean-up.
func (u *cleanup) needlessLocked() bool {
	task, ok := u.task.(protocol.Dispensable)
	return ok && u.last && task.Dispensable()
}

func (u *cleanup) endLocked() {
	if !u.over {
		u.over = true
		u.of.open.Add(-1)
		if u.then != nil {
			u.then() // before whoever waits goes on, and may need what it gives back
		}
		close(u.done)
		u.yield()
	}
}

// Drain implements duty.
func (u *cleanup) Drain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = true
	u.next = u.of.timers.now()
}

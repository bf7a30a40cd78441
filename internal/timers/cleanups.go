package timers

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// CleanUpsConfig configures CleanUps.
type CleanUpsConfig struct {
	Wire     *wire.Deployment
	Timers   *Timers
	Retried  func(lock any, operation string, err error) // called after a failure
	Patience time.Duration                               // how long to wait for the reply to the first copy of a request
}

// NewCleanUps returns an empty CleanUps.
func NewCleanUps(c CleanUpsConfig) *CleanUps { return &CleanUps{CleanUpsConfig: c} }

// CleanUps end holds that callers have left in Redis: holds of acquires that were given up, and of releases without a
// reply. Only a few clean-ups of a lock run at a time: if ten thousand waiters are canceled together, as by a deploy, Redis
// serves others in between. A clean-up without a reply lets the next one run, and is repeated with growing pauses. While
// the server is silent it gets only a PING. Clean-ups that an outage has held up are sent a few at a time afterwards: there
// may be tens of thousands.
type CleanUps struct {
	CleanUpsConfig

	active atomic.Int64 // clean-ups that are not over
	mu     sync.Mutex   // guards the rest, and cleanUp.phase
	lines  map[any]*cleanUpLine
	turn   clock.Instant // latest turn that a clean-up was given
	taken  int           // number of clean-ups with the latest turn
}

// mostCleanUps is how many clean-ups of one lock a client has under way at a time.
const mostCleanUps = 32

// turnEvery is the time between two pipelines of clean-ups that an outage has held up: a thousand clean-ups a second.
const turnEvery = wire.RoundSize * time.Millisecond

// cleanUpLine has the clean-ups of one lock.
type cleanUpLine struct {
	underWay int
	queue    []*cleanUp
}

// cleanUpPhase is how far a clean-up has got in its line.
type cleanUpPhase int

const (
	unbounded cleanUpPhase = iota // does not count in its line
	waiting                       // waits for admission
	admitted                      // counts as under way
)

// cleanUp ends a hold in Redis, after an acquire that was given up or a release without a reply. It is
// repeated until Redis confirms it, or until the hold would have run out.
type cleanUp struct {
	Entry
	cleanUps *CleanUps
	lineKey  any // key in CleanUps.lines
	task     protocol.Task
	giveUpAt clock.Instant
	finished chan struct{} // closed when the clean-up is over
	then     func()        // called when it is over, unless nil; must be quick

	phase cleanUpPhase // guarded by CleanUps.mu

	mu           sync.Mutex // guards the rest
	pause        time.Duration
	copies       int // copies sent since the last reply
	dueAt        clock.Instant
	isOverdue    bool // the latest copy had no reply in time, and the server was reported as failed for that
	wasHeldUp    bool // an outage has held up the clean-up: it has to wait for its turn
	hasTurn      bool // the clean-up has its turn
	isOver       bool
	shuttingDown bool // the client shuts down: a lasting error ends the clean-up
}

var _ Task = (*cleanUp)(nil)

// Add begins a clean-up of a lock at the time from, and repeats it at most until the time until. When it is over,
// it calls then, unless nil, and closes the returned channel.
func (s *CleanUps) Add(lock any, task protocol.Task, from, until clock.Instant, then func()) (done <-chan struct{}) {
	u := &cleanUp{cleanUps: s, lineKey: lock, task: task, giveUpAt: until, finished: make(chan struct{}), then: then, dueAt: from, pause: 50 * time.Millisecond}
	u.Task = u
	s.active.Add(1)
	now := s.Timers.Now()
	if task.OfQuorum() || from.After(now) {
		s.Timers.Add(&u.Entry, from)
		return u.finished
	}
	s.Timers.Add(&u.Entry, now.Add(seam.FarAway))
	if s.admit(u) {
		s.Timers.Move(&u.Entry, from)
	}
	return u.finished
}

// Count returns how many clean-ups are not over.
func (s *CleanUps) Count() int { return int(s.active.Load()) }

// admit reports whether u may run now. Otherwise pass returns it when it may.
func (s *CleanUps) admit(u *cleanUp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		s.lines = map[any]*cleanUpLine{}
	}
	line := s.lines[u.lineKey]
	if line == nil {
		line = &cleanUpLine{}
		s.lines[u.lineKey] = line
	}
	if line.underWay == mostCleanUps {
		u.phase = waiting
		line.queue = append(line.queue, u)
		return false
	}
	u.phase = admitted
	line.underWay++
	return true
}

// pass removes u from the clean-ups under way, and returns the clean-up that may run instead, or nil.
func (s *CleanUps) pass(u *cleanUp) (next *cleanUp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := u.phase == admitted
	u.phase = unbounded
	if !had {
		return nil
	}
	line := s.lines[u.lineKey]
	for len(line.queue) > 0 {
		next, line.queue = line.queue[0], line.queue[1:]
		if next.phase == waiting { // otherwise a shutdown has started it
			next.phase = admitted
			return next
		}
	}
	line.underWay--
	if line.underWay == 0 {
		delete(s.lines, u.lineKey)
	}
	return nil
}

// turnAfter returns when a clean-up that was held up may be sent.
func (s *CleanUps) turnAfter(now clock.Instant) clock.Instant {
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
func (u *cleanUp) yield() {
	if next := u.cleanUps.pass(u); next != nil {
		u.cleanUps.Timers.Move(&next.Entry, u.cleanUps.Timers.Now())
	}
}

// Due implements Task.
func (u *cleanUp) Due(now clock.Instant, _ time.Duration) (Do, clock.Instant) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.isOver || now.After(u.giveUpAt) || u.needlessLocked() {
		u.endLocked()
		return Do{}, 0
	}
	if now.Before(u.dueAt) {
		return Do{}, u.dueAt
	}
	if !u.task.OfQuorum() {
		if u.copies > 0 && !u.isOverdue {
			u.isOverdue, u.wasHeldUp = true, true
			u.cleanUps.Wire.Failed(wire.NoAnswer(u.cleanUps.Patience, nil)) // this is not certain, but a PING finds out
		}
		if u.cleanUps.Wire.IsLost(u.cleanUps.Patience) {
			u.yield()
			u.wasHeldUp, u.hasTurn = true, false
			u.dueAt = now.Add(u.pause)
			u.pause = min(2*u.pause, time.Second)
			return Do{}, u.dueAt
		}
		if u.wasHeldUp && !u.hasTurn {
			u.hasTurn = true
			if at := u.cleanUps.turnAfter(now); at.After(now) {
				u.dueAt = at
				return Do{}, at
			}
		}
	}
	// Without a reply to this copy, whose connection may hang, the next one is sent. The server may also
	// be slow, so the pauses grow.
	if u.copies > 0 {
		u.yield()
	}
	patience := u.cleanUps.Patience << min(u.copies, 4)
	u.copies++
	u.isOverdue, u.wasHeldUp, u.hasTurn = false, false, false
	u.dueAt = now.Add(max(u.pause, patience))
	return Do{Task: u.task}, u.dueAt
}

// Answered implements Task.
func (u *cleanUp) Answered(_ Do, _ clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.isOver {
		return 0
	}
	// An error reply of Redis, such as NOPERM, or a closed go-redis client may last, so the pauses grow
	// longer. A key that is not a lock any more has no hold.
	lasts := r.Err != nil && !wire.Transient(r.Err) && !wire.Panicked(r.Err)
	if r.Err == nil || lasts && (u.shuttingDown || wire.IsWrongType(r.Err)) {
		u.endLocked()
		return 0
	}
	u.cleanUps.Retried(u.lineKey, u.task.Name(), r.Err)
	u.yield()
	u.copies, u.wasHeldUp = 0, true
	if !u.task.OfQuorum() {
		u.cleanUps.Wire.Failed(r.Err)
	}
	if u.needlessLocked() {
		u.endLocked()
		return 0
	}
	u.dueAt = u.cleanUps.Timers.Now().Add(u.pause)
	longest := time.Second
	if lasts {
		longest = 10 * time.Second
	}
	u.pause = min(2*u.pause, longest)
	return u.dueAt
}

// needlessLocked reports whether the client shuts down and the clean-up is not needed.
func (u *cleanUp) needlessLocked() bool {
	task, ok := u.task.(protocol.Dispensable)
	return ok && u.shuttingDown && task.Dispensable()
}

func (u *cleanUp) endLocked() {
	if !u.isOver {
		u.isOver = true
		u.cleanUps.active.Add(-1)
		if u.then != nil {
			u.then() // before finished is closed: a caller may need what then gives back
		}
		close(u.finished)
		u.yield()
	}
}

// Drain implements Task.
func (u *cleanUp) Drain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shuttingDown = true
	u.dueAt = u.cleanUps.Timers.Now()
}

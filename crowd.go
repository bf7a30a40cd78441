package rlock

import (
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wait"
)

// crowd decides when a client polls after a message that permits of a semaphore are free. All waiting clients get the
// message, and few of them can enter. So each postpones its poll by a random time, which grows with the estimated number
// of waiting clients. A client that takes permits from a crowd publishes how many are left; a message that none are left
// cancels postponed polls. After a poll that a message caused, each client doubles its estimate if the poll was
// refused, and halves it if the poll was postponed and succeeded. Any other poll does not change the estimate: otherwise
// clients that have just got permits would go first again.
//
// A postponed poll is sent unless a message that no permits are left cancels it. In any case, the head of a line polls
// at the longest poll.
//
// crowds.mu guards the fields.
type crowd struct {
	proto    protocol.Crowded
	notify   func() // makes the head of the line poll
	end      func() // ends the subscription to permits that are taken; nil without one
	isClosed bool   // the line is not subscribed any more

	size         int           // estimated number of waiting clients, a power of 2
	pollTime     time.Duration // duration of a poll
	messages     int           // number of messages received
	due          *time.Timer   // timer of the postponed poll, or nil
	at           time.Time     // when the postponed poll is due
	postponed    int           // number of postponed polls so far
	isWoken      bool          // a message causes the next poll
	wasPostponed bool          // the poll that a message causes was postponed
}

// crowds has the crowds of a client, by the lines that are subscribed to the messages of a semaphore.
type crowds struct {
	seed   uint64
	mu     sync.Mutex // guards byLine and the crowds
	byLine map[wait.Key]*crowd
}

// mostCrowd and longestPollTime bound for how long a poll is postponed.
const (
	mostCrowd       = 128
	longestPollTime = 10 * time.Millisecond
)

// subscribe subscribes a line to the messages of a semaphore. It returns nil if it cannot yet.
func (s *crowds) subscribe(key wait.Key, proto protocol.Crowded, notify func()) (end func()) {
	c := &crowd{proto: proto, notify: notify}
	stop := proto.SubscribeToFreed(notify, func(n int64) { s.freed(c, n) })
	if stop == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byLine == nil {
		s.byLine = map[wait.Key]*crowd{}
	}
	s.byLine[key] = c
	return func() {
		stop()
		s.mu.Lock()
		if s.byLine[key] == c { // otherwise a new line has subscribed already
			delete(s.byLine, key)
		}
		c.dropLocked()
		c.isClosed = true
		end := c.end
		s.mu.Unlock()
		if end != nil {
			end()
		}
	}
}

// freed is called with a message that n permits are free, or that the semaphore was deleted if n is 0.
func (s *crowds) freed(c *crowd, n int64) {
	s.mu.Lock()
	c.messages++
	later := seam.Jitter(s.seed, 0, c.messages, time.Duration(c.size)*c.pollTime) - time.Duration(n+1)*c.pollTime
	if n >= 1 && later > 0 {
		s.postponeLocked(c, later)
		s.mu.Unlock()
		return
	}
	c.causePollLocked(false)
	s.mu.Unlock()
	c.notify()
}

// postponeLocked makes the head poll later, unless a poll is due sooner. A timer may have fired when it is stopped, so its
// function checks that its poll was neither dropped nor replaced.
func (s *crowds) postponeLocked(c *crowd, later time.Duration) {
	at := time.Now().Add(later)
	if c.due != nil && c.at.Before(at) {
		return
	}
	c.dropLocked()
	c.postponed++
	serial := c.postponed
	c.due, c.at = time.AfterFunc(later, func() {
		s.mu.Lock()
		isDue := c.due != nil && c.postponed == serial
		if isDue {
			c.causePollLocked(true)
		}
		s.mu.Unlock()
		if isDue {
			c.notify()
		}
	}), at
}

// taken is called with a message that permits were taken, and how many are left. While any are left, the postponed poll
// stays: a waiter that needs no more may be about to become the head, or to join the line.
func (s *crowds) taken(c *crowd, left int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left < 1 {
		c.dropLocked()
	}
}

// dropLocked drops the postponed poll.
func (c *crowd) dropLocked() {
	if c.due != nil {
		c.due.Stop()
		c.due = nil
	}
}

// causePollLocked records that a message causes the next poll, postponed or not.
func (c *crowd) causePollLocked(late bool) {
	c.dropLocked()
	c.isWoken, c.wasPostponed = true, late
}

// reportsLeft reports whether other clients may wait for the permits of a line. A call that takes permits then publishes how
// many are left.
func (s *crowds) reportsLeft(key wait.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byLine[key]
	return c != nil && c.end != nil
}

// poll is called by the head of a line before it polls for permits, and answers all messages so far. The head calls done
// with the result. done is nil if the line is not subscribed.
func (s *crowds) poll(key wait.Key) (done func(got bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byLine[key]
	if c == nil {
		return nil
	}
	c.dropLocked()
	woken, began := c.isWoken, time.Now()
	c.isWoken = false
	return func(got bool) { s.polled(c, woken, got, time.Since(began)) }
}

// polled updates the estimates after a poll, which took some time. woken reports whether a message caused the poll. If
// such a poll is refused, several clients wait: from then on the line is also subscribed to permits that are taken.
func (s *crowds) polled(c *crowd, woken, got bool, took time.Duration) {
	s.mu.Lock()
	c.pollTime = min(max(took, time.Millisecond), longestPollTime)
	switch {
	case !woken:
	case !got:
		c.size = min(max(2*c.size, 2), mostCrowd)
	case c.wasPostponed:
		c.size /= 2
	}
	subscribe := woken && !got && c.end == nil
	s.mu.Unlock()
	if !subscribe {
		return
	}
	end := c.proto.SubscribeToTaken(func(left int64) { s.taken(c, left) })
	s.mu.Lock()
	closed := c.isClosed // the head of a new line may have polled while the subscription of the old one ended
	if !closed {
		c.end = end
	}
	s.mu.Unlock()
	if closed && end != nil {
		end()
	}
}

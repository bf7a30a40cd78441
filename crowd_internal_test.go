package rlock

import (
	"testing"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
)

// crowdProtocol counts the subscriptions to permits that are taken.
type crowdProtocol struct {
	protocol.Crowded
	freed func(n int64)
	taken int
}

func (p *crowdProtocol) SubscribeToFreed(_ func(), freed func(n int64)) (end func()) {
	p.freed = freed
	return func() {}
}

func (p *crowdProtocol) SubscribeToTaken(func(left int64)) (end func()) {
	p.taken++
	return func() { p.taken-- }
}

// The head that has polled may be gone: the next one may need fewer permits, and rely on the poll that is postponed.
func TestPostponedPollIsDroppedOnlyIfNoPermitsAreLeft(t *testing.T) {
	var s crowds
	p, key := &crowdProtocol{}, wait.Key{Lock: protocol.LockID{Name: "s"}}
	defer s.subscribe(key, p, func() {})()
	s.poll(key)(false)
	c := s.byLine[key]
	for c.size, c.pollTime = mostCrowd, longestPollTime; c.due == nil; {
		p.freed(3)
	}
	if s.taken(c, 1); c.due == nil {
		t.Error("one permit is left, and the poll was dropped")
	}
	if s.taken(c, 0); c.due != nil {
		t.Error("no permit is left, and the poll is still due")
	}
}

// The head of a new line polls while the subscription of the old line with the same key ends.
func TestSubscriptionToTakenPermitsEndsWithItsLine(t *testing.T) {
	for _, ended := range []bool{false, true} {
		var s crowds
		p, key := &crowdProtocol{}, wait.Key{Lock: protocol.LockID{Name: "s"}}
		end := s.subscribe(key, p, func() {})
		p.freed(1)
		polled := s.poll(key)
		if ended {
			end()
		}
		polled(false)
		if !ended && p.taken != 1 {
			t.Errorf("%d subscriptions after a poll that was refused", p.taken)
		}
		if !ended {
			end()
		}
		if p.taken != 0 || len(s.byLine) != 0 {
			t.Errorf("%d subscriptions and %d crowds are left", p.taken, len(s.byLine))
		}
	}
}

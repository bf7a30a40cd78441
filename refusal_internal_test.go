package rlock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/quorum"
)

// What the last look has found out about the servers says more than that the next is not answered.
func TestUnansweredLookKeepsTheErrorOfTheOneBefore(t *testing.T) {
	sent := time.Now()
	before := fmt.Errorf("%w; node 3: no answer", quorum.ErrNoQuorum)
	s := sight{err: before, asked: sent}
	s.settle(sent.Add(time.Minute), false)
	if s.err != before {
		t.Errorf("%v", s.err)
	}
	s = sight{held: true, asked: sent}
	s.settle(sent.Add(time.Minute), false)
	if !errors.Is(s.err, ErrUnreachable) {
		t.Errorf("%v", s.err)
	}
}

// A server that has just said who holds the lock is not taken for unreachable because its next answer takes
// part of a second. What was seen long ago, in another wait, says nothing about the server.
func TestSilenceThatSaysThatTheServerIsAway(t *testing.T) {
	sent := time.Now()
	for _, c := range []struct {
		name   string
		seen   sight
		silent time.Duration
		away   bool
	}{
		{"nothing was seen, short", sight{}, 99 * time.Millisecond, false},
		{"nothing was seen, long", sight{}, 100 * time.Millisecond, true},
		{"seen just before, short", sight{held: true, seen: sent}, 999 * time.Millisecond, false},
		{"seen just before, long", sight{held: true, seen: sent}, time.Second, true},
		{"seen long ago", sight{held: true, seen: sent.Add(-time.Second), until: sent.Add(time.Hour)}, 100 * time.Millisecond, true},
	} {
		c.seen.asked = sent
		c.seen.settle(sent.Add(c.silent), false)
		if got := errors.Is(c.seen.err, ErrUnreachable); got != c.away {
			t.Errorf("%s: unreachable: %v", c.name, got)
		}
	}
}

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

// A hold that was seen and has not run out is why the lock was not acquired, unless the server has been
// silent for longer than a busy machine is.
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
		{"a hold that lasts, short", sight{held: true, until: sent.Add(time.Minute)}, 999 * time.Millisecond, false},
		{"a hold that lasts, long", sight{held: true, until: sent.Add(time.Minute)}, time.Second, true},
		{"a hold that has run out", sight{held: true, until: sent.Add(50 * time.Millisecond)}, 100 * time.Millisecond, true},
	} {
		c.seen.asked = sent
		c.seen.settle(sent.Add(c.silent), false)
		if got := errors.Is(c.seen.err, ErrUnreachable); got != c.away {
			t.Errorf("%s: unreachable: %v", c.name, got)
		}
	}
}

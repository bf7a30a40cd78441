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

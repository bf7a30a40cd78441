package rlock

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// What one caller of a Once finds out is true for all of its client who came before: that there is a
// result, or that the function of another has failed while they waited. So is what one caller of a
// CronJob finds out of a tick: whose run it is (the result), or that nobody may run it (a failure).

// settled is why an acquire has no hold: there is a result, or a run has failed.
type settled struct {
	result []byte
	failed error
	ago    time.Duration // since it failed, or a little more
}

func (s *settled) Error() string {
	if s.failed != nil {
		return "not acquired: the function of another caller has failed"
	}
	return "not acquired: there is a result"
}

func (s *settled) Is(target error) bool { return target == ErrNotAcquired }

// hasResult is for what an Observer is told: see observed.end.
func (s *settled) hasResult() bool { return s.failed == nil }

func settledBy(e *protocol.Entered) *settled {
	if e.Failed {
		// With the rest of a ms, which the reply leaves out.
		return &settled{failed: errors.New(e.Result), ago: e.Ago + time.Millisecond}
	}
	return &settled{result: []byte(e.Result)}
}

// failAll tells all waiters of a line why they should leave.
func (q *lines) failAll(key lineKey, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		for e := l.waiters.Front(); e != nil; e = e.Next() {
			w := e.Value.(*waiter)
			w.err = err
			w.poke()
		}
	}
}

// looksFirst is called by who finds no waiters. It reports whether nobody looks who found none
// before, and notes then that one does, until looked. Those who come meanwhile look together, by
// the head of their line: not by that look, which Redis may have answered before they came.
func (q *lines) looksFirst(key lineKey) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.looking[key] {
		return false
	}
	if q.looking == nil {
		q.looking = map[lineKey]bool{}
	}
	q.looking[key] = true
	return true
}

func (q *lines) looked(key lineKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.looking, key)
}

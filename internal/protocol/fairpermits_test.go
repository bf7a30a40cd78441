package protocol

import (
	"testing"
	"time"
)

// queueOfPermits is a queue of waiters for fair permits, whose clock the test has.
type queueOfPermits struct {
	t     *testing.T
	p     *FairPermits
	after func(d time.Duration)
}

func newQueueOfPermits(t *testing.T, permits int) *queueOfPermits {
	site, m, _ := mini(t)
	site.WaiterLease = 10 * time.Second
	now := time.Now()
	m.SetTime(now)
	return &queueOfPermits{t, NewFairPermits(site, namesOf(t, "s"), permits), func(d time.Duration) {
		now = now.Add(d)
		m.SetTime(now)
	}}
}

func (q *queueOfPermits) looks(id string, n int, v Verdict) time.Duration {
	q.t.Helper()
	e := entry(id)
	e.Wait = true
	return verdict(q.t, q.p.Of(n), e, v).Rest
}

// A waiter that was told that it can enter, and does not come, keeps nobody out for whom there is room
// beside it. Those who come are let in in their order.
func TestSilentFairWaiterIsPassedIfThereIsRoom(t *testing.T) {
	q := newQueueOfPermits(t, 20)
	q.looks("h:1", 20, Granted)
	for _, id := range []string{"dead:1", "a:1", "b:1"} {
		q.looks(id, 1, Busy)
	}
	want(t, q.p.Release("h:1", 0), Done) // tells the first
	if rest := q.looks("a:1", 1, Busy); rest <= 0 || rest > time.Second {
		t.Errorf("the next is to look again within %v", rest)
	}
	q.after(time.Second)
	q.looks("b:1", 1, Busy)       // a is alive: it goes first
	q.looks("c:1", 20, Busy)      // it would take what is the dead one's
	q.looks("a:1", 1, Granted)    // tells b
	q.looks("d:1", 1, Busy)       // b may be on its way
	q.looks("b:1", 1, Granted)    // there is room beside the dead one
	q.looks("dead:1", 1, Granted) // it was not: its place is as good as before
	q.looks("d:1", 1, Busy)       // c is before it, and alive
	want(t, q.p.Abandon("c:1", false), Removed)
	q.looks("d:1", 1, Granted)
}

// One for whom there is no room beside it looks when its sign of life ends.
func TestSilentFairWaiterIsGoneAtTheEndOfItsLease(t *testing.T) {
	q := newQueueOfPermits(t, 2)
	q.looks("h:1", 2, Granted)
	q.looks("dead:1", 2, Busy)
	q.after(3 * time.Second)
	q.looks("a:1", 1, Busy)
	want(t, q.p.Release("h:1", 0), Done)
	q.after(3 * time.Second)
	rest := q.looks("a:1", 1, Busy)
	if rest < 4*time.Second || rest > 4*time.Second+5*time.Millisecond {
		t.Errorf("it is to look again within %v, and the lease of the dead one ends in 4s", rest)
	}
	q.after(rest)
	q.looks("a:1", 1, Granted)
}

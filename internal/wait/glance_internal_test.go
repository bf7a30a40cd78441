package wait

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// A glance is for the heads that leave their looks to it, in one order, and for no others,
// however many there are. It ends when none is left.
func TestGlanceIsForHeadsThatLeaveItToThat(t *testing.T) {
	q := newLines()
	q.glancing = true // as if its goroutine ran: the test is in its place
	const n = 2*mostListed + 7
	lock := &protocol.HashLock{}
	var all []*Waiter
	for i := range n {
		w, head := q.join(keyOf(fmt.Sprint("lock", (i*7919)%n)), 1, time.Now(), 0)
		if q.Relieve(w, lock, -1) {
			t.Fatal("it is relieved before it has polled for a longest poll")
		}
		w.joinedAt = w.joinedAt.Add(-q.cfg.LongestPoll)
		if !head || !q.Relieve(w, lock, -1) || !q.Relieve(w, lock, -1) {
			t.Fatal("it is not relieved")
		}
		all = append(all, w)
	}
	due := func(want int) {
		t.Helper()
		heads, goOn := q.due()
		if len(heads) != want || goOn != (len(all) > 0) || q.glancing != goOn {
			t.Fatalf("%d heads of %d, %v", len(heads), want, goOn)
		}
		if !slices.IsSortedFunc(heads, func(a, b glanced) int {
			if a.line.key.Lock.Name < b.line.key.Lock.Name {
				return -1
			}
			return 1
		}) {
			t.Error("they are in no order")
		}
	}
	due(n)
	due(0) // it is under way
	answered := func() {
		for _, w := range all {
			w.glance.beganAt = time.Time{}
		}
	}
	answered()
	for _, w := range all[:n/2] {
		q.leave(w, nil)
	}
	all = all[n/2:]
	all[0].glance.lock = nil // it looks by itself
	due(len(all) - 1)
	answered()
	if !q.Relieve(all[0], lock, -1) {
		t.Fatal("it is not relieved again")
	}
	due(len(all))
	for _, w := range all {
		q.leave(w, nil)
	}
	all = nil
	due(0)
	if len(q.glanceHeads) > 0 {
		t.Errorf("%d are kept", len(q.glanceHeads))
	}
}

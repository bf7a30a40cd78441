package rlock

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A glance is for the heads that leave their looks to it, in one order, and for no others,
// however many there are. It ends when none is left.
func TestGlanceIsForHeadsThatLeaveItToThat(t *testing.T) {
	c := unserved(t)
	g, q := c.glances, &c.lines
	q.rested = true // as if its goroutine ran: the test is in its place
	const n = 2*mostListed + 7
	var all []*waiter
	for i := range n {
		l := c.NewLock(fmt.Sprint("lock", (i*7919)%n)).core
		w, head := q.join(l.line(""), time.Now(), 0)
		if !head || !g.relieve(w, l.asks, -1) || !g.relieve(w, l.asks, -1) {
			t.Fatal("it is not relieved")
		}
		all = append(all, w)
	}
	due := func(want int) {
		t.Helper()
		heads, goOn := g.due()
		if len(heads) != want || goOn != (len(all) > 0) || q.rested != goOn {
			t.Fatalf("%d heads of %d, %v", len(heads), want, goOn)
		}
		if !slices.IsSortedFunc(heads, func(a, b glanced) int {
			if a.line.key.lock.Name < b.line.key.lock.Name {
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
			w.glancing = time.Time{}
		}
	}
	answered()
	for _, w := range all[:n/2] {
		q.leave(w, nil)
	}
	all = all[n/2:]
	all[0].look = nil // it looks by itself
	due(len(all) - 1)
	answered()
	if l := c.NewLock("other").core; !g.relieve(all[0], l.asks, -1) {
		t.Fatal("it is not relieved again")
	}
	due(len(all))
	for _, w := range all {
		q.leave(w, nil)
	}
	all = nil
	due(0)
	if len(q.relieved) > 0 {
		t.Errorf("%d are kept", len(q.relieved))
	}
}

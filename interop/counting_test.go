//go:build unix

package interop

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var (
	semaphores = []pair{{"Semaphore", "semaphore", "semaphore"}}
	latches    = []pair{{"CountDownLatch", "latch", "latch"}}
)

// counting runs what has no holders.
func (a *arena) counting(t *testing.T) {
	w := &wakeUps{}
	t.Run("permits", a.permits)
	t.Run("release", func(t *testing.T) { a.permitReleased(t, w) })
	t.Run("another number", a.anotherNumber)
	t.Run("latch", func(t *testing.T) { a.counts(t, w) })
	t.Run("deleted", func(t *testing.T) { a.deleted(t, w) })
	t.Run("exclusion", a.inside)
	w.log(t)
}

// number checks a number that a peer sees.
func (p *peer) number(t *testing.T, want int, verb string, args ...any) {
	t.Helper()
	if got := p.do(t, "1", verb, args...).values[0]; got != fmt.Sprint(want) {
		t.Fatalf("%s: %s %v is %s, want %d", p.language, verb, args, got, want)
	}
}

// permits: each sees what the other does, and is refused what is not there.
func (a *arena) permits(t *testing.T) {
	a.eachWay(t, casePermits, semaphores, func(t *testing.T, first, second *peer, _ pair) {
		name := a.name("permits")
		first.do(t, "1", "semaphore", name, "set", 5)
		second.refuses(t, "1", "semaphore", name, "set", 9)
		second.do(t, "1", "semaphore", name, "acquire", 2, 0)
		first.number(t, 3, "semaphore", name, "available")
		first.refuses(t, "1", "semaphore", name, "acquire", 4, 0)
		first.refuses(t, "1", "semaphore", name, "acquire", 4, 300*time.Millisecond)
		second.do(t, "1", "semaphore", name, "add", -1)
		first.number(t, 2, "semaphore", name, "drain")
		second.number(t, 0, "semaphore", name, "available")
		first.do(t, "1", "semaphore", name, "add", 3)
		second.do(t, "1", "semaphore", name, "release", 2)
		first.do(t, "1", "semaphore", name, "acquire", 5, 0)
		second.refuses(t, "1", "semaphore", name, "acquire", 1, 0)
		first.do(t, "1", "semaphore", name, "release", 5)
		second.number(t, 5, "semaphore", name, "drain")
	})
}

// permitReleased: a release wakes the waiter.
func (a *arena) permitReleased(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseRelease, semaphores, func(t *testing.T, first, second *peer, p pair) {
		for _, do := range [][]any{{"release", 2}, {"add", 2}} {
			name := a.name("permit-release")
			first.do(t, "1", "semaphore", name, "set", 1)
			waiter := a.blocked(t, "1", "semaphore", name, func() *call {
				return second.send(t, "1", "semaphore", name, "acquire", 3, -1)
			})
			released := first.do(t, "1", "semaphore", append([]any{name}, do...)...)
			w.note(t, fmt.Sprint(direction(first.language), " ", p, " ", do[0]), released, waiter.must(t, "ok"))
			first.number(t, 0, "semaphore", name, "available")
		}
	})
}

// anotherNumber: Go sets other numbers while Java holds permits and waits for some. Where fewer
// are free than none, who waits still gets permits when enough are released, in either language.
func (a *arena) anotherNumber(t *testing.T) {
	java, gos := a.peers(java)
	name := a.name("another-number")
	gos.do(t, "1", "semaphore", name, "set", 5)
	java.do(t, "1", "semaphore", name, "acquire", 3, 0)
	waiting := func(n int) *call {
		// A client that still listens would not be seen to begin.
		eventually(t, "nobody listens", func() bool {
			plain, sharded := a.listeners(t, channelOf("semaphore", name))
			return plain+sharded == 0
		})
		return a.blocked(t, "waiter", "semaphore", name, func() *call { return java.send(t, "waiter", "semaphore", name, "acquire", n, -1) })
	}
	waiter := waiting(6)
	gos.do(t, "1", "semaphore", name, "make", 9)
	waiter.must(t, "ok") // all are taken
	gos.do(t, "1", "semaphore", name, "make", 4)
	java.number(t, -5, "semaphore", name, "available")
	java.refuses(t, "1", "semaphore", name, "acquire", 1, 0)
	for _, releases := range []*peer{gos, java} {
		waiter = waiting(1)
		releases.do(t, "1", "semaphore", name, "release", 2)
		releases.do(t, "1", "semaphore", name, "release", 3)
		if !waiter.pending() {
			t.Fatal("it has got a permit too early")
		}
		releases.do(t, "1", "semaphore", name, "release", 1)
		waiter.must(t, "ok") // 4 are taken
		gos.number(t, 0, "semaphore", name, "available")
		gos.do(t, "1", "semaphore", name, "add", -5)
	}
	gos.do(t, "1", "semaphore", name, "delete")
	java.number(t, 0, "semaphore", name, "available")
	java.do(t, "1", "semaphore", name, "set", 2)
	gos.number(t, 2, "semaphore", name, "available")
}

// counts: both count down, and the last count-down wakes who waits.
func (a *arena) counts(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseCounts, latches, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("latch")
		second.do(t, "1", "latch", name, "wait") // it is open
		for range 2 {                            // again after it has opened
			first.do(t, "1", "latch", name, "set", 3)
			second.refuses(t, "1", "latch", name, "set", 4)
			second.number(t, 3, "latch", name, "count")
			waiter := a.blocked(t, "waiter", "latch", name, func() *call { return second.send(t, "waiter", "latch", name, "wait") })
			first.do(t, "1", "latch", name, "down")
			second.do(t, "1", "latch", name, "down")
			first.number(t, 1, "latch", name, "count")
			if !waiter.pending() {
				t.Fatal("the latch has opened too early")
			}
			counted := first.do(t, "1", "latch", name, "down")
			w.note(t, fmt.Sprint(direction(first.language), " ", p), counted, waiter.must(t, "ok"))
			second.number(t, 0, "latch", name, "count")
			first.do(t, "1", "latch", name, "down")
			// A client that still listens would not be seen to begin.
			eventually(t, "nobody listens", func() bool {
				plain, sharded := a.listeners(t, channelOf("latch", name))
				return plain+sharded == 0
			})
		}
	})
}

// deleted: who deletes a latch frees the waiters of the other.
func (a *arena) deleted(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseDeleted, latches, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("deleted")
		second.do(t, "1", "latch", name, "set", 3)
		waiter := a.blocked(t, "waiter", "latch", name, func() *call { return second.send(t, "waiter", "latch", name, "wait") })
		deleted := first.do(t, "1", "latch", name, "delete")
		w.note(t, fmt.Sprint(direction(first.language), " ", p, " delete"), deleted, waiter.must(t, "ok"))
		second.refuses(t, "1", "latch", name, "delete")
	})
}

// inside: two processes of each language have three permits. Never are more taken.
func (a *arena) inside(t *testing.T) {
	shown.by(t, a, caseExclusion, together, "Semaphore")
	const permits = 3
	name := "{" + a.name("inside") + "}permits"
	a.gos[0].do(t, "1", "semaphore", name, "set", permits)
	var calls []*call
	for _, p := range slices.Concat(a.javas, a.gos) {
		for _, thread := range []string{"1", "2"} {
			calls = append(calls, p.send(t, thread, "semaphore", name, "inside", name+":counter", 100, permits))
		}
	}
	for _, c := range calls {
		c.must(t, "ok")
	}
	a.javas[0].number(t, permits, "semaphore", name, "available")
}

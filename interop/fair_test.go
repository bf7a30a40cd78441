//go:build unix

package interop

import (
	"fmt"
	"testing"
	"time"
)

// fair is what only the queue of a fair lock has.
func (a *arena) fair(t *testing.T) {
	t.Run("order", a.order)
	t.Run("neighbors", a.neighbors)
	t.Run("outlives", a.outlives)
	t.Run("cancelled", a.cancelled)
	t.Run("killed", a.killed)
}

var fairs = []pair{{"FairLock", "fair", "fair"}}

// order: waiters of four processes, two in each, have the lock in the order in which
// they came.
func (a *arena) order(t *testing.T) {
	a.eachWay(t, caseOrder, fairs, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("order")
		type turn struct {
			p      *peer
			thread string
			call   *call
		}
		first.do(t, "0", "lock", "fair", name, long)
		var line []turn
		for _, thread := range []string{"1", "2"} {
			for _, p := range []*peer{a.javas[0], a.gos[0], a.gos[1], a.javas[1]} {
				line = append(line, turn{p, thread, a.waiting(t, p, thread, "fair", name, long)})
			}
		}
		first.do(t, "0", "unlock", "fair", name)
		begin := time.Now()
		for i, turn := range line {
			turn.call.must(t, "ok")
			for _, later := range line[i+1:] {
				if !later.call.pending() {
					t.Fatalf("number %d: %q", i+1, later.call.wait(t))
				}
			}
			turn.p.do(t, turn.thread, "unlock", "fair", name)
		}
		t.Logf("%d hand-overs in %v", len(line), time.Since(begin))
		a.nothingLeft(t, name)
	})
}

// neighbors: waiters of one process stand next to each other, so that the release of one wakes another of its own
// process. The order among all is kept.
func (a *arena) neighbors(t *testing.T) {
	name := a.name("neighbors")
	type turn struct {
		p      *peer
		thread string
		call   *call
	}
	a.gos[0].do(t, "0", "lock", "fair", name, 0)
	var line []turn
	for i, p := range []*peer{a.gos[0], a.gos[0], a.gos[0], a.javas[0], a.gos[1], a.gos[1], a.javas[1], a.javas[0], a.gos[0], a.gos[0], a.gos[1]} {
		thread := fmt.Sprint(i + 1)
		line = append(line, turn{p, thread, a.waiting(t, p, thread, "fair", name, 0)})
	}
	a.gos[0].do(t, "0", "unlock", "fair", name)
	for i, turn := range line {
		turn.call.must(t, "ok")
		for _, later := range line[i+1:] {
			if !later.call.pending() {
				t.Fatalf("number %d: %q", i+1, later.call.wait(t))
			}
		}
		turn.p.do(t, turn.thread, "unlock", "fair", name)
	}
	a.nothingLeft(t, name)
}

// outlives: the line lasts longer than any deadline in it, though those of Redisson are
// minutes away, and though those of ours that gave it a time to live have left. It is
// served in order all the same.
func (a *arena) outlives(t *testing.T) {
	a.eachWay(t, caseOutlives, fairs, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("outlives")
		deadlines := derived("redisson_lock_timeout", name)
		lasts := func(what string) {
			t.Helper()
			last, err := a.rdb.ZRevRangeWithScores(bg, deadlines, 0, 0).Result()
			if err != nil || len(last) == 0 {
				t.Fatal(last, err)
			}
			rest := time.Until(time.UnixMilli(int64(last[0].Score)))
			for _, key := range []string{derived("redisson_lock_queue", name), deadlines} {
				if ttl := a.ttl(t, key); ttl < rest+time.Hour || ttl > rest+48*time.Hour {
					t.Errorf("%s: %q lasts for %v, and the last may wait for %v", what, key, ttl, rest)
				}
			}
		}
		first.do(t, "0", "lock", "fair", name, long)
		line := []*call{a.waiting(t, first, "1", "fair", name, long), a.waiting(t, second, "1", "fair", name, long)}
		lasts("one of each")
		// A Java waiter that comes later has the deadline of the one before it, and more.
		line = append(line, a.waiting(t, a.javas[1], "1", "fair", name, time.Hour, long))
		lasts("with another of Java")
		a.waiting(t, a.gos[1], "1", "fair", name, long)
		a.gos[1].do(t, "1", "interrupt")
		eventually(t, "it has left", func() bool { return len(a.queue(t, name)) == 3 })
		lasts("when one has left")
		first.do(t, "0", "unlock", "fair", name)
		for i, p := range []*peer{first, second, a.javas[1]} {
			line[i].must(t, "ok")
			if i < 2 {
				lasts(fmt.Sprintf("when %d have been served", i+1))
			}
			for _, later := range line[i+1:] {
				if !later.pending() {
					t.Fatalf("number %d: %q", i+1, later.wait(t))
				}
			}
			p.do(t, "1", "unlock", "fair", name)
		}
		a.nothingLeft(t, name)
	})
}

// cancelled: a waiter of ours whose context ends, and one of Redisson whose wait is over,
// leave the line at once; who stands behind is served next.
func (a *arena) cancelled(t *testing.T) {
	a.eachWay(t, caseCancelled, fairs, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("cancelled")
		second.do(t, "0", "lock", "fair", name, long)
		var leaver *call
		if first.language == java {
			leaver = a.waiting(t, first, "1", "fair", name, 2*time.Second, long)
		} else {
			leaver = a.waiting(t, first, "1", "fair", name, long)
		}
		next := a.waiting(t, second, "1", "fair", name, long)
		last := a.waiting(t, first, "2", "fair", name, long)
		if first.language == java {
			leaver.must(t, "no")
		} else {
			first.do(t, "1", "interrupt")
			leaver.must(t, "failed")
		}
		if line := a.queue(t, name); len(line) != 2 {
			t.Errorf("the line is %q", line)
		}
		begin := time.Now()
		second.do(t, "0", "unlock", "fair", name)
		next.must(t, "ok")
		second.do(t, "1", "unlock", "fair", name)
		last.must(t, "ok")
		if took := time.Since(begin); took > soon {
			t.Errorf("two hand-overs took %v", took)
		}
		first.do(t, "2", "unlock", "fair", name)
		a.nothingLeft(t, name)
	})
}

// killed: a dead waiter at the head of the line holds it up until its deadline is over:
// for one of Redisson the rest of the holder's lease and its own wait, for one of ours that and a
// waiter lease. (With Redisson's default, for waiters without a limit, it is five minutes.)
func (a *arena) killed(t *testing.T) {
	t.Parallel()
	a.eachWay(t, caseKilled, fairs, func(t *testing.T, first, second *peer, p pair) {
		t.Parallel()
		const wait = 10 * time.Second
		name, thread := a.name("killed"), t.Name()
		doomed := startPeer(t, first.language, a)
		second.do(t, thread, "lock", "fair", name, 0)
		most := watchdog + 2*waiterLease + soon
		if first.language == java {
			a.waiting(t, doomed, "1", "fair", name, wait, long)
			most = watchdog + wait + soon
		} else {
			a.waiting(t, doomed, "1", "fair", name, long)
		}
		next := a.waiting(t, second, thread+" next", "fair", name, long)
		last := a.waiting(t, first, thread+" last", "fair", name, long)
		doomed.kill()
		released := second.do(t, thread, "unlock", "fair", name)
		took := next.must(t, "ok").time().Sub(released.time())
		t.Logf("the next was served after %v", took)
		if took > most {
			t.Errorf("the next was served after %v, more than %v", took, most)
		}
		released = second.do(t, thread+" next", "unlock", "fair", name)
		if took := last.must(t, "ok").time().Sub(released.time()); took > soon {
			t.Errorf("the last was served after another %v", took)
		}
		first.do(t, thread+" last", "unlock", "fair", name)
		a.nothingLeft(t, name)
	})
}

//go:build unix

package interop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// handOver runs what two processes do at one lock, one after the other.
func (a *arena) handOver(t *testing.T) {
	w := &wakeUps{}
	t.Run("refused", a.refused)
	t.Run("release", func(t *testing.T) { a.release(t, w) })
	t.Run("force", func(t *testing.T) { a.force(t, w) })
	t.Run("reentry", func(t *testing.T) { a.reentry(t, w) })
	t.Run("names", func(t *testing.T) { a.oddNames(t, w) })
	t.Run("forms", a.forms)
	t.Run("readers", a.readers)
	t.Run("turns", a.turns)
	t.Run("long", a.longReader)
	t.Run("downgrade", func(t *testing.T) { a.downgrade(t, w) })
	t.Run("inner", a.inner)
	t.Run("multi", func(t *testing.T) { a.multi(t, w) })
	t.Run("tokens", a.tokens)
	t.Run("once", a.once)
	w.log(t)
}

// refused: who does not have the lock sees who has it, and does not get it.
func (a *arena) refused(t *testing.T) {
	a.eachWay(t, caseRefused, contending, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("refused")
		first.do(t, "1", "lock", p.held, name, long)
		second.refuses(t, "1", "try", p.wanted, name, 0, long)
		second.refuses(t, "1", "try", p.wanted, name, 300*time.Millisecond, long)
		if p.held == "fair" {
			if line := a.queue(t, name); len(line) > 0 {
				t.Errorf("the waiter has left, and the line is %q", line)
			}
		}
		if locked, count, _ := first.state(t, "1", p.held, name); !locked || count != 1 {
			t.Errorf("the holder sees: locked %v, %d times by itself", locked, count)
		}
		locked, count, ttl := second.state(t, "1", p.held, name)
		if !locked || count != 0 || ttl > long || ttl < long/2 {
			t.Errorf("the other sees: locked %v, %d times by itself, for another %v", locked, count, ttl)
		}
		second.send(t, "1", "unlock", p.held, name).must(t, "failed")
		first.do(t, "1", "unlock", p.held, name)
		second.do(t, "1", "try", p.wanted, name, 0, long)
		second.do(t, "1", "unlock", p.wanted, name)
		a.nothingLeft(t, name)
	})
}

// release: a release wakes the waiter, over the kind of channel that belongs to
// the deployment. All timers are too long to do that.
func (a *arena) release(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseRelease, contending, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("release")
		first.do(t, "1", "lock", p.held, name, long)
		waiter := a.waiting(t, second, "1", p.wanted, name, long)
		a.listensIn(t, p.wanted, name)
		released := first.do(t, "1", "unlock", p.held, name)
		w.note(t, fmt.Sprint(direction(first.language), " ", p), released, waiter.must(t, "ok"))
		second.do(t, "1", "unlock", p.wanted, name)
		a.nothingLeft(t, name)
	})
}

// listensIn checks how the waiter listens: sharded in a cluster.
func (a *arena) listensIn(t *testing.T, kind, name string) {
	t.Helper()
	channel := channelOf(kind, name)
	switch kind {
	case "spin":
		return
	case "fair":
		channel += ":" + a.queue(t, name)[0]
	}
	// The place in the line comes before the subscription.
	eventually(t, "the waiter listens", func() bool {
		plain, sharded := a.listeners(t, channel)
		if a.kind == "cluster" {
			plain, sharded = sharded, plain
		}
		if sharded != 0 {
			t.Fatalf("the waiter listens with the wrong kind of subscription")
		}
		return plain == 1
	})
}

// force: freed by a third process, a lock goes to its waiter, and the holder has
// lost it.
func (a *arena) force(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseForce, contending, func(t *testing.T, first, second *peer, p pair) {
		third := a.javas[1]
		if first.language == golang {
			third = a.gos[1]
		}
		name := a.name("force")
		second.do(t, "holder", "lock", p.held, name, long)
		waiter := a.waiting(t, second, "1", p.wanted, name, long)
		forced := third.do(t, "1", "force", p.held, name)
		w.note(t, fmt.Sprint(direction(first.language), " ", p), forced, waiter.must(t, "ok"))
		third.refuses(t, "1", "try", p.held, name, 0, long)
		second.send(t, "holder", "unlock", p.held, name).must(t, "failed")
		second.do(t, "1", "unlock", p.wanted, name)
		third.refuses(t, "1", "force", p.held, name)
		a.nothingLeft(t, name)
	})
}

// reentry: the lock is free with the last release only.
func (a *arena) reentry(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseReentry, contending, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("reentry")
		for n := 1; n <= 3; n++ {
			first.do(t, "1", "lock", p.held, name, long)
			a.holds(t, name, n)
		}
		for n := 2; n >= 1; n-- {
			second.refuses(t, "1", "try", p.wanted, name, 0, long)
			first.do(t, "1", "unlock", p.held, name)
			a.holds(t, name, n)
		}
		if _, count, ttl := first.state(t, "1", p.held, name); count != 1 || ttl < long/2 {
			t.Errorf("held %d times, for another %v", count, ttl)
		}
		second.refuses(t, "1", "try", p.wanted, name, 0, long)
		waiter := a.waiting(t, second, "1", p.wanted, name, long)
		released := first.do(t, "1", "unlock", p.held, name)
		w.note(t, fmt.Sprint(direction(first.language), " ", p), released, waiter.must(t, "ok"))
		second.do(t, "1", "unlock", p.wanted, name)
		a.nothingLeft(t, name)
	})
}

// oddNames: both derive the same keys and channels from a name.
func (a *arena) oddNames(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseNames, contending, func(t *testing.T, first, second *peer, p pair) {
		for _, name := range []string{a.name("order:7 a/b?*[x]"), a.name("{tag}x"), a.name("x{tag}"), a.name("Schloß·鎖·🔒")} {
			first.do(t, "1", "lock", p.held, name, long)
			a.holds(t, name, 1)
			second.refuses(t, "1", "try", p.wanted, name, 0, long)
			waiter := a.waiting(t, second, "1", p.wanted, name, long)
			released := first.do(t, "1", "unlock", p.held, name)
			w.note(t, fmt.Sprint(direction(first.language), " ", p), released, waiter.must(t, "ok"))
			second.do(t, "1", "unlock", p.wanted, name)
			a.nothingLeft(t, name)
		}
	})
}

// readers: those of both languages read at once, and the last one out lets the
// writer in.
func (a *arena) readers(t *testing.T) {
	a.eachWay(t, caseReaders, []pair{{"ReadWriteLock", "read", "read"}}, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("readers")
		first.do(t, "1", "lock", "read", name, long)
		second.do(t, "1", "lock", "read", name, long)
		second.do(t, "1", "lock", "read", name, long)
		for _, peer := range []*peer{first, second} {
			peer.refuses(t, "2", "try", "write", name, 0, long)
		}
		first.do(t, "1", "unlock", "read", name)
		a.holds(t, name, 2)
		second.do(t, "1", "unlock", "read", name)
		a.holds(t, name, 1)
		first.refuses(t, "1", "try", "write", name, 0, long)
		writer := a.waiting(t, first, "1", "write", name, long)
		// Who waits to write keeps nobody out.
		second.do(t, "2", "try", "read", name, 0, long)
		second.do(t, "2", "unlock", "read", name)
		second.do(t, "1", "unlock", "read", name)
		writer.must(t, "ok")
		second.refuses(t, "1", "try", "read", name, 0, long)
		first.do(t, "1", "unlock", "write", name)
		a.nothingLeft(t, name)
	})
}

// turns: while a writer of ours waits, no reader of ours comes in, whoever reads; the
// writer does when the readers have left. Readers of Redisson pass it by. When it leaves,
// a reader of ours and a writer of Redisson come in one after the other.
func (a *arena) turns(t *testing.T) {
	shown.by(t, a, caseTurns, direction(golang), "ReadWriteLock")
	name := a.name("turns")
	a.javas[0].do(t, "1", "lock", "read", name, long)
	a.gos[1].do(t, "1", "lock", "read", name, long)
	writer := a.waiting(t, a.gos[0], "1", "write", name, long)
	reader := a.waiting(t, a.gos[1], "2", "read", name, long)
	a.gos[0].refuses(t, "2", "try", "read", name, 0, long)
	a.javas[1].do(t, "1", "try", "read", name, 0, long)
	a.javas[1].do(t, "1", "unlock", "read", name)
	a.gos[1].do(t, "1", "unlock", "read", name)
	if !writer.pending() || !reader.pending() {
		t.Error("somebody has come in beside a reader of Redisson")
	}
	released := a.javas[0].do(t, "1", "unlock", "read", name)
	if took := writer.must(t, "ok").time().Sub(released.time()); took > soon {
		t.Errorf("the writer is in after %v", took)
	}
	// Who listens is no help here: the writer has just ceased to.
	other := a.javas[1].send(t, "1", "lock", "write", name, long)
	eventually(t, "the writer of Redisson waits", func() bool {
		return a.javas[1].send(t, "1", "asleep").wait(t).outcome == "ok"
	})
	a.javas[0].refuses(t, "1", "try", "read", name, 0, long)
	released = a.gos[0].do(t, "1", "unlock", "write", name)
	eventually(t, "the reader or the other writer is in", func() bool { return !reader.pending() || !other.pending() })
	leaveOther := func() {
		other.must(t, "ok")
		a.gos[0].refuses(t, "1", "try", "read", name, 0, long)
		released = a.javas[1].do(t, "1", "unlock", "write", name)
	}
	leaveReader := func() {
		took := reader.must(t, "ok").time().Sub(released.time())
		a.javas[0].refuses(t, "1", "try", "write", name, 0, long)
		a.gos[1].do(t, "2", "unlock", "read", name)
		if took > soon {
			t.Errorf("the reader is in after %v", took)
		}
	}
	if other.pending() {
		leaveReader()
		leaveOther()
	} else {
		leaveOther()
		leaveReader()
	}
	// Who was admitted is remembered for a second.
	eventually(t, "that is forgotten", func() bool { return a.rdb.Exists(bg, "{"+name+"}:rlock:admitted").Val() == 0 })
	a.nothingLeft(t, name)
}

// longReader: the time of the lock is that of the readers that are left. Who comes after
// a long one has left waits for those only.
func (a *arena) longReader(t *testing.T) {
	a.eachWay(t, caseLong, []pair{{"ReadWriteLock", "read", "write"}}, func(t *testing.T, first, second *peer, p pair) {
		const short = 2 * time.Second
		for _, reader := range []*peer{first, second} {
			name := a.name("long")
			first.do(t, "1", "lock", "read", name, long)
			held := reader.do(t, "2", "lock", "read", name, short)
			first.do(t, "1", "unlock", "read", name)
			if ttl := a.ttl(t, name); ttl > short {
				t.Errorf("a reader for %v is left, and the lock lasts for %v", short, ttl)
			}
			took := second.do(t, "1", "lock", "write", name, long).time().Sub(held.time())
			t.Logf("the writer is in after %v", took)
			if took < short-soon/20 || took > short+soon {
				t.Errorf("the reader was there for %v, and the writer is in after %v", short, took)
			}
			reader.send(t, "2", "unlock", "read", name).must(t, "failed")
			a.holds(t, name, 1)
			second.do(t, "1", "unlock", "write", name)
			a.nothingLeft(t, name)
		}
	})
}

// forms: what Java holds is freed by force in every form that it has in Redis.
func (a *arena) forms(t *testing.T) {
	first, second := a.peers(golang)
	for _, form := range []struct {
		force string
		held  []string
	}{
		{"lock", []string{"lock", "lock", "lock"}},
		{"lock", []string{"group", "group"}},
		{"lock", []string{"once"}},
		{"fair", []string{"fair", "fair"}},
		{"read", []string{"read", "read"}},
		{"write", []string{"write", "read", "write"}},
	} {
		name := a.name("forms")
		for _, kind := range form.held {
			second.do(t, "1", "lock", kind, name, long)
		}
		if locked, count, ttl := first.state(t, "1", form.force, name); !locked || count != 0 || ttl < long/2 {
			t.Errorf("%v: locked %v, %d times by itself, for another %v", form.held, locked, count, ttl)
		}
		first.do(t, "1", "force", form.force, name)
		first.do(t, "1", "try", form.force, name, 0, long)
		for _, kind := range form.held {
			second.send(t, "1", "unlock", kind, name).must(t, "failed")
		}
		a.holds(t, name, 1)
		first.do(t, "1", "unlock", form.force, name)
		a.nothingLeft(t, name)
	}
}

// downgrade: a writer that goes on as a reader lets readers in. Redisson announces
// that to nobody: then a waiting reader comes in with its timer.
func (a *arena) downgrade(t *testing.T, w *wakeUps) {
	for _, l := range []language{java, golang} {
		first, second := a.peers(l)
		t.Run(string(l)+" first", func(t *testing.T) {
			shown.by(t, a, caseDowngrade, direction(l), "ReadWriteLock")
			name := a.name("downgrade")
			// The waiter's timer is the rest of the lease: short where it counts.
			lease := long
			if l == java {
				lease = 0 // the watchdog's
			}
			first.do(t, "1", "lock", "write", name, lease)
			first.do(t, "1", "lock", "read", name, lease)
			second.refuses(t, "1", "try", "read", name, 0, long)
			rest := a.ttl(t, name)
			waiter := a.waiting(t, second, "1", "read", name, long)
			released := first.do(t, "1", "unlock", "write", name)
			entered := waiter.must(t, "ok")
			if l == java {
				t.Logf("in after %v, the lease had been %v", entered.time().Sub(released.time()), rest)
			} else {
				w.note(t, direction(l)+" write-read", released, entered)
			}
			second.refuses(t, "2", "try", "write", name, 0, long)
			first.do(t, "1", "unlock", "read", name)
			second.refuses(t, "2", "try", "write", name, 0, long)
			second.do(t, "1", "unlock", "read", name)
			a.nothingLeft(t, name)
		})
	}
}

// inner: what a writer reads may end before its writing does, and takes nothing of the
// writer's lease away. Redisson shortens it there, so this is shown of Go only.
func (a *arena) inner(t *testing.T) {
	first, second := a.peers(golang)
	shown.by(t, a, caseInner, direction(golang), "ReadWriteLock")
	name := a.name("inner")
	first.do(t, "1", "lock", "write", name, long)
	first.do(t, "1", "lock", "read", name, watchdog)
	first.do(t, "1", "lock", "read", name, watchdog)
	first.do(t, "1", "unlock", "read", name)
	if ttl := a.ttl(t, name); ttl < long/2 {
		t.Errorf("the write lock ends in %v", ttl)
	}
	second.refuses(t, "1", "try", "read", name, 0, long)
	first.do(t, "1", "unlock", "read", name)
	second.refuses(t, "1", "try", "write", name, 0, long)
	first.do(t, "1", "unlock", "write", name)
	a.nothingLeft(t, name)
}

// multi: a MultiLock waits for a member that a process of the other language
// holds, and keeps its members from such.
func (a *arena) multi(t *testing.T, w *wakeUps) {
	a.eachWay(t, caseMulti, exclusive(), func(t *testing.T, first, second *peer, p pair) {
		name, other := a.name("multi"), a.name("multi")
		both := p.held + ":" + name + "|lock:" + other
		first.do(t, "1", "lock", p.held, name, long)
		second.refuses(t, "1", "try", "multi", both, 0, 0)
		if fields := a.fields(t, other); len(fields) > 0 {
			t.Errorf("the MultiLock is not held, and of its members one is: %v", fields)
		}
		waiter := a.blocked(t, "1", p.held, name, func() *call { return second.send(t, "1", "lock", "multi", both, 0) })
		released := first.do(t, "1", "unlock", p.held, name)
		w.note(t, direction(first.language)+" MultiLock", released, waiter.must(t, "ok"))
		first.refuses(t, "1", "try", p.held, name, 0, long)
		first.refuses(t, "1", "try", "lock", other, 0, long)
		member := a.waiting(t, first, "1", "lock", other, long)
		released = second.do(t, "1", "unlock", "multi", both)
		w.note(t, direction(second.language)+" from MultiLock", released, member.must(t, "ok"))
		first.do(t, "1", "unlock", "lock", other)
		a.nothingLeft(t, name)
		a.nothingLeft(t, other)
	})
}

// tokens: the counter of a fenced lock is one for both languages.
func (a *arena) tokens(t *testing.T) {
	a.eachWay(t, caseTokens, []pair{{"FencedLock", "fenced", "fenced"}}, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("tokens")
		last := ""
		for n := 1; n <= 6; n++ {
			turn := first
			if n%2 == 0 {
				turn = second
			}
			token := turn.do(t, "1", "lock", "fenced", name, long).values[1]
			if token != fmt.Sprint(n) {
				t.Errorf("token %s after %s", token, last)
			}
			last = token
			for _, looks := range []*peer{first, second} {
				if current := looks.do(t, "1", "token", "fenced", name).values[0]; current != token {
					t.Errorf("%s sees the token %s, %s has %s", looks.language, current, turn.language, token)
				}
			}
			turn.do(t, "1", "unlock", "fenced", name)
		}
		// A re-entry of Redisson raises the counter, one of this library does not.
		first.do(t, "1", "lock", "fenced", name, long)
		first.do(t, "1", "lock", "fenced", name, long)
		first.do(t, "1", "unlock", "fenced", name)
		first.do(t, "1", "unlock", "fenced", name)
		want := "8"
		if first.language == java {
			want = "9"
		}
		if token := second.do(t, "1", "lock", "fenced", name, long).values[1]; token != want {
			t.Errorf("token %s after the re-entry, want %s", token, want)
		}
		second.do(t, "1", "unlock", "fenced", name)
	})
}

// once: a lock that its owner may not enter again is one like the others in Redis.
func (a *arena) once(t *testing.T) {
	a.eachWay(t, caseOnce, []pair{{"Lock", "once", "once"}}, func(t *testing.T, first, second *peer, p pair) {
		name := a.name("once")
		first.do(t, "1", "lock", "once", name, long)
		first.send(t, "1", "try", "once", name, 0, long).must(t, "failed")
		a.holds(t, name, 1)
		second.refuses(t, "1", "try", "once", name, 0, long)
		second.refuses(t, "1", "try", "lock", name, 0, long)
		first.do(t, "1", "unlock", "once", name)
		a.nothingLeft(t, name)
	})
}

// holds checks that one owner has a lock, so many times.
func (a *arena) holds(t *testing.T, name string, count int) {
	t.Helper()
	fields := a.fields(t, name)
	delete(fields, "mode")
	if got := slices.Collect(maps.Values(fields)); len(got) != 1 || got[0] != fmt.Sprint(count) {
		t.Errorf("held by %v, want one owner, %d times", fields, count)
	}
}

// nothingLeft checks that all that a lock had in Redis goes with it. What may stay:
// the counter of a fenced lock, tombstones, Redisson's answers to unlocks, which it
// removes a moment later, and the timers of readers that it has thrown out, which run
// out.
func (a *arena) nothingLeft(t *testing.T, name string) {
	t.Helper()
	stays := []string{"redisson_lock_token:", ":rlock:gone:", "redisson_unlock_latch:", ":rwlock_timeout:"}
	for _, node := range a.nodes {
		keys, err := node.Keys(bg, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			stays := slices.ContainsFunc(stays, func(part string) bool { return strings.Contains(key, part) })
			if strings.Contains(key, name) && !stays {
				t.Errorf("%q is left", key)
			}
		}
	}
}

// log tells the middle and the longest of the wake-ups of each kind.
func (w *wakeUps) log(t *testing.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(w.times)) {
		times := w.times[what]
		slices.Sort(times)
		t.Logf("%-26s %3d wake-ups: median %v, longest %v", what, len(times),
			times[len(times)/2].Round(10*time.Microsecond), times[len(times)-1].Round(10*time.Microsecond))
	}
}

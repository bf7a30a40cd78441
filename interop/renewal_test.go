//go:build unix

package interop

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// renewal lets watchdogs of both languages work for three leases.
func (a *arena) renewal(t *testing.T) {
	t.Run("kept", a.kept)
	t.Run("shared", a.shared)
	t.Run("shortened", a.shortened)
}

// kept: a hold that is renewed outlives its lease, whoever waits.
func (a *arena) kept(t *testing.T) {
	t.Parallel()
	a.eachWay(t, caseRenewal, contending, func(t *testing.T, first, second *peer, p pair) {
		t.Parallel()
		name, thread := a.name("kept"), t.Name()
		first.do(t, thread, "lock", p.held, name, 0)
		before := a.fields(t, name)
		begin := time.Now()
		second.refuses(t, thread, "try", p.wanted, name, 3*watchdog, long)
		// Redisson takes whole milliseconds of the wall clock off its wait, each time that
		// it looks, and so gives up a little too soon.
		if waited := time.Since(begin); waited < 3*watchdog-watchdog/10 {
			t.Errorf("the other gave up after %v", waited)
		}
		if after := a.fields(t, name); !maps.Equal(before, after) {
			t.Errorf("held by %v, three leases before by %v", after, before)
		}
		if ttl := a.ttl(t, name); ttl <= 0 || ttl > watchdog {
			t.Errorf("the TTL is %v", ttl)
		}
		first.do(t, thread, "unlock", p.held, name)
		second.do(t, thread, "try", p.wanted, name, 0, long)
		second.do(t, thread, "unlock", p.wanted, name)
		a.nothingLeft(t, name)
	})
}

// shared: readers of both languages are renewed side by side, and when one leaves, its
// release finds the timers of the other, whose hold goes on.
func (a *arena) shared(t *testing.T) {
	t.Parallel()
	a.eachWay(t, caseRenewal, []pair{{"ReadWriteLock", "read", "read"}}, func(t *testing.T, first, second *peer, p pair) {
		t.Parallel()
		name, thread := a.name("shared"), t.Name()
		first.do(t, thread, "lock", "read", name, 0)
		second.do(t, thread, "lock", "read", name, 0)
		before := a.fields(t, name)
		first.refuses(t, thread+" writer", "try", "write", name, 3*watchdog, long)
		if after := a.fields(t, name); !maps.Equal(before, after) || len(after) != 3 {
			t.Errorf("read by %v, three leases before by %v", after, before)
		}
		first.do(t, thread, "unlock", "read", name)
		a.holds(t, name, 1)
		first.refuses(t, thread+" writer", "try", "write", name, 2*watchdog, long)
		second.do(t, thread, "unlock", "read", name)
		a.nothingLeft(t, name)
	})
}

// shortened: beside a reader that is renewed stands one with a long lease. A renewal of
// Redisson cuts the time of the lock for both; a reader of ours puts that right, and
// keeps its hold when the Java process is gone. A renewal of ours cuts nothing.
func (a *arena) shortened(t *testing.T) {
	t.Parallel()
	const name1, name2 = "shortened by Java", "shortened by Go"
	t.Run("Java first", func(t *testing.T) {
		t.Parallel()
		shown.by(t, a, caseShorten, direction(java), "ReadWriteLock")
		doomed, reader := startPeer(t, java, a), a.gos[0]
		reader.do(t, name1, "lock", "read", name1, long)
		doomed.do(t, "1", "lock", "read", name1, 0)
		eventually(t, "Java has cut the TTL", func() bool { return a.ttl(t, name1) <= watchdog })
		eventually(t, "Go has put it right", func() bool { return a.ttl(t, name1) > long/2 })
		eventually(t, "Java has cut it again", func() bool { return a.ttl(t, name1) <= watchdog })
		doomed.kill()
		// Longer than the time that Java has left to the lock.
		a.javas[0].refuses(t, name1, "try", "write", name1, 2*watchdog, long)
		reader.do(t, name1, "deadline", "read", name1)
		if fields := a.fields(t, name1); len(fields) < 2 {
			t.Errorf("the reader's hold has gone: %v", fields)
		}
		reader.do(t, name1, "unlock", "read", name1)
		// The dead reader is found dead.
		a.javas[0].do(t, name1, "try", "write", name1, soon, long)
		a.javas[0].do(t, name1, "unlock", "write", name1)
		a.nothingLeft(t, name1)
	})
	t.Run("Go first", func(t *testing.T) {
		t.Parallel()
		shown.by(t, a, caseShorten, direction(golang), "ReadWriteLock")
		first, reader := a.peers(golang)
		reader.do(t, name2, "lock", "read", name2, long)
		before := slices.Sorted(maps.Keys(a.fields(t, name2)))
		first.do(t, name2, "lock", "read", name2, 0)
		first.refuses(t, name2+" writer", "try", "write", name2, 3*watchdog, long)
		if ttl := a.ttl(t, name2); ttl < long/2 {
			t.Errorf("the TTL is %v", ttl)
		}
		first.do(t, name2, "unlock", "read", name2)
		if after := slices.Sorted(maps.Keys(a.fields(t, name2))); !slices.Equal(before, after) {
			t.Errorf("read by %v, before by %v", after, before)
		}
		reader.do(t, name2, "unlock", "read", name2)
		a.nothingLeft(t, name2)
	})
}

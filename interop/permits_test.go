//go:build unix

package interop

import (
	"slices"
	"testing"
	"time"
)

// permitColumn is the type of these cases: Redisson's RPermitExpirableSemaphore.
const permitColumn = "PermitSemaphore"

// leasedPermits runs what processes of both languages do at one semaphore whose permits have
// leases.
func (a *arena) leasedPermits(t *testing.T) {
	t.Run("exclusion", func(t *testing.T) {
		shown.by(t, a, caseExclusion, together, permitColumn)
		// Under one hash tag, so that a cluster has all on one node.
		name := "{" + a.name("permits") + "}permits"
		a.gos[0].do(t, "permits 1", "permits", name, 3)
		var calls []*call
		for _, p := range slices.Concat(a.javas, a.gos) {
			calls = append(calls, p.send(t, "permits 1", "stints", name, name+":inside", 3, 200))
		}
		for _, c := range calls {
			c.must(t, "ok")
		}
		a.counted(t, name, 3, 3, 0)
		if n := a.rdb.Get(bg, name+":inside").Val(); n != "0" {
			t.Errorf("%s are inside", n)
		}
	})
	for name, scenario := range map[string]struct {
		title string
		play  func(t *testing.T, first, second *peer, name string)
	}{
		"refused": {caseRefused, a.permitsRefused},
		"release": {caseRelease, a.permitsReleased},
		"several": {caseSeveral, a.severalPermits},
		"expired": {caseExpired, a.permitsExpired},
		"crashed": {caseCrashed, a.permitsOfACrash},
	} {
		for _, l := range []language{java, golang} {
			t.Run(string(l)+" first/"+name, func(t *testing.T) {
				shown.by(t, a, scenario.title, direction(l), permitColumn)
				first, second := a.peers(l)
				scenario.play(t, first, second, a.name("permits"))
			})
		}
	}
}

// counted checks what each process, and Redis itself, sees of a semaphore.
func (a *arena) counted(t *testing.T, name string, total, free, held int) {
	t.Helper()
	for _, p := range []*peer{a.javas[0], a.gos[0]} {
		r := p.do(t, "permits 1", "available", name)
		if want := []string{itoa(free), itoa(total)}; !slices.Equal(r.values, want) {
			t.Fatalf("%s sees %q, want %q", p.language, r.values, want)
		}
	}
	if n, err := a.rdb.Get(bg, name).Int(); err != nil || n != free {
		t.Fatalf("%d are free (%v), want %d", n, err, free)
	}
	if n := a.rdb.ZCard(bg, suffixed(name, "timeout")).Val(); n != int64(held) {
		t.Fatalf("%d are held, want %d", n, held)
	}
}

// permitsRefused: what one takes is not there for the other, who sees that.
func (a *arena) permitsRefused(t *testing.T, first, second *peer, name string) {
	first.do(t, "permits 1", "permits", name, 2)
	second.refuses(t, "permits 1", "permits", name, 5)
	first.do(t, "permits 1", "take", name, 2, 0, long)
	a.counted(t, name, 2, 0, 2)
	second.refuses(t, "permits 1", "take", name, 1, 0, long)
	second.refuses(t, "permits 1", "take", name, 1, 300*time.Millisecond, long)
	first.do(t, "permits 1", "give", name)
	a.counted(t, name, 2, 2, 0)
	second.do(t, "permits 1", "take", name, 2, 0, long)
	a.counted(t, name, 2, 0, 2)
	second.do(t, "permits 1", "give", name)
}

// asksFor sends a request that has to wait, and returns when it does.
func (a *arena) asksFor(t *testing.T, p *peer, name string, n int) *call {
	t.Helper()
	channel := derived("redisson_sc", name)
	c := p.send(t, "permits 1", "take", name, n, -1, long)
	eventually(t, "it listens", func() bool {
		plain, sharded := a.listeners(t, channel)
		return plain+sharded > 0 && (p.language == golang || p.send(t, "permits 1", "asleep").wait(t).outcome == "ok")
	})
	return c
}

// permitsReleased: what one gives back wakes the other. All timers are too long for that.
func (a *arena) permitsReleased(t *testing.T, first, second *peer, name string) {
	first.do(t, "permits 1", "permits", name, 3)
	for _, n := range []int{1, 3} {
		first.do(t, "permits 1", "take", name, 3, 0, long)
		waiter := a.asksFor(t, second, name, n)
		begin := time.Now()
		first.do(t, "permits 1", "give", name)
		waiter.must(t, "ok")
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("it was woken after %v", took)
		}
		second.do(t, "permits 1", "give", name)
		a.counted(t, name, 3, 3, 0)
	}
	// And so do permits that are added.
	first.do(t, "permits 1", "take", name, 3, 0, long)
	waiter := a.asksFor(t, second, name, 2)
	first.do(t, "permits 1", "add", name, 2)
	waiter.must(t, "ok")
	second.do(t, "permits 1", "give", name)
	first.do(t, "permits 1", "give", name)
	a.counted(t, name, 5, 5, 0)
}

// severalPermits: each takes some, and gives them back in another order.
func (a *arena) severalPermits(t *testing.T, first, second *peer, name string) {
	first.do(t, "permits 1", "permits", name, 7)
	first.do(t, "permits 1", "take", name, 3, 0, long)
	second.do(t, "permits 1", "take", name, 2, 0, long)
	first.do(t, "permits 2", "take", name, 1, 0, long)
	second.refuses(t, "permits 2", "take", name, 2, 0, long)
	a.counted(t, name, 7, 1, 6)
	first.do(t, "permits 1", "give", name)
	a.counted(t, name, 7, 4, 3)
	second.do(t, "permits 2", "take", name, 4, 0, long)
	second.do(t, "permits 1", "give", name)
	first.do(t, "permits 2", "give", name)
	a.counted(t, name, 7, 3, 4)
	second.do(t, "permits 2", "give", name)
	a.counted(t, name, 7, 7, 0)
}

// permitsExpired: when the leases of one are over the other has their permits, and who is
// too late is told.
func (a *arena) permitsExpired(t *testing.T, first, second *peer, name string) {
	first.do(t, "permits 1", "permits", name, 3)
	first.do(t, "permits 1", "take", name, 2, 0, time.Second)
	begin := time.Now()
	second.do(t, "permits 1", "take", name, 3, -1, long)
	if took := time.Since(begin); took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("taken after %v", took)
	}
	first.send(t, "permits 1", "give", name).must(t, "failed")
	a.counted(t, name, 3, 0, 3)
	second.do(t, "permits 1", "give", name)
	a.counted(t, name, 3, 3, 0)
}

// permitsOfACrash: those of a process that was killed come back when its leases are over.
func (a *arena) permitsOfACrash(t *testing.T, first, second *peer, name string) {
	doomed := startPeer(t, first.language, a)
	doomed.do(t, "permits 1", "permits", name, 2)
	lease := time.Duration(0) // renewed
	if first.language == java {
		lease = watchdog
	}
	doomed.do(t, "permits 1", "take", name, 2, 0, lease)
	waiter := a.asksFor(t, second, name, 2)
	doomed.send(t, "permits 1", "crash")
	waiter.must(t, "ok")
	second.do(t, "permits 1", "give", name)
	a.counted(t, name, 2, 2, 0)
}

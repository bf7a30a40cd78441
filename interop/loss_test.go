//go:build unix

package interop

import (
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"
)

// loss ends holds without their holders' doing.
func (a *arena) loss(t *testing.T) {
	t.Run("forced", a.forced)
	t.Run("expired", a.expired)
	t.Run("doomed", a.stoppedAndCrashed)
}

// forced: a holder in Go whose lock was freed by Java is notified after its next
// renewal. One of Redisson gets an exception from its own unlock (of a fair lock only if
// there is a successor), and its watchdog does not bring the hold back.
func (a *arena) forced(t *testing.T) {
	t.Parallel()
	a.eachWay(t, caseForced, exclusive(), func(t *testing.T, first, second *peer, p pair) {
		t.Parallel()
		name := a.name("forced")
		owner := t.Name()
		for _, successor := range []bool{false, true} {
			second.do(t, owner, "lock", p.held, name, 0)
			forced := first.do(t, owner, "force", p.held, name)
			cause := "removed from Redis"
			if successor {
				first.do(t, owner, "lock", p.held, name, long)
				cause = "taken over by another owner"
			}
			if second.language == golang {
				lost := second.do(t, owner, "lost", p.held, name)
				took := lost.time().Sub(forced.time())
				t.Logf("reported after %v: %s", took, lost.values[1])
				if !strings.Contains(lost.values[1], cause) || took > watchdog/3+soon {
					t.Errorf("reported after %v: %q, want %q", took, lost.values[1], cause)
				}
			}
			unlock, want := second.send(t, owner, "unlock", p.held, name).wait(t), "lease lost"
			if second.language == java {
				want = "IllegalMonitorStateException"
				if p.held == "fair" && !successor {
					want = "ok"
				}
			}
			if !strings.Contains(unlock.String(), want) {
				t.Errorf("unlock: %q, want %q", unlock, want)
			}
			if successor {
				a.holds(t, name, 1)
				first.do(t, owner, "unlock", p.held, name)
			}
			a.nothingLeft(t, name)
		}
	})
}

// expired: a lease that is over ends the hold, and the waiter has the lock then,
// not earlier.
func (a *arena) expired(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	a.eachWay(t, caseExpired, contending, func(t *testing.T, first, second *peer, p pair) {
		t.Parallel()
		name := a.name("expired")
		owner := t.Name()
		held := first.do(t, owner, "lock", p.held, name, lease)
		got := second.do(t, owner, "lock", p.wanted, name, long)
		// The lease began before the reply, by what a slow machine takes for that.
		took := got.time().Sub(held.time())
		t.Logf("in after %v", took)
		if took < lease-soon/20 || took > lease+soon {
			t.Errorf("a lease of %v was over after %v", lease, took)
		}
		first.send(t, owner, "unlock", p.held, name).must(t, "failed")
		a.holds(t, name, 1)
		second.do(t, owner, "unlock", p.wanted, name)
		a.nothingLeft(t, name)
	})
}

// stoppedAndCrashed: the locks of a process that stands still, and of one that has died, are
// free when their leases are over, and not before. It holds one of each type.
func (a *arena) stoppedAndCrashed(t *testing.T) {
	t.Parallel()
	for _, l := range []language{java, golang} {
		t.Run(string(l)+" first", func(t *testing.T) {
			t.Parallel()
			doomed := startPeer(t, l, a)
			_, second := a.peers(l)
			a.stopped(t, doomed, second)
			a.crashed(t, doomed, second)
		})
	}
}

// doom lets a process hold a lock for each pair, and the other wait for all of them.
func (a *arena) doom(t *testing.T, doomed, second *peer, what string) (names map[pair]string, waiters map[pair]*call) {
	t.Helper()
	names, waiters = map[pair]string{}, map[pair]*call{}
	for _, p := range contending {
		names[p] = a.name(what)
		doomed.do(t, p.String(), "lock", p.held, names[p], 0)
		waiters[p] = a.waiting(t, second, names[p], p.wanted, names[p], long)
	}
	return names, waiters
}

// stopped: when a process goes on that was stopped for longer than its leases, neither its
// watchdog nor its releases touch those who have its locks now.
func (a *arena) stopped(t *testing.T, doomed, second *peer) {
	names, waiters := a.doom(t, doomed, second, "stopped")
	if err := doomed.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, p := range contending {
		waiters[p].must(t, "ok")
	}
	if err := doomed.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, p := range contending {
		t.Run("stopped/"+p.String(), func(t *testing.T) {
			shown.by(t, a, caseStopped, direction(doomed.language), p.column)
			before := a.fields(t, names[p])
			doomed.send(t, p.String(), "unlock", p.held, names[p]).must(t, "failed")
			if after := a.fields(t, names[p]); !maps.Equal(before, after) {
				t.Errorf("held by %v, before by %v", after, before)
			}
			if ttl := a.ttl(t, names[p]); ttl < long/2 {
				t.Errorf("the TTL is %v", ttl)
			}
			doomed.refuses(t, p.String(), "try", p.held, names[p], 0, long)
			second.do(t, names[p], "unlock", p.wanted, names[p])
			a.nothingLeft(t, names[p])
		})
	}
}

// crashed: the process is killed.
func (a *arena) crashed(t *testing.T, doomed, second *peer) {
	names, waiters := a.doom(t, doomed, second, "crashed")
	// The holds outlive their leases as long as the process lives.
	time.Sleep(watchdog)
	rest := map[pair]time.Duration{}
	killed := time.Now()
	doomed.send(t, "1", "crash")
	<-doomed.done
	for p, name := range names {
		dead := time.Since(killed)
		if rest[p] = dead + a.ttl(t, name); !waiters[p].pending() {
			t.Fatalf("%s was not held by a process that lived", p)
		}
	}
	for _, p := range contending {
		t.Run("crashed/"+p.String(), func(t *testing.T) {
			shown.by(t, a, caseCrashed, direction(doomed.language), p.column)
			took := waiters[p].must(t, "ok").time().Sub(killed)
			t.Logf("in after %v, the rest of the lease was %v", took, rest[p])
			// The clocks differ: one is monotonic.
			if took < rest[p]-50*time.Millisecond || took > watchdog+soon {
				t.Errorf("a lock of a dead process, held for another %v, was taken after %v", rest[p], took)
			}
			second.do(t, names[p], "unlock", p.wanted, names[p])
			a.nothingLeft(t, names[p])
		})
	}
}

package quorum

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// nodeFault makes some nodes fail, and mends them.
type nodeFault struct {
	name   string
	strike func(n *masters, i int)
	mend   func(n *masters, i int)
	erases bool // the data are gone then
}

var (
	killNode = nodeFault{"killed",
		func(n *masters, i int) { n.servers[i].Kill() },
		func(n *masters, i int) { n.servers[i].Restart() }, true}
	stopNode = nodeFault{"stopped",
		func(n *masters, i int) { n.servers[i].Pause() },
		func(n *masters, i int) { n.servers[i].Resume() }, false}
)

// Whatever happens to up to two of five nodes, at whatever step, the lock works,
// and no call takes longer than the node timeout; with three it says so, and
// leaves nothing on those that live.
func TestRedLockWithNodesKilledOrStopped(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	for _, fault := range []nodeFault{killNode, stopNode} {
		for _, step := range []string{"before the acquire", "before the write-back", "held", "at the renewal", "at the release"} {
			t.Run(fault.name+" "+step, func(t *testing.T) {
				t.Parallel() // they wait for timeouts, renewals and losses most of the time
				n := startMasters(t)
				lease := locktest.RedLockLease
				if step != "held" && step != "at the renewal" {
					lease *= 3 // no renewal is waited for: the living have more time to answer
				}
				opts := []rlock.Option{rlock.WithWatchdogLease(lease), rlock.WithCommandTimeout(lease), rlock.WithUnlockTimeout(lease)}
				home, other := n.clients(t, opts...), n.straight(t, opts...)
				for dead := range 4 {
					if dead == 0 && step != "before the write-back" {
						continue // nothing happens: one of them is enough
					}
					strikeAtStep(t, n, home, other, lease/6, fault, step, dead)
					if t.Failed() {
						t.Fatalf("with %d %s", dead, fault.name)
					}
				}
			})
		}
	}
}

func strikeAtStep(t *testing.T, n *masters, home, other []*rlock.Client, timeout time.Duration, fault nodeFault, step string, dead int) {
	t.Helper()
	name := fmt.Sprint("stock", dead)
	n.unequal(t, name)
	l := locktest.NewRedLock(t, name, home, rlock.WithNodeTimeout(timeout))
	// Those that fail are not the first, whose client is the home: that must not
	// matter, and then they are the first all the same.
	struck := []int{0, 2, 4}[:dead]
	alive := slices.DeleteFunc([]int{0, 1, 2, 3, 4}, func(i int) bool { return slices.Contains(struck, i) })
	strike := func() {
		for _, i := range struck {
			fault.strike(n, i)
		}
	}
	happened := func() bool { return true }
	timed := func(what string, call func() error) error {
		t.Helper()
		start := time.Now()
		err := call()
		// To how much it adds up exactly is shown by the simulation, where no machine
		// is busy.
		if took := time.Since(start); took > 2*timeout+10*time.Second {
			t.Errorf("%s took %v", what, took)
		}
		return err
	}

	switch step {
	case "before the acquire":
		strike()
	case "before the write-back":
		happened = n.onScript("quorum/raise", strike)
	}
	var lease *rlock.Lease
	var err error
	if strings.HasPrefix(step, "before ") {
		err = timed("TryLock", func() (err error) { lease, err = l.TryLock(bg); return err })
	} else {
		lease = lockPatiently(t, l)
	}
	if !happened() {
		t.Error("no write-back")
	}
	n.pass()
	if err != nil {
		if dead < 3 {
			t.Fatalf("TryLock with %d: %v", dead, err)
		}
		locktest.WantErr(t, err, rlock.ErrNoQuorum)
		for _, i := range struck {
			if !strings.Contains(err.Error(), fmt.Sprintf("node %d (%s): no answer", i+1, n.proxies[i].Addr())) {
				t.Errorf("does not say why node %d did not vote: %v", i+1, err)
			}
		}
		for _, i := range alive {
			if strings.Contains(err.Error(), fmt.Sprintf("node %d ", i+1)) {
				t.Errorf("accuses node %d: %v", i+1, err)
			}
		}
		n.nothing(t, name, alive...)
		mustBeMended(t, n, fault, struck, name, l, 0)
		return
	}

	lost := false
	switch step {
	case "held":
		strike()
	case "at the renewal":
		happened = n.onScript("quorum/renew", strike)
	}
	if step == "held" || step == "at the renewal" {
		if dead < 3 {
			was := lease.Deadline()
			locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) })
		} else {
			lost = true
			deadline := lease.Deadline()
			<-lease.Done()
			// It may have been renewed once meanwhile.
			if late := time.Since(lease.Deadline()); late < -time.Millisecond || late > 2*time.Second {
				t.Errorf("lost %v after its deadline %v", late, deadline)
			}
			locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrUnreachable, rlock.ErrNoQuorum)
			if !strings.Contains(lease.Err().Error(), "node 1 (") {
				t.Errorf("the cause does not say which nodes: %v", lease.Err())
			}
		}
		if !happened() {
			t.Error("no renewal")
		}
		n.pass()
	}
	if step == "at the release" {
		n.allVoteFor(t, lease) // or it may be a hold on the other three, of which two still answer
		happened = n.onScript("quorum/release", strike)
	}
	err = timed("Unlock", func() error { return lease.Unlock(bg) })
	if !happened() {
		t.Error("no release")
	}
	n.pass()
	switch {
	case lost:
		locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrUnreachable)
	case dead == 3 && step == "before the write-back" && err == nil:
		// Two of those that vote were struck before they had: it was a hold on
		// the other three, and two of them could still be told that it is over.
	case dead == 3:
		locktest.WantErr(t, err, rlock.ErrUnreachable, rlock.ErrNoQuorum)
	case err != nil:
		t.Errorf("Unlock: %v", err)
	}
	n.nothing(t, name, alive...)
	if dead < 3 {
		// Another gets it at once, and a greater token.
		next := locktest.MustLock(t, locktest.NewRedLock(t, name, other, rlock.WithNodeTimeout(timeout)))
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		locktest.MustUnlock(t, next)
	}
	mustBeMended(t, n, fault, struck, name, l, lease.Token())
}

// mustBeMended mends the nodes, and checks that the lock is as good as new.
func mustBeMended(t *testing.T, n *masters, fault nodeFault, struck []int, name string, l *rlock.RedLock, token int64) {
	t.Helper()
	for _, i := range struck {
		fault.mend(n, i)
	}
	n.nothing(t, name)
	lease := locktest.MustLock(t, l)
	// Three of five that have lost their data cannot know the last token.
	if lease.Token() <= token && !(fault.erases && len(struck) == 3) {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	locktest.MustUnlock(t, lease)
	n.answered(t)
	n.nothing(t, name)
}

// With two of five that do not answer a hold costs little more than with none:
// they are asked beside the others, and hardly ever.
func TestRedLockWithTwoNodesHungCostsNoTimeouts(t *testing.T) {
	if !locktest.Alone(t) {
		return
	}
	for _, fault := range []nodeFault{killNode, stopNode} {
		t.Run(fault.name, func(t *testing.T) {
			n := startMasters(t)
			// Past the proxies, which have goroutines of their own.
			cs := n.straight(t)
			const timeout = time.Second
			l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(timeout))
			const pairs = 100
			run := func() time.Duration {
				start := time.Now()
				for range pairs {
					lease, err := l.TryLock(bg)
					for errors.Is(err, rlock.ErrNotAcquired) { // the Unlock before is still on its way to a node
						lease, err = l.TryLock(bg)
					}
					if err != nil {
						t.Fatal(err)
					}
					locktest.MustUnlock(t, lease)
				}
				return time.Since(start)
			}
			all := run()
			fault.strike(n, 0)
			fault.strike(n, 3)
			before := runtime.NumGoroutine()
			some := run()
			// Until the first request has timed out, each waits for its own timeout.
			// After that nobody waits but for a PING, and what those few have left
			// ends when go-redis gives up.
			few := func() bool { return runtime.NumGoroutine() < before+pairs }
			locktest.Eventually(t, "what was begun has ended", few)
			more := run()
			if !few() {
				t.Errorf("%d pairs have left %d goroutines", pairs, runtime.NumGoroutine()-before)
			}
			t.Logf("%d pairs: %v with all nodes, %v and %v with two %s", pairs, all, some, more, fault.name)
			// One timeout for each pair would be a hundred seconds more. The first few
			// do wait, until it is known that the nodes are gone. A busy machine needs long
			// with all nodes too.
			if max(some, more) > 10*timeout+10*all {
				t.Errorf("%d pairs took %v, %v with two nodes %s", pairs, some, more, fault.name)
			}
			fault.mend(n, 0)
			fault.mend(n, 3)
			n.nothing(t, "stock")
		})
	}
}

package quorum

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func startClocked(t *testing.T) (servers []*redistest.Clocked, addrs []string) {
	servers = redistest.StartClocked(t, 5)
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return servers, addrs
}

// One holds by the votes of nodes 1 to 3. Then the clocks of some of these jump,
// and stay so or jump back. The other, who reaches all nodes, does not get in
// while the first holds. Jumps of hours are those of a wrong time zone.
func TestClockThatJumpsDoesNotLetASecondIn(t *testing.T) {
	t.Parallel()
	const l = shortLease
	for _, jump := range []time.Duration{l / 4, l, 3 * l, -l / 4, -3 * l, 3 * time.Hour} {
		jumps := func(name string, usual bool, nodes int, back bool) {
			locktest.Beside(t, fmt.Sprintf("%v%s", jump, name), func(t *testing.T) {
				if !usual {
					locktest.Thorough(t)
				}
				jumpClocks(t, nodes, jump, back, true)
			})
		}
		jumps(", 1 node", jump == -l/4, 1, false)
		jumps(", 2 nodes", jump == 3*l || jump == -3*l, 2, false)
		if jump > l {
			jumps(" and back, 2 nodes", jump == 3*l, 2, true)
		}
	}
	// The same without a quarantine: the tests above notice.
	locktest.Beside(t, "without quarantine", func(t *testing.T) { jumpClocks(t, 1, 3*l, false, false) })
}

func jumpClocks(t *testing.T, nodes int, jump time.Duration, back, quarantine bool) {
	servers, addrs := startClocked(t)
	if quarantine {
		bootstrap(t, addrs)
	}
	one := stockLock(t, clientsAt(t, cutOff(t, addrs, 4, 5), rlock.WithUnlockTimeout(200*time.Millisecond)), quarantine)
	two := stockLock(t, clientsAt(t, addrs), quarantine)
	judge := &holdJudge{}
	judge.unlock(judge.lock(t, two))
	first := judge.lock(t, one, rlock.WithLease(shortLease)) // it ends, whatever happens
	set := func(d time.Duration) {
		for _, s := range servers[:nodes] {
			s.SetClock(d)
		}
	}
	set(jump)
	if !quarantine {
		var second *rlock.Lease
		// On a busy machine the first try may miss a timeout.
		locktest.Eventually(t, "the second gets in", func() (ok bool) {
			var err error
			second, err = judge.try(two)
			return err == nil
		})
		t.Logf("without quarantine: %d hold beside another, %d tokens out of order", judge.together, judge.backward)
		if first.Err() == nil && judge.together != 1 {
			t.Error("want a hold beside another")
		}
		if judge.backward > 0 {
			t.Error("tokens do not need the clocks, and are out of order")
		}
		judge.unlock(second)
		judge.unlock(first)
		return
	}
	looks := 0
	for ; first.Err() == nil; looks++ {
		if lease, err := judge.try(two); err == nil {
			judge.unlock(lease) // a try goes on for a while, and the first may be over: judged below
			break
		}
		if back && looks == 4 {
			set(0)
		}
		time.Sleep(50 * time.Millisecond) // the pace of looking, of a dozen tests side by side
	}
	judge.clean(t)
	second := judge.lock(t, two)
	judge.clean(t)
	t.Logf("the first held during %d looks of the second", looks)
	judge.unlock(second)
	judge.unlock(first)
}

// A node whose clock is off does not vote, and does so when it is right again. One
// that voted while its clock was behind would forget that as soon as it is set
// right.
func TestNodeDoesNotVoteWhileItsClockIsOff(t *testing.T) {
	t.Parallel()
	servers, addrs := startClocked(t)
	bootstrap(t, addrs)
	all := clientsAt(t, addrs)
	unlock(lockPatiently(t, stockLock(t, all, true)))
	// What it has seen of nodes 4 and 5 before they died tells which clocks are right.
	servers[3].Kill()
	servers[4].Kill()
	knows := stockLock(t, all, true)
	for _, jump := range []time.Duration{3 * shortLease, -3 * shortLease, shortLease / 4, -shortLease / 4, 3 * time.Hour, -3 * time.Hour} {
		locktest.Eventually(t, "a lock is taken", func() bool {
			lease, err := knows.TryLock(bg)
			unlock(lease)
			return err == nil
		})
		servers[0].SetClock(jump)
		said, began := false, time.Now()
		locktest.Eventually(t, "the node says that its clock is off, and for a while", func() bool {
			_, err := knows.TryLock(bg)
			if !errors.Is(err, rlock.ErrNoQuorum) && !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatalf("%v off: %v", jump, err)
			}
			said = said || strings.Contains(err.Error(), servers[0].Addr()+"): its clock is off the median")
			return said && time.Since(began) > shortLease/4
		})
		servers[0].SetClock(0)
	}
	locktest.Eventually(t, "the node votes again", func() bool {
		lease, err := knows.TryLock(bg)
		unlock(lease)
		return err == nil
	})
}

// Contenders go on while clocks jump, of one and of two nodes, by up to three
// leases in both directions, and stay so or jump back. Never do two hold, and
// tokens grow.
func TestContendersWhileClocksJump(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	servers, addrs := startClocked(t)
	bootstrap(t, addrs)
	judge, stop := contend(t, addrs, true)
	for round := range 3 * *roundsOfFaults {
		jump := time.Duration((2*rand.Float64() - 1) * 3 * float64(shortLease))
		picked := rand.Perm(5)[:1+round%2]
		for _, i := range picked {
			servers[i].SetClock(jump)
		}
		judge.more(t, 1+rand.IntN(20))
		for _, i := range picked {
			servers[i].SetClock(0)
		}
		judge.more(t, rand.IntN(20))
	}
	stop()
	judge.clean(t)
	t.Logf("%d holds in %d rounds", judge.holds, 3**roundsOfFaults)
}

// When the clocks of three of five nodes jump together, two may hold. The tokens
// grow all the same.
func TestTokensGrowWhileMostClocksJump(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	servers, addrs := startClocked(t)
	bootstrap(t, addrs)
	judge, stop := contend(t, addrs, true)
	for range *roundsOfFaults {
		jump := time.Duration((2*rand.Float64() - 1) * 3 * float64(shortLease))
		for _, i := range rand.Perm(5)[:3] {
			servers[i].SetClock(jump)
		}
		judge.more(t, 5)
		for _, s := range servers {
			s.SetClock(0)
		}
		judge.more(t, 5)
	}
	stop()
	t.Logf("%d holds, %d of them beside others", judge.holds, judge.together)
	if judge.backward > 0 {
		t.Errorf("%d tokens out of order", judge.backward)
	}
}

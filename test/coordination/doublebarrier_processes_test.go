//go:build unix

package coordination

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

const memberLease = time.Second // watchdog lease of members that are killed

// childMember enters, and leaves when it is told.
func childMember(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(locktest.Ample(memberLease)), rlock.WithWaiterLease(locktest.Ample(memberLease)))
	b := c.NewDoubleBarrier("phase", 3)
	for range 2 {
		p.Report("comes")
		lease, err := b.Enter(bg)
		if err != nil {
			t.Fatal(err)
		}
		p.Report("in %d", lease.Token())
		p.Await("leave")
		if err := b.Leave(bg, lease); err != nil {
			t.Fatal(err)
		}
		p.Report("out")
	}
}

// One of three processes is killed while it is in, and one while it waits: the others get
// out, and in again with those that replace them.
func TestKilledMembersAreReplaced(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	b := locktest.OnServer(t)
	watching := b.NewClient(t).NewDoubleBarrier("phase", 3)
	start := func() *locktest.Child {
		c := locktest.StartChild(t, "member", b.Addr)
		c.Report("comes")
		return c
	}
	waiting := start()
	inside(t, watching, 1, 0)
	waiting.Kill()
	inside(t, watching, 0, 0) // its lease is over
	all := []*locktest.Child{start(), start(), start()}
	var token int64
	for round := range 2 {
		for i, c := range all {
			var its int64
			fmt.Sscan(c.Report("in"), &its)
			if i == 0 && its <= token || i > 0 && its != token {
				t.Errorf("token %d, others %d", its, token)
			}
			token = its
		}
		inside(t, watching, 0, 3)
		if round == 0 {
			all[0].Kill()
		} else {
			all[0].Order("leave")
		}
		for _, c := range all[1:] {
			c.Order("leave")
		}
		for _, c := range all[1:] {
			c.Report("out")
			if round == 0 {
				c.Report("comes")
			}
		}
		if round == 0 {
			all[0] = start()
		}
	}
}

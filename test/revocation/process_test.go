//go:build unix

package revocation

import (
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// TestChildProcess is what a child process runs.
func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"holds": childHolds})
}

// childHolds takes the lock again and again, and gives it up when it is asked for it.
func childHolds(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr, patient)
	l := c.NewLock("a")
	for {
		lease := locktest.MustLock(t, l)
		p.Report("holds %s", lease.Owner())
		<-lease.ReleaseRequested()
		p.Report("heard %s", lease.Owner())
		locktest.MustUnlock(t, lease)
		p.Await("again")
	}
}

func TestProcessesAskEachOther(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	l := b.NewClient(t).NewLock("a")
	holds := locktest.StartChild(t, "holds", b.Addr)
	first := holds.Report("holds")
	waits := locktest.StartChild(t, "holds", b.Addr)
	for i := range 3 {
		if i > 0 {
			waits.Order("again")
		}
		locktest.Eventually(t, "the other one waits", func() bool { return locktest.Subscribers(t, b.Client(t), "a") == 1 })
		request(t, l, true)
		if heard := holds.Report("heard"); heard != first {
			t.Errorf("%s heard what %s was asked", heard, first)
		}
		first = waits.Report("holds")
		holds, waits = waits, holds
	}
}

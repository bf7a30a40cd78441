//go:build unix

package coordination

import (
	"testing"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// childHolds takes the lock again and again, and gives it up when it is asked for it.
func childHolds(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr, patient)
	l := c.NewLock("a")
	for {
		lease := locktest.MustLock(t, l)
		p.Report("holds %s", lease.HoldID())
		<-lease.ReleaseRequested()
		p.Report("heard %s", lease.HoldID())
		locktest.MustUnlock(t, lease)
		p.Await("again")
	}
}

func TestProcessesAskEachOther(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	l := b.NewClient(t).NewLock("a")
	type process struct {
		*locktest.Child
		*faultproxy.Proxy
	}
	start := func() process {
		p := faultproxy.New(t, b.Addr)
		return process{locktest.StartChild(t, "holds", p.Addr()), p}
	}
	enter, standBy := locktest.SHA("lock/enter"), locktest.SHA("lock/stand_by") // which a look is depends on the time since the last
	looks := func(p process) int {
		return p.Count(func(c faultproxy.Command) bool { return c.IsScript(enter) || c.IsScript(standBy) })
	}
	holds := start()
	first := holds.Report("holds")
	waits := start()
	before := 0
	for i := range 3 {
		if i > 0 {
			before = looks(waits)
			waits.Order("again")
		}
		locktest.Eventually(t, "the other one waits", func() bool { return looks(waits) > before })
		request(t, l, true)
		if heard := holds.Report("heard"); heard != first {
			t.Errorf("%s heard what %s was asked", heard, first)
		}
		first = waits.Report("holds")
		holds, waits = waits, holds
	}
}

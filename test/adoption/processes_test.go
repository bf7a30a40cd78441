//go:build unix

package adoption

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// TestChildProcess is what the processes of this folder run.
func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"holds": childHolds, "detaches": childDetaches, "adopts": childAdopts})
}

// childHolds takes the lock, tells its handle, and works until it is killed.
func childHolds(t *testing.T, p *locktest.Parent, addr string, args []string) {
	lease, err := time.ParseDuration(args[0])
	if err != nil {
		t.Fatal(err)
	}
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lease))
	l := locktest.MustLock(t, c.NewLock("a"))
	p.Report("handle %s", handleOf(t, l))
	<-l.Done()
	p.Report("ended %v", errors.Is(l.Err(), rlock.ErrAdopted))
	p.Await("end")
}

// childDetaches is a command that takes the lock for other commands.
func childDetaches(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr)
	p.Report("handle %s", detach(t, locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Hour))))
}

// childAdopts goes on with the lock, and unlocks it.
func childAdopts(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, _ := locktest.ChildClient(t, addr)
	l := adopt(t, c, args[0])
	p.Report("adopted %d", l.Token())
	p.Await("unlock")
	locktest.MustUnlock(t, l)
	p.Report("unlocked")
}

// The process that holds the lock is killed. Who has its handle goes on: nobody else enters between.
func TestAdoptFromAProcessThatWasKilled(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t)
	var waiters sync.WaitGroup
	defer waiters.Wait() // the last one unlocks with the client of this test
	for lease := locktest.Ample(3 * time.Second); ; lease *= 2 {
		child := locktest.StartChild(t, "holds", b.Addr, lease.String())
		handle := child.Report("handle")
		child.Kill()
		before, err := c.NewLock("a").State(bg)
		if err != nil {
			t.Fatal(err)
		}
		waiter := make(chan int64, 1)
		waiters.Go(func() {
			l, err := c.NewLock("a").Lock(bg)
			if err != nil {
				t.Error(err)
				waiter <- 0
				return
			}
			waiter <- l.Token()
			if err := l.Unlock(bg); err != nil {
				t.Error(err)
			}
		})
		l, err := c.Adopt(bg, handle)
		if err != nil {
			// This machine has needed longer than the lease for that.
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
			<-waiter
			if lease > locktest.Patience {
				t.Fatal("the lease was always over")
			}
			continue
		}
		if len(before.Holders) != 1 || l.HoldID() == before.Holders[0].HoldID {
			t.Errorf("%+v was adopted as %s", before, l.HoldID())
		}
		select {
		case <-waiter:
			t.Error("a waiter had the lock between")
		default:
		}
		locktest.MustUnlock(t, l)
		if next := <-waiter; next <= l.Token() {
			t.Errorf("token %d follows %d", next, l.Token())
		}
		return
	}
}

// A lock is taken by one command, and freed by another: the first has ended long since.
func TestCommandsPassALockOn(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	first := locktest.StartChild(t, "detaches", b.Addr)
	handle := first.Report("handle")
	first.Finish()
	l := b.NewClient(t).NewLock("a")
	locktest.MustBeHeld(t, l)
	second := locktest.StartChild(t, "adopts", b.Addr, handle)
	second.Report("adopted")
	locktest.MustBeHeld(t, l)
	second.Order("unlock")
	second.Report("unlocked")
	second.Finish()
	locktest.MustBeFree(t, l)
}

// A process starts the next one, which takes its locks over while both run.
func TestAProcessHandsItsLockToTheNext(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	old := locktest.StartChild(t, "holds", b.Addr, time.Hour.String())
	next := locktest.StartChild(t, "adopts", b.Addr, old.Report("handle"))
	next.Report("adopted")
	if was := old.Report("ended"); was != "true" {
		t.Error("the first process was not told why")
	}
	old.Order("end")
	locktest.MustBeHeld(t, b.NewClient(t).NewLock("a"))
	next.Order("unlock")
	next.Report("unlocked")
	locktest.MustBeFree(t, b.NewClient(t).NewLock("a"))
}

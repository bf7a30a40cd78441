//go:build unix

package processes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// childLabeled holds a lock until it is told to unlock, or dies.
func childLabeled(t *testing.T, p *locktest.Parent, addr string, _ []string) {
	c, _ := locktest.ChildClient(t, addr, rlock.WithLabel("billing"))
	lease := locktest.MustLock(t, c.NewLock("processes"))
	p.Report("held %s", c.ID())
	p.Await("unlock")
	locktest.MustUnlock(t, lease)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	p.Report("closed")
}

// A refusal names the process of the operating system that holds the lock. The key that says so goes
// by itself.
func TestRefusalNamesTheProcessThatHoldsTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb, l := b.Client(t), b.NewClient(t).NewLock("processes")
	for _, killed := range []bool{false, true} {
		holder := locktest.StartChild(t, "labeled", b.Addr)
		key := "rlock:client:" + holder.Report("held")[:21]
		host, _ := os.Hostname()
		want := fmt.Sprintf("not acquired: held by billing@%s (pid %d), ", host, holder.Pid())
		var e *rlock.Error
		locktest.Eventually(t, "the process is named", func() bool {
			_, err := l.TryLock(context.Background())
			if !errors.Is(err, rlock.ErrNotAcquired) || !errors.As(err, &e) {
				t.Fatal(err)
			}
			return strings.Contains(err.Error(), want)
		})
		if p := e.Process; p.PID != holder.Pid() || p.Host != host || p.Label != "billing" || time.Since(p.Started) > time.Hour {
			t.Errorf("%+v", p)
		}
		if ttl := rdb.PTTL(context.Background(), key).Val(); ttl <= 0 || ttl > 10*time.Minute {
			t.Errorf("the key of a process lasts for %v", ttl)
		}
		if killed {
			holder.Kill()
			continue
		}
		holder.Order("unlock")
		holder.Report("closed")
		holder.Finish()
	}
}

package rlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// stoppable is a client whose watchdog is not called any more from stop on, as in a process that was
// stopped and goes on: others of its goroutines may run first.
func stoppable(t *testing.T, b *locktest.Backend, clock *locktest.Clock) (c *rlock.Client, stop func()) {
	var stopped atomic.Bool
	goOn := make(chan struct{})
	c = b.NewClient(t, rlock.WithWatchdogLease(time.Hour), seam.Option(seam.Env{Clock: clock, Gate: func(point string) {
		if point == "watchdog" && stopped.Load() {
			<-goOn
		}
	}}).(rlock.Option))
	t.Cleanup(func() { close(goOn) }) // before the client is closed
	return c, func() { stopped.Store(true) }
}

// After a pause of the process, the first look at the context of a lease finds the loss, not the second.
func TestContextOfALeaseComparesTheDeadline(t *testing.T) {
	t.Parallel()
	wantLost := func(t *testing.T, ctx context.Context) {
		t.Helper()
		if ctx.Err() != context.Canceled {
			t.Fatalf("Err is %v", ctx.Err())
		}
		select {
		case <-ctx.Done():
		default:
			t.Fatal("Err says that the context has ended, and Done is open")
		}
		locktest.WantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, rlock.ErrExpired)
	}
	for name, scenario := range map[string]func(t *testing.T, c *rlock.Client, pause func()){
		"renewed": func(t *testing.T, c *rlock.Client, pause func()) {
			ctx := locktest.MustLock(t, c.NewLock("a")).Context(bg)
			below, cancel := context.WithCancel(context.WithValue(ctx, t, t))
			defer cancel()
			pause()
			wantLost(t, context.WithValue(ctx, t, t))
			wantLost(t, ctx)
			wantLost(t, below)
		},
		"fixed": func(t *testing.T, c *rlock.Client, pause func()) {
			ctx := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Minute)).Context(bg)
			pause()
			wantLost(t, ctx)
		},
		"further out": func(t *testing.T, c *rlock.Client, pause func()) {
			outer := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Minute)).Context(bg)
			inner := locktest.MustLock(t, c.NewLock("b"), rlock.WithLease(10*time.Hour)).Context(outer)
			pause()
			wantLost(t, inner)
		},
		"MultiLock": func(t *testing.T, c *rlock.Client, pause func()) {
			ctx := locktest.MustLock(t, locktest.MultiLockOf(t, c, "{a}1", "{a}2")).Context(bg)
			pause()
			wantLost(t, ctx)
		},
		"by several": func(t *testing.T, c *rlock.Client, pause func()) {
			lease := locktest.MustLock(t, c.NewLock("a"))
			ctx := lease.Context(bg)
			pause()
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if lease.Err() == nil || ctx.Err() == nil { // whoever is the first to see the end
						t.Error("the lease is valid")
					}
				})
			}
			all.Wait()
			wantLost(t, ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clock locktest.Clock
			c, stop := stoppable(t, locktest.OnMiniredis(t), &clock)
			scenario(t, c, func() { stop(); clock.Forward(2 * time.Hour) })
		})
	}
}

// Who extends a lease below its own context may look at that while the hold is being changed.
func TestExtendBelowTheContextOfTheLease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	lease := locktest.MustLock(t, b.NewClient(t, rlock.WithCommandTimeout(3*time.Second)).NewLock("a"))
	ctx := lease.Context(bg)
	if err := lease.Extend(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	b.Mini.Close()
	locktest.WantErr(t, lease.Extend(ctx, time.Minute), rlock.ErrUnreachable)
	if ctx.Err() != nil {
		t.Error(context.Cause(ctx))
	}
}

package counting

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// A waiter whose look took a permit, but was not answered, and that then has to wait behind
// another of its client, does not keep the permit: that other may wait for it, and for
// longer than Redis knows whose it is.
func TestWaiterBehindOthersKeepsNoPermitThatItDoesNotKnowOf(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		timeout := locktest.Ample(300 * time.Millisecond)
		f := newFaulty(t, b, rlock.WithCommandTimeout(timeout))
		is(t, true)(f.plain.s.TrySetPermits(bg, 5))
		sha, since := locktest.SHA("semaphore/acquire"), time.Time{}
		f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if !c.IsScript(sha) || c.Args[len(c.Args)-1] != "1" {
				return faultproxy.Pass
			}
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) > timeout {
				return faultproxy.Pass // it looks again, as it may if it was quicker than the other
			}
			return faultproxy.SwallowReply
		})
		use := func(n int) <-chan error {
			return begun(func() error { return errors.Join(f.s.Acquire(bg, n), f.s.Release(bg, n)) })
		}
		one := use(1)
		soon(t, 4, f.plain.s.Available) // and it does not know
		five := use(5)
		ok(t, ended(t, five))
		ok(t, ended(t, one))
		is(t, 5)(f.plain.s.Available(bg))
	})
}

// AddPermits that makes the semaphore with less than none is undone too.
func TestPermitsTakenAwayFromNoneAreUndone(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		f := newFaulty(t, b, rlock.WithCommandTimeout(locktest.Ample(100*time.Millisecond)))
		sha := locktest.SHA("semaphore/add")
		f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(sha) {
				return faultproxy.SwallowReply
			}
			return faultproxy.Pass
		})
		locktest.WantErr(t, f.s.AddPermits(bg, -3), rlock.ErrUnreachable)
		ok(t, f.Shutdown(bg)) // waits for the undoing
		wantKeys(t, f.rdb)
	})
}

// A copy of a look that arrives after Redis has answered another takes nothing: its waiter may
// sleep for longer than Redis knows whose the permit is.
func TestLateCopyOfARefusedAcquireTakesNoPermit(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		var busy atomic.Int64 // goroutines of the client that do not sleep
		f := newFaulty(t, b, rlock.WithCommandTimeout(locktest.Ample(200*time.Millisecond)), rlock.WithLongestPoll(time.Hour),
			seam.Option(seam.Env{Work: func() (end func()) {
				busy.Add(1)
				return func() { busy.Add(-1) }
			}}).(rlock.Option))
		ok(t, f.plain.s.AddPermits(bg, 1))
		ok(t, f.plain.s.Acquire(bg, 1))
		f.proxy.DropMessages(true)
		acquire, undo := locktest.SHA("semaphore/acquire"), locktest.SHA("semaphore/undo")
		looks := 0
		f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(acquire) {
				if looks++; looks == 1 {
					return faultproxy.Hold
				}
			}
			return faultproxy.Pass
		})
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		waiter := begun(func() error { return f.s.Acquire(ctx, 1) })
		sent := func(script string) int {
			return f.proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(script) })
		}
		// Copies of a look are alike; a busy machine may send more than two. The look after it comes after the
		// subscription. The worker that waits for the first copy is busy still.
		different := func() int {
			all := map[string]bool{}
			for _, c := range f.proxy.Commands() {
				if c.IsScript(acquire) {
					all[strings.Join(c.Args, " ")] = true
				}
			}
			return len(all)
		}
		idle := 0
		locktest.Eventually(t, "the look is undone, and the waiter sleeps", func() bool {
			if idle++; sent(undo) == 0 || different() < locktest.LooksBeforeSleep || busy.Load() > 1 {
				idle = 0
			}
			return idle == 5
		})
		wait(t, waiter)
		ok(t, f.plain.s.Release(bg, 1))
		locktest.HeldUp(t, f.proxy, 1)
		f.proxy.Release()
		is(t, 1)(f.plain.s.Available(bg))
		cancel()
		locktest.WantErr(t, ended(t, waiter), context.Canceled)
		is(t, 1)(f.plain.s.Available(bg))
	})
}

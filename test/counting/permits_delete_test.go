package counting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// eachPermitSemaphore runs a scenario on a PermitSemaphore with and without fairness.
func eachPermitSemaphore(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, opts ...rlock.PermitSemaphoreOption)) {
	t.Parallel()
	for what, opts := range map[string][]rlock.PermitSemaphoreOption{"plain": nil, "fair": {rlock.WithFairness()}} {
		t.Run(what, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) { scenario(t, b, opts...) })
		})
	}
}

// A semaphore that is deleted is gone from Redis. Those who wait, and come later, hear that no number is set; those who
// have permits lose them, and what they give back is no part of a semaphore that was made anew.
func TestDeletedPermitSemaphoreIsGone(t *testing.T) {
	eachPermitSemaphore(t, func(t *testing.T, b *locktest.Backend, opts ...rlock.PermitSemaphoreOption) {
		rdb := b.Client(t)
		open := func() *rlock.PermitSemaphore { // no waiter looks by itself
			return b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)).NewPermitSemaphore("s", opts...)
		}
		mine, theirs := open(), open()
		is(t, false)(mine.Delete(bg))
		is(t, true)(mine.TrySetPermits(bg, 3))
		held := mustAcquire(t, theirs, 2, rlock.WithLease(time.Hour))
		var waiting []*locktest.Attempt
		for _, n := range []int{2, 3, 4} { // the last waits for more than there are
			waiting = append(waiting, acquires(t, theirs, n), acquires(t, mine, n))
		}
		for _, s := range []*rlock.PermitSemaphore{mine, theirs} {
			locktest.Eventually(t, "they wait", func() bool {
				state, err := s.State(bg)
				if len(opts) > 0 {
					return err == nil && state.Waiters == 4
				}
				// What needs more than there are is not counted once it knows: not while it is in line behind others.
				return err == nil && state.Waiters >= 2
			})
		}
		is(t, true)(mine.Delete(bg))
		is(t, false)(theirs.Delete(bg))
		for _, w := range waiting {
			locktest.Eventually(t, "it has ended", func() bool {
				select {
				case <-w.Done:
					return true
				default:
					return false
				}
			})
			locktest.WantErr(t, w.Err, rlock.ErrNotSet)
		}
		_, err := theirs.TryAcquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrNotSet)
		if s, err := mine.State(bg); s.Set || s.Permits != 0 || len(s.Holders) > 0 || err != nil {
			t.Errorf("%+v, %v", s, err)
		}
		is(t, true)(theirs.TrySetPermits(bg, 2))
		locktest.WantErr(t, held.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		is(t, 2)(mine.Available(bg))
		is(t, true)(mine.Delete(bg))
		for _, key := range rdb.Keys(bg, "*s*").Val() {
			if strings.Contains(key, "{s}") && rdb.TTL(bg, key).Val() < 0 || key == "s" {
				t.Errorf("%s is left", key)
			}
		}
	})
}

// Who holds permits of a semaphore that is deleted learns it with the next renewal, also if it is made anew meanwhile.
func TestPermitsOfADeletedSemaphoreAreLost(t *testing.T) {
	eachPermitSemaphore(t, func(t *testing.T, b *locktest.Backend, opts ...rlock.PermitSemaphoreOption) {
		s := b.NewClient(t, rlock.WithWatchdogLease(3*time.Second)).NewPermitSemaphore("s", opts...)
		for _, anew := range []bool{false, true} {
			is(t, true)(s.TrySetPermits(bg, 3))
			held := mustAcquire(t, s, 2)
			is(t, true)(s.Delete(bg))
			if anew {
				is(t, true)(s.TrySetPermits(bg, 3))
			}
			<-held.Done()
			locktest.WantErr(t, held.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
			locktest.WantErr(t, held.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		}
		is(t, 3)(s.Available(bg))
	})
}

// WithPermits, who waits makes the semaphore anew.
func TestWithPermitsRestoresADeletedPermitSemaphore(t *testing.T) {
	eachPermitSemaphore(t, func(t *testing.T, b *locktest.Backend, opts ...rlock.PermitSemaphoreOption) {
		s := b.NewClient(t).NewPermitSemaphore("s", append(opts, rlock.WithPermits(1))...)
		lost := mustAcquire(t, s, 1, rlock.WithLease(time.Hour))
		next := acquires(t, s, 1)
		stand(t, s, 1)
		is(t, true)(s.Delete(bg))
		lease := next.Held()
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		is(t, 0)(s.Available(bg))
		locktest.MustUnlock(t, lease)
		is(t, 1)(s.Available(bg))
	})
}

// A Delete whose reply is lost is sent again, and tells what the first copy has done.
func TestDeleteOfPermitsWithALostReply(t *testing.T) {
	eachPermitSemaphore(t, func(t *testing.T, b *locktest.Backend, opts ...rlock.PermitSemaphoreOption) {
		c, proxy, _ := b.Faulty(t)
		s := c.NewPermitSemaphore("s", opts...)
		script := "permits/delete"
		if len(opts) > 0 {
			script = "fairpermits/delete"
		}
		is(t, false)(s.Delete(bg)) // the server knows the script
		for _, action := range []faultproxy.Action{faultproxy.ResetAfter, faultproxy.ResetBefore} {
			is(t, true)(s.TrySetPermits(bg, 3))
			seen := locktest.OnNth(t, proxy, script, 1, action)
			is(t, true)(s.Delete(bg))
			if seen.Load() < 2 {
				t.Errorf("%v: it was sent %d times", action, seen.Load())
			}
			proxy.Handle(nil)
		}
	})
}

// What an AddPermits that was given up has added is not taken from a semaphore that was made anew since.
func TestAddPermitsToADeletedSemaphoreIsNotUndone(t *testing.T) {
	eachPermitSemaphore(t, func(t *testing.T, b *locktest.Backend, opts ...rlock.PermitSemaphoreOption) {
		c, proxy, rdb := b.Faulty(t)
		s, other := c.NewPermitSemaphore("s", opts...), locktest.NewClient(t, rdb).NewPermitSemaphore("s", opts...)
		add, undo := "permits/add", "permits/undo"
		if len(opts) > 0 {
			add, undo = "fair"+add, "fair"+undo
		}
		is(t, true)(other.TrySetPermits(bg, 3))
		ctx, cancel := context.WithCancel(bg)
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			switch {
			case cmd.IsScript(locktest.SHA(add)):
				time.AfterFunc(50*time.Millisecond, cancel)
				return faultproxy.SwallowReply
			case cmd.IsScript(locktest.SHA(undo)):
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		locktest.WantErr(t, s.AddPermits(ctx, 1), context.Canceled)
		locktest.HeldUp(t, proxy, 1)
		is(t, true)(other.Delete(bg))
		is(t, true)(other.TrySetPermits(bg, 20))
		proxy.Handle(nil)
		proxy.Release()
		ok(t, c.Shutdown(bg)) // waits for the undoing
		is(t, 20)(other.Available(bg))
	})
}

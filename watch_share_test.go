package rlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Fifty watches of a lock in a client cost what one costs: two looks for each
// change, as it is announced and 10 ms later. Each of them sees each change.
func TestWatchesOfOneLockShareTheirLooks(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const changes = 20
		raw := b.Client(t)
		for _, n := range []int{1, 50} {
			rdb := b.Client(t)
			hook := &locktest.CountHook{}
			rdb.AddHook(hook)
			c, clock := onWatchClock(t, rdb, rlock.WithLongestPoll(locktest.Patient))
			name := fmt.Sprint("a", n)
			var all []<-chan rlock.State
			for range n {
				all = append(all, watching(t, c.NewLock(name)))
			}
			change := func(i int) {
				t.Helper()
				owner := fmt.Sprint("java:", i)
				sleeps := len(clock.pauses())
				raw.Del(bg, name)
				raw.HSet(bg, name, owner, 1)
				raw.PExpire(bg, name, 2*locktest.Patient)
				raw.Publish(bg, "redisson_lock__channel:{"+name+"}", "0")
				for _, states := range all {
					watchHeld(t, states, owner, 1)
				}
				locktest.Eventually(t, "it polls no more", func() bool { return len(clock.pauses()) > sleeps })
			}
			locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, raw, name) == 1 })
			change(0)
			from := hook.N.Load()
			for i := range changes {
				change(1 + i)
			}
			cost := hook.N.Load() - from
			t.Logf("%d watches, %d changes: %d commands", n, changes, cost)
			// Two for each. The confirmation of the subscription may make it look, too, and
			// so may a message that comes late on a busy machine.
			if cost > 3*changes {
				t.Errorf("%d watches, %d changes: %d commands, want two for each", n, changes, cost)
			}
		}
	})
}

// A watch that begins beside others gets the state of now, by one look that the others
// share, and does not change their pace. When one ends the others go on; with the last
// the looks end.
func TestWatchBesideAnother(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, raw := b.Client(t), b.Client(t)
		hook := &locktest.CountHook{}
		rdb.AddHook(hook)
		c, clock := onWatchClock(t, rdb, rlock.WithLongestPoll(locktest.Patient))
		watch := func() (<-chan rlock.State, context.CancelFunc) {
			t.Helper()
			ctx, cancel := context.WithCancel(bg)
			t.Cleanup(cancel)
			states, err := c.NewSpinLock("a").Watch(ctx) // no message makes it look
			if err != nil {
				t.Fatal(err)
			}
			return states, cancel
		}
		first, endFirst := watch()
		watchFree(t, first)
		locktest.Eventually(t, "it sleeps", func() bool { return len(clock.pauses()) == 1 })

		from := hook.N.Load()
		raw.HSet(bg, "a", "java:1", 1)
		raw.PExpire(bg, "a", 2*locktest.Patient)
		second, endSecond := watch()
		watchHeld(t, second, "java:1", 1)
		watchHeld(t, first, "java:1", 1)
		locktest.Eventually(t, "it sleeps", func() bool { return len(clock.pauses()) == 2 })
		if n := hook.N.Load() - from; n != 2 { // as after each change, another look comes after 10 ms
			t.Errorf("%d commands", n)
		}
		pause := clock.pauses()[1]
		for pause < time.Minute { // far above what the test takes
			pause = clock.step(t)
		}
		sleeps := len(clock.pauses())
		from = hook.N.Load()
		third, endThird := watch()
		watchHeld(t, third, "java:1", 1)
		locktest.Eventually(t, "it sleeps", func() bool { return len(clock.pauses()) > sleeps })
		if n := hook.N.Load() - from; n != 1 {
			t.Errorf("%d commands for a watch that has begun", n)
		}
		if left := clock.pauses()[sleeps]; left > pause || left < pause/2 {
			t.Errorf("a pause of %v, and then one of %v", pause, left)
		}
		if len(first)+len(second) > 0 {
			t.Error("told that nothing has changed")
		}

		endFirst()
		watchEnds(t, first)
		raw.Del(bg, "a")
		clock.step(t)
		watchFree(t, second)
		watchFree(t, third)
		endSecond()
		endThird()
		watchEnds(t, second)
		watchEnds(t, third)

		// Nobody watches: it begins anew.
		raw.HSet(bg, "a", "java:2", 1)
		last, _ := watch()
		watchHeld(t, last, "java:2", 1)
		raw.Del(bg, "a")
	})
}

// Types that exclude each other may show different things of one lock.
func TestWatchesOfDifferentTypesShareNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		plain, fenced := watching(t, c.NewLock("a")), watching(t, c.NewFencedLock("a"))
		lease := locktest.MustLock(t, b.NewClient(t).NewFencedLock("a"))
		for states, token := range map[<-chan rlock.State]int64{plain: 0, fenced: 1} {
			if s := watchHeld(t, states, lease.HoldID(), 1); s.Token != token {
				t.Errorf("token %d, want %d", s.Token, token)
			}
		}
		locktest.MustUnlock(t, lease)
	})
}

// Whoever begins and ends watches at once, and however the client ends: each channel
// is closed, and each that is watched gets a state.
func TestWatchesComeAndGo(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		var wg sync.WaitGroup
		var begun atomic.Int64
		closing := make(chan struct{})
		for i := range 20 {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			wg.Go(func() {
				for round := 0; ; round++ {
					select {
					case <-closing:
						round = 100
					default:
					}
					ctx, cancel := context.WithCancel(bg)
					states, err := c.NewLock("a").Watch(ctx)
					if err != nil { // closed
						cancel()
						if round < 100 {
							<-closing
						}
						return
					}
					begun.Add(1)
					if random.IntN(2) == 0 {
						if _, open := <-states; !open && round < 100 {
							<-closing // else it ended by itself
						}
					}
					if random.IntN(3) > 0 || round < 100 {
						cancel()
						watchEnds(t, states)
					} else {
						wg.Go(func() { defer cancel(); watchEnds(t, states) })
					}
				}
			})
		}
		lease := locktest.MustLock(t, c.NewLock("a"))
		locktest.Eventually(t, "some have come and gone", func() bool { return begun.Load() > 300 })
		locktest.MustUnlock(t, lease)
		close(closing)
		if err := c.Shutdown(bg); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

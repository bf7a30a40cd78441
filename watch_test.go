package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/seam"
)

type watchable interface {
	rlock.Locker
	Watch(context.Context) (<-chan rlock.State, error)
	State(context.Context) (rlock.State, error)
	IsLocked(context.Context) (bool, error)
}

// watching is a watch that ends with the test.
func watching(t testing.TB, l watchable) <-chan rlock.State {
	t.Helper()
	ctx, cancel := context.WithCancel(bg)
	t.Cleanup(cancel)
	states, err := l.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return states
}

// watchUntil reads states until one is as it should be.
func watchUntil(t testing.TB, states <-chan rlock.State, what string, ok func(rlock.State) bool) rlock.State {
	t.Helper()
	late := time.After(20 * time.Second) // far above what a busy machine needs
	for {
		select {
		case s, open := <-states:
			if !open {
				t.Fatalf("the watch ended before %s", what)
			}
			if ok(s) {
				return s
			}
		case <-late:
			t.Fatalf("waited too long until %s", what)
		}
	}
}

func watchFree(t testing.TB, states <-chan rlock.State) {
	t.Helper()
	s := watchUntil(t, states, "it is free", func(s rlock.State) bool { return !s.Locked() })
	if s.Mode != rlock.ModeFree || s.Token != 0 || s.TTL != 0 {
		t.Fatalf("free: %+v", s)
	}
}

func watchHeld(t testing.TB, states <-chan rlock.State, owner string, count int) rlock.State {
	t.Helper()
	want := []rlock.Holder{{HoldID: owner, Count: count}}
	s := watchUntil(t, states, fmt.Sprint("the holder is ", want), func(s rlock.State) bool { return slices.Equal(locktest.Unnamed(s.Holders), want) })
	if s.Mode != rlock.ModeExclusive {
		t.Fatalf("held: %+v", s)
	}
	return s
}

func watchEnds(t testing.TB, states <-chan rlock.State) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case _, open := <-states:
			if !open {
				return
			}
		case <-late:
			t.Fatal("the watch did not end")
		}
	}
}

func TestWatchReportsTheHolders(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for kind, open := range locktest.HashTypes {
			t.Run(kind, func(t *testing.T) {
				rdb := b.Client(t)
				c := locktest.NewClient(t, rdb)
				l, far := open(c, "a"), open(b.NewClient(t), "a")
				here, there := watching(t, l.(watchable)), watching(t, far.(watchable))
				all := []<-chan rlock.State{here, there}
				for _, states := range all {
					watchFree(t, states)
				}
				for range 2 {
					outer := locktest.MustLock(t, l)
					watchHeld(t, there, outer.HoldID(), 1)
					// In the client of the holder the token is known, perhaps after
					// the holder.
					s := watchUntil(t, here, "the token is told", func(s rlock.State) bool { return s.Token != 0 })
					if s.Token != outer.Token() || len(s.Holders) != 1 || s.Holders[0].HoldID != outer.HoldID() || s.TTL <= 0 {
						t.Fatalf("%+v; the lease is of %s with token %d", s, outer.HoldID(), outer.Token())
					}
					inner := locktest.MustLockCtx(t, outer.Context(bg), l)
					for _, states := range all {
						watchHeld(t, states, outer.HoldID(), 2)
					}
					locktest.MustUnlock(t, inner)
					for _, states := range all {
						watchHeld(t, states, outer.HoldID(), 1)
					}
					locktest.MustUnlock(t, outer)
					for _, states := range all {
						watchFree(t, states)
					}
				}
				// Nobody was delayed, and nothing is left.
				s, err := far.(watchable).State(bg)
				if err != nil || s.Waiters != 0 || s.Locked() {
					t.Fatal(s, err)
				}
				if n := rdb.Exists(bg, "a").Val(); n != 0 {
					t.Fatal("the lock is left")
				}
				if kind == "FencedLock" {
					rdb.Del(bg, "redisson_lock_token:{a}")
				}
			})
		}
	})
}

func TestWatchReportsTheTokenOfAFencedLockToEachClient(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewFencedLock("a")
		states := watching(t, b.NewClient(t).NewFencedLock("a"))
		for want := int64(1); want <= 3; want++ {
			lease := locktest.MustLock(t, l)
			if s := watchHeld(t, states, lease.HoldID(), 1); s.Token != want {
				t.Fatalf("token %d, want %d", s.Token, want)
			}
			locktest.MustUnlock(t, lease)
			watchFree(t, states)
		}
	})
}

// Whatever happens, in the end the latest state arrives: for one who reads all
// the time, for one who reads now and then, and for one who reads only then,
// which costs the others nothing.
func TestWatchEndsWithTheLatestState(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		var clients []*rlock.Client
		for range 3 {
			clients = append(clients, b.NewClient(t))
		}
		for round := range 3 {
			name := fmt.Sprint("a", round)
			l := b.NewClient(t).NewLock(name)
			eager, lazy := watching(t, l), watching(t, l)
			var wg sync.WaitGroup
			var mu sync.Mutex // guards seen
			var seen []rlock.State
			stop := make(chan struct{})
			wg.Go(func() {
				for {
					select {
					case s := <-eager:
						mu.Lock()
						seen = append(seen, s)
						mu.Unlock()
					case <-stop:
						return
					}
				}
			})
			var lease *rlock.Lease
			random := rand.New(rand.NewPCG(uint64(round), 4711))
			const steps = 300
			for range steps {
				if lease == nil {
					lease = locktest.MustLock(t, clients[random.IntN(3)].NewLock(name), rlock.WithLease(time.Hour))
				} else {
					locktest.MustUnlock(t, lease)
					lease = nil
				}
				if random.IntN(20) == 0 {
					time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond) // so that some are seen
				}
			}
			if round == 2 && lease == nil {
				lease = locktest.MustLock(t, clients[0].NewLock(name), rlock.WithLease(time.Hour))
			}
			final, err := l.State(bg)
			if err != nil {
				t.Fatal(err)
			}
			same := func(s rlock.State) bool { return reflect.DeepEqual(s.Holders, final.Holders) }
			locktest.Eventually(t, "the eager one has the latest state", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(seen) > 0 && same(seen[len(seen)-1])
			})
			reads := 0
			watchUntil(t, lazy, "the lazy one has the latest state", func(s rlock.State) bool { reads++; return same(s) })
			// What lay there, and what the watch may have seen since; not one
			// for each step.
			if reads > 3 {
				t.Errorf("one who had read nothing got %d states of %d steps", reads, steps)
			}
			close(stop)
			wg.Wait()
			if len(seen) > steps+2 {
				t.Errorf("%d states of %d steps", len(seen), steps)
			}
			t.Logf("%d steps, %d states for who reads all the time", steps, len(seen))
			if lease != nil {
				locktest.MustUnlock(t, lease)
			}
		}
	})
}

// watchClock is a clock of which only short timers fire by themselves. The others
// are noted, and fire when the test says so.
type watchClock struct {
	most  time.Duration // that fires by itself
	mu    sync.Mutex    // guards the rest
	asked []time.Duration
	long  *watchTimer // that was set last
}

type watchTimer struct {
	clock *watchClock
	c     chan time.Time
	real  *time.Timer
}

func (c *watchClock) Now() time.Time { return time.Now() }

func (c *watchClock) NewTimer(d time.Duration) seam.Timer {
	t := &watchTimer{clock: c, c: make(chan time.Time, 1)}
	t.real = time.AfterFunc(time.Hour, t.fire)
	t.Reset(d)
	return t
}

func (t *watchTimer) fire() {
	select {
	case t.c <- time.Now():
	default:
	}
}

func (t *watchTimer) C() <-chan time.Time { return t.c }

func (t *watchTimer) Stop() bool { return t.real.Stop() }

func (t *watchTimer) Reset(d time.Duration) bool {
	t.real.Stop()
	select {
	case <-t.c:
	default:
	}
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if d <= c.most {
		t.real.Reset(d)
	} else if d < 30*24*time.Hour { // not those of a watch or watchdog that has nothing to do
		c.asked, c.long = append(c.asked, d), t
	}
	return true
}

// pauses is what was asked for so far.
func (c *watchClock) pauses() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Duration(nil), c.asked...)
}

// step lets the latest pause be over, and waits for the next; it returns that.
func (c *watchClock) step(t testing.TB) time.Duration {
	t.Helper()
	c.mu.Lock()
	n, timer := len(c.asked), c.long
	c.mu.Unlock()
	timer.fire()
	locktest.Eventually(t, "it sleeps again", func() bool { return len(c.pauses()) > n })
	return c.pauses()[n]
}

// onWatchClock is a client whose long pauses never end by themselves: what it
// sees without a step of the clock it was told.
func onWatchClock(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) (*rlock.Client, *watchClock) {
	t.Helper()
	clock := &watchClock{most: 13 * time.Millisecond} // the pause after a change, and that after a message
	env := seam.Option(seam.Env{Clock: clock}).(rlock.Option)
	return locktest.NewClient(t, rdb, append(opts, env)...), clock
}

func TestWatchPollsWhenAReleaseIsAnnounced(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c, clock := onWatchClock(t, b.Client(t), rlock.WithLongestPoll(locktest.Patient))
		// Each look that sees the lock held was after the acquire.
		for i := range 10 {
			name := fmt.Sprint("a", i)
			lease := locktest.MustLock(t, locktest.NewClient(t, rdb).NewLock(name), rlock.WithLease(2*time.Hour))
			before := len(clock.pauses())
			states := watching(t, c.NewLock(name))
			watchHeld(t, states, lease.HoldID(), 1)
			// Polled once and subscribed: from here on it hears.
			locktest.Eventually(t, "it sleeps", func() bool { return len(clock.pauses()) > before })
			locktest.MustUnlock(t, lease)
			watchFree(t, states)
		}
	})
}

func TestWatchPollsAfterEachResubscription(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	c, clock := onWatchClock(t, b.Client(t), rlock.WithLongestPoll(locktest.Patient))
	states := watching(t, c.NewLock("a"))
	watchFree(t, states)
	locktest.Eventually(t, "it has subscribed and sleeps", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 && len(clock.pauses()) > 0 })
	for i := range 5 {
		// Nothing is announced: only the look after the connection was rebuilt
		// can see it.
		owner := redistest.HoldID(fmt.Sprint("java:", i))
		rdb.HSet(bg, "a", owner, 1)
		rdb.PExpire(bg, "a", time.Hour)
		locktest.Eventually(t, "the subscribed connection was killed", func() bool {
			n, err := rdb.ClientKillByFilter(bg, "TYPE", "pubsub").Result()
			if err != nil {
				t.Fatal(err)
			}
			return n == 1
		})
		watchHeld(t, states, owner, 1)
		rdb.Del(bg, "a")
		locktest.Eventually(t, "it has subscribed again", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
	}

	b.Real.Kill()
	b.Real.Restart() // empty, on the same port
	watchFree(t, states)
	locktest.Eventually(t, "it has subscribed again", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
	rdb.HSet(bg, "a", redistest.HoldID("java:6"), 1)
	rdb.PExpire(bg, "a", time.Hour)
	if err := rdb.Publish(bg, "redisson_lock__channel:{a}", "0").Err(); err != nil {
		t.Fatal(err)
	}
	watchHeld(t, states, redistest.HoldID("java:6"), 1)
}

// Without messages a watch polls, ever more seldom, and looks when the holder's
// lease is over.
func TestWatchPausesDoubleUpToTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const lease, poll = time.Hour, 30 * time.Minute
		rdb := b.Client(t)
		hook := &locktest.CountHook{}
		rdb.AddHook(hook)
		c, clock := onWatchClock(t, rdb, rlock.WithLongestPoll(poll))
		raw := b.Client(t)
		raw.HSet(bg, "a", redistest.HoldID("dead:1"), 1)
		raw.PExpire(bg, "a", lease)
		// A spin lock: no message makes it look.
		states := watching(t, c.NewSpinLock("a"))
		watchHeld(t, states, redistest.HoldID("dead:1"), 1)
		locktest.Eventually(t, "it sleeps", func() bool { return len(clock.pauses()) == 1 })
		from := hook.N.Load()
		want, pause := 20*time.Millisecond, clock.pauses()[0]
		looks := int64(0)
		for ; want < poll; want *= 2 {
			if pause > want || pause < want*3/4 {
				t.Fatalf("a pause of %v, want up to a quarter less than %v", pause, want)
			}
			pause = clock.step(t)
			looks++
		}
		if pause > poll || pause < poll*3/4 {
			t.Fatalf("a pause of %v, the longest poll is %v", pause, poll)
		}
		if n := hook.N.Load() - from; n != looks {
			t.Fatalf("%d commands for %d looks", n, looks)
		}
		// The lease ends earlier than the poll.
		raw.PExpire(bg, "a", poll/2)
		if pause = clock.step(t); pause > poll/2+5*time.Millisecond || pause < poll/2-time.Minute {
			t.Fatalf("a pause of %v, the lease is over in %v", pause, poll/2)
		}
		if len(states) > 0 {
			t.Fatalf("told of %+v: only the TTL had changed", <-states)
		}
		// After a change it looks soon again.
		raw.Del(bg, "a")
		clock.step(t)
		watchFree(t, states)
		if pause := clock.pauses()[len(clock.pauses())-1]; pause > 20*time.Millisecond {
			t.Fatalf("a pause of %v after a change", pause)
		}
	})
}

func TestWatchReportsTheEndOfADeadHolder(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // the watch begins within it, also on a busy machine
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		rdb.HSet(bg, "a", redistest.HoldID("dead:1"), 1)
		start := time.Now() // the reply may be late
		rdb.PExpire(bg, "a", ttl)
		states := watching(t, locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewLock("a"))
		watchHeld(t, states, redistest.HoldID("dead:1"), 1)
		watchFree(t, states)
		if took := time.Since(start); took < ttl-10*time.Millisecond || took > locktest.Patience {
			t.Fatalf("seen after %v, the lease was of %v", took, ttl)
		}
	})
}

func TestWatchDoesNotPollInAHotLoop(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		hook := &locktest.CountHook{}
		rdb.AddHook(hook)
		l := locktest.NewClient(t, rdb).NewLock("a")
		raw := b.Client(t)
		start := time.Now()
		states := watching(t, l)
		watchFree(t, states)
		locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, raw, "a") == 1 })
		for time.Since(start) < time.Second {
			if err := raw.Publish(bg, "redisson_lock__channel:{a}", "0").Err(); err != nil {
				t.Fatal(err)
			}
		}
		looks, took := hook.N.Load(), time.Since(start)
		// One each 10 ms, and those of the beginning; the first comes in two
		// commands if the server does not know the script. A busy machine has time for few.
		if most := int64(took/(10*time.Millisecond)) + 5; looks > most || looks < 3 {
			t.Errorf("%d commands in %v while messages came, want from 3 to %d", looks, took, most)
		}
		// And then it is quiet: pauses of 10 ms that double.
		time.Sleep(time.Second)
		if n := hook.N.Load() - looks; n > 10 {
			t.Errorf("%d commands in a quiet second", n)
		}
	})
}

// While Redis gives no answer nothing is told, and not much is sent; afterwards it
// goes on.
func TestWatchOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		retries := &locktest.Events{}
		c, proxy, rdb := b.Faulty(t, rlock.WithObserver(retries), rlock.WithCommandTimeout(200*time.Millisecond))
		l := c.NewLock("a")
		states := watching(t, l)
		watchFree(t, states)
		for name, action := range map[string]faultproxy.Action{"refused": faultproxy.Error, "no answer": faultproxy.SwallowReply} {
			id := locktest.SHA("lock/inspect")
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) {
					return action
				}
				return faultproxy.Pass
			})
			why := map[faultproxy.Action]error{faultproxy.Error: rlock.ErrRefused, faultproxy.SwallowReply: rlock.ErrUnreachable}[action]
			failed := func() int { return retries.Retried("watch", why.Error()) }
			before, start, sent := failed(), time.Now(), len(proxy.Commands())
			lease := locktest.MustLock(t, locktest.NewClient(t, rdb).NewLock("a"), rlock.WithLease(time.Minute))
			locktest.Eventually(t, "it has failed three times", func() bool { return failed() >= before+3 })
			if len(states) > 0 {
				t.Fatalf("%s: told of %+v", name, <-states)
			}
			// Within a look it is sent again after 10 ms, doubled up to 200.
			if n, most := len(proxy.Commands())-sent, 60+int(time.Since(start)/(20*time.Millisecond)); n > most {
				t.Errorf("%s: %d commands in %v, want at most %d", name, n, time.Since(start), most)
			}
			proxy.Handle(nil)
			watchHeld(t, states, lease.HoldID(), 1)
			locktest.MustUnlock(t, lease)
			watchFree(t, states)
		}
	})
}

// An error that Redis answers with does not end a watch either.
func TestWatchOfSomethingElseGoesOn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		retries := &locktest.Events{}
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithObserver(retries))
		rdb.Set(bg, "a", "a string", 0)
		states := watching(t, c.NewLock("a"))
		locktest.Eventually(t, "it has failed twice", func() bool { return retries.Retried("watch", "WRONGTYPE") >= 2 })
		if len(states) > 0 {
			t.Fatal(<-states)
		}
		rdb.Del(bg, "a")
		watchFree(t, states)
	})
}

func TestWatchEndsWithItsContextOrItsClient(t *testing.T) {
	if !locktest.Alone(t) {
		return
	}
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		l := c.NewLock("a")

		ctx, cancel := context.WithCancel(bg)
		states, err := l.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		watchFree(t, states)
		cancel()
		watchEnds(t, states)
		if states, err = l.Watch(ctx); err != nil { // ended before it began
			t.Fatal(err)
		}
		watchEnds(t, states)

		// All goroutines and subscriptions go, and Shutdown waits for them.
		goroutines := runtime.NumGoroutine()
		const n = 200
		var all []<-chan rlock.State
		for i := range n {
			states, err := c.NewLock(fmt.Sprint("{a}", i%10)).Watch(bg)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, states)
		}
		for _, states := range all {
			watchFree(t, states)
		}
		// go-redis and the server have some for each of their connections, of
		// which there are not so many.
		locktest.Eventually(t, "there is a goroutine for each lock and no more", func() bool { return runtime.NumGoroutine() < goroutines+n/2 })
		if err := c.Shutdown(bg); err != nil {
			t.Fatal(err)
		}
		for i, states := range all {
			for len(states) > 0 {
				<-states
			}
			select {
			case _, open := <-states:
				if open {
					t.Fatalf("watch %d goes on", i)
				}
			default:
				t.Fatalf("watch %d is not closed when Shutdown has returned", i)
			}
		}
		_, err = l.Watch(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
		locktest.MustBeEmpty(t, rdb)
	})
}

// The subscription of a watch ends with it, not that of the waiters beside it.
func TestWatchUnsubscribes(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		first, err := c.NewLock("a").Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		second := watching(t, c.NewLock("a"))
		watchFree(t, first)
		watchFree(t, second)
		locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
		cancel()
		watchEnds(t, first)
		lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		watchHeld(t, second, lease.HoldID(), 1)
		if n := locktest.Subscribers(t, rdb, "a"); n != 1 {
			t.Fatalf("%d are subscribed beside one watch", n)
		}
		locktest.MustUnlock(t, lease)
		watchFree(t, second)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		locktest.Eventually(t, "nobody is subscribed", func() bool { return locktest.Subscribers(t, rdb, "a") == 0 })
	})
}

// A look that is not answered does not hold up Shutdown for longer than go-redis
// reads.
func TestShutdownEndsAWatchWithAHungPoll(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, _ := b.Faulty(t, rlock.WithCommandTimeout(time.Hour))
		hangs := make(chan struct{}, 100)
		id := locktest.SHA("lock/inspect")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) {
				hangs <- struct{}{}
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		states := watching(t, c.NewLock("a"))
		<-hangs
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		start := time.Now()
		if err := c.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		watchEnds(t, states)
		t.Logf("ended after %v", time.Since(start).Round(time.Millisecond))
	})
}

func TestWatchRefusesBadArguments(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	hook := &locktest.CountHook{}
	rdb.AddHook(hook)
	c := locktest.NewClient(t, rdb)
	for _, l := range []watchable{c.NewLock(""), c.NewFencedLock("a{b"), c.NewSpinLock("a", rlock.WithBackoff(rlock.Backoff{}))} {
		states, err := l.Watch(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		if states != nil {
			t.Fatal("a channel beside an error")
		}
	}
	if n := hook.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
}

// Watches beside contention: nobody is shut out or delayed, nothing is lost.
func TestWatchDelaysNobody(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var locks []rlock.Locker
		for range 3 {
			c := b.NewClient(t)
			locks = append(locks, c.NewLock("a"))
			states := watching(t, c.NewLock("a"))
			go func() {
				for s := range states {
					if len(s.Holders) > 1 {
						t.Errorf("two holders: %+v", s)
					}
				}
			}()
		}
		last := int64(0)
		hashSections(t, rdb, locks, 10, func(lease *rlock.Lease) {
			if lease.Token() <= last {
				t.Errorf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
		})
		if _, err := locks[0].TryLock(bg); err != nil && !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
	})
}

// Fifty watches of a lock in a client cost what one costs: two looks for each
// change, as it is announced and 10 ms later. Each of them sees each change.
func TestWatchesOfOneLockShareAPoller(t *testing.T) {
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
				owner := redistest.HoldID(fmt.Sprint("java:", i))
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
func TestWatchesOfAClientSharePolls(t *testing.T) {
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
		raw.HSet(bg, "a", redistest.HoldID("java:1"), 1)
		raw.PExpire(bg, "a", 2*locktest.Patient)
		second, endSecond := watch()
		watchHeld(t, second, redistest.HoldID("java:1"), 1)
		watchHeld(t, first, redistest.HoldID("java:1"), 1)
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
		watchHeld(t, third, redistest.HoldID("java:1"), 1)
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
		raw.HSet(bg, "a", redistest.HoldID("java:2"), 1)
		last, _ := watch()
		watchHeld(t, last, redistest.HoldID("java:2"), 1)
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

package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// Each type of lock stays its holder's, and is renewed, until it is unlocked.
func TestShutdownFreesNoLockUnderItsHolder(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		other := locktest.NewClient(t, rdb)
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				const term = time.Minute // longer than the test, so what Redis has left of it shows the renewals
				var clock locktest.Clock
				c := b.NewClient(t, clock.Option(), rlock.WithWatchdogLease(term), rlock.WithUnlockTimeout(10*time.Second))
				l, name := k.Open(c, k.Name), k.Name
				lease := locktest.MustLock(t, l)
				nested := locktest.MustLockCtx(t, lease.Context(bg), l)
				ctx := nested.Context(bg)
				done := locktest.ShutDown(bg, c, lease, nested)
				<-ctx.Done()
				for _, err := range []error{lease.Err(), nested.Err(), context.Cause(ctx), lease.Extend(bg, time.Minute)} {
					locktest.WantErr(t, err, rlock.ErrClosed, nil, rlock.ErrLeaseLost)
				}
				for range 4 { // so that the first lease is over
					var keys []string
					for _, key := range locktest.Keys(t, rdb) {
						if (key == name || strings.HasPrefix(key, "{"+name+"}:rlock:")) && rdb.PTTL(bg, key).Val() > term/2 {
							keys = append(keys, key)
							rdb.PExpire(bg, key, term/2)
						}
					}
					if len(keys) == 0 {
						t.Fatal("Redis has nothing of it that ends")
					}
					was := lease.Deadline()
					clock.Forward(term / 3)
					locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) })
					for _, key := range keys {
						if ttl := rdb.PTTL(bg, key).Val(); ttl <= term/2 {
							t.Errorf("it was renewed, and %s ends in %v", key, ttl)
						}
					}
					_, err := k.Blocker(other, name).TryLock(bg)
					locktest.WantErr(t, err, rlock.ErrNotAcquired)
				}
				locktest.MustUnlock(t, lease)
				_, err := k.Blocker(other, name).TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.StillRunning(t, done)
				locktest.MustUnlock(t, nested)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				locktest.WantErr(t, nested.Unlock(bg), rlock.ErrUnlocked)
				locktest.MustUnlock(t, locktest.MustLock(t, k.Blocker(other, name)))
			})
		}
	})
}

// A loss is still told to a holder that was asked to leave.
func TestLossDuringShutdown(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t, rlock.WithWatchdogLease(6*time.Second))
		removed := locktest.MustLock(t, c.NewLock("removed"))
		fixed := locktest.MustLock(t, c.NewLock("fixed"), rlock.WithLease(200*time.Millisecond))
		done := locktest.ShutDown(bg, c, removed, fixed)
		b.Client(t).Del(bg, "removed")
		locktest.Eventually(t, "the losses are seen", func() bool {
			return errors.Is(removed.Err(), rlock.ErrLeaseLost) && errors.Is(fixed.Err(), rlock.ErrLeaseLost)
		})
		locktest.WantErr(t, removed.Err(), rlock.ErrClosed, rlock.ErrRemoved)
		locktest.WantErr(t, fixed.Err(), rlock.ErrClosed, rlock.ErrExpired)
		if err := <-done; err != nil {
			t.Fatal("nothing is held any more:", err)
		}
		locktest.WantErr(t, removed.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.WantErr(t, fixed.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
	})
}

// A renewed hold that was freed by force keeps Shutdown waiting until its next renewal
// at most. Nobody asks after a fixed one: it counts as held until its holder unlocks.
func TestShutdownWithForceUnlockedHolds(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, other := b.NewClient(t, rlock.WithWatchdogLease(6*time.Second)), b.NewClient(t)
		renewed := locktest.MustLock(t, c.NewLock("renewed"))
		fixed := locktest.MustLock(t, c.NewLock("fixed"), rlock.WithLease(time.Minute))
		for _, name := range []string{"renewed", "fixed"} {
			if was, err := other.NewLock(name).ForceUnlock(bg); !was || err != nil {
				t.Fatal(name, was, err)
			}
		}
		done := locktest.ShutDown(bg, c, renewed, fixed)
		locktest.Eventually(t, "the loss is seen", func() bool { return errors.Is(renewed.Err(), rlock.ErrRemoved) })
		locktest.StillRunning(t, done)
		locktest.WantErr(t, fixed.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		if err := <-done; err != nil {
			t.Fatal("nothing is held any more:", err)
		}
	})
}

// What Shutdown has no time for is named, runs out by its lease, and can be
// unlocked until then.
func TestShutdownWithoutTimeNamesWhatIsHeld(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const term = time.Minute // longer than the test
		var clock locktest.Clock
		rdb := b.Client(t)
		c, other := b.NewClient(t, clock.Option(), rlock.WithWatchdogLease(term)), locktest.NewClient(t, rdb)
		var leases []*rlock.Lease
		for i := range 7 {
			leases = append(leases, locktest.MustLock(t, c.NewLock(fmt.Sprint("lock ", i))))
		}
		ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
		defer cancel()
		err := <-locktest.ShutDown(ctx, c, leases...)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		for _, says := range []string{": 7 (", `"lock 0", "lock 1", "lock 2", "lock 3", "lock 4", ...)`} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("the error does not say %s: %v", says, err)
			}
		}
		for _, lease := range leases {
			locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
		}
		if _, err := other.NewLock("lock 6").TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Error("the lock was taken from its holder:", err)
		}
		locktest.MustUnlock(t, leases[5])
		locktest.MustUnlock(t, locktest.MustLock(t, other.NewLock("lock 5"), rlock.WithWait(0)))
		rdb.PExpire(bg, "lock 6", term/2) // so that a renewal would show
		clock.Forward(term / 2)
		locktest.MustUnlock(t, leases[4])
		clock.Forward(term / 2)
		locktest.Eventually(t, "the lease is over", func() bool { return errors.Is(leases[6].Err(), rlock.ErrExpired) })
		if ttl := rdb.PTTL(bg, "lock 6").Val(); ttl <= 0 || ttl > term/2 {
			t.Errorf("what was left of the lease in Redis is %v", ttl)
		}
		rdb.PExpire(bg, "lock 6", time.Millisecond)
		locktest.MustUnlock(t, locktest.MustLock(t, other.NewLock("lock 6")))
		locktest.WantErr(t, leases[6].Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		if err := c.Shutdown(bg); err == nil {
			t.Error("a second Shutdown does not say that locks were left")
		}
		for _, lease := range leases[:5] {
			_ = lease.Unlock(bg)
		}
		if err := c.Shutdown(bg); err != nil {
			t.Error("all is unlocked:", err)
		}
	})
}

// Unlock neither hangs nor panics when the client has stopped and Redis is out of
// reach, or the go-redis client is closed.
func TestUnlockOfAStoppedClientWithoutRedis(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	c := locktest.NewClient(t, rdb, rlock.WithUnlockTimeout(200*time.Millisecond))
	hung, closed := locktest.MustLock(t, c.NewLock("hung")), locktest.MustLock(t, c.NewLock("closed"))
	locktest.Stop(c)
	b.Real.Pause()
	locktest.WantErr(t, hung.Unlock(bg), rlock.ErrUnreachable)
	b.Real.Resume()
	_ = rdb.Close()
	locktest.WantErr(t, closed.Unlock(bg), redis.ErrClosed, nil, rlock.ErrClosed)
	if theirs, ours := redis.ErrClosed.Error(), rlock.ErrClosed.Error(); strings.Contains(theirs, ours) {
		t.Errorf("%q reads as %q", theirs, ours)
	}
	locktest.WantErr(t, closed.Unlock(bg), rlock.ErrUnlocked)
}

// A goroutine that hangs in go-redis has nothing to do with the locks.
func TestCloseAfterALostReply(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, plain := b.Faulty(t, rlock.WithCommandTimeout(600*time.Millisecond))
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.SwallowReply)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a")))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		locktest.OnlyTombstones(t, plain)
	})
}

// A call that hangs does not keep the other holders from being told.
func TestShutdownNotifiesHoldersDespiteAHungCall(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, plain := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second))
		lease := locktest.MustLock(t, c.NewLock("a"))
		hung := make(chan struct{}, 10)
		id := locktest.SHA("lock/enter")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) {
				hung <- struct{}{}
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		called := make(chan error, 1)
		go func() { _, err := c.NewLock("b").Lock(ctx); called <- err }()
		<-hung
		end, expire := context.WithCancel(bg)
		done := locktest.ShutDown(end, c, lease)
		locktest.MustUnlock(t, lease)
		if plain.Exists(bg, "a").Val() != 0 {
			t.Error("the lock is still there")
		}
		locktest.StillRunning(t, done) // the acquire may yet be granted
		expire()
		if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "call") {
			t.Error(err)
		}
		cancel()
		locktest.WantEnded(t, <-called, context.Canceled)
	})
}

// An Unlock that Redis has not confirmed goes on in the background, and Shutdown
// waits for it, however late it began.
func TestShutdownWaitsForReleasesThatAreNotConfirmed(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, plain := b.Faulty(t, rlock.WithUnlockTimeout(200*time.Millisecond))
		var broken atomic.Bool
		broken.Store(true)
		release, abandon := locktest.SHA("lock/release"), locktest.SHA("lock/abandon")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if broken.Load() && (cmd.IsScript(release) || cmd.IsScript(abandon)) {
				return faultproxy.ResetBefore
			}
			return faultproxy.Pass
		})
		early, late := locktest.MustLock(t, c.NewLock("early")), locktest.MustLock(t, c.NewLock("late"))
		locktest.WantErr(t, early.Unlock(bg), rlock.ErrUnreachable)
		done := locktest.ShutDown(bg, c, late)
		locktest.WantErr(t, late.Unlock(bg), rlock.ErrUnreachable)
		if n := plain.Exists(bg, "early", "late").Val(); n != 2 {
			t.Errorf("%d locks are there, want both", n)
		}
		locktest.StillRunning(t, done)
		broken.Store(false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		locktest.OnlyTombstones(t, plain)
	})
}

// A re-entry that is under way gives a lease that has ended, and is unlocked as any
// other.
func TestReentryUnderWayWhenShutdownBegins(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, plain := b.Faulty(t, rlock.WithCommandTimeout(10*time.Second), rlock.WithUnlockTimeout(10*time.Second))
		l := c.NewLock("a")
		outer := locktest.MustLock(t, l)
		again := make(chan struct{}, 10)
		id := locktest.SHA("lock/reenter")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) {
				again <- struct{}{}
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		entered := make(chan *rlock.Lease, 1)
		// Of the owner, not of the lease, whose context Shutdown ends.
		ctx := context.WithoutCancel(outer.Context(bg))
		go func() { entered <- locktest.MustLockCtx(t, ctx, l) }()
		<-again
		done := locktest.ShutDown(bg, c, outer)
		proxy.Handle(nil)
		inner := <-entered // by its second copy
		locktest.WantErr(t, inner.Err(), rlock.ErrClosed)
		<-inner.Done()
		locktest.MustUnlock(t, outer)
		locktest.StillRunning(t, done)
		locktest.MustUnlock(t, inner)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		locktest.OnlyTombstones(t, plain)
	})
}

// The members of a MultiLock are held until its holder unlocks, whichever client
// shuts down.
func TestMultiLockIsHeldWhileAMembersClientShutsDown(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for at := range 2 {
			rdb := b.Client(t)
			clients := []*rlock.Client{locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)}
			m := locktest.NewMultiLock(t, clients[0].NewLock("a"), clients[1].NewLock("b"))
			lease := locktest.MustLock(t, m)
			ctx := lease.Context(bg)
			done := locktest.ShutDown(bg, clients[at], lease)
			<-ctx.Done()
			locktest.WantErr(t, context.Cause(ctx), rlock.ErrClosed)
			locktest.WantErr(t, lease.Err(), rlock.ErrClosed, nil, rlock.ErrLeaseLost)
			other := locktest.NewClient(t, rdb)
			for _, name := range []string{"a", "b"} {
				_, err := other.NewLock(name).TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
			}
			locktest.StillRunning(t, done)
			locktest.MustUnlock(t, lease)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			locktest.MustBeEmpty(t, rdb)

			// A loss of one gives the rest back, though the holder was told to leave.
			lease = locktest.MustLock(t, locktest.NewMultiLock(t, clients[1-at].NewLock("a"), other.NewLock("b")), rlock.WithLease(30*time.Second))
			done = locktest.ShutDown(bg, clients[1-at], lease)
			if freed, err := locktest.NewClient(t, rdb).NewLock("b").ForceUnlock(bg); !freed || err != nil {
				t.Fatal(freed, err)
			}
			locktest.WantErr(t, lease.Members()[1].Extend(bg, time.Minute), rlock.ErrLeaseLost)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			locktest.Eventually(t, "the loss is told", func() bool { return errors.Is(lease.Err(), rlock.ErrLeaseLost) })
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			locktest.MustBeEmpty(t, rdb)
		}
	})
}

// A server that is busy, or cannot save, has not run the command.
func TestReleaseIsRepeatedWhileTheServerRefuses(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
	} {
		t.Run(reply[:4], func(t *testing.T) {
			b := locktest.OnMiniredis(t)
			c := b.NewClient(t, rlock.WithUnlockTimeout(locktest.Ample(2*time.Second)))
			lease := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(rlock.MaxLease))
			b.Mini.SetError(reply)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed, rlock.ErrRefused, nil, rlock.ErrUnreachable)
			b.Mini.SetError("")
			locktest.Eventually(t, "it is released", func() bool { return !b.Mini.Exists("a") })
		})
	}
}

// Two copies of a release that find nothing there mean a loss: only a copy
// that was never answered could have ended the hold.
func TestSlowUnlockOfALostLockSaysSo(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, plain := b.Client(t), b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithUnlockTimeout(6*time.Second))
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a"))) // loads the scripts
		lease := locktest.MustLock(t, c.NewLock("a"))
		plain.Del(bg, "a")
		other := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		var copies atomic.Int32
		again := make(chan struct{})
		rdb.(*redis.Client).AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
			if !locktest.Runs(cmd, "lock/release") {
				return next()
			}
			if copies.Add(1) == 2 {
				close(again)
				return next()
			}
			err := next()
			<-again // slow enough for a second copy; nothing is lost
			return err
		}})
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		if n := copies.Load(); n != 2 {
			t.Fatalf("%d copies were sent", n)
		}
		locktest.MustUnlock(t, other)
	})
}

// A copy that the server refused has not ended the hold either.
func TestUnlockOfALostLockWithARefusedCopySaysSo(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	c := locktest.NewClient(t, rdb, rlock.WithUnlockTimeout(2*time.Second))
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("a"))) // loads the scripts
	lease := locktest.MustLock(t, c.NewLock("a"))
	b.Mini.Del("a")
	var copies atomic.Int32
	first := make(chan struct{})
	rdb.(*redis.Client).AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
		if !locktest.Runs(cmd, "lock/release") {
			return next()
		}
		if copies.Add(1) == 1 {
			defer close(first)
			err := next()
			time.Sleep(1200 * time.Millisecond) // slow enough for a second copy
			return err
		}
		<-first
		time.Sleep(100 * time.Millisecond) // so that the first answer is dealt with
		return refusal("LOADING Redis is loading the dataset in memory")
	}})
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	if n := copies.Load(); n != 2 {
		t.Fatalf("%d copies were sent", n)
	}
}

// refusal is an error reply of a server.
type refusal string

func (r refusal) Error() string { return string(r) }

func (refusal) RedisError() {}

func TestForceUnlockIfWithALostReplyDoesNotSayThatItWasNotHeld(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		c := locktest.NewClient(t, rdb)
		var lost atomic.Bool
		rdb.(*redis.Client).AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if err == nil && strings.HasPrefix(cmd.Name(), "eval") && lost.CompareAndSwap(false, true) {
				cmd.SetErr(io.EOF)
				return io.EOF
			}
			return err
		}})
		_, err := c.NewLock("a").ForceUnlockIf(bg, lease.HoldID())
		locktest.WantErr(t, err, rlock.ErrUnreachable)
	})
}

// A log handler that blocks holds up nobody else's renewals and losses.
func TestBlockedLoggerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		h := &blockedHandler{entered: make(chan struct{}), leave: make(chan struct{})}
		const term = time.Minute
		var clock locktest.Clock
		c := b.NewClient(t, clock.Option(), rlock.WithWatchdogLease(term), rlock.WithLogger(slog.New(h)))
		other := locktest.MustLock(t, c.NewLock("b"))
		lost := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(term/6))
		clock.Forward(term / 6)
		<-h.entered
		locktest.WantErr(t, lost.Err(), rlock.ErrExpired) // the lease can be looked at meanwhile
		for range 4 {
			was := other.Deadline()
			clock.Forward(term / 3)
			locktest.Eventually(t, "the other is renewed", func() bool { return other.Deadline().After(was) })
		}
		locktest.MustUnlock(t, other)
		close(h.leave)
	})
}

type blockedHandler struct {
	seen           atomic.Bool
	entered, leave chan struct{}
}

func (*blockedHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *blockedHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *blockedHandler) WithGroup(string) slog.Handler { return h }

func (h *blockedHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && h.seen.CompareAndSwap(false, true) {
		close(h.entered)
		<-h.leave
	}
	return nil
}

// ofLease is a context of a user's own that ends with a lease.
type ofLease struct {
	context.Context
	lease *rlock.Lease
}

func (c ofLease) Done() <-chan struct{} { return c.lease.Done() }

func (c ofLease) Err() error { return c.lease.Err() }

func TestContextWhoseParentCallsTheLease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	ctx := lease.Context(ofLease{bg, lease})
	locktest.MustUnlock(t, lease)
	<-ctx.Done()
}

func TestShutdownEndsLeasesWakesEverybodyAndWaitsForUnlocks(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		other := b.NewClient(t)
		taken := locktest.MustLock(t, other.NewLock("taken"))
		var leases []*rlock.Lease
		for i := range 300 { // more than one batch
			leases = append(leases, locktest.MustLock(t, c.NewLock(fmt.Sprint("l", i))))
		}
		inner := locktest.MustLockCtx(t, leases[0].Context(bg), c.NewLock("l0"))
		ctx := leases[1].Context(bg)
		waits := make(chan error, 10)
		for range cap(waits) {
			go func() { _, err := c.NewLock("taken").Lock(bg); waits <- err }()
		}
		locktest.Eventually(t, "all wait", func() bool { s, _ := c.NewLock("taken").State(bg); return s.Waiters == cap(waits) })
		done := make(chan error, 1)
		go func() { done <- c.Shutdown(bg) }()
		for range cap(waits) {
			locktest.WantErr(t, <-waits, rlock.ErrClosed)
		}
		for _, lease := range append(leases, inner) {
			<-lease.Done()
			locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
		}
		<-ctx.Done()
		locktest.WantErr(t, context.Cause(ctx), rlock.ErrClosed)
		for i := range leases {
			if rdb.Exists(bg, fmt.Sprint("l", i)).Val() != 1 {
				t.Fatalf("l%d was freed under its holder", i)
			}
		}
		_, err := c.NewLock("a").Lock(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
		_, err = c.NewLock("l0").Lock(leases[0].Context(bg))
		locktest.WantErr(t, err, rlock.ErrClosed)
		_, err = c.NewLock("a").State(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
		locktest.WantErr(t, leases[2].Extend(bg, time.Minute), rlock.ErrClosed)
		locktest.MustUnlock(t, inner)
		for i, lease := range leases {
			select {
			case err := <-done:
				t.Fatalf("Shutdown returned %v while %d locks are held", err, len(leases)-i)
			default:
			}
			locktest.MustUnlock(t, lease)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, key := range locktest.Keys(t, rdb) {
			if key != "taken" && !strings.Contains(key, ":rlock:gone:") { // of what a busy machine sent twice
				t.Fatalf("left: %q", key)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal("a second Shutdown:", err)
		}
		if err := rdb.Ping(bg).Err(); err != nil {
			t.Fatal("the caller's client was touched:", err)
		}
		locktest.MustUnlock(t, taken)
	})
}

func TestShutdownWhileLocksAreTakenLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		for range 10 {
			c := locktest.NewClient(t, rdb)
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := 0; ; i++ {
						lease, err := c.NewLock(fmt.Sprint(g%3, i%2)).Lock(bg)
						if errors.Is(err, rlock.ErrClosed) {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						if i%3 == 0 && g < 3 {
							<-lease.Done() // until Shutdown
						}
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			locktest.Eventually(t, "something is held", func() bool { return len(locktest.Keys(t, rdb)) > 0 })
			if err := c.Shutdown(bg); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			locktest.OnlyTombstones(t, rdb) // of grants that came too late
		}
	})
}

// watched is a clock that tells who reads it.
type watched struct {
	locktest.Clock
	read atomic.Pointer[func()]
}

func (c *watched) Now() time.Time {
	if read := c.read.Load(); read != nil {
		(*read)()
	}
	return c.Clock.Now()
}

// The caller finds out that its lease is over while the client shuts down, and a copy of the acquire is
// under way still. Shutdown waits until the copy cannot take the lock for nobody, although the hold is
// over.
func TestShutdownDuringALossStopsLateCopies(t *testing.T) {
	locktest.Thorough(t)
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		clock := &watched{}
		c, proxy, rdb := b.Faulty(t, rlock.WithWatchdogLease(time.Hour), seam.Option(seam.Env{Clock: clock, Work: clock.Work}).(rlock.Option))
		locktest.OnNth(t, proxy, "lock/enter", 1, faultproxy.Hold)
		lease := locktest.MustLock(t, c.NewLock("late"))
		shutdown := make(chan error, 1)
		go func() { shutdown <- c.Shutdown(bg) }()
		<-lease.Done()
		locktest.StillRunning(t, shutdown)

		losing := false
		stopped := func() { // whoever loses the hold, where Shutdown could go on
			if !strings.Contains(string(debug.Stack()), ".loseLocked(") {
				return
			}
			losing = true
			if !rlock.Idle(c) {
				return
			}
			select {
			case err := <-shutdown:
				shutdown <- err
			case <-time.After(locktest.Patience):
				t.Error("Shutdown does not return")
			}
		}
		clock.Rest(t)
		clock.Skip(time.Hour)
		clock.read.Store(&stopped)
		locktest.WantErr(t, lease.Err(), rlock.ErrExpired)
		clock.read.Store(nil)
		clock.Forward(time.Minute / 2) // the clean-up begins when the lease is over in Redis
		if !losing {
			t.Fatal("the loss did not read the clock")
		}
		if err := <-shutdown; err != nil {
			t.Fatal(err)
		}
		locktest.HeldUp(t, proxy, 1)
		rdb.Del(bg, "late") // its lease is over there too
		proxy.Release()
		if n := rdb.Exists(bg, "late").Val(); n != 0 {
			t.Error("a late copy has taken the lock for nobody")
		}
	})
}

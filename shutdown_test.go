package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
)

// scriptHook stands between a client and its connections, to lose or hold up
// what it names.
type scriptHook struct {
	one  func(cmd redis.Cmder, next func() error) error
	pipe func(cmds []redis.Cmder, next func() error) error
}

func (h *scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.one == nil {
			return next(ctx, cmd)
		}
		return h.one(cmd, func() error { return next(ctx, cmd) })
	}
}

func (h *scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.pipe == nil {
			return next(ctx, cmds)
		}
		return h.pipe(cmds, func() error { return next(ctx, cmds) })
	}
}

// runs reports whether a command runs a script by its hash.
func runs(cmd redis.Cmder, script string) bool {
	return cmd.Name() == "evalsha" && cmd.Args()[1] == sha(script)
}

// shutDown begins a Shutdown, and returns when its leases have been told.
func shutDown(ctx context.Context, c *rlock.Client, leases ...*rlock.Lease) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.Shutdown(ctx) }()
	for _, l := range leases {
		<-l.Done()
	}
	return done
}

// running fails the test if Shutdown has returned.
func running(t testing.TB, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("Shutdown has returned (%v) while something is held", err)
	default:
	}
}

// Each type of lock stays its holder's, and is renewed, until it is unlocked.
func TestShutdownFreesNoLockUnderItsHolder(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		other := b.newClient(t)
		for _, k := range typesOfLocks {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				c := b.newClient(t, rlock.WithWatchdogLease(600*time.Millisecond), rlock.WithUnlockTimeout(10*time.Second))
				l, name := k.open(c, k.name), k.name
				lease := mustLock(t, l)
				nested := mustLockCtx(t, lease.Context(bg), l)
				ctx := nested.Context(bg)
				done := shutDown(bg, c, lease, nested)
				<-ctx.Done()
				for _, err := range []error{lease.Err(), nested.Err(), context.Cause(ctx), lease.Extend(bg, time.Minute)} {
					wantErr(t, err, rlock.ErrClosed, nil, rlock.ErrLeaseLost)
				}
				for range 4 { // so that the first lease is over
					was := lease.Deadline()
					eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) })
					_, err := k.blocker(other, name).TryLock(bg)
					wantErr(t, err, rlock.ErrNotAcquired)
				}
				mustUnlock(t, lease)
				_, err := k.blocker(other, name).TryLock(bg)
				wantErr(t, err, rlock.ErrNotAcquired)
				running(t, done)
				mustUnlock(t, nested)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				wantErr(t, nested.Unlock(bg), rlock.ErrUnlocked)
				mustUnlock(t, mustLock(t, k.blocker(other, name)))
			})
		}
	})
}

// A loss is still told to a holder that was asked to leave.
func TestLossDuringShutdown(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c := b.newClient(t, rlock.WithWatchdogLease(ample(1500*time.Millisecond)))
		removed := mustLock(t, c.NewLock("removed"))
		fixed := mustLock(t, c.NewLock("fixed"), rlock.WithLease(200*time.Millisecond))
		done := shutDown(bg, c, removed, fixed)
		b.client(t).Del(bg, "removed")
		eventually(t, "the losses are seen", func() bool {
			return errors.Is(removed.Err(), rlock.ErrLeaseLost) && errors.Is(fixed.Err(), rlock.ErrLeaseLost)
		})
		wantErr(t, removed.Err(), rlock.ErrClosed, rlock.ErrRemoved)
		wantErr(t, fixed.Err(), rlock.ErrClosed, rlock.ErrExpired)
		if err := <-done; err != nil {
			t.Fatal("nothing is held any more:", err)
		}
		wantErr(t, removed.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		wantErr(t, fixed.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
	})
}

// A renewed hold that was freed by force keeps Shutdown waiting until its next renewal
// at most. Nobody asks after a fixed one: it counts as held until its holder unlocks.
func TestShutdownBesideForcedHolds(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, other := b.newClient(t, rlock.WithWatchdogLease(ample(1500*time.Millisecond))), b.newClient(t)
		renewed := mustLock(t, c.NewLock("renewed"))
		fixed := mustLock(t, c.NewLock("fixed"), rlock.WithLease(time.Minute))
		for _, name := range []string{"renewed", "fixed"} {
			if was, err := other.NewLock(name).ForceUnlock(bg); !was || err != nil {
				t.Fatal(name, was, err)
			}
		}
		done := shutDown(bg, c, renewed, fixed)
		eventually(t, "the loss is seen", func() bool { return errors.Is(renewed.Err(), rlock.ErrRemoved) })
		running(t, done)
		wantErr(t, fixed.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		if err := <-done; err != nil {
			t.Fatal("nothing is held any more:", err)
		}
	})
}

// What Shutdown has no time for is named, runs out by its lease, and can be
// unlocked until then.
func TestShutdownWithoutTimeNamesWhatIsHeld(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, other := b.newClient(t, rlock.WithWatchdogLease(time.Second)), b.newClient(t)
		var leases []*rlock.Lease
		for i := range 7 {
			leases = append(leases, mustLock(t, c.NewLock(fmt.Sprint("lock ", i))))
		}
		ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
		defer cancel()
		err := <-shutDown(ctx, c, leases...)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		for _, says := range []string{": 7 (", `"lock 0", "lock 1", "lock 2", "lock 3", "lock 4", ...)`} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("the error does not say %s: %v", says, err)
			}
		}
		for _, lease := range leases {
			wantErr(t, lease.Err(), rlock.ErrClosed)
		}
		if _, err := other.NewLock("lock 6").TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Error("the lock was taken from its holder:", err)
		}
		mustUnlock(t, leases[5])
		mustUnlock(t, mustLock(t, other.NewLock("lock 5"), rlock.WithWait(0)))
		eventually(t, "the lease is over", func() bool { return errors.Is(leases[6].Err(), rlock.ErrExpired) })
		mustUnlock(t, mustLock(t, other.NewLock("lock 6")))
		wantErr(t, leases[6].Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
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
	b := onServer(t)
	rdb := b.client(t)
	c := newClientOn(t, rdb, rlock.WithUnlockTimeout(200*time.Millisecond))
	hung, closed := mustLock(t, c.NewLock("hung")), mustLock(t, c.NewLock("closed"))
	stop(c)
	b.real.Pause()
	wantErr(t, hung.Unlock(bg), rlock.ErrUnreachable)
	b.real.Resume()
	_ = rdb.Close()
	wantErr(t, closed.Unlock(bg), redis.ErrClosed, nil, rlock.ErrClosed)
	if theirs, ours := redis.ErrClosed.Error(), rlock.ErrClosed.Error(); strings.Contains(theirs, ours) {
		t.Errorf("%q reads as %q", theirs, ours)
	}
	wantErr(t, closed.Unlock(bg), rlock.ErrUnlocked)
}

// A goroutine that hangs in go-redis has nothing to do with the locks.
func TestCloseAfterALostReply(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, plain := b.faulty(t, rlock.WithCommandTimeout(600*time.Millisecond))
		onNth(t, proxy, "acquire", 1, faultproxy.SwallowReply)
		mustUnlock(t, mustLock(t, c.NewLock("a")))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		onlyTombstones(t, plain)
	})
}

// A call that hangs does not keep the other holders from being told.
func TestShutdownTellsHoldersBesideAHungCall(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, plain := b.faulty(t, rlock.WithCommandTimeout(20*time.Second))
		lease := mustLock(t, c.NewLock("a"))
		hung := make(chan struct{}, 10)
		id := sha("acquire")
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
		done := shutDown(end, c, lease)
		mustUnlock(t, lease)
		if plain.Exists(bg, "a").Val() != 0 {
			t.Error("the lock is still there")
		}
		running(t, done) // the acquire may yet be granted
		expire()
		if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "call") {
			t.Error(err)
		}
		cancel()
		wantErr(t, <-called, rlock.ErrNotAcquired)
	})
}

// An Unlock that Redis has not confirmed goes on in the background, and Shutdown
// waits for it, however late it began.
func TestShutdownWaitsForReleasesThatAreNotConfirmed(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, plain := b.faulty(t, rlock.WithUnlockTimeout(200*time.Millisecond))
		var broken atomic.Bool
		broken.Store(true)
		release, abandon := sha("release"), sha("abandon")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if broken.Load() && (cmd.IsScript(release) || cmd.IsScript(abandon)) {
				return faultproxy.ResetBefore
			}
			return faultproxy.Pass
		})
		early, late := mustLock(t, c.NewLock("early")), mustLock(t, c.NewLock("late"))
		wantErr(t, early.Unlock(bg), rlock.ErrUnreachable)
		done := shutDown(bg, c, late)
		wantErr(t, late.Unlock(bg), rlock.ErrUnreachable)
		if n := plain.Exists(bg, "early", "late").Val(); n != 2 {
			t.Errorf("%d locks are there, want both", n)
		}
		running(t, done)
		broken.Store(false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		onlyTombstones(t, plain)
	})
}

// A re-entry that is under way gives a lease that has ended, and is unlocked as any
// other.
func TestReentryUnderWayWhenShutdownBegins(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		c, proxy, plain := b.faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(20*time.Second))
		l := c.NewLock("a")
		outer := mustLock(t, l)
		again := make(chan struct{}, 10)
		id := sha("acquire")
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
		go func() { entered <- mustLockCtx(t, ctx, l) }()
		<-again
		done := shutDown(bg, c, outer)
		proxy.Handle(nil)
		inner := <-entered // by its second copy
		wantErr(t, inner.Err(), rlock.ErrClosed)
		<-inner.Done()
		mustUnlock(t, outer)
		running(t, done)
		mustUnlock(t, inner)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		onlyTombstones(t, plain)
	})
}

// The members of a MultiLock are held until its holder unlocks, whichever client
// shuts down.
func TestMultiLockIsHeldWhileAMembersClientShutsDown(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		for at := range 2 {
			rdb := b.client(t)
			clients := []*rlock.Client{newClientOn(t, rdb), newClientOn(t, rdb)}
			m := multi(t, clients[0].NewLock("a"), clients[1].NewLock("b"))
			lease := mustLock(t, m)
			ctx := lease.Context(bg)
			done := shutDown(bg, clients[at], lease)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), rlock.ErrClosed)
			wantErr(t, lease.Err(), rlock.ErrClosed, nil, rlock.ErrLeaseLost)
			other := newClientOn(t, rdb)
			for _, name := range []string{"a", "b"} {
				_, err := other.NewLock(name).TryLock(bg)
				wantErr(t, err, rlock.ErrNotAcquired)
			}
			running(t, done)
			mustUnlock(t, lease)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			mustBeEmpty(t, rdb)

			// A loss of one gives the rest back, though the holder was told to leave.
			lease = mustLock(t, multi(t, clients[1-at].NewLock("a"), other.NewLock("b")), rlock.WithLease(30*time.Second))
			done = shutDown(bg, clients[1-at], lease)
			if freed, err := newClientOn(t, rdb).NewLock("b").ForceUnlock(bg); !freed || err != nil {
				t.Fatal(freed, err)
			}
			wantErr(t, lease.Members()[1].Extend(bg, time.Minute), rlock.ErrLeaseLost)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			eventually(t, "the loss is told", func() bool { return errors.Is(lease.Err(), rlock.ErrLeaseLost) })
			wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			mustBeEmpty(t, rdb)
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
			b := onMiniredis(t)
			c := b.newClient(t, rlock.WithUnlockTimeout(100*time.Millisecond))
			lease := mustLock(t, c.NewLock("a"), rlock.WithLease(rlock.MaxLease))
			b.mini.SetError(reply)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnreachable)
			b.mini.SetError("")
			eventually(t, "it is released", func() bool { return !b.mini.Exists("a") })
		})
	}
}

// Two copies of a release that find nothing there mean a loss: only a copy
// that was never answered could have ended the hold.
func TestSlowUnlockOfALostLockSaysSo(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb, plain := b.client(t), b.client(t)
		c := newClientOn(t, rdb, rlock.WithUnlockTimeout(2*time.Second))
		mustUnlock(t, mustLock(t, c.NewLock("a"))) // loads the scripts
		lease := mustLock(t, c.NewLock("a"))
		plain.Del(bg, "a")
		other := mustLock(t, b.newClient(t).NewLock("a"))
		var copies atomic.Int32
		rdb.(*redis.Client).AddHook(&scriptHook{one: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if runs(cmd, "release") && copies.Add(1) == 1 {
				time.Sleep(1300 * time.Millisecond) // slow enough for a second copy; nothing is lost
			}
			return err
		}})
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		if n := copies.Load(); n != 2 {
			t.Fatalf("%d copies were sent", n)
		}
		mustUnlock(t, other)
	})
}

// A copy that the server refused has not ended the hold either.
func TestUnlockOfALostLockWithARefusedCopySaysSo(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	rdb := b.client(t)
	c := newClientOn(t, rdb, rlock.WithUnlockTimeout(2*time.Second))
	mustUnlock(t, mustLock(t, c.NewLock("a"))) // loads the scripts
	lease := mustLock(t, c.NewLock("a"))
	b.mini.Del("a")
	var copies atomic.Int32
	first := make(chan struct{})
	rdb.(*redis.Client).AddHook(&scriptHook{one: func(cmd redis.Cmder, next func() error) error {
		if !runs(cmd, "release") {
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
	wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	if n := copies.Load(); n != 2 {
		t.Fatalf("%d copies were sent", n)
	}
}

// refusal is an error reply of a server.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func TestForceUnlockIfWithALostReplyDoesNotSayThatItWasNotHeld(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		lease := mustLock(t, b.newClient(t).NewLock("a"))
		c := newClientOn(t, rdb)
		var lost atomic.Bool
		rdb.(*redis.Client).AddHook(&scriptHook{one: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if err == nil && strings.HasPrefix(cmd.Name(), "eval") && lost.CompareAndSwap(false, true) {
				cmd.SetErr(io.EOF)
				return io.EOF
			}
			return err
		}})
		_, err := c.NewLock("a").ForceUnlockIf(bg, lease.Owner())
		wantErr(t, err, rlock.ErrUnreachable)
	})
}

// A log handler that blocks holds up nobody else's renewals and losses.
func TestBlockedLoggerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		h := &blockedHandler{entered: make(chan struct{}), leave: make(chan struct{})}
		c := b.newClient(t, rlock.WithWatchdogLease(600*time.Millisecond), rlock.WithLogger(slog.New(h)))
		other := mustLock(t, c.NewLock("b"))
		lost := mustLock(t, c.NewLock("a"), rlock.WithLease(50*time.Millisecond))
		<-h.entered
		wantErr(t, lost.Err(), rlock.ErrExpired) // the lease can be looked at meanwhile
		for range 4 {
			was := other.Deadline()
			eventually(t, "the other is renewed", func() bool { return other.Deadline().After(was) })
		}
		mustUnlock(t, other)
		close(h.leave)
	})
}

type blockedHandler struct {
	seen           atomic.Bool
	entered, leave chan struct{}
}

func (*blockedHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *blockedHandler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h *blockedHandler) WithGroup(string) slog.Handler          { return h }
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
func (c ofLease) Err() error            { return c.lease.Err() }

func TestContextWhoseParentLooksAtTheLease(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	lease := mustLock(t, b.newClient(t).NewLock("a"))
	ctx := lease.Context(ofLease{bg, lease})
	mustUnlock(t, lease)
	<-ctx.Done()
}

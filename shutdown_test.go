package rlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
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

// The answer to a renewal that was under way is not that to the release which
// Shutdown has sent since: that one must still be repeated if it fails.
func TestAnswerToARenewalDoesNotEndAShutdownsRelease(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb, plain := b.client(t), b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(3*time.Second))
		mustUnlock(t, mustLock(t, c.NewLock("a"))) // loads the scripts
		renewed, answer := make(chan struct{}), make(chan struct{})
		released := make(chan struct{})
		var renewals, releases atomic.Int32
		rdb.(*redis.Client).AddHook(&scriptHook{pipe: func(cmds []redis.Cmder, next func() error) error {
			switch {
			case cmds[0].Name() == "evalsha" && runs(cmds[0], "renew") && renewals.Add(1) == 1:
				err := next()
				close(renewed)
				<-answer
				return err
			case runs(cmds[0], "release") && releases.Add(1) == 1:
				close(released)
				<-answer
				time.Sleep(100 * time.Millisecond) // so that the other answer is dealt with first
				for _, cmd := range cmds {
					cmd.SetErr(io.EOF)
				}
				return io.EOF
			}
			return next()
		}})
		mustLock(t, c.NewLock("a"))
		<-renewed
		done := make(chan error)
		go func() { done <- c.Shutdown(bg) }()
		<-released
		close(answer)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustBeEmpty(t, plain)
	})
}

func TestShutdownAfterOneThatHadNoTimeReturns(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	c := b.newClient(t)
	mustLock(t, c.NewLock("a"))
	b.mini.SetError("LOADING Redis is loading the dataset in memory")
	ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
	defer cancel()
	if err := c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	b.mini.SetError("")
	if err := c.Shutdown(bg); err == nil {
		t.Fatal("the hold was not released, and the second Shutdown does not say so")
	}
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

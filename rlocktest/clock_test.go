package rlocktest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/redis/go-redis/v9"
)

func TestCommandsAndRenewalsAreUnderWayUntilTheyAreDealtWith(t *testing.T) {
	srv := New(t)
	stops := &gate{entered: make(chan struct{}), leave: make(chan struct{})}
	client := srv.NewClient(rlock.WithAnonymity()) // its introduction would be work too
	srv.redises[len(srv.redises)-1].AddHook(stops)
	seen := func(what string) {
		t.Helper()
		<-stops.entered
		if len(srv.works.underWay()) == 0 {
			t.Errorf("%s is not seen", what)
		}
		stops.leave <- struct{}{}
	}

	locked := make(chan error, 1)
	go func() {
		_, err := client.NewLock("job").TryLock(context.Background())
		locked <- err
	}()
	seen("an acquire")
	seen("an acquire that was repeated because the script was not known")
	if err := <-locked; err != nil {
		t.Fatal(err)
	}

	advanced := make(chan struct{})
	go func() {
		defer close(advanced)
		srv.Advance(10 * time.Second)
	}()
	seen("a renewal")
	seen("a renewal that was repeated")
	<-advanced
	if len(srv.works.underWay()) > 0 {
		t.Error("work is seen where none is left")
	}
	stops.off.Store(true)
}

// gate stops each command after it has run.
type gate struct {
	entered, leave chan struct{}
	off            atomic.Bool
}

func (g *gate) stop(cmd string) {
	if g.off.Load() || !strings.HasPrefix(cmd, "eval") {
		return
	}
	g.entered <- struct{}{}
	<-g.leave
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer g.stop(cmd.Name())
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer g.stop(cmds[0].Name())
		return next(ctx, cmds)
	}
}

func TestTimersGoAlongWithJumps(t *testing.T) {
	c := newClock()
	timer := c.NewTimer(time.Hour)
	defer timer.Stop()
	start := c.Now()
	var told time.Time
	jump := func(d time.Duration) { c.jump(start.Add(d), func(now time.Time) { told = now }) }

	jump(59 * time.Minute)
	select {
	case <-timer.C():
		t.Fatal("fired after 59m of 1h")
	default:
	}
	if at, more := c.next(start.Add(2 * time.Hour)); !more || at.Sub(start).Round(time.Minute) != time.Hour {
		t.Errorf("next() = %v, %v after the start, want the timer's", at.Sub(start), more)
	}
	jump(time.Hour + time.Second)
	<-timer.C()
	if !c.due() {
		t.Error("due() is false although the owner has not dealt with the timer")
	}
	timer.Reset(time.Hour)
	if c.due() {
		t.Error("due() after Reset")
	}
	jump(time.Minute) // back: nothing happens
	if d := told.Sub(start).Round(time.Minute); d != time.Hour {
		t.Errorf("Redis was moved by %v, want 1h", d)
	}
}

func TestClosedClientDoesNotHoldUpTheClock(t *testing.T) {
	srv := New(t)
	if err := srv.NewClient().Close(); err != nil {
		t.Fatal(err)
	}
	srv.Advance(time.Second)
	if n := len(srv.works.underWay()); n > 0 {
		t.Errorf("%d works are left", n)
	}
}

// loseReplies loses the replies of single commands that ran.
type loseReplies struct{ on atomic.Bool }

func (*loseReplies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *loseReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && h.on.Load() {
			err = io.EOF
			cmd.SetErr(err)
		}
		return err
	}
}

func (*loseReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// An Extend without an answer may have run: its lease is cleaned up however
// long the outage lasts.
func TestUnansweredExtendIsCleanedUpAfterALongOutage(t *testing.T) {
	srv := New(t, rlock.WithCommandTimeout(100*time.Millisecond), rlock.WithUnlockTimeout(100*time.Millisecond))
	lose := &loseReplies{}
	srv.redises[1].AddHook(lose) // of the first client
	lease, err := srv.Client().NewLock("job").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	lose.on.Store(true)
	if err := lease.Extend(context.Background(), 24*time.Hour); !errors.Is(err, rlock.ErrUnreachable) {
		t.Fatal(err)
	}
	srv.Fail("LOADING Redis is loading the dataset in memory")
	lose.on.Store(false)
	if err := lease.Unlock(context.Background()); !errors.Is(err, rlock.ErrRefused) {
		t.Fatal(err)
	}
	srv.Advance(3 * time.Minute)
	srv.Recover()
	srv.Advance(10 * time.Second)
	if srv.mini.Exists("job") {
		t.Errorf("the lock is left for %v", srv.mini.TTL("job"))
	}
}

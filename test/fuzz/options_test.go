package fuzz

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock"
)

// numbers are the values of the options of a run.
type numbers struct {
	lease, wait, hold, first, second time.Duration
	count, other                     int
	factor                           float64
	mask                             uint16 // which options are given
}

// given returns the options whose bits are set, from bit n on.
func given[O any](v numbers, n int, opts ...O) (some []O) {
	for i, o := range opts {
		if v.mask>>(n+i)&1 == 1 {
			some = append(some, o)
		}
	}
	return some
}

func (v numbers) ofClient() []rlock.Option {
	return given(v, 0, rlock.WithWatchdogLease(v.first), rlock.WithCommandTimeout(v.second), rlock.WithUnlockTimeout(v.first), rlock.WithLongestPoll(v.second),
		rlock.WithWaiterLease(v.first), rlock.WithDrift(v.factor, v.second), rlock.WithReplicaAck(v.count, v.first), rlock.WithFailoverQuarantine(v.second))
}

// calls are acquires with options of the lock and of the call.
func (v numbers) calls(c *rlock.Client) []call {
	acquire := given[rlock.AcquireOption](v, 8, rlock.WithLease(v.lease), rlock.WithWait(v.wait))
	anyLock := given[rlock.AnyLockOption](v, 10, rlock.WithMaxHold(v.hold), rlock.WithNonReentrant())
	lock := given[rlock.LockOption](v, 10, rlock.WithMaxHold(v.hold), rlock.WithNonReentrant(), rlock.WithHandOver(v.count, v.first))
	spin := given[rlock.SpinLockOption](v, 10, rlock.WithMaxHold(v.hold), rlock.WithNonReentrant(), rlock.WithBackoff(rlock.ExponentialBackoff(v.first, v.second)))
	priority := given[rlock.PriorityLockOption](v, 10, rlock.WithMaxHold(v.hold), rlock.WithNonReentrant(), rlock.WithAging(v.first))
	permits := given[rlock.PermitSemaphoreOption](v, 10, rlock.WithMaxHold(v.hold), rlock.WithPermits(v.count), rlock.WithFairness())
	red := given[rlock.RedLockOption](v, 10, rlock.WithMaxHold(v.hold), rlock.WithQuorum(v.count), rlock.WithNodeTimeout(v.first), rlock.WithLongestLease(v.second), rlock.WithRestartQuarantine())
	of := func(l rlock.Locker) func(ctx context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) { return ofLease(l.Lock(ctx, acquire...)) }
	}
	return []call{
		{"Lock", of(c.NewLock("a", lock...))},
		{"FairLock", of(c.NewFairLock("a", anyLock...))},
		{"SpinLock", of(c.NewSpinLock("a", spin...))},
		{"FencedLock", of(c.NewFencedLock("a", anyLock...))},
		{"FairReadWriteLock", of(c.NewFairReadWriteLock("a", anyLock...).Reader)},
		{"PriorityLock", of(c.NewPriorityLock("a", priority...).At(v.other))},
		{"PermitSemaphore", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewPermitSemaphore("a", permits...).Acquire(ctx, v.other, acquire...))
		}},
		{"RedLock", func(ctx context.Context) (bool, error) {
			l, err := rlock.NewRedLock("a", []*rlock.Client{c}, red...)
			if err != nil {
				return false, err
			}
			return ofLease(l.Lock(ctx, acquire...))
		}},
		{"DoubleBarrier", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewDoubleBarrier("a", v.count).Enter(ctx, acquire...))
		}},
		{"Once", func(ctx context.Context) (bool, error) {
			_, ran, err := c.NewOnce("a", v.hold, rlock.WithMaxHold(v.first)).TryDo(ctx, func(context.Context) ([]byte, error) { return nil, nil })
			return ran, err
		}},
	}
}

// mustRefuse reports whether options that nearly all calls have are out of their bounds.
func (v numbers) mustRefuse(what string) bool {
	has := func(bit int) bool { return v.mask>>bit&1 == 1 }
	if what == "Once" {
		return v.hold < rlock.MinKeep || v.hold > rlock.MaxKeep
	}
	return has(8) && (v.lease < rlock.MinLease || v.lease > rlock.MaxLease) || has(9) && v.wait < 0 ||
		has(10) && v.hold != 0 && v.hold < rlock.MinLease && what != "DoubleBarrier"
}

// Every value of every option is refused before anything is sent, or the call fails only because Redis refuses.
func FuzzOptions(f *testing.F) {
	for _, d := range []time.Duration{0, -1, 1, time.Millisecond, 10 * time.Millisecond, time.Second, time.Minute, 24 * time.Hour, 25 * time.Hour, 1<<63 - 1, -1 << 63} {
		for _, mask := range []uint16{0, 1<<8 | 1<<9, 0xffff, 0xff00, 1 << 9, 1<<10 | 1<<12} {
			f.Add(int64(d), int64(d), int64(d), int64(time.Second), int64(d), int(d), 1, 0.01, mask)
		}
	}
	f.Fuzz(func(t *testing.T, lease, wait, hold, first, second int64, count, other int, factor float64, mask uint16) {
		v := numbers{time.Duration(lease), time.Duration(wait), time.Duration(hold), time.Duration(first), time.Duration(second), count, other, factor, mask}
		synctest.Test(t, func(t *testing.T) { checkOptions(t, v) }) // waits take no time
	})
}

func checkOptions(t *testing.T, v numbers) {
	c, server, err := newRefused(t, v.ofClient()...)
	if err != nil {
		if sent, _ := server.take(); sent > 0 || !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Fatalf("New: %v, after %d commands", err, sent)
		}
		c, server, _ = newRefused(t)
	}
	for _, call := range v.calls(c) {
		began := time.Now()
		held, err := call.do(bg)
		sent, _ := server.take()
		invalid := errors.Is(err, rlock.ErrInvalidArgument)
		switch {
		case held || err == nil:
			t.Fatalf("%s %+v: held although Redis refuses everything: %v", call.what, v, err)
		case !typed(err):
			t.Errorf("%s %+v: %v is of no kind", call.what, v, err)
		case invalid && sent > 0:
			t.Errorf("%s %+v is refused after %d commands: %v", call.what, v, sent, err)
		case !invalid && v.mustRefuse(call.what):
			t.Errorf("%s %+v is not refused: %v", call.what, v, err)
		}
		if passed := time.Since(began); passed > time.Minute {
			t.Errorf("%s %+v took %v", call.what, v, passed)
		}
	}
}

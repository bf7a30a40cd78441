package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// CountDownLatch lets goroutines in many processes wait until something was done a number of times, the
// counterpart of Redisson's RCountDownLatch. Without a count it is open. Details:
// https://go-rlock.github.io/rlock/latest/synchronizers/#countdownlatch
type CountDownLatch struct {
	named
	proto *protocol.Latch
}

// NewCountDownLatch returns a latch, which is open while its count is 0.
func (c *Client) NewCountDownLatch(name string) *CountDownLatch {
	l, names := newCore(c, protocol.LatchFamily, name, lockConfig{}, nil)
	return &CountDownLatch{named{l}, protocol.NewLatch(&l.c.site, names)}
}

// Name returns the name of the latch, with the prefix of the client.
func (l *CountDownLatch) Name() string { return coreOf(l).name() }

// TrySetCount sets the count, from 1 to MaxPermits, if the latch is open, and reports whether it did.
// For unknown outcomes see [Semaphore.TrySetPermits].
func (l *CountDownLatch) TrySetCount(ctx context.Context, n int) (bool, error) {
	return changeOnce(ctx, coreOf(l), checkCount("TrySetCount", n), func(op protocol.Op) protocol.Request[bool] { return l.proto.TrySet(op, int64(n)) }, nil)
}

// CountDown lowers the count by one, once even if replies are lost; at 0 the latch opens. It is bounded
// and repeated as [Semaphore.Release].
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := coreOf(l).check(ctx); err != nil {
		return err
	}
	return changeUntilConfirmed(ctx, coreOf(l), l.proto.CountDown)
}

// Count returns the count; 0 if the latch is open.
func (l *CountDownLatch) Count(ctx context.Context) (int, error) {
	r, err := ask(ctx, coreOf(l), func() protocol.Request[protocol.Remaining] { return l.proto.Remaining() })
	return int(max(r.Outcome.N, 0)), err
}

// Wait waits until the latch is open. The error matches ctx.Err(), ErrNotAcquired (WithWait is over) or
// ErrUnreachable, as from a [Locker].
func (l *CountDownLatch) Wait(ctx context.Context, opts ...WaitOption) error {
	if err := coreOf(l).check(ctx); err != nil {
		return err
	}
	return untilZero(ctx, coreOf(l), coreOf(l).id(), opts, l.proto, "left to count down: #")
}

// Delete opens the latch, also in Java, and reports whether there was a count.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	return changeOnce(ctx, coreOf(l), nil, func(op protocol.Op) protocol.Request[bool] { return l.proto.Delete(op) }, nil)
}

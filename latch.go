package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// CountDownLatch lets goroutines in many processes wait until something was done a number
// of times, the counterpart of Redisson's RCountDownLatch: Java processes can share it. It
// is open if it has no count: before TrySetCount, after as many calls of CountDown, and
// after Delete.
//
// Use a name for one type: see [Semaphore].
//
// In a cluster a latch whose name has a brace cannot be shared with Java, as Redisson's
// fails there.
type CountDownLatch struct {
	one  *core
	asks *protocol.Latch
}

// NewCountDownLatch returns the latch of a name, for which the rules of [Client.NewLock]
// hold. It sends nothing; invalid arguments are reported by the first call.
func (c *Client) NewCountDownLatch(name string, opts ...CountDownLatchOption) *CountDownLatch {
	l, names := newCore(c, latchFamily, name, lockConfig{}, noOptions(opts))
	return &CountDownLatch{l, protocol.NewLatch(&l.c.site, names)}
}

// Name returns the name of the latch, with the prefix of the client.
func (l *CountDownLatch) Name() string { return l.core().Name() }

func (l *CountDownLatch) core() *core {
	if l == nil {
		return nil
	}
	return l.one
}

// TrySetCount sets the count, between 1 and [MaxPermits], if the latch is open, and reports
// whether it did. If Redis gives no answer, or ctx ends, the outcome is unknown. When Redis
// answers again, the client sees to it that late copies of the request change nothing.
func (l *CountDownLatch) TrySetCount(ctx context.Context, n int) (bool, error) {
	if err := l.core().check(ctx); err != nil {
		return false, err
	}
	if err := l.core().checkCount("TrySetCount", n); err != nil {
		return false, err
	}
	return changeOnce(ctx, l.core(), func(op protocol.Op) protocol.Request[bool] { return l.asks.TrySet(op, int64(n)) }, l.asks.Seal)
}

// CountDown lowers the count by one, once even if replies are lost; at 0 the latch opens.
// If it is open, nothing happens. Like Unlock it works even if ctx has ended,
// WithUnlockTimeout bounds it, and if Redis does not confirm it the error matches
// ErrUnconfirmed, and it is repeated in the background: a count that was set meanwhile may
// be lowered instead.
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := l.core().check(ctx); err != nil {
		return err
	}
	return surely(ctx, l.core(), l.asks.CountDown, l.asks.Seal)
}

// Count returns the count; 0 if the latch is open.
func (l *CountDownLatch) Count(ctx context.Context) (int, error) {
	if err := l.core().check(ctx); err != nil {
		return 0, err
	}
	r, err := ask(ctx, l.core(), l.asks.Count())
	return int(max(r.Outcome, 0)), err
}

// Wait waits until the latch is open, ctx ends, or WithWait is over. It may miss that the
// latch was open if a new count is set at once. If ctx ends, the error matches that of the
// context, and if WithWait is over ErrNotAcquired; both say what is left of the count. If Redis
// gives no answer for as long as a watchdog lease, it matches ErrUnreachable.
func (l *CountDownLatch) Wait(ctx context.Context, opts ...WaitOption) error {
	if err := l.core().check(ctx); err != nil {
		return err
	}
	return untilZero(ctx, l.core(), opts, l.asks.Count, l.asks.Listen, "left to count down: #")
}

// Delete opens the latch, and frees all who wait, in Java too. It reports whether there was
// a count. Without an answer it is as with TrySetCount.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	if err := l.core().check(ctx); err != nil {
		return false, err
	}
	return changeOnce(ctx, l.core(), l.asks.Delete, l.asks.Seal)
}

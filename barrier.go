package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Barrier holds up goroutines in many processes while it is set. It stays set, without a
// limit of time, until somebody lifts it, not only who set it. It has keys of its own.
type Barrier struct {
	one  *core
	asks *protocol.Barrier
}

// NewBarrier returns the barrier of a name, for which the rules of [Client.NewLock] hold.
// It sends nothing; invalid arguments are reported by the first call.
func (c *Client) NewBarrier(name string, opts ...BarrierOption) *Barrier {
	l, names := newCore(c, barrierFamily, name, lockConfig{}, noOptions(opts))
	return &Barrier{l, protocol.NewBarrier(&l.c.site, names)}
}

// Name returns the name of the barrier, with the prefix of the client.
func (b *Barrier) Name() string { return b.core().Name() }

func (b *Barrier) core() *core {
	if b == nil {
		return nil
	}
	return b.one
}

// Set sets the barrier. If it is set, nothing changes. If Redis gives no answer, or ctx
// ends, the outcome is unknown. When Redis answers again, the client sees to it that late
// copies of the request change nothing.
func (b *Barrier) Set(ctx context.Context) error {
	return b.change(ctx, func(op protocol.Op) protocol.Request[protocol.Kept] { return b.asks.Set(op) })
}

// Lift lifts the barrier and lets all pass who wait. Otherwise it is as Set.
func (b *Barrier) Lift(ctx context.Context) error {
	return b.change(ctx, func(op protocol.Op) protocol.Request[protocol.Kept] { return b.asks.Lift(op) })
}

func (b *Barrier) change(ctx context.Context, to func(protocol.Op) protocol.Request[protocol.Kept]) error {
	if err := b.core().check(ctx); err != nil {
		return err
	}
	_, err := changeOnce(ctx, b.core(), to, b.asks.Seal)
	return err
}

// IsSet reports whether the barrier is set. It takes one request, and does not wait.
func (b *Barrier) IsSet(ctx context.Context) (bool, error) {
	if err := b.core().check(ctx); err != nil {
		return false, err
	}
	r, err := ask(ctx, b.core(), b.asks.IsSet())
	return r.Outcome > 0, err
}

// Wait waits until the barrier is not set, ctx ends, or WithWait is over. It may miss that
// the barrier was lifted if it is set again at once. Its errors are those of
// [CountDownLatch.Wait].
func (b *Barrier) Wait(ctx context.Context, opts ...WaitOption) error {
	if err := b.core().check(ctx); err != nil {
		return err
	}
	return untilZero(ctx, b.core(), opts, b.asks.IsSet, b.asks.Listen, "the barrier is set")
}

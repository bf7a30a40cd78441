package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Barrier holds up goroutines in many processes from Set until Lift, without a limit of time. Its keys are
// rlock's own.
type Barrier struct {
	named
	proto *protocol.Barrier
}

// NewBarrier returns a barrier, which holds callers up while it is set.
func (c *Client) NewBarrier(name string) *Barrier {
	l, names := newCore(c, protocol.BarrierFamily, name, lockConfig{}, nil)
	return &Barrier{named{l}, protocol.NewBarrier(&l.c.site, names)}
}

// Name returns the name of the barrier, with the prefix of the client.
func (b *Barrier) Name() string { return coreOf(b).name() }

// Set sets the barrier. An unknown outcome is as with [Semaphore.TrySetPermits].
func (b *Barrier) Set(ctx context.Context) error {
	return b.change(ctx, func(op protocol.Op) protocol.Request[protocol.Kept] { return b.proto.Set(op) })
}

// Lift lets all waiters pass. An unknown outcome is as with [Barrier.Set].
func (b *Barrier) Lift(ctx context.Context) error {
	return b.change(ctx, func(op protocol.Op) protocol.Request[protocol.Kept] { return b.proto.Lift(op) })
}

func (b *Barrier) change(ctx context.Context, to func(protocol.Op) protocol.Request[protocol.Kept]) error {
	_, err := changeOnce(ctx, coreOf(b), nil, to, nil)
	return err
}

// IsSet reports whether the barrier is set, and does not wait.
func (b *Barrier) IsSet(ctx context.Context) (bool, error) {
	r, err := ask(ctx, coreOf(b), func() protocol.Request[protocol.Remaining] { return b.proto.Remaining() })
	return r.Outcome.N > 0, err
}

// Wait waits until the barrier is not set, as Wait of a [CountDownLatch].
func (b *Barrier) Wait(ctx context.Context, opts ...WaitOption) error {
	if err := coreOf(b).check(ctx); err != nil {
		return err
	}
	return untilZero(ctx, coreOf(b), coreOf(b).id(), opts, b.proto, "the barrier is set")
}

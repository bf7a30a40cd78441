package permit

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

func work(context.Context) error { return nil }

type pool struct{ slots, shared *rlock.Semaphore }

func newPool(c *rlock.Client) *pool {
	return &pool{slots: c.NewSemaphore("slots", rlock.WithPermits(4)), shared: c.NewSemaphore("shared")}
}

func (p *pool) run(ctx context.Context) error {
	if err := p.slots.Acquire(ctx, 1); err != nil { // want `gone if this process dies`
		return err
	}
	defer p.slots.Release(ctx, 1)
	return work(ctx)
}

func local(ctx context.Context, c *rlock.Client) (err error) {
	s := c.NewSemaphore("converters", rlock.WithPermits(2))
	if err := s.TryAcquire(ctx, 1); err != nil { // want `gone if this process dies`
		return err
	}
	defer func() { err = errors.Join(err, s.Release(ctx, 1)) }()
	return work(ctx)
}

// What follows is right, or may be: Java may share the semaphore, or another process gives the permit back.

func (p *pool) withJava(ctx context.Context) error {
	if err := p.shared.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.shared.Release(ctx, 1)
	return work(ctx)
}

func (p *pool) send(ctx context.Context, push func(context.Context) error) error {
	if err := p.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	if err := push(ctx); err != nil {
		return errors.Join(err, p.slots.Release(ctx, 1))
	}
	return nil
}

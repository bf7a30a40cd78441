package anycontext

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

func work(context.Context) error { return nil }

func both(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err := work(lease.Context(ctx)); err != nil {
		_ = work(ctx) // want `work continues`
	}
	return errors.Join(work(ctx), lease.Unlock(ctx)) // want `work continues`
}

func bothInside(ctx context.Context, l *rlock.Lock) error {
	return rlock.Do(ctx, l, func(inner context.Context) error {
		return errors.Join(work(inner), work(ctx)) // want `work continues`
	})
}

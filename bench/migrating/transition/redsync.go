package transition

import (
	"context"
	"errors"

	"github.com/go-redsync/redsync/v4"
)

// Redsync is an Old: the lease is what redsync.WithExpiry sets.
type Redsync struct{ *redsync.Mutex }

func (r Redsync) Lock(ctx context.Context) error { return r.LockContext(ctx) }

func (r Redsync) Extend(ctx context.Context) (bool, error) {
	return held(r.ExtendContext(ctx))
}

func (r Redsync) Unlock(ctx context.Context) error {
	_, err := r.UnlockContext(ctx)
	return err
}

func held(ok bool, err error) (bool, error) {
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
		return false, nil
	}
	return ok, err
}

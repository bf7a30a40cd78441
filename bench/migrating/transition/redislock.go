package transition

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

// Redislock is an Old. Options needs a RetryStrategy, or Lock does not wait.
type Redislock struct {
	Client  *redislock.Client
	Key     string
	Lease   time.Duration
	Options *redislock.Options

	lock *redislock.Lock
}

func (r *Redislock) Lock(ctx context.Context) (err error) {
	r.lock, err = r.Client.Obtain(ctx, r.Key, r.Lease, r.Options)
	return err
}

func (r *Redislock) Extend(ctx context.Context) (bool, error) {
	err := r.lock.Refresh(ctx, r.Lease, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	}
	return err == nil, err
}

func (r *Redislock) Unlock(ctx context.Context) error {
	return r.lock.Release(ctx)
}

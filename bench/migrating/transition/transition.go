// Package transition holds two locks at the same time: one of the old library,
// and one of rlock.
package transition

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock"
)

// ErrLost: the old lock was lost, or could not be renewed in time.
var ErrLost = errors.New("the old lock was lost")

// Old is one hold of the old library. No two of its methods are called at the
// same time.
type Old interface {
	Lock(ctx context.Context) error // waits
	// Extend extends the lease by its whole length. After an error it is
	// unknown whether it did.
	Extend(ctx context.Context) (held bool, err error)
	Unlock(ctx context.Context) error
}

// Do runs fn under both locks. The context of fn ends if one of them is lost.
// The options are for the lock of rlock.
func Do(ctx context.Context, lock rlock.Locker, old Old, lease time.Duration,
	fn func(context.Context) error, opts ...rlock.AcquireOption) error {
	return rlock.Do(ctx, lock, func(ctx context.Context) (err error) {
		if err := old.Lock(ctx); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, old.Unlock(context.WithoutCancel(ctx)))
		}()

		// The lease counts from before the request that set it. When Lock was
		// granted is unknown, so a renewal comes first.
		began := time.Now()
		if held, err := old.Extend(ctx); err != nil || !held {
			return errors.Join(ErrLost, err)
		}
		inside, cancel := context.WithCancelCause(ctx)
		valid := lease * 9 / 10
		lost := time.AfterFunc(time.Until(began.Add(valid)), func() {
			cancel(ErrLost)
		})
		defer lost.Stop()

		renewed := make(chan struct{})
		go func() {
			defer close(renewed)
			tick := time.NewTicker(lease / 3)
			defer tick.Stop()
			for {
				select {
				case <-inside.Done():
					return
				case <-tick.C:
					began := time.Now()
					if held, err := old.Extend(inside); err == nil && !held {
						cancel(ErrLost)
					} else if err == nil && lost.Stop() {
						// In time. After an error the next tick tries again.
						lost.Reset(time.Until(began.Add(valid)))
					}
				}
			}
		}()
		defer func() { <-renewed }()
		defer cancel(nil) // also if fn panics

		err = fn(inside)
		if errors.Is(context.Cause(inside), ErrLost) {
			return errors.Join(ErrLost, err)
		}
		return err
	}, opts...)
}

package reports

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

// Report writes the report of a month, unless another process does.
func Report(ctx context.Context, locks *rlock.Client, month string,
	write func(context.Context) error) (written bool, err error) {
	lease, err := locks.NewLock("lock:report:" + month).TryLock(ctx)
	if errors.Is(err, rlock.ErrNotAcquired) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	// Unlock fails if the lock was lost.
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return true, write(lease.Context(ctx))
}

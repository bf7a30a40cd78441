package tables

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

// Clean cleans a table, unless another process does.
func Clean(ctx context.Context, locks *rlock.Client, table string,
	clean func(context.Context) error) (cleaned bool, err error) {

	lock := locks.NewLock("lock:clean:" + table)
	err = rlock.Do(ctx, lock, func(ctx context.Context) error {
		cleaned = true
		return clean(ctx)
	}, rlock.WithWait(0))
	if !cleaned && errors.Is(err, rlock.ErrNotAcquired) {
		return false, nil
	}
	return cleaned, err
}

package reports

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

// Report writes the report of a month, unless another process does.
func Report(ctx context.Context, locks *redislock.Client, month string,
	write func(context.Context) error) (written bool, err error) {
	lock, err := locks.Obtain(ctx, "report:"+month, time.Minute, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer func() { _ = lock.Release(context.WithoutCancel(ctx)) }()
	return true, write(ctx) // for a minute at most
}

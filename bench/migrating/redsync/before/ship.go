package orders

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
)

// Ship ships an order, and waits while another process does.
func Ship(ctx context.Context, locks *redsync.Redsync, order string,
	ship func(context.Context) error) error {

	lock := locks.NewMutex("order:"+order, redsync.WithExpiry(30*time.Second),
		redsync.WithTries(100), redsync.WithRetryDelay(100*time.Millisecond))
	if err := lock.LockContext(ctx); err != nil {
		return err
	}
	defer func() { _, _ = lock.UnlockContext(context.WithoutCancel(ctx)) }()
	return ship(ctx) // for 30 seconds at most
}

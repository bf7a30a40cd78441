package shops

import (
	"context"

	"github.com/redis/rueidis/rueidislock"
)

// Sync takes over the stock of a shop, and waits while another process does.
func Sync(ctx context.Context, locks rueidislock.Locker, shop string,
	sync func(context.Context) error) error {
	inside, cancel, err := locks.WithContext(ctx, "shop:"+shop)
	if err != nil {
		return err
	}
	defer cancel()
	return sync(inside) // which ends if the lock is lost
}

package shops

import (
	"context"

	"github.com/go-rlock/rlock"
)

// Sync takes over the stock of a shop, and waits while another process does.
func Sync(ctx context.Context, locks *rlock.Client, shop string,
	sync func(context.Context) error) error {

	// The context of sync ends if the lock is lost.
	return rlock.Do(ctx, locks.NewLock("lock:shop:"+shop), sync)
}

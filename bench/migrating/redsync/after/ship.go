package orders

import (
	"context"
	"time"

	"github.com/go-rlock/rlock"
)

// Ship ships an order, and waits while another process does.
func Ship(ctx context.Context, locks *rlock.Client, order string,
	ship func(context.Context) error) error {

	lock := locks.NewLock("lock:order:" + order)
	return rlock.Do(ctx, lock, ship, rlock.WithWait(10*time.Second))
}

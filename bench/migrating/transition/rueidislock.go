package transition

import (
	"context"

	"github.com/redis/rueidis/rueidislock"

	"github.com/go-rlock/rlock"
)

// Rueidislock runs fn under both locks. The lock of rueidislock renews itself,
// and ends the context.
func Rueidislock(ctx context.Context, lock rlock.Locker,
	old rueidislock.Locker, name string,
	fn func(context.Context) error) error {
	return rlock.Do(ctx, lock, func(ctx context.Context) error {
		inside, cancel, err := old.WithContext(ctx, name)
		if err != nil {
			return err
		}
		defer cancel()
		err = fn(inside)
		if err != nil || ctx.Err() != nil || inside.Err() == nil {
			return err
		}
		return ErrLost
	})
}

package tables

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Clean cleans a table, unless another process does.
func Clean(ctx context.Context, rdb redis.UniversalClient, table string,
	clean func(context.Context) error) (cleaned bool, err error) {

	set := redis.SetArgs{Mode: "NX", TTL: time.Minute}
	err = rdb.SetArgs(ctx, "clean:"+table, "1", set).Err()
	if err == redis.Nil {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer rdb.Del(ctx, "clean:"+table) // also if the lock is another's by now
	return true, clean(ctx)
}

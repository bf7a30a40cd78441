package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// The first lines of README.md.
func ExampleNew() {
	ctx := context.Background()
	ship := func(ctx context.Context) error { return ctx.Err() }
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = rlock.Do(ctx, client.NewLock("order:7"), func(ctx context.Context) error {
		return ship(ctx) // one process at a time; ctx ends if the lock is lost
	}, rlock.WithWait(5*time.Second))

	switch {
	case errors.Is(err, rlock.ErrLeaseLost): // ship was interrupted
	case errors.Is(err, rlock.ErrUnconfirmed): // shipped; the release is repeated
	case errors.Is(err, rlock.ErrNotAcquired): // held by shipping@web-3 (pid 4121)
	case errors.Is(err, rlock.ErrUnreachable): // not shipped: Redis does not answer
	case err != nil: // ship failed, ctx ended, or Redis refused
	}
}

// Without a callback: the caller has the lease. Unlock is sent even if ctx has ended.
func ExampleLease_Unlock() {
	client, stop := exampleClient()
	defer stop()
	save := func(ctx context.Context, token int64) error { return ctx.Err() }
	change := func(ctx context.Context) (err error) {
		lease, err := client.NewLock("order:7").Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
		return save(lease.Context(ctx), lease.Token())
	}
	fmt.Println(change(context.Background()))
	// Output: <nil>
}

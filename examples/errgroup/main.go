// Command errgroup does a job in parallel below one lock: three shards of an index are built by three goroutines.
// Whatever ends one of them ends all: an error of another, the caller, or the loss of the lock.
//
//	cd examples/errgroup && go run .
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/examples/internal/demo"
)

func main() {
	newRedis, stop, err := demo.Redis()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	rdb := newRedis()
	defer rdb.Close()
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = rebuild(context.Background(), client, 3, build)
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		log.Print("another process builds it: ", err)
	case err != nil:
		log.Fatal(err)
	}
}

// rebuild builds all shards, or returns why not.
func rebuild(ctx context.Context, client *rlock.Client, shards int, build func(ctx context.Context, shard int) error) error {
	index := client.NewLock("index")
	return rlock.Do(ctx, index, func(ctx context.Context) error { // ends when the lock is lost
		group, ctx := errgroup.WithContext(ctx) // and when a shard fails
		for shard := range shards {
			group.Go(func() error {
				// The goroutines share the lock of the index, and exclude each other from every
				// other lock: ctx descends from the lease.
				return rlock.Do(ctx, client.NewLock(fmt.Sprint("index:shard:", shard)), func(ctx context.Context) error {
					return build(ctx, shard)
				})
			})
		}
		return group.Wait() // before the lock is unlocked: no goroutine outlives it
	}, rlock.WithWait(0))
}

func build(ctx context.Context, shard int) error {
	select {
	case <-time.After(100 * time.Millisecond): // the work
		fmt.Println("shard", shard, "is built")
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

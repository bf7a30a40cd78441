package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/fence"
)

var (
	client *rlock.Client // rlock.New(rdb)
	rdb    *redis.Client
	db     *sql.DB
)

// The commit comes before the unlock, and a late holder changes nothing.
func ExampleInTx() {
	ctx := context.Background()
	account := client.NewLock("account:7")
	err := rlock.Do(ctx, account, func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		update := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx,
				"UPDATE account SET balance = balance + 10 WHERE id = 7")
			return err
		}
		return fence.InTx(ctx, db, lease, update)
	}, rlock.WithWait(10*time.Second))
	// nil: committed, and then unlocked.
	// fence.ErrStale: a newer holder has been there; nothing was changed.
	switch {
	case errors.Is(err, fence.ErrStale):
		log.Print("another holder has been there; nothing was changed")
	case err != nil:
		log.Print(err)
	}
}

// A value that is read before it is written: the fence is closed first.
func ExampleHSet() {
	ctx := context.Background()
	err := rlock.Do(ctx, client.NewLock("counter"), func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		if err := fence.HSet(ctx, rdb, lease, "counter:data", nil); err != nil {
			return err
		}
		value, err := rdb.HGet(ctx, "counter:data", "value").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		return fence.HSet(ctx, rdb, lease, "counter:data", map[string]string{"value": value + "x"})
	})
	if err != nil {
		log.Print(err)
	}
}

// An object in a store with the conditional requests of S3.
func ExamplePut() {
	store := fence.HTTPObjects{Base: "https://bucket.example/"} // a Client that signs
	err := rlock.Do(context.Background(), client.NewLock("report"), func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		return fence.Put(ctx, store, lease, "report.txt", []byte("42 invoices"))
	})
	if err != nil {
		log.Print(err)
	}
}

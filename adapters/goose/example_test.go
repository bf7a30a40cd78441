package rlockgoose_test

import (
	"context"
	"database/sql"
	"log"
	"os"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/go-rlock/rlock"
	rlockgoose "github.com/go-rlock/rlock/adapters/goose"
)

var (
	client     *rlock.Client // rlock.New(rdb)
	db         *sql.DB
	migrations = os.DirFS("migrations")
)

func ExampleNew() {
	lock := client.NewLock("migrate:shop")
	locker, err := rlockgoose.New(lock, rlock.WithWait(5*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations,
		goose.WithLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	// rlock.ErrNotAcquired: another still migrates after five minutes.
	_, err = provider.Up(ctx)
	if err != nil {
		log.Fatal(err)
	}
}

// Without the Locker: the context of the migrations ends with the lease.
func Example_contextOfTheLease() {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	lock := client.NewLock("migrate:shop")
	err = rlock.Do(ctx, lock, func(ctx context.Context) error {
		_, err := provider.Up(ctx)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

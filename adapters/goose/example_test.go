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
	client *rlock.Client // rlock.New(rdb)
	db     *sql.DB
)

func ExampleNew() {
	locker, err := rlockgoose.New(client.NewLock("migrate:shop"), rlock.WithWait(5*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := provider.Up(context.Background()); err != nil {
		log.Fatal(err) // rlock.ErrNotAcquired: another still migrates after five minutes
	}
}

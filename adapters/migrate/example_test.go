package rlockmigrate_test

import (
	"database/sql"
	"log"
	"os"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/go-rlock/rlock"
	rlockmigrate "github.com/go-rlock/rlock/adapters/migrate"
)

var (
	client *rlock.Client // rlock.New(rdb)
	db     *sql.DB
)

func ExampleNew() {
	// Or the driver of another database.
	inside, err := sqlite.WithInstance(db, &sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	lock := client.NewLock("migrate:shop")
	driver, err := rlockmigrate.New(inside, lock, 50*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	source, err := iofs.New(os.DirFS("."), "migrations")
	if err != nil {
		log.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "sqlite", driver)
	if err != nil {
		log.Fatal(err)
	}
	m.LockTimeout = time.Minute // longer than the wait above
	err = m.Up()                // database.ErrLocked: another still migrates
	if err != nil {
		log.Fatal(err)
	}
}

// Command fenced protects a row of a database by the fencing token of a lock: a holder that was stopped for
// longer than its lease comes back, and its late write is refused.
//
//	cd examples/fenced && go run .
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	_ "modernc.org/sqlite"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/examples/internal/demo"
)

func main() {
	newRedis, stop, err := demo.Redis()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	var clients [2]*rlock.Client // of two processes
	for i := range clients {
		rdb := newRedis()
		defer rdb.Close()
		if clients[i], err = rlock.New(rdb); err != nil {
			log.Fatal(err)
		}
		defer clients[i].Close()
	}
	db, err := open(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := run(context.Background(), os.Stdout, clients[0], clients[1], db); err != nil {
		log.Fatal(err)
	}
}

const (
	schema = `
CREATE TABLE account (
  id      INTEGER PRIMARY KEY,
  balance INTEGER NOT NULL,
  token   INTEGER NOT NULL DEFAULT 0  -- of the hold that wrote last
);
`
	update = `
UPDATE account SET balance = balance + ?1, token = ?2
  WHERE id = ?3 AND token <= ?2;
`
)

func open(ctx context.Context) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection would have a database in memory of its own
	if _, err = db.ExecContext(ctx, schema+"INSERT INTO account (id, balance) VALUES (7, 100);"); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

var errStale = errors.New("another holder has written since")

// deposit adds to an account, unless a holder with a higher token has written since.
func deposit(ctx context.Context, db *sql.DB, token, id, amount int64) error {
	done, err := db.ExecContext(ctx, update, amount, token, id)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errStale, err)
	}
	return nil
}

func run(ctx context.Context, w io.Writer, first, second *rlock.Client, db *sql.DB) (err error) {
	slow, err := first.NewLock("account:7").Lock(ctx, rlock.WithLease(200*time.Millisecond))
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "first:  has the lock, and is stopped for longer than its lease")
	next, err := second.NewLock("account:7").Lock(ctx) // as soon as the lease is over
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.Unlock(ctx)) }()
	fmt.Fprintln(w, "second: has the lock; its token is higher:", next.Token() > slow.Token())
	if err := deposit(ctx, db, next.Token(), 7, 10); err != nil {
		return err
	}
	fmt.Fprintln(w, "second: writes")
	err = deposit(ctx, db, slow.Token(), 7, 1000) // goes on, and does not look at its lease
	fmt.Fprintln(w, "first:  goes on, and writes:", err)
	if !errors.Is(err, errStale) {
		return fmt.Errorf("a late write was not refused: %w", err)
	}
	return nil
}

package fence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/fence"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/sqltest"
	"github.com/go-rlock/rlock/rlocktest"
)

// eachDatabase runs a scenario on SQLite, PostgreSQL and MariaDB, with a table of tokens and a counter that is 0.
func eachDatabase(t *testing.T, scenario func(t *testing.T, db *sql.DB)) {
	for name, open := range map[string]func(t testing.TB) (driver, dsn string){
		"SQLite": func(t testing.TB) (string, string) {
			return "sqlite", "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)"
		},
		"PostgreSQL": func(t testing.TB) (string, string) { return "pgx", sqltest.Postgres(t) },
		"MariaDB":    func(t testing.TB) (string, string) { return "mysql", sqltest.MySQL(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, dsn := open(t)
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			// A server that listens may not be ready yet.
			locktest.Eventually(t, "the database answers", func() bool { err = db.Ping(); return err == nil })
			for range 2 { // it may be there
				if err := (fence.SQL{}).CreateTable(t.Context(), db); err != nil {
					t.Fatal(err)
				}
			}
			exec(t, db, "CREATE TABLE counter (n INTEGER NOT NULL)")
			exec(t, db, "INSERT INTO counter VALUES (0)")
			scenario(t, db)
		})
	}
}

func exec(t testing.TB, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func counter(t testing.TB, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT n FROM counter").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func add(n int) func(ctx context.Context, tx *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE counter SET n = n + %d", n))
		return err
	}
}

// hold is a lease that its process takes for valid though another has the lock: the process was stopped, and its
// clock with it.
func hold(t testing.TB, srv *rlocktest.Server, name string) (late, next *rlock.Lease) {
	t.Helper()
	late = locktest.MustLock(t, srv.NewClient().NewLock(name), rlock.WithLease(rlock.MaxLease))
	if _, err := srv.NewClient().NewLock(name).ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	return late, locktest.MustLock(t, srv.NewClient().NewLock(name), rlock.WithLease(rlock.MaxLease))
}

func TestInTx(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		t.Run("stale holder", func(t *testing.T) { staleHolder(t, db) })
		t.Run("late transaction waits and is refused", func(t *testing.T) { lateTransaction(t, db) })
		t.Run("rolled back", func(t *testing.T) { rolledBack(t, db) })
		t.Run("names", func(t *testing.T) { names(t, db) })
		t.Run("multi lock", func(t *testing.T) { members(t, db) })
		t.Run("contenders", func(t *testing.T) { contenders(t, db) })
	})
}

func staleHolder(t *testing.T, db *sql.DB) {
	late, next := hold(t, rlocktest.New(t), "stale")
	before := counter(t, db)
	if err := fence.InTx(t.Context(), db, late, add(1)); err != nil {
		t.Fatal(err) // nobody newer has been here: its write is before theirs
	}
	for range 2 { // a holder may write more than once
		if err := fence.InTx(t.Context(), db, next, add(10)); err != nil {
			t.Fatal(err)
		}
	}
	err := fence.InTx(t.Context(), db, late, func(context.Context, *sql.Tx) error { t.Error("it was called"); return nil })
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Token != late.Token() || stale.Seen != next.Token() || stale.Resource != "stale" {
		t.Errorf("a late transaction: %#v", err)
	}
	if n := counter(t, db) - before; n != 21 {
		t.Errorf("the counter is %d higher; want 21", n)
	}
}

func lateTransaction(t *testing.T, db *sql.DB) {
	late, next := hold(t, rlocktest.New(t), "overlap")
	before := counter(t, db)
	result := make(chan error, 1)
	err := fence.InTx(t.Context(), db, next, func(ctx context.Context, tx *sql.Tx) error {
		if err := add(1)(ctx, tx); err != nil {
			return err
		}
		go func() { result <- fence.InTx(t.Context(), db, late, add(100)) }()
		select {
		case err := <-result:
			result <- err
			return errors.New("the late transaction has ended before the newer one")
		case <-time.After(300 * time.Millisecond): // it waits, or has not come this far: the outcome is the same
			return nil
		}
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, fence.ErrStale) {
		t.Errorf("the late transaction: %v", err)
	}
	if n := counter(t, db) - before; n != 1 {
		t.Errorf("the counter is %d higher; want 1", n)
	}
}

func rolledBack(t *testing.T, db *sql.DB) {
	srv := rlocktest.New(t)
	client := srv.NewClient()
	before, failed := counter(t, db), errors.New("failed")
	lease := locktest.MustLock(t, client.NewLock("back"))
	err := fence.InTx(t.Context(), db, lease, func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(add(1)(ctx, tx), failed)
	})
	if !errors.Is(err, failed) {
		t.Errorf("the error of the function: %v", err)
	}
	func() {
		defer func() {
			if recover() != failed {
				t.Error("the panic does not come through")
			}
		}()
		_ = fence.InTx(t.Context(), db, lease, func(ctx context.Context, tx *sql.Tx) error {
			_ = add(1)(ctx, tx)
			panic(failed)
		})
	}()
	// The caller's context ends inside.
	ctx, cancel := context.WithCancel(t.Context())
	err = fence.InTx(ctx, db, lease, func(ctx context.Context, tx *sql.Tx) error {
		err := add(1)(ctx, tx)
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("after the end of the context: %v", err)
	}
	// The lock is released all the same.
	if err := lease.Unlock(ctx); err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, client.NewLock("back"))
	if err := fence.InTx(t.Context(), db, lease, add(1)); !errors.Is(err, rlock.ErrUnlocked) {
		t.Errorf("after the unlock: %v", err)
	}
	// The lease is lost inside.
	lease = locktest.MustLock(t, client.NewLock("back"))
	err = fence.InTx(t.Context(), db, lease, func(ctx context.Context, tx *sql.Tx) error {
		err := add(1)(ctx, tx)
		srv.Remove("back")
		<-ctx.Done()
		return err
	})
	if !errors.Is(err, rlock.ErrLeaseLost) || !errors.Is(err, rlock.ErrRemoved) {
		t.Errorf("after a loss: %v", err)
	}
	if n := counter(t, db); n != before {
		t.Errorf("the counter is %d; want %d", n, before)
	}
}

// Names that differ have rows of their own, whatever is in them.
func names(t *testing.T, db *sql.DB) {
	srv := rlocktest.New(t)
	client := srv.NewClient()
	all := []string{"n", "N", "n ", " n", "ñ", "n'; DROP TABLE fence; --", "n\x00", "n\xff", strings.Repeat("n", 300), strings.Repeat("n", 301), "sha256:n"}
	newest := make([]*rlock.Lease, len(all))
	for i, name := range all {
		newest[i] = locktest.MustLock(t, client.NewLock(name))
	}
	for i := len(all) - 1; i >= 0; i-- { // the highest token first: a row for two names would refuse the other
		if err := fence.InTx(t.Context(), db, newest[i], add(0)); err != nil {
			t.Errorf("%q: %v", all[i], err)
		}
		locktest.MustUnlock(t, newest[i])
	}
}

func members(t *testing.T, db *sql.DB) {
	srv := rlocktest.New(t)
	late, next := hold(t, srv, "b")
	if err := fence.InTx(t.Context(), db, next, add(0)); err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, next)
	_ = late
	client := srv.NewClient()
	both := locktest.MustLock(t, locktest.NewMultiLock(t, client.NewLock("b"), client.NewLock("a")))
	if err := fence.InTx(t.Context(), db, both, add(0)); err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, both)
	if err := fence.InTx(t.Context(), db, late, add(1)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a holder before those of both: %v", err)
	}
}

// Transactions of several holders, who read and write, lose nothing and do not fail.
func contenders(t *testing.T, db *sql.DB) {
	srv := rlocktest.New(t)
	before, errs := counter(t, db), make(chan error)
	const clients, times = 4, 10
	for range clients {
		client := srv.NewClient()
		go func() {
			for range times {
				err := rlock.Do(t.Context(), client.NewLock("contended"), func(ctx context.Context) error {
					lease, _ := rlock.LeaseFrom(ctx)
					return fence.InTx(ctx, db, lease, func(ctx context.Context, tx *sql.Tx) error {
						var n int
						if err := tx.QueryRowContext(ctx, "SELECT n FROM counter").Scan(&n); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE counter SET n = %d", n+1))
						return err
					})
				})
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := counter(t, db) - before; n != clients*times {
		t.Errorf("%d updates are there; want %d", n, clients*times)
	}
}

// silent is a driver that nobody may use.
type silent struct{ t *testing.T }

func (s silent) Open(string) (driver.Conn, error) {
	s.t.Error("something was sent")
	return nil, driver.ErrBadConn
}

func (s silent) Connect(context.Context) (driver.Conn, error) { return s.Open("") }
func (s silent) Driver() driver.Driver                        { return s }

func TestInTxRefusesInvalidArguments(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	db := sql.OpenDB(silent{t})
	defer db.Close()
	lease := locktest.MustLock(t, srv.Client().NewLock("a"))
	reader := locktest.MustLock(t, srv.Client().NewReadWriteLock("rw").Reader)
	pg := fence.SQL{Dialect: fence.PostgreSQL}
	for what, err := range map[string]error{
		"no function":        pg.InTx(t.Context(), db, lease, nil),
		"no database":        pg.InTx(t.Context(), nil, lease, add(1)),
		"a read lock":        pg.InTx(t.Context(), db, reader, add(1)),
		"an unknown driver":  fence.InTx(t.Context(), db, lease, add(1)),
		"an unknown dialect": fence.SQL{Dialect: 9}.InTx(t.Context(), db, lease, add(1)),
		"a table's name":     fence.SQL{Dialect: fence.MySQL, Table: "a; b"}.InTx(t.Context(), db, lease, add(1)),
		"a created table":    fence.SQL{Dialect: fence.MySQL, Table: "a.b.c"}.CreateTable(t.Context(), db),
	} {
		if !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := pg.InTx(t.Context(), db, nil, add(1)); !errors.Is(err, rlock.ErrNotHeld) {
		t.Errorf("without a lease: %v", err)
	}
}

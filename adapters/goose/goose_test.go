//go:build unix

package rlockgoose_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/go-rlock/rlock"
	rlockgoose "github.com/go-rlock/rlock/adapters/goose"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"migrate": childMigrate})
}

func open(t testing.TB, file string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// provider has three migrations; between is called in the second.
func provider(t testing.TB, db *sql.DB, l *rlockgoose.Locker, between func()) *goose.Provider {
	one := func(query string, then func()) *goose.GoFunc {
		return &goose.GoFunc{RunDB: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, query)
			then()
			return err
		}}
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, nil, goose.WithLocker(l), goose.WithGoMigrations(
		goose.NewGoMigration(1, one("CREATE TABLE log (what TEXT)", func() {}), nil),
		goose.NewGoMigration(2, one("INSERT INTO log VALUES ('second')", between), nil),
		goose.NewGoMigration(3, one("INSERT INTO log VALUES ('third')", func() {}), nil),
	))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// childMigrate migrates, with the address of Redis and the file of the database.
func childMigrate(t *testing.T, parent *locktest.Parent, addr string, args []string) {
	client, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(time.Second))
	l, err := rlockgoose.New(client.NewLock("migrate:shop"))
	if err != nil {
		t.Fatal(err)
	}
	p := provider(t, open(t, args[0]), l, func() {
		parent.Report("second")
		parent.Await("go on")
	})
	results, err := p.Up(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parent.Report("done %d", len(results))
}

func count(t *testing.T, db *sql.DB, query string) (n int) {
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Two processes migrate at once, and the one that does is killed in the second migration.
func TestTwoProcessesMigrateAndOneIsKilled(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "db")
	first := locktest.StartChild(t, "migrate", srv.Addr(), file)
	first.Report("second")
	second := locktest.StartChild(t, "migrate", srv.Addr(), file)
	watched := locktest.NewClient(t, srv.Client()).NewLock("migrate:shop")
	locktest.Eventually(t, "the second waits", func() bool {
		state, err := watched.State(t.Context())
		return err == nil && state.Waiters > 0
	})
	first.Kill()
	second.Report("second") // it alone is inside, as soon as the lease of the first is over
	db := open(t, file)
	if n := count(t, db, "SELECT max(version_id) FROM goose_db_version"); n != 1 {
		t.Errorf("version %d, before the second migration", n)
	}
	second.Order("go on")
	if n := second.Report("done"); n != "2" {
		t.Errorf("%s migrations were left for the second process", n)
	}
	second.Finish()
	if n := count(t, db, "SELECT count(*) FROM goose_db_version WHERE version_id > 0"); n != 3 {
		t.Errorf("%d versions are noted", n)
	}
	// The second migration ran twice: goose notes a version after it, so it has to bear that, or be in a transaction.
	if n := count(t, db, "SELECT count(*) FROM log WHERE what = 'third'"); n != 1 {
		t.Errorf("the third migration ran %d times", n)
	}
	locktest.MustBeFree(t, watched)
}

// goose gives Unlock a context that has not ended; others may not.
func TestUnlockWithAnEndedContext(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	mutex := srv.Client().NewLock("migrate")
	l, err := rlockgoose.New(mutex)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := l.Lock(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Lock(ctx, nil); !errors.Is(err, rlockgoose.ErrInUse) {
		t.Errorf("a second Lock: %v", err)
	}
	cancel()
	if err := l.Unlock(ctx, nil); err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, mutex)
	if err := l.Unlock(ctx, nil); !errors.Is(err, rlock.ErrNotHeld) {
		t.Errorf("a second Unlock: %v", err)
	}
}

// A deploy is stopped while it migrates: goose returns, and the lock is free.
func TestCanceledMigrationFreesTheLock(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	mutex := srv.Client().NewLock("migrate")
	l, err := rlockgoose.New(mutex)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := provider(t, open(t, filepath.Join(t.TempDir(), "db")), l, cancel)
	if _, err := p.Up(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled Up: %v", err)
	}
	locktest.MustBeFree(t, mutex)
	// The same provider goes on later.
	if _, err := p.Up(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBusyAndLostAreReported(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l, err := rlockgoose.New(srv.Client().NewLock("migrate"), rlock.WithWait(0))
	if err != nil {
		t.Fatal(err)
	}
	db := open(t, filepath.Join(t.TempDir(), "db"))
	other := srv.Steal("migrate")
	if _, err := provider(t, db, l, func() {}).Up(t.Context()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("while another migrates: %v", err)
	}
	locktest.MustUnlock(t, other)
	lose := func() { srv.Steal("migrate") }
	if _, err := provider(t, db, l, lose).Up(t.Context()); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("after a loss: %v", err)
	}
	if _, err := rlockgoose.New(nil); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
}

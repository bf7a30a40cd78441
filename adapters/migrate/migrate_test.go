//go:build unix

package rlockmigrate_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/go-rlock/rlock"
	rlockmigrate "github.com/go-rlock/rlock/adapters/migrate"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"migrate": childMigrate})
}

// stopping is a driver that calls a function before the migration that mentions a word.
type stopping struct {
	database.Driver
	at     string
	before func()
}

func (s stopping) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	if strings.Contains(string(text), s.at) {
		s.before()
	}
	return s.Driver.Run(strings.NewReader(string(text)))
}

// opening is held while a database is opened: SQLite, in this version, initializes itself at the first one, and not
// so that the race detector sees who waits for that.
var opening sync.Mutex

func sqliteDriver(t testing.TB, file string) database.Driver {
	opening.Lock()
	defer opening.Unlock()
	driver, err := new(sqlite.Sqlite).Open("sqlite://" + file + "?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = driver.Close() })
	return driver
}

func migrator(t testing.TB, driver database.Driver) *migrate.Migrate {
	source, err := iofs.New(fstest.MapFS{
		"m/1_first.up.sql":  {Data: []byte("CREATE TABLE log (what TEXT)")},
		"m/2_second.up.sql": {Data: []byte("INSERT INTO log VALUES ('second')")},
		"m/3_third.up.sql":  {Data: []byte("INSERT INTO log VALUES ('third')")},
	}, "m")
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "sqlite", driver)
	if err != nil {
		t.Fatal(err)
	}
	m.LockTimeout = 2 * time.Minute
	return m
}

// childMigrate migrates, with the address of Redis and the file of the database.
func childMigrate(t *testing.T, parent *locktest.Parent, addr string, args []string) {
	client, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(time.Second))
	inside := stopping{sqliteDriver(t, args[0]), "second", func() {
		parent.Report("second")
		parent.Await("go on")
	}}
	driver, err := rlockmigrate.New(inside, client.NewLock("migrate:shop"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	m := migrator(t, driver)
	switch err := m.Up(); {
	case errors.As(err, new(migrate.ErrDirty)):
		parent.Report("dirty")
		parent.Await("repair") // as the user has to
		if err := m.Force(1); err != nil {
			t.Fatal(err)
		}
		if err := m.Up(); err != nil {
			t.Fatal(err)
		}
	case err != nil:
		t.Fatal(err)
	}
	parent.Report("done")
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
	second.Report("dirty") // it is inside as soon as the lease of the first is over, and golang-migrate tells of the migration that was broken off
	locktest.Eventually(t, "it has freed the lock", func() bool {
		held, err := watched.IsLocked(t.Context())
		return err == nil && !held
	})
	second.Order("repair")
	second.Report("second")
	second.Order("go on")
	second.Report("done")
	second.Finish()
	driver := sqliteDriver(t, file)
	if version, dirty, err := driver.Version(); version != 3 || dirty || err != nil {
		t.Errorf("version %d, dirty %v, %v", version, dirty, err)
	}
	locktest.MustBeFree(t, watched)
}

func TestBusyAndLostAreReported(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lock := srv.Client().NewLock("migrate")
	file := filepath.Join(t.TempDir(), "db")
	newDriver := func(inside database.Driver, wait time.Duration) *rlockmigrate.Driver {
		driver, err := rlockmigrate.New(inside, lock, wait)
		if err != nil {
			t.Fatal(err)
		}
		return driver
	}
	driver := newDriver(sqliteDriver(t, file), 200*time.Millisecond)
	if err := driver.Unlock(); !errors.Is(err, database.ErrNotLocked) {
		t.Errorf("an Unlock without Lock: %v", err)
	}
	other := srv.Steal("migrate")
	if err := migrator(t, driver).Up(); !errors.Is(err, database.ErrLocked) || !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("while another migrates: %v", err)
	}
	locktest.MustUnlock(t, other)

	// The lease is lost in the last migration, which is not noted. (In one before, golang-migrate would leave behind what
	// reads ahead.)
	losing := newDriver(stopping{sqliteDriver(t, file), "third", func() { locktest.MustUnlock(t, srv.Steal("migrate")) }}, 0)
	if err := migrator(t, losing).Up(); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("after a loss: %v", err)
	}
	if version, dirty, err := driver.Version(); version != 3 || !dirty || err != nil {
		t.Errorf("version %d, dirty %v, %v; want 3, dirty", version, dirty, err)
	}
	// The lock is free, and a driver that was opened by its URL works too.
	opened, err := driver.Open("sqlite://" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	m := migrator(t, opened)
	if err := errors.Join(m.Force(2), m.Steps(1)); err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, lock)
}

// There is no context in golang-migrate: an Unlock during a shutdown is bounded by the timeout of the client alone.
func TestUnlockWhileTheClientShutsDown(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	client := srv.NewClient()
	driver, err := rlockmigrate.New(sqliteDriver(t, filepath.Join(t.TempDir(), "db")), client.NewLock("migrate"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := driver.Lock(); !errors.Is(err, database.ErrLocked) {
		t.Errorf("a second Lock: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- client.Shutdown(t.Context()) }()
	locktest.Eventually(t, "the lease has ended", func() bool { return driver.Run(strings.NewReader("")) != nil })
	if err := driver.Unlock(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, srv.Client().NewLock("migrate"))
}

// Close, in place of an Unlock that does not come: golang-migrate gives up a Lock without it.
func TestCloseFreesTheLockAndEndsAWait(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lock := srv.Client().NewLock("migrate")
	newDriver := func() *rlockmigrate.Driver {
		driver, err := rlockmigrate.New(sqliteDriver(t, filepath.Join(t.TempDir(), "db")), lock, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return driver
	}
	holds, waits := newDriver(), newDriver()
	if err := holds.Lock(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- waits.Lock() }()
	locktest.Eventually(t, "the second waits", func() bool {
		state, err := lock.State(t.Context())
		return err == nil && state.Waiters > 0
	})
	if err := waits.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ends with %v", err)
	}
	if err := errors.Join(holds.Close(), holds.Close()); err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, lock)
	if err := holds.Unlock(); !errors.Is(err, database.ErrNotLocked) {
		t.Error(err)
	}
	if holds.Lock() == nil || holds.Run(strings.NewReader("")) == nil {
		t.Error("it works after Close")
	}
	locktest.MustBeFree(t, lock)
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	lock := rlocktest.New(t).Client().NewLock("migrate")
	for what, of := range map[string]func() (*rlockmigrate.Driver, error){
		"no driver":       func() (*rlockmigrate.Driver, error) { return rlockmigrate.New(nil, lock, 0) },
		"no lock":         func() (*rlockmigrate.Driver, error) { return rlockmigrate.New(new(sqlite.Sqlite), nil, 0) },
		"a negative wait": func() (*rlockmigrate.Driver, error) { return rlockmigrate.New(new(sqlite.Sqlite), lock, -1) },
	} {
		if _, err := of(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

package main

import (
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestOneOfAllInstancesMigrates(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	db := &database{}
	var all sync.WaitGroup
	for range 5 {
		client := srv.NewClient()
		all.Go(func() {
			if err := migrate(t.Context(), io.Discard, "", client, db); err != nil {
				t.Error(err)
			}
			if v := db.version(); v != wanted {
				t.Errorf("serves with version %d", v)
			}
		})
	}
	all.Wait()
	if db.steps != wanted {
		t.Errorf("%d steps; want %d", db.steps, wanted)
	}
}

// lossAt loses the lock after the first line that an instance writes: in the middle of its migration.
type lossAt struct {
	once sync.Once
	lose func()
}

func (l *lossAt) Write(p []byte) (int, error) {
	l.once.Do(l.lose)
	return len(p), nil
}

func TestInstanceThatLosesTheLockStops(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	db := &database{}
	var next *rlock.Lease
	err := migrate(t.Context(), &lossAt{lose: func() { next = srv.Steal("migrate:shop") }}, "first", srv.Client(), db)
	if !errors.Is(err, rlock.ErrLeaseLost) {
		t.Fatal(err)
	}
	if db.version() != 1 {
		t.Errorf("version %d: it went on without the lock", db.version())
	}
	if err := next.Unlock(t.Context()); err != nil { // of who died, say
		t.Fatal(err)
	}
	if err := migrate(t.Context(), io.Discard, "second", srv.Client(), db); err != nil || db.steps != wanted {
		t.Errorf("%v, %d steps", err, db.steps)
	}
}

// Who was stopped between its look at the lock and its step is refused by the database.
func TestLateStepIsRefused(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	db := &database{}
	late, err := srv.Client().NewLock("migrate:shop").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	srv.Remove("migrate:shop")
	if err := migrate(t.Context(), io.Discard, "", srv.NewClient(), db); err != nil {
		t.Fatal(err)
	}
	if err := db.step(late.Token(), db.version()); !errors.Is(err, errStale) {
		t.Errorf("%v", err)
	}
}

// The program itself, to its end.
func TestProgramEnds(_ *testing.T) { main() }

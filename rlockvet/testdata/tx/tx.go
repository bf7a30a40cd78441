package tx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-rlock/rlock"
)

func work(context.Context) error { return nil }

func finish(*sql.Tx) error { return nil }

func inside(ctx context.Context, db *sql.DB, l *rlock.Lock) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := rlock.Do(ctx, l, work); err != nil { // want `Do inside the transaction of line 16`
		return err
	}
	return tx.Commit()
}

func insideByLease(ctx context.Context, conn *sql.Conn, l *rlock.Lock) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "SELECT 1"); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	lease, err := l.Lock(ctx) // want `Lock inside the transaction of line 28`
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	_, err = tx.ExecContext(lease.Context(ctx), "SELECT 1")
	return errors.Join(err, lease.Unlock(ctx), tx.Commit())
}

func permits(ctx context.Context, db *sql.DB, s *rlock.Semaphore) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := s.Acquire(ctx, 1); err != nil { // want `Acquire inside the transaction`
		return err
	}
	return errors.Join(s.Release(ctx, 1), tx.Commit())
}

// What follows is right, or may be.

func before(ctx context.Context, db *sql.DB, l *rlock.Lock) error {
	return rlock.Do(ctx, l, func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return tx.Commit()
	})
}

func after(ctx context.Context, db *sql.DB, l *rlock.Lock) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return rlock.Do(ctx, l, work)
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return rlock.Do(ctx, l, work)
}

func finishedElsewhere(ctx context.Context, db *sql.DB, l *rlock.Lock) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := finish(tx); err != nil {
		return err
	}
	return rlock.Do(ctx, l, work)
}

func onlyMade(ctx context.Context, db *sql.DB, l *rlock.Lock) (func() error, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	later := func() error { return rlock.Do(ctx, l, work) }
	return later, tx.Commit()
}

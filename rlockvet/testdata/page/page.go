// Package page has the lines of docs/vet.md: each that the analyzer reports ends with "wrong".
package page

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-rlock/rlock"
)

func save(context.Context) error { return nil }

func push(context.Context) error { return nil }

func lostLease(ctx context.Context, lock *rlock.Lock) error {
	if _, err := lock.TryLock(ctx); err != nil { // wrong
		return err
	}
	err := rlock.Do(ctx, lock, save) // right: Do unlocks
	return err
}

func outerContext(ctx context.Context, lock *rlock.Lock) (err error) {
	err = rlock.Do(ctx, lock, func(context.Context) error {
		return save(ctx) // wrong
	})
	err = rlock.Do(ctx, lock, func(ctx context.Context) error {
		return save(ctx) // right: this ctx ends if the lock is lost
	})
	return err
}

func unlockError(ctx context.Context, lease *rlock.Lease) (err error) {
	defer lease.Unlock(ctx)                                      // wrong
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }() // right
	return save(lease.Context(ctx))
}

func deferInLoop(ctx context.Context, locks []rlock.Locker) error {
	for _, lock := range locks {
		lease, err := lock.Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }() // wrong
		if err := save(lease.Context(ctx)); err != nil {
			return err
		}
	}
	for _, lock := range locks {
		if err := rlock.Do(ctx, lock, save); err != nil { // right
			return err
		}
	}
	return nil
}

func inTransaction(ctx context.Context, db *sql.DB, lock *rlock.Lock) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = rlock.Do(ctx, lock, save) // wrong
	err = errors.Join(err, tx.Commit())
	if err != nil {
		return err
	}
	inTx := func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	err = rlock.Do(ctx, lock, inTx) // right: inTx begins and commits
	return err
}

func timedName(ctx context.Context, client *rlock.Client, day time.Time) error {
	lock := client.NewLock("job:" + time.Now().String()) // wrong
	job := client.NewCronJob("job")                      // right
	_, err := job.Do(ctx, day, save)
	_ = lock
	return err
}

func longWait(ctx context.Context, lock *rlock.Lock) (err error) {
	for range time.Tick(time.Minute) {
		err = rlock.Do(ctx, lock, save, rlock.WithWait(time.Hour)) // wrong
		err = rlock.Do(ctx, lock, save, rlock.WithWait(0))         // right
	}
	return err
}

func lostPermit(ctx context.Context, client *rlock.Client) error {
	slots := client.NewSemaphore("slots", rlock.WithPermits(2))
	if err := slots.Acquire(ctx, 1); err != nil { // wrong
		return err
	}
	defer slots.Release(ctx, 1)
	partner := client.NewPermitSemaphore("partner", rlock.WithPermits(2))
	permit, err := partner.Acquire(ctx, 1) // right
	if err != nil {
		return err
	}
	return permit.Do(ctx, push)
}

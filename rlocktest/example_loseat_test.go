package rlocktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// transfer is the code under test. The mistake to find would be a save with the
// context from outside, one after an error, or an error that is not returned.
func transfer(ctx context.Context, locks *rlock.Client,
	save func(ctx context.Context, entry string) error) error {

	account := locks.NewLock("account")
	return rlock.Do(ctx, account, func(ctx context.Context) error {
		for _, entry := range []string{"debit", "credit"} {
			if err := save(ctx, entry); err != nil {
				return err
			}
		}
		return nil
	})
}

// The test is run six times: without a loss, and with one at each of five
// points, from the acquire to the end of the second save.
func TestTransferStopsWhenItLosesItsLock(t *testing.T) {
	rlocktest.LoseAt(t, "account", func(t *testing.T, r *rlocktest.Round) {
		locks := r.New(t).Client()
		save := func(ctx context.Context, _ string) error {
			return r.Write(ctx) // in place of the database
		}
		err := transfer(t.Context(), locks, save)
		if r.Lost() != errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("lost: %v, but transfer returned %v", r.Lost(), err)
		}
	})
}

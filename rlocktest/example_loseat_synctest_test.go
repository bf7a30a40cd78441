package rlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestReportStopsWhenItLosesItsLock(t *testing.T) {
	rlocktest.LoseAt(t, "app:report", func(t *testing.T, r *rlocktest.Round) {
		synctest.Test(t, func(t *testing.T) {
			locks := r.New(t, rlock.WithPrefix("app:")).Client()
			report := func(ctx context.Context) error {
				for ctx.Err() == nil {
					if err := r.Write(ctx); err != nil {
						return err
					}
					select {
					case <-time.After(time.Hour): // takes no time
						return nil
					case <-ctx.Done():
					}
				}
				return ctx.Err()
			}
			err := rlock.Do(t.Context(), locks.NewLock("report"), report)
			if r.Lost() != errors.Is(err, rlock.ErrLeaseLost) {
				t.Errorf("lost: %v, but the report returned %v", r.Lost(), err)
			}
		})
	})
}

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

// In a bubble of testing/synctest hours take no time. Leases, renewals, waits,
// contexts and timeouts follow the clock of the bubble.
func TestReportWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := rlocktest.New(t) // in the bubble, with its t
		other := srv.Steal("report")
		go func() { // another process has the lock for 40 minutes
			time.Sleep(40 * time.Minute)
			_ = other.Unlock(context.Background())
		}()

		report := srv.Client().NewLock("report")
		_, err := report.Lock(t.Context(), rlock.WithWait(30*time.Minute))
		if !errors.Is(err, rlock.ErrNotAcquired) {
			t.Errorf("after 30 minutes: %v", err)
		}
		lease, err := report.Lock(t.Context(), rlock.WithWait(30*time.Minute))
		if err != nil {
			t.Fatal(err)
		}

		time.Sleep(20 * time.Minute) // it is renewed
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		srv.Disconnect() // Redis is down
		<-lease.Done()   // for as long as the lease
		if err := lease.Err(); !errors.Is(err, rlock.ErrUnreachable) {
			t.Errorf("lost because of %v, want %v", err, rlock.ErrUnreachable)
		}
	})
}

// Package adoption shows how a hold passes to another client by its handle: of two that believe in
// it there is never more than one, whatever gets lost, repeated or killed in between.
package adoption

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

// long is a lease that no test waits for.
const long = 10 * time.Minute

// patient has its holders look for an adoption by themselves after minutes only.
var patient = rlock.WithWatchdogLease(long)

func handleOf(t *testing.T, l *rlock.Lease) string {
	t.Helper()
	h, err := l.Handle()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func detach(t *testing.T, l *rlock.Lease) string {
	t.Helper()
	h, err := l.Detach(bg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func adopt(t *testing.T, c *rlock.Client, handle string, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, locktest.Patience)
	defer cancel()
	l, err := c.Adopt(ctx, handle, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// stale checks that a handle is of no use.
func stale(t *testing.T, c *rlock.Client, handle string) {
	t.Helper()
	l, err := c.Adopt(bg, handle)
	if err == nil {
		t.Fatalf("adopted %s by a stale handle", l.HoldID())
	}
	locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrLeaseLost)
}

// wasAdopted checks that a lease has ended by an adoption, and neither renews nor frees anything.
func wasAdopted(t *testing.T, l *rlock.Lease) {
	t.Helper()
	select {
	case <-l.Done():
	default:
		t.Fatal("Adopt has returned, and the lease of the holder before goes on")
	}
	locktest.WantErr(t, l.Err(), rlock.ErrAdopted, rlock.ErrLeaseLost, nil, rlock.ErrTakenOver, rlock.ErrRemoved, rlock.ErrExpired)
	locktest.WantErr(t, l.Extend(bg, time.Minute), rlock.ErrAdopted, rlock.ErrLeaseLost)
	locktest.WantErr(t, l.Unlock(bg), rlock.ErrAdopted, rlock.ErrLeaseLost, nil, rlock.ErrUnconfirmed)
}

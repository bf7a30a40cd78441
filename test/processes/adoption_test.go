package processes

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// long is a lease that no test waits for.
const long = 10 * time.Minute

// patient has leases that last.
var patient = rlock.WithWatchdogLease(long)

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

// stale checks that a handle is of no use, and changes nothing.
func stale(t *testing.T, c *rlock.Client, handle string) {
	t.Helper()
	l, err := c.Adopt(bg, handle)
	if err == nil {
		t.Fatalf("adopted %s by a stale handle", l.HoldID())
	}
	locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrLeaseLost)
	locktest.WantErr(t, c.Unlock(bg, handle), rlock.ErrNotHeld, nil, rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrUnconfirmed)
	locktest.WantErr(t, c.Extend(bg, handle, long), rlock.ErrNotHeld, nil, rlock.ErrUnreachable, rlock.ErrRefused)
}

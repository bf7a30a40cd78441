package locktest

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock"
)

// PermitLocker takes N permits of a semaphore at a time, as if they were a lock.
type PermitLocker struct {
	*rlock.PermitSemaphore
	N int
}

var _ rlock.Locker = PermitLocker{}

// Lock is Acquire.
func (l PermitLocker) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	return l.Acquire(ctx, l.N, opts...)
}

// TryLock is TryAcquire.
func (l PermitLocker) TryLock(ctx context.Context, opts ...rlock.TryOption) (*rlock.Lease, error) {
	return l.TryAcquire(ctx, l.N, opts...)
}

// MustSetPermits gives a semaphore its permits, unless it has them.
func MustSetPermits(t testing.TB, s *rlock.PermitSemaphore, n int) *rlock.PermitSemaphore {
	t.Helper()
	if _, err := s.TrySetPermits(bg, n); err != nil {
		t.Fatal(err)
	}
	return s
}

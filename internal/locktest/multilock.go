package locktest

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock"
)

// NewMultiLock is a MultiLock of some locks.
func NewMultiLock(t testing.TB, locks ...rlock.Locker) *rlock.MultiLock {
	t.Helper()
	m, err := rlock.NewMultiLock(locks)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// MultiLockOf is a MultiLock of Locks with some names.
func MultiLockOf(t testing.TB, c *rlock.Client, names ...string) *rlock.MultiLock {
	t.Helper()
	var locks []rlock.Locker
	for _, n := range names {
		locks = append(locks, c.NewLock(n))
	}
	return NewMultiLock(t, locks...)
}

// WatchedLock is a lock that tells of each attempt and each grant, and whose
// attempts can be stopped: a member that is not of this library's types.
type WatchedLock struct {
	rlock.Locker
	Before func(ctx context.Context)
	After  func(lease *rlock.Lease, err error)
}

func (w WatchedLock) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	if w.Before != nil {
		w.Before(ctx)
	}
	lease, err := w.Locker.Lock(ctx, opts...)
	if w.After != nil {
		w.After(lease, err)
	}
	return lease, err
}

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

// MixedLockOf is MultiLockOf with a SpinLock in front, so that no one script takes all.
func MixedLockOf(t testing.TB, c *rlock.Client, names ...string) *rlock.MultiLock {
	t.Helper()
	locks := []rlock.Locker{c.NewSpinLock(names[0])}
	for _, n := range names[1:] {
		locks = append(locks, c.NewLock(n))
	}
	return NewMultiLock(t, locks...)
}

// MultiLocks are MultiLocks of both kinds: one that one script takes, also in a cluster, and one that takes its members
// one by one.
var MultiLocks = []struct {
	Name  string
	Names []string
	Of    func(t testing.TB, c *rlock.Client, names ...string) *rlock.MultiLock
}{
	{"at once", []string{"{m}a", "{m}b", "{m}c"}, MultiLockOf},
	{"one by one", []string{"a", "b", "c"}, MixedLockOf},
}

// WatchedLock is a lock that reports each attempt and each grant, and whose
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

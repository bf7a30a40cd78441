package rlocktest_test

import (
	"errors"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// newClient is a process with a miniredis of the test.
func newClient(t *testing.T, m *miniredis.Miniredis) *rlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	client, err := rlock.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestLockOfADeadProcessIsFreed(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true) // keys expire as time passes: by default they never do

	lock := newClient(t, m).NewLock("report")
	dead, err := newClient(t, m).NewLock("report").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = lock.TryLock(t.Context())
	if !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("TryLock() = %v, want %v", err, rlock.ErrNotAcquired)
	}
	m.FastForward(rlock.DefaultWatchdogLease) // the holder has not renewed it
	lease, err := lock.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	_ = dead.Unlock(t.Context()) // Close waits for holders to unlock
}

package locktest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// Eventually waits for a condition that must come true soon. The bound is far
// above what a busy machine needs.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited too long until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func MustLock(t testing.TB, l rlock.Locker, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	return MustLockCtx(t, context.Background(), l, opts...)
}

func MustLockCtx(t testing.TB, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	lease, err := l.Lock(ctx, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func MustUnlock(t testing.TB, l *rlock.Lease) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// WantErr checks an error against sentinels: those that it must match, and
// after nil those that it must not.
func WantErr(t testing.TB, err error, sentinels ...error) {
	t.Helper()
	must := true
	for _, s := range sentinels {
		if s == nil {
			must = false
			continue
		}
		if errors.Is(err, s) != must {
			t.Fatalf("error %v: matches %q: %v, want %v", err, s, !must, must)
		}
	}
	var e *rlock.Error
	if !errors.As(err, &e) {
		t.Fatalf("%T is not an *rlock.Error: %v", err, err)
	}
	if !strings.HasPrefix(err.Error(), "rlock: ") {
		t.Fatalf("error text %q does not say where it comes from", err)
	}
}

// Patient makes waiters depend on messages: a test that passes quickly with it
// has not been saved by a poll.
const Patient = time.Hour

// ShutDown begins a Shutdown, and returns when its leases have been told.
func ShutDown(ctx context.Context, c *rlock.Client, leases ...*rlock.Lease) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.Shutdown(ctx) }()
	for _, l := range leases {
		<-l.Done()
	}
	return done
}

// StillRunning fails the test if Shutdown has returned.
func StillRunning(t testing.TB, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("Shutdown has returned (%v) while something is held", err)
	default:
	}
}

func NewRedLock(t testing.TB, name string, clients []*rlock.Client, opts ...rlock.RedLockOption) *rlock.RedLock {
	t.Helper()
	l, err := rlock.NewRedLock(name, clients, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func NewMultiLock(t testing.TB, locks ...rlock.Locker) *rlock.MultiLock {
	t.Helper()
	m, err := rlock.NewMultiLock(locks...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func MultiLockOf(t testing.TB, c *rlock.Client, names ...string) *rlock.MultiLock {
	t.Helper()
	var locks []rlock.Locker
	for _, n := range names {
		locks = append(locks, c.NewLock(n))
	}
	return NewMultiLock(t, locks...)
}

func MustBeFree(t testing.TB, locks ...rlock.Locker) {
	t.Helper()
	for _, l := range locks {
		lease, err := l.TryLock(bg)
		if err != nil {
			t.Fatalf("%s is not free: %v", l.Name(), err)
		}
		MustUnlock(t, lease)
	}
}

func MustBeHeld(t testing.TB, locks ...rlock.Locker) {
	t.Helper()
	for _, l := range locks {
		lease, err := l.TryLock(bg)
		if err == nil {
			MustUnlock(t, lease)
			t.Fatalf("%s is free", l.Name())
		}
		WantErr(t, err, rlock.ErrNotAcquired)
	}
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

// DialOnce has a dial fail at once where nobody is. A request that waits in go-redis
// for the next dial could outlast two kills of a node, and with them its tombstone.
func DialOnce(o *redis.Options) { o.DialerRetries = 1 }

var (
	// RedLockLease is the watchdog lease of tests that wait for renewals and losses,
	// and RedLockTimeout the longest node time-out that goes with it: a busy machine
	// answers within it.
	RedLockLease   = Ample(4500 * time.Millisecond)
	RedLockTimeout = RedLockLease / 6
)

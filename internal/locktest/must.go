package locktest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

var bg = context.Background()

// Patience bounds every wait for what must come soon. It is far above what a busy machine
// needs, and below Lease.
const Patience = time.Minute

// Eventually waits for a condition that must come true soon. It looks the more seldom the longer that
// takes: many tests wait side by side, and most conditions ask Redis.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); Pause(began) {
		if time.Since(began) > Patience {
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// Pause is between two looks of a wait that began then: an eighth of it, within bounds.
func Pause(began time.Time) {
	time.Sleep(min(max(time.Since(began)/8, time.Millisecond), 50*time.Millisecond))
}

// MustLock takes a lock that is free, or soon is: not one that becomes free when the lease of
// a dead holder is over.
func MustLock(t testing.TB, l rlock.Locker, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	return MustLockCtx(t, context.Background(), l, opts...)
}

// MustLockCtx is MustLock for the owner that ctx carries.
func MustLockCtx(t testing.TB, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	lease, err := l.Lock(ctx, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// Options are options of TryLock as options of Lock.
func Options(opts []rlock.TryOption) (all []rlock.AcquireOption) {
	for _, o := range opts {
		all = append(all, o)
	}
	return all
}

// An Acquire is Lock or TryLock.
type Acquire func(ctx context.Context, opts ...rlock.TryOption) (*rlock.Lease, error)

// Acquires are Lock and TryLock of a lock.
func Acquires(l rlock.Locker) []Acquire { return []Acquire{Waiting(l), l.TryLock} }

// Waiting is Lock of a lock, with the options of TryLock.
func Waiting(l rlock.Locker) Acquire {
	return func(ctx context.Context, opts ...rlock.TryOption) (*rlock.Lease, error) {
		return l.Lock(ctx, Options(opts)...)
	}
}

// MustUnlock unlocks a lease that is not lost.
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

// WantEnded checks the error of a wait for a lock that is held, which the end of a context, or of
// WithWait, cut off: that is nil. On a busy machine it may not have had an answer by then.
func WantEnded(t testing.TB, err, end error) {
	t.Helper()
	if end != nil {
		WantErr(t, err, end, nil, rlock.ErrRefused, rlock.ErrLeaseLost)
	} else if WantErr(t, err, nil, rlock.ErrRefused, rlock.ErrLeaseLost, context.Canceled, context.DeadlineExceeded); !errors.Is(err, rlock.ErrUnreachable) {
		WantErr(t, err, rlock.ErrNotAcquired)
	}
	if errors.Is(err, rlock.ErrNotAcquired) && errors.Is(err, rlock.ErrUnreachable) {
		t.Fatalf("%v matches both", err)
	}
}

// Patient makes waiters depend on messages: a test that passes quickly with it
// has not been saved by a poll.
const Patient = time.Hour

// ShutDown begins a Shutdown, and returns when its leases have ended.
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

// MustBeFree checks that each lock can be had immediately.
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

// MustBeHeld checks that no lock can be had.
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

// Unnamed are holders without their processes: those are found out apart from the lock, and need not be
// known immediately.
func Unnamed(holders []rlock.Holder) []rlock.Holder {
	holders = slices.Clone(holders)
	for i := range holders {
		holders[i].Process = rlock.Process{}
	}
	return holders
}

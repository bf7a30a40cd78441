package locktest

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// TB is a test, or one of package rapid.
type TB interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// Attempt is a call under way that acquires a lease.
type Attempt struct {
	t      TB
	Cancel context.CancelFunc
	Done   chan struct{} // closed when the call has returned
	Lease  *rlock.Lease
	Err    error
}

// Call makes a call in a goroutine.
func Call(t TB, ctx context.Context, acquire func(ctx context.Context) (*rlock.Lease, error)) *Attempt {
	ctx, cancel := context.WithCancel(ctx)
	e := &Attempt{t: t, Cancel: cancel, Done: make(chan struct{})}
	go func() {
		defer close(e.Done)
		e.Lease, e.Err = acquire(ctx)
	}()
	return e
}

// Begin makes a Lock call in a goroutine. It is canceled at the end of the test.
func Begin(t testing.TB, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) *Attempt {
	t.Helper()
	e := Call(t, ctx, func(ctx context.Context) (*rlock.Lease, error) { return l.Lock(ctx, opts...) })
	t.Cleanup(func() {
		e.Cancel()
		<-e.Done
		if e.Err == nil {
			_ = e.Lease.Unlock(bg)
		}
	})
	return e
}

// Held waits until the call has returned, with a lease.
func (e *Attempt) Held() *rlock.Lease {
	e.t.Helper()
	select {
	case <-e.Done:
	case <-time.After(Patience):
		e.t.Fatal("waited too long for the lease")
	}
	if e.Err != nil {
		e.t.Fatal(e.Err)
	}
	return e.Lease
}

// Waits reports whether the call has not returned.
func (e *Attempt) Waits() bool {
	select {
	case <-e.Done:
		return false
	default:
		return true
	}
}

// MustWait checks that the call does not return immediately.
func (e *Attempt) MustWait() {
	e.t.Helper()
	select {
	case <-e.Done:
		e.t.Fatalf("it does not wait: %v, %v", e.Lease, e.Err)
	case <-time.After(5 * time.Millisecond):
	}
}

// GiveUp cancels the call and returns its error.
func (e *Attempt) GiveUp() error {
	e.Cancel()
	<-e.Done
	return e.Err
}

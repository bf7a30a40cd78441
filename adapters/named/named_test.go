package named_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/named"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// locker is what a program has of its own.
type locker interface {
	Lock(ctx context.Context, key string) error
	Unlock(ctx context.Context, key string) error
}

var _ locker = (*named.Locks)(nil)

func newLocks(t testing.TB, client *rlock.Client, opts ...rlock.AcquireOption) *named.Locks {
	t.Helper()
	l, err := named.New(client, "lock:", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Two processes with ten goroutines each change accounts.
func TestOneAtATimeForEachKey(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var wg sync.WaitGroup
	var mu sync.Mutex // guards inside
	inside := map[string]int{}
	for range 2 {
		var l locker = newLocks(t, locktest.NewClient(t, srv.Client()))
		for i := range 10 {
			wg.Go(func() {
				for range 5 {
					key := []string{"7", "8"}[i%2]
					if err := l.Lock(t.Context(), key); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if inside[key]++; inside[key] > 1 {
						t.Errorf("%d have the lock of %s", inside[key], key)
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					inside[key]--
					mu.Unlock()
					if err := l.Unlock(t.Context(), key); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestKeysMayBeAnything(t *testing.T) {
	t.Parallel()
	l := newLocks(t, rlocktest.New(t).Client())
	keys := []string{"a", "A", " a", "a:b", "a%3Ab", "{", "}{", "a{b}", "\x00", "\xff", "*", strings.Repeat("x", 100_000), strings.Repeat("x", 100_001)}
	keys = append(keys, strings.TrimPrefix(l.Name(keys[len(keys)-1]), "lock:"))
	for _, key := range keys { // each has a lock of its own, or this would wait
		if ok, err := l.TryLock(t.Context(), key); !ok || err != nil {
			t.Errorf("%.20q: %v, %v", key, ok, err)
		}
	}
	for _, key := range keys {
		if err := l.Unlock(t.Context(), key); err != nil {
			t.Errorf("%.20q: %v", key, err)
		}
	}
}

func TestUnlockWithAnEndedContext(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := newLocks(t, srv.Client())
	ctx, cancel := context.WithCancel(t.Context())
	if err := l.Lock(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if ok, err := l.TryLock(ctx, "a"); ok || err != nil {
		t.Errorf("TryLock of a lock that is held: %v, %v", ok, err)
	}
	cancel()
	if err := l.Lock(ctx, "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock: %v", err)
	}
	if ok, err := l.TryLock(ctx, "a"); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("TryLock: %v, %v", ok, err)
	}
	if err := l.Unlock(ctx, "a"); err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, srv.NewClient().NewLock("lock:a"))
	if err := l.Unlock(ctx, "a"); !errors.Is(err, rlock.ErrNotHeld) {
		t.Errorf("a second Unlock: %v", err)
	}
}

// The first Unlock after a loss is not that of the next hold.
func TestUnlockAfterALossDoesNotFreeTheNextHold(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := newLocks(t, srv.Client())
	mutex, reports := newMutex(t, srv.Client().NewLock("lock:m"))
	if err := l.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	mutex.Lock()
	srv.Remove("lock:a")
	srv.Remove("lock:m")
	if err := l.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	mutex.Lock()
	if err := l.Unlock(t.Context(), "a"); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("the first Unlock: %v", err)
	}
	mutex.Unlock()
	if err := <-reports; !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("the first Unlock of a Mutex: %v", err)
	}
	other := srv.NewClient()
	locktest.MustBeHeld(t, other.NewLock("lock:a"), other.NewLock("lock:m"))
	if err := l.Unlock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	mutex.Unlock()
	locktest.MustBeFree(t, other.NewLock("lock:a"), other.NewLock("lock:m"))
}

func TestDoTellsTheFunctionOfALoss(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	l := newLocks(t, srv.Client(), rlock.WithWait(0))
	err := l.Do(t.Context(), "a", func(ctx context.Context) error {
		if lease, ok := rlock.LeaseFrom(ctx); !ok || lease.Token() <= 0 {
			t.Errorf("the lease is %v", lease)
		}
		srv.Remove("lock:a")
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, rlock.ErrLeaseLost) {
		t.Error(err)
	}
	other := srv.Steal("lock:a")
	never := func(context.Context) error { t.Error("it ran"); return nil }
	if err := l.Do(t.Context(), "a", never); !errors.Is(err, rlock.ErrNotRun) || !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
	if err := l.Lock(t.Context(), "a"); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("Lock does not heed the option: %v", err)
	}
	locktest.MustUnlock(t, other)
	for _, err := range []error{l.Lock(t.Context(), ""), l.Do(t.Context(), "", never), func() error { _, err := l.TryLock(t.Context(), ""); return err }()} {
		if !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("an empty key: %v", err)
		}
	}
}

func newMutex(t testing.TB, lock rlock.Locker) (*named.Mutex, chan error) {
	t.Helper()
	reports := make(chan error, 1000)
	m, err := named.NewMutex(lock, func(err error) { reports <- err })
	if err != nil {
		t.Fatal(err)
	}
	return m, reports
}

// A sync.Cond wants a sync.Locker.
func TestMutexIsASyncLocker(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	m, reports := newMutex(t, srv.Client().NewLock("m"))
	cond, ready := sync.NewCond(m), false
	done := make(chan struct{})
	go func() {
		cond.L.Lock()
		for !ready {
			cond.Wait()
		}
		cond.L.Unlock()
		close(done)
	}()
	cond.L.Lock()
	ready = true
	cond.L.Unlock()
	cond.Broadcast()
	<-done
	if len(reports) > 0 {
		t.Error(<-reports)
	}
	locktest.MustBeFree(t, srv.NewClient().NewLock("m"))
}

func TestMutexWaitsOutAnOutageAndPanicsWhereWaitingDoesNotHelp(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	client := srv.NewClient(rlock.WithCommandTimeout(50*time.Millisecond), rlock.WithWatchdogLease(300*time.Millisecond))
	m, reports := newMutex(t, client.NewLock("m"))
	srv.Fail("NOPERM no")
	locked := make(chan struct{})
	go func() { m.Lock(); close(locked) }()
	if err := <-reports; !errors.Is(err, rlock.ErrRefused) {
		t.Errorf("in an outage: %v", err)
	}
	srv.Recover()
	<-locked
	m.Unlock()
	panics := func(what string, fn func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s does not panic", what)
			}
		}()
		fn()
	}
	panics("Unlock without Lock", m.Unlock)
	invalid, _ := newMutex(t, client.NewLock(""))
	panics("a lock without a name", invalid.Lock)
	locktest.MustClose(t, client)
	panics("a closed client", m.Lock)
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	client := rlocktest.New(t).Client()
	_, noClient := named.New(nil, "")
	_, noOption := named.New(client, "", nil)
	_, noLock := named.NewMutex(nil, func(error) {})
	_, noReport := named.NewMutex(client.NewLock("a"), nil)
	for _, err := range []error{noClient, noOption, noLock, noReport} {
		if !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Error(err)
		}
	}
}

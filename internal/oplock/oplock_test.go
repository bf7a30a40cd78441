package oplock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Operations are admitted in order, and one that has stopped waiting is passed over.
func TestOperationsAreAdmittedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ops Lock
		if !ops.TryTake() || ops.TryTake() {
			t.Fatal("a fresh lock admits one")
		}
		var mu sync.Mutex
		var order []int
		stop := make([]context.CancelFunc, 6)
		for i := range stop {
			var ctx context.Context
			ctx, stop[i] = context.WithCancel(t.Context())
			go func() {
				err := ops.Take(ctx, nil, false)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					order = append(order, -i)
					return
				}
				order = append(order, i)
				ops.Give()
			}()
			synctest.Wait()
		}
		stop[2]()
		synctest.Wait()
		ops.Give()
		synctest.Wait()
		want := []int{-2, 0, 1, 3, 4, 5}
		for i, n := range want {
			if i >= len(order) || order[i] != n {
				t.Fatalf("admitted %v, want %v", order, want)
			}
		}
		if !ops.TryTake() {
			t.Error("it is not free at the end")
		}
	})
}

// Those that do not wait while another waits for the lock leave when that begins, and only
// they do.
func TestOperationsThatDoNotWaitAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ops Lock
		ops.TryTake()
		errs := make([]error, 4)
		for i := range errs {
			go func() {
				errs[i] = ErrClosing // not decided
				errs[i] = ops.Take(t.Context(), nil, i%2 == 0)
			}()
			synctest.Wait()
		}
		ops.SetEntering(true)
		synctest.Wait()
		if err := ops.Take(t.Context(), nil, true); !errors.Is(err, ErrEntering) {
			t.Errorf("one that comes later: %v", err)
		}
		for i, err := range errs {
			if want := []error{ErrEntering, ErrClosing}[i%2]; !errors.Is(err, want) {
				t.Errorf("operation %d: %v, want %v", i, err, want)
			}
		}
		ops.SetEntering(false)
		for i := 1; i < len(errs); i += 2 {
			ops.Give()
			synctest.Wait()
			if errs[i] != nil {
				t.Errorf("operation %d: %v", i, errs[i])
			}
		}
		ops.Give()
		if !ops.TryTake() {
			t.Error("it is not free at the end")
		}
	})
}

// An operation that is admitted in the moment in which it stops waiting does not take the
// lock with it.
func TestOperationsThatStopWaitingLoseNothing(t *testing.T) {
	var ops Lock
	var inside int // guarded by ops
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20))*time.Microsecond)
				if ops.Take(ctx, nil, false) == nil {
					if inside++; inside != 1 {
						t.Errorf("%d are inside", inside)
					}
					inside--
					ops.Give()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if !ops.TryTake() {
		t.Error("it is taken, by nobody")
	}
}

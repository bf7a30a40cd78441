package rlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Operations are admitted in order, and one that has stopped waiting is passed over.
func TestOperationsAreAdmittedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ops opLock
		if !ops.tryTake() || ops.tryTake() {
			t.Fatal("a fresh opLock admits one")
		}
		var mu sync.Mutex
		var order []int
		stop := make([]context.CancelFunc, 6)
		for i := range stop {
			var ctx context.Context
			ctx, stop[i] = context.WithCancel(t.Context())
			go func() {
				err := ops.take(ctx, nil)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					order = append(order, -i)
					return
				}
				order = append(order, i)
				ops.give()
			}()
			synctest.Wait()
		}
		stop[2]()
		synctest.Wait()
		ops.give()
		synctest.Wait()
		want := []int{-2, 0, 1, 3, 4, 5}
		for i, n := range want {
			if i >= len(order) || order[i] != n {
				t.Fatalf("admitted %v, want %v", order, want)
			}
		}
		if !ops.tryTake() {
			t.Error("it is not free at the end")
		}
	})
}

// Those that do not wait while another waits for the lock leave when that begins, and only
// they do.
func TestOperationsThatDoNotWaitAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ops opLock
		ops.tryTake()
		errs := make([]error, 4)
		for i := range errs {
			take := ops.take
			if i%2 == 0 {
				take = ops.takeUnlessEntering
			}
			go func() {
				errs[i] = ErrClosed // not decided
				errs[i] = take(t.Context(), nil)
			}()
			synctest.Wait()
		}
		ops.setEntering(true)
		synctest.Wait()
		if err := ops.takeUnlessEntering(t.Context(), nil); !errors.Is(err, errEntering) {
			t.Errorf("one that comes later: %v", err)
		}
		for i, err := range errs {
			if want := []error{errEntering, ErrClosed}[i%2]; !errors.Is(err, want) {
				t.Errorf("operation %d: %v, want %v", i, err, want)
			}
		}
		ops.setEntering(false)
		for i := 1; i < len(errs); i += 2 {
			ops.give()
			synctest.Wait()
			if errs[i] != nil {
				t.Errorf("operation %d: %v", i, errs[i])
			}
		}
		ops.give()
		if !ops.tryTake() {
			t.Error("it is not free at the end")
		}
	})
}

// An operation that is admitted in the moment in which it stops waiting does not take the
// opLock with it.
func TestOperationsThatStopWaitingLoseNothing(t *testing.T) {
	var ops opLock
	var inside int // guarded by ops
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20))*time.Microsecond)
				if ops.take(ctx, nil) == nil {
					if inside++; inside != 1 {
						t.Errorf("%d are inside", inside)
					}
					inside--
					ops.give()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if !ops.tryTake() {
		t.Error("it is taken, by nobody")
	}
}

// What an owner does at one lock costs the same however many others it holds.
func TestLookingUpALockOfAnOwnerDoesNotWalkTheOthers(t *testing.T) {
	c := &Client{cfg: defaults()}
	look := func(holding int) time.Duration {
		own := &owner{}
		for i := range holding {
			l, _ := newCore(c, hashFamily, strconv.Itoa(i), lockConfig{}, nil)
			own.at(l) // in use, and so kept
		}
		l, _ := newCore(c, hashFamily, strconv.Itoa(holding-1), lockConfig{}, nil)
		least := time.Hour
		for range 20 {
			start := time.Now()
			for range 1000 {
				own.at(l).leave()
			}
			least = min(least, time.Since(start)/1000)
		}
		return least
	}
	few, many := look(1), look(16_000)
	t.Logf("holding 1 lock: %v, 16,000: %v", few, many)
	if many > 20*few {
		t.Errorf("a look takes %v for one who holds 16,000 locks, %v for one who holds 1", many, few)
	}
}

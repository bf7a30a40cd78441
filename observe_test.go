package rlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestObserverIsTold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		r := &locktest.Recorder{}
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithObserver(r))
		l := c.NewLock("a")
		last := func() rlock.AcquireEvent { return r.Acquires[len(r.Acquires)-1] }

		outer := locktest.MustLock(t, l)
		if e := last(); e.Lock != "a" || e.HoldID != outer.HoldID() || e.Token != outer.Token() || e.Attempts != 1 || e.Reentry || e.Err != nil || e.Wait <= 0 {
			t.Errorf("first entry: %+v", e)
		}
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		if e := last(); !e.Reentry || e.HoldID != outer.HoldID() || e.Err != nil {
			t.Errorf("re-entry: %+v", e)
		}
		_, err := l.TryLock(bg)
		if e := last(); e.Err == nil || e.Err.Error() != err.Error() || e.HoldID != "" || e.Token != 0 {
			t.Errorf("refused: %+v", e)
		}
		if r.Contentions != 0 {
			t.Errorf("TryLock does not wait, but is told as contended")
		}
		const wait = time.Second // long enough for the answer to a look
		if _, err = l.Lock(bg, rlock.WithWait(wait)); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if e := last(); !errors.Is(e.Err, rlock.ErrNotAcquired) || e.Wait < wait || r.Contentions != 1 {
			t.Errorf("waited in vain: %+v, contended %d", e, r.Contentions)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)
		if len(r.Unlocks) != 2 || r.Unlocks[1].HoldID != outer.HoldID() || r.Unlocks[1].Token != outer.Token() || r.Unlocks[1].Err != nil || r.Unlocks[1].Held <= 0 {
			t.Errorf("unlocked: %+v", r.Unlocks)
		}

		lost := locktest.MustLock(t, l)
		rdb.Del(bg, "a")
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost)
		if e := r.Unlocks[2]; !errors.Is(e.Err, rlock.ErrRemoved) {
			t.Errorf("unlock of what was lost: %+v", e)
		}
		fixed := locktest.MustLock(t, l, rlock.WithLease(locktest.Ample(200*time.Millisecond)))
		<-fixed.Done()
		locktest.Eventually(t, "both losses are told", func() bool {
			r.Mu.Lock()
			defer r.Mu.Unlock()
			return len(r.Losses) == 2
		})
		r.Mu.Lock()
		defer r.Mu.Unlock()
		if e := r.Losses[0]; e.HoldID != lost.HoldID() || e.Token != lost.Token() || !errors.Is(e.Cause, rlock.ErrRemoved) {
			t.Errorf("removed: %+v", e)
		}
		if e := r.Losses[1]; e.HoldID != fixed.HoldID() || !errors.Is(e.Cause, rlock.ErrExpired) || e.Held <= 0 {
			t.Errorf("expired: %+v", e)
		}
		if r.Starts != len(r.Acquires) {
			t.Errorf("%d acquires began, %d ended", r.Starts, len(r.Acquires))
		}
	})
}

// contended counts acquires that found the lock held.
type contended struct {
	locktest.Ignoring
	n atomic.Int64
}

func (o *contended) Contended(context.Context, rlock.ContentionEvent) { o.n.Add(1) }

func TestContendedIsToldOnceWhereTheClientListens(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &contended{}
	mine := b.NewClient(t).NewPriorityLock("a")
	theirs := locktest.NewClient(t, b.Client(t), rlock.WithObserver(o)).NewPriorityLock("a")
	wait := func() {
		lease := locktest.MustLock(t, mine)
		next := locktest.Begin(t, bg, theirs)
		locktest.Eventually(t, "it waits", func() bool { return o.n.Load() > 0 })
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next.Held())
	}
	wait()
	o.n.Store(0)
	locktest.MustUnlock(t, locktest.MustLock(t, theirs))
	if n := o.n.Load(); n != 0 {
		t.Errorf("%d times for a lock that was free", n)
	}
	wait()
	if n := o.n.Load(); n != 1 {
		t.Errorf("%d times for one wait", n)
	}
}

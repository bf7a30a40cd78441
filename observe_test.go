package rlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// recorder keeps what an Observer is told.
type recorder struct {
	rlock.NopObserver
	mu        sync.Mutex // guards the rest
	started   int
	acquired  []rlock.AcquireEvent
	contended int
	unlocked  []rlock.UnlockEvent
	lost      []rlock.LossEvent
}

type spanKey struct{}

func (r *recorder) AcquireStart(ctx context.Context, _ string) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started++
	return context.WithValue(ctx, spanKey{}, r.started)
}

func (r *recorder) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Value(spanKey{}) != r.started {
		e.Err = errors.New("AcquireEnd without the context of AcquireStart")
	}
	r.acquired = append(r.acquired, e)
}

func (r *recorder) Contended(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contended++
}

func (r *recorder) Unlocked(e rlock.UnlockEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unlocked = append(r.unlocked, e)
}

func (r *recorder) Lost(e rlock.LossEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, e)
}

func TestObserverIsTold(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		r := &recorder{}
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithObserver(r))
		l := c.NewLock("a")
		last := func() rlock.AcquireEvent { return r.acquired[len(r.acquired)-1] }

		outer := mustLock(t, l)
		if e := last(); e.Lock != "a" || e.Owner != outer.Owner() || e.Token != outer.Token() || e.Attempts != 1 || e.Reentry || e.Err != nil || e.Wait <= 0 {
			t.Errorf("first entry: %+v", e)
		}
		inner := mustLockCtx(t, outer.Context(bg), l)
		if e := last(); !e.Reentry || e.Owner != outer.Owner() || e.Err != nil {
			t.Errorf("re-entry: %+v", e)
		}
		_, err := l.TryLock(bg)
		if e := last(); e.Err == nil || e.Err.Error() != err.Error() || e.Owner != "" || e.Token != 0 {
			t.Errorf("refused: %+v", e)
		}
		if r.contended != 0 {
			t.Errorf("TryLock does not wait, but is told as contended")
		}
		if _, err = l.Lock(bg, rlock.WithWait(50*time.Millisecond)); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if e := last(); !errors.Is(e.Err, rlock.ErrNotAcquired) || e.Wait < 50*time.Millisecond || r.contended != 1 {
			t.Errorf("waited in vain: %+v, contended %d", e, r.contended)
		}
		mustUnlock(t, inner)
		mustUnlock(t, outer)
		if len(r.unlocked) != 2 || r.unlocked[1].Owner != outer.Owner() || r.unlocked[1].Token != outer.Token() || r.unlocked[1].Err != nil || r.unlocked[1].Held <= 0 {
			t.Errorf("unlocked: %+v", r.unlocked)
		}

		lost := mustLock(t, l)
		rdb.Del(bg, "a")
		wantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost)
		if e := r.unlocked[2]; !errors.Is(e.Err, rlock.ErrRemoved) {
			t.Errorf("unlock of what was lost: %+v", e)
		}
		fixed := mustLock(t, l, rlock.WithLease(ample(200*time.Millisecond)))
		<-fixed.Done()
		eventually(t, "both losses are told", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.lost) == 2
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		if e := r.lost[0]; e.Owner != lost.Owner() || e.Token != lost.Token() || !errors.Is(e.Cause, rlock.ErrRemoved) {
			t.Errorf("removed: %+v", e)
		}
		if e := r.lost[1]; e.Owner != fixed.Owner() || !errors.Is(e.Cause, rlock.ErrExpired) || e.Held <= 0 {
			t.Errorf("expired: %+v", e)
		}
		if r.started != len(r.acquired) {
			t.Errorf("%d acquires began, %d ended", r.started, len(r.acquired))
		}
	})
}

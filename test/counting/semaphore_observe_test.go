package counting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// noted is an Observer that notes what it is told, and gives each acquire a context of its own.
type noted struct {
	locktest.Ignoring
	mu   sync.Mutex // guards said
	said []string
}

type acquireKey struct{}

func (o *noted) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said = append(o.said, fmt.Sprintf(format, args...))
}

func (o *noted) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	return context.WithValue(ctx, acquireKey{}, e.Lock)
}

func (o *noted) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	if e.Type == "CountDownLatch" {
		o.note("%s waited: %v", e.Lock, e.Err)
		return
	}
	o.note("%v: %d looks for %d, refused %v", ctx.Value(acquireKey{}), e.Attempts, e.Permits, errors.Is(e.Err, rlock.ErrNotAcquired))
}

func (o *noted) Contended(_ context.Context, e rlock.ContentionEvent) {
	o.note("%s is contended", e.Lock)
}

func (o *noted) Unlocked(_ context.Context, e rlock.UnlockEvent) {
	o.note("%s is released: %v", e.Lock, e.Err)
}

// An Observer sees acquires and releases of permits, and who begins to wait.
func TestObserverGetsTheNumberOfPermits(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		o := &noted{}
		c := b.NewClient(t, rlock.WithObserver(o))
		s, l := c.NewSemaphore("s"), c.NewCountDownLatch("l")
		is(t, true)(s.TrySetPermits(bg, 1))
		is(t, true)(l.TrySetCount(bg, 1))
		ok(t, s.Acquire(bg, 1))
		locktest.WantErr(t, s.TryAcquire(bg, 1), rlock.ErrNotAcquired)
		ok(t, s.Release(bg, 1))
		ctx, cancel := context.WithCancel(bg)
		done := begun(func() error { return l.Wait(ctx) })
		locktest.Eventually(t, "it waits", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return slices.Contains(o.said, "l is contended")
		})
		cancel()
		err := ended(t, done)
		locktest.WantErr(t, err, context.Canceled, nil, rlock.ErrNotAcquired)
		if want := `rlock: "l": context canceled; left to count down: 1`; err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		want := []string{"s: 1 looks for 1, refused false", "s: 1 looks for 1, refused true", "s is released: <nil>", "l is contended", "l waited: " + err.Error()}
		if !slices.Equal(o.said, want) {
			t.Errorf("%q, want %q", o.said, want)
		}
	})
}

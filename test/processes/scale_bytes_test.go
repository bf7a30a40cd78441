package processes

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A held lock costs bytes, and no goroutine: all that its hold keeps alive is counted, with the
// Lock that the caller has dropped, and its name. An Observer costs what its events have to say.
func TestBytesOfAHeldLock(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) || locktest.UnderRace() {
		return
	}
	b := locktest.OnServer(t)
	t.Run("unobserved", func(t *testing.T) { heldBytes(t, b.NewClient(t), 376) })
	t.Run("for an Observer", func(t *testing.T) { heldBytes(t, b.NewClient(t, rlock.WithObserver(locktest.NoObserver{})), 476) })
}

func heldBytes(t *testing.T, c *rlock.Client, most float64) {
	const locks = 10_000
	held := make([]*rlock.Lease, locks)
	take := func(from, to int) {
		var next atomic.Int64
		next.Store(int64(from))
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < int64(to); i = next.Add(1) - 1 {
					var err error // the Observer's events have the context of the acquire: all share one here
					if held[i], err = c.NewLock("held:" + strconv.FormatInt(i, 10)).Lock(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	for range 100 {
		take(0, 100) // opens connections, fills pools
		for _, l := range held[:100] {
			locktest.MustUnlock(t, l)
		}
	}
	before, goroutines := locktest.Heap(), runtime.NumGoroutine()
	take(0, locks)
	after := locktest.Heap()
	each := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / locks
	inUse := (float64(after.HeapInuse) - float64(before.HeapInuse)) / locks
	t.Logf("%.0f bytes for each held lock, %.0f of spans, %d more goroutines", each, inUse, runtime.NumGoroutine()-goroutines)
	if each > most {
		t.Errorf("a held lock costs %.0f bytes, want %.0f", each, most)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 10 {
		t.Errorf("%d more goroutines", more)
	}
	for _, l := range held {
		locktest.MustUnlock(t, l)
	}
}

package scale

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
// Lock that the caller has dropped, and its name.
func TestBytesOfAHeldLock(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) || locktest.UnderRace() {
		return
	}
	const locks, most = 10_000, 360
	b := locktest.OnServer(t)
	c := b.NewClient(t)
	held := make([]*rlock.Lease, locks)
	take := func(from, to int) {
		var next atomic.Int64
		next.Store(int64(from))
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < int64(to); i = next.Add(1) - 1 {
					held[i] = locktest.MustLock(t, c.NewLock("held:"+strconv.FormatInt(i, 10)))
				}
			})
		}
		wg.Wait()
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
		t.Errorf("a held lock costs %.0f bytes, want %d", each, most)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 10 {
		t.Errorf("%d more goroutines", more)
	}
	for _, l := range held {
		locktest.MustUnlock(t, l)
	}
}

package processes

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Short leases last in a process whose only processor is wanted by goroutines that never wait: each answer is read when
// all of these have had their turn, and a renewal takes no more than one answer.
func TestHoldsOfABusyProcess(t *testing.T) {
	locktest.Nightly(t)
	if !locktest.Alone(t) {
		return
	}
	busy := 64 // of 10 ms each: a goroutine that is woken waits for 0.64 s
	if testing.Short() {
		busy = 12 // beside tests of other packages, which may take most of this process' turns
	}
	const (
		lease   = 3 * time.Second
		holds   = 300
		longest = lease * 3 / 5 // an answer that takes longer is too late in any case: renewals begin after a third
	)
	ctx := context.Background()
	b := locktest.OnServer(t)
	c := locktest.NewClient(t, b.Client(t), rlock.WithWatchdogLease(lease))
	beside := b.Client(t)
	beside.Set(ctx, "beside", 1, 0)
	var held []*rlock.Lease
	for i := range holds {
		held = append(held, locktest.MustLock(t, c.NewLock("held:"+strconv.Itoa(i))))
	}
	if err := held[0].Extend(ctx, lease); err != nil { // the server knows the scripts: a text is one answer more
		t.Fatal(err)
	}
	last := held[holds-1]
	was := last.Deadline()
	locktest.Eventually(t, "they are renewed", func() bool { return last.Deadline().After(was) })

	runtime.GOMAXPROCS(1)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for range busy {
		wg.Go(func() {
			for n := 1; ; n++ {
				if n%1e6 == 0 {
					select {
					case <-quit:
						return
					default:
					}
				}
			}
		})
	}
	slowest := time.Duration(0)
	for began := time.Now(); time.Since(began) < 4*lease; {
		sent := time.Now()
		beside.PExpire(ctx, "beside", time.Minute)
		slowest = max(slowest, time.Since(sent))
	}
	lost := 0
	for _, l := range held {
		if l.Err() != nil {
			lost++
		}
	}
	close(quit)
	wg.Wait()
	t.Logf("%d of %d holds were lost; the slowest PEXPIRE of go-redis took %v", lost, holds, slowest)
	switch {
	case slowest > longest:
		t.Skipf("a PEXPIRE took %v: this machine is too slow for such leases", slowest)
	case lost > 0:
		t.Errorf("%d of %d holds were lost", lost, holds)
	}
}

package processes

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Thousands of holds of a client whose server is 0.2 s away are renewed in time. One pipeline after the other would
// take longer than the lease.
func TestHoldsAreRenewedByAServerFarAway(t *testing.T) {
	locktest.Nightly(t)
	const (
		way   = 200 * time.Millisecond
		lease = 6 * time.Second
	)
	holds := 4_000
	if testing.Short() {
		holds = 500
	}
	b := locktest.OnServer(t)
	proxy := faultproxy.New(t, b.Addr)
	c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), rlock.WithWatchdogLease(lease))

	ctx := context.Background()
	held := make([]*rlock.Lease, holds)
	var wg sync.WaitGroup
	for i := range holds {
		wg.Go(func() {
			l, err := c.NewLock("held:" + strconv.Itoa(i)).Lock(ctx)
			if err != nil {
				t.Error(err)
			}
			held[i] = l
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	proxy.Delay(func(faultproxy.Command) time.Duration { return way })
	select { // the time of the renewals is the subject
	case <-held[0].Done():
	case <-time.After(2*lease + lease/2):
	}
	lost := 0
	for _, l := range held {
		if l.Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d holds were lost: %v", lost, holds, held[0].Err())
	}
	proxy.Delay(nil)
}

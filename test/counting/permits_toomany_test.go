package counting

import (
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Of many that wait for more permits than there are, only one looks, as of those that wait in
// any line; and all of them enter when there are enough.
func TestWaitersForTooManyPermitsShareTheirRequests(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const waiters, poll = 50, 20 * time.Millisecond
		rdb := b.Client(t)
		looks := &locktest.SentCommands{}
		rdb.AddHook(looks)
		s := locktest.NewClient(t, rdb, rlock.WithLongestPoll(poll)).NewPermitSemaphore("s")
		plain := permitsOf(t, b.NewClient(t), "s", 2)
		var all []*locktest.Attempt
		for range waiters {
			all = append(all, acquires(t, s, 3))
		}
		other := acquires(t, s, 4) // does not wait behind them, nor they behind it
		locktest.Eventually(t, "all have looked", func() bool { return looks.N.Load() > waiters })
		looks.N.Store(0)
		start := time.Now()
		time.Sleep(10 * poll)
		// Two of them look, once in each poll; and some may just have come there.
		if n, most := looks.N.Load(), int64(2*time.Since(start)/poll+waiters); n > most {
			t.Errorf("%d looks in %v, want at most %d", n, time.Since(start), most)
		}
		if err := plain.AddPermits(bg, 1); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, w := range all {
			wg.Go(func() {
				<-w.Done
				locktest.MustUnlock(t, w.Lease)
			})
		}
		wg.Wait()
		other.MustWait()
		other.GiveUp()
	})
}

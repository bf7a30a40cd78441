package processes

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A renewal may be under way when a hold is detached, and give it a whole watchdog lease once more: the offer is there
// for longer than that, however short the rest of the lease was.
func TestAnOfferOutlastsARenewalUnderWay(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t, patient)
	l := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Minute))
	id := l.HoldID()
	handle := detach(t, l)
	if ttl := b.Mini.TTL("{a}:rlock:gone:" + id); ttl <= long {
		t.Errorf("the offer lasts for %v, and a watchdog lease for %v", ttl, long)
	}
	locktest.MustUnlock(t, adopt(t, c, handle))
}

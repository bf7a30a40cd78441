package counting

import (
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Redis knows that it has changed the number of permits for as long as the request may be sent
// again: otherwise the second copy would change it once more. With a longer command timeout it
// is not sent for all of that.
func TestAChangeIsKnownForAsLongAsItIsSent(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const longest = 9 * time.Minute // sent again after half of it, and more often after errors
		rdb := b.Client(t)
		c := b.NewClient(t, rlock.WithCommandTimeout(time.Hour))
		for name, s := range map[string]*rlock.PermitSemaphore{
			"plain": c.NewPermitSemaphore("plain"), "fair": c.NewPermitSemaphore("fair", rlock.WithFairness()),
		} {
			if _, err := s.TrySetPermits(bg, 1); err != nil {
				t.Fatal(err)
			}
			ok(t, s.AddPermits(bg, 1))
			ok(t, s.SetPermits(bg, 3))
			records := 0
			for _, key := range locktest.Keys(t, rdb) {
				if !strings.HasPrefix(key, "{"+name+"}:rlock:op:") {
					continue
				}
				records++
				if ttl := rdb.PTTL(bg, key).Val(); ttl < longest {
					t.Errorf("%s: known for %v", key, ttl)
				}
			}
			if records != 2 { // that of the page, and the latest SetPermits
				t.Errorf("%s: %d records", name, records)
			}
		}
	})
}

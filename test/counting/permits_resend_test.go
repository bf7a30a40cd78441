package counting

import (
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Redis knows that it has changed the number of permits for as long as the request may be sent
// again: otherwise the second copy would change it once more.
func TestAChangeIsKnownForAsLongAsItIsSent(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const timeout = 10 * time.Minute // sent again after half of it, and more often after errors
		rdb := b.Client(t)
		c := b.NewClient(t, rlock.WithCommandTimeout(timeout))
		for name, s := range map[string]*rlock.PermitSemaphore{
			"plain": c.NewPermitSemaphore("plain"), "fair": c.NewPermitSemaphore("fair", rlock.WithFairness()),
		} {
			if _, err := s.TrySetPermits(bg, 1); err != nil {
				t.Fatal(err)
			}
			if err := s.AddPermits(bg, 1); err != nil {
				t.Fatal(err)
			}
			records := 0
			for _, key := range locktest.Keys(t, rdb) {
				if !strings.HasPrefix(key, "{"+name+"}:rlock:done:") {
					continue
				}
				records++
				if ttl := rdb.PTTL(bg, key).Val(); ttl < timeout {
					t.Errorf("%s: known for %v", key, ttl)
				}
			}
			if records != 2 {
				t.Errorf("%s: %d records", name, records)
			}
		}
	})
}

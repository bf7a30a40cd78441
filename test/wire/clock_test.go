package wire

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// However many names there are, one fencing clock is left of them, below the prefix of the client.
func TestManyNamesLeaveOneKey(t *testing.T) {
	t.Parallel()
	manyNames(t, 500)
}

func TestTenThousandNamesLeaveOneKey(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	manyNames(t, 10_000)
}

func manyNames(t *testing.T, names int) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		plain, app := b.NewClient(t), b.NewClient(t, rlock.WithPrefix("app:"))
		tagged := b.NewClient(t, rlock.WithPrefix("{app}:"))
		var all sync.WaitGroup
		const callers = 50
		for i := range callers {
			all.Go(func() {
				for n := range names / callers {
					name := fmt.Sprint("order:", i, ":", n)
					for _, c := range []*rlock.Client{plain, app, tagged}[:1+2*(n%2)] {
						lease, err := c.NewLock(name).TryLock(bg)
						if err == nil {
							err = lease.Unlock(bg)
						}
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
				}
			})
		}
		all.Wait()
		keys := slices.DeleteFunc(rdb.Keys(bg, "*").Val(), func(key string) bool {
			return locktest.IsClient(key) || locktest.Tombstones([]string{key}) > 0 // after a reply that was late
		})
		slices.Sort(keys)
		if want := []string{"app:rlock:clock", "rlock:clock", "{app}:rlock:clock"}; !slices.Equal(keys, want) {
			t.Errorf("left: %d keys, such as %.20q; want %q", len(keys), keys, want)
		}
	})
}

func TestWithPrefixNeedsAUsableHashTag(t *testing.T) {
	b := locktest.OnMiniredis(t)
	for _, prefix := range []string{"{", "a{b:", "{}", "{}app:", "a{}{b}"} {
		if _, err := rlock.New(b.Client(t), rlock.WithPrefix(prefix)); err == nil {
			t.Errorf("WithPrefix(%q) was accepted", prefix)
		}
	}
	for _, prefix := range []string{"", "app:", "{app}", "a{b}c{", "{{a}:"} {
		locktest.Pair(t, b.NewClient(t, rlock.WithPrefix(prefix)).NewLock("a"))
	}
}

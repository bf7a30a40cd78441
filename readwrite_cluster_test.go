package rlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// While a slot moves from one node to another, key by key, each node has a part
// of a lock: the timers that a script does not find may be elsewhere. Nobody
// may take that for the death of a reader, and readers can leave meanwhile.
func TestReadWriteLockWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for what, first := range map[string]func(name string, timers []any) []any{
		"timers first": func(_ string, timers []any) []any { return timers },
		"lock first":   func(name string, _ []any) []any { return []any{name} },
	} {
		t.Run(what, func(t *testing.T) {
			rdb := c.Client()
			name := "{rw-moves " + what + "}"
			slot := c.Slot(name)
			short := rlock.WithCommandTimeout(500 * time.Millisecond)
			watched := locktest.NewClient(t, c.Client(), short, rlock.WithWatchdogLease(8*time.Second)).NewReadWriteLock(name)
			other := locktest.NewClient(t, c.Client(), short).NewReadWriteLock(name)
			fixed := locktest.MustLock(t, other.Reader, rlock.WithLease(10*time.Minute))
			renewed := locktest.MustLock(t, watched.Reader)
			leaves := locktest.MustLock(t, other.Reader)
			again := locktest.MustLockCtx(t, leaves.Context(bg), other.Reader)
			timers := []any{locktest.ReaderTimer(name, fixed.Owner(), 1), locktest.ReaderTimer(name, renewed.Owner(), 1), locktest.ReaderTimer(name, leaves.Owner(), 1), locktest.ReaderTimer(name, leaves.Owner(), 2)}

			from := c.MasterOf(slot)
			to := elsewhere(c, slot)
			id := func(s *redistest.Server) string { return s.Client().ClusterMyID(bg).Val() }
			for _, step := range []*redis.Cmd{
				to.Client().Do(bg, "cluster", "setslot", slot, "importing", id(from)),
				from.Client().Do(bg, "cluster", "setslot", slot, "migrating", id(to)),
				from.Client().Do(bg, append([]any{"migrate", "127.0.0.1", to.Port(), "", 0, 5000, "keys"}, first(name, timers)...)...),
			} {
				if err := step.Err(); err != nil {
					t.Fatal(err)
				}
			}
			_, err := watched.Writer.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrUnreachable)
			if !strings.Contains(err.Error(), "TRYAGAIN") {
				t.Errorf("a writer: %v", err)
			}
			locktest.MustUnlock(t, again)
			locktest.MustUnlock(t, leaves)
			s, err := watched.Reader.State(bg)
			if err != nil || len(s.Holders) != 2 {
				t.Errorf("while the slot moves: %+v, %v", s, err)
			}
			c.MigrateSlotWith(slot, to, func() {})

			was := renewed.Deadline()
			locktest.Eventually(t, "it is renewed", func() bool { return renewed.Deadline().After(was) })
			for _, l := range []*rlock.Lease{fixed, renewed} {
				if err := l.Err(); err != nil {
					t.Fatal(err)
				}
			}
			locktest.WantHash(t, rdb, name, map[string]string{"mode": "read", fixed.Owner(): "1", renewed.Owner(): "1"})
			locktest.MustUnlock(t, fixed)
			locktest.MustUnlock(t, renewed)
			locktest.MustUnlock(t, locktest.MustLock(t, other.Writer))
		})
	}
}

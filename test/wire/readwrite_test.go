package wire

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Each step of a lock's life leaves in Redis, and publishes, what Redisson's
// would, or what Redisson tolerates.
func TestReadWriteLockStandsOnTheWireAsRedissonsDoes(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		for _, name := range []string{"order:7", "{t}x", "a b"} {
			c := locktest.NewClient(t, rdb, rlock.WithPubSub(rlock.PubSubPlain), rlock.WithWatchdogLease(rlock.DefaultWatchdogLease))
			l := c.NewReadWriteLock(name)
			heard := locktest.HearReadWrite(t, rdb, name)
			var first, second, third, write, again *rlock.Lease
			type fields = map[string]string
			for _, step := range []struct {
				what   string
				do     func()
				hash   func() fields
				ttl    time.Duration
				timers func() map[string]time.Duration
				heard  string
			}{
				{
					what: "a reader",
					do:   func() { first = locktest.MustLock(t, l.Reader, rlock.WithLease(time.Minute)) },
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): time.Minute}
					},
				},
				{
					what: "another reader, for shorter",
					do:   func() { second = locktest.MustLock(t, l.Reader) },
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1", second.HoldID(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): time.Minute, locktest.ReaderTimer(name, second.HoldID(), 1): 30 * time.Second}
					},
				},
				{
					what: "enters again, for longer",
					do: func() {
						third = locktest.MustLockCtx(t, second.Context(bg), l.Reader, rlock.WithLease(2*time.Minute))
					},
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1", second.HoldID(): "2"} },
					ttl:  2 * time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{
							locktest.ReaderTimer(name, first.HoldID(), 1):  time.Minute,
							locktest.ReaderTimer(name, second.HoldID(), 1): 2 * time.Minute, // the last to go
							locktest.ReaderTimer(name, second.HoldID(), 2): 2 * time.Minute,
						}
					},
				},
				{
					what: "leaves once",
					do:   func() { locktest.MustUnlock(t, second) },
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1", third.HoldID(): "1"} },
					ttl:  2 * time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): time.Minute, locktest.ReaderTimer(name, third.HoldID(), 1): 2 * time.Minute}
					},
				},
				{
					what: "leaves: the time of the hash is that of who is left",
					do:   func() { locktest.MustUnlock(t, third) },
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): time.Minute}
					},
				},
				{what: "the last reader leaves", do: func() { locktest.MustUnlock(t, first) }, heard: "0"},
				{
					what: "a writer",
					do:   func() { write = locktest.MustLock(t, l.Writer) },
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "1"} },
					ttl:  30 * time.Second,
				},
				{
					what: "writes again",
					do: func() {
						again = locktest.MustLockCtx(t, write.Context(bg), l.Writer, rlock.WithLease(time.Minute))
					},
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "2"} },
					ttl:  time.Minute,
				},
				{
					what: "reads too",
					do: func() {
						first = locktest.MustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(40*time.Second))
						if first.HoldID() != write.HoldID() || first.Token() != 0 || write.Token() == 0 || again.Token() != write.Token() {
							t.Fatal("owners or tokens are wrong")
						}
					},
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "2", write.HoldID(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, write.HoldID(), 1): 40 * time.Second}
					},
				},
				{
					what: "reads no more: the write lease is as it was",
					do:   func() { locktest.MustUnlock(t, first) },
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "2"} },
					ttl:  time.Minute,
				},
				{
					what: "reads once more, under another id",
					do: func() {
						first = locktest.MustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(40*time.Second))
						if first.HoldID() == write.HoldID() {
							t.Fatal("late copies of the first release could end this hold")
						}
					},
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "2", first.HoldID(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): 40 * time.Second}
					},
				},
				{
					what: "writes less",
					do:   func() { locktest.MustUnlock(t, again) },
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "1", first.HoldID(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): 40 * time.Second}
					},
				},
				{
					what: "writes no more, but reads",
					do:   func() { locktest.MustUnlock(t, write) },
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1"} },
					ttl:  40 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): 40 * time.Second}
					},
					heard: "1",
				},
				{what: "leaves", do: func() { locktest.MustUnlock(t, first) }, heard: "0"},
				{
					what: "force on the other side than the writer's",
					do: func() {
						write = locktest.MustLock(t, l.Writer)
						first = locktest.MustLockCtx(t, write.Context(bg), l.Reader)
						if was, err := l.Reader.ForceUnlock(bg); was || err != nil {
							t.Fatal(was, err)
						}
					},
					hash: func() fields { return fields{"mode": "write", write.HoldID() + ":write": "1", first.HoldID(): "1"} },
					ttl:  30 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): 30 * time.Second}
					},
				},
				{
					what: "force on the writer's side",
					do: func() {
						if was, err := l.Writer.ForceUnlock(bg); !was || err != nil {
							t.Fatal(was, err)
						}
						if was, err := l.Writer.ForceUnlock(bg); was || err != nil {
							t.Fatal(was, err)
						}
						locktest.WantErr(t, first.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
						locktest.WantErr(t, write.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
					},
					heard: "1",
				},
				{
					what: "force on the readers' side",
					do: func() {
						first, second = locktest.MustLock(t, l.Reader), locktest.MustLock(t, l.Reader)
						if was, err := l.Writer.ForceUnlock(bg); was || err != nil {
							t.Fatal(was, err)
						}
						if was, err := l.Reader.ForceUnlock(bg); !was || err != nil {
							t.Fatal(was, err)
						}
						locktest.WantErr(t, first.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
						locktest.WantErr(t, second.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
					},
					heard: "0",
				},
				{
					what: "force of one reader",
					do: func() {
						first, second = locktest.MustLock(t, l.Reader), locktest.MustLock(t, l.Reader)
						if was, err := l.Writer.ForceUnlockIf(bg, second.HoldID()); was || err != nil {
							t.Fatal(was, err)
						}
						if was, err := l.Reader.ForceUnlockIf(bg, second.HoldID()); !was || err != nil {
							t.Fatal(was, err)
						}
						locktest.WantErr(t, second.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
					},
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1"} },
					ttl:  30 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): 30 * time.Second}
					},
				},
				{
					what: "force of a writer that reads",
					do: func() {
						locktest.MustUnlock(t, first)
						write = locktest.MustLock(t, l.Writer)
						first = locktest.MustLockCtx(t, write.Context(bg), l.Reader)
						if was, err := l.Writer.ForceUnlockIf(bg, write.HoldID()); !was || err != nil {
							t.Fatal(was, err)
						}
						locktest.WantErr(t, write.Unlock(bg), rlock.ErrLeaseLost)
					},
					hash: func() fields { return fields{"mode": "read", first.HoldID(): "1"} },
					ttl:  30 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{locktest.ReaderTimer(name, first.HoldID(), 1): 30 * time.Second}
					},
					heard: "0 1",
				},
				{what: "the end", do: func() { locktest.MustUnlock(t, first) }, heard: "0"},
			} {
				step.do()
				var want fields
				if step.hash != nil {
					want = step.hash()
					locktest.WantTTL(t, rdb, name, step.ttl)
				}
				locktest.WantHash(t, rdb, name, want)
				keys := map[string]bool{}
				for _, k := range locktest.Keys(t, rdb) {
					keys[k] = true
				}
				delete(keys, name)
				if step.timers != nil {
					for timer, ttl := range step.timers() {
						if v := rdb.Get(bg, timer).Val(); v != "1" {
							t.Fatalf("%s, %s: timer %s has %q", name, step.what, timer, v)
						}
						locktest.WantTTL(t, rdb, timer, ttl)
						delete(keys, timer)
					}
				}
				if len(keys) > 0 {
					t.Fatalf("%s, %s: left in Redis: %v", name, step.what, keys)
				}
				if got := strings.Join(heard(), " "); got != step.heard {
					t.Fatalf("%s, %s: published %q, want %q", name, step.what, got, step.heard)
				}
			}
		}
	})
}

func TestHashOfAnotherTypeIsLeftAlone(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		lease := locktest.MustLock(t, c.NewLock("a"))
		for _, opts := range [][]rlock.ReadWriteLockOption{nil, {rlock.WithReaderPreference()}} {
			l := c.NewReadWriteLock("a", opts...)
			for _, side := range []interface {
				rlock.Locker
				ForceUnlock(context.Context) (bool, error)
				IsLocked(context.Context) (bool, error)
			}{l.Reader, l.Writer} {
				_, err := side.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				_, err = side.Lock(bg, rlock.WithWait(20*time.Millisecond))
				locktest.WantEnded(t, err, nil)
				if was, err := side.ForceUnlock(bg); was || err != nil {
					t.Fatal(was, err)
				}
			}
			s, err := l.Reader.State(bg)
			if err != nil || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || s.Holders[0].HoldID != lease.HoldID() {
				t.Fatalf("%+v, %v", s, err)
			}
		}
		locktest.WantHash(t, rdb, "a", map[string]string{lease.HoldID(): "1"})
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewReadWriteLock("a").Writer))
	})
}

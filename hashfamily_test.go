package rlock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// hashSections runs critical sections of 8 goroutines on each lock. The counter
// that they read and write with separate commands must not lose one.
func hashSections(t *testing.T, rdb redis.UniversalClient, locks []rlock.Locker, sections int, inside func(*rlock.Lease)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, l := range locks {
		for range 8 {
			wg.Go(func() {
				for range sections {
					lease, err := l.Lock(bg)
					if err != nil {
						t.Error(err)
						return
					}
					n, err := rdb.Get(bg, "{a}:sum").Int()
					if err != nil && !errors.Is(err, redis.Nil) {
						t.Error(err)
					}
					inside(lease)
					if err := rdb.Set(bg, "{a}:sum", n+1, 0).Err(); err != nil {
						t.Error(err)
					}
					if err := lease.Unlock(bg); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if n, err := rdb.Get(bg, "{a}:sum").Int(); err != nil || n != len(locks)*8*sections {
		t.Fatalf("%d sections of %d were counted (%v)", n, len(locks)*8*sections, err)
	}
}

func TestContentionOfEightClientsLosesNothing(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		for _, kind := range []string{"FencedLock", "SpinLock"} {
			t.Run(kind, func(t *testing.T) {
				rdb.Del(bg, "{a}:sum")
				var locks []rlock.Locker
				for range 8 {
					locks = append(locks, locktest.HashTypes[kind](b.NewClient(t), "a"))
				}
				last := int64(0) // guarded by the lock: the race detector watches too
				hashSections(t, rdb, locks, 5, func(lease *rlock.Lease) {
					if lease.Token() <= last {
						t.Errorf("token %d after %d", lease.Token(), last)
					}
					last = lease.Token()
				})
				if n := rdb.Exists(bg, "a").Val(); n != 0 {
					t.Fatal("the lock is left")
				}
				// Without resends, which a busy machine may cause, each hold has
				// raised the counter once.
				if kind == "FencedLock" && last < 8*8*5 {
					t.Fatalf("the last of %d holds has token %d", 8*8*5, last)
				}
			})
		}
	})
}

func TestTypesOfOneHashExcludeEachOther(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		clients := []*rlock.Client{b.NewClient(t), b.NewClient(t)}
		for first, openFirst := range locktest.HashTypes {
			for second, openSecond := range locktest.HashTypes {
				for _, c := range clients { // the same client, and another
					name := fmt.Sprint(first, second)
					lease := locktest.MustLock(t, openFirst(clients[0], name))
					_, err := openSecond(c, name).TryLock(bg)
					locktest.WantErr(t, err, rlock.ErrNotAcquired)
					locktest.MustUnlock(t, lease)
					locktest.MustUnlock(t, locktest.MustLock(t, openSecond(c, name)))
				}
				// To one client they are one lock: the owner of one enters the
				// other, and keeps its token.
				name := fmt.Sprint("again", first, second)
				outer := locktest.MustLock(t, openFirst(clients[0], name))
				inner := locktest.MustLockCtx(t, outer.Context(bg), openSecond(clients[0], name))
				if inner.HoldID() != outer.HoldID() || inner.Token() != outer.Token() {
					t.Fatalf("%s in %s: owner %s, token %d; the outer one has %s and %d", second, first, inner.HoldID(), inner.Token(), outer.HoldID(), outer.Token())
				}
				locktest.MustUnlock(t, outer)
				locktest.MustUnlock(t, inner)
				if n := rdb.Exists(bg, name).Val(); n != 0 {
					t.Fatal("the lock is left")
				}
			}
		}
		inside := false // guarded by the lock
		var mixed []rlock.Locker
		for _, open := range locktest.HashTypes {
			// A short poll: they do not wake each other.
			mixed = append(mixed, open(b.NewClient(t, rlock.WithLongestPoll(20*time.Millisecond)), "a"))
		}
		hashSections(t, rdb, mixed, 5, func(*rlock.Lease) {
			if inside {
				t.Error("two are inside")
			}
			inside = true
			inside = false
		})
	})
}

package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// onEachType runs a scenario for each type, on every Redis, beside each other. Each
// type has a name of its own for its lock.
func onEachType(t *testing.T, scenario func(t *testing.T, k locktest.Type, b *locktest.Backend, name string)) {
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for i, k := range locktest.Types {
			locktest.Beside(t, k.Name, func(t *testing.T) { scenario(t, k, b, fmt.Sprintf("stock-%02d", i)) })
		}
	})
}

func TestEachTypeKeepsTheContractOfALease(t *testing.T) {
	t.Parallel()
	onEachType(t, func(t *testing.T, k locktest.Type, b *locktest.Backend, stock string) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		for _, name := range []string{stock, "{" + stock + "}x"} {
			l := k.Open(c, name)
			lease := locktest.MustLock(t, l)
			if (lease.Token() > 0) == k.Shared || lease.Name() != name || !strings.HasPrefix(lease.HoldID(), c.ID()+":") {
				t.Fatalf("name %q, owner %s, token %d", lease.Name(), lease.HoldID(), lease.Token())
			}
			if left := time.Until(lease.Deadline()); left < locktest.Lease-locktest.Patience || left > locktest.Lease {
				t.Fatalf("deadline in %v", left)
			}
			s, err := k.Open(other, name).State(bg)
			if err != nil || len(s.Holders) != 1 || locktest.Unnamed(s.Holders)[0] != (rlock.Holder{HoldID: lease.HoldID(), Count: 1, Shared: k.Shared}) || s.TTL < locktest.Lease-locktest.Patience {
				t.Fatalf("state %+v, %v", s, err)
			}
			if s.Mode == rlock.ModeShared != k.Shared {
				t.Fatalf("mode %s", s.Mode)
			}

			// An owner enters again, a different owner does not.
			ctx := lease.Context(bg)
			inner := locktest.MustLockCtx(t, ctx, l)
			if inner.HoldID() != lease.HoldID() || inner.Token() != lease.Token() {
				t.Fatal("a re-entry has another owner or token")
			}
			if n, err := l.HoldCount(ctx); n != 2 || err != nil {
				t.Fatalf("held %d times, %v", n, err)
			}
			_, err = k.Open(c, name, rlock.WithNonReentrant()).TryLock(ctx)
			locktest.WantErr(t, err, rlock.ErrReentrant)
			if !k.Shared {
				_, err := k.Open(other, name).TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				_, err = l.TryLock(rlock.WithoutOwner(ctx))
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
			}

			// Unlocked in any order, once each.
			locktest.MustUnlock(t, lease)
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			locktest.WantErr(t, lease.Err(), rlock.ErrUnlocked)
			if err := inner.Err(); err != nil {
				t.Fatal(err)
			}
			if err := inner.Extend(bg, time.Hour); err != nil {
				t.Fatal(err)
			}
			if left := time.Until(inner.Deadline()); left < 55*time.Minute {
				t.Fatalf("extended by an hour, the deadline is in %v", left)
			}
			ended, cancel := context.WithCancel(bg)
			cancel()
			if err := inner.Unlock(ended); err != nil {
				t.Fatalf("Unlock with a context that has ended: %v", err)
			}
			if locked, err := l.IsLocked(bg); locked || err != nil {
				t.Fatalf("locked %v, %v", locked, err)
			}
			locktest.MustBeForgotten(t, rdb, stock)
		}
	})
}

func TestEachTypeReportsALoss(t *testing.T) {
	t.Parallel()
	onEachType(t, func(t *testing.T, k locktest.Type, b *locktest.Backend, stock string) {
		rdb := b.Client(t)
		var clock locktest.Clock
		c, other := locktest.NewClient(t, rdb, clock.Option()), locktest.NewClient(t, rdb)
		l := k.Open(c, stock)

		lease := locktest.MustLock(t, l)
		ctx := lease.Context(bg)
		if was, err := k.Open(other, stock).ForceUnlockIf(bg, "nobody"); was || err != nil {
			t.Fatal(was, err)
		}
		if was, err := k.Open(other, stock).ForceUnlockIf(bg, lease.HoldID()); !was || err != nil {
			t.Fatal(was, err)
		}
		clock.Forward(locktest.Lease / 3)
		select {
		case <-ctx.Done(): // with the next renewal
		case <-time.After(locktest.Patience):
			t.Fatal("the holder was not told")
		}
		locktest.WantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, rlock.ErrRemoved)
		_, err := l.TryLock(rlock.WithOwner(ctx)) // another owner
		if err == nil || !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)

		short := locktest.MustLock(t, l, rlock.WithLease(locktest.Ample(200*time.Millisecond)))
		<-short.Done()
		locktest.WantErr(t, short.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, short.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		// The clock of miniredis goes on while a script runs, so a key may run out in the
		// middle of one.
		locktest.Eventually(t, "the lease has run out in Redis", func() bool {
			locked, err := l.IsLocked(bg)
			return !locked && err == nil
		})
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		locktest.MustBeForgotten(t, rdb, stock)
	})
}

func TestEachTypeLeavesNothingOfAWaitThatEnds(t *testing.T) {
	t.Parallel()
	onEachType(t, func(t *testing.T, k locktest.Type, b *locktest.Backend, stock string) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		held := locktest.MustLock(t, k.Blocker(other, stock))
		l := k.Open(c, stock)

		_, err := l.Lock(bg, rlock.WithWait(30*time.Millisecond))
		locktest.WantEnded(t, err, nil)
		_, err = l.Lock(bg, rlock.WithWait(0))
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
		defer cancel()
		_, err = l.Lock(ctx)
		locktest.WantEnded(t, err, context.DeadlineExceeded)

		waiting := make(chan *rlock.Lease)
		go func() {
			lease, _ := l.Lock(bg)
			waiting <- lease
		}()
		locktest.Eventually(t, "it waits", func() bool {
			s, err := l.State(bg)
			return err == nil && s.Waiters > 0
		})
		locktest.MustUnlock(t, held)
		lease := <-waiting
		locktest.MustUnlock(t, lease)
		locktest.MustBeForgotten(t, rdb, stock)

		closed := locktest.MustLock(t, k.Blocker(other, stock))
		end := make(chan error)
		go func() {
			_, err := l.Lock(bg)
			end <- err
		}()
		locktest.Eventually(t, "it waits", func() bool {
			s, err := l.State(bg)
			return err == nil && s.Waiters > 0
		})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		locktest.WantErr(t, <-end, rlock.ErrClosed)
		locktest.MustUnlock(t, closed)
		locktest.MustBeForgotten(t, rdb, stock)
	})
}

func TestEachTypeRefusesInvalidArguments(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			for _, l := range []locktest.AnyLock{k.Open(c, ""), k.Open(c, "{}x"), k.Open(c, "x", rlock.WithMaxHold(-1))} {
				_, err := l.Lock(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.State(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.IsLocked(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.HoldCount(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.ForceUnlock(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.Watch(bg)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			}
			l := k.Open(c, "x")
			for _, opt := range []rlock.AcquireOption{rlock.WithLease(time.Millisecond), rlock.WithLease(25 * time.Hour), rlock.WithWait(-1)} {
				_, err := l.Lock(bg, opt)
				locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			}
			_, err := l.ForceUnlockIf(bg, "")
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		})
	}
}

func TestEachTypeCostsTwoScripts(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			rdb := b.Client(t)
			hook := &locktest.CountHook{}
			l := k.Open(locktest.NewClient(t, rdb, rlock.WithAnonymity()), "stock") // its introduction comes a moment later
			locktest.MustUnlock(t, locktest.MustLock(t, l))                         // loads the scripts
			rdb.AddHook(hook)
			locktest.MustUnlock(t, locktest.MustLock(t, l))
			if hook.N.Load() == 3 { // with the PING of the first hold, which is sent in the background
				hook.N.Store(0)
				locktest.MustUnlock(t, locktest.MustLock(t, l))
			}
			if n := hook.N.Load(); n != 2 {
				t.Fatalf("%d commands", n)
			}
		})
	}
}

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

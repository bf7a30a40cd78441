package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// What every type of lock has to keep, once for all of them.

// lockOf is a lock of any type with all the methods that they share.
type lockOf interface {
	rlock.Locker
	IsLocked(context.Context) (bool, error)
	State(context.Context) (rlock.State, error)
	HeldBy(context.Context) (int, error)
	ForceUnlock(context.Context) (bool, error)
	ForceUnlockIf(context.Context, string) (bool, error)
	Watch(context.Context) (<-chan rlock.State, error)
}

type typeOfLock struct {
	name   string
	open   func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf
	shared bool
}

var typesOfLocks = []typeOfLock{
	{name: "Lock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf { return c.NewLock(name, opts...) }},
	{name: "FairLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewFairLock(name, opts...)
	}},
	{name: "SpinLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewSpinLock(name, opts...)
	}},
	{name: "FencedLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewFencedLock(name, opts...)
	}},
	{name: "ReadLock", shared: true, open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewReadWriteLock(name, opts...).Reader
	}},
	{name: "WriteLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewReadWriteLock(name, opts...).Writer
	}},
	{name: "plain WriteLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewReadWriteLock(name, append(opts, rlock.WithReaderPreference())...).Writer
	}},
	{name: "fair ReadLock", shared: true, open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewFairReadWriteLock(name, opts...).Reader
	}},
	{name: "fair WriteLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewFairReadWriteLock(name, opts...).Writer
	}},
	{name: "PriorityLock", open: func(c *rlock.Client, name string, opts ...rlock.LockOption) lockOf {
		return c.NewPriorityLock(name, opts...)
	}},
}

// blocker is a lock that keeps the type out: itself, or the writer of a reader.
func (k typeOfLock) blocker(c *rlock.Client, name string) rlock.Locker {
	switch k.name {
	case "ReadLock":
		return c.NewReadWriteLock(name).Writer
	case "fair ReadLock":
		return c.NewFairReadWriteLock(name).Writer
	}
	return k.open(c, name)
}

// onEachType runs a scenario for each type, on every Redis, beside each other. Each
// type has a name of its own for its lock.
func onEachType(t *testing.T, scenario func(t *testing.T, k typeOfLock, b *backend, name string)) {
	everyRedis(t, func(t *testing.T, b *backend) {
		for i, k := range typesOfLocks {
			beside(t, k.name, func(t *testing.T) { scenario(t, k, b, fmt.Sprintf("stock-%02d", i)) })
		}
	})
}

// mustBeForgotten checks that nothing is left of locks with such a name but
// tombstones and the counters of fenced ones.
func mustBeForgotten(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("left in Redis: %q", left)
		}
	}()
	eventually(t, "Redis has forgotten the lock", func() bool {
		left = nil
		for _, key := range keysOf(t, rdb) {
			if strings.Contains(key, name) && !strings.Contains(key, ":rlock:gone:") && !strings.HasPrefix(key, "redisson_lock_token:") {
				left = append(left, key)
			}
		}
		return len(left) == 0
	})
}

func TestEachTypeKeepsTheContractOfALease(t *testing.T) {
	t.Parallel()
	onEachType(t, func(t *testing.T, k typeOfLock, b *backend, stock string) {
		rdb := b.client(t)
		c, other := newClientOn(t, rdb), newClientOn(t, rdb)
		for _, name := range []string{stock, "{" + stock + "}x"} {
			l := k.open(c, name)
			lease := mustLock(t, l)
			if (lease.Token() > 0) == k.shared || lease.Name() != name || !strings.HasPrefix(lease.Owner(), c.ID()+":") {
				t.Fatalf("name %q, owner %s, token %d", lease.Name(), lease.Owner(), lease.Token())
			}
			if left := time.Until(lease.Deadline()); left < 25*time.Second || left > 30*time.Second {
				t.Fatalf("deadline in %v", left)
			}
			s, err := k.open(other, name).State(bg)
			if err != nil || len(s.Holders) != 1 || s.Holders[0] != (rlock.Holder{Owner: lease.Owner(), Count: 1, Shared: k.shared}) || s.TTL < 25*time.Second {
				t.Fatalf("state %+v, %v", s, err)
			}
			if s.Mode == rlock.ModeShared != k.shared {
				t.Fatalf("mode %s", s.Mode)
			}

			// An owner enters again, a stranger does not.
			ctx := lease.Context(bg)
			inner := mustLockCtx(t, ctx, l)
			if inner.Owner() != lease.Owner() || inner.Token() != lease.Token() {
				t.Fatal("a re-entry has another owner or token")
			}
			if n, err := l.HeldBy(ctx); n != 2 || err != nil {
				t.Fatalf("held %d times, %v", n, err)
			}
			_, err = k.open(c, name, rlock.WithNonReentrant()).TryLock(ctx)
			wantErr(t, err, rlock.ErrReentrant)
			if !k.shared {
				_, err := k.open(other, name).TryLock(bg)
				wantErr(t, err, rlock.ErrNotAcquired)
				_, err = l.TryLock(rlock.WithoutOwner(ctx))
				wantErr(t, err, rlock.ErrNotAcquired)
			}

			// Unlocked in any order, once each.
			mustUnlock(t, lease)
			wantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
			wantErr(t, lease.Err(), rlock.ErrUnlocked)
			if err := inner.Err(); err != nil {
				t.Fatal(err)
			}
			if err := inner.Extend(bg, time.Minute); err != nil {
				t.Fatal(err)
			}
			if left := time.Until(inner.Deadline()); left < 55*time.Second {
				t.Fatalf("extended by a minute, the deadline is in %v", left)
			}
			ended, cancel := context.WithCancel(bg)
			cancel()
			if err := inner.Unlock(ended); err != nil {
				t.Fatalf("Unlock with a context that has ended: %v", err)
			}
			if locked, err := l.IsLocked(bg); locked || err != nil {
				t.Fatalf("locked %v, %v", locked, err)
			}
			mustBeForgotten(t, rdb, stock)
		}
	})
}

func TestEachTypeTellsALoss(t *testing.T) {
	t.Parallel()
	onEachType(t, func(t *testing.T, k typeOfLock, b *backend, stock string) {
		rdb := b.client(t)
		c, other := newClientOn(t, rdb, rlock.WithWatchdogLease(3*time.Second)), newClientOn(t, rdb)
		l := k.open(c, stock)

		lease := mustLock(t, l)
		ctx := lease.Context(bg)
		if was, err := k.open(other, stock).ForceUnlockIf(bg, "nobody"); was || err != nil {
			t.Fatal(was, err)
		}
		if was, err := k.open(other, stock).ForceUnlockIf(bg, lease.Owner()); !was || err != nil {
			t.Fatal(was, err)
		}
		select {
		case <-ctx.Done(): // with the next renewal
		case <-time.After(20 * time.Second):
			t.Fatal("the holder was not told")
		}
		wantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, rlock.ErrRemoved)
		_, err := l.TryLock(rlock.WithOwner(ctx)) // another owner
		if err == nil || !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)

		short := mustLock(t, l, rlock.WithLease(ample(200*time.Millisecond)))
		<-short.Done()
		wantErr(t, short.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		wantErr(t, short.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		mustUnlock(t, mustLock(t, l))
		mustBeForgotten(t, rdb, stock)
	})
}

func TestEachTypeLeavesNothingOfAWaitThatEnds(t *testing.T) {
	t.Parallel()
	onEachType(t, func(t *testing.T, k typeOfLock, b *backend, stock string) {
		rdb := b.client(t)
		c, other := newClientOn(t, rdb), newClientOn(t, rdb)
		held := mustLock(t, k.blocker(other, stock))
		l := k.open(c, stock)

		_, err := l.Lock(bg, rlock.WithWait(30*time.Millisecond))
		wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
		_, err = l.Lock(bg, rlock.WithWait(0))
		wantErr(t, err, rlock.ErrNotAcquired)
		ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
		defer cancel()
		_, err = l.Lock(ctx)
		wantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
		_, err = l.TryLock(bg, rlock.WithWait(time.Second))
		wantErr(t, err, rlock.ErrInvalidArgument)

		waiting := make(chan *rlock.Lease)
		go func() {
			lease, _ := l.Lock(bg)
			waiting <- lease
		}()
		eventually(t, "it waits", func() bool {
			s, err := l.State(bg)
			return err == nil && s.Waiters > 0
		})
		mustUnlock(t, held)
		lease := <-waiting
		mustUnlock(t, lease)
		mustBeForgotten(t, rdb, stock)

		closed := mustLock(t, k.blocker(other, stock))
		end := make(chan error)
		go func() {
			_, err := l.Lock(bg)
			end <- err
		}()
		eventually(t, "it waits", func() bool {
			s, err := l.State(bg)
			return err == nil && s.Waiters > 0
		})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, <-end, rlock.ErrClosed)
		mustUnlock(t, closed)
		mustBeForgotten(t, rdb, stock)
	})
}

func TestEachTypeRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := onMiniredis(t).newClient(t)
	for _, k := range typesOfLocks {
		t.Run(k.name, func(t *testing.T) {
			for _, l := range []lockOf{k.open(c, ""), k.open(c, "{}x"), k.open(c, "x", rlock.WithMaxHold(-1))} {
				_, err := l.Lock(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.TryLock(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.State(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.IsLocked(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.HeldBy(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.ForceUnlock(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
				_, err = l.Watch(bg)
				wantErr(t, err, rlock.ErrInvalidArgument)
			}
			l := k.open(c, "x")
			for _, opt := range []rlock.AcquireOption{rlock.WithLease(time.Millisecond), rlock.WithLease(25 * time.Hour), rlock.WithWait(-1), rlock.WithPriority(0)} {
				_, err := l.Lock(bg, opt)
				wantErr(t, err, rlock.ErrInvalidArgument)
			}
			special := map[string]rlock.LockOption{
				"SpinLock":     rlock.WithBackoff(rlock.ConstantBackoff(time.Second)),
				"PriorityLock": rlock.WithAgeing(time.Second),
				"ReadLock":     rlock.WithReaderPreference(),
			}
			for of, opt := range special {
				takes := of == k.name || of == "ReadLock" && (k.name == "WriteLock" || k.name == "plain WriteLock")
				_, err := k.open(c, "x", opt).HeldBy(bg)
				if takes != (err == nil) || err != nil && !errors.Is(err, rlock.ErrInvalidArgument) {
					t.Fatalf("the option of %s: %v", of, err)
				}
			}
			_, err := l.ForceUnlockIf(bg, "")
			wantErr(t, err, rlock.ErrInvalidArgument)
		})
	}
}

func TestEachTypeCostsTwoScripts(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	for _, k := range typesOfLocks {
		t.Run(k.name, func(t *testing.T) {
			rdb := b.client(t)
			hook := &countHook{}
			l := k.open(newClientOn(t, rdb), "stock")
			mustUnlock(t, mustLock(t, l)) // loads the scripts
			rdb.AddHook(hook)
			mustUnlock(t, mustLock(t, l))
			if n := hook.n.Load(); n != 2 {
				t.Fatalf("%d commands", n)
			}
		})
	}
}

package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

func multi(t testing.TB, locks ...rlock.Locker) *rlock.MultiLock {
	t.Helper()
	m, err := rlock.NewMultiLock(locks...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMultiLockHoldsAllOrNothing(t *testing.T) {
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c, other := newClientOn(t, rdb), newClientOn(t, rdb)
		for name, names := range map[string][]string{"one slot": {"{m}b", "{m}a", "{m}c"}, "several": {"b", "a", "c"}} {
			t.Run(name, func(t *testing.T) {
				var locks []rlock.Locker
				for _, n := range names {
					locks = append(locks, c.NewLock(n))
				}
				m := multi(t, locks...)
				lease := mustLock(t, m)
				for _, n := range names {
					if _, err := other.NewLock(n).TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
						t.Fatalf("%s is free: %v", n, err)
					}
				}
				inner := mustLockCtx(t, lease.Context(bg), m)
				mustUnlock(t, inner)
				mustUnlock(t, lease)
				mustBeEmpty(t, rdb)

				taken := mustLock(t, other.NewLock(names[1]))
				if _, err := m.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
				defer cancel()
				_, err := m.Lock(ctx)
				wantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
				_, err = m.Lock(bg, rlock.WithWait(50*time.Millisecond))
				wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
				mustUnlock(t, taken)
				eventually(t, "nothing is left", func() bool { return len(keysOf(t, rdb)) == 0 })
			})
		}
	})
}

func TestMultiLockIsLostWithAMember(t *testing.T) {
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(300*time.Millisecond))
		m := multi(t, c.NewLock("{m}a"), c.NewLock("{m}b"))
		lease := mustLock(t, m)
		ctx := lease.Context(bg)
		if _, err := c.NewLock("{m}a").ForceUnlock(bg); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
		eventually(t, "the other is given back", func() bool { return len(keysOf(t, rdb)) == 0 })
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	})
}

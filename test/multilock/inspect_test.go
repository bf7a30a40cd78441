package multilock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A MultiLock is inspected and freed through its members.
func TestMultiLockIsInspectedThroughItsMembers(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, other := b.NewClient(t), b.NewClient(t)
		open := func(c *rlock.Client) *rlock.MultiLock {
			m, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("inspected a"), c.NewFairLock("inspected b"), c.NewReadWriteLock("inspected c").Writer})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m, theirs := open(c), open(other)
		want := func(what string, locked bool, holders, times int, lease *rlock.Lease) {
			t.Helper()
			ctx := bg
			if lease != nil {
				ctx = lease.Context(bg)
			}
			if is, err := theirs.IsLocked(bg); err != nil || is != locked {
				t.Errorf("%s: IsLocked: %v, %v", what, is, err)
			}
			s, err := theirs.State(bg)
			if err != nil || len(s.Holders) != holders || s.Locked() != locked || (s.Mode == rlock.ModeExclusive) != locked || (s.TTL > 0) != locked {
				t.Errorf("%s: State: %+v, %v", what, s, err)
			}
			if n, err := m.HoldCount(ctx); err != nil || n != times {
				t.Errorf("%s: HoldCount: %d, %v", what, n, err)
			}
		}
		want("free", false, 0, 0, nil)
		one := locktest.MustLock(t, other.NewFairLock("inspected b"))
		want("one member is another's", true, 1, 0, nil)
		locktest.MustUnlock(t, one)

		lease := locktest.MustLock(t, m, rlock.WithLease(time.Minute))
		want("held", true, 3, 1, lease)
		again := locktest.MustLockCtx(t, lease.Context(bg), m, rlock.WithLease(time.Minute))
		want("held twice", true, 3, 2, again)
		locktest.MustUnlock(t, again)
		if did, err := theirs.ForceUnlockIf(bg, "nobody"); err != nil || did {
			t.Errorf("ForceUnlockIf: %v, %v", did, err)
		}
		if did, err := theirs.ForceUnlock(bg); err != nil || !did {
			t.Errorf("ForceUnlock: %v, %v", did, err)
		}
		want("freed", false, 0, 0, lease)
		if err := lease.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("Unlock of what was freed: %v", err)
		}
		if did, err := theirs.ForceUnlock(bg); err != nil || did {
			t.Errorf("ForceUnlock of a free lock: %v, %v", did, err)
		}

		lease = locktest.MustLock(t, m)
		if did, err := theirs.ForceUnlockIf(bg, lease.Members()[1].HoldID()); err != nil || !did {
			t.Errorf("ForceUnlockIf of a member: %v, %v", did, err)
		}
		_ = lease.Unlock(bg)
		want("unlocked", false, 0, 0, nil)

		foreign, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("inspected a"), plainLocker{c.NewLock("inspected d")}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := foreign.IsLocked(bg); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("a member that cannot be inspected: %v", err)
		}

		// Nobody is asked, not even the holder of the first member.
		lease = locktest.MustLock(t, c.NewLock("inspected a"))
		if asked, err := foreign.RequestRelease(bg); asked || !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), "is no rlock.ReleaseRequester") {
			t.Errorf("a member of which nobody can be asked: %v, %v", asked, err)
		}
		key := "{inspected a}:rlock:asked:" + lease.HoldID()
		if n := b.Client(t).Exists(bg, key).Val(); n != 0 {
			t.Error("the holder of another member was asked")
		}
		if asked, err := c.NewLock("inspected a").RequestRelease(bg); !asked || err != nil || b.Client(t).Exists(bg, key).Val() != 1 {
			t.Errorf("the holder was not asked under %s: %v, %v", key, asked, err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// plainLocker can be locked, and no more.
type plainLocker struct{ rlock.Locker }

package multilock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A Locker of the caller's own may be of a type that can be compared, with a value
// inside that cannot.
type wrappedLock struct {
	rlock.Locker
	more any
}

// oneOfEachType has a member of every type, on two deployments and on three masters.
func oneOfEachType(t *testing.T, b *locktest.Backend) (rdbs []redis.UniversalClient, open func() []rlock.Locker) {
	one, two := b.Client(t), locktest.OnMiniredis(t).Client(t)
	rdbs = []redis.UniversalClient{one, two}
	var masters []redis.UniversalClient
	for range 3 {
		masters = append(masters, locktest.OnMiniredis(t).Client(t))
	}
	rdbs = append(rdbs, masters...)
	return rdbs, func() []rlock.Locker {
		c, d := locktest.NewClient(t, one), locktest.NewClient(t, two)
		var nodes []*rlock.Client
		for _, rdb := range masters {
			nodes = append(nodes, locktest.NewClient(t, rdb, rlock.WithWatchdogLease(30*time.Second)))
		}
		return []rlock.Locker{
			c.NewLock("plain"), c.NewFairLock("fair"), c.NewFencedLock("fenced"), c.NewSpinLock("spin"),
			c.NewPriorityLock("urgent"), c.NewReadWriteLock("rw").Writer,
			c.NewFairReadWriteLock("fairrw").Writer, d.NewLock("plain"),
			// Generous, because nothing here is about slow nodes.
			locktest.NewRedLock(t, "quorum", nodes, rlock.WithNodeTimeout(5*time.Second)),
			c.NewReadWriteLock("read").Reader,
			locktest.MultiLockOf(t, d, "nested1", "nested2"),
		}
	}
}

func TestMultiLockOfEveryType(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdbs, open := oneOfEachType(t, b)
		locks, strangers := open(), open()
		strangers = strangers[:9] // those that exclude by themselves
		m, again := locktest.NewMultiLock(t, locks...), locktest.NewMultiLock(t, open()...)
		var last int64
		for _, acquire := range append(locktest.Acquires(m), locktest.Waiting(again)) {
			lease, err := acquire(bg, rlock.WithLease(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustBeHeld(t, strangers...)
			members := lease.Members()
			if len(members) != 12 {
				t.Fatalf("%d members", len(members))
			}
			highest, earliest := int64(0), members[0].Deadline()
			for i, one := range members {
				if i > 0 && one.Name() < members[i-1].Name() {
					t.Errorf("%s after %s", one.Name(), members[i-1].Name())
				}
				highest = max(highest, one.Token())
				if one.Deadline().Before(earliest) {
					earliest = one.Deadline()
				}
			}
			if lease.Token() != highest || lease.Token() <= last {
				t.Errorf("token %d after %d, of the members %d", lease.Token(), last, highest)
			}
			last = lease.Token()
			if !lease.Deadline().Equal(earliest) {
				t.Errorf("deadline %v, of the members %v", lease.Deadline(), earliest)
			}
			locktest.MustUnlock(t, lease)
			locktest.MustBeFree(t, strangers...)
			locktest.NothingLeft(t, rdbs...)
		}

		// The context of the lease lets in again to each member, and to all; that of
		// a member to this one only.
		lease := locktest.MustLock(t, m)
		for _, l := range append(slices.Clone(locks), m) {
			inner, err := l.TryLock(lease.Context(bg))
			if err != nil {
				t.Fatalf("%s: %v", l.Name(), err)
			}
			locktest.MustUnlock(t, inner)
		}
		member := lease.Members()[2]
		for _, l := range locks[:9] {
			inner, err := l.TryLock(member.Context(bg))
			if l.Name() != member.Name() {
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, inner)
		}
		if _, err := m.TryLock(rlock.WithoutOwner(lease.Context(bg))); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		locktest.MustBeHeld(t, strangers...)
		locktest.MustUnlock(t, lease)
		locktest.MustBeFree(t, strangers...)

		// Whichever member is held, none of the others is left held.
		for i, l := range strangers {
			taken := locktest.MustLock(t, l)
			if lease, err := m.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatal(lease, err)
			}
			_, err := m.Lock(bg, rlock.WithWait(20*time.Millisecond))
			locktest.WantEnded(t, err, nil)
			// What a slow server granted at the last moment is given back a moment later.
			for other, l := range strangers {
				if other != i {
					locktest.MustUnlock(t, locktest.MustLock(t, l))
				}
			}
			locktest.MustUnlock(t, taken)
		}
		locktest.NothingLeft(t, rdbs...)
	})
}

func TestMultiLockOfALockThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	m, err := rlock.NewMultiLock([]rlock.Locker{wrappedLock{c.NewLock("a"), []int{1}}, wrappedLock{c.NewLock("b"), []int{1}}})
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, m))
}

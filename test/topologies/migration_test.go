package topologies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestClusterSlotMigration(t *testing.T) {
	locktest.Thorough(t)
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for _, mode := range []rlock.PubSubMode{rlock.PubSubAuto, rlock.PubSubPlain} {
		t.Run("KeepsHoldsAndWaiters/"+string(mode), func(t *testing.T) { migrates(t, c, mode) })
	}
	t.Run("DelaysAcquiresButNotRenewalsAndReleases", func(t *testing.T) { migrating(t, c) })
}

// elsewhere is a master that does not serve the slot.
func elsewhere(c *redistest.Cluster, slot int) *redistest.Server {
	from := c.MasterOf(slot)
	return c.Nodes[(slices.Index(c.Nodes, from)+1)%3]
}

func migrates(t *testing.T, c *redistest.Cluster, mode rlock.PubSubMode) {
	pubsub := rlock.WithPubSub(mode)
	a := locktest.Join(t, c.Client(), pubsub, rlock.WithWatchdogLease(3*time.Second))
	b := locktest.Join(t, c.Client(), pubsub, rlock.WithLongestPoll(locktest.Patient))
	other := locktest.Join(t, c.Client(), pubsub)
	tag := "{moves-" + string(mode) + "}"
	slot := c.Slot(tag)
	to := elsewhere(c, slot)
	// The waiter's client is subscribed at the new node already, to another lock.
	there := "there:0"
	for i := 1; c.MasterOf(c.Slot(there)) != to; i++ {
		there = fmt.Sprint("there:", i)
	}
	beside := locktest.MustLock(t, other.NewLock(there))
	besides := b.LineParked(t, there)
	held := locktest.MustLock(t, a.NewLock(tag+"held"))
	// a's lease is short, so whoever waits for it would look often: this one
	// waits for a long lease.
	long := locktest.MustLock(t, other.NewLock(tag+"long"))
	w := b.LineParked(t, tag+"long")
	looked := b.Looks.At(tag + "long")

	began := time.Now()
	c.MigrateSlot(slot, to)
	t.Logf("migrated in %v", time.Since(began))
	a.RenewedAgain(t, tag+"held", 6) // two leases and more
	if err := held.Err(); err != nil {
		t.Fatal(err)
	}
	if mode != rlock.PubSubPlain && !redistest.IsOld() {
		// The old node has ended the subscription; the new one has it now.
		b.Parked(t, tag+"long", looked+1)
	}
	released := time.Now()
	locktest.MustUnlock(t, long)
	lease, d := w.WokenByMessage(t, released)
	t.Logf("woken %v after the release at the new node", d)
	if lease.Token() <= long.Token() {
		t.Errorf("token %d after %d", lease.Token(), long.Token())
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, beside)
	lease, _ = besides.Lease(t, time.Now())
	locktest.MustUnlock(t, lease)
}

func migrating(t *testing.T, c *redistest.Cluster) {
	ctx := context.Background()
	a := locktest.Join(t, c.Client(), rlock.WithWatchdogLease(1500*time.Millisecond))
	b := locktest.Join(t, c.Client())
	const tag = "{window}"
	slot := c.Slot(tag)
	held := locktest.MustLock(t, a.NewLock(tag+"held"))
	waited := locktest.MustLock(t, b.NewLock(tag+"waited"))
	w := a.LineParked(t, tag+"waited")
	released := locktest.MustLock(t, b.NewLock(tag+"released"))
	var late *locktest.Waiter
	var windowEnds, freed time.Time
	c.MigrateSlotWith(slot, elsewhere(c, slot), func() {
		a.RenewedAgain(t, tag+"held", 4)
		locktest.MustUnlock(t, released)
		if ok, err := b.NewLock(tag + "released").IsLocked(ctx); ok || err != nil {
			t.Errorf("after the release: locked %v, %v", ok, err)
		}
		// An acquire has several keys, one of which does not exist: TRYAGAIN.
		late = b.Line(t, tag+"late")
		locktest.Eventually(t, "an acquire was sent away", func() bool { return b.Events.Retried("lock/enter", "TRYAGAIN") >= 3 })
		short := locktest.Join(t, c.Client(), rlock.WithCommandTimeout(3*time.Second))
		_, err := short.NewLock(tag + "late").TryLock(ctx)
		if !errors.Is(err, rlock.ErrRefused) || !strings.Contains(fmt.Sprint(err), "TRYAGAIN") {
			t.Errorf("TryLock in the window: %v", err)
		}
		if !late.Waits() {
			t.Error("acquired in the window")
		}
		// The waiter is subscribed at the old node, the message goes out at the
		// new one.
		locktest.MustUnlock(t, waited)
		freed = time.Now()
		windowEnds = time.Now()
	})
	lease, d := late.Lease(t, windowEnds)
	t.Logf("delayed acquire succeeded %v after the window", d)
	locktest.MustUnlock(t, lease)
	lease, d = w.WokenByMessage(t, freed)
	t.Logf("waiter got what was released in the window after %v", d)
	locktest.MustUnlock(t, lease)
	if err := held.Err(); err != nil {
		t.Fatal(err)
	}
	a.RenewedAgain(t, tag+"held", 3)
	locktest.MustUnlock(t, held)
}

// A renewal and a re-entry need the hold only: the queue may stand elsewhere, or
// not at all, while the slot moves from one node to another.
func TestQueuedHoldsLastWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for _, k := range locktest.QueuedTypes {
		t.Run(k.Name, func(t *testing.T) {
			name := "{queued moves " + k.Name + "} lock"
			l := k.Open(locktest.NewClient(t, c.Client(), rlock.WithWatchdogLease(4500*time.Millisecond)), name)
			lease := locktest.MustLock(t, l)
			slot := c.Slot(name)
			var again *rlock.Lease
			c.MigrateSlotWith(slot, elsewhere(c, slot), func() {
				for range 2 {
					was := lease.Deadline()
					locktest.Eventually(t, "it is renewed or lost", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
				}
				if err := lease.Err(); err != nil {
					t.Fatal(err)
				}
				again = locktest.MustLockCtx(t, lease.Context(bg), l)
				if err := again.Extend(bg, time.Second); err != nil {
					t.Error(err)
				}
			})
			locktest.MustUnlock(t, again)
			locktest.MustUnlock(t, lease)
		})
	}
}

// The release of a writer has the keys of the readers that wait too, and is repeated until the slot has moved.
func TestWriterLeavesWhenItsSlotHasMoved(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	a := locktest.Join(t, c.Client())
	name := "{writer moves} lock"
	slot := c.Slot(name)
	l := a.NewReadWriteLock(name)
	lease := locktest.MustLock(t, l.Writer)
	again := locktest.MustLockCtx(t, lease.Context(bg), l.Writer)
	left := make(chan error, 1)
	c.MigrateSlotWith(slot, elsewhere(c, slot), func() {
		locktest.MustUnlock(t, again) // needs the lock only
		go func() { left <- lease.Unlock(bg) }()
		locktest.Eventually(t, "it was sent away", func() bool { return a.Events.Retried("rw/write_release", "TRYAGAIN") >= 2 })
	})
	if err := <-left; err != nil && !errors.Is(err, rlock.ErrRefused) {
		t.Error(err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))
}

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
			name := "{rw-moves " + what + "} lock"
			slot := c.Slot(name)
			short := rlock.WithCommandTimeout(500 * time.Millisecond)
			watched := locktest.NewClient(t, c.Client(), short, rlock.WithWatchdogLease(8*time.Second)).NewReadWriteLock(name)
			other := locktest.NewClient(t, c.Client(), short).NewReadWriteLock(name)
			fixed := locktest.MustLock(t, other.Reader, rlock.WithLease(10*time.Minute))
			renewed := locktest.MustLock(t, watched.Reader)
			leaves := locktest.MustLock(t, other.Reader)
			again := locktest.MustLockCtx(t, leaves.Context(bg), other.Reader)
			timers := []any{locktest.ReaderTimer(name, fixed.HoldID(), 1), locktest.ReaderTimer(name, renewed.HoldID(), 1), locktest.ReaderTimer(name, leaves.HoldID(), 1), locktest.ReaderTimer(name, leaves.HoldID(), 2)}

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
			locktest.WantErr(t, err, rlock.ErrRefused)
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
			locktest.WantHash(t, rdb, name, map[string]string{"mode": "read", fixed.HoldID(): "1", renewed.HoldID(): "1"})
			locktest.MustUnlock(t, fixed)
			locktest.MustUnlock(t, renewed)
			locktest.MustUnlock(t, locktest.MustLock(t, other.Writer))
		})
	}
}

package rlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestReadersShareAndWritersExclude(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l, other := locktest.NewClient(t, rdb).NewReadWriteLock("a"), b.NewClient(t).NewReadWriteLock("a")
		if l.Name() != "a" || l.Reader.Name() != "a" || l.Writer.Name() != "a" {
			t.Fatal("names")
		}
		first, second := locktest.MustLock(t, l.Reader), locktest.MustLock(t, other.Reader)
		for _, w := range []rlock.Locker{l.Writer, other.Writer} {
			_, err := w.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
		}
		if on, err := l.Reader.IsLocked(bg); !on || err != nil {
			t.Fatal(on, err)
		}
		if on, err := l.Writer.IsLocked(bg); on || err != nil {
			t.Fatal(on, err)
		}
		s, err := l.Writer.State(bg)
		if err != nil || s.Mode != rlock.ModeShared || len(s.Holders) != 2 || !s.Holders[0].Shared || s.Holders[0].Count != 1 || s.Token != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		locktest.MustUnlock(t, first)
		_, err = l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, second)

		write := locktest.MustLock(t, l.Writer)
		for _, x := range []rlock.Locker{l.Writer, other.Writer, l.Reader, other.Reader} {
			_, err := x.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
		}
		if on, err := l.Reader.IsLocked(bg); on || err != nil {
			t.Fatal(on, err)
		}
		read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
		if on, err := l.Reader.IsLocked(bg); !on || err != nil {
			t.Fatal(on, err)
		}
		s, err = l.Reader.State(bg)
		s.Holders = locktest.Unnamed(s.Holders)
		if err != nil || s.Mode != rlock.ModeExclusive || s.Token != write.Token() || len(s.Holders) != 2 ||
			s.Holders[0] != (rlock.Holder{HoldID: write.HoldID(), Count: 1}) || s.Holders[1] != (rlock.Holder{HoldID: write.HoldID(), Count: 1, Shared: true}) {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, l := range []interface {
			HoldCount(context.Context) (int, error)
		}{l.Reader, l.Writer} {
			if n, err := l.HoldCount(read.Context(write.Context(bg))); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if n, err := l.Reader.HoldCount(write.Context(bg)); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		locktest.MustUnlock(t, write)
		locktest.MustUnlock(t, locktest.MustLock(t, other.Reader))
		locktest.MustUnlock(t, read)
		next := locktest.MustLock(t, other.Writer)
		if next.Token() <= write.Token() {
			t.Fatalf("token %d after %d", next.Token(), write.Token())
		}
		locktest.MustUnlock(t, next)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestUpgradeFailsImmediatelyAndSendsNothing(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	c := locktest.NewClient(t, rdb)
	l := c.NewReadWriteLock("a")
	read := locktest.MustLock(t, l.Reader)
	var sent locktest.CountHook
	rdb.AddHook(&sent)
	for _, acquire := range append(locktest.Acquires(l.Writer), locktest.Waiting(c.NewReadWriteLock("a").Writer)) {
		_, err := acquire(read.Context(bg))
		locktest.WantErr(t, err, rlock.ErrUpgrade, nil, rlock.ErrNotAcquired)
	}
	if n := sent.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
	// A different owner is not meant, and once it reads no more neither is the owner.
	_, err := l.Writer.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
	owner := read.Context(rlock.WithoutOwner(bg))
	locktest.MustUnlock(t, read)
	locktest.MustUnlock(t, locktest.MustLockCtx(t, context.WithoutCancel(owner), l.Writer))
	locktest.MustBeEmpty(t, rdb)
}

// Downgrading is no way round: who was a writer and reads on cannot write.
func TestReaderThatWasAWriterCannotUpgrade(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	l := b.NewClient(t).NewReadWriteLock("a")
	write := locktest.MustLock(t, l.Writer)
	ctx := context.WithoutCancel(write.Context(bg))
	read := locktest.MustLockCtx(t, ctx, l.Reader)
	locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, l.Writer)) // still a writer
	locktest.MustUnlock(t, write)
	_, err := l.Writer.Lock(context.WithoutCancel(read.Context(ctx)))
	locktest.WantErr(t, err, rlock.ErrUpgrade)
	// A context that does not descend from the read lease is another owner's.
	_, err = l.Writer.TryLock(ctx)
	locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
	locktest.MustUnlock(t, read)
}

// The own read hold stands behind nobody: those who wait to read wait for the
// very writer that asks for it.
func TestWriterReadsImmediatelyWhileReadersWait(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		write := locktest.MustLock(t, l.Writer)
		got := make(chan *rlock.Lease, 2)
		for range 2 {
			go func() { got <- locktest.MustLock(t, l.Reader) }()
		}
		locktest.Eventually(t, "others wait", func() bool {
			s, err := l.Reader.State(bg)
			return err == nil && s.Waiters == 2
		})
		for range 3 {
			locktest.MustUnlock(t, locktest.MustLockCtx(t, write.Context(bg), l.Reader, rlock.WithWait(10*time.Second)))
		}
		read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
		locktest.MustUnlock(t, write)
		locktest.MustUnlock(t, <-got)
		locktest.MustUnlock(t, <-got)
		locktest.MustUnlock(t, read)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestReadWriteLockRefusesBadArguments(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	for _, name := range []string{"", "a{b", strings.Repeat("n", rlock.MaxNameLength+1)} {
		l := c.NewReadWriteLock(name)
		for _, side := range []rlock.Locker{l.Reader, l.Writer} {
			_, err := side.Lock(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	l := c.NewReadWriteLock("a", rlock.WithNonReentrant())
	for _, side := range []rlock.Locker{l.Reader, l.Writer} {
		lease := locktest.MustLock(t, side)
		_, err := side.Lock(lease.Context(bg))
		locktest.WantErr(t, err, rlock.ErrReentrant)
		locktest.MustUnlock(t, lease)
	}
}

// The hash has fields that are no readers.
func TestForceUnlockIfOfNoReaderEndsNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		read := locktest.MustLock(t, l.Reader)
		for _, side := range []interface {
			ForceUnlockIf(context.Context, string) (bool, error)
		}{l.Reader, l.Writer} {
			if was, err := side.ForceUnlockIf(bg, "mode"); was || err != nil {
				t.Errorf("ended: %v, %v", was, err)
			}
		}
		_, err := l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, read)
		write := locktest.MustLock(t, l.Writer)
		if was, err := l.Reader.ForceUnlockIf(bg, write.HoldID()+":write"); was || err != nil {
			t.Errorf("ended: %v, %v", was, err)
		}
		_, err = l.Reader.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, write)
		locktest.MustBeEmpty(t, rdb)
	})
}

// Neither side is entered again, nor lets its owner into the other, once it is
// lost.
func TestLostSideLetsNobodyIn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		write := locktest.MustLock(t, l.Writer)
		ctx := context.WithoutCancel(write.Context(bg))
		rdb.Del(bg, "a")
		_, err := l.Reader.Lock(ctx) // nothing but Redis knows of the loss
		locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		_, err = l.Writer.Lock(ctx)
		locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		locktest.WantErr(t, write.Unlock(bg), rlock.ErrLeaseLost)

		read := locktest.MustLock(t, l.Reader)
		ctx = context.WithoutCancel(read.Context(bg))
		rdb.Del(bg, locktest.ReaderTimer("a", read.HoldID(), 1))
		_, err = l.Reader.Lock(ctx)
		locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		_, err = l.Writer.Lock(ctx)
		locktest.WantErr(t, err, rlock.ErrLeaseLost)
		locktest.WantErr(t, read.Unlock(bg), rlock.ErrLeaseLost)
		locktest.MustUnlock(t, locktest.MustLock(t, l.Writer))
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestSidesEndEachAtItsOwnTime(t *testing.T) {
	t.Parallel()
	locktest.EachClocked(t, func(t *testing.T, b *locktest.Backend, clock *locktest.Clock) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, clock.Option()).NewReadWriteLock("a")
		other := b.NewClient(t, clock.Option()).NewReadWriteLock("a")

		// The write lease is over, what the writer reads is not: it reads on, and
		// nobody writes.
		write := locktest.MustLock(t, l.Writer, rlock.WithLease(time.Hour))
		ctx := context.WithoutCancel(write.Context(bg))
		read := locktest.MustLockCtx(t, ctx, l.Reader, rlock.WithLease(2*time.Hour))
		clock.Forward(time.Hour)
		<-write.Done()
		locktest.WantErr(t, write.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		_, err := other.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if read.Err() != nil {
			t.Fatal(read.Err())
		}
		locktest.WantErr(t, write.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.MustUnlock(t, locktest.MustLock(t, other.Reader)) // once Unlock has cleaned up
		locktest.MustUnlock(t, read)

		// The other way round: it writes on.
		write = locktest.MustLock(t, l.Writer, rlock.WithLease(2*time.Hour))
		read = locktest.MustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(time.Hour))
		clock.Forward(time.Hour)
		<-read.Done()
		locktest.WantErr(t, read.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, read.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		_, err = other.Reader.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if write.Err() != nil {
			t.Fatal(write.Err())
		}
		locktest.MustUnlock(t, write)
		locktest.Eventually(t, "nothing is left", func() bool { return len(locktest.Keys(t, rdb)) == 0 })
	})
}

func TestShutdownReleasesBothSides(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		l := c.NewReadWriteLock("a")
		write := locktest.MustLock(t, l.Writer)
		read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
		reader := locktest.MustLock(t, c.NewReadWriteLock("b").Reader)
		waiting := make(chan error, 3)
		other := c.NewReadWriteLock("b")
		for _, side := range []rlock.Locker{other.Writer, l.Reader, l.Writer} {
			go func() {
				_, err := side.Lock(bg)
				waiting <- err
			}()
		}
		locktest.Eventually(t, "all wait", func() bool {
			return locktest.ReadWriteSubscribers(t, rdb, "a")+locktest.ReadWriteSubscribers(t, rdb, "b") == 2
		})
		leases := []*rlock.Lease{write, read, reader}
		done := locktest.ShutDown(bg, c, leases...)
		for range 3 {
			locktest.WantErr(t, <-waiting, rlock.ErrClosed)
		}
		for _, lease := range leases {
			locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
			locktest.StillRunning(t, done)
			locktest.MustUnlock(t, lease)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// A waiter whose request to leave had no answer in time leaves later, or when its place has expired.
		locktest.Eventually(t, "nothing is left", func() bool { return len(locktest.Keys(t, rdb)) == 0 })
	})
}

package rlock_test

import (
	"context"
	"errors"
	"slices"
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
		if err != nil || s.Mode != rlock.ModeExclusive || s.Token != write.Token() || len(s.Holders) != 2 ||
			s.Holders[0] != (rlock.Holder{Owner: write.Owner(), Count: 1}) || s.Holders[1] != (rlock.Holder{Owner: write.Owner(), Count: 1, Shared: true}) {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, l := range []interface {
			HeldBy(context.Context) (int, error)
		}{l.Reader, l.Writer} {
			if n, err := l.HeldBy(read.Context(write.Context(bg))); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if n, err := l.Reader.HeldBy(write.Context(bg)); n != 0 || err != nil {
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

func TestUpgradeFailsAtOnceAndSendsNothing(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	c := locktest.NewClient(t, rdb)
	l := c.NewReadWriteLock("a")
	read := locktest.MustLock(t, l.Reader)
	var sent locktest.CountHook
	rdb.AddHook(&sent)
	for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){l.Writer.Lock, l.Writer.TryLock, c.NewReadWriteLock("a").Writer.Lock} {
		_, err := acquire(read.Context(bg))
		locktest.WantErr(t, err, rlock.ErrUpgrade, nil, rlock.ErrNotAcquired)
	}
	if n := sent.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
	// A stranger is not meant, and once it reads no more neither is the owner.
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
func TestWriterReadsAtOnceWhileOthersWaitToRead(t *testing.T) {
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
	_, err := c.NewLock("a", rlock.WithReaderPreference()).Lock(bg)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	l := c.NewReadWriteLock("a", rlock.WithNonReentrant())
	for _, side := range []rlock.Locker{l.Reader, l.Writer} {
		lease := locktest.MustLock(t, side)
		_, err := side.Lock(lease.Context(bg))
		locktest.WantErr(t, err, rlock.ErrReentrant)
		locktest.MustUnlock(t, lease)
	}
}

// A renewed hold whose side has been ended by force, or whose keys are gone, is
// told with the next renewal, and the other side's with its own.
func TestLossOfASideIsTold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(2*time.Second))
		var checks []func(*testing.T)
		var names []string
		for what, scenario := range map[string]struct {
			lose        func(name string, write, read *rlock.Lease)
			write, read error // nil: it lasts
		}{
			"writer by force": {func(n string, w, r *rlock.Lease) { _, _ = c.NewReadWriteLock(n).Writer.ForceUnlock(bg) }, rlock.ErrRemoved, rlock.ErrRemoved},
			"write hold only": {func(n string, w, r *rlock.Lease) {
				_, _ = c.NewReadWriteLock(n).Writer.ForceUnlockIf(bg, w.Owner())
			}, rlock.ErrRemoved, nil}, // what its owner reads is nobody else's
			"read hold only": {func(n string, w, r *rlock.Lease) {
				_, _ = c.NewReadWriteLock(n).Reader.ForceUnlockIf(bg, r.Owner())
			}, nil, rlock.ErrRemoved},
			"timer of the reader": {func(n string, w, r *rlock.Lease) { rdb.Del(bg, locktest.ReaderTimer(n, r.Owner(), 1)) }, nil, rlock.ErrRemoved},
			"both":                {func(n string, w, r *rlock.Lease) { rdb.Del(bg, n) }, rlock.ErrRemoved, rlock.ErrRemoved},
			"both, another writer now": {func(n string, w, r *rlock.Lease) {
				rdb.Del(bg, n)
				rdb.HSet(bg, n, "mode", "write", "x:1:write", 1)
				rdb.PExpire(bg, n, time.Minute)
			}, rlock.ErrTakenOver, rlock.ErrTakenOver},
		} {
			l := c.NewReadWriteLock(what)
			write := locktest.MustLock(t, l.Writer)
			read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
			scenario.lose(what, write, read)
			checks = append(checks, func(t *testing.T) {
				for _, side := range []struct {
					lease *rlock.Lease
					cause error
				}{{write, scenario.write}, {read, scenario.read}} {
					if side.cause != nil {
						<-side.lease.Done()
						locktest.WantErr(t, side.lease.Err(), rlock.ErrLeaseLost, side.cause)
						locktest.WantErr(t, side.lease.Unlock(bg), rlock.ErrLeaseLost, side.cause)
						continue
					}
					was := side.lease.Deadline()
					locktest.Eventually(t, "it is renewed", func() bool { return side.lease.Deadline().After(was) })
					if err := side.lease.Err(); err != nil {
						t.Fatal(err)
					}
				}
				for _, lease := range []*rlock.Lease{write, read} {
					if lease.Err() == nil {
						locktest.MustUnlock(t, lease)
					}
				}
			})
			names = append(names, what)
		}
		for i, check := range checks { // they wait for the same renewals
			t.Run(names[i], check)
		}
	})
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
		if was, err := l.Reader.ForceUnlockIf(bg, write.Owner()+":write"); was || err != nil {
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
		rdb.Del(bg, locktest.ReaderTimer("a", read.Owner(), 1))
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
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		other := b.NewClient(t).NewReadWriteLock("a")

		// The write lease is over, what the writer reads is not: it reads on, and
		// nobody writes.
		write := locktest.MustLock(t, l.Writer, rlock.WithLease(locktest.Ample(300*time.Millisecond)))
		ctx := context.WithoutCancel(write.Context(bg))
		read := locktest.MustLockCtx(t, ctx, l.Reader, rlock.WithLease(time.Minute))
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
		write = locktest.MustLock(t, l.Writer, rlock.WithLease(time.Minute))
		read = locktest.MustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(locktest.Ample(300*time.Millisecond)))
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

// The dead hold nobody up, and are swept out by who meets them. The hash does not
// keep the time of a reader that has left.
func TestDeadReadersDoNotHoldWritersUp(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		java := locktest.JavaReadLock{Rdb: rdb, Name: "a"}
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		long := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
		java.Read(locktest.JavaOwner, 500*time.Millisecond) // and dies
		locktest.MustUnlock(t, long)
		if ttl := rdb.PTTL(bg, "a").Val(); ttl > 500*time.Millisecond {
			t.Fatalf("the lock lasts for %v, its reader for 500 ms", ttl)
		}
		_, err := l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, locktest.MustLock(t, l.Writer)) // by its timer

		java.Read("!dead:1", 50*time.Millisecond)
		living := locktest.MustLock(t, l.Reader, rlock.WithLease(time.Minute))
		locktest.Eventually(t, "one is dead", func() bool { return rdb.Exists(bg, locktest.ReaderTimer("a", "!dead:1", 1)).Val() == 0 })
		s, err := l.Reader.State(bg)
		if err != nil || len(s.Holders) != 1 || s.Holders[0].Owner != living.Owner() {
			t.Fatalf("the state shows the dead: %+v, %v", s, err)
		}
		_, err = l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.WantHash(t, rdb, "a", map[string]string{"mode": "read", living.Owner(): "1"}) // the writer swept the dead out
		locktest.MustUnlock(t, living)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestRenewedReaderDoesNotKeepTheDeadAlive(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(2*time.Second))
		living := locktest.MustLock(t, c.NewReadWriteLock("a").Reader)
		locktest.JavaReadLock{Rdb: rdb, Name: "a"}.Read("dead:1", time.Second)
		was := living.Deadline()
		locktest.Eventually(t, "the dead one is over, the other was renewed", func() bool {
			return rdb.Exists(bg, locktest.ReaderTimer("a", "dead:1", 1)).Val() == 0 && living.Deadline().After(was)
		})
		locktest.MustUnlock(t, living)
		locktest.MustBeEmpty(t, rdb)
	})
}

// What Redisson does beside us, as the hazards that its protocol has.
func TestBesideRedissonReaders(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		setUp := func(t *testing.T, opts ...rlock.Option) (locktest.JavaReadLock, *rlock.ReadWriteLock) {
			rdb := b.Client(t)
			rdb.FlushDB(bg)
			return locktest.JavaReadLock{Rdb: rdb, Name: "a"}, locktest.NewClient(t, rdb, opts...).NewReadWriteLock("a")
		}
		t.Run("its release finds our timers", func(t *testing.T) {
			j, l := setUp(t)
			j.Read(locktest.JavaOwner, time.Minute)
			ours := locktest.MustLock(t, l.Reader, rlock.WithLease(40*time.Second))
			again := locktest.MustLockCtx(t, ours.Context(bg), l.Reader, rlock.WithLease(20*time.Second))
			locktest.MustUnlock(t, ours)
			if j.Release(locktest.JavaOwner) != 0 {
				t.Fatal("it ended our hold")
			}
			locktest.WantHash(t, j.Rdb, "a", map[string]string{"mode": "read", ours.Owner(): "1"})
			locktest.WantTTL(t, j.Rdb, "a", 40*time.Second) // as promised to the first entry
			if err := again.Extend(bg, time.Second); err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, again)
			locktest.MustBeEmpty(t, j.Rdb)
		})
		t.Run("our release leaves its hold", func(t *testing.T) {
			j, l := setUp(t)
			ours := locktest.MustLock(t, l.Reader)
			j.Read(locktest.JavaOwner, 20*time.Second)
			j.Read(locktest.JavaOwner, 10*time.Second)
			locktest.MustUnlock(t, ours)
			locktest.WantHash(t, j.Rdb, "a", map[string]string{"mode": "read", locktest.JavaOwner: "2"})
			j.Rdb.Del(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 2)) // the newest is over: the other counts
			_, err := l.Writer.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
			locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))
			if j.Rdb.Exists(bg, "a").Val() != 1 {
				t.Fatal("our release ended its hold")
			}
			j.Rdb.HSet(bg, "a", locktest.JavaOwner, 1)
			if j.Release(locktest.JavaOwner) != 1 {
				t.Fatal("it was not the last")
			}
			locktest.MustBeEmpty(t, j.Rdb)
		})
		t.Run("its renewal cuts the time of the lock", func(t *testing.T) {
			j, l := setUp(t, rlock.WithWatchdogLease(3*time.Second))
			long := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
			renewed := locktest.MustLock(t, l.Reader)
			j.Read(locktest.JavaOwner, 30*time.Second)
			j.Renew(locktest.JavaOwner)
			locktest.WantTTL(t, j.Rdb, "a", 30*time.Second)
			locktest.Eventually(t, "the time of the lock is put back", func() bool { return j.Rdb.PTTL(bg, "a").Val() > 9*time.Minute })
			was := renewed.Deadline()
			locktest.Eventually(t, "the other is renewed", func() bool { return renewed.Deadline().After(was) })
			if ttl := j.Rdb.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
				t.Fatalf("our renewal shortened it to %v", ttl)
			}
			locktest.WantTTL(t, j.Rdb, locktest.ReaderTimer("a", renewed.Owner(), 1), 3*time.Second)
			locktest.MustUnlock(t, renewed)
			locktest.MustUnlock(t, long)
			j.Release(locktest.JavaOwner)
			locktest.MustBeEmpty(t, j.Rdb)
		})
		t.Run("its renewal, and we do not hold still", func(t *testing.T) {
			j, l := setUp(t, rlock.WithWatchdogLease(3*time.Second))
			long := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
			for what, operate := range map[string]func() error{
				"extend": func() error { return long.Extend(bg, time.Second) },
				"enter again": func() error {
					again, err := l.Reader.TryLock(long.Context(bg), rlock.WithLease(time.Second))
					if err == nil {
						err = again.Unlock(bg)
					}
					return err
				},
			} {
				j.Rdb.PExpire(bg, "a", 30*time.Second)
				// For longer than until it is due to be put back.
				for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if err := operate(); err != nil {
						t.Fatal(err)
					}
				}
				if ttl := j.Rdb.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
					t.Errorf("%s: the time of the lock is still %v", what, ttl)
				}
			}
			locktest.MustUnlock(t, long)
			locktest.MustBeEmpty(t, j.Rdb)
		})
		t.Run("its writer's reads", func(t *testing.T) {
			j, l := setUp(t)
			j.Rdb.HSet(bg, "a", "mode", "write", locktest.JavaOwner+":write", 1, locktest.JavaOwner, 2)
			j.Rdb.PExpire(bg, "a", time.Minute)
			j.Rdb.Set(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 1), 1, time.Minute)
			j.Rdb.Set(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 2), 1, time.Minute)
			for _, side := range []rlock.Locker{l.Reader, l.Writer} {
				_, err := side.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
			}
			s, err := l.Reader.State(bg)
			if err != nil || len(s.Holders) != 2 || s.Holders[0].Owner != locktest.JavaOwner || s.Holders[0].Shared || s.Holders[1].Count != 2 {
				t.Fatalf("%+v, %v", s, err)
			}
			// It downgrades, in silence.
			j.Rdb.HDel(bg, "a", locktest.JavaOwner+":write")
			j.Rdb.HSet(bg, "a", "mode", "read")
			locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))
			j.Release(locktest.JavaOwner)
			j.Release(locktest.JavaOwner)
			locktest.MustBeEmpty(t, j.Rdb)
		})
		t.Run("its transaction writes", func(t *testing.T) {
			j, l := setUp(t)
			j.Rdb.HSet(bg, "a", "mode", "write", "u:1:write:tx", 1)
			j.Rdb.PExpire(bg, "a", time.Minute)
			s, err := l.Writer.State(bg)
			if err != nil || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || s.Holders[0].Owner != "u:1:tx" {
				t.Fatalf("%+v, %v", s, err)
			}
			j.Rdb.Del(bg, "a")
		})
	})
}

func TestExtendOfAReader(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
		lease := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Second))
		for _, d := range []time.Duration{time.Minute, time.Second} { // never shortens
			if err := lease.Extend(bg, d); err != nil {
				t.Fatal(err)
			}
			locktest.WantTTL(t, rdb, "a", time.Minute)
			locktest.WantTTL(t, rdb, locktest.ReaderTimer("a", lease.Owner(), 1), time.Minute)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustBeEmpty(t, rdb)
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
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestServerAtItsMemoryLimitCanReleaseBothSides(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	l := locktest.NewClient(t, rdb).NewReadWriteLock("a")
	write := locktest.MustLock(t, l.Writer)
	again := locktest.MustLockCtx(t, write.Context(bg), l.Writer)
	read := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
	readAgain := locktest.MustLockCtx(t, write.Context(bg), l.Reader)
	other := locktest.MustLock(t, b.NewClient(t).NewReadWriteLock("b").Reader)
	if err := rdb.ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	defer rdb.ConfigSet(bg, "maxmemory", "0")
	// A tombstone may be left of an acquire that Redis refused half-way.
	keys := func() (all []string) {
		return slices.DeleteFunc(locktest.Keys(t, rdb), func(key string) bool { return strings.Contains(key, ":rlock:gone:") })
	}
	before := keys()
	for _, acquire := range []func() (*rlock.Lease, error){
		func() (*rlock.Lease, error) { return l.Reader.TryLock(write.Context(bg)) },
		func() (*rlock.Lease, error) { return l.Writer.TryLock(write.Context(bg)) },
	} {
		if _, err := acquire(); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatalf("at the memory limit: %v", err)
		}
	}
	if after := keys(); len(after) != len(before) {
		t.Fatalf("%q became %q", before, after)
	}
	locktest.MustUnlock(t, again)
	locktest.MustUnlock(t, readAgain)
	locktest.MustUnlock(t, write)
	locktest.MustUnlock(t, read)
	for _, side := range []rlock.Locker{l.Reader, l.Writer} {
		if _, err := side.TryLock(bg); err == nil || errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "OOM") {
			t.Fatalf("at the memory limit: %v", err)
		}
	}
	locktest.MustUnlock(t, other)
	locktest.OnlyTombstones(t, rdb) // of the acquires that were refused: an error may come half-way
}

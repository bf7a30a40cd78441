package queues

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// What Redisson does beside us, as the hazards that its protocol has.
func TestReadWriteLockSharedWithRedissonReaders(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		setUp := func(t *testing.T, opts ...rlock.Option) (locktest.JavaReadLock, *rlock.ReadWriteLock) {
			rdb := b.Client(t)
			rdb.FlushDB(bg)
			return locktest.JavaReadLock{RDB: rdb, Name: "a"}, locktest.NewClient(t, rdb, opts...).NewReadWriteLock("a")
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
			locktest.WantHash(t, j.RDB, "a", map[string]string{"mode": "read", ours.HoldID(): "1"})
			locktest.WantTTL(t, j.RDB, "a", 40*time.Second) // as promised to the first entry
			if err := again.Extend(bg, time.Second); err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, again)
			locktest.MustBeEmpty(t, j.RDB)
		})
		t.Run("our release leaves its hold", func(t *testing.T) {
			j, l := setUp(t)
			ours := locktest.MustLock(t, l.Reader)
			j.Read(locktest.JavaOwner, 20*time.Second)
			j.Read(locktest.JavaOwner, 10*time.Second)
			locktest.MustUnlock(t, ours)
			locktest.WantHash(t, j.RDB, "a", map[string]string{"mode": "read", locktest.JavaOwner: "2"})
			j.RDB.Del(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 2)) // the newest is over: the other counts
			_, err := l.Writer.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
			locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))
			if j.RDB.Exists(bg, "a").Val() != 1 {
				t.Fatal("our release ended its hold")
			}
			j.RDB.HSet(bg, "a", locktest.JavaOwner, 1)
			if j.Release(locktest.JavaOwner) != 1 {
				t.Fatal("it was not the last")
			}
			locktest.MustBeEmpty(t, j.RDB)
		})
		t.Run("its renewal cuts the time of the lock", func(t *testing.T) {
			j, l := setUp(t, rlock.WithWatchdogLease(3*time.Second))
			long := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
			renewed := locktest.MustLock(t, l.Reader)
			j.Read(locktest.JavaOwner, 30*time.Second)
			j.Renew(locktest.JavaOwner)
			locktest.WantTTL(t, j.RDB, "a", 30*time.Second)
			locktest.Eventually(t, "the time of the lock is put back", func() bool { return j.RDB.PTTL(bg, "a").Val() > 9*time.Minute })
			was := renewed.Deadline()
			locktest.Eventually(t, "the other is renewed", func() bool { return renewed.Deadline().After(was) })
			if ttl := j.RDB.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
				t.Fatalf("our renewal shortened it to %v", ttl)
			}
			locktest.WantTTL(t, j.RDB, locktest.ReaderTimer("a", renewed.HoldID(), 1), 3*time.Second)
			locktest.MustUnlock(t, renewed)
			locktest.MustUnlock(t, long)
			j.Release(locktest.JavaOwner)
			locktest.MustBeEmpty(t, j.RDB)
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
				j.RDB.PExpire(bg, "a", 30*time.Second)
				// For longer than until it is due to be put back.
				for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if err := operate(); err != nil {
						t.Fatal(err)
					}
				}
				if ttl := j.RDB.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
					t.Errorf("%s: the time of the lock is still %v", what, ttl)
				}
			}
			locktest.MustUnlock(t, long)
			locktest.MustBeEmpty(t, j.RDB)
		})
		t.Run("its renewal, and we enter again before it is due to be put back", func(t *testing.T) {
			j, l := setUp(t)
			long := locktest.MustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
			j.RDB.PExpire(bg, "a", 30*time.Second)
			again := locktest.MustLockCtx(t, long.Context(bg), l.Reader, rlock.WithLease(time.Second))
			if ttl := j.RDB.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
				t.Errorf("the time of the lock is still %v", ttl)
			}
			locktest.MustUnlock(t, again)
			locktest.MustUnlock(t, long)
			locktest.MustBeEmpty(t, j.RDB)
		})
		t.Run("its writer's reads", func(t *testing.T) {
			j, l := setUp(t)
			j.RDB.HSet(bg, "a", "mode", "write", locktest.JavaOwner+":write", 1, locktest.JavaOwner, 2)
			j.RDB.PExpire(bg, "a", time.Minute)
			j.RDB.Set(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 1), 1, time.Minute)
			j.RDB.Set(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 2), 1, time.Minute)
			for _, side := range []rlock.Locker{l.Reader, l.Writer} {
				_, err := side.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
			}
			s, err := l.Reader.State(bg)
			if err != nil || len(s.Holders) != 2 || s.Holders[0].HoldID != locktest.JavaOwner || s.Holders[0].Shared || s.Holders[1].Count != 2 {
				t.Fatalf("%+v, %v", s, err)
			}
			// It downgrades, in silence.
			j.RDB.HDel(bg, "a", locktest.JavaOwner+":write")
			j.RDB.HSet(bg, "a", "mode", "read")
			locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))
			j.Release(locktest.JavaOwner)
			j.Release(locktest.JavaOwner)
			locktest.MustBeEmpty(t, j.RDB)
		})
		t.Run("its transaction writes", func(t *testing.T) {
			j, l := setUp(t)
			const transaction = ":6ac8e8c26ac8e8c26ac8e8c26ac8e8c2"
			j.RDB.HSet(bg, "a", "mode", "write", locktest.JavaOwner+":write"+transaction, 1)
			j.RDB.PExpire(bg, "a", time.Minute)
			s, err := l.Writer.State(bg)
			if err != nil || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || s.Holders[0].HoldID != locktest.JavaOwner+transaction {
				t.Fatalf("%+v, %v", s, err)
			}
			j.RDB.Del(bg, "a")
		})
	})
}

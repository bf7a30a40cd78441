package queues

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

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

// A renewed hold whose side has been ended by force, or whose keys are gone, is
// told with the next renewal, and the other side's with its own.
func TestLossOfEachSideIsReported(t *testing.T) {
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
				_, _ = c.NewReadWriteLock(n).Writer.ForceUnlockIf(bg, w.HoldID())
			}, rlock.ErrRemoved, nil}, // what its owner reads is nobody else's
			"read hold only": {func(n string, w, r *rlock.Lease) {
				_, _ = c.NewReadWriteLock(n).Reader.ForceUnlockIf(bg, r.HoldID())
			}, nil, rlock.ErrRemoved},
			"timer of the reader": {func(n string, w, r *rlock.Lease) { rdb.Del(bg, locktest.ReaderTimer(n, r.HoldID(), 1)) }, nil, rlock.ErrRemoved},
			"both":                {func(n string, w, r *rlock.Lease) { rdb.Del(bg, n) }, rlock.ErrRemoved, rlock.ErrRemoved},
			"both, another writer now": {func(n string, w, r *rlock.Lease) {
				rdb.Del(bg, n)
				rdb.HSet(bg, n, "mode", "write", redistest.HoldID("x:1")+":write", 1)
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

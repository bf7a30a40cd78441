package queues

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// sides are the two sides of a read-write lock, of whatever type.
type sides struct{ reader, writer rlock.Locker }

func sidesOf(c *rlock.Client, name string, opts ...rlock.ReadWriteLockOption) sides {
	l := c.NewReadWriteLock(name, opts...)
	return sides{l.Reader, l.Writer}
}

// load is what readers and writers that loop have done.
type load struct {
	reads, writes atomic.Int64
	took          time.Duration
}

// loop lets readers and writers loop over sections of 1 ms, spread over the
// locks, until done says that it is enough.
func loop(t testing.TB, locks []sides, readers, writers int, done func(*load) bool) *load {
	t.Helper()
	load := &load{}
	ctx, stop := context.WithCancel(bg)
	defer stop()
	var inside atomic.Int64 // readers; a writer counts as -1000
	var wg sync.WaitGroup
	loop := func(l rlock.Locker, count *atomic.Int64, weight int64, alone bool) {
		wg.Go(func() {
			for {
				lease, err := l.Lock(ctx)
				if err != nil {
					return
				}
				if n := inside.Add(weight); alone && n != weight || !alone && n < 0 {
					t.Errorf("not alone: %d", n)
				}
				time.Sleep(time.Millisecond) // of the section
				inside.Add(-weight)
				count.Add(1)
				locktest.MustUnlock(t, lease)
			}
		})
	}
	start := time.Now()
	for i := range readers {
		loop(locks[i%len(locks)].reader, &load.reads, 1, false)
	}
	for i := range writers {
		loop(locks[i%len(locks)].writer, &load.writes, -1000, true)
	}
	for end := start.Add(2 * locktest.Patience); !done(load); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("in the end: %d reads, %d writes", load.reads.Load(), load.writes.Load())
			break
		}
	}
	stop()
	wg.Wait()
	load.took = time.Since(start)
	return load
}

// After a writer the readers that wait come in together, before the next
// writer; so readers and writers that all loop take turns, and hardly anybody
// looks in vain.
func TestReadersComeInTogetherBetweenWriters(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{1, 2} {
		locktest.Beside(t, fmt.Sprintf("%d clients", clients), func(t *testing.T) {
			b := locktest.OnServer(t)
			var locks []sides
			for range clients {
				locks = append(locks, sidesOf(b.NewClient(t), "a"))
			}
			scripts := locktest.EvalCounter(t, b)
			load := loop(t, locks, 50, 2, func(l *load) bool { return l.reads.Load() >= 2000 && l.writes.Load() >= 20 })
			reads, writes := load.reads.Load(), load.writes.Load()
			each := float64(scripts()) / float64(reads+writes)
			t.Logf("%d reads, %d writes in %v: %.0f reads/s, %.1f scripts per entry", reads, writes, load.took.Round(time.Millisecond), float64(reads)/load.took.Seconds(), each)
			// Two are needed, to enter and to leave. Some of the others look in vain.
			if each > 4 {
				t.Errorf("%.1f scripts per entry", each)
			}
			// Some may be quicker than the next writer shows itself.
			if reads > 150*writes {
				t.Errorf("%d reads to %d writes: more than three times the readers that there are come in between two writers", reads, writes)
			}
		})
	}
}

// However many loop on one side, the other gets in.
func TestNeitherSideOfAReadWriteLockStarves(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{1, 2} {
		for what, n := range map[string][2]int{"12 readers and a writer": {12, 1}, "12 writers and a reader": {1, 12}} {
			locktest.Beside(t, fmt.Sprintf("%s, %d clients", what, clients), func(t *testing.T) {
				b := locktest.OnServer(t)
				var locks []sides
				for range clients {
					locks = append(locks, sidesOf(b.NewClient(t), "a"))
				}
				load := loop(t, locks, n[0], n[1], func(l *load) bool { return l.reads.Load() >= 20 && l.writes.Load() >= 20 })
				t.Logf("%d reads, %d writes in %v", load.reads.Load(), load.writes.Load(), load.took.Round(time.Millisecond))
			})
		}
	}
}

// Readers that wait come in before the writers that wait, all of them: those of
// each client behind the first too. No writer comes in between them, and no reader
// that comes later.
func TestWriterThatLeavesAdmitsAllWaitingReaders(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		open := func() *rlock.ReadWriteLock {
			return locktest.NewClient(t, b.Client(t), rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		}
		first, second, third := open(), open(), open()
		write := locktest.MustLock(t, first.Writer)
		var got []<-chan *rlock.Lease
		for i, l := range []*rlock.ReadWriteLock{first, second} {
			got = append(got, waitFor(t, rdb, l.Reader, l, 5, int64(i+1)))
		}
		locktest.Eventually(t, "readers of both clients show", func() bool {
			clients := map[string]bool{} // of one client several may, if they looked before one of them stood in line
			for _, id := range rdb.ZRange(bg, "{a}:rlock:readers", 0, -1).Val() {
				client, _, _ := strings.Cut(id, ":")
				clients[client] = true
			}
			return len(clients) == 2
		})
		next := waitFor(t, rdb, third.Writer, third, 1, 3)
		locktest.Eventually(t, "the writer shows", func() bool { return rdb.ZCard(bg, "{a}:rlock:writers").Val() == 1 })
		locktest.MustUnlock(t, write)
		var leases []*rlock.Lease
		for _, readers := range got {
			for range 5 {
				leases = append(leases, <-readers) // while the others hold theirs, and a writer waits
			}
		}
		for _, l := range []*rlock.ReadWriteLock{first, second, third} {
			_, err := l.Reader.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
		}
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
		locktest.MustUnlock(t, <-next)
		locktest.MustBeForgotten(t, rdb, "a")
	})
}

// A reader that is admitted, but does not come, keeps writers out until it counts
// as dead; and if it gives up, they are told.
func TestAdmittedReaderThatDoesNotComeIsForgotten(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		for what, leave := range map[string]func(write *rlock.Lease){
			"unlock": func(write *rlock.Lease) { locktest.MustUnlock(t, write) },
			"force": func(*rlock.Lease) {
				if was, err := l.Writer.ForceUnlock(bg); !was || err != nil {
					t.Fatal(was, err)
				}
			},
		} {
			var until time.Time
			for alive := 1500 * time.Millisecond; ; alive *= 2 { // a busy machine looks too late
				write := locktest.MustLock(t, l.Writer)
				until = time.Now().Add(alive)
				rdb.ZAdd(bg, "{a}:rlock:readers", redis.Z{Score: float64(until.UnixMilli()), Member: redistest.HoldID("dead:1")})
				rdb.PExpire(bg, "{a}:rlock:readers", time.Minute)
				leave(write)
				early, err := l.Writer.TryLock(bg)
				if err != nil {
					locktest.WantErr(t, err, rlock.ErrNotAcquired)
					break
				}
				if now := time.Now(); now.Before(until) || alive > 20*time.Second {
					t.Fatalf("%s: in %v too early", what, until.Sub(now))
				}
				locktest.MustUnlock(t, early)
			}
			locktest.MustUnlock(t, locktest.MustLock(t, l.Reader)) // it need not wait, and does not count as the one that is missed
			next := locktest.MustLock(t, l.Writer)                 // by its timer
			if early := time.Until(until); early > 2*time.Millisecond {
				t.Fatalf("%s: in %v too early", what, early)
			}
			locktest.MustUnlock(t, next)
		}

		// One that gives up before it has come in lets the writers in.
		other := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		write := locktest.MustLock(t, l.Writer)
		ctx, cancel := context.WithCancel(bg)
		ended := make(chan error, 1)
		go func() {
			_, err := other.Reader.Lock(ctx)
			ended <- err
		}()
		locktest.Eventually(t, "the reader shows", func() bool { return rdb.ZCard(bg, "{a}:rlock:readers").Val() == 1 })
		rdb.Rename(bg, "{a}:rlock:readers", "{a}:rlock:admitted") // as if one writer had left, and another been quicker
		heard := locktest.HearReadWrite(t, rdb, "a")
		cancel()
		locktest.WantEnded(t, <-ended, context.Canceled)
		locktest.Eventually(t, "writers are told", func() bool { return slices.Contains(heard(), "1") })
		locktest.MustUnlock(t, write)
	})
}

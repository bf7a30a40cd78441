package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// queueUp is how many wait in a client for a lock.
func queueUp(t testing.TB, l *rlock.ReadWriteLock) int {
	t.Helper()
	return locktest.Waiters(t, l.Reader)
}

// waitFor starts waiters and returns when all stand in line, and so many
// clients listen. What they get comes out of the channel.
func waitFor(t testing.TB, rdb redis.UniversalClient, side rlock.Locker, l *rlock.ReadWriteLock, n int, listening int64) <-chan *rlock.Lease {
	t.Helper()
	waiting := queueUp(t, l)
	got := make(chan *rlock.Lease, n)
	for range n {
		go func() { got <- locktest.MustLock(t, side) }()
	}
	locktest.Eventually(t, "all wait", func() bool {
		return queueUp(t, l) == waiting+n && locktest.ReadWriteSubscribers(t, rdb, l.Name()) == listening
	})
	return got
}

// A reader that is admitted goes before the writers, which wait until it comes. It does not if
// another of its client has come to stand in front of it, and waits for the writers.
func TestReaderThatStandsBehindAnotherKeepsNoWriterOut(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		patient := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient), rlock.WithCommandTimeout(5 * time.Minute)} // a copy of the look that is held up would be granted
		rdb := b.Client(t)
		listening := func(n int64) func() bool {
			return func() bool { return locktest.ReadWriteSubscribers(t, rdb, "a") == n }
		}
		writes := b.NewClient(t, patient...).NewReadWriteLock("a").Writer
		locktest.LoadScripts(t, rdb, "rw/read_enter")
		of := b.Client(t)
		looked, goOn := make(chan struct{}), make(chan struct{})
		var looks atomic.Int64
		of.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, send func() error) error {
			err := send()
			if locktest.Runs(cmd, "rw/read_enter") && looks.Add(1) == 1 {
				close(looked)
				<-goOn
			}
			return err
		}})
		reads := locktest.NewClient(t, of, patient...).NewReadWriteLock("a").Reader

		write := locktest.MustLock(t, writes)
		next := locktest.Begin(t, bg, writes)
		locktest.Eventually(t, "the next writer waits", listening(1))
		late := locktest.Begin(t, bg, reads)
		<-looked
		locktest.MustUnlock(t, write) // which admits it
		first := locktest.Begin(t, bg, reads)
		locktest.Eventually(t, "another reader waits", listening(2))
		close(goOn)
		locktest.MustUnlock(t, next.Held())
		locktest.MustUnlock(t, first.Held())
		locktest.MustUnlock(t, late.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

// Nobody is let in one by one: each of fifty readers holds the lock until all do.
func TestWaitingReadersComeInTogether(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		const readers = 25 // of each of two clients
		rdb := b.Client(t)
		plain := rlock.WithPubSub(rlock.PubSubPlain)
		writer := locktest.NewClient(t, rdb, plain).NewReadWriteLock("a")
		clients := []*rlock.ReadWriteLock{
			b.NewClient(t, plain, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a"),
			b.NewClient(t, plain, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a"),
		}
		write := locktest.MustLock(t, writer.Writer, rlock.WithLease(time.Hour))
		var waiting []<-chan *rlock.Lease
		for i, l := range clients {
			waiting = append(waiting, waitFor(t, rdb, l.Reader, l, readers, int64(i+1)))
		}
		start := time.Now()
		locktest.MustUnlock(t, write)
		var inside []*rlock.Lease
		for _, got := range waiting {
			for range readers {
				inside = append(inside, <-got)
			}
		}
		took := time.Since(start)
		if took > locktest.Patience { // they would sleep for an hour
			t.Errorf("it took %v until all readers were in", took)
		}
		t.Logf("%d readers in after %v", len(inside), took)
		s, err := writer.Reader.State(bg)
		if err != nil || len(s.Holders) != 2*readers {
			t.Fatalf("%d holders, %v", len(s.Holders), err)
		}
		for _, lease := range inside {
			locktest.MustUnlock(t, lease)
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

// The readers of a client do not come in one after the other, each when the one
// before it has its answer.
func TestWaitingReadersDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	const readers = 20
	b := locktest.OnServer(t)
	c, proxy, rdb := faultyReadWrite(t, b, rlock.WithCommandTimeout(5*time.Minute)) // no copies
	writer := locktest.NewClient(t, rdb).NewReadWriteLock("a")
	write := locktest.MustLock(t, writer.Writer, rlock.WithLease(time.Hour))
	l := c.NewReadWriteLock("a")
	got := waitFor(t, rdb, l.Reader, l, readers, 1)
	// The first one of a client looks by itself. None of the others has its answer before most of
	// them have asked.
	id := locktest.SHA("rw/read_enter")
	var asked, answered atomic.Int64
	most := make(chan struct{})
	let := sync.OnceFunc(func() { close(most) })
	proxy.Delay(func(cmd faultproxy.Command) time.Duration {
		if cmd.IsScript(id) && asked.Add(1) == 8 { // so many are sent side by side: see wire.direct
			let()
		}
		return 0
	})
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if answered.Load() == 0 && rdb.Exists(bg, "a").Val() != 0 {
			return faultproxy.Pass // the look after the confirmation: nobody gets in by that
		}
		if cmd.IsScript(id) && answered.Add(1) > 1 {
			select {
			case <-most:
			case <-time.After(locktest.Patience):
				t.Errorf("%d have asked, and the others wait for their answers", asked.Load())
				let()
			}
		}
		return faultproxy.Pass
	})
	locktest.MustUnlock(t, write)
	for range readers {
		defer locktest.MustUnlock(t, <-got)
	}
}

func TestDowngradeWakesReadersByMessage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		writers, readers := b.NewClient(t), locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient))
		var most time.Duration
		for i := range 10 {
			name := fmt.Sprint(i) // nobody is subscribed yet
			writer, l := writers.NewReadWriteLock(name), readers.NewReadWriteLock(name)
			write := locktest.MustLock(t, writer.Writer, rlock.WithLease(time.Hour))
			read := locktest.MustLockCtx(t, write.Context(bg), writer.Reader, rlock.WithLease(time.Hour))
			got := waitFor(t, rdb, l.Reader, l, 3, 1)
			start := time.Now()
			locktest.MustUnlock(t, write)
			for range 3 {
				locktest.MustUnlock(t, <-got)
			}
			if took := time.Since(start); took > locktest.Patience { // they would sleep for an hour
				t.Fatalf("it took %v", took)
			} else {
				most = max(most, took)
			}
			locktest.MustUnlock(t, read)
		}
		locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*").Val()) == 0 })
		t.Logf("readers in and out after %v at most", most)
		locktest.OnlyTombstones(t, rdb)
	})
}

// A Java process downgrades in silence: a reader finds out with its next look.
func TestSilentDowngradeIsFoundByThePoll(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(100*time.Millisecond)).NewReadWriteLock("a")
	rdb.HSet(bg, "a", "mode", "write", locktest.JavaOwner+":write", 1, locktest.JavaOwner, 1)
	rdb.Set(bg, locktest.ReaderTimer("a", locktest.JavaOwner, 1), 1, time.Hour)
	rdb.PExpire(bg, "a", time.Hour)
	got := waitFor(t, rdb, l.Reader, l, 2, 1)
	rdb.HDel(bg, "a", locktest.JavaOwner+":write")
	rdb.HSet(bg, "a", "mode", "read")
	locktest.MustUnlock(t, <-got)
	locktest.MustUnlock(t, <-got)
}

// Nobody but the head of the line looks while the lock cannot be read, however
// often there is a message.
func TestWaitingReadersAreNoHerd(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	l := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
	write := locktest.MustLock(t, b.NewClient(t).NewReadWriteLock("a").Writer, rlock.WithLease(time.Hour))
	head := waitFor(t, rdb, l.Reader, l, 1, 1)
	others := waitFor(t, rdb, l.Reader, l, 49, 1) // none of them looks, so none has a place in Redis to leave
	before := locktest.CommandCount(t, rdb, "evalsha", "eval")
	const messages = 20
	for i := range messages {
		rdb.Publish(bg, locktest.ReadWriteChannel("a"), "1")
		locktest.Eventually(t, "the head has looked", func() bool { return locktest.CommandCount(t, rdb, "evalsha", "eval")-before > i })
	}
	if n := locktest.CommandCount(t, rdb, "evalsha", "eval") - before; n > 2*messages { // some slack for a subscription's confirmation
		t.Errorf("%d looks after %d messages", n, messages)
	}
	locktest.MustUnlock(t, write)
	inside := []*rlock.Lease{<-head}
	for range 49 {
		inside = append(inside, <-others)
	}
	n := locktest.CommandCount(t, rdb, "evalsha", "eval") - before
	t.Logf("%d scripts for %d messages and 50 readers", n, messages)
	if n > 2*messages+2*50 {
		t.Errorf("%d scripts for 50 readers", n)
	}
	for _, lease := range inside {
		locktest.MustUnlock(t, lease)
	}
}

// A head that leaves with a wake-up in its pocket hands it on, whenever it
// leaves: with no poll to save them, the others get in.
func TestCancelledReaderPassesItsWakeUpOn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		writer := b.NewClient(t).NewReadWriteLock("a")
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		for round := range 40 {
			write := locktest.MustLock(t, writer.Writer, rlock.WithLease(time.Hour))
			ctx, cancel := context.WithCancel(bg)
			ended := make(chan *rlock.Lease, 1)
			go func() {
				lease, err := l.Reader.Lock(ctx)
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				ended <- lease
			}()
			// The subscription alone may still be that of the round before.
			locktest.Eventually(t, "the head waits", func() bool { return queueUp(t, l) == 1 && locktest.ReadWriteSubscribers(t, rdb, "a") == 1 })
			got := waitFor(t, rdb, l.Reader, l, 3, 1)
			delay := time.Duration(rand.Int64N(int64(time.Millisecond)))
			go func() {
				time.Sleep(delay) // the subject: before, at, or after the release
				cancel()
			}()
			locktest.MustUnlock(t, write)
			for range 3 {
				select {
				case lease := <-got:
					locktest.MustUnlock(t, lease)
				case <-time.After(20 * time.Second):
					t.Fatalf("round %d: a reader sleeps though the lock can be read", round)
				}
			}
			if lease := <-ended; lease != nil {
				locktest.MustUnlock(t, lease)
			}
			cancel()
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

// Readers and writers of two clients come, wait, get cancelled and leave at
// random, with no poll to save anybody. Readers must see a stable pair, writers
// must be alone, and everybody who is not cancelled must get in.
func TestReadersAndWritersAtRandom(t *testing.T) {
	t.Parallel()
	// Whoever is in the way of others, and does not come, is so for the rest of the test.
	patient := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, opts := range [][]rlock.ReadWriteLockOption{nil, {rlock.WithReaderPreference()}} {
			t.Run(fmt.Sprint("options ", len(opts)), func(t *testing.T) {
				rdb := b.Client(t)
				rdb.FlushDB(bg) // of tombstones
				locks := []*rlock.ReadWriteLock{
					b.NewClient(t, patient...).NewReadWriteLock("a", opts...),
					b.NewClient(t, patient...).NewReadWriteLock("a", opts...),
				}
				var first, second, readers, writers atomic.Int64
				var sections [2]atomic.Int64
				var wg sync.WaitGroup
				end := time.Now().Add(time.Second)
				for i := range 16 {
					l := locks[i%2]
					wg.Go(func() {
						for time.Now().Before(end) {
							side, writes := rlock.Locker(l.Reader), rand.IntN(4) == 0
							if writes {
								side = l.Writer
							}
							ctx, cancel := context.WithTimeout(bg, 30*time.Second)
							impatient := rand.IntN(4) == 0
							if impatient {
								ctx, cancel = context.WithTimeout(bg, time.Duration(rand.Int64N(int64(5*time.Millisecond))))
							}
							lease, err := side.Lock(ctx)
							cancel()
							if err != nil {
								if !impatient || !errors.Is(err, context.DeadlineExceeded) {
									t.Errorf("writes %v, impatient %v: %v", writes, impatient, err)
								}
								continue
							}
							if writes {
								sections[0].Add(1)
								if w, r := writers.Add(1), readers.Load(); w != 1 || r != 0 {
									t.Errorf("a writer among %d writers and %d readers", w, r)
								}
								first.Add(1)
								if rand.IntN(2) == 0 { // it reads on
									read := locktest.MustLockCtx(t, lease.Context(bg), l.Reader)
									second.Add(1)
									writers.Add(-1)
									readers.Add(1)
									locktest.MustUnlock(t, lease)
									lease = read
									if first.Load() != second.Load() {
										t.Error("another writes although this one reads on")
									}
									readers.Add(-1)
								} else {
									second.Add(1)
									writers.Add(-1)
								}
							} else {
								sections[1].Add(1)
								readers.Add(1)
								if w := writers.Load(); w != 0 || first.Load() != second.Load() {
									t.Errorf("a reader among %d writers", w)
								}
								readers.Add(-1)
							}
							locktest.MustUnlock(t, lease)
						}
					})
				}
				wg.Wait()
				t.Logf("%d writes, %d reads", sections[0].Load(), sections[1].Load())
				locktest.Eventually(t, "nothing is left", func() bool {
					keys := locktest.Keys(t, rdb)
					return locktest.Tombstones(keys) == len(keys) && locktest.ReadWriteSubscribers(t, rdb, "a") == 0
				})
			})
		}
	})
}

// One writer among fifty readers in a loop: with the preference it gets in after
// those that were in.
func TestPreferredWriterIsNotStarved(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		readers := 50
		if locktest.UnderRace() {
			readers = 20 // the in-memory Redis needs its time for their scripts
		}
		rdb := b.Client(t)
		ample := []rlock.Option{rlock.WithCommandTimeout(15 * time.Second), rlock.WithUnlockTimeout(15 * time.Second)}
		locks := []*rlock.ReadWriteLock{
			b.NewClient(t, ample...).NewReadWriteLock("a"),
			b.NewClient(t, ample...).NewReadWriteLock("a"),
		}
		var first, second, reads atomic.Int64
		ctx, stop := context.WithCancel(bg)
		defer stop()
		var wg sync.WaitGroup
		for i := range readers {
			l := locks[i%2].Reader
			wg.Go(func() {
				for {
					lease, err := l.Lock(ctx)
					if err != nil {
						return
					}
					if n := first.Load(); n != second.Load() {
						t.Error("a reader sees half a write")
					}
					reads.Add(1)
					time.Sleep(time.Millisecond) // of reading
					if n := first.Load(); n != second.Load() {
						t.Error("a write while another reads")
					}
					locktest.MustUnlock(t, lease)
				}
			})
		}
		locktest.Eventually(t, "the readers are at it", func() bool { return reads.Load() > int64(readers) })
		most, l := int64(0), locks[0].Writer
		for range 10 {
			var lease *rlock.Lease
			got := make(chan struct{})
			go func() {
				defer close(got)
				lease = locktest.MustLock(t, l)
			}()
			// Until it shows itself in Redis, which takes a moment on a busy machine, it is passed.
			locktest.Eventually(t, "the writer shows itself, or has the lock", func() bool {
				select {
				case <-got:
					return true
				default:
					return rdb.Exists(bg, "{a}:rlock:writers").Val() == 1
				}
			})
			before := reads.Load()
			<-got
			most = max(most, reads.Load()-before)
			first.Add(1)
			second.Add(1)
			locktest.MustUnlock(t, lease)
		}
		stop()
		wg.Wait()
		t.Logf("at most %d reads while the writer waited", most)
		// Each reader may have begun one before that.
		if most > int64(10*readers) {
			t.Errorf("the writer was passed by %d readers", most)
		}
	})
}

func TestWaitingWriterKeepsNewReadersOutOnly(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(2*time.Second)).NewReadWriteLock("a")
		other := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		read := locktest.MustLock(t, other.Reader, rlock.WithLease(time.Hour))

		_, err := l.Writer.TryLock(bg) // holds nobody back
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, locktest.MustLock(t, l.Reader))

		ctx, cancel := context.WithCancel(bg)
		ended := make(chan error, 1)
		go func() {
			_, err := l.Writer.Lock(ctx)
			ended <- err
		}()
		locktest.Eventually(t, "it is registered", func() bool { return rdb.ZCard(bg, "{a}:rlock:writers").Val() == 1 })
		until := rdb.ZRangeWithScores(bg, "{a}:rlock:writers", 0, 0).Val()[0].Score
		locktest.Eventually(t, "it stays registered", func() bool {
			z := rdb.ZRangeWithScores(bg, "{a}:rlock:writers", 0, 0).Val()
			return len(z) == 1 && z[0].Score > until
		})
		for _, side := range []rlock.Locker{l.Reader, other.Reader} {
			_, err := side.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
		}
		locktest.MustUnlock(t, locktest.MustLockCtx(t, read.Context(bg), other.Reader)) // reads already
		cancel()
		locktest.WantEnded(t, <-ended, context.Canceled)

		ctx, cancel = context.WithCancel(bg)
		steady := b.NewClient(t, rlock.WithWaiterLease(time.Hour)).NewReadWriteLock("a")
		go func() {
			_, err := steady.Writer.Lock(ctx)
			ended <- err
		}()
		locktest.Eventually(t, "it waits", func() bool {
			return rdb.ZCard(bg, "{a}:rlock:writers").Val() == 1 && locktest.ReadWriteSubscribers(t, rdb, "a") == 1
		})
		got := waitFor(t, rdb, other.Reader, other, 3, 2)
		cancel()
		locktest.WantEnded(t, <-ended, context.Canceled)
		for range 3 {
			locktest.MustUnlock(t, <-got) // by the message of the writer that left
		}
		locktest.MustUnlock(t, read)

		write := locktest.MustLock(t, l.Writer)
		locktest.MustUnlock(t, locktest.MustLockCtx(t, write.Context(bg), l.Reader))
		got = waitFor(t, rdb, other.Writer, other, 1, 1)
		locktest.MustUnlock(t, locktest.MustLockCtx(t, write.Context(bg), l.Reader)) // although a writer waits
		locktest.MustUnlock(t, write)
		locktest.MustUnlock(t, <-got)
		locktest.OnlyTombstones(t, rdb)
	})
}

// A writer that dies while it waits keeps readers out until its place lapses.
func TestDeadWaitingWriterIsForgotten(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		until := time.Now().Add(locktest.Ample(time.Second))
		rdb.ZAdd(bg, "{a}:rlock:writers", redis.Z{Score: float64(until.UnixMilli()), Member: redistest.HoldID("dead:1")})
		rdb.PExpire(bg, "{a}:rlock:writers", time.Minute)
		_, err := l.Reader.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		read := locktest.MustLock(t, l.Reader) // by its timer
		if early := time.Until(until); early > 2*time.Millisecond {
			t.Fatalf("in %v too early", early)
		}
		got := waitFor(t, rdb, l.Writer, l, 1, 1)
		if members := rdb.ZRange(bg, "{a}:rlock:writers", 0, -1).Val(); len(members) != 1 || members[0] == redistest.HoldID("dead:1") {
			t.Fatalf("registered: %q", members)
		}
		locktest.MustUnlock(t, read)
		locktest.MustUnlock(t, <-got)
		locktest.MustBeEmpty(t, rdb)
	})
}

func TestWriterWaitsOutReadersThatDie(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewReadWriteLock("a")
		java := locktest.JavaReadLock{RDB: rdb, Name: "a"}
		start := time.Now()
		java.Read(redistest.HoldID("dead:1"), 700*time.Millisecond)
		java.Read(redistest.HoldID("dead:2"), 300*time.Millisecond)
		locktest.MustUnlock(t, locktest.MustLock(t, l.Writer))
		if took := time.Since(start); took < 690*time.Millisecond || took > locktest.Patience {
			t.Fatalf("waited %v for readers of 300 and 700 ms", took)
		}
		locktest.MustBeEmpty(t, rdb)
	})
}

// Writers of several processes that follow each other without a pause: one of
// them always waits, but when one leaves the readers have a chance all the same.
func TestPreferredWritersDoNotStarveReaders(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const writers = 3
		ctx, stop := context.WithCancel(bg)
		defer stop()
		var writes atomic.Int64
		var wg sync.WaitGroup
		for range writers {
			l := b.NewClient(t).NewReadWriteLock("a").Writer
			wg.Go(func() {
				for {
					lease, err := l.Lock(ctx)
					if err != nil {
						return
					}
					writes.Add(1)
					time.Sleep(5 * time.Millisecond) // of writing, while the next one shows itself
					locktest.MustUnlock(t, lease)
				}
			})
		}
		locktest.Eventually(t, "the writers are at it", func() bool { return writes.Load() > writers })
		l := b.NewClient(t).NewReadWriteLock("a").Reader
		most := int64(0)
		for range 10 {
			before := writes.Load()
			lease, err := l.Lock(bg, rlock.WithWait(20*time.Second))
			if err != nil {
				t.Errorf("after %d writes: %v", writes.Load()-before, err)
				break
			}
			most = max(most, writes.Load()-before)
			locktest.MustUnlock(t, lease)
		}
		stop()
		wg.Wait()
		t.Logf("at most %d writes while the reader waited", most)
	})
}

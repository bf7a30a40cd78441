package queues

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

const fairBase = "{a}:rlock:fairrw"

var fairKinds = map[byte]locktest.QueuedType{'r': locktest.QueuedTypes[0], 'w': locktest.QueuedTypes[1]}

// Each letter of the sequence is an owner that came behind the one before it; a
// round is what is inside at the same time.
func TestFairReadWriteAdmitsInOrderOfArrival(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clients []*rlock.Client
		for range 3 {
			clients = append(clients, locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)))
		}
		for _, rounds := range []string{"rr w r w rr", "w w rrr w", "r w r w r", "rrrr", "w r"} {
			holder := locktest.MustLock(t, clients[0].NewFairReadWriteLock("a").Writer)
			var entries [][]*locktest.Attempt
			n := 0
			for _, round := range strings.Fields(rounds) {
				var together []*locktest.Attempt
				for _, kind := range []byte(round) {
					// In a cluster nobody can be asked who is subscribed: then the
					// look after the confirmation helps.
					l := fairKinds[kind].Open(clients[n%3], "a")
					e := locktest.Begin(t, bg, l)
					n++
					locktest.Eventually(t, "it stands in the queue", func() bool { return locktest.MustState(t, l).Waiters == n })
					together = append(together, e)
				}
				entries = append(entries, together)
			}
			locktest.MustUnlock(t, holder)
			for i, round := range entries {
				for _, e := range round {
					e.Held() // all of them while the others are inside
				}
				for _, later := range entries[i+1:] {
					for _, e := range later {
						if !e.Waits() {
							t.Fatalf("%q: somebody of a later round is inside during round %d", rounds, i)
						}
					}
				}
				for _, e := range round {
					locktest.MustUnlock(t, e.Lease)
				}
			}
			locktest.OnlyTombstones(t, rdb)
		}
	})
}

func TestReaderDoesNotOvertakeAWriterThatWaits(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		l := c.NewFairReadWriteLock("a")
		outer := locktest.MustLock(t, l.Reader)
		beside := locktest.MustLock(t, l.Reader) // nobody waits
		writer := fairKinds['w'].Enqueue(t, rdb, l.Writer)
		_, err := l.Reader.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		reader := fairKinds['r'].Enqueue(t, rdb, l.Reader)
		inner := locktest.MustLockCtx(t, outer.Context(bg), l.Reader) // a re-entry need not queue
		for _, lease := range []*rlock.Lease{outer, beside, inner} {
			if !writer.Waits() || !reader.Waits() {
				t.Fatal("somebody is inside")
			}
			locktest.MustUnlock(t, lease)
		}
		lease := writer.Held()
		if !reader.Waits() {
			t.Fatal("a reader beside a writer")
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, reader.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

// wakeUps returns a function that says how many messages were sent to waiters
// since it was last called.
func fairWakeUps(t testing.TB, rdb redis.UniversalClient) func() int {
	t.Helper()
	sub := rdb.PSubscribe(bg, fairBase+":turn:*")
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(bg); err != nil {
		t.Fatal(err)
	}
	return func() (n int) {
		t.Helper()
		if err := rdb.Publish(bg, fairBase+":turn:", "end").Err(); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := sub.ReceiveMessage(bg)
			switch {
			case err != nil:
				t.Fatal(err)
			case m.Payload == "end":
				return n
			case !strings.HasPrefix(m.Payload, strings.TrimPrefix(m.Channel, fairBase+":turn:")+":"):
				t.Fatalf("%s has the payload %q", m.Channel, m.Payload)
			}
			n++
		}
	}
}

func TestReleaseWakesExactlyThoseWhoCanEnter(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		l := c.NewFairReadWriteLock("a")
		messages := fairWakeUps(t, rdb)
		expect := func(what string, want int) {
			t.Helper()
			if n := messages(); n != want {
				t.Fatalf("%s: %d messages, want %d", what, n, want)
			}
		}
		holder := locktest.MustLock(t, l.Writer)
		var e []*locktest.Attempt
		for _, kind := range []byte("rrrwwr") {
			e = append(e, fairKinds[kind].Enqueue(t, rdb, fairKinds[kind].Open(c, "a")))
		}
		expect("everybody has come", 0)
		cancelled := fairKinds['w'].Enqueue(t, rdb, l.Writer)
		last := fairKinds['r'].Enqueue(t, rdb, l.Reader)
		cancelled.Cancel()
		<-cancelled.Done
		locktest.Eventually(t, "it has left", func() bool { return locktest.MustState(t, l.Reader).Waiters == 7 })
		expect("one has left while a writer is inside", 0)

		locktest.MustUnlock(t, holder)
		for _, reader := range e[:3] {
			reader.Held()
		}
		expect("the writer has left", 3)
		locktest.MustUnlock(t, e[0].Lease)
		locktest.MustUnlock(t, e[1].Lease)
		expect("one reader is still inside", 0)
		locktest.MustUnlock(t, e[2].Lease)
		e[3].Held()
		expect("the last reader has left", 1)
		// The one that leaves now could not have come in; the readers behind it
		// cannot either.
		e[4].Cancel()
		<-e[4].Done
		locktest.Eventually(t, "it has left", func() bool { return locktest.MustState(t, l.Reader).Waiters == 2 })
		expect("a writer behind the writer has left", 0)
		locktest.MustUnlock(t, e[3].Lease)
		locktest.MustUnlock(t, e[5].Held())
		locktest.MustUnlock(t, last.Held())
		expect("the readers", 2)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestLeavingWriterLetsTheReadersBehindItIn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		l := c.NewFairReadWriteLock("a")
		messages := fairWakeUps(t, rdb)
		inside := locktest.MustLock(t, l.Reader)
		writer := fairKinds['w'].Enqueue(t, rdb, l.Writer)
		readers := []*locktest.Attempt{fairKinds['r'].Enqueue(t, rdb, l.Reader), fairKinds['r'].Enqueue(t, rdb, l.Reader)}
		behind := fairKinds['w'].Enqueue(t, rdb, l.Writer)
		writer.Cancel()
		<-writer.Done
		locktest.WantEnded(t, writer.Err, context.Canceled)
		for _, r := range readers {
			locktest.MustUnlock(t, r.Held())
		}
		if n := messages(); n != 2 {
			t.Fatalf("%d messages for two readers", n)
		}
		locktest.MustUnlock(t, inside)
		locktest.MustUnlock(t, behind.Held())
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestFairReaderCannotUpgrade(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewFairReadWriteLock("a")
		reader := locktest.MustLock(t, l.Reader)
		for _, enter := range locktest.Acquires(l.Writer) {
			_, err := enter(reader.Context(bg))
			locktest.WantErr(t, err, rlock.ErrUpgrade, nil, rlock.ErrNotAcquired)
		}
		locktest.MustUnlock(t, reader)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestFairWriterReadsAndDowngrades(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		l := c.NewFairReadWriteLock("a")
		for range 3 {
			writer := locktest.MustLock(t, l.Writer)
			ctx := writer.Context(bg)
			first := fairKinds['r'].Enqueue(t, rdb, l.Reader)
			second := fairKinds['w'].Enqueue(t, rdb, l.Writer)
			third := fairKinds['r'].Enqueue(t, rdb, l.Reader)
			locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, l.Reader)) // the id is lent once ...
			nested := locktest.MustLockCtx(t, ctx, l.Reader)               // ... and this one has another
			locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, l.Writer)) // both sides, again
			locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, l.Reader))
			if s := locktest.MustState(t, l.Reader); len(s.Holders) != 2 || s.Mode != rlock.ModeExclusive || s.Token != writer.Token() {
				t.Fatalf("%+v", s)
			}
			if !first.Waits() || nested.Token() != 0 {
				t.Fatal("a stranger is beside the writer")
			}
			locktest.MustUnlock(t, writer)
			lease := first.Held() // the downgrade lets it in, by a message
			if s := locktest.MustState(t, l.Writer); len(s.Holders) != 2 || s.Mode != rlock.ModeShared || s.Token != 0 {
				t.Fatalf("%+v", s)
			}
			locktest.MustUnlock(t, lease)
			if !second.Waits() || !third.Waits() {
				t.Fatal("somebody came in")
			}
			locktest.MustUnlock(t, nested)
			locktest.MustUnlock(t, second.Held())
			locktest.MustUnlock(t, third.Held())
			locktest.OnlyTombstones(t, rdb)
		}
	})
}

// The reader must not get in as a stranger when the write hold that it stood
// under has gone: the outer section believes that it is alone.
func TestFairNestedReadUnderALostWriteFails(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewFairReadWriteLock("a")
		for _, c := range []struct {
			taken bool
			cause error
		}{{false, rlock.ErrRemoved}, {true, rlock.ErrTakenOver}} {
			writer := locktest.MustLock(t, l.Writer)
			if was, err := l.Writer.ForceUnlockIf(bg, writer.HoldID()); !was || err != nil {
				t.Fatal(was, err)
			}
			var other *rlock.Lease
			if c.taken {
				other = locktest.MustLock(t, l.Writer)
			}
			_, err := l.Reader.Lock(writer.Context(bg))
			locktest.WantErr(t, err, rlock.ErrLeaseLost, c.cause)
			locktest.WantErr(t, writer.Unlock(bg), rlock.ErrLeaseLost, c.cause)
			if other != nil {
				locktest.MustUnlock(t, other)
			}
			locktest.OnlyTombstones(t, rdb)
		}
	})
}

func TestEachFairReaderHasItsOwnExpiry(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewFairReadWriteLock("a")
		long := locktest.MustLock(t, l.Reader)
		short := locktest.MustLock(t, l.Reader, rlock.WithLease(locktest.Ample(300*time.Millisecond)))
		<-short.Done()
		locktest.Eventually(t, "one reader is left", func() bool { return len(locktest.MustState(t, l.Reader).Holders) == 1 })
		_, err := l.Writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if s := locktest.MustState(t, l.Reader); s.Holders[0].HoldID != long.HoldID() || s.TTL < 20*time.Second {
			t.Fatalf("%+v", s)
		}
		locktest.MustUnlock(t, long)
		locktest.MustUnlock(t, locktest.MustLock(t, l.Writer))
		locktest.WantErr(t, short.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.Eventually(t, "nothing is left", func() bool { return locktest.Tombstones(locktest.Keys(t, rdb)) == len(locktest.Keys(t, rdb)) })
	})
}

// Those who were told and have not come yet need not hear of everybody behind
// them that leaves.
func TestWaiterThatLeavesWakesNobodyWhoCouldEnterBefore(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, first := range []string{"writer", "reader"} {
			t.Run(first, func(t *testing.T) {
				rdb := b.Client(t)
				locktest.DeleteAll(t, rdb)
				c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
				l := c.NewFairReadWriteLock("a")
				messages := fairWakeUps(t, rdb)
				var inside *rlock.Lease
				if first == "reader" {
					inside = locktest.MustLock(t, l.Reader)
				}
				// It can enter, and is on its way.
				locktest.PutDeadWaiter(t, rdb, fairKinds['w'], "a", locktest.FirstRank, time.Hour)
				if first == "reader" {
					rdb.Rename(bg, fairBase+":queue", fairBase+":queue:shared")
				}
				behind := fairKinds['w'].Enqueue(t, rdb, l.Writer)
				behind.Cancel()
				<-behind.Done
				locktest.Eventually(t, "it has left", func() bool { return locktest.MustState(t, l.Reader).Waiters == 1 })
				if inside != nil {
					locktest.MustUnlock(t, inside)
				}
				if n := messages(); n != 0 {
					t.Fatalf("%d messages", n)
				}
			})
		}
	})
}

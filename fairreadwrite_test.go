package rlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
)

const fairBase = "{a}:rlock:fairrw"

var fairKinds = map[byte]queuedKind{'r': queuedKinds[0], 'w': queuedKinds[1]}

// Each letter of the sequence is an owner that came behind the one before it; a
// round is what is inside at the same time.
func TestFairReadWriteAdmitsInOrderOfArrival(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		var clients []*rlock.Client
		for range 3 {
			clients = append(clients, newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient)))
		}
		for _, rounds := range []string{"rr w r w rr", "w w rrr w", "r w r w r", "rrrr", "w r"} {
			holder := mustLock(t, clients[0].NewFairReadWriteLock("a").Writer)
			var entries [][]*queuedEntry
			n := 0
			for _, round := range strings.Fields(rounds) {
				var together []*queuedEntry
				for _, kind := range []byte(round) {
					// In a cluster nobody can be asked who is subscribed: then the
					// look after the confirmation helps.
					l := fairKinds[kind].open(clients[n%3], "a")
					e := queuedLock(t, bg, l)
					n++
					eventually(t, "it stands in the queue", func() bool { return queuedState(t, l).Waiters == n })
					together = append(together, e)
				}
				entries = append(entries, together)
			}
			mustUnlock(t, holder)
			for i, round := range entries {
				for _, e := range round {
					e.held() // all of them while the others are inside
				}
				for _, later := range entries[i+1:] {
					for _, e := range later {
						if !e.waits() {
							t.Fatalf("%q: somebody of a later round is inside during round %d", rounds, i)
						}
					}
				}
				for _, e := range round {
					mustUnlock(t, e.lease)
				}
			}
			onlyTombstones(t, rdb)
		}
	})
}

func TestReaderDoesNotOvertakeAWriterThatWaits(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		l := c.NewFairReadWriteLock("a")
		outer := mustLock(t, l.Reader)
		beside := mustLock(t, l.Reader) // nobody waits
		writer := fairKinds['w'].enqueue(t, rdb, l.Writer)
		_, err := l.Reader.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		reader := fairKinds['r'].enqueue(t, rdb, l.Reader)
		inner := mustLockCtx(t, outer.Context(bg), l.Reader) // a re-entry need not queue
		for _, lease := range []*rlock.Lease{outer, beside, inner} {
			if !writer.waits() || !reader.waits() {
				t.Fatal("somebody is inside")
			}
			mustUnlock(t, lease)
		}
		lease := writer.held()
		if !reader.waits() {
			t.Fatal("a reader beside a writer")
		}
		mustUnlock(t, lease)
		mustUnlock(t, reader.held())
		onlyTombstones(t, rdb)
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
			case m.Payload != "0":
				t.Fatalf("payload %q", m.Payload)
			}
			n++
		}
	}
}

func TestReleaseWakesExactlyThoseWhoCanEnter(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		l := c.NewFairReadWriteLock("a")
		messages := fairWakeUps(t, rdb)
		expect := func(what string, want int) {
			t.Helper()
			if n := messages(); n != want {
				t.Fatalf("%s: %d messages, want %d", what, n, want)
			}
		}
		holder := mustLock(t, l.Writer)
		var e []*queuedEntry
		for _, kind := range []byte("rrrwwr") {
			e = append(e, fairKinds[kind].enqueue(t, rdb, fairKinds[kind].open(c, "a")))
		}
		expect("everybody has come", 0)
		cancelled := fairKinds['w'].enqueue(t, rdb, l.Writer)
		last := fairKinds['r'].enqueue(t, rdb, l.Reader)
		cancelled.cancel()
		<-cancelled.done
		eventually(t, "it has left", func() bool { return queuedState(t, l.Reader).Waiters == 7 })
		expect("one has left while a writer is inside", 0)

		mustUnlock(t, holder)
		for _, reader := range e[:3] {
			reader.held()
		}
		expect("the writer has left", 3)
		mustUnlock(t, e[0].lease)
		mustUnlock(t, e[1].lease)
		expect("one reader is still inside", 0)
		mustUnlock(t, e[2].lease)
		e[3].held()
		expect("the last reader has left", 1)
		// The one that leaves now could not have come in; the readers behind it
		// cannot either.
		e[4].cancel()
		<-e[4].done
		eventually(t, "it has left", func() bool { return queuedState(t, l.Reader).Waiters == 2 })
		expect("a writer behind the writer has left", 0)
		mustUnlock(t, e[3].lease)
		mustUnlock(t, e[5].held())
		mustUnlock(t, last.held())
		expect("the readers", 2)
		onlyTombstones(t, rdb)
	})
}

func TestLeavingWriterLetsTheReadersBehindItIn(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		l := c.NewFairReadWriteLock("a")
		messages := fairWakeUps(t, rdb)
		inside := mustLock(t, l.Reader)
		writer := fairKinds['w'].enqueue(t, rdb, l.Writer)
		readers := []*queuedEntry{fairKinds['r'].enqueue(t, rdb, l.Reader), fairKinds['r'].enqueue(t, rdb, l.Reader)}
		behind := fairKinds['w'].enqueue(t, rdb, l.Writer)
		writer.cancel()
		<-writer.done
		wantErr(t, writer.err, rlock.ErrNotAcquired, context.Canceled)
		for _, r := range readers {
			mustUnlock(t, r.held())
		}
		if n := messages(); n != 2 {
			t.Fatalf("%d messages for two readers", n)
		}
		mustUnlock(t, inside)
		mustUnlock(t, behind.held())
		onlyTombstones(t, rdb)
	})
}

func TestFairReaderCannotUpgrade(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewFairReadWriteLock("a")
		reader := mustLock(t, l.Reader)
		for _, enter := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){l.Writer.Lock, l.Writer.TryLock} {
			_, err := enter(reader.Context(bg))
			wantErr(t, err, rlock.ErrUpgrade, nil, rlock.ErrNotAcquired)
		}
		mustUnlock(t, reader)
		onlyTombstones(t, rdb)
	})
}

func TestFairWriterReadsAndDowngrades(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		l := c.NewFairReadWriteLock("a")
		for range 3 {
			writer := mustLock(t, l.Writer)
			ctx := writer.Context(bg)
			first := fairKinds['r'].enqueue(t, rdb, l.Reader)
			second := fairKinds['w'].enqueue(t, rdb, l.Writer)
			third := fairKinds['r'].enqueue(t, rdb, l.Reader)
			mustUnlock(t, mustLockCtx(t, ctx, l.Reader)) // the id is lent once ...
			nested := mustLockCtx(t, ctx, l.Reader)      // ... and this one has another
			mustUnlock(t, mustLockCtx(t, ctx, l.Writer)) // both sides, again
			mustUnlock(t, mustLockCtx(t, ctx, l.Reader))
			if s := queuedState(t, l.Reader); len(s.Holders) != 2 || s.Mode != rlock.ModeExclusive || s.Token != writer.Token() {
				t.Fatalf("%+v", s)
			}
			if !first.waits() || nested.Token() != 0 {
				t.Fatal("a stranger is beside the writer")
			}
			mustUnlock(t, writer)
			lease := first.held() // the downgrade lets it in, by a message
			if s := queuedState(t, l.Writer); len(s.Holders) != 2 || s.Mode != rlock.ModeShared || s.Token != 0 {
				t.Fatalf("%+v", s)
			}
			mustUnlock(t, lease)
			if !second.waits() || !third.waits() {
				t.Fatal("somebody came in")
			}
			mustUnlock(t, nested)
			mustUnlock(t, second.held())
			mustUnlock(t, third.held())
			onlyTombstones(t, rdb)
		}
	})
}

// The reader must not get in as a stranger when the write hold that it stood
// under has gone: the outer section believes that it is alone.
func TestFairNestedReadUnderALostWriteFails(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewFairReadWriteLock("a")
		for _, c := range []struct {
			taken bool
			cause error
		}{{false, rlock.ErrRemoved}, {true, rlock.ErrTakenOver}} {
			writer := mustLock(t, l.Writer)
			if was, err := l.Writer.ForceUnlockIf(bg, writer.Owner()); !was || err != nil {
				t.Fatal(was, err)
			}
			var other *rlock.Lease
			if c.taken {
				other = mustLock(t, l.Writer)
			}
			_, err := l.Reader.Lock(writer.Context(bg))
			wantErr(t, err, rlock.ErrLeaseLost, c.cause)
			wantErr(t, writer.Unlock(bg), rlock.ErrLeaseLost, c.cause)
			if other != nil {
				mustUnlock(t, other)
			}
			onlyTombstones(t, rdb)
		}
	})
}

func TestEachFairReaderHasItsOwnExpiry(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewFairReadWriteLock("a")
		long := mustLock(t, l.Reader)
		short := mustLock(t, l.Reader, rlock.WithLease(ample(300*time.Millisecond)))
		<-short.Done()
		eventually(t, "one reader is left", func() bool { return len(queuedState(t, l.Reader).Holders) == 1 })
		_, err := l.Writer.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		if s := queuedState(t, l.Reader); s.Holders[0].Owner != long.Owner() || s.TTL < 20*time.Second {
			t.Fatalf("%+v", s)
		}
		mustUnlock(t, long)
		mustUnlock(t, mustLock(t, l.Writer))
		wantErr(t, short.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		eventually(t, "nothing is left", func() bool { return tombstones(keysOf(t, rdb)) == len(keysOf(t, rdb)) })
	})
}

func TestFairReadWriteLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	followsQueuedModel(t, "fairrw", func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T) {
		l := c.NewFairReadWriteLock(m.name)
		enter := func(side queuedLocker, isShared bool) func(*rapid.T) {
			return func(rt *rapid.T) {
				o := m.pick(rt, "enter", func(o *queuedMember) bool { return len(o.leases) == 0 && !o.waits })
				m.lock(rt, o, side, isShared, 0)
			}
		}
		return map[string]func(*rapid.T){"read": enter(l.Reader, true), "read again": enter(l.Reader, true), "write": enter(l.Writer, false)}
	})
}

// Those who were told and have not come yet need not hear of everybody behind
// them that leaves.
func TestWaiterThatLeavesWakesNobodyWhoCouldEnterBefore(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		for _, first := range []string{"writer", "reader"} {
			t.Run(first, func(t *testing.T) {
				rdb := b.client(t)
				queuedFlush(t, rdb)
				c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
				l := c.NewFairReadWriteLock("a")
				messages := fairWakeUps(t, rdb)
				var inside *rlock.Lease
				if first == "reader" {
					inside = mustLock(t, l.Reader)
				}
				// It can enter, and is on its way.
				queuedCorpse(t, rdb, fairKinds['w'], "a", queuedFirst, time.Hour)
				if first == "reader" {
					rdb.Rename(bg, fairBase+":queue", fairBase+":queue:shared")
				}
				behind := fairKinds['w'].enqueue(t, rdb, l.Writer)
				behind.cancel()
				<-behind.done
				eventually(t, "it has left", func() bool { return queuedState(t, l.Reader).Waiters == 1 })
				if inside != nil {
					mustUnlock(t, inside)
				}
				if n := messages(); n != 0 {
					t.Fatalf("%d messages", n)
				}
			})
		}
	})
}

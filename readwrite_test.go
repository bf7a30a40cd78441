package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// rwTimer is the key of a read hold's timer.
func rwTimer(name, owner string, n int) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return fmt.Sprintf("%s:%s:rwlock_timeout:%d", name, owner, n)
}

func rwChannel(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_rwlock:" + name
	}
	return "redisson_rwlock:{" + name + "}"
}

// rwSubscribers is how many connections listen to a lock, on all nodes.
func rwSubscribers(t testing.TB, rdb redis.UniversalClient, name string) int64 {
	t.Helper()
	var total atomic.Int64
	look := func(ctx context.Context, node *redis.Client) error {
		n, err := node.PubSubNumSub(ctx, rwChannel(name)).Result()
		total.Add(n[rwChannel(name)])
		return err
	}
	var err error
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(bg, look)
	case *redis.Client:
		err = look(bg, rdb)
	}
	if err != nil {
		t.Fatal(err)
	}
	return total.Load()
}

// rwHeard listens to the channel of a lock. Each call returns what was
// published since the one before.
func rwHeard(t testing.TB, rdb redis.UniversalClient, name string) func() []string {
	t.Helper()
	sub := rdb.Subscribe(bg, rwChannel(name))
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(bg); err != nil {
		t.Fatal(err)
	}
	return func() (heard []string) {
		t.Helper()
		// From the node of the lock: messages of different nodes may overtake each other.
		if err := rdb.Eval(bg, "return redis.call('publish', ARGV[1], 'end')", []string{name}, rwChannel(name)).Err(); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := sub.ReceiveMessage(bg)
			if err != nil {
				t.Fatal(err)
			}
			if m.Payload == "end" {
				return heard
			}
			heard = append(heard, m.Payload)
		}
	}
}

// rwJava does with raw commands what Redisson's scripts do, step by step.
type rwJava struct {
	rdb  redis.UniversalClient
	name string
}

const rwJavaOwner = "6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:57"

func (j rwJava) read(owner string, lease time.Duration) {
	ttl := max(j.rdb.PTTL(bg, j.name).Val(), lease)
	j.rdb.HSet(bg, j.name, "mode", "read")
	n := j.rdb.HIncrBy(bg, j.name, owner, 1).Val()
	j.rdb.Set(bg, rwTimer(j.name, owner, int(n)), 1, lease)
	j.rdb.PExpire(bg, j.name, ttl)
}

func (j rwJava) renew(owner string) {
	n := 0
	fmt.Sscan(j.rdb.HGet(bg, j.name, owner).Val(), &n)
	for ; n > 0; n-- {
		j.rdb.PExpire(bg, rwTimer(j.name, owner, n), 30*time.Second)
	}
	j.rdb.PExpire(bg, j.name, 30*time.Second)
}

// release returns Redisson's reply: 1 if it deleted the lock.
func (j rwJava) release(owner string) int {
	n := j.rdb.HIncrBy(bg, j.name, owner, -1).Val()
	if n == 0 {
		j.rdb.HDel(bg, j.name, owner)
	}
	j.rdb.Del(bg, rwTimer(j.name, owner, int(n)+1))
	fields := j.rdb.HGetAll(bg, j.name).Val()
	if len(fields) > 1 {
		longest := time.Duration(-3)
		for field, value := range fields {
			n := 0
			if _, err := fmt.Sscan(value, &n); err != nil {
				continue
			}
			for ; n > 0; n-- {
				longest = max(longest, j.rdb.PTTL(bg, rwTimer(j.name, field, n)).Val())
			}
		}
		if longest > 0 {
			j.rdb.PExpire(bg, j.name, longest)
			return 0
		}
		if fields["mode"] == "write" {
			return 0
		}
	}
	j.rdb.Del(bg, j.name)
	j.rdb.Publish(bg, rwChannel(j.name), "0")
	return 1
}

// rwTTL checks that a key's time is at most d and not much less.
func rwTTL(t testing.TB, rdb redis.UniversalClient, key string, d time.Duration) {
	t.Helper()
	if ttl := rdb.PTTL(bg, key).Val(); ttl > d || ttl < d-8*time.Second {
		t.Fatalf("TTL of %s is %v, want up to %v", key, ttl, d)
	}
}

func rwHash(t testing.TB, rdb redis.UniversalClient, name string, want map[string]string) {
	t.Helper()
	got, err := rdb.HGetAll(bg, name).Result()
	if err != nil || !maps.Equal(got, want) {
		t.Helper()
		t.Fatalf("hash of %s: %v (%v), want %v", name, got, err, want)
	}
}

// Each step of a lock's life leaves in Redis, and publishes, what Redisson's
// would, or what Redisson tolerates.
func TestReadWriteLockStandsOnTheWireAsRedissonsDoes(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		for _, name := range []string{"order:7", "{t}x", "a b"} {
			c := newClientOn(t, rdb, rlock.WithPubSub(rlock.PubSubPlain))
			l := c.NewReadWriteLock(name)
			heard := rwHeard(t, rdb, name)
			var first, second, third, write, again *rlock.Lease
			type fields = map[string]string
			for _, step := range []struct {
				what   string
				do     func()
				hash   func() fields
				ttl    time.Duration
				timers func() map[string]time.Duration
				heard  string
			}{
				{
					what: "a reader",
					do:   func() { first = mustLock(t, l.Reader, rlock.WithLease(time.Minute)) },
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): time.Minute}
					},
				},
				{
					what: "another reader, for shorter",
					do:   func() { second = mustLock(t, l.Reader) },
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1", second.Owner(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): time.Minute, rwTimer(name, second.Owner(), 1): 30 * time.Second}
					},
				},
				{
					what: "enters again, for longer",
					do: func() {
						third = mustLockCtx(t, second.Context(bg), l.Reader, rlock.WithLease(2*time.Minute))
					},
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1", second.Owner(): "2"} },
					ttl:  2 * time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{
							rwTimer(name, first.Owner(), 1):  time.Minute,
							rwTimer(name, second.Owner(), 1): 2 * time.Minute, // the last to go
							rwTimer(name, second.Owner(), 2): 2 * time.Minute,
						}
					},
				},
				{
					what: "leaves once",
					do:   func() { mustUnlock(t, second) },
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1", third.Owner(): "1"} },
					ttl:  2 * time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): time.Minute, rwTimer(name, third.Owner(), 1): 2 * time.Minute}
					},
				},
				{
					what: "leaves: the time of the hash is that of who is left",
					do:   func() { mustUnlock(t, third) },
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): time.Minute}
					},
				},
				{what: "the last reader leaves", do: func() { mustUnlock(t, first) }, heard: "0"},
				{
					what: "a writer",
					do:   func() { write = mustLock(t, l.Writer) },
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "1"} },
					ttl:  30 * time.Second,
				},
				{
					what: "writes again",
					do: func() {
						again = mustLockCtx(t, write.Context(bg), l.Writer, rlock.WithLease(time.Minute))
					},
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "2"} },
					ttl:  time.Minute,
				},
				{
					what: "reads too",
					do: func() {
						first = mustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(40*time.Second))
						if first.Owner() != write.Owner() || first.Token() != 0 || write.Token() == 0 || again.Token() != write.Token() {
							t.Fatal("owners or tokens are wrong")
						}
					},
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "2", write.Owner(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, write.Owner(), 1): 40 * time.Second}
					},
				},
				{
					what: "reads no more: the write lease is as it was",
					do:   func() { mustUnlock(t, first) },
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "2"} },
					ttl:  time.Minute,
				},
				{
					what: "reads once more, under another id",
					do: func() {
						first = mustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(40*time.Second))
						if first.Owner() == write.Owner() {
							t.Fatal("late copies of the first release could end this hold")
						}
					},
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "2", first.Owner(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): 40 * time.Second}
					},
				},
				{
					what: "writes less",
					do:   func() { mustUnlock(t, again) },
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "1", first.Owner(): "1"} },
					ttl:  time.Minute,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): 40 * time.Second}
					},
				},
				{
					what: "writes no more, but reads",
					do:   func() { mustUnlock(t, write) },
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1"} },
					ttl:  40 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): 40 * time.Second}
					},
					heard: "1",
				},
				{what: "leaves", do: func() { mustUnlock(t, first) }, heard: "0"},
				{
					what: "force on the other side than the writer's",
					do: func() {
						write = mustLock(t, l.Writer)
						first = mustLockCtx(t, write.Context(bg), l.Reader)
						if was, err := l.Reader.ForceUnlock(bg); was || err != nil {
							t.Fatal(was, err)
						}
					},
					hash: func() fields { return fields{"mode": "write", write.Owner() + ":write": "1", first.Owner(): "1"} },
					ttl:  30 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): 30 * time.Second}
					},
				},
				{
					what: "force on the writer's side",
					do: func() {
						if was, err := l.Writer.ForceUnlock(bg); !was || err != nil {
							t.Fatal(was, err)
						}
						if was, err := l.Writer.ForceUnlock(bg); was || err != nil {
							t.Fatal(was, err)
						}
						wantErr(t, first.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
						wantErr(t, write.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
					},
					heard: "1",
				},
				{
					what: "force on the readers' side",
					do: func() {
						first, second = mustLock(t, l.Reader), mustLock(t, l.Reader)
						if was, err := l.Writer.ForceUnlock(bg); was || err != nil {
							t.Fatal(was, err)
						}
						if was, err := l.Reader.ForceUnlock(bg); !was || err != nil {
							t.Fatal(was, err)
						}
						wantErr(t, first.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
						wantErr(t, second.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
					},
					heard: "0",
				},
				{
					what: "force of one reader",
					do: func() {
						first, second = mustLock(t, l.Reader), mustLock(t, l.Reader)
						if was, err := l.Writer.ForceUnlockIf(bg, second.Owner()); was || err != nil {
							t.Fatal(was, err)
						}
						if was, err := l.Reader.ForceUnlockIf(bg, second.Owner()); !was || err != nil {
							t.Fatal(was, err)
						}
						wantErr(t, second.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
					},
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1"} },
					ttl:  30 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): 30 * time.Second}
					},
				},
				{
					what: "force of a writer that reads",
					do: func() {
						mustUnlock(t, first)
						write = mustLock(t, l.Writer)
						first = mustLockCtx(t, write.Context(bg), l.Reader)
						if was, err := l.Writer.ForceUnlockIf(bg, write.Owner()); !was || err != nil {
							t.Fatal(was, err)
						}
						wantErr(t, write.Unlock(bg), rlock.ErrLeaseLost)
					},
					hash: func() fields { return fields{"mode": "read", first.Owner(): "1"} },
					ttl:  30 * time.Second,
					timers: func() map[string]time.Duration {
						return map[string]time.Duration{rwTimer(name, first.Owner(), 1): 30 * time.Second}
					},
					heard: "0 1",
				},
				{what: "the end", do: func() { mustUnlock(t, first) }, heard: "0"},
			} {
				step.do()
				var want fields
				if step.hash != nil {
					want = step.hash()
					rwTTL(t, rdb, name, step.ttl)
				}
				rwHash(t, rdb, name, want)
				keys := map[string]bool{}
				for _, k := range keysOf(t, rdb) {
					keys[k] = true
				}
				delete(keys, name)
				if step.timers != nil {
					for timer, ttl := range step.timers() {
						if v := rdb.Get(bg, timer).Val(); v != "1" {
							t.Fatalf("%s, %s: timer %s has %q", name, step.what, timer, v)
						}
						rwTTL(t, rdb, timer, ttl)
						delete(keys, timer)
					}
				}
				if len(keys) > 0 {
					t.Fatalf("%s, %s: left in Redis: %v", name, step.what, keys)
				}
				if got := strings.Join(heard(), " "); got != step.heard {
					t.Fatalf("%s, %s: published %q, want %q", name, step.what, got, step.heard)
				}
			}
		}
	})
}

func TestReadersShareAndWritersExclude(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l, other := newClientOn(t, rdb).NewReadWriteLock("a"), b.newClient(t).NewReadWriteLock("a")
		if l.Name() != "a" || l.Reader.Name() != "a" || l.Writer.Name() != "a" {
			t.Fatal("names")
		}
		first, second := mustLock(t, l.Reader), mustLock(t, other.Reader)
		for _, w := range []rlock.Locker{l.Writer, other.Writer} {
			_, err := w.TryLock(bg)
			wantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
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
		mustUnlock(t, first)
		_, err = l.Writer.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		mustUnlock(t, second)

		write := mustLock(t, l.Writer)
		for _, x := range []rlock.Locker{l.Writer, other.Writer, l.Reader, other.Reader} {
			_, err := x.TryLock(bg)
			wantErr(t, err, rlock.ErrNotAcquired)
		}
		if on, err := l.Reader.IsLocked(bg); on || err != nil {
			t.Fatal(on, err)
		}
		read := mustLockCtx(t, write.Context(bg), l.Reader)
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
		mustUnlock(t, write)
		mustUnlock(t, mustLock(t, other.Reader))
		mustUnlock(t, read)
		next := mustLock(t, other.Writer)
		if next.Token() <= write.Token() {
			t.Fatalf("token %d after %d", next.Token(), write.Token())
		}
		mustUnlock(t, next)
		mustBeEmpty(t, rdb)
	})
}

func TestUpgradeFailsAtOnceAndSendsNothing(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	rdb := b.client(t)
	c := newClientOn(t, rdb)
	l := c.NewReadWriteLock("a")
	read := mustLock(t, l.Reader)
	var sent countHook
	rdb.AddHook(&sent)
	for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){l.Writer.Lock, l.Writer.TryLock, c.NewReadWriteLock("a").Writer.Lock} {
		_, err := acquire(read.Context(bg))
		wantErr(t, err, rlock.ErrUpgrade, nil, rlock.ErrNotAcquired)
	}
	if n := sent.n.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
	// A stranger is not meant, and once it reads no more neither is the owner.
	_, err := l.Writer.TryLock(bg)
	wantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
	owner := read.Context(rlock.WithoutOwner(bg))
	mustUnlock(t, read)
	mustUnlock(t, mustLockCtx(t, context.WithoutCancel(owner), l.Writer))
	mustBeEmpty(t, rdb)
}

// Downgrading is no way round: who was a writer and reads on cannot write.
func TestReaderThatWasAWriterCannotUpgrade(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	l := b.newClient(t).NewReadWriteLock("a")
	write := mustLock(t, l.Writer)
	ctx := context.WithoutCancel(write.Context(bg))
	read := mustLockCtx(t, ctx, l.Reader)
	mustUnlock(t, mustLockCtx(t, ctx, l.Writer)) // still a writer
	mustUnlock(t, write)
	_, err := l.Writer.Lock(context.WithoutCancel(read.Context(ctx)))
	wantErr(t, err, rlock.ErrUpgrade)
	// A context that does not descend from the read lease is another owner's.
	_, err = l.Writer.TryLock(ctx)
	wantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
	mustUnlock(t, read)
}

// The own read hold stands behind nobody: those who wait to read wait for the
// very writer that asks for it.
func TestWriterReadsAtOnceWhileOthersWaitToRead(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb, rlock.WithLongestPoll(patient)).NewReadWriteLock("a")
		write := mustLock(t, l.Writer)
		got := make(chan *rlock.Lease, 2)
		for range 2 {
			go func() { got <- mustLock(t, l.Reader) }()
		}
		eventually(t, "others wait", func() bool {
			s, err := l.Reader.State(bg)
			return err == nil && s.Waiters == 2
		})
		for range 3 {
			mustUnlock(t, mustLockCtx(t, write.Context(bg), l.Reader, rlock.WithWait(10*time.Second)))
		}
		read := mustLockCtx(t, write.Context(bg), l.Reader)
		mustUnlock(t, write)
		mustUnlock(t, <-got)
		mustUnlock(t, <-got)
		mustUnlock(t, read)
		onlyTombstones(t, rdb)
	})
}

func TestHashOfAnotherTypeIsLeftAlone(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		lease := mustLock(t, c.NewLock("a"))
		for _, opts := range [][]rlock.LockOption{nil, {rlock.WithReaderPreference()}} {
			l := c.NewReadWriteLock("a", opts...)
			for _, side := range []interface {
				rlock.Locker
				ForceUnlock(context.Context) (bool, error)
				IsLocked(context.Context) (bool, error)
			}{l.Reader, l.Writer} {
				_, err := side.TryLock(bg)
				wantErr(t, err, rlock.ErrNotAcquired)
				_, err = side.Lock(bg, rlock.WithWait(20*time.Millisecond))
				wantErr(t, err, rlock.ErrNotAcquired)
				if was, err := side.ForceUnlock(bg); was || err != nil {
					t.Fatal(was, err)
				}
			}
			s, err := l.Reader.State(bg)
			if err != nil || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || s.Holders[0].Owner != lease.Owner() {
				t.Fatalf("%+v, %v", s, err)
			}
		}
		rwHash(t, rdb, "a", map[string]string{lease.Owner(): "1"})
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
		mustUnlock(t, mustLock(t, c.NewReadWriteLock("a").Writer))
	})
}

func TestReadWriteLockRefusesBadArguments(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	c := b.newClient(t)
	for _, name := range []string{"", "a{b", strings.Repeat("n", rlock.MaxNameLength+1)} {
		l := c.NewReadWriteLock(name)
		for _, side := range []rlock.Locker{l.Reader, l.Writer} {
			_, err := side.Lock(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	_, err := c.NewLock("a", rlock.WithReaderPreference()).Lock(bg)
	wantErr(t, err, rlock.ErrInvalidArgument)
	l := c.NewReadWriteLock("a", rlock.WithNonReentrant())
	for _, side := range []rlock.Locker{l.Reader, l.Writer} {
		lease := mustLock(t, side)
		_, err := side.Lock(lease.Context(bg))
		wantErr(t, err, rlock.ErrReentrant)
		mustUnlock(t, lease)
	}
}

// A renewed hold whose side has been ended by force, or whose keys are gone, is
// told with the next renewal, and the other side's with its own.
func TestLossOfASideIsTold(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(2*time.Second))
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
			"timer of the reader": {func(n string, w, r *rlock.Lease) { rdb.Del(bg, rwTimer(n, r.Owner(), 1)) }, nil, rlock.ErrRemoved},
			"both":                {func(n string, w, r *rlock.Lease) { rdb.Del(bg, n) }, rlock.ErrRemoved, rlock.ErrRemoved},
			"both, another writer now": {func(n string, w, r *rlock.Lease) {
				rdb.Del(bg, n)
				rdb.HSet(bg, n, "mode", "write", "x:1:write", 1)
				rdb.PExpire(bg, n, time.Minute)
			}, rlock.ErrTakenOver, rlock.ErrTakenOver},
		} {
			l := c.NewReadWriteLock(what)
			write := mustLock(t, l.Writer)
			read := mustLockCtx(t, write.Context(bg), l.Reader)
			scenario.lose(what, write, read)
			checks = append(checks, func(t *testing.T) {
				for _, side := range []struct {
					lease *rlock.Lease
					cause error
				}{{write, scenario.write}, {read, scenario.read}} {
					if side.cause != nil {
						<-side.lease.Done()
						wantErr(t, side.lease.Err(), rlock.ErrLeaseLost, side.cause)
						wantErr(t, side.lease.Unlock(bg), rlock.ErrLeaseLost, side.cause)
						continue
					}
					was := side.lease.Deadline()
					eventually(t, "it is renewed", func() bool { return side.lease.Deadline().After(was) })
					if err := side.lease.Err(); err != nil {
						t.Fatal(err)
					}
				}
				for _, lease := range []*rlock.Lease{write, read} {
					if lease.Err() == nil {
						mustUnlock(t, lease)
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
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewReadWriteLock("a")
		read := mustLock(t, l.Reader)
		for _, side := range []interface {
			ForceUnlockIf(context.Context, string) (bool, error)
		}{l.Reader, l.Writer} {
			if was, err := side.ForceUnlockIf(bg, "mode"); was || err != nil {
				t.Errorf("ended: %v, %v", was, err)
			}
		}
		_, err := l.Writer.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		mustUnlock(t, read)
		write := mustLock(t, l.Writer)
		if was, err := l.Reader.ForceUnlockIf(bg, write.Owner()+":write"); was || err != nil {
			t.Errorf("ended: %v, %v", was, err)
		}
		_, err = l.Reader.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		mustUnlock(t, write)
		mustBeEmpty(t, rdb)
	})
}

// Neither side is entered again, nor lets its owner into the other, once it is
// lost.
func TestLostSideLetsNobodyIn(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewReadWriteLock("a")
		write := mustLock(t, l.Writer)
		ctx := context.WithoutCancel(write.Context(bg))
		rdb.Del(bg, "a")
		_, err := l.Reader.Lock(ctx) // nothing but Redis knows of the loss
		wantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		_, err = l.Writer.Lock(ctx)
		wantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		wantErr(t, write.Unlock(bg), rlock.ErrLeaseLost)

		read := mustLock(t, l.Reader)
		ctx = context.WithoutCancel(read.Context(bg))
		rdb.Del(bg, rwTimer("a", read.Owner(), 1))
		_, err = l.Reader.Lock(ctx)
		wantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		_, err = l.Writer.Lock(ctx)
		wantErr(t, err, rlock.ErrLeaseLost)
		wantErr(t, read.Unlock(bg), rlock.ErrLeaseLost)
		mustUnlock(t, mustLock(t, l.Writer))
		mustBeEmpty(t, rdb)
	})
}

func TestSidesEndEachAtItsOwnTime(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewReadWriteLock("a")
		other := b.newClient(t).NewReadWriteLock("a")

		// The write lease is over, what the writer reads is not: it reads on, and
		// nobody writes.
		write := mustLock(t, l.Writer, rlock.WithLease(ample(300*time.Millisecond)))
		ctx := context.WithoutCancel(write.Context(bg))
		read := mustLockCtx(t, ctx, l.Reader, rlock.WithLease(time.Minute))
		<-write.Done()
		wantErr(t, write.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		_, err := other.Writer.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		if read.Err() != nil {
			t.Fatal(read.Err())
		}
		wantErr(t, write.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		mustUnlock(t, mustLock(t, other.Reader)) // once Unlock has cleaned up
		mustUnlock(t, read)

		// The other way round: it writes on.
		write = mustLock(t, l.Writer, rlock.WithLease(time.Minute))
		read = mustLockCtx(t, write.Context(bg), l.Reader, rlock.WithLease(ample(300*time.Millisecond)))
		<-read.Done()
		wantErr(t, read.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		wantErr(t, read.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		_, err = other.Reader.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		if write.Err() != nil {
			t.Fatal(write.Err())
		}
		mustUnlock(t, write)
		eventually(t, "nothing is left", func() bool { return len(keysOf(t, rdb)) == 0 })
	})
}

// The dead hold nobody up, and are swept out by who meets them. The hash does not
// keep the time of a reader that has left.
func TestDeadReadersDoNotHoldWritersUp(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		java := rwJava{rdb, "a"}
		l := newClientOn(t, rdb, rlock.WithLongestPoll(patient)).NewReadWriteLock("a")
		long := mustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
		java.read(rwJavaOwner, 500*time.Millisecond) // and dies
		mustUnlock(t, long)
		if ttl := rdb.PTTL(bg, "a").Val(); ttl > 500*time.Millisecond {
			t.Fatalf("the lock lasts for %v, its reader for 500 ms", ttl)
		}
		_, err := l.Writer.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		mustUnlock(t, mustLock(t, l.Writer)) // by its timer

		java.read("!dead:1", 50*time.Millisecond)
		living := mustLock(t, l.Reader, rlock.WithLease(time.Minute))
		eventually(t, "one is dead", func() bool { return rdb.Exists(bg, rwTimer("a", "!dead:1", 1)).Val() == 0 })
		s, err := l.Reader.State(bg)
		if err != nil || len(s.Holders) != 1 || s.Holders[0].Owner != living.Owner() {
			t.Fatalf("the state shows the dead: %+v, %v", s, err)
		}
		_, err = l.Writer.TryLock(bg)
		wantErr(t, err, rlock.ErrNotAcquired)
		rwHash(t, rdb, "a", map[string]string{"mode": "read", living.Owner(): "1"}) // the writer swept the dead out
		mustUnlock(t, living)
		mustBeEmpty(t, rdb)
	})
}

func TestRenewedReaderDoesNotKeepTheDeadAlive(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(2*time.Second))
		living := mustLock(t, c.NewReadWriteLock("a").Reader)
		rwJava{rdb, "a"}.read("dead:1", time.Second)
		was := living.Deadline()
		eventually(t, "the dead one is over, the other was renewed", func() bool {
			return rdb.Exists(bg, rwTimer("a", "dead:1", 1)).Val() == 0 && living.Deadline().After(was)
		})
		mustUnlock(t, living)
		mustBeEmpty(t, rdb)
	})
}

// What Redisson does beside us, as the hazards that its protocol has.
func TestBesideRedissonReaders(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		setUp := func(t *testing.T, opts ...rlock.Option) (rwJava, *rlock.ReadWriteLock) {
			rdb := b.client(t)
			rdb.FlushDB(bg)
			return rwJava{rdb, "a"}, newClientOn(t, rdb, opts...).NewReadWriteLock("a")
		}
		t.Run("its release finds our timers", func(t *testing.T) {
			j, l := setUp(t)
			j.read(rwJavaOwner, time.Minute)
			ours := mustLock(t, l.Reader, rlock.WithLease(40*time.Second))
			again := mustLockCtx(t, ours.Context(bg), l.Reader, rlock.WithLease(20*time.Second))
			mustUnlock(t, ours)
			if j.release(rwJavaOwner) != 0 {
				t.Fatal("it ended our hold")
			}
			rwHash(t, j.rdb, "a", map[string]string{"mode": "read", ours.Owner(): "1"})
			rwTTL(t, j.rdb, "a", 40*time.Second) // as promised to the first entry
			if err := again.Extend(bg, time.Second); err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, again)
			mustBeEmpty(t, j.rdb)
		})
		t.Run("our release leaves its hold", func(t *testing.T) {
			j, l := setUp(t)
			ours := mustLock(t, l.Reader)
			j.read(rwJavaOwner, 20*time.Second)
			j.read(rwJavaOwner, 10*time.Second)
			mustUnlock(t, ours)
			rwHash(t, j.rdb, "a", map[string]string{"mode": "read", rwJavaOwner: "2"})
			j.rdb.Del(bg, rwTimer("a", rwJavaOwner, 2)) // the newest is over: the other counts
			_, err := l.Writer.TryLock(bg)
			wantErr(t, err, rlock.ErrNotAcquired)
			mustUnlock(t, mustLock(t, l.Reader))
			if j.rdb.Exists(bg, "a").Val() != 1 {
				t.Fatal("our release ended its hold")
			}
			j.rdb.HSet(bg, "a", rwJavaOwner, 1)
			if j.release(rwJavaOwner) != 1 {
				t.Fatal("it was not the last")
			}
			mustBeEmpty(t, j.rdb)
		})
		t.Run("its renewal cuts the time of the lock", func(t *testing.T) {
			j, l := setUp(t, rlock.WithWatchdogLease(3*time.Second))
			long := mustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
			renewed := mustLock(t, l.Reader)
			j.read(rwJavaOwner, 30*time.Second)
			j.renew(rwJavaOwner)
			rwTTL(t, j.rdb, "a", 30*time.Second)
			eventually(t, "the time of the lock is put back", func() bool { return j.rdb.PTTL(bg, "a").Val() > 9*time.Minute })
			was := renewed.Deadline()
			eventually(t, "the other is renewed", func() bool { return renewed.Deadline().After(was) })
			if ttl := j.rdb.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
				t.Fatalf("our renewal shortened it to %v", ttl)
			}
			rwTTL(t, j.rdb, rwTimer("a", renewed.Owner(), 1), 3*time.Second)
			mustUnlock(t, renewed)
			mustUnlock(t, long)
			j.release(rwJavaOwner)
			mustBeEmpty(t, j.rdb)
		})
		t.Run("its renewal, and we do not hold still", func(t *testing.T) {
			j, l := setUp(t, rlock.WithWatchdogLease(3*time.Second))
			long := mustLock(t, l.Reader, rlock.WithLease(10*time.Minute))
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
				j.rdb.PExpire(bg, "a", 30*time.Second)
				// For longer than until it is due to be put back.
				for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if err := operate(); err != nil {
						t.Fatal(err)
					}
				}
				if ttl := j.rdb.PTTL(bg, "a").Val(); ttl < 9*time.Minute {
					t.Errorf("%s: the time of the lock is still %v", what, ttl)
				}
			}
			mustUnlock(t, long)
			mustBeEmpty(t, j.rdb)
		})
		t.Run("its writer's reads", func(t *testing.T) {
			j, l := setUp(t)
			j.rdb.HSet(bg, "a", "mode", "write", rwJavaOwner+":write", 1, rwJavaOwner, 2)
			j.rdb.PExpire(bg, "a", time.Minute)
			j.rdb.Set(bg, rwTimer("a", rwJavaOwner, 1), 1, time.Minute)
			j.rdb.Set(bg, rwTimer("a", rwJavaOwner, 2), 1, time.Minute)
			for _, side := range []rlock.Locker{l.Reader, l.Writer} {
				_, err := side.TryLock(bg)
				wantErr(t, err, rlock.ErrNotAcquired)
			}
			s, err := l.Reader.State(bg)
			if err != nil || len(s.Holders) != 2 || s.Holders[0].Owner != rwJavaOwner || s.Holders[0].Shared || s.Holders[1].Count != 2 {
				t.Fatalf("%+v, %v", s, err)
			}
			// It downgrades, in silence.
			j.rdb.HDel(bg, "a", rwJavaOwner+":write")
			j.rdb.HSet(bg, "a", "mode", "read")
			mustUnlock(t, mustLock(t, l.Reader))
			j.release(rwJavaOwner)
			j.release(rwJavaOwner)
			mustBeEmpty(t, j.rdb)
		})
		t.Run("its transaction writes", func(t *testing.T) {
			j, l := setUp(t)
			j.rdb.HSet(bg, "a", "mode", "write", "u:1:write:tx", 1)
			j.rdb.PExpire(bg, "a", time.Minute)
			s, err := l.Writer.State(bg)
			if err != nil || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || s.Holders[0].Owner != "u:1:tx" {
				t.Fatalf("%+v, %v", s, err)
			}
			j.rdb.Del(bg, "a")
		})
	})
}

func TestExtendOfAReader(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		l := newClientOn(t, rdb).NewReadWriteLock("a")
		lease := mustLock(t, l.Reader, rlock.WithLease(10*time.Second))
		for _, d := range []time.Duration{time.Minute, time.Second} { // never shortens
			if err := lease.Extend(bg, d); err != nil {
				t.Fatal(err)
			}
			rwTTL(t, rdb, "a", time.Minute)
			rwTTL(t, rdb, rwTimer("a", lease.Owner(), 1), time.Minute)
		}
		mustUnlock(t, lease)
		mustBeEmpty(t, rdb)
	})
}

func TestShutdownReleasesBothSides(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		l := c.NewReadWriteLock("a")
		write := mustLock(t, l.Writer)
		read := mustLockCtx(t, write.Context(bg), l.Reader)
		reader := mustLock(t, c.NewReadWriteLock("b").Reader)
		waiting := make(chan error, 3)
		other := c.NewReadWriteLock("b")
		for _, side := range []rlock.Locker{other.Writer, l.Reader, l.Writer} {
			go func() {
				_, err := side.Lock(bg)
				waiting <- err
			}()
		}
		eventually(t, "all wait", func() bool { return rwSubscribers(t, rdb, "a")+rwSubscribers(t, rdb, "b") == 2 })
		leases := []*rlock.Lease{write, read, reader}
		done := shutDown(bg, c, leases...)
		for range 3 {
			wantErr(t, <-waiting, rlock.ErrClosed)
		}
		for _, lease := range leases {
			wantErr(t, lease.Err(), rlock.ErrClosed)
			running(t, done)
			mustUnlock(t, lease)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustBeEmpty(t, rdb)
	})
}

func TestServerAtItsMemoryLimitCanReleaseBothSides(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	rdb := b.client(t)
	l := newClientOn(t, rdb).NewReadWriteLock("a")
	write := mustLock(t, l.Writer)
	again := mustLockCtx(t, write.Context(bg), l.Writer)
	read := mustLockCtx(t, write.Context(bg), l.Reader)
	readAgain := mustLockCtx(t, write.Context(bg), l.Reader)
	other := mustLock(t, b.newClient(t).NewReadWriteLock("b").Reader)
	if err := rdb.ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	defer rdb.ConfigSet(bg, "maxmemory", "0")
	// A tombstone may be left of an acquire that Redis refused half-way.
	keys := func() (all []string) {
		return slices.DeleteFunc(keysOf(t, rdb), func(key string) bool { return strings.Contains(key, ":rlock:gone:") })
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
	mustUnlock(t, again)
	mustUnlock(t, readAgain)
	mustUnlock(t, write)
	mustUnlock(t, read)
	for _, side := range []rlock.Locker{l.Reader, l.Writer} {
		if _, err := side.TryLock(bg); err == nil || errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "OOM") {
			t.Fatalf("at the memory limit: %v", err)
		}
	}
	mustUnlock(t, other)
	onlyTombstones(t, rdb) // of the acquires that were refused: an error may come half-way
}

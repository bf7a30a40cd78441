package multilock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Locks of the same set never wait for each other in a circle, in whatever order
// the members were given, and exclude each other.
func TestMultiLocksInOppositeOrder(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (rdbs []redis.UniversalClient, set func() []rlock.Locker){
		"one slot": func(t *testing.T) ([]redis.UniversalClient, func() []rlock.Locker) {
			rdb := locktest.OnServer(t).Client(t)
			return []redis.UniversalClient{rdb}, func() []rlock.Locker {
				c := locktest.NewClient(t, rdb)
				return []rlock.Locker{c.NewLock("{s}1"), c.NewLock("{s}2"), c.NewLock("{s}3")}
			}
		},
		"several types": func(t *testing.T) ([]redis.UniversalClient, func() []rlock.Locker) {
			rdb := locktest.OnServer(t).Client(t)
			return []redis.UniversalClient{rdb}, func() []rlock.Locker {
				c := locktest.NewClient(t, rdb)
				return []rlock.Locker{c.NewLock("1"), c.NewFairLock("2"), c.NewFencedLock("3"), c.NewReadWriteLock("4").Writer, c.NewPriorityLock("5")}
			}
		},
		"one name on two deployments": func(t *testing.T) ([]redis.UniversalClient, func() []rlock.Locker) {
			one, two := locktest.OnServer(t).Client(t), locktest.OnServer(t).Client(t)
			return []redis.UniversalClient{one, two}, func() []rlock.Locker {
				return []rlock.Locker{locktest.NewClient(t, one).NewLock("s"), locktest.NewClient(t, two).NewLock("s")}
			}
		},
		"one name on two clusters": func(t *testing.T) ([]redis.UniversalClient, func() []rlock.Locker) {
			one, two := locktest.OnCluster(t), locktest.OnCluster(t)
			return []redis.UniversalClient{one.Client(t), two.Client(t)}, func() []rlock.Locker {
				return []rlock.Locker{locktest.NewClient(t, one.Client(t)).NewLock("s"), locktest.NewClient(t, two.Client(t)).NewLock("s")}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const multis, goroutines, sections = 5, 2, 15
			rdbs, set := open(t)
			var inside, total atomic.Int32
			var last atomic.Int64
			var wg sync.WaitGroup
			start := time.Now()
			for i := range multis {
				locks := set()
				switch i {
				case 0:
				case 1:
					slices.Reverse(locks)
				default:
					rand.Shuffle(len(locks), func(i, j int) { locks[i], locks[j] = locks[j], locks[i] })
				}
				m := locktest.NewMultiLock(t, locks...)
				for range goroutines {
					wg.Go(func() {
						for range sections {
							lease := locktest.MustLock(t, m)
							if inside.Add(1) != 1 {
								t.Error("two are inside")
							}
							if before := last.Swap(lease.Token()); before >= lease.Token() {
								t.Errorf("token %d after %d", lease.Token(), before)
							}
							total.Add(1)
							inside.Add(-1)
							locktest.MustUnlock(t, lease)
						}
					})
				}
			}
			wg.Wait()
			took := time.Since(start)
			t.Logf("%d sections in %v", total.Load(), took)
			// They take a fraction of a second. A circle lasts for a whole round, and
			// would come up again and again; the rest is for a busy machine.
			if took > multis*goroutines*sections*rlock.DefaultMultiLockRound/4 {
				t.Errorf("took %v", took)
			}
			locktest.NothingLeft(t, rdbs...)
		})
	}
}

// A peer that takes the members one by one in the opposite order, and waits for
// the second as long as it takes, gets it when the round is over; and then the
// MultiLock gets all.
func TestMultiLockGivesWayToAPeerInOppositeOrder(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		names []string
		opts  []rlock.MultiLockOption
		round time.Duration // of a member
	}{
		"one slot":      {[]string{"{m}a", "{m}b"}, nil, rlock.DefaultMultiLockRound},
		"several":       {[]string{"a", "b"}, nil, rlock.DefaultMultiLockRound},
		"a long round":  {[]string{"a", "b"}, []rlock.MultiLockOption{rlock.WithRound(2 * time.Second)}, 2 * time.Second},
		"a short round": {[]string{"a", "b"}, []rlock.MultiLockOption{rlock.WithRound(time.Millisecond)}, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb, names := b.Client(t), x.names
			c, peer := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
			m, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock(names[0]), c.NewLock(names[1])}, x.opts...)
			if err != nil {
				t.Fatal(err)
			}
			second := locktest.MustLock(t, peer.NewLock(names[1]))
			got := make(chan locktest.Grant, 1)
			start := time.Now()
			go func() {
				lease, err := m.Lock(bg, rlock.WithWait(time.Minute))
				got <- locktest.Grant{Lease: lease, Err: err, At: time.Now()}
			}()
			if x.round > time.Second { // else it may not be seen
				locktest.Eventually(t, "it has the first member", func() bool { return rdb.Exists(bg, names[0]).Val() == 1 })
			}
			first, err := peer.NewLock(names[0]).Lock(bg, rlock.WithWait(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			// Not before: others should not have to begin again for a short wait.
			if after := time.Since(start); x.round > time.Second && after < 2*x.round {
				t.Errorf("gave way after %v", after)
			}
			locktest.MustUnlock(t, first)
			locktest.MustUnlock(t, second)
			g := <-got
			if g.Err != nil {
				t.Fatal(g.Err)
			}
			locktest.MustUnlock(t, g.Lease)
			locktest.NothingLeft(t, rdb)
		})
	}
}

// While a member is held for long, the others are not: the MultiLock waits for it
// with empty hands once the round is over.
func TestMultiLockWaitsWithEmptyHandsAfterARound(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
	long := locktest.MustLock(t, other.NewLock("b"))
	var rounds atomic.Int32
	m := locktest.NewMultiLock(t, locktest.WatchedLock{Locker: c.NewLock("a"), After: func(*rlock.Lease, error) { rounds.Add(1) }}, c.NewLock("b"), c.NewLock("c"))
	got := make(chan locktest.Grant, 1)
	go func() {
		lease, err := m.Lock(bg, rlock.WithWait(time.Minute))
		got <- locktest.Grant{Lease: lease, Err: err, At: time.Now()}
	}()
	locktest.Eventually(t, "it has the first member", func() bool { return rounds.Load() == 1 })
	// Only after a whole round, in which it waits for the second, is it free.
	free, err := other.NewLock("a").Lock(bg, rlock.WithWait(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, free)
	// The time in which it would have come back for it.
	time.Sleep(100 * time.Millisecond)
	if n := rounds.Load(); n != 1 {
		t.Errorf("it has taken the first member %d times", n)
	}
	locktest.MustUnlock(t, long)
	g := <-got
	if g.Err != nil {
		t.Fatal(g.Err)
	}
	locktest.MustBeHeld(t, other.NewLock("a"), other.NewLock("b"), other.NewLock("c"))
	for i, name := range []string{"a", "b", "c"} {
		if got := g.Lease.Members()[i].Name(); got != name {
			t.Errorf("member %d is %s", i, got)
		}
	}
	locktest.MustUnlock(t, g.Lease)
	locktest.NothingLeft(t, rdb)
}

// With WithLease, the early members are kept while the last is waited for, and
// each has the whole lease when all are held.
func TestMultiLockKeepsEarlyMembersOfFixedLeases(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clock locktest.Clock
		c, other := locktest.NewClient(t, rdb, clock.Option()), locktest.NewClient(t, rdb)
		// They are extended each third of it. The rest is for a busy machine.
		const fixed = 5 * time.Second
		third := locktest.MustLock(t, other.NewLock("c"))
		// So many that a round lasts for far longer than the test.
		names := strings.Split("abcdefghijklmnop", "")
		m := locktest.Begin(t, bg, locktest.MultiLockOf(t, c, names...), rlock.WithLease(fixed))
		var owners []string
		for _, n := range names[:2] {
			locktest.Eventually(t, "it is taken", func() bool { return len(rdb.HKeys(bg, n).Val()) > 0 })
			owners = append(owners, strings.Join(rdb.HKeys(bg, n).Val(), ","))
		}
		left := []time.Duration{fixed, fixed}
		for range 2 {
			for i, n := range names[:2] {
				locktest.Eventually(t, "it is extended", func() bool {
					was := left[i]
					left[i] = rdb.PTTL(bg, n).Val()
					return left[i] > was
				})
			}
		}
		locktest.MustUnlock(t, third)
		lease := m.Held()
		newest := lease.Members()[len(names)-1]
		for i, l := range lease.Members()[:2] {
			if owners[i] != l.HoldID() {
				t.Errorf("%s was held by %q", l.Name(), owners[i])
			}
			if l.Deadline().Before(newest.Deadline()) { // which has just been taken
				t.Errorf("%s has less time than the last: %v, %v", l.Name(), l.Deadline(), newest.Deadline())
			}
		}
		deadline := lease.Deadline()
		time.Sleep(fixed/3 + 100*time.Millisecond)
		if now := lease.Deadline(); !now.Equal(deadline) {
			t.Errorf("it is extended still: the deadline was %v and is %v", deadline, now)
		}
		clock.Forward(fixed)
		<-lease.Done()
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		for _, n := range names {
			rdb.PExpire(bg, n, time.Millisecond) // nothing else ends the leases in Redis
		}
		locktest.NothingLeft(t, rdb)
	})
}

// A member that is lost while another is waited for is taken again.
func TestMultiLockBeginsAgainWhenAnEarlyMemberIsLost(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		last := locktest.MustLock(t, other.NewLock("b"))
		early := make(chan *rlock.Lease, 10)
		m := locktest.NewMultiLock(t, locktest.WatchedLock{Locker: c.NewLock("a"), After: func(l *rlock.Lease, _ error) { early <- l }}, c.NewLock("b"))
		got := make(chan locktest.Grant, 1)
		go func() {
			lease, err := m.Lock(bg, rlock.WithLease(time.Minute))
			got <- locktest.Grant{Lease: lease, Err: err, At: time.Now()}
		}()
		<-early
		if done, err := other.NewLock("a").ForceUnlock(bg); !done || err != nil {
			t.Fatal(done, err)
		}
		locktest.MustUnlock(t, last)
		g := <-got
		if g.Err != nil {
			t.Fatal(g.Err)
		}
		locktest.MustBeHeld(t, other.NewLock("a"), other.NewLock("b"))
		locktest.MustUnlock(t, g.Lease)
		locktest.NothingLeft(t, rdb)
	})
}

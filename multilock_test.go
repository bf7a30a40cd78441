package rlock_test

import (
	"context"
	"errors"
	"fmt"
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

func TestMultiLockHoldsAllOrNothing(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		for name, names := range map[string][]string{"one slot": {"{m}b", "{m}a", "{m}c"}, "several": {"b", "a", "c"}} {
			t.Run(name, func(t *testing.T) {
				var strangers []rlock.Locker
				for _, n := range names {
					strangers = append(strangers, other.NewLock(n))
				}
				m := locktest.MultiLockOf(t, c, names...)
				if m.Name() != strings.Join(names, " + ") {
					t.Fatal(m.Name())
				}
				lease := locktest.MustLock(t, m)
				locktest.MustBeHeld(t, strangers...)
				inner := locktest.MustLockCtx(t, lease.Context(bg), m)
				locktest.MustUnlock(t, inner)
				locktest.MustBeHeld(t, strangers...)
				locktest.MustUnlock(t, lease)
				locktest.NothingLeft(t, rdb)

				for _, l := range strangers { // whichever is held
					taken := locktest.MustLock(t, l)
					if _, err := m.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
						t.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
					_, err := m.Lock(ctx)
					cancel()
					locktest.WantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
					_, err = m.Lock(bg, rlock.WithWait(30*time.Millisecond))
					locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
					_, err = m.Lock(bg, rlock.WithWait(0))
					locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
					if err := taken.Err(); err != nil {
						t.Fatal(err)
					}
					locktest.MustUnlock(t, taken)
					locktest.NothingLeft(t, rdb)
				}
			})
		}
	})
}

func TestNewMultiLockRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	type incomparable struct {
		rlock.Locker
		_ []int
	}
	rw := c.NewReadWriteLock("rw")
	for name, locks := range map[string][]rlock.Locker{
		"none":           nil,
		"nil":            {c.NewLock("a"), nil},
		"nil Lock":       {c.NewLock("a"), (*rlock.Lock)(nil)},
		"nil MultiLock":  {c.NewLock("a"), (*rlock.MultiLock)(nil)},
		"twice":          {c.NewLock("a"), c.NewLock("b"), c.NewLock("a")},
		"two types":      {c.NewLock("a"), c.NewFairLock("a")},
		"both sides":     {rw.Reader, rw.Writer},
		"in another one": {c.NewLock("a"), locktest.MultiLockOf(t, c, "b", "a")},
		"no name":        {c.NewLock("a"), c.NewLock("")},
		"bad name":       {c.NewLock("{}a"), c.NewLock("b")},
		"bad option":     {c.NewLock("a"), c.NewLock("b", rlock.WithMaxHold(-1))},
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := rlock.NewMultiLock(locks...); !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Fatal(m, err)
			}
		})
	}
	if _, err := rlock.NewMultiLock(incomparable{Locker: c.NewLock("a")}, incomparable{Locker: c.NewLock("b")}); err != nil {
		t.Fatal(err)
	}
	m := locktest.MultiLockOf(t, c, "{m}a", "{m}b")
	for name, try := range map[string]func() (*rlock.Lease, error){
		"a negative wait":    func() (*rlock.Lease, error) { return m.Lock(bg, rlock.WithWait(-1)) },
		"a TryLock's wait":   func() (*rlock.Lease, error) { return m.TryLock(bg, rlock.WithWait(time.Second)) },
		"too short a lease":  func() (*rlock.Lease, error) { return m.Lock(bg, rlock.WithLease(1)) },
		"a lease for nought": func() (*rlock.Lease, error) { return m.TryLock(bg, rlock.WithLease(time.Millisecond)) },
		"a priority":         func() (*rlock.Lease, error) { return m.TryLock(bg, rlock.WithPriority(3)) },
	} {
		if lease, err := try(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v, %v", name, lease, err)
		}
	}
	bounded := locktest.MultiLockOf(t, b.NewClient(t, rlock.WithFailoverQuarantine(time.Minute)), "{m}a", "{m}b")
	if lease, err := bounded.TryLock(bg, rlock.WithLease(time.Hour)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("longer than the longest lease: %v, %v", lease, err)
	}
	locktest.MustBeEmpty(t, b.Client(t))
}

// RedLocks of one name that share a node have one vote there: a MultiLock of them would
// wait for itself.
func TestNewMultiLockRefusesRedLocksThatShareVotes(t *testing.T) {
	t.Parallel()
	var rdbs []redis.UniversalClient
	var nodes, again []*rlock.Client
	for range 5 {
		rdb := locktest.OnMiniredis(t).Client(t)
		rdbs = append(rdbs, rdb)
		nodes, again = append(nodes, locktest.NewClient(t, rdb)), append(again, locktest.NewClient(t, rdb))
	}
	same := locktest.Dialer(rdbs[2].(*redis.Client).Options().Addr)(t, nil) // by another go-redis client
	one := func() *rlock.RedLock { return locktest.NewRedLock(t, "a", nodes[:3]) }
	for name, c := range map[string]struct {
		locks   []rlock.Locker
		refused bool
	}{
		"the same once more":                  {[]rlock.Locker{one(), one()}, true},
		"nodes in another order":              {[]rlock.Locker{one(), locktest.NewRedLock(t, "a", []*rlock.Client{nodes[1], nodes[2], nodes[0]})}, true},
		"by other Clients":                    {[]rlock.Locker{one(), locktest.NewRedLock(t, "a", again[:3])}, true},
		"by another go-redis client":          {[]rlock.Locker{one(), locktest.NewRedLock(t, "a", []*rlock.Client{locktest.NewClient(t, same)})}, true},
		"one node in common":                  {[]rlock.Locker{one(), locktest.NewRedLock(t, "a", nodes[2:])}, true},
		"in another MultiLock":                {[]rlock.Locker{one(), locktest.NewMultiLock(t, locktest.NewRedLock(t, "a", nodes[2:]), nodes[0].NewLock("b"))}, true},
		"other nodes":                         {[]rlock.Locker{one(), locktest.NewRedLock(t, "a", nodes[3:])}, false},
		"other names":                         {[]rlock.Locker{one(), locktest.NewRedLock(t, "b", nodes[:3])}, false},
		"a plain lock, which has its own key": {[]rlock.Locker{one(), nodes[0].NewLock("a")}, false},
	} {
		m, err := rlock.NewMultiLock(c.locks...)
		if c.refused {
			if !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		locktest.MustUnlock(t, locktest.MustLock(t, m))
		locktest.NothingLeft(t, rdbs...)
	}
}

// multiZoo has a member of every type, on two deployments and on three masters.
func multiZoo(t *testing.T, b *locktest.Backend) (rdbs []redis.UniversalClient, open func() []rlock.Locker) {
	one, two := b.Client(t), locktest.OnMiniredis(t).Client(t)
	rdbs = []redis.UniversalClient{one, two}
	var masters []redis.UniversalClient
	for range 3 {
		masters = append(masters, locktest.OnMiniredis(t).Client(t))
	}
	rdbs = append(rdbs, masters...)
	return rdbs, func() []rlock.Locker {
		c, d := locktest.NewClient(t, one), locktest.NewClient(t, two)
		var nodes []*rlock.Client
		for _, rdb := range masters {
			nodes = append(nodes, locktest.NewClient(t, rdb, rlock.WithWatchdogLease(30*time.Second)))
		}
		return []rlock.Locker{
			c.NewLock("plain"), c.NewFairLock("fair"), c.NewFencedLock("fenced"), c.NewSpinLock("spin"),
			c.NewPriorityLock("urgent"), c.NewReadWriteLock("rw").Writer,
			c.NewFairReadWriteLock("fairrw").Writer, d.NewLock("plain"),
			// Generous, because nothing here is about slow nodes.
			locktest.NewRedLock(t, "quorum", nodes, rlock.WithNodeTimeout(5*time.Second)),
			c.NewReadWriteLock("read").Reader,
			locktest.MultiLockOf(t, d, "nested1", "nested2"),
		}
	}
}

func TestMultiLockOfEveryType(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdbs, open := multiZoo(t, b)
		locks, strangers := open(), open()
		strangers = strangers[:9] // those that exclude by themselves
		m, again := locktest.NewMultiLock(t, locks...), locktest.NewMultiLock(t, open()...)
		var last int64
		for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){m.Lock, m.TryLock, again.Lock} {
			lease, err := acquire(bg, rlock.WithLease(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustBeHeld(t, strangers...)
			members := lease.Members()
			if len(members) != 12 {
				t.Fatalf("%d members", len(members))
			}
			highest, earliest := int64(0), members[0].Deadline()
			for i, one := range members {
				if i > 0 && one.Name() < members[i-1].Name() {
					t.Errorf("%s after %s", one.Name(), members[i-1].Name())
				}
				highest = max(highest, one.Token())
				if one.Deadline().Before(earliest) {
					earliest = one.Deadline()
				}
			}
			if lease.Token() != highest || lease.Token() <= last {
				t.Errorf("token %d after %d, of the members %d", lease.Token(), last, highest)
			}
			last = lease.Token()
			if !lease.Deadline().Equal(earliest) {
				t.Errorf("deadline %v, of the members %v", lease.Deadline(), earliest)
			}
			locktest.MustUnlock(t, lease)
			locktest.MustBeFree(t, strangers...)
			locktest.NothingLeft(t, rdbs...)
		}

		// The context of the lease lets in again to each member, and to all; that of
		// a member to this one only.
		lease := locktest.MustLock(t, m)
		for _, l := range append(slices.Clone(locks), m) {
			inner, err := l.TryLock(lease.Context(bg))
			if err != nil {
				t.Fatalf("%s: %v", l.Name(), err)
			}
			locktest.MustUnlock(t, inner)
		}
		member := lease.Members()[2]
		for _, l := range locks[:9] {
			inner, err := l.TryLock(member.Context(bg))
			if l.Name() != member.Name() {
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, inner)
		}
		if _, err := m.TryLock(rlock.WithoutOwner(lease.Context(bg))); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		locktest.MustBeHeld(t, strangers...)
		locktest.MustUnlock(t, lease)
		locktest.MustBeFree(t, strangers...)

		// Whichever member is held, none of the others is left held.
		for i, l := range strangers {
			taken := locktest.MustLock(t, l)
			if lease, err := m.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatal(lease, err)
			}
			if _, err := m.Lock(bg, rlock.WithWait(20*time.Millisecond)); !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatal(err)
			}
			locktest.MustBeFree(t, strangers[:i]...)
			locktest.MustBeFree(t, strangers[i+1:]...)
			locktest.MustUnlock(t, taken)
		}
		locktest.NothingLeft(t, rdbs...)
	})
}

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
			if took > 10*rlock.DefaultMultiLockRound {
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
	for name, names := range map[string][]string{"one slot": {"{m}a", "{m}b"}, "several": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			c, peer := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
			second := locktest.MustLock(t, peer.NewLock(names[1]))
			got := make(chan locktest.Grant, 1)
			start := time.Now()
			go func() {
				lease, err := locktest.MultiLockOf(t, c, names...).Lock(bg, rlock.WithWait(time.Minute))
				got <- locktest.Grant{Lease: lease, Err: err, At: time.Now()}
			}()
			locktest.Eventually(t, "it has the first member", func() bool { return rdb.Exists(bg, names[0]).Val() == 1 })
			first, err := peer.NewLock(names[0]).Lock(bg, rlock.WithWait(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			// Not before: others should not have to begin again for a short wait.
			if after := time.Since(start); after < 2*rlock.DefaultMultiLockRound {
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
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		// Two thirds of it are above any pause of a busy machine, and it would be
		// over twice before the last member is free.
		const fixed = 2 * time.Second
		last := locktest.MustLock(t, other.NewLock("c"))
		var owners []string
		time.AfterFunc(2*fixed, func() {
			for _, n := range []string{"a", "b"} {
				owners = append(owners, strings.Join(rdb.HKeys(bg, n).Val(), ","))
			}
			_ = last.Unlock(bg)
		})
		lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, "a", "b", "c"), rlock.WithLease(fixed))
		newest := lease.Members()[2]
		for i, l := range lease.Members()[:2] {
			if owners[i] != l.Owner() {
				t.Errorf("%s was held by %q", l.Name(), owners[i])
			}
			if l.Deadline().Before(newest.Deadline()) { // which has just been taken
				t.Errorf("%s has less time than the last: %v, %v", l.Name(), l.Deadline(), newest.Deadline())
			}
		}
		<-lease.Done() // it is not renewed any longer
		locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
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

func TestMultiLockIsLostWithAMember(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for cause, test := range map[string]struct {
			lock  []rlock.LockOption
			lease []rlock.AcquireOption
			end   func(c, other *rlock.Client, rdb redis.UniversalClient, l *rlock.Lease)
			want  []error
		}{
			"removed": {end: func(_, other *rlock.Client, _ redis.UniversalClient, l *rlock.Lease) {
				if done, err := other.NewLock(l.Name()).ForceUnlock(bg); !done || err != nil {
					t.Error(done, err)
				}
			}, want: []error{rlock.ErrLeaseLost, rlock.ErrRemoved}},
			"taken over": {end: func(_, _ *rlock.Client, rdb redis.UniversalClient, l *rlock.Lease) {
				_, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
					p.Del(bg, l.Name())
					p.HSet(bg, l.Name(), "another:1", 1)
					p.PExpire(bg, l.Name(), 2*time.Second)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}, want: []error{rlock.ErrLeaseLost, rlock.ErrTakenOver}},
			"expired":  {lease: []rlock.AcquireOption{rlock.WithLease(500 * time.Millisecond)}, want: []error{rlock.ErrLeaseLost, rlock.ErrExpired}},
			"too long": {lock: []rlock.LockOption{rlock.WithMaxHold(300 * time.Millisecond)}, want: []error{rlock.ErrLeaseLost, rlock.ErrMaxHold}},
			"unlocked": {end: func(_, _ *rlock.Client, _ redis.UniversalClient, l *rlock.Lease) {
				locktest.MustUnlock(t, l)
			}, want: []error{rlock.ErrUnlocked, nil, rlock.ErrLeaseLost}},
		} {
			for _, at := range []int{0, 2} {
				t.Run(fmt.Sprint(cause, " ", at), func(t *testing.T) {
					t.Parallel()
					rdb, rest := b.Client(t), locktest.OnMiniredis(t).Client(t)
					// Three members, each of a client of its own, of which one has the trouble.
					prefix := rlock.WithPrefix(strings.ReplaceAll(t.Name(), "/", "_") + ":")
					var locks []rlock.Locker
					var clients []*rlock.Client
					for i := range 3 {
						c, opts := locktest.NewClient(t, rest, prefix), []rlock.LockOption(nil)
						if i == at {
							// Short, so that the watchdog looks soon.
							c, opts = locktest.NewClient(t, rdb, prefix, rlock.WithWatchdogLease(1500*time.Millisecond)), test.lock
						}
						clients = append(clients, c)
						locks = append(locks, c.NewLock(fmt.Sprint("m", i), opts...))
					}
					lease := locktest.MustLock(t, locktest.NewMultiLock(t, locks...), test.lease...)
					ctx := lease.Context(bg)
					bad := lease.Members()[at]
					if test.end != nil {
						// By name: ForceUnlock of a client without the prefix.
						test.end(clients[at], locktest.NewClient(t, rdb), rdb, bad)
					}
					select {
					case <-lease.Done():
					case <-time.After(20 * time.Second):
						t.Fatal("the loss was not told")
					}
					<-ctx.Done()
					locktest.WantErr(t, lease.Err(), test.want...)
					locktest.WantErr(t, context.Cause(ctx), test.want...)
					if err := lease.Err(); !strings.Contains(err.Error(), fmt.Sprintf("%q", bad.Name())) && cause != "expired" {
						t.Errorf("does not say which: %v", err)
					}
					// The others are given back, without anybody asking for it.
					locktest.NothingLeft(t, rest)
					for i, l := range lease.Members() {
						if i != at && l.Err() == nil {
							t.Errorf("%s lives on", l.Name())
						}
					}
					locktest.WantErr(t, lease.Extend(bg, time.Minute), test.want...)
					locktest.WantErr(t, lease.Unlock(bg), test.want...)
					locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
				})
			}
		}
	})
}

// It lives on as long as all members do, which are renewed.
func TestMultiLockIsRenewed(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		m := locktest.Join(t, b.Client(t), rlock.WithWatchdogLease(3*time.Second))
		other := b.NewClient(t)
		lease := locktest.MustLock(t, locktest.NewMultiLock(t, m.NewLock("{m}a"), m.NewLock("{m}b"), m.NewFairLock("c")))
		first := lease.Deadline()
		for _, n := range []string{"{m}a", "{m}b", "c"} {
			m.RenewedAgain(t, n, 2)
		}
		if err := lease.Err(); err != nil || !lease.Deadline().After(first) {
			t.Fatal(err, first, lease.Deadline())
		}
		locktest.MustBeHeld(t, other.NewLock("{m}a"), other.NewLock("{m}b"), other.NewFairLock("c"))
		locktest.MustUnlock(t, lease)
	})
}

func TestMultiLockUnlockAndExtendVerdicts(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		for name, names := range map[string][]string{"one slot": {"{m}a", "{m}b"}, "several": {"a", "b"}} {
			t.Run(name, func(t *testing.T) {
				m := locktest.MultiLockOf(t, c, names...)
				lease := locktest.MustLock(t, m, rlock.WithLease(time.Minute))
				before := lease.Deadline()
				if err := lease.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				if lease.Deadline().Sub(before) < 50*time.Minute {
					t.Fatal(before, lease.Deadline())
				}
				for _, n := range names {
					if ttl := rdb.PTTL(bg, n).Val(); ttl < 59*time.Minute {
						t.Fatal(ttl)
					}
				}
				if err := lease.Extend(bg, time.Second); err != nil { // never shortens
					t.Fatal(err)
				}
				if lease.Deadline().Sub(before) < 50*time.Minute {
					t.Fatal("shortened")
				}
				locktest.WantErr(t, lease.Extend(bg, 0), rlock.ErrInvalidArgument)
				ctx, cancel := context.WithCancel(bg)
				cancel()
				if err := lease.Unlock(ctx); err != nil {
					t.Fatal(err)
				}
				locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
				locktest.WantErr(t, lease.Err(), rlock.ErrUnlocked)
				locktest.WantErr(t, lease.Extend(bg, time.Minute), rlock.ErrUnlocked)
				locktest.NothingLeft(t, rdb)

				// A member that is gone shows at the release, if not before.
				lease = locktest.MustLock(t, m)
				if done, err := c.NewLock(names[1]).ForceUnlock(bg); !done || err != nil {
					t.Fatal(done, err)
				}
				locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
				locktest.NothingLeft(t, rdb)

				// So it does at an extension, which then gives back the rest.
				lease = locktest.MustLock(t, m)
				if done, err := c.NewLock(names[0]).ForceUnlock(bg); !done || err != nil {
					t.Fatal(done, err)
				}
				locktest.WantErr(t, lease.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrRemoved)
				locktest.WantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
				locktest.NothingLeft(t, rdb)
				locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			})
		}
	})
}

// What the owner holds already is entered again, and stays when the whole is
// unlocked.
func TestMultiLockOfAnOwnerWhoHoldsAMember(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
		for name, names := range map[string][]string{"one slot": {"{m}a", "{m}b"}, "several": {"a", "b"}} {
			t.Run(name, func(t *testing.T) {
				ctx := rlock.WithOwner(bg)
				m := locktest.MultiLockOf(t, c, names...)
				for _, try := range []bool{false, true} {
					outer := locktest.MustLockCtx(t, ctx, c.NewLock(names[1]))
					acquire := m.Lock
					if try {
						acquire = m.TryLock
					}
					lease, err := acquire(ctx)
					if err != nil {
						t.Fatal(err)
					}
					if n := locktest.HoldCount(t, rdb, names[1], outer.Owner()); n != "2" {
						t.Fatalf("count %q", n)
					}
					locktest.MustBeHeld(t, other.NewLock(names[0]), other.NewLock(names[1]))
					locktest.MustUnlock(t, lease)
					locktest.MustBeFree(t, other.NewLock(names[0]))
					locktest.MustBeHeld(t, other.NewLock(names[1]))
					locktest.MustUnlock(t, outer)
					locktest.NothingLeft(t, rdb)
				}

				// Of a hold that is lost nothing is entered, and nothing else left.
				outer := locktest.MustLockCtx(t, ctx, c.NewLock(names[1]))
				if done, err := c.NewLock(names[1]).ForceUnlock(bg); !done || err != nil {
					t.Fatal(done, err)
				}
				_, err := m.Lock(ctx)
				locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
				locktest.MustBeFree(t, other.NewLock(names[0]), other.NewLock(names[1]))
				_ = outer.Unlock(bg) // lost
				strict := locktest.NewMultiLock(t, c.NewLock(names[0], rlock.WithNonReentrant()), c.NewLock(names[1], rlock.WithNonReentrant()))
				lease := locktest.MustLockCtx(t, ctx, strict)
				_, err = strict.Lock(ctx)
				locktest.WantErr(t, err, rlock.ErrReentrant)
				locktest.MustUnlock(t, lease)
				locktest.NothingLeft(t, rdb)
			})
		}
	})
}

// Free plain locks of one slot cost one command.
func TestMultiLockOfOneSlotIsOneCommand(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]*locktest.Backend{"standalone": locktest.OnServer(t), "cluster": locktest.OnCluster(t)} {
		t.Run(name, func(t *testing.T) {
			rdb := b.Client(t)
			sent := &locktest.SentCommands{}
			// So that a reply that is late is not asked for again.
			c := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(time.Minute))
			m := locktest.MultiLockOf(t, c, "{m}a", "{m}b", "{m}c", "{m}d")
			locktest.MustUnlock(t, locktest.MustLock(t, m)) // loads the scripts, and finds the node
			rdb.AddHook(sent)
			for name, acquire := range map[string]func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){"Lock": m.Lock, "TryLock": m.TryLock} {
				scripts := 0
				stats := locktest.Dialer(b.Addr)(t, nil)
				if b.Real != nil {
					scripts = locktest.CommandCount(t, stats, "evalsha")
				}
				from := sent.N.Load()
				lease, err := acquire(bg)
				if err != nil {
					t.Fatal(err)
				}
				if n := sent.N.Load() - from; n != 1 {
					t.Errorf("%s sent %d commands", name, n)
				}
				if b.Real != nil {
					if n := locktest.CommandCount(t, stats, "evalsha") - scripts; n != 1 {
						t.Errorf("%s ran %d scripts", name, n)
					}
				}
				for _, l := range lease.Members() {
					if l.Token() != lease.Token() {
						t.Errorf("token %d beside %d", l.Token(), lease.Token())
					}
				}
				locktest.MustUnlock(t, lease)
			}
		})
	}
}

// Whoever looks at all keys at once never sees a part of an acquire.
func TestMultiLockOfOneSlotIsAtomic(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		names := []string{"{m}a", "{m}b", "{m}c"}
		var mu sync.Mutex // guards the rest
		leaving := map[string]bool{}
		got, seen := 0, 0
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			rdb := b.Client(t)
			c := locktest.NewClient(t, rdb)
			for range 3 {
				locks := make([]rlock.Locker, len(names))
				for i, j := range rand.Perm(len(names)) {
					locks[i] = c.NewLock(names[j])
				}
				m := locktest.NewMultiLock(t, locks...)
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						lease, err := m.TryLock(bg)
						if errors.Is(err, rlock.ErrNotAcquired) {
							continue
						} else if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						got++
						leaving[lease.Owner()] = true // each member is released by itself
						mu.Unlock()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		look := redis.NewScript(`local all = {} for i, k in ipairs(KEYS) do all[i] = redis.call('hkeys', k)[1] or '' end return all`)
		rdb := b.Client(t)
		for end := time.Now().Add(20 * time.Second); ; {
			owners, err := look.Run(bg, rdb, names).StringSlice()
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(owners)
			owners = slices.Compact(owners)
			mu.Lock()
			who := owners[len(owners)-1]
			if len(owners) > 2 || len(owners) == 2 && owners[0] != "" {
				t.Errorf("two hold a part each: %q", owners)
			}
			if len(owners) == 1 && who != "" {
				seen++
			}
			part := len(owners) == 2 && owners[0] == ""
			mu.Unlock()
			if part {
				// It is leaving; that is noted before the first release is sent.
				mu.Lock()
				if !leaving[who] {
					t.Errorf("%s holds a part", who)
				}
				mu.Unlock()
			}
			mu.Lock()
			enough := got >= 100 && seen >= 3
			mu.Unlock()
			if enough {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d acquires, of which %d were seen", got, seen)
			}
		}
		close(stop)
		wg.Wait()
		locktest.NothingLeft(t, rdb)
	})
}

// memberEvents notes the acquires and unlocks that an Observer is told of.
type memberEvents struct {
	rlock.NopObserver
	mu       sync.Mutex // guards the rest
	started  int
	acquired map[string]int // by lock
	failed   int
	unlocked map[string]int
}

func (e *memberEvents) AcquireStart(ctx context.Context, _ string) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started++
	return ctx
}

func (e *memberEvents) AcquireEnd(_ context.Context, a rlock.AcquireEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started--
	if (a.Err == nil) != (a.Owner != "") {
		panic(fmt.Sprintf("%+v", a))
	}
	if a.Err == nil {
		e.acquired[a.Lock]++
	} else {
		e.failed++
	}
}

func (e *memberEvents) Unlocked(u rlock.UnlockEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unlocked[u.Lock]++
}

// An observer is told of the members: each acquire once, as it ended, and each
// unlock once.
func TestMultiLockIsObservedByMember(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, names := range map[string][]string{"one slot": {"{m}a", "{m}b"}, "several": {"a", "b"}} {
			rdb := b.Client(t)
			e := &memberEvents{acquired: map[string]int{}, unlocked: map[string]int{}}
			c, other := locktest.NewClient(t, rdb, rlock.WithObserver(e)), locktest.NewClient(t, rdb)
			m := locktest.MultiLockOf(t, c, names...)
			locktest.MustUnlock(t, locktest.MustLock(t, m))
			taken := locktest.MustLock(t, other.NewLock(names[0]))
			if _, err := m.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
				t.Fatal(err)
			}
			time.AfterFunc(20*time.Millisecond, func() { _ = taken.Unlock(bg) })
			locktest.MustUnlock(t, locktest.MustLock(t, m))
			e.mu.Lock()
			want := fmt.Sprint(map[string]int{names[0]: 2, names[1]: 2})
			if e.started != 0 || fmt.Sprint(e.acquired) != want || fmt.Sprint(e.unlocked) != want || e.failed == 0 {
				t.Errorf("%s: %d open, acquired %v, %d failed, unlocked %v", name, e.started, e.acquired, e.failed, e.unlocked)
			}
			e.mu.Unlock()
		}
	})
}

// A Locker of the caller's own may be of a type that can be compared, with a value
// inside that cannot.
type wrappedLock struct {
	rlock.Locker
	more any
}

func TestMultiLockOfALockThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	m, err := rlock.NewMultiLock(wrappedLock{c.NewLock("a"), []int{1}}, wrappedLock{c.NewLock("b"), []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, m))
}

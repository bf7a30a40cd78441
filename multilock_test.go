package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
		for _, k := range locktest.MultiLocks {
			names := []string{k.Names[1], k.Names[0], k.Names[2]}
			t.Run(k.Name, func(t *testing.T) {
				var strangers []rlock.Locker
				for _, n := range names {
					strangers = append(strangers, other.NewLock(n))
				}
				m := k.Of(t, c, names...)
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
					locktest.WantEnded(t, err, context.DeadlineExceeded)
					_, err = m.Lock(bg, rlock.WithWait(30*time.Millisecond))
					locktest.WantEnded(t, err, nil)
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
		"a writer":       {c.NewLock("rw"), rw.Writer},
		"fair sides":     {rw.Reader, c.NewFairReadWriteLock("rw").Writer},
		"by priority":    {c.NewPriorityLock("a"), c.NewSpinLock("a")},
		"in another one": {c.NewLock("a"), locktest.MultiLockOf(t, c, "b", "a")},
		"no name":        {c.NewLock("a"), c.NewLock("")},
		"bad name":       {c.NewLock("{}a"), c.NewLock("b")},
		"bad option":     {c.NewLock("a"), c.NewLock("b", rlock.WithMaxHold(-1))},
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := rlock.NewMultiLock(locks); !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Fatal(m, err)
			}
		})
	}
	for says, opt := range map[string]rlock.MultiLockOption{
		"WithRound(0s)": rlock.WithRound(0), "WithRound(-1s)": rlock.WithRound(-time.Second), "WithRound(999.999µs)": rlock.WithRound(time.Millisecond - 1),
		"WithRound(24h0m0.000000001s)": rlock.WithRound(rlock.MaxLease + 1), "option 0 is nil": nil,
	} {
		if m, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("a")}, opt); !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v", says, m, err)
		}
	}
	if _, err := rlock.NewMultiLock([]rlock.Locker{incomparable{Locker: c.NewLock("a")}, incomparable{Locker: c.NewLock("b")}}); err != nil {
		t.Fatal(err)
	}
	m := locktest.MultiLockOf(t, c, "{m}a", "{m}b")
	for name, try := range map[string]func() (*rlock.Lease, error){
		"a negative wait":    func() (*rlock.Lease, error) { return m.Lock(bg, rlock.WithWait(-1)) },
		"too short a lease":  func() (*rlock.Lease, error) { return m.Lock(bg, rlock.WithLease(1)) },
		"a lease for nought": func() (*rlock.Lease, error) { return m.TryLock(bg, rlock.WithLease(time.Millisecond)) },
	} {
		if lease, err := try(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v, %v", name, lease, err)
		}
	}
	bounded := locktest.MultiLockOf(t, b.NewClient(t, rlock.WithFailoverQuarantine(time.Minute), rlock.WithWatchdogLease(rlock.DefaultWatchdogLease)), "{m}a", "{m}b")
	if lease, err := bounded.TryLock(bg, rlock.WithLease(time.Hour)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("longer than the longest lease: %v, %v", lease, err)
	}
	locktest.MustBeEmpty(t, b.Client(t))
}

// The wait that an error tells is the one that was asked for, though a member had only the rest
// of it; and the member is named once, within the name of the whole.
func TestMultiLockErrorSaysTheWaitThatWasAskedFor(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	for _, k := range locktest.MultiLocks {
		names := k.Names[:2]
		first, second := c.NewLock(names[0]), c.NewLock(names[1])
		m := k.Of(t, c, names...)
		// On a busy machine the first answers may take a part of the wait.
		locktest.MustUnlock(t, locktest.MustLock(t, m))
		held := locktest.MustLock(t, b.NewClient(t, rlock.WithAnonymity()).NewLock(names[1]))
		_, err := m.Lock(bg, rlock.WithWait(2*time.Second))
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		want := fmt.Sprintf(`rlock: "%s + %s": member %q: not acquired: timed out after 2s; held by %s, `, first.Name(), second.Name(), second.Name(), held.HoldID())
		if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v\nis not %s...", err, want)
		}
		var whole *rlock.Error
		if !errors.As(err, &whole) || whole.Lock != first.Name()+" + "+second.Name() || whole.HolderID != held.HoldID() || whole.Left <= 0 {
			t.Errorf("%+v", whole)
		}
	}
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
	patient := rlock.WithNodeTimeout(5 * time.Second)
	one := func() *rlock.RedLock { return locktest.NewRedLock(t, "a", nodes[:3], patient) }
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
		"other nodes":                         {[]rlock.Locker{one(), locktest.NewRedLock(t, "a", nodes[3:], patient)}, false},
		"other names":                         {[]rlock.Locker{one(), locktest.NewRedLock(t, "b", nodes[:3], patient)}, false},
		"a plain lock, which has its own key": {[]rlock.Locker{one(), nodes[0].NewLock("a")}, false},
	} {
		m, err := rlock.NewMultiLock(c.locks)
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

// It lives on as long as all members do, which are renewed.
func TestMultiLockIsRenewed(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		m := locktest.Join(t, b.Client(t), rlock.WithWatchdogLease(3*time.Second))
		other := b.NewClient(t)
		lease := locktest.MustLock(t, locktest.NewMultiLock(t, m.NewLock("{m}a"), m.NewLock("{m}b"), m.NewFairLock("c")))
		first := lease.Deadline()
		for _, n := range []string{"{m}a", "{m}b", "c"} {
			locktest.Eventually(t, n+" was renewed twice", func() bool { return m.Events.Renewals(n) >= 2 || lease.Err() != nil })
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
		for _, k := range locktest.MultiLocks {
			names := k.Names[:2]
			t.Run(k.Name, func(t *testing.T) {
				m := k.Of(t, c, names...)
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
		for _, k := range locktest.MultiLocks {
			names := k.Names[:2]
			t.Run(k.Name, func(t *testing.T) {
				ctx := rlock.WithOwner(bg)
				m := k.Of(t, c, names...)
				for _, acquire := range locktest.Acquires(m) {
					outer := locktest.MustLockCtx(t, ctx, c.NewLock(names[1]))
					lease, err := acquire(ctx)
					if err != nil {
						t.Fatal(err)
					}
					if n := locktest.HoldCount(t, rdb, names[1], outer.HoldID()); n != "2" {
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
				for _, name := range names { // at once, unless Redis is slow to confirm the release
					locktest.MustUnlock(t, locktest.MustLock(t, other.NewLock(name)))
				}
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

// memberEvents notes the acquires and unlocks that an Observer is told of.
type memberEvents struct {
	locktest.Ignoring
	mu       sync.Mutex // guards the rest
	started  int
	acquired map[string]int // by lock
	failed   int
	unlocked map[string]int
}

func (e *memberEvents) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started++
	return ctx
}

func (e *memberEvents) AcquireEnd(_ context.Context, a rlock.AcquireEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started--
	if (a.Err == nil) != (a.HoldID != "") {
		panic(fmt.Sprintf("%+v", a))
	}
	if a.Err == nil {
		e.acquired[a.Lock]++
	} else {
		e.failed++
	}
}

func (e *memberEvents) Unlocked(_ context.Context, u rlock.UnlockEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unlocked[u.Lock]++
}

// An observer is told of the members: each acquire once, as it ended, and each
// unlock once.
func TestMultiLockIsObservedByMember(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.MultiLocks {
			name, names := k.Name, k.Names[:2]
			rdb := b.Client(t)
			e := &memberEvents{acquired: map[string]int{}, unlocked: map[string]int{}}
			c, other := locktest.NewClient(t, rdb, rlock.WithObserver(e)), locktest.NewClient(t, rdb)
			m := k.Of(t, c, names...)
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

package adoption

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// eachType runs a scenario with each type, on each kind of server.
func eachType(t *testing.T, run func(t *testing.T, b *locktest.Backend, k locktest.Type)) {
	t.Helper()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) { run(t, b, k) })
		}
	})
}

func name(t *testing.T) string { return strings.ReplaceAll(t.Name(), "/", ":") }

func TestAnotherClientGoesOnWithAHold(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		opts := []rlock.Option{patient}
		if k.Name == "SpinLock" {
			opts = []rlock.Option{rlock.WithWatchdogLease(locktest.Ample(6 * time.Second))} // it hears by looking, each third of that
		}
		a, c := b.NewClient(t, opts...), b.NewClient(t)
		first := locktest.MustLock(t, k.Open(a, name(t)))
		ctx := first.Context(bg)
		handle := handleOf(t, first)
		if again := handleOf(t, first); again != handle {
			t.Error("two handles differ")
		}
		if !regexp.MustCompile(`^[A-Za-z0-9_-]+$`).MatchString(handle) {
			t.Errorf("%q may not be a part of a URL", handle)
		}
		second := adopt(t, c, handle)
		if err := context.Cause(ctx); !errors.Is(err, rlock.ErrAdopted) {
			t.Errorf("the context has ended with %v", err)
		}
		wasAdopted(t, first)
		if second.Token() != first.Token() || second.HoldID() == first.HoldID() || !strings.HasPrefix(strings.Replace(second.HoldID(), ":-", ":", 1), c.ID()+":") {
			t.Errorf("%s with token %d was adopted as %s with %d", first.HoldID(), first.Token(), second.HoldID(), second.Token())
		}
		locktest.MustBeHeld(t, k.Blocker(a, name(t)))
		s, err := k.Open(a, name(t)).State(bg)
		if err != nil || len(s.Holders) != 1 || locktest.Unnamed(s.Holders)[0] != (rlock.Holder{HoldID: second.HoldID(), Count: 1, Shared: k.Shared}) {
			t.Errorf("the state is %+v, %v", s, err)
		}
		stale(t, a, handle)
		// It is a lease as any other: it re-enters, is renewed and freed.
		inside := locktest.MustLockCtx(t, second.Context(bg), k.Open(c, name(t)))
		if inside.HoldID() != second.HoldID() {
			t.Error("the lease was not entered again")
		}
		locktest.MustUnlock(t, inside)
		if err := second.Extend(bg, long); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, second)
		locktest.MustBeFree(t, k.Blocker(a, name(t)))
		next := locktest.MustLock(t, k.Open(a, name(t)))
		if !k.Shared && next.Token() <= second.Token() {
			t.Errorf("token %d follows %d", next.Token(), second.Token())
		}
		stale(t, c, handle) // a successor has it
		if err := next.Err(); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, next)
	})
}

// Who detaches has left: nothing is waited for, though nothing else would tell before the lease is
// over.
func TestADetachedHoldIsAdoptedAtOnce(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a, c := b.NewClient(t, patient), b.NewClient(t)
		first := locktest.MustLock(t, k.Open(a, name(t)))
		handle := detach(t, first)
		locktest.WantErr(t, first.Err(), rlock.ErrUnlocked)
		locktest.WantErr(t, first.Unlock(bg), rlock.ErrUnlocked)
		if _, err := first.Detach(bg); !errors.Is(err, rlock.ErrUnlocked) {
			t.Errorf("the second Detach: %v", err)
		}
		locktest.MustBeHeld(t, k.Blocker(a, name(t)))
		a.Close() // its process ends
		second := adopt(t, c, handle, rlock.WithWait(0))
		if second.Token() != first.Token() {
			t.Error("another token")
		}
		stale(t, c, handle)
		locktest.MustUnlock(t, second)
		locktest.MustBeFree(t, k.Blocker(c, name(t)))
	})
}

// While others stand by, or wait in a queue in Redis, a Detach does not release to them.
func TestDetachWhileOthersWait(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) {
				a, c := b.NewClient(t, patient), locktest.Join(t, b.Client(t))
				first := locktest.MustLock(t, k.Open(a, name(t)))
				got := make(chan *rlock.Lease, 2)
				for _, of := range []*rlock.Client{a, c.Client} {
					go func() {
						l, err := k.Blocker(of, name(t)).Lock(bg)
						if err != nil {
							t.Error(err)
						}
						got <- l
					}()
				}
				locktest.Eventually(t, "others wait", func() bool {
					s, err := k.Open(c.Client, name(t)).State(bg)
					return err == nil && s.Waiters > 0
				})
				second := adopt(t, c.Client, detach(t, first))
				select {
				case <-got:
					t.Fatal("a waiter has the lock")
				default:
				}
				locktest.MustUnlock(t, second)
				locktest.MustUnlock(t, <-got)
				locktest.MustUnlock(t, <-got)
			})
		}
	})
}

// All entries become one, and each lease of the owner before ends.
func TestAllEntriesAreAdopted(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			if k.Name == "SpinLock" {
				continue // it does not listen: see TestAnotherClientGoesOnWithAHold
			}
			t.Run(k.Name, func(t *testing.T) {
				a, c := b.NewClient(t, patient), b.NewClient(t)
				first := locktest.MustLock(t, k.Open(a, name(t)))
				again := locktest.MustLockCtx(t, first.Context(bg), k.Open(a, name(t)))
				if _, err := again.Detach(bg); !errors.Is(err, rlock.ErrInvalidArgument) {
					t.Errorf("Detach of two entries: %v", err)
				}
				second := adopt(t, c, handleOf(t, again))
				if _, err := k.Open(a, name(t)).TryLock(first.Context(bg)); !errors.Is(err, rlock.ErrAdopted) {
					t.Errorf("entered again: %v", err)
				}
				wasAdopted(t, again)
				wasAdopted(t, first)
				if s, _ := k.Open(a, name(t)).State(bg); len(s.Holders) != 1 || s.Holders[0].Count != 1 {
					t.Errorf("the state is %+v", s)
				}
				locktest.MustUnlock(t, second)
				locktest.MustBeFree(t, k.Blocker(a, name(t)))
			})
		}
	})
}

// The owner of one side who holds the other too would stay beside the one who adopts.
func TestAnOwnerOfBothSidesIsNotAdopted(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		a, c := b.NewClient(t), b.NewClient(t)
		plain, fair := a.NewReadWriteLock("a"), a.NewFairReadWriteLock("b")
		for _, sides := range [][2]rlock.Locker{{plain.Writer, plain.Reader}, {fair.Writer, fair.Reader}} {
			writes := locktest.MustLock(t, sides[0])
			reads := locktest.MustLockCtx(t, writes.Context(bg), sides[1])
			stale(t, c, handleOf(t, writes))
			stale(t, c, handleOf(t, reads))
			if writes.Err() != nil || reads.Err() != nil {
				t.Error(writes.Err(), reads.Err())
			}
			locktest.MustUnlock(t, reads)
			second := adopt(t, c, handleOf(t, writes))
			wasAdopted(t, writes)
			locktest.MustUnlock(t, second)
		}
	})
}

// One of many readers is adopted, and the others go on.
func TestOneReaderOfMany(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		a, c := b.NewClient(t, patient), b.NewClient(t)
		for _, l := range []rlock.ReadLock{a.NewReadWriteLock("a").Reader, a.NewFairReadWriteLock("b").Reader} {
			first, other := locktest.MustLock(t, l), locktest.MustLock(t, l)
			second := adopt(t, c, handleOf(t, first))
			wasAdopted(t, first)
			if s, err := l.State(bg); err != nil || len(s.Holders) != 2 {
				t.Errorf("the state is %+v, %v", s, err)
			}
			locktest.MustUnlock(t, second)
			locktest.MustUnlock(t, other)
		}
	})
}

// A hold with a handle never has a next owner under the same id.
func TestAHoldWithAHandleIsNotHandedOver(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		l := c.NewLock("a")
		first := locktest.MustLock(t, l)
		handle := handleOf(t, first)
		got := make(chan *rlock.Lease, 1)
		go func() {
			lease, err := l.Lock(bg)
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		locktest.Eventually(t, "it waits", func() bool { return locktest.Waiters(t, l) == 1 })
		locktest.MustUnlock(t, first)
		next := <-got
		if next.HoldID() == first.HoldID() {
			t.Fatal("the next owner has the same id")
		}
		stale(t, c, handle)
		if err := next.Err(); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, next)
	})
}

func TestAHoldThatHasEndedIsNotAdopted(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a, c := b.NewClient(t), b.NewClient(t)
		first := locktest.MustLock(t, k.Open(a, name(t)))
		handle := handleOf(t, first)
		locktest.MustUnlock(t, first)
		stale(t, c, handle)
		if _, err := first.Handle(); !errors.Is(err, rlock.ErrUnlocked) {
			t.Errorf("a handle of a lease that has ended: %v", err)
		}
		next := locktest.MustLock(t, k.Open(c, name(t)))
		before, _ := k.Open(c, name(t)).State(bg)
		stale(t, a, handle)
		if after, _ := k.Open(c, name(t)).State(bg); after.TTL > before.TTL {
			t.Errorf("a stale handle has made the lease longer: %v, %v before", after.TTL, before.TTL)
		}
		if err := next.Extend(bg, time.Minute); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, next)
		// One whose lease is over.
		short := locktest.MustLock(t, k.Open(a, name(t)), rlock.WithLease(50*time.Millisecond))
		late, err := short.Handle()
		if err != nil {
			return // a very busy machine
		}
		locktest.Eventually(t, "it is free", func() bool {
			held, err := k.Open(c, name(t)).IsLocked(bg)
			return err == nil && !held
		})
		stale(t, c, late)
	})
}

func TestOfManyWhoAdoptOneSucceeds(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		opts := []rlock.Option{patient}
		if k.Name == "SpinLock" {
			opts = []rlock.Option{rlock.WithWatchdogLease(locktest.Ample(6 * time.Second))}
		}
		a := b.NewClient(t, opts...)
		first := locktest.MustLock(t, k.Open(a, name(t)))
		handle := handleOf(t, first)
		got := make(chan *rlock.Lease, 4)
		for range cap(got) {
			c := b.NewClient(t)
			go func() {
				l, err := c.Adopt(bg, handle)
				if err != nil {
					if !errors.Is(err, rlock.ErrNotAcquired) {
						t.Error(err)
					}
					got <- nil
					return
				}
				got <- l
			}()
		}
		var second *rlock.Lease
		for range cap(got) {
			if l := <-got; l != nil && second != nil {
				t.Error("two have adopted it")
			} else if l != nil {
				second = l
			}
		}
		if second == nil {
			t.Fatal("nobody has adopted it")
		}
		wasAdopted(t, first)
		locktest.MustUnlock(t, second)
		locktest.MustBeFree(t, k.Blocker(a, name(t)))
	})
}

// Adopt and Unlock at once: one of both has the hold in the end.
func TestAdoptWhileItsHolderUnlocks(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) {
				a, c := b.NewClient(t), b.NewClient(t)
				adopted, unlocked := 0, 0
				for range 15 {
					first := locktest.MustLock(t, k.Open(a, name(t)))
					handle := handleOf(t, first)
					result := make(chan error, 1)
					go func() { result <- first.Unlock(bg) }()
					second, err := c.Adopt(bg, handle)
					unlock := <-result
					switch {
					case err == nil:
						adopted++
						locktest.WantErr(t, unlock, rlock.ErrAdopted, rlock.ErrLeaseLost)
						locktest.MustBeHeld(t, k.Blocker(a, name(t)))
						locktest.MustUnlock(t, second)
					case unlock != nil:
						t.Fatalf("neither: %v, %v", err, unlock)
					default:
						unlocked++
						locktest.WantErr(t, err, rlock.ErrNotAcquired)
					}
					locktest.MustBeFree(t, k.Blocker(a, name(t)))
				}
				t.Logf("%d adopted, %d unlocked", adopted, unlocked)
			})
		}
	})
}

// What is in Redis is what any holder has there, so that Java sees no difference, and nothing is left.
func TestWhatAnAdoptionLeavesInRedis(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		a, c, rdb := b.NewClient(t, patient), b.NewClient(t), b.Client(t)
		for _, open := range []func(c *rlock.Client, name string) rlock.Locker{
			func(c *rlock.Client, name string) rlock.Locker { return c.NewLock(name) },
			func(c *rlock.Client, name string) rlock.Locker { return c.NewFairLock(name) },
			func(c *rlock.Client, name string) rlock.Locker { return c.NewFencedLock(name) },
		} {
			first := locktest.MustLock(t, open(a, "a"))
			second := adopt(t, c, handleOf(t, first))
			locktest.WantHash(t, rdb, "a", map[string]string{second.HoldID(): "1"})
			if !regexp.MustCompile(`^[0-9a-f-]{36}:-?\d+$`).MatchString(second.HoldID()) {
				t.Errorf("Redisson cannot read %s", second.HoldID())
			}
			locktest.MustUnlock(t, second)
		}
		// The writer's mode, and the reader's timer.
		rw := a.NewReadWriteLock("b")
		first := locktest.MustLock(t, rw.Writer)
		second := adopt(t, c, handleOf(t, first))
		locktest.WantHash(t, rdb, "b", map[string]string{"mode": "write", second.HoldID() + ":write": "1"})
		locktest.MustUnlock(t, second)
		first = locktest.MustLock(t, rw.Reader)
		second = adopt(t, c, handleOf(t, first))
		locktest.WantHash(t, rdb, "b", map[string]string{"mode": "read", second.HoldID(): "1"})
		timers, err := rdb.Keys(bg, "*rwlock_timeout*").Result()
		if err != nil || len(timers) != 1 || timers[0] != "{b}:"+second.HoldID()+":rwlock_timeout:1" {
			t.Errorf("timers %v, %v", timers, err)
		}
		locktest.MustUnlock(t, second)
	})
}

func TestHandlesThatAreNone(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var sent locktest.SentCommands
	rdb := b.Client(t)
	rdb.AddHook(&sent)
	c := locktest.NewClient(t, rdb, rlock.WithPrefix("mine:"))
	handle := handleOf(t, locktest.MustLock(t, b.NewClient(t, rlock.WithPrefix("mine:")).NewLock("a")))
	foreign := handleOf(t, locktest.MustLock(t, b.NewClient(t).NewLock("a")))
	for what, text := range map[string]string{
		"empty": "", "no handle": "a", "later version": "rlock2" + handle[6:], "cut off": handle[:len(handle)-1], "longer": handle + "A",
		"changed": handle[:20] + string(handle[20]^1) + handle[21:], "a space": handle + " ", "only a version": "rlock1-",
		"another prefix": foreign, "huge": "rlock1-" + strings.Repeat("A", 1<<20),
	} {
		_, err := c.Adopt(bg, text)
		if !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
		if len(text) > 20 && strings.Contains(err.Error(), text[7:]) {
			t.Errorf("%s: the error repeats the handle: %v", what, err)
		}
	}
	if _, err := c.Adopt(bg, handle, rlock.WithLease(time.Microsecond)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if _, err := (*rlock.Client)(nil).Adopt(bg, handle); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	canceled, cancel := context.WithCancel(bg)
	cancel()
	if _, err := c.Adopt(canceled, handle); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := sent.N.Load(); n != 0 {
		t.Errorf("sent %d commands", n)
	}
	for _, l := range []*rlock.Lease{nil, {}} {
		if _, err := l.Handle(); !errors.Is(err, rlock.ErrNotHeld) {
			t.Error(err)
		}
		if _, err := l.Detach(bg); !errors.Is(err, rlock.ErrNotHeld) {
			t.Error(err)
		}
	}
}

// Types without the protocol say so.
func TestTypesThatCannotBeAdopted(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	red, err := rlock.NewRedLock("red", []*rlock.Client{c, locktest.OnMiniredis(t).NewClient(t), locktest.OnMiniredis(t).NewClient(t)})
	if err != nil {
		t.Fatal(err)
	}
	multi, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("x"), c.NewLock("y")})
	if err != nil {
		t.Fatal(err)
	}
	permits := c.NewPermitSemaphore("permits")
	if err := permits.SetPermits(bg, 1); err != nil {
		t.Fatal(err)
	}
	for what, lock := range map[string]func() (*rlock.Lease, error){
		"RedLock":   func() (*rlock.Lease, error) { return red.Lock(bg) },
		"MultiLock": func() (*rlock.Lease, error) { return multi.Lock(bg) },
		"Election":  func() (*rlock.Lease, error) { return c.NewElection("e").Campaign(bg, "me") },
		"permit":    func() (*rlock.Lease, error) { return permits.Acquire(bg, 1) },
	} {
		l, err := lock()
		if err != nil {
			t.Fatal(what, err)
		}
		if _, err := l.Handle(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := l.Detach(bg); !errors.Is(err, rlock.ErrInvalidArgument) || l.Err() != nil {
			t.Errorf("%s: %v, %v", what, err, l.Err())
		}
		locktest.MustUnlock(t, l)
	}
	_, _, err = c.NewOnce("once", time.Minute).Do(bg, func(ctx context.Context) ([]byte, error) {
		l, _ := rlock.LeaseFrom(ctx)
		if _, err := l.Handle(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("Once: %v", err)
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

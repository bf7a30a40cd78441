package processes

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/handle"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/protocol"
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
		a, c := b.NewClient(t, patient), b.NewClient(t)
		first := locktest.MustLock(t, k.Open(a, name(t)))
		handle := detach(t, first)
		if !regexp.MustCompile(`^[A-Za-z0-9_-]+$`).MatchString(handle) {
			t.Errorf("%q may not be a part of a URL", handle)
		}
		locktest.WantErr(t, first.Err(), rlock.ErrUnlocked)
		locktest.WantErr(t, first.Unlock(bg), rlock.ErrUnlocked)
		if _, err := first.Detach(bg); !errors.Is(err, rlock.ErrUnlocked) {
			t.Errorf("the second Detach: %v", err)
		}
		locktest.MustBeHeld(t, k.Blocker(c, name(t)))
		a.Close() // its process ends
		second := adopt(t, c, handle, rlock.WithWait(0))
		if second.Token() != first.Token() || second.HoldID() == first.HoldID() || !strings.HasPrefix(strings.Replace(second.HoldID(), ":-", ":", 1), c.ID()+":") {
			t.Errorf("%s with token %d was adopted as %s with %d", first.HoldID(), first.Token(), second.HoldID(), second.Token())
		}
		a = b.NewClient(t)
		locktest.MustBeHeld(t, k.Blocker(a, name(t)))
		s, err := k.Open(a, name(t)).State(bg)
		if err != nil || len(s.Holders) != 1 || locktest.Unnamed(s.Holders)[0] != (rlock.Holder{HoldID: second.HoldID(), Count: 1, Shared: k.Shared}) {
			t.Errorf("the state is %+v, %v", s, err)
		}
		stale(t, a, handle)
		stale(t, c, handle)
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

// A detached hold is lengthened by its handle, which stays as it is.
func TestADetachedHoldIsExtended(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a, c := b.NewClient(t), b.NewClient(t)
		l := k.Open(c, name(t))
		first := locktest.MustLock(t, k.Open(a, name(t)), rlock.WithLease(time.Minute))
		handle := detach(t, first)
		wantRest(t, l, time.Minute)
		for _, d := range []time.Duration{long, time.Second} { // it is never shortened
			if err := c.Extend(bg, handle, d); err != nil {
				t.Fatal(err)
			}
			wantRest(t, l, long)
		}
		if s, err := l.State(bg); err != nil || s.Holders[0].HoldID != first.HoldID() {
			t.Errorf("%+v, %v", s, err)
		}
		second := adopt(t, c, handle)
		stale(t, a, handle)
		// The next owner's handle is another one.
		again := detach(t, second)
		stale(t, a, handle)
		if err := a.Extend(bg, again, time.Hour); err != nil {
			t.Error(err)
		}
		wantRest(t, l, time.Hour)
		locktest.MustUnlock(t, adopt(t, a, again))
		stale(t, c, again)
		locktest.MustBeFree(t, k.Blocker(c, name(t)))
	})
}

// A detached hold is ended by its handle, once.
func TestADetachedHoldIsUnlocked(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a, c := b.NewClient(t), b.NewClient(t)
		handle := detach(t, locktest.MustLock(t, k.Open(a, name(t)), rlock.WithLease(long)))
		next := make(chan *rlock.Lease, 1)
		go func() { // it waits for a message, or minutes
			l, err := k.Blocker(c, name(t)).Lock(bg)
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		locktest.Eventually(t, "it waits", func() bool {
			s, err := k.Open(a, name(t)).State(bg)
			return err == nil && s.Waiters > 0 || k.Name == "SpinLock" // which waits unseen
		})
		if err := c.Unlock(bg, handle); err != nil {
			t.Fatal(err)
		}
		lease := <-next
		stale(t, a, handle)
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, lease)
		stale(t, a, handle)
	})
}

// The offer of a hold is there as long as the hold.
func TestAHandleIsGoodAsLongAsTheHold(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	a, c := b.NewClient(t), b.NewClient(t)
	for _, k := range locktest.Types {
		if strings.HasPrefix(adopts(k), "queue/") {
			continue // its leases follow the clock of the server, which does not move with the TTLs here
		}
		handle := detach(t, locktest.MustLock(t, k.Open(a, k.Name), rlock.WithLease(2*time.Minute)))
		if err := c.Extend(bg, handle, time.Hour); err != nil {
			t.Fatal(err)
		}
		b.Mini.FastForward(59 * time.Minute)
		locktest.MustUnlock(t, adopt(t, c, handle))
	}
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

func TestOneOfTwoEntriesIsNotDetached(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) {
				a := b.NewClient(t, patient)
				first := locktest.MustLock(t, k.Open(a, name(t)))
				again := locktest.MustLockCtx(t, first.Context(bg), k.Open(a, name(t)))
				if _, err := again.Detach(bg); !errors.Is(err, rlock.ErrInvalidArgument) {
					t.Errorf("Detach of two entries: %v", err)
				}
				locktest.MustUnlock(t, again)
				locktest.MustUnlock(t, adopt(t, a, detach(t, first)))
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
			handle := detach(t, writes)
			if _, err := c.Adopt(bg, handle); !errors.Is(err, rlock.ErrNotAcquired) {
				t.Error(err)
			}
			if err := reads.Err(); err != nil {
				t.Error(err)
			}
			locktest.MustUnlock(t, reads)
			locktest.MustUnlock(t, adopt(t, c, handle))
			locktest.MustBeFree(t, sides[0], sides[1])
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
			second := adopt(t, c, detach(t, first))
			if s, err := l.State(bg); err != nil || len(s.Holders) != 2 {
				t.Errorf("the state is %+v, %v", s, err)
			}
			locktest.MustUnlock(t, second)
			locktest.MustUnlock(t, other)
		}
	})
}

func TestAHoldThatHasEndedIsNotAdopted(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a, c := b.NewClient(t), b.NewClient(t)
		handle := detach(t, locktest.MustLock(t, k.Open(a, name(t))))
		if done, err := k.Open(c, name(t)).ForceUnlock(bg); err != nil || !done {
			t.Fatal(done, err)
		}
		stale(t, c, handle)
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
		late, err := short.Detach(bg)
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

// What is printed of a lock, or can be read in Redis, is not enough to make a handle.
func TestAHandleCannotBeMadeUp(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a, c, rdb := b.NewClient(t), b.NewClient(t), b.Client(t)
		l := k.Open(c, name(t))
		other, err := handle.Parse(detach(t, locktest.MustLock(t, k.Open(a, name(t)+":other"))))
		if err != nil {
			t.Fatal(err)
		}
		running := locktest.MustLock(t, k.Open(a, name(t)))
		made := handle.Handle{Kind: other.Kind, HoldID: running.HoldID(), Name: running.Name()}
		for _, made.Secret = range []protocol.Secret{{}, other.Secret} {
			stale(t, c, made.String())
		}
		text := detach(t, running)
		of, err := handle.Parse(text)
		if err != nil || of.Kind != made.Kind || of.HoldID != made.HoldID || of.Name != made.Name || of.Secret == made.Secret {
			t.Fatalf("%+v, %v; made up: %+v", of, err, made)
		}
		var offer string
		for _, key := range locktest.Keys(t, rdb) {
			if strings.Contains(key, of.HoldID) && locktest.Tombstones([]string{key}) == 1 {
				offer = rdb.Get(bg, key).Val()
			}
		}
		if len(strings.Fields(offer)) != 5 || strings.Contains(offer, string(of.Secret[:])) || strings.Contains(offer, fmt.Sprintf("%x", of.Secret)) {
			t.Fatalf("the offer is %q", offer)
		}
		before, _ := l.State(bg)
		for _, secret := range []string{"", strings.Fields(offer)[1], strings.Fields(offer)[1][20:], offer} {
			made.Secret = protocol.Secret{}
			copy(made.Secret[:], secret)
			stale(t, c, made.String())
		}
		after, err := l.State(bg)
		if err != nil || after.TTL > before.TTL || after.Holders[0].HoldID != of.HoldID {
			t.Errorf("%+v, %v; before %+v", after, err, before)
		}
		locktest.MustUnlock(t, adopt(t, c, text))
	})
}

func TestOfManyWhoAdoptOneSucceeds(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, b *locktest.Backend, k locktest.Type) {
		a := b.NewClient(t, patient)
		handle := detach(t, locktest.MustLock(t, k.Open(a, name(t))))
		got := make(chan *rlock.Lease, 4)
		for range cap(got) {
			c := b.NewClient(t)
			go func() {
				l, err := c.Adopt(bg, handle)
				if err != nil && !errors.Is(err, rlock.ErrNotAcquired) {
					t.Error(err)
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
		locktest.MustUnlock(t, second)
		locktest.MustBeFree(t, k.Blocker(a, name(t)))
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
			second := adopt(t, c, detach(t, first))
			locktest.WantHash(t, rdb, "a", map[string]string{second.HoldID(): "1"})
			if !regexp.MustCompile(`^[0-9a-f-]{36}:-?\d+$`).MatchString(second.HoldID()) {
				t.Errorf("Redisson cannot read %s", second.HoldID())
			}
			locktest.MustUnlock(t, second)
		}
		// The writer's mode, and the reader's timer.
		rw := a.NewReadWriteLock("b")
		first := locktest.MustLock(t, rw.Writer)
		second := adopt(t, c, detach(t, first))
		locktest.WantHash(t, rdb, "b", map[string]string{"mode": "write", second.HoldID() + ":write": "1"})
		locktest.MustUnlock(t, second)
		first = locktest.MustLock(t, rw.Reader)
		second = adopt(t, c, detach(t, first))
		locktest.WantHash(t, rdb, "b", map[string]string{"mode": "read", second.HoldID(): "1"})
		timers, err := rdb.Keys(bg, "*rwlock_timeout*").Result()
		if err != nil || len(timers) != 1 || timers[0] != "{b}:"+second.HoldID()+":rwlock_timeout:1" {
			t.Errorf("timers %v, %v", timers, err)
		}
		locktest.MustUnlock(t, second)
	})
}

func TestInvalidHandlesAreRefused(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var sent locktest.SentCommands
	rdb := b.Client(t)
	rdb.AddHook(&sent)
	c := locktest.NewClient(t, rdb, rlock.WithPrefix("mine:"))
	text := detach(t, locktest.MustLock(t, b.NewClient(t, rlock.WithPrefix("mine:")).NewLock("a")))
	foreign := detach(t, locktest.MustLock(t, b.NewClient(t).NewLock("a")))
	for what, wrong := range map[string]string{
		"empty": "", "no handle": "a", "later version": "rlock3" + text[6:], "cut off": text[:len(text)-1], "longer": text + "A",
		"changed": text[:20] + string(text[20]^1) + text[21:], "a space": text + " ", "only a version": "rlock2-", "an earlier version": "rlock1" + text[6:],
		"another prefix": foreign, "huge": "rlock2-" + strings.Repeat("A", 1<<20),
	} {
		_, err := c.Adopt(bg, wrong)
		if !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
		if err := c.Extend(bg, wrong, time.Minute); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
		if len(wrong) > 20 && strings.Contains(err.Error(), wrong[7:]) {
			t.Errorf("%s: the error repeats the handle: %v", what, err)
		}
	}
	if _, err := c.Adopt(bg, text, rlock.WithLease(time.Microsecond)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	for _, d := range []time.Duration{0, -1, time.Microsecond, rlock.MaxLease + 1} {
		if err := c.Extend(bg, text, d); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Error(d, err)
		}
	}
	var noContext context.Context
	if err := c.Extend(noContext, text, time.Minute); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if err := c.Unlock(noContext, text); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if err := (*rlock.Client)(nil).Extend(bg, text, time.Minute); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if _, err := (*rlock.Client)(nil).Adopt(bg, text); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	canceled, cancel := context.WithCancel(bg)
	cancel()
	if _, err := c.Adopt(canceled, text); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// A handle of a lock that cannot be.
	of, err := handle.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, of.Name = range []string{"mine:", "mine:a{b"} {
		if _, err := c.Adopt(bg, of.String()); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%q: %v", of.Name, err)
		}
		if err := c.Extend(bg, of.String(), time.Minute); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%q: %v", of.Name, err)
		}
	}
	if n := sent.N.Load(); n != 0 {
		t.Errorf("sent %d commands", n)
	}
	for _, l := range []*rlock.Lease{nil, {}} {
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
		if _, err := l.Detach(bg); !errors.Is(err, rlock.ErrInvalidArgument) || l.Err() != nil {
			t.Errorf("%s: %v, %v", what, err, l.Err())
		}
		locktest.MustUnlock(t, l)
	}
	_, _, err = c.NewOnce("once", time.Minute).Do(bg, func(ctx context.Context) ([]byte, error) {
		l, _ := rlock.LeaseFrom(ctx)
		if _, err := l.Detach(bg); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("Once: %v", err)
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

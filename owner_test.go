package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// exclusiveLock is a type of lock that one owner has alone, with the locks of
// which it needs more than one client.
type exclusiveLock struct {
	name string
	open func(t *testing.T, b *locktest.Backend, c *rlock.Client, name string) rlock.Locker
}

// exclusiveLocks are all of them.
func exclusiveLocks() (kinds []exclusiveLock) {
	for _, k := range locktest.Types {
		if !k.Shared {
			kinds = append(kinds, exclusiveLock{k.Name, func(_ *testing.T, _ *locktest.Backend, c *rlock.Client, name string) rlock.Locker {
				return k.Open(c, name)
			}})
		}
	}
	return append(kinds,
		exclusiveLock{"MultiLock in one script", func(t *testing.T, _ *locktest.Backend, c *rlock.Client, name string) rlock.Locker {
			return locktest.MultiLockOf(t, c, "{"+name+"}1", "{"+name+"}2")
		}},
		exclusiveLock{"MultiLock of types", func(t *testing.T, _ *locktest.Backend, c *rlock.Client, name string) rlock.Locker {
			return locktest.NewMultiLock(t, c.NewFairLock(name+":fair"), c.NewReadWriteLock(name+":rw").Writer)
		}},
		exclusiveLock{"RedLock", func(t *testing.T, b *locktest.Backend, c *rlock.Client, name string) rlock.Locker {
			// One master is enough here: what counts is who is the owner.
			return locktest.NewRedLock(t, name, []*rlock.Client{c}, rlock.WithNodeTimeout(5*time.Second))
		}},
	)
}

func eachExclusiveLock(t *testing.T, scenario func(t *testing.T, open func(name string) rlock.Locker)) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range exclusiveLocks() {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				c := b.NewClient(t)
				scenario(t, func(name string) rlock.Locker { return k.open(t, b, c, strings.ReplaceAll(k.name, " ", "-")+":"+name) })
			})
		}
	})
}

// meter counts who is inside at once.
type meter struct{ now, most atomic.Int64 }

func (m *meter) enter() {
	n := m.now.Add(1)
	for {
		most := m.most.Load()
		if n <= most || m.most.CompareAndSwap(most, n) {
			return
		}
	}
}

func (m *meter) leave() { m.now.Add(-1) }

// Goroutines that are started below one lease are owners of their own: they
// exclude each other from every other lock.
func TestGoroutinesBelowOneLeaseExcludeEachOther(t *testing.T) {
	t.Parallel()
	eachExclusiveLock(t, func(t *testing.T, open func(string) rlock.Locker) {
		outer, inner := open("outer"), open("inner")
		var inside meter
		err := rlock.Do(bg, outer, func(ctx context.Context) error {
			ready, errs := sync.WaitGroup{}, make(chan error)
			ready.Add(8)
			for range 8 {
				go func() {
					ready.Done()
					ready.Wait() // all at once
					errs <- rlock.Do(ctx, inner, func(context.Context) error {
						inside.enter()
						defer inside.leave()
						time.Sleep(time.Millisecond) // long enough for another that is let in to be seen
						return nil
					})
				}()
			}
			var all error
			for range 8 {
				all = errors.Join(all, <-errs)
			}
			return all
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := inside.most.Load(); n != 1 {
			t.Fatalf("%d were inside at once", n)
		}
	})
}

// Below one WithOwner nobody excludes anybody, whatever contexts of leases are made
// in between.
func TestWithOwnerMakesOneOwnerOfAllCalls(t *testing.T) {
	t.Parallel()
	eachExclusiveLock(t, func(t *testing.T, open func(string) rlock.Locker) {
		ctx := rlock.WithOwner(bg)
		outer, inner := open("outer"), open("inner")
		lease := locktest.MustLockCtx(t, ctx, outer)
		entries := make([]*rlock.Lease, 4)
		var wg sync.WaitGroup
		for i := range entries {
			from := ctx
			if i%2 == 0 {
				from = lease.Context(ctx)
			}
			wg.Go(func() { entries[i] = locktest.MustLockCtx(t, from, inner) })
		}
		wg.Wait() // all are inside
		if t.Failed() {
			return
		}
		for _, e := range entries {
			if e.HoldID() != entries[0].HoldID() || e.Token() != entries[0].Token() {
				t.Errorf("%s with token %d beside %s with token %d", e.HoldID(), e.Token(), entries[0].HoldID(), entries[0].Token())
			}
			locktest.MustUnlock(t, e)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, locktest.MustLock(t, inner))
	})
}

// entersAgain says which of some locks a context enters again.
func entersAgain(t *testing.T, ctx context.Context, locks ...*rlock.Lock) (names string) {
	t.Helper()
	for _, l := range locks {
		n, err := l.HoldCount(ctx)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := l.TryLock(ctx)
		if (err == nil) != (n > 0) {
			t.Errorf("%s: held %d times, and TryLock says %v", l.Name(), n, err)
		}
		if err == nil {
			names += l.Name()
			locktest.MustUnlock(t, lease)
		}
	}
	return names
}

func TestAcquireEntersOnlyWhatItsContextDescendsFrom(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		client := b.NewClient(t)
		a, c, d, e := client.NewLock("a"), client.NewLock("c"), client.NewLock("d"), client.NewLock("e")
		la := locktest.MustLock(t, a)
		inA := la.Context(bg)
		lc, ld := locktest.MustLockCtx(t, inA, c), locktest.MustLockCtx(t, inA, d) // siblings
		tree := rlock.WithOwner(bg)
		le := locktest.MustLockCtx(t, tree, e)
		leaf, cancel := context.WithCancel(lc.Context(inA))
		defer cancel()
		for what, test := range map[string]struct {
			ctx  context.Context
			want string
		}{
			"nothing":                          {bg, ""},
			"a lease":                          {inA, "a"},
			"a lease below a lease":            {lc.Context(inA), "ac"},
			"a context made from that":         {leaf, "ac"},
			"its sibling":                      {ld.Context(inA), "ad"},
			"both":                             {ld.Context(leaf), "acd"},
			"the same twice":                   {la.Context(leaf), "ac"},
			"a parent that descends from none": {lc.Context(bg), "c"},
			"cut off":                          {rlock.WithoutOwner(leaf), ""},
			"cut off, and a lease":             {lc.Context(rlock.WithoutOwner(leaf)), "c"},
			"a new owner below a lease":        {rlock.WithOwner(leaf), ""},
			"a lease below a new owner":        {la.Context(rlock.WithOwner(leaf)), "a"},
			"WithOwner":                        {tree, "e"},
			"a lease of its, below it":         {le.Context(tree), "e"},
			"a lease of its, elsewhere":        {le.Context(bg), "e"},
			"another's lease below it":         {lc.Context(la.Context(tree)), "ace"},
			"its lease below others":           {le.Context(leaf), "ace"},
		} {
			if got := entersAgain(t, test.ctx, a, c, d, e); got != test.want {
				t.Errorf("%s: enters %q again, want %q", what, got, test.want)
			}
		}

		// What is entered anew below another's lease is still the owner's, and what
		// is entered below its lease elsewhere is not.
		f := client.NewLock("f")
		lf := locktest.MustLockCtx(t, lc.Context(tree), f)
		if got := entersAgain(t, tree, a, c, e, f); got != "ef" {
			t.Errorf("the owner enters %q", got)
		}
		locktest.MustUnlock(t, lf)
		lf = locktest.MustLockCtx(t, le.Context(bg), f)
		if got := entersAgain(t, tree, e, f); got != "e" {
			t.Errorf("the owner enters %q", got)
		}
		for _, l := range []*rlock.Lease{lf, le, ld, lc, la} {
			locktest.MustUnlock(t, l)
		}

		// Of what was left nothing is entered again: a new hold begins.
		after := context.WithoutCancel(leaf)
		next := locktest.MustLockCtx(t, after, a)
		if next.HoldID() == la.HoldID() || next.Token() <= la.Token() {
			t.Errorf("%s, token %d, after %s, token %d", next.HoldID(), next.Token(), la.HoldID(), la.Token())
		}
		_, err := a.TryLock(after)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustUnlock(t, next)
	})
}

// A context enters again what its own client holds. At another client the same name is another
// owner's, in the same Redis, or another lock, in another Redis.
func TestContextEntersNothingOfAnotherClient(t *testing.T) {
	t.Parallel()
	for _, k := range exclusiveLocks() {
		for name, parent := range map[string]context.Context{"lease": bg, "WithOwner": rlock.WithOwner(bg)} {
			t.Run(k.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				b, elsewhere := locktest.OnMiniredis(t), locktest.OnMiniredis(t)
				mine := k.open(t, b, b.NewClient(t), "a")
				beside := k.open(t, b, b.NewClient(t), "a")
				other := k.open(t, elsewhere, elsewhere.NewClient(t), "a")
				held := locktest.MustLockCtx(t, parent, mine)
				ctx := held.Context(parent)
				lease, err := beside.TryLock(ctx)
				if lease != nil {
					t.Error("two clients hold the lock")
					locktest.MustUnlock(t, lease)
				} else {
					locktest.WantErr(t, err, rlock.ErrNotAcquired)
				}
				if l, is := beside.(locktest.AnyLock); is {
					if n, err := l.HoldCount(ctx); n != 0 || err != nil {
						t.Errorf("the other client holds it %d times, %v", n, err)
					}
				}
				locktest.MustBeFree(t, other)
				own, err := other.TryLock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if own.HoldID() == held.HoldID() {
					t.Errorf("%s of one Redis is entered again in another", own.HoldID())
				}
				locktest.MustBeHeld(t, other)
				locktest.MustUnlock(t, own)
				if err := held.Err(); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, held)
				locktest.MustBeFree(t, mine, beside, other)
			})
		}
	}
}

// A hold that is lost lets nobody enter below it, until it is unlocked.
func TestBelowALostHoldNothingIsEnteredAgain(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		lease := locktest.MustLock(t, l)
		ctx := context.WithoutCancel(lease.Context(bg))
		if err := rdb.Del(bg, "a").Err(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := l.Lock(ctx)
			locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrNotAcquired)
		}
		locktest.MustUnlock(t, locktest.MustLock(t, l)) // a new owner
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
		locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, l))
	})
}

// Goroutines below one write lease read each by itself: what one does with its
// read hold is nothing to the other.
func TestSiblingsReadUnderAWriteEachByItself(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, open := range map[string]func(*rlock.Client, rlock.AnyLockOption) (rlock.ReadLock, rlock.WriteLock){
			"ReadWriteLock": func(c *rlock.Client, opt rlock.AnyLockOption) (rlock.ReadLock, rlock.WriteLock) {
				l := c.NewReadWriteLock("{rw}a", opt)
				return l.Reader, l.Writer
			},
			"FairReadWriteLock": func(c *rlock.Client, opt rlock.AnyLockOption) (rlock.ReadLock, rlock.WriteLock) {
				l := c.NewFairReadWriteLock("{rw}b", opt)
				return l.Reader, l.Writer
			},
		} {
			t.Run(name, func(t *testing.T) {
				rdb := b.Client(t)
				c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
				reader, writer := open(c, rlock.WithNonReentrant())
				others, othersWriter := open(other, rlock.WithMaxHold(0))
				write := locktest.MustLock(t, writer)
				inWrite := context.WithoutCancel(write.Context(bg))
				var reads []*rlock.Lease
				for range 3 {
					reads = append(reads, locktest.MustLockCtx(t, inWrite, reader)) // not ErrReentrant
					if n, err := reader.HoldCount(reads[len(reads)-1].Context(inWrite)); n != 1 || err != nil {
						t.Fatal(n, err)
					}
				}
				if reads[1].HoldID() == reads[0].HoldID() || reads[2].HoldID() == reads[1].HoldID() {
					t.Fatal("siblings share a read hold")
				}
				_, err := reader.TryLock(reads[0].Context(inWrite))
				locktest.WantErr(t, err, rlock.ErrReentrant)
				_, err = others.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)

				// One leaves; the others read on, after the writer too.
				locktest.MustUnlock(t, reads[0])
				locktest.MustUnlock(t, write)
				locktest.MustUnlock(t, locktest.MustLock(t, others))
				_, err = othersWriter.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				_, err = writer.TryLock(reads[1].Context(bg))
				locktest.WantErr(t, err, rlock.ErrUpgrade)
				_, err = writer.TryLock(inWrite) // descends from no reader
				locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUpgrade)
				locktest.MustUnlock(t, reads[1])
				_, err = othersWriter.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.MustUnlock(t, reads[2])
				locktest.MustUnlock(t, locktest.MustLock(t, othersWriter))
				locktest.MustBeForgotten(t, rdb, reader.Name())
			})
		}
	})
}

// siblings of the holder of a MultiLock enter each of its members again, and exclude
// each other from a MultiLock of others.
func TestBelowAMultiLockSiblingsExcludeEachOther(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		outer, inner := locktest.MultiLockOf(t, c, "{m}a", "{m}b"), locktest.NewMultiLock(t, c.NewLock("{m}b"), c.NewLock("{m}c"))
		lease := locktest.MustLock(t, outer)
		ctx := lease.Context(bg)
		first, err := inner.TryLock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = inner.TryLock(ctx) // a sibling: it enters b, but c is another's
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		second, err := inner.TryLock(first.Context(ctx))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []*rlock.Lease{second, first, lease} {
			locktest.MustUnlock(t, l)
		}
		locktest.MustBeFree(t, outer, inner)
	})
}

// both is a Locker of the caller's, of which a MultiLock knows nothing.
type both struct{ *rlock.MultiLock }

// Members that take the same lock somewhere inside do not wait for each other.
func TestMembersOfAMultiLockDescendFromEachOther(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	m := locktest.NewMultiLock(t, &both{locktest.MultiLockOf(t, c, "a", "b")}, &both{locktest.MultiLockOf(t, c, "b", "c")})
	for _, acquire := range locktest.Acquires(m) {
		lease, err := acquire(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	}
	locktest.MustBeFree(t, c.NewLock("a"), c.NewLock("b"), c.NewLock("c"))
}

type valueKey struct{}

func TestLeaseFromIsTheInnermostOfAContext(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		outer := locktest.MustLock(t, c.NewLock("outer"))
		inOuter := outer.Context(bg)
		inner := locktest.MustLockCtx(t, inOuter, c.NewLock("inner"))
		again := locktest.MustLockCtx(t, inner.Context(inOuter), c.NewLock("outer"))
		whole := locktest.MustLock(t, locktest.MultiLockOf(t, c, "{m}a", "{m}b"))
		reader := locktest.MustLock(t, c.NewReadWriteLock("rw").Reader)
		tree := rlock.WithOwner(bg)
		owned, ownedAgain := locktest.MustLockCtx(t, tree, c.NewLock("owned")), locktest.MustLockCtx(t, tree, c.NewLock("owned"))
		ended := locktest.MustLock(t, c.NewLock("ended"))
		inEnded := ended.Context(inOuter)
		locktest.MustUnlock(t, ended)
		leaf, cancel := context.WithCancel(context.WithValue(inner.Context(inOuter), valueKey{}, 1))
		defer cancel()
		var none *rlock.Lease
		for what, test := range map[string]struct {
			ctx  context.Context
			want *rlock.Lease
		}{
			"no context":                         {nil, nil},
			"a context of no lease":              {bg, nil},
			"its context":                        {inOuter, outer},
			"the one below":                      {inner.Context(inOuter), inner},
			"a context made from that":           {leaf, inner},
			"one that does not end":              {context.WithoutCancel(leaf), inner},
			"the order of the contexts counts":   {outer.Context(leaf), outer},
			"a parent without":                   {inner.Context(bg), inner},
			"an entry, not the hold":             {again.Context(leaf), again},
			"a MultiLock as a whole":             {whole.Context(leaf), whole},
			"a member of a MultiLock, by itself": {whole.Members()[1].Context(leaf), whole.Members()[1]},
			"a reader":                           {reader.Context(leaf), reader},
			"cut off":                            {rlock.WithoutOwner(leaf), nil},
			"below what is cut off":              {inner.Context(rlock.WithoutOwner(inOuter)), inner},
			"a new owner":                        {rlock.WithOwner(leaf), nil},
			"acquired with it, not made from it": {tree, nil},
			"the first of an owner's entries":    {owned.Context(tree), owned},
			"the second of an owner's entries":   {ownedAgain.Context(tree), ownedAgain},
			"an owner's lease below another's":   {owned.Context(inOuter), owned},
			"one that has ended":                 {inEnded, ended},
			"below one that has ended":           {inner.Context(inEnded), inner},
			"a nil lease, whatever it is below":  {none.Context(leaf), nil},
			"a zero lease":                       {new(rlock.Lease).Context(leaf), nil},
		} {
			if got, ok := rlock.LeaseFrom(test.ctx); got != test.want || ok != (test.want != nil) {
				t.Errorf("%s: %s, %v, want %s", what, got.Name(), ok, test.want.Name())
			}
		}
		locktest.WantErr(t, ended.Err(), rlock.ErrUnlocked)
		for _, l := range []*rlock.Lease{ownedAgain, owned, reader, whole, again, inner, outer} {
			locktest.MustUnlock(t, l)
		}
		if got, ok := rlock.LeaseFrom(leaf); got != inner || !ok {
			t.Errorf("after the end: %s, %v", got.Name(), ok)
		}
	})
}

// In the function of Do, of whatever type, the token is at hand.
func TestDoHasItsLeaseInTheContext(t *testing.T) {
	t.Parallel()
	eachExclusiveLock(t, func(t *testing.T, open func(string) rlock.Locker) {
		l := open("a")
		last := int64(0)
		for range 2 {
			err := rlock.Do(bg, l, func(ctx context.Context) error {
				lease, ok := rlock.LeaseFrom(ctx)
				if !ok || lease.Name() != l.Name() || lease.Token() <= last || lease.Err() != nil {
					t.Errorf("%s, %v: token %d after %d, %v", lease.Name(), ok, lease.Token(), last, lease.Err())
				}
				last = lease.Token()
				return rlock.Do(ctx, l, func(ctx context.Context) error {
					if again, _ := rlock.LeaseFrom(ctx); again == lease || again.Token() != last {
						t.Errorf("token %d of the inner entry, %d of the outer", again.Token(), last)
					}
					return nil
				})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A hold that is handed over inside the client is another lease, with a token of its own.
func TestLeaseFromAfterAHandOver(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	l := c.NewLock("a", rlock.WithHandOver(rlock.MaxHandOverPasses, locktest.Patient))
	first := locktest.MustLock(t, l)
	last := first.Token()
	ids := map[string]bool{}
	errs := make(chan error)
	for range 8 {
		go func() {
			errs <- rlock.Do(bg, l, func(ctx context.Context) error {
				lease, _ := rlock.LeaseFrom(ctx)
				if lease.Token() <= last || lease.Err() != nil {
					t.Errorf("token %d after %d, %v", lease.Token(), last, lease.Err())
				}
				last = lease.Token()
				ids[lease.HoldID()] = true
				return nil
			})
		}()
	}
	locktest.Eventually(t, "all wait", func() bool { return locktest.Waiters(t, l) == 8 })
	locktest.MustUnlock(t, first)
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if len(ids) == 8 {
		t.Error("no hold was handed over")
	}
}

// A Locker of the caller's that is a member of a MultiLock sees the lease that the call descends
// from, not those of the members before it.
func TestMembersOfAMultiLockSeeTheLeaseOfTheCall(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	outer := locktest.MustLock(t, c.NewLock("outer"))
	seen := &seeing{Locker: c.NewLock("b")}
	m := locktest.NewMultiLock(t, c.NewLock("a"), seen)
	for _, ctx := range []context.Context{bg, outer.Context(bg)} {
		want, _ := rlock.LeaseFrom(ctx)
		locktest.MustUnlock(t, locktest.MustLockCtx(t, ctx, m))
		if seen.lease != want {
			t.Errorf("%q, want %q", seen.lease.Name(), want.Name())
		}
	}
	locktest.MustUnlock(t, outer)
}

// seeing is a Locker that remembers the lease that its latest call descends from.
type seeing struct {
	rlock.Locker
	lease *rlock.Lease
}

func (s *seeing) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	s.lease, _ = rlock.LeaseFrom(ctx)
	return s.Locker.Lock(ctx, opts...)
}

// All that made contexts before is still seen in their text.
func TestContextsOfLeasesNameTheirParents(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	lease := locktest.MustLock(t, c.NewLock("a"))
	defer locktest.MustUnlock(t, lease)
	for want, ctx := range map[string]context.Context{
		"context.Background.rlock":                             rlock.WithoutOwner(bg),
		"context.Background.rlock.WithCancel":                  lease.Context(bg),
		"context.Background.rlock.WithCancel.rlock.WithCancel": lease.Context(lease.Context(bg)),
	} {
		if got := fmt.Sprint(ctx); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A call that becomes the head of its line behind a hold of its client does not poll. Other calls of its owner wait for it,
// and their errors name the holder.
func TestCallBehindAnotherOfItsOwnerNamesTheHolder(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t, rlock.WithLongestPoll(locktest.Patient))
	l := c.NewReadWriteLock("l").Writer // it does not hand over
	first := locktest.MustLock(t, l)
	begin := func(ctx context.Context, waiters int) <-chan *rlock.Lease {
		t.Helper()
		got := make(chan *rlock.Lease, 1)
		go func() { got <- locktest.MustLockCtx(t, ctx, l) }()
		locktest.Eventually(t, "it waits", func() bool { return locktest.Waiters(t, l) == waiters })
		return got
	}
	second := begin(bg, 1)
	owner := rlock.WithOwner(bg)
	third := begin(owner, 2)
	locktest.MustUnlock(t, first)
	holder := <-second
	var err error
	for range 20 { // the third call may need a moment until it knows that it is the head
		_, err = l.Lock(owner, rlock.WithWait(50*time.Millisecond))
		if strings.Contains(fmt.Sprint(err), holder.HoldID()) {
			break
		}
	}
	var e *rlock.Error
	if !errors.As(err, &e) || !errors.Is(err, rlock.ErrNotAcquired) || e.HolderID != holder.HoldID() {
		t.Errorf("%v does not name the holder, %s", err, holder.HoldID())
	}
	locktest.MustUnlock(t, holder)
	locktest.MustUnlock(t, <-third)
}

// An Unlock of one entry of several does not bring back a hold that Redis has lost.
func TestUnlockOfAnEntryBringsNoLostHoldBack(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		for name, l := range map[string]rlock.Locker{"lock": c.NewLock("lock"), "fenced": c.NewFencedLock("fenced"), "fair": c.NewFairLock("fair")} {
			ctx := rlock.WithOwner(bg)
			outer := locktest.MustLockCtx(t, ctx, l)
			entry := locktest.MustLockCtx(t, ctx, l)
			rdb.Del(bg, name)
			locktest.WantErr(t, entry.Unlock(bg), rlock.ErrLeaseLost)
			if n := rdb.Exists(bg, name).Val(); n != 0 {
				t.Errorf("%s is back: %v", name, rdb.HGetAll(bg, name).Val())
			}
			locktest.WantErr(t, outer.Unlock(bg), rlock.ErrLeaseLost)
		}
	})
}

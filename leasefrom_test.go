package rlock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

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

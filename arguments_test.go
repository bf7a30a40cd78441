package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// Nothing panics for want of an argument: not a constructor, and not a method of
// what a constructor returned or did not make.
func TestNilAndZeroValuesAreRefused(t *testing.T) {
	t.Parallel()
	b := onMiniredis(t)
	c := b.newClient(t)
	var noContext context.Context
	nothing := func(context.Context) error { return nil }
	wrong := func(what string, call func() error) {
		t.Helper()
		defer func() {
			t.Helper()
			if p := recover(); p != nil {
				t.Errorf("%s panics: %v", what, p)
			}
		}()
		if err := call(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	locker := func(what string, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) {
		t.Helper()
		wrong(what+": Lock", func() error { _ = l.Name(); _, err := l.Lock(ctx, opts...); return err })
		wrong(what+": TryLock", func() error { _, err := l.TryLock(ctx, opts...); return err })
		wrong(what+": Do", func() error { return rlock.Do(ctx, l, nothing, opts...) })
	}
	all := func(what string, ctx context.Context, l lockOf) {
		t.Helper()
		locker(what, ctx, l)
		wrong(what+": State", func() error { _, err := l.State(ctx); return err })
		wrong(what+": IsLocked", func() error { _, err := l.IsLocked(ctx); return err })
		wrong(what+": HeldBy", func() error { _, err := l.HeldBy(ctx); return err })
		wrong(what+": ForceUnlock", func() error { _, err := l.ForceUnlock(ctx); return err })
		wrong(what+": ForceUnlockIf", func() error { _, err := l.ForceUnlockIf(ctx, "owner"); return err })
		wrong(what+": Watch", func() error { _, err := l.Watch(ctx); return err })
	}

	// Each constructor, of no client, of one that was not made, with a nil option,
	// and each method with a nil context.
	for _, k := range typesOfLocks {
		all(k.name+" of a nil Client", bg, k.open(nil, "a"))
		all(k.name+" of a zero Client", bg, k.open(&rlock.Client{}, "a"))
		all(k.name+" with a nil option", bg, k.open(c, "a", nil))
		all(k.name+" with a nil context", noContext, k.open(c, "a"))
		locker(k.name+" acquired with a nil option", bg, k.open(c, "a"), nil)
	}
	// Values that no constructor made.
	for what, l := range map[string]lockOf{
		"Lock": &rlock.Lock{}, "FairLock": &rlock.FairLock{}, "SpinLock": &rlock.SpinLock{}, "FencedLock": &rlock.FencedLock{},
		"PriorityLock": &rlock.PriorityLock{}, "RedLock": &rlock.RedLock{}, "ReadLock": rlock.ReadLock{}, "WriteLock": rlock.WriteLock{},
		"ReadWriteLock": (&rlock.ReadWriteLock{}).Reader, "FairReadWriteLock": (&rlock.FairReadWriteLock{}).Writer,
	} {
		all("zero "+what, bg, l)
		wrong("MultiLock of a zero "+what, func() error { _, err := rlock.NewMultiLock(c.NewLock("a"), l); return err })
	}
	_ = (&rlock.ReadWriteLock{}).Name() + (&rlock.FairReadWriteLock{}).Name() + (*rlock.ReadWriteLock)(nil).Name() + (*rlock.FairReadWriteLock)(nil).Name()
	wrong("CurrentToken", func() error { _, err := (&rlock.FencedLock{}).CurrentToken(bg); return err })
	wrong("RedLock.Bootstrap", func() error { return (&rlock.RedLock{}).Bootstrap(bg) })

	// MultiLock.
	m := multiOf(t, c, "a", "b")
	locker("MultiLock with a nil context", noContext, m)
	locker("MultiLock with a nil option", bg, m, nil)
	locker("zero MultiLock", bg, &rlock.MultiLock{})
	locker("nil MultiLock", bg, (*rlock.MultiLock)(nil))
	for what, l := range map[string]rlock.Locker{
		"nil": nil, "a nil Lock": (*rlock.Lock)(nil), "a nil MultiLock": (*rlock.MultiLock)(nil), "a zero MultiLock": &rlock.MultiLock{},
		"a lock of a nil Client": (*rlock.Client)(nil).NewLock("a"),
	} {
		wrong("NewMultiLock with "+what, func() error { _, err := rlock.NewMultiLock(c.NewLock("a"), l); return err })
	}

	// RedLock.
	for what, clients := range map[string][]*rlock.Client{"none": nil, "a nil one": {c, nil}, "a zero one": {c, {}}, "the nil one": {nil}} {
		wrong("NewRedLock with "+what, func() error { _, err := rlock.NewRedLock("a", clients); return err })
	}
	wrong("NewRedLock with a nil option", func() error { _, err := rlock.NewRedLock("a", []*rlock.Client{c}, nil); return err })
	all("RedLock with a nil context", noContext, red(t, "a", []*rlock.Client{c}))

	// Client.
	wrong("New without a client", func() error { _, err := rlock.New(nil); return err })
	wrong("New with a nil client", func() error { _, err := rlock.New((*redis.Client)(nil)); return err })
	wrong("New with a nil option", func() error { _, err := rlock.New(b.client(t), nil); return err })
	wrong("Shutdown with a nil context", func() error { return c.Shutdown(noContext) })
	wrong("Bootstrap with a nil context", func() error { return c.Bootstrap(noContext) })
	for what, none := range map[string]*rlock.Client{"nil": nil, "zero": {}} {
		wrong(what+" Client: Close", none.Close)
		wrong(what+" Client: Shutdown", func() error { return none.Shutdown(bg) })
		wrong(what+" Client: Bootstrap", func() error { _ = none.ID(); return none.Bootstrap(bg) })
	}

	// Do.
	wrong("Do without a lock", func() error { return rlock.Do(bg, nil, nothing) })
	wrong("Do with a nil lock", func() error { return rlock.Do(bg, (*rlock.Lock)(nil), nothing) })
	wrong("Do without a function", func() error { return rlock.Do(bg, c.NewLock("a"), nil) })
	multiFree(t, m) // nothing of all that has taken a lock
}

// A lease that no lock gave out has ended.
func TestNilAndZeroLeasesHaveEnded(t *testing.T) {
	t.Parallel()
	for _, l := range []*rlock.Lease{nil, {}} {
		if s := l.Name() + l.Owner(); s != "" || l.Token() != 0 || l.Members() != nil || !l.Deadline().IsZero() {
			t.Error("it has something")
		}
		<-l.Done()
		wantErr(t, l.Err(), rlock.ErrNotHeld)
		wantErr(t, l.Unlock(bg), rlock.ErrNotHeld)
		wantErr(t, l.Extend(bg, time.Minute), rlock.ErrNotHeld)
		ctx := l.Context(bg)
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), rlock.ErrNotHeld)
	}
}

// A nil context stops nobody from giving a lock back.
func TestUnlockWithANilContext(t *testing.T) {
	t.Parallel()
	l := onMiniredis(t).newClient(t).NewLock("a")
	var noContext context.Context
	lease := mustLockCtx(t, rlock.WithoutOwner(rlock.WithOwner(noContext)), l)
	mustUnlock(t, mustLockCtx(t, lease.Context(noContext), l))
	wantErr(t, lease.Extend(noContext, time.Minute), rlock.ErrInvalidArgument)
	if err := lease.Unlock(noContext); err != nil {
		t.Fatal(err)
	}
	multiFree(t, l)
}

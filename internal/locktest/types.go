package locktest

import (
	"context"

	"github.com/go-rlock/rlock"
)

// AnyLock is a lock of any type with all the methods that they share.
type AnyLock interface {
	rlock.Locker
	rlock.ReleaseRequester
	IsLocked(context.Context) (bool, error)
	State(context.Context) (rlock.State, error)
	HoldCount(context.Context) (int, error)
	ForceUnlock(context.Context) (bool, error)
	ForceUnlockIf(context.Context, string) (bool, error)
	Watch(context.Context) (<-chan rlock.State, error)
}

// Type is a type of lock, or a side of one.
type Type struct {
	Name   string
	Open   func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock
	Shared bool
}

// Blocker is a lock that keeps the type out: itself, or the writer of a reader.
func (k Type) Blocker(c *rlock.Client, name string) rlock.Locker {
	switch k.Name {
	case "ReadLock":
		return c.NewReadWriteLock(name).Writer
	case "fair ReadLock":
		return c.NewFairReadWriteLock(name).Writer
	}
	return k.Open(c, name)
}

// optionsOf are options of all types as options of one; nil ones remain nil.
func optionsOf[O any](opts []rlock.AnyLockOption) (of []O) {
	for _, o := range opts {
		one, _ := o.(O)
		of = append(of, one)
	}
	return of
}

// Types are all types but MultiLock and RedLock, which take other arguments.
var Types = []Type{
	{Name: "Lock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewLock(name, optionsOf[rlock.LockOption](opts)...)
	}},
	{Name: "FairLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewFairLock(name, opts...)
	}},
	{Name: "SpinLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewSpinLock(name, optionsOf[rlock.SpinLockOption](opts)...)
	}},
	{Name: "FencedLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewFencedLock(name, opts...)
	}},
	{Name: "ReadLock", Shared: true, Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewReadWriteLock(name, optionsOf[rlock.ReadWriteLockOption](opts)...).Reader
	}},
	{Name: "WriteLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewReadWriteLock(name, optionsOf[rlock.ReadWriteLockOption](opts)...).Writer
	}},
	{Name: "plain WriteLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewReadWriteLock(name, append(optionsOf[rlock.ReadWriteLockOption](opts), rlock.WithReaderPreference())...).Writer
	}},
	{Name: "fair ReadLock", Shared: true, Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewFairReadWriteLock(name, opts...).Reader
	}},
	{Name: "fair WriteLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewFairReadWriteLock(name, opts...).Writer
	}},
	{Name: "PriorityLock", Open: func(c *rlock.Client, name string, opts ...rlock.AnyLockOption) AnyLock {
		return c.NewPriorityLock(name, optionsOf[rlock.PriorityLockOption](opts)...)
	}},
}

// HashTypes are the types that share the hash of a name.
var HashTypes = map[string]func(c *rlock.Client, name string) rlock.Locker{
	"Lock":       func(c *rlock.Client, name string) rlock.Locker { return c.NewLock(name) },
	"FencedLock": func(c *rlock.Client, name string) rlock.Locker { return c.NewFencedLock(name) },
	"SpinLock":   func(c *rlock.Client, name string) rlock.Locker { return c.NewSpinLock(name) },
}

// Electing is an election as a lock: its leader proclaims Value.
type Electing struct {
	*rlock.Election
	Value string
}

var _ AnyLock = Electing{}

func (e Electing) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	return e.Campaign(ctx, e.Value, opts...)
}

// TryLock is a Campaign that does not wait.
func (e Electing) TryLock(ctx context.Context, opts ...rlock.TryOption) (*rlock.Lease, error) {
	return e.Campaign(ctx, e.Value, append(Options(opts), rlock.WithWait(0))...)
}

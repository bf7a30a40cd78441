package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/go-rlock/rlock"
)

// freeable is a lock that can be inspected and freed.
type freeable interface {
	rlock.Inspector
	Name() string
	Watch(ctx context.Context) (<-chan rlock.State, error)
}

// A kind is a type of lock, for commands that do not take it. Types that share keys come first.
type kind struct {
	option, name string
	newLock      func(c *rlock.Client, name string) freeable
	readers      func(c *rlock.Client, name string) freeable // the side of the readers, for ForceUnlock
}

var kinds = []kind{
	{"fair", "FairLock", func(c *rlock.Client, name string) freeable { return c.NewFairLock(name) }, nil},
	{"lock", "Lock", func(c *rlock.Client, name string) freeable { return c.NewLock(name) }, nil},
	{"fenced", "FencedLock", func(c *rlock.Client, name string) freeable { return c.NewFencedLock(name) }, nil},
	{"rw", "ReadWriteLock", func(c *rlock.Client, name string) freeable { return c.NewReadWriteLock(name).Writer },
		func(c *rlock.Client, name string) freeable { return c.NewReadWriteLock(name).Reader }},
	{"fairrw", "FairReadWriteLock", func(c *rlock.Client, name string) freeable { return c.NewFairReadWriteLock(name).Writer },
		func(c *rlock.Client, name string) freeable { return c.NewFairReadWriteLock(name).Reader }},
	{"priority", "PriorityLock", func(c *rlock.Client, name string) freeable { return c.NewPriorityLock(name) }, nil},
	{"election", "Election", func(c *rlock.Client, name string) freeable { return c.NewElection(name) }, nil},
	{"once", "Once", func(c *rlock.Client, name string) freeable { return c.NewOnce(name, rlock.MinKeep) }, nil},
	{"double", "DoubleBarrier", func(c *rlock.Client, name string) freeable { return c.NewDoubleBarrier(name, 1) }, nil},
}

const semaphoreOption = "semaphore"

func kindOptions() string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.option)
	}
	return strings.Join(append(all, semaphoreOption), ", ")
}

// found is the lock or the semaphore with a name.
type found struct {
	typ   string
	lock  freeable // nil for a semaphore
	state *holding
}

// find returns the lock or semaphore with a name, and its holders. Without a type it inspects all types; a name that is not
// held is a Lock then, unless other data has the name.
func (d *deployment) find(ctx context.Context, name, option string) (*found, error) {
	if len(d.clients) > 1 {
		lock, err := d.redLock(name)
		if err != nil {
			return nil, err
		}
		return d.inspect(ctx, name, "RedLock", lock)
	}
	c := d.clients[0]
	if option == semaphoreOption {
		return d.semaphore(ctx, name)
	}
	if option != "" {
		at := slices.IndexFunc(kinds, func(k kind) bool { return k.option == option })
		if at < 0 {
			return nil, usage("--type %s: there are %s", option, kindOptions())
		}
		return d.inspect(ctx, name, kinds[at].name, kinds[at].newLock(c, name))
	}
	var free *found
	var failed, foreign error
	for _, k := range kinds {
		if k.option == "fenced" {
			continue // Redis shows it like a Lock
		}
		f, err := d.inspect(ctx, name, k.name, k.newLock(c, name))
		switch {
		case errors.Is(err, rlock.ErrForeignKey): // or the key of a later kind
			foreign = err
		case errors.Is(err, rlock.ErrRefused) && forbidden(err):
			failed = err // the user of Redis may read only some types
		case err != nil:
			return nil, err
		case k.option == "fair" && f.state.Waiters == 0:
			// A hold of a FairLock without waiters looks like a hold of a Lock.
		case len(f.state.Holders) > 0:
			if k.readers != nil && f.state.Mode == string(rlock.ModeShared) {
				f.lock = k.readers(c, name)
			}
			return f, nil
		case free == nil:
			free = f
		}
	}
	if s, err := d.semaphore(ctx, name); err == nil && s.state.Permits > 0 {
		return s, nil
	}
	switch {
	case foreign != nil:
		return nil, foreign
	case free == nil:
		return nil, failed
	}
	return free, nil
}

func (d *deployment) inspect(ctx context.Context, name, typ string, lock freeable) (*found, error) {
	s, err := lock.State(ctx)
	if err != nil {
		return nil, err
	}
	return &found{typ, lock, d.holding(ctx, name, typ, s)}, nil
}

func (d *deployment) semaphore(ctx context.Context, name string) (*found, error) {
	const typ = "PermitSemaphore"
	s, err := d.clients[0].NewPermitSemaphore(name).State(ctx)
	if err != nil || !s.Set {
		fair, failed := d.clients[0].NewPermitSemaphore(name, rlock.WithFairness()).State(ctx)
		if failed == nil && (err != nil || fair.Set) {
			s, err = fair, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return &found{typ, nil, d.permits(ctx, name, s)}, nil
}

func (d *deployment) permits(ctx context.Context, name string, s rlock.PermitState) *holding {
	h := &holding{Name: name, Type: "PermitSemaphore", Mode: "permits", Permits: s.Permits, Free: s.Available, Waiters: s.Waiters, Holders: []holder{}}
	for _, by := range s.Holders {
		one := newHolder(by.HoldID, by.Process, false, 0)
		one.Permits = by.Permits
		h.Holders = append(h.Holders, one)
		h.LeftMS = max(h.LeftMS, by.TTL.Milliseconds())
	}
	d.addNotes(ctx, h)
	return h
}

func addType(f *pflag.FlagSet, to *string) {
	f.StringVar(to, "type", "", "its type, if nobody holds it: "+kindOptions())
}

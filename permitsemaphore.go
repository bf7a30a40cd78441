package rlock

import (
	"cmp"
	"context"
	"sort"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// PermitSemaphore is a semaphore whose permits have leases, the counterpart of Redisson's
// RPermitExpirableSemaphore. A [Lease] is one hold of n permits, without a token; it is lost as a whole
// if one permit is. Permits of a process that dies come back at the end of the lease. A hold
// is not re-entered: an owner of all permits that acquires more waits for itself. For an order among clients use
// WithFairness. Details: https://go-rlock.github.io/rlock/latest/synchronizers/#permitsemaphore
type PermitSemaphore struct {
	named   // takes one permit at a time
	counter protocol.PermitCounter
	most    int // that a lease can have
}

// NewPermitSemaphore returns a semaphore whose permits have leases: the permits of a dead process come back.
// [WithPermits] says how many there are.
func (c *Client) NewPermitSemaphore(name string, opts ...PermitSemaphoreOption) *PermitSemaphore {
	cfg, err := lockOptions(permitConfig{}, opts, PermitSemaphoreOption.optionOfNewPermitSemaphore)
	err = cfg.check(err)
	if cfg.fair {
		l, names := newCore(c, protocol.FairPermitsFamily, name, cfg.lockConfig, err)
		proto := protocol.NewFairPermits(&l.c.site, names, cfg.permits)
		l.proto = proto
		return &PermitSemaphore{named{l}, proto, MaxPermits}
	}
	l, names := newCore(c, protocol.PermitsFamily, name, cfg.lockConfig, err)
	proto := protocol.NewPermits(&l.c.site, names, cfg.permits)
	l.proto = proto
	return &PermitSemaphore{named{l}, proto, MaxLeasePermits}
}

type permitOption func(c *permitConfig)

func (o permitOption) optionOfNewPermitSemaphore(c *permitConfig) { o(c) }

// WithFairness makes a PermitSemaphore first come, first served among all processes. It is off by default.
// TryAcquire then takes permits only if no call waits. A dead waiter holds up others for a waiter lease at
// most ([WithWaiterLease]). All clients of a name must use it, and Java cannot. While permits without it,
// or a lock, have the name, its methods fail with ErrForeignKey; others do not see it.
func WithFairness() PermitSemaphoreOption {
	return permitOption(func(c *permitConfig) { c.fair = true })
}

// Name is the name of the semaphore, with the client's prefix.
func (s *PermitSemaphore) Name() string {
	return coreOf(s).name()
}

// TrySetPermits sets the number of permits, from 1 to MaxPermits, if there is none, and reports whether
// it did. Without an answer the outcome is unknown.
func (s *PermitSemaphore) TrySetPermits(ctx context.Context, n int) (bool, error) {
	return changeOnce(ctx, coreOf(s), checkCount("TrySetPermits", n), func(op protocol.Op) protocol.Request[bool] { return s.counter.Change(op, protocol.TrySetPermits, n) }, nil)
}

// AddPermits adds n permits, or takes -n away; or neither, after an error.
func (s *PermitSemaphore) AddPermits(ctx context.Context, n int) error {
	_, err := changeOnce(ctx, coreOf(s), checkAdded(n), func(op protocol.Op) protocol.Request[bool] { return s.counter.Change(op, protocol.AddPermits, n) },
		func(op protocol.Op) protocol.Task { return s.counter.Undo(op) })
	return err
}

// SetPermits sets the number of permits, as TrySetPermits. It ends no lease.
func (s *PermitSemaphore) SetPermits(ctx context.Context, n int) error {
	_, err := changeOnce(ctx, coreOf(s), checkCount("SetPermits", n), func(op protocol.Op) protocol.Request[bool] { return s.counter.Change(op, protocol.SetPermits, n) }, nil)
	return err
}

// Delete is as for a [Semaphore]. Leases of its permits are lost: ErrRemoved.
func (s *PermitSemaphore) Delete(ctx context.Context) (bool, error) {
	return changeOnce(ctx, coreOf(s), nil, func(op protocol.Op) protocol.Request[bool] { return s.counter.Delete(op) }, nil)
}

// Available returns how many permits are free; less than 0 if more are taken than there are.
func (s *PermitSemaphore) Available(ctx context.Context) (int, error) {
	c, err := s.count(ctx, false)
	return c.Free, err
}

// PermitState is what Redis shows of a PermitSemaphore at one moment.
type PermitState struct {
	Set       bool // the number of permits was set
	Permits   int  // number of permits, free or not
	Available int  // number of free permits
	Holders   []PermitHolder
	Waiters   int // in this client, without those that need more than there are; WithFairness in all
}

// PermitHolder are the permits of one hold. Each permit of Java is a hold.
type PermitHolder struct {
	HoldID  string // Lease.HoldID if it is of this client or WithFairness, else the id of the first permit
	Permits int
	TTL     time.Duration // rest of the lease; -1 if it does not end
	Process Process       // process of the holder
}

// State returns the holders of the permits. Errors are as from an [Inspector].
func (s *PermitSemaphore) State(ctx context.Context) (PermitState, error) {
	c, err := s.count(ctx, true)
	if err != nil {
		return PermitState{}, err
	}
	l := coreOf(s)
	state := PermitState{Set: c.Set, Permits: c.Free, Available: c.Free, Waiters: c.Waiters}
	if c.Waiters < 0 {
		state.Waiters = l.waiters()
	}
	var holders []Holder
	for _, h := range c.Held {
		state.Permits += h.N
		holders = append(holders, Holder{HoldID: protocol.PermitHoldID(h.HoldID, l.c.id)})
	}
	l.nameHolders(holders, protocol.GiveUpGrace)
	for i, h := range c.Held {
		state.Holders = append(state.Holders, PermitHolder{holders[i].HoldID, h.N, h.Rest, holders[i].Process})
	}
	sort.Slice(state.Holders, func(i, j int) bool {
		a, b := &state.Holders[i], &state.Holders[j]
		return cmp.Or(strings.Compare(a.HoldID, b.HoldID), cmp.Compare(a.Permits, b.Permits)) < 0
	})
	return state, nil
}

func (s *PermitSemaphore) count(ctx context.Context, holds bool) (protocol.Counted, error) {
	l := coreOf(s)
	if err := l.check(ctx); err != nil {
		return protocol.Counted{}, err
	}
	if err := l.ready(ctx); err != nil {
		return protocol.Counted{}, err
	}
	r, err := ask(ctx, l, func() protocol.Request[protocol.Counted] { return s.counter.Count(holds) })
	return r.Outcome, err
}

// Acquire waits until n permits are free and returns a lease of them, at most [MaxLeasePermits]. Errors
// are as from [Locker].Lock, and ErrNotSet.
func (s *PermitSemaphore) Acquire(ctx context.Context, n int, opts ...AcquireOption) (*Lease, error) {
	return acquirePermits(ctx, s, n, true, opts)
}

// TryAcquire is Acquire without waiting for others, as TryLock of a [Locker].
func (s *PermitSemaphore) TryAcquire(ctx context.Context, n int, opts ...TryOption) (*Lease, error) {
	return acquirePermits(ctx, s, n, false, opts)
}

func acquirePermits[O callOption](ctx context.Context, s *PermitSemaphore, n int, wait bool, opts []O) (*Lease, error) {
	l := coreOf(s)
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	if n < 1 || n > s.most {
		return nil, l.error(invalid("%d permits: must be from 1 to %d", n, s.most))
	}
	if n > 1 {
		l = l.with(s.counter.Of(n))
	}
	return lock(ctx, l, wait, opts)
}

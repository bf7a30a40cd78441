package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/wire"
)

// Semaphore is a number of permits that owners in many processes take and put back, the counterpart of
// Redisson's RSemaphore. Redis does not record who took a permit: the permits of a dead process are gone
// until others are added. For leases use a PermitSemaphore. A permit is counted once even if replies are
// lost, but a failover may change the number. Details:
// https://go-rlock.github.io/rlock/latest/synchronizers/#semaphore
type Semaphore struct {
	named
	proto *protocol.Semaphore
}

// NewSemaphore returns a semaphore that Java's RSemaphore shares. The permits of a process that dies are
// LOST: unless Java shares it, use [Client.NewPermitSemaphore]. [WithPermits] says how many there are.
func (c *Client) NewSemaphore(name string, opts ...SemaphoreOption) *Semaphore {
	cfg, err := lockOptions(semaphoreConfig{}, opts, SemaphoreOption.optionOfNewSemaphore)
	l, names := newCore(c, protocol.SemaphoreFamily, name, lockConfig{}, cfg.check(err))
	return &Semaphore{named{l}, protocol.NewSemaphore(&l.c.site, names, cfg.permits)}
}

// Name returns the name of the semaphore, with the prefix of the client.
func (s *Semaphore) Name() string { return coreOf(s).name() }

// TrySetPermits sets the number of permits if none was set, and reports whether it did. Without an
// answer, or after the end of ctx, that is unknown.
func (s *Semaphore) TrySetPermits(ctx context.Context, n int) (bool, error) {
	return changeOnce(ctx, coreOf(s), checkCount("TrySetPermits", n), func(op protocol.Op) protocol.Request[bool] { return s.proto.Change(op, protocol.TrySetPermits, n) }, nil)
}

// AddPermits adds n permits, or takes -n away, which may leave a negative number of free ones. It sets them
// if none were set. After an error none are added.
func (s *Semaphore) AddPermits(ctx context.Context, n int) error {
	_, err := changeOnce(ctx, coreOf(s), checkAdded(n), func(op protocol.Op) protocol.Request[bool] { return s.proto.Change(op, protocol.AddPermits, n) }, s.undo)
	return err
}

// SetPermits sets the number of permits, from 1 to MaxPermits, regardless of what it was. If more are
// taken, the number of free ones is negative. If Java has set the permits, or more are free than were set,
// it changes nothing and the error matches ErrTotalUnknown. For unknown outcomes see TrySetPermits.
func (s *Semaphore) SetPermits(ctx context.Context, n int) error {
	known, err := changeOnce(ctx, coreOf(s), checkCount("SetPermits", n), func(op protocol.Op) protocol.Request[bool] { return s.proto.Change(op, protocol.SetPermits, n) }, nil)
	if err == nil && !known {
		err = coreOf(s).error(ErrTotalUnknown)
	}
	return err
}

// Acquire takes n permits, and waits until as many are free. Errors are as from CountDownLatch.Wait,
// and ErrNotSet. After an error none are taken.
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...WaitOption) error {
	return s.acquire(ctx, "Acquire", n, true, opts)
}

// TryAcquire takes n free permits, or returns ErrNotAcquired or ErrNotSet.
func (s *Semaphore) TryAcquire(ctx context.Context, n int) error {
	return s.acquire(ctx, "TryAcquire", n, false, nil)
}

// Release puts n permits back, and sets them if none were set. Like Lease.Unlock it works after the end
// of ctx, and is repeated in the background after ErrUnconfirmed. More than MaxPermits are refused.
func (s *Semaphore) Release(ctx context.Context, n int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := coreOf(s).check(ctx, checkCount("Release", n)); err != nil {
		return err
	}
	err := changeUntilConfirmed(ctx, coreOf(s), func(op protocol.Op) protocol.Task { return s.proto.Release(op, int64(n)) })
	if events := coreOf(s).c.events; events.observer != nil {
		e := coreOf(s).event()
		e.Permits = n
		events.unlocked(ctx, UnlockEvent{Event: e, Err: err})
	}
	return err
}

// Drain takes all free permits, and returns their number; after an error none.
func (s *Semaphore) Drain(ctx context.Context) (int, error) {
	n, err := changeOnce(ctx, coreOf(s), nil, func(op protocol.Op) protocol.Request[int64] { return s.proto.Drain(op) }, s.undo)
	return int(n), err
}

// Available returns how many permits are free: 0 if none were set, negative if AddPermits or SetPermits
// removed more than were free.
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	r, err := ask(ctx, coreOf(s), func() protocol.Request[int64] { return s.proto.Available() })
	return int(r.Outcome), err
}

// SemaphoreState is what Redis shows of a Semaphore at one moment.
type SemaphoreState struct {
	Set       bool // the number of permits was set
	Known     bool // the number of permits is known: see SetPermits
	Permits   int  // number of permits, free or not, if known; else 0
	Available int  // how many are free; less than 0 if more are taken than there are
	Waiters   int  // in this client, without those that need more permits than there are
}

// State returns how many permits there are, and how many of them are free.
func (s *Semaphore) State(ctx context.Context) (SemaphoreState, error) {
	r, err := ask(ctx, coreOf(s), func() protocol.Request[protocol.Permitted] { return s.proto.Inspect() })
	if err != nil {
		return SemaphoreState{}, err
	}
	p := &r.Outcome
	return SemaphoreState{p.Set, p.Counted, int(p.All), int(p.Free), coreOf(s).waiters()}, nil
}

// Delete deletes the semaphore, and reports whether there was one. Waiters get ErrNotSet. Do not release
// permits that were taken before: that sets some.
func (s *Semaphore) Delete(ctx context.Context) (bool, error) {
	return changeOnce(ctx, coreOf(s), nil, func(op protocol.Op) protocol.Request[bool] { return s.proto.Delete(op) }, nil)
}

func (s *Semaphore) undo(op protocol.Op) protocol.Task { return s.proto.Undo(op) }

func (s *Semaphore) acquire(caller context.Context, method string, n int, wait bool, opts []WaitOption) error {
	l := coreOf(s)
	if err := l.check(caller, checkCount(method, n)); err != nil {
		return err
	}
	a := &taking{s: s}
	a.Need, a.crowded, a.sentinel = int64(n), s.proto, ErrNotAcquired
	return a.find(caller, l, l.id(), a, wait, opts)
}

// taking is one Acquire or TryAcquire. Its requests are one operation, which takes the permits once, even if several
// arrive. When the operation is given up, the next request, if there is one, begins another.
type taking struct {
	inquiry
	s            *Semaphore
	page         *protocol.Page
	op           protocol.Op
	lateCopies   bool // a copy of a request may still arrive
	mayHaveTaken bool // a request may have taken the permits
}

func (a *taking) poll(ctx context.Context) found {
	c := a.c
	if err := c.wire.Ready(ctx); err != nil {
		return found{err: err}
	}
	if a.page == nil {
		a.page = c.pages.Take(c.id)
		a.op = a.page.Next()
	}
	r := a.s.proto.Acquire(a.op, a.Need, a.publishesLeft).Do(ctx, c.onceTimeout())
	a.lateCopies = a.lateCopies || r.Unsure
	if r.Err != nil {
		a.mayHaveTaken = a.mayHaveTaken || wire.MayHaveRun(r.Err)
		return found{err: r.Err}
	}
	switch r.Outcome.Verdict {
	case protocol.Granted:
		a.mayHaveTaken = true
		c.env.StopOf("granted", a.Who)
		if c.isClosing() {
			return found{err: ErrClosed}
		}
		c.pages.Give(a.page)
		return found{done: true, remaining: r.Outcome.Free}
	case protocol.Busy:
		if a.lateCopies {
			a.giveUp() // a late copy would take permits, and its reply would be lost
		}
		t := r.Outcome.Supply
		return found{rest: -1, status: wait.Status{Semaphore: true, Supply: t}, oversized: t.Counted && a.Need > t.All}
	case protocol.NotSet:
		return found{err: ErrNotSet}
	}
	return found{err: errWithdrawn}
}

func (a *taking) giveUp() (answered bool) {
	if a.page == nil {
		return false
	}
	p, op, effect := a.page, a.op, a.lateCopies || a.mayHaveTaken
	a.page, a.lateCopies, a.mayHaveTaken = nil, false, false // the next request is a new operation
	return a.c.forget(a.lock, p, effect, func() protocol.Task { return a.s.undo(op) })
}

func (a *taking) listen(func()) (end func()) { return nil } // see inquiry.crowded

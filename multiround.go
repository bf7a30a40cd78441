package rlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

const (
	// multiTries is how often a MultiLock tries to acquire all members together after a round has
	// ended, before it again holds some members while it waits for others.
	multiTries = 10

	// multiRestarts is how often a MultiLock starts over because a member was lost before all
	// were held. If that happens more often, the lease is too short.
	multiRestarts = 5
)

// memberRound acquires all members of a MultiLock, in one or more rounds.
type memberRound struct {
	m        *MultiLock
	opts     []AcquireOption // options of the members' Lock
	tries    []TryOption     // options of the members' TryLock
	cfg      acquireConfig
	deadline time.Time // when the wait ends; zero without a limit
	outer    *chain    // chain of the caller's context

	leases []*Lease // leases of the members acquired so far
	chain  *chain   // outer, and the holds of leases: no member waits for another
	// blocked is the index of the member that was not free while others were held, or -1. In the next
	// triesLeft rounds, the MultiLock waits for this member first, and only tries the others.
	blocked, triesLeft int
	reported           error                     // error reported to an Observer; see together
	restarts           int                       // restarts after the loss of a member
	keepers            sync.WaitGroup            // goroutines that extend leases; see add
	closed             context.CancelCauseFunc   // ends the waiting
	callerEnded        atomic.Pointer[time.Time] // when the caller's context ended; nil until that is noticed
}

// errAgain makes run give back the members that are held, and start over.
var errAgain = errors.New("not all members were free at once")

// lockAll is Lock and TryLock of a MultiLock.
func lockAll[O callOption](ctx context.Context, m *MultiLock, wait bool, opts []O) (*Lease, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	r := memberRound{m: m, blocked: -1}
	if err := readOptions(&r.cfg, opts); err != nil {
		return nil, m.error(err)
	}
	return r.lock(ctx, wait)
}

func (r *memberRound) lock(ctx context.Context, wait bool) (*Lease, error) {
	m := r.m
	if r.cfg.hasLease {
		if err := checkLease("WithLease", r.cfg.lease); err != nil {
			return nil, m.error(err)
		}
		o := WithLease(r.cfg.lease)
		r.opts, r.tries = append(r.opts, o), append(r.tries, o)
	}
	if r.cfg.hasWait {
		r.deadline = time.Now().Add(r.cfg.wait)
		wait = wait && r.cfg.wait > 0
		r.opts = append(r.opts, partOption(r.cfg.wait))
	}
	if !wait {
		r.deadline = time.Time{} // each member is tried once, no matter how long that takes
	}
	if wait {
		r.tries = append(r.tries, againOption{})
	}
	var read acquireConfig
	for _, l := range m.members {
		if l, ok := l.(hasCore); ok {
			read = acquireConfig{}
			if err := options(l.cored(), &read, r.opts); err != nil {
				return nil, m.error(l.cored().error(err)) // before any request is sent
			}
		}
	}
	r.outer = chainFrom(ctx)
	r.chain = r.outer
	returned := false
	defer func() {
		if !returned { // a member of a type of the caller has panicked
			r.undo(ctx)
		}
	}()
	lease, err := r.run(ctx, wait)
	returned = true
	return lease, err
}

// below returns ctx with the holds of the members that were acquired.
func (r *memberRound) below(ctx context.Context) context.Context {
	_, innermost := descentOf(ctx)
	return r.chain.in(ctx, innermost)
}

// run takes all members, round after round.
func (r *memberRound) run(ctx context.Context, wait bool) (*Lease, error) {
	m := r.m
	for {
		err := r.take(ctx, wait)
		if err == nil {
			return newMultiHold(m.name, r.leases), nil
		}
		r.undo(ctx)
		if !errors.Is(err, errAgain) {
			return nil, m.error(err)
		}
		// A peer may have held what this call needs, and need what this call held, and may have
		// given back at the same moment. The two must not start over together.
		if err := r.pause(ctx); err != nil {
			return nil, m.error(err)
		}
	}
}

// take acquires all members. On error r.leases has the leases to undo.
func (r *memberRound) take(ctx context.Context, wait bool) error {
	if r.blocked < 0 {
		done, err := r.together(ctx, wait)
		hasTime := ctx.Err() == nil && (r.deadline.IsZero() || time.Now().Before(r.deadline))
		if wait && hasTime && err != nil && worthRepeating(err) {
			r.undo(ctx)
			err = nil // the members' Lock tolerates such an error for longer
		}
		if done || err != nil {
			return err
		}
	}
	// If the client of a held member shuts down while this call waits for another
	// member, the wait ends, because the Shutdown waits for the held member.
	caller := ctx
	defer context.AfterFunc(caller, func() { now := time.Now(); r.callerEnded.Store(&now) })()
	ctx, r.closed = context.WithCancelCause(seam.InGroup(ctx))
	defer r.closed(nil)
	holding, cancel := context.WithCancel(ctx)
	stop := func() {
		cancel()
		r.keepers.Wait()
	}
	defer stop()
	var err error
	if r.blocked < 0 {
		err = r.inOrder(ctx, holding, wait)
	} else {
		err = r.around(ctx, holding)
	}
	if err != nil && caller.Err() == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	stop()
	if err := r.complete(ctx, wait); err != nil {
		return err
	}
	if first := r.blocked; first > 0 { // its lease is first in r.leases
		r.leases = slices.Insert(slices.Clone(r.leases[1:]), first, r.leases[0])
	}
	return nil
}

// inOrder acquires one member after the other. It holds the acquired members while it waits for the next,
// until the round ends.
func (r *memberRound) inOrder(ctx, holding context.Context, wait bool) error {
	if !wait {
		_, err := r.tryOthers(ctx, holding, -1)
		return err
	}
	var limit time.Time // end of this round; set when a member is held
	for i, l := range r.m.members {
		end := earlier(r.deadline, limit)
		opts := r.until(end)
		if !limit.IsZero() && end.Equal(limit) {
			opts = append(opts, againOption{}) // of its own
		}
		lease, err := l.Lock(r.below(ctx), opts...)
		if err != nil {
			now := time.Now()
			if ctx.Err() == nil && (errors.Is(err, ErrNotAcquired) || worthRepeating(err)) &&
				!limit.IsZero() && !now.Before(limit) && (r.deadline.IsZero() || now.Before(r.deadline)) {
				r.blocked, r.triesLeft = i, multiTries
				return errAgain
			}
			return err
		}
		if err := r.add(holding, l, lease); err != nil {
			return err
		}
		if limit.IsZero() {
			limit = time.Now().Add(r.m.roundTime * time.Duration(len(r.m.members)))
		}
	}
	return nil
}

// around waits for the blocked member while it holds no other member, and then acquires the other members
// if they are free. If it waited for them too, it would keep the blocked member from a
// peer that acquires the members in order.
func (r *memberRound) around(ctx, holding context.Context) error {
	first := r.blocked
	lease, err := r.m.members[first].Lock(ctx, r.until(r.deadline)...)
	if err != nil {
		return err
	}
	if err := r.add(holding, r.m.members[first], lease); err != nil {
		return err
	}
	failed, err := r.tryOthers(ctx, holding, first)
	if err == nil || ctx.Err() != nil || !errors.Is(err, ErrNotAcquired) && !worthRepeating(err) {
		return err
	}
	r.blocked = failed
	if r.triesLeft--; r.triesLeft == 0 {
		r.blocked = -1
	}
	return errAgain
}

// tryOthers acquires all members except one, if they are free. It returns the index of the first member that is not
// free, and its error.
func (r *memberRound) tryOthers(ctx, holding context.Context, but int) (failed int, err error) {
	for i, l := range r.m.members {
		if i == but {
			continue
		}
		lease, err := l.TryLock(r.below(ctx), r.tries...)
		if err == nil {
			err = r.add(holding, l, lease)
		}
		if err != nil {
			return i, err
		}
	}
	return 0, nil
}

// until returns the options of a member's Lock, which ends at a time unless that is zero.
func (r *memberRound) until(end time.Time) []AcquireOption {
	if end.IsZero() {
		return r.opts
	}
	return append(slices.Clone(r.opts), WithWait(max(time.Until(end), 0)))
}

// earlier returns the earlier of two times. A zero time stands for never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// add records that a member is held. If its lease is fixed, add extends it until all members are held.
// Each member has a goroutine for that, so that a server that hangs does not delay
// the other members.
func (r *memberRound) add(holding context.Context, member Locker, l *Lease) error {
	if l.none() {
		return fmt.Errorf("the member %.100q, a %T, returned neither a lease nor an error: %w", member.Name(), member, ErrNotHeld)
	}
	r.leases = append(r.leases, l)
	r.chain = l.chain(r.chain)
	closed := r.closed
	forget := l.onEnd(func(cause error) {
		if onlyClosed(cause) {
			closed(cause)
		}
	})
	context.AfterFunc(holding, forget)
	if !r.cfg.hasLease {
		return nil
	}
	r.keepers.Go(func() {
		tick := time.NewTicker(r.cfg.lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-holding.Done():
				return
			case <-tick.C:
				_ = l.Extend(holding, r.cfg.lease) // complete detects a loss
			}
		}
	})
	return nil
}

// complete makes sure that all members are held, for the requested lease.
func (r *memberRound) complete(ctx context.Context, wait bool) error {
	bounded, cancel := r.bound(ctx)
	defer cancel()
	began := time.Now()
	newest := r.leases[len(r.leases)-1]
	err := each(r.leases, func(l *Lease) error {
		if r.cfg.hasLease && l != newest {
			return l.Extend(bounded, r.cfg.lease)
		}
		return l.Err()
	})
	for _, l := range r.leases {
		// Extending the other members takes time, and a lease may have ended meanwhile.
		if err == nil {
			err = l.Err()
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err // the end of ctx has cut off an Extend
	case ctx.Err() != nil:
		return endOf(ctx)
	case bounded.Err() != nil:
		return timedOut(r.cfg.wait, time.Since(began), r.m.grace())
	case !errors.Is(err, ErrLeaseLost) && !worthRepeating(err):
		return err
	case wait && r.restarts < multiRestarts:
		// The caller did not hold the lost member before, so nothing was promised
		// yet. If the caller held it, the next round reports the loss.
		r.restarts++
		return errAgain
	case noAnswer(err):
		return err
	}
	return because(ErrNotAcquired, err)
}

// bound returns ctx with the end of the wait as its deadline.
func (r *memberRound) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, r.deadline)
}

// undo gives back the acquired members. It waits only a short time for that, and the rest continues in the
// background. A member that was stopped by the end of the wait may have used up that time already.
func (r *memberRound) undo(ctx context.Context) {
	if len(r.leases) == 0 {
		return
	}
	done := giveBack(ctx, r.leases)
	r.leases, r.chain = nil, r.outer
	waitEnd := endedSince(ctx, 0)
	if !r.deadline.IsZero() && r.deadline.Before(waitEnd) {
		waitEnd = r.deadline
	}
	if at := r.callerEnded.Load(); at != nil {
		waitEnd = *at
	}
	grace := time.NewTimer(protocol.GiveUpGrace - time.Since(waitEnd))
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// pause sleeps for a random time between two rounds.
func (r *memberRound) pause(ctx context.Context) error {
	t := time.NewTimer(rand.N(20 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return because(ErrNotAcquired, endOf(ctx)) // a member was not free
	}
}

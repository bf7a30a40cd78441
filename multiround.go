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
	// multiTries is how often, after a round has ended, a MultiLock tries to get all
	// members together before it holds some again while it waits.
	multiTries = 10

	// multiRestarts is how often it starts over because a member was lost before all
	// were held. If that happens more often, the lease is too short.
	multiRestarts = 5
)

// round tries to take all members, again and again.
type round struct {
	m     *MultiLock
	opts  []AcquireOption // of the members' Lock
	tries []TryOption     // of their TryLock
	given acquireConfig
	end   time.Time // when the wait is over; zero: never
	outer *chain    // of the caller's context

	leases []*Lease // of the members taken so far
	chain  *chain   // outer and their holds: no member waits for another
	// blocked is the member that was not free while others were held, or -1. The next
	// rounds wait for it first and only try the others, this many times.
	blocked, left int
	reported      error                     // to an Observer; see together
	restarts      int                       // after a member was lost
	keepers       sync.WaitGroup            // see add
	closed        context.CancelCauseFunc   // ends the waiting
	over          atomic.Pointer[time.Time] // when the caller's context has ended; nil: that was not seen
}

// errAgain has run give back what is held, and start over.
var errAgain = errors.New("not all members were free at once")

// lockAll is Lock and TryLock of a MultiLock.
func lockAll[O callOption](ctx context.Context, m *MultiLock, wait bool, opts []O) (*Lease, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	r := round{m: m, blocked: -1}
	if err := given(&r.given, opts); err != nil {
		return nil, m.error(err)
	}
	return r.lock(ctx, wait)
}

func (r *round) lock(ctx context.Context, wait bool) (*Lease, error) {
	m := r.m
	if r.given.hasLease {
		if err := checkLease("WithLease", r.given.lease); err != nil {
			return nil, m.error(err)
		}
		o := WithLease(r.given.lease)
		r.opts, r.tries = append(r.opts, o), append(r.tries, o)
	}
	if r.given.hasWait {
		r.end = time.Now().Add(r.given.wait)
		wait = wait && r.given.wait > 0
		r.opts = append(r.opts, partOption(r.given.wait))
	}
	if !wait {
		r.end = time.Time{} // each member is tried once, however long that takes
	}
	if wait {
		r.tries = append(r.tries, againOption{})
	}
	var read acquireConfig
	for _, l := range m.members {
		if l, ok := l.(hasCore); ok {
			read = acquireConfig{}
			if err := options(l.cored(), &read, r.opts); err != nil {
				return nil, m.error(l.cored().error(err)) // before anything is sent
			}
		}
	}
	r.outer = chainFrom(ctx)
	r.chain = r.outer
	over := false
	defer func() {
		if !over { // a member, of a type of the caller's, has panicked
			r.undo(ctx)
		}
	}()
	lease, err := r.run(ctx, wait)
	over = true
	return lease, err
}

// below is ctx with the holds of the members that were taken.
func (r *round) below(ctx context.Context) context.Context {
	_, innermost := descentOf(ctx)
	return r.chain.in(ctx, innermost)
}

// run takes all members, round after round.
func (r *round) run(ctx context.Context, wait bool) (*Lease, error) {
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
		// A peer that held what this one needs, and needs what this one held, may have
		// given back in the same moment: the two must not start over together.
		if err := r.pause(ctx); err != nil {
			return nil, m.error(err)
		}
	}
}

// take takes all members, or leaves in r.leases what has to be undone.
func (r *round) take(ctx context.Context, wait bool) error {
	if r.blocked < 0 {
		done, err := r.together(ctx, wait)
		open := ctx.Err() == nil && (r.end.IsZero() || time.Now().Before(r.end))
		if wait && open && err != nil && worthRepeating(err) {
			r.undo(ctx)
			err = nil // the members' Lock outlasts that for longer
		}
		if done || err != nil {
			return err
		}
	}
	// If the client of a member that is held shuts down while another member is
	// waited for, the waiting ends: the Shutdown waits for what is held.
	caller := ctx
	defer context.AfterFunc(caller, func() { now := time.Now(); r.over.Store(&now) })()
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
	if first := r.blocked; first > 0 { // it was taken first
		r.leases = slices.Insert(slices.Clone(r.leases[1:]), first, r.leases[0])
	}
	return nil
}

// inOrder takes one member after the other, and holds them while it waits for the next,
// until the round is over.
func (r *round) inOrder(ctx, holding context.Context, wait bool) error {
	if !wait {
		_, err := r.tryOthers(ctx, holding, -1)
		return err
	}
	var limit time.Time // of this round, once something is held
	for i, l := range r.m.members {
		end := earlier(r.end, limit)
		opts := r.until(end)
		if !limit.IsZero() && end.Equal(limit) {
			opts = append(opts, againOption{}) // of its own
		}
		lease, err := l.Lock(r.below(ctx), opts...)
		if err != nil {
			now := time.Now()
			if ctx.Err() == nil && (errors.Is(err, ErrNotAcquired) || worthRepeating(err)) &&
				!limit.IsZero() && !now.Before(limit) && (r.end.IsZero() || now.Before(r.end)) {
				r.blocked, r.left = i, multiTries
				return errAgain
			}
			return err
		}
		if err := r.add(holding, l, lease); err != nil {
			return err
		}
		if limit.IsZero() {
			limit = time.Now().Add(r.m.round * time.Duration(len(r.m.members)))
		}
	}
	return nil
}

// around waits for the blocked member while it holds no other, and then takes the rest
// if it is free. If it waited for the rest too, it would keep the blocked member from a
// peer that takes the members in this order.
func (r *round) around(ctx, holding context.Context) error {
	first := r.blocked
	lease, err := r.m.members[first].Lock(ctx, r.until(r.end)...)
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
	if r.left--; r.left == 0 {
		r.blocked = -1
	}
	return errAgain
}

// tryOthers takes all members but one if they are free. It returns the first that is not, and why.
func (r *round) tryOthers(ctx, holding context.Context, but int) (failed int, err error) {
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

// until is the options of a member's Lock that ends at a time, if there is one.
func (r *round) until(end time.Time) []AcquireOption {
	if end.IsZero() {
		return r.opts
	}
	return append(slices.Clone(r.opts), WithWait(max(time.Until(end), 0)))
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// add notes that a member is held, and extends its lease until all are held, if it is a
// fixed one. Each member has a goroutine for that, so that a server that hangs costs no
// other member.
func (r *round) add(holding context.Context, of Locker, l *Lease) error {
	if l.none() {
		return fmt.Errorf("the member %.100q, a %T, returned neither a lease nor an error: %w", of.Name(), of, ErrNotHeld)
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
	if !r.given.hasLease {
		return nil
	}
	r.keepers.Go(func() {
		tick := time.NewTicker(r.given.lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-holding.Done():
				return
			case <-tick.C:
				_ = l.Extend(holding, r.given.lease) // a loss shows at the end
			}
		}
	})
	return nil
}

// complete makes sure that all members are held, and for as long as was asked.
func (r *round) complete(ctx context.Context, wait bool) error {
	bounded, cancel := r.bound(ctx)
	defer cancel()
	began := time.Now()
	newest := r.leases[len(r.leases)-1]
	err := each(r.leases, func(l *Lease) error {
		if r.given.hasLease && l != newest {
			return l.Extend(bounded, r.given.lease)
		}
		return l.Err()
	})
	for _, l := range r.leases {
		// It took its time to extend the others, and a lease may be over meanwhile.
		if err == nil {
			err = l.Err()
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err // of an Extend that it has cut off
	case ctx.Err() != nil:
		return endOf(ctx)
	case bounded.Err() != nil:
		return timedOut(r.given.wait, time.Since(began), r.m.grace())
	case !errors.Is(err, ErrLeaseLost) && !worthRepeating(err):
		return err
	case wait && r.restarts < multiRestarts:
		// A member was lost that the caller did not hold before: nothing was promised
		// yet. (If the caller held it, the next round reports the loss.)
		r.restarts++
		return errAgain
	case noAnswer(err):
		return err
	}
	return because(ErrNotAcquired, err)
}

// bound returns ctx with the end of the wait.
func (r *round) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.end.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, r.end)
}

// undo gives back what was taken. It waits for that, but only for a short time; then the
// background finishes it. A member that the end of the wait has stopped may have waited so already.
func (r *round) undo(ctx context.Context) {
	if len(r.leases) == 0 {
		return
	}
	done := giveBack(ctx, r.leases)
	r.leases, r.chain = nil, r.outer
	over := overSince(ctx, 0)
	if !r.end.IsZero() && r.end.Before(over) {
		over = r.end
	}
	if at := r.over.Load(); at != nil {
		over = *at
	}
	grace := time.NewTimer(protocol.GiveUpGrace - time.Since(over))
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// pause puts a random time between two rounds.
func (r *round) pause(ctx context.Context) error {
	t := time.NewTimer(rand.N(20 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return because(ErrNotAcquired, endOf(ctx)) // a member was not free
	}
}

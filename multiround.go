package rlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// multiTries is how often, after a round has ended, a MultiLock tries to
	// have all members at once before it keeps some again while it waits.
	multiTries = 10

	// multiRestarts is how often it begins again because a member was lost
	// before all were held. More often than by accident, the lease is too short.
	multiRestarts = 5
)

// round is one try after the other to take all members.
type round struct {
	m     *MultiLock
	opts  []AcquireOption // for the members
	given acquireConfig
	end   time.Time // when the wait is over; zero: never
	outer *chain    // of the caller's context

	leases []*Lease // of the members taken so far
	chain  *chain   // outer and their holds: no member waits for another
	// blocked is the member that could not be had while others were kept, or -1.
	// It is waited for first then, and the others are only tried, so often.
	blocked, tries int
	restarts       int                     // after a member was lost
	keepers        sync.WaitGroup          // see add
	closed         context.CancelCauseFunc // ends the waiting
}

// errAgain: what is held is to be given back, and all to begin again.
var errAgain = errors.New("not all members were to be had at once")

func (m *MultiLock) lock(ctx context.Context, wait bool, opts []AcquireOption) (*Lease, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	var given acquireConfig
	if err := apply(opts, &given); err != nil {
		return nil, m.error(err)
	}
	switch {
	case given.hasWait && !wait:
		return nil, m.error(errTryWait)
	case given.wait < 0:
		return nil, m.error(invalid("WithWait(%v): negative", given.wait))
	case given.hasLease:
		if err := checkLease("WithLease", given.lease); err != nil {
			return nil, m.error(err)
		}
	}
	r := round{m: m, given: given, blocked: -1}
	if given.hasWait {
		r.end = time.Now().Add(given.wait)
		wait = given.wait > 0
	}
	r.opts = append(slices.Clone(opts), func(a *acquireConfig) { a.hasWait = false })
	if !wait {
		r.end = time.Time{} // one look, which takes what it takes
	}
	r.outer = chainFrom(ctx)
	r.chain = r.outer
	for {
		err := r.take(ctx, wait)
		if err == nil {
			return newGroup(m.name, r.leases), nil
		}
		r.undo(ctx)
		if !errors.Is(err, errAgain) {
			return nil, m.error(err)
		}
		// Those who had what this one wanted, and want what it had, may have
		// given up in the same moment: they do not begin again in the same.
		if err := r.pause(ctx); err != nil {
			return nil, m.error(err)
		}
	}
}

// take takes all members, or leaves in r.leases what has to be undone.
func (r *round) take(ctx context.Context, wait bool) error {
	if r.blocked < 0 {
		done, err := r.together(ctx, wait)
		if wait && err != nil && worthRepeating(err) && !errors.Is(err, ErrNotAcquired) {
			r.undo(ctx)
			err = nil // the members' Lock bears that for longer
		}
		if done || err != nil {
			return err
		}
	}
	// If the client of a member that is held shuts down while another member is
	// waited for, the waiting ends: the Shutdown waits for what is held.
	caller := ctx
	ctx, r.closed = context.WithCancelCause(ctx)
	defer r.closed(nil)
	kept, cancel := context.WithCancel(ctx)
	stop := func() {
		cancel()
		r.keepers.Wait()
	}
	defer stop()
	var err error
	if r.blocked < 0 {
		err = r.inOrder(ctx, kept, wait)
	} else {
		err = r.around(ctx, kept)
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

// inOrder takes one member after the other, and keeps them while it waits for the
// next, until the round is over.
func (r *round) inOrder(ctx, kept context.Context, wait bool) error {
	var limit time.Time // of this round, once something is held
	for i, l := range r.m.members {
		if !wait {
			lease, err := l.TryLock(r.chain.in(ctx), r.opts...)
			if err != nil {
				return err
			}
			r.add(kept, lease)
			continue
		}
		lease, err := l.Lock(r.chain.in(ctx), r.until(earlier(r.end, limit))...)
		if err != nil {
			now := time.Now()
			if ctx.Err() == nil && errors.Is(err, ErrNotAcquired) &&
				!limit.IsZero() && !now.Before(limit) && (r.end.IsZero() || now.Before(r.end)) {
				r.blocked, r.tries = i, multiTries
				return errAgain
			}
			return err
		}
		r.add(kept, lease)
		if limit.IsZero() {
			limit = time.Now().Add(DefaultMultiLockRound * time.Duration(len(r.m.members)))
		}
	}
	return nil
}

// around waits for the member that was not to be had, with empty hands, and then
// takes the rest if it is free. To wait for that too would be to keep this one
// from a peer who has the order that this is.
func (r *round) around(ctx, kept context.Context) error {
	first := r.blocked
	lease, err := r.m.members[first].Lock(ctx, r.until(r.end)...)
	if err != nil {
		return err
	}
	r.add(kept, lease)
	for i, l := range r.m.members {
		if i == first {
			continue
		}
		lease, err := l.TryLock(r.chain.in(ctx), r.opts...)
		if err != nil {
			if ctx.Err() != nil || !errors.Is(err, ErrNotAcquired) && !worthRepeating(err) {
				return err
			}
			r.blocked = i
			if r.tries--; r.tries == 0 {
				r.blocked = -1
			}
			return errAgain
		}
		r.add(kept, lease)
	}
	return nil
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

// add notes that a member is held, and keeps it until all are. A lease that is
// renewed needs no help; a fixed one is extended, each by itself, so that a
// server that hangs costs no other member.
func (r *round) add(kept context.Context, l *Lease) {
	r.leases = append(r.leases, l)
	r.chain = l.of.chain(r.chain)
	closed := r.closed
	forget := l.onEnd(func(cause error) {
		if onlyClosed(cause) {
			closed(cause)
		}
	})
	context.AfterFunc(kept, forget)
	if !r.given.hasLease {
		return
	}
	r.keepers.Go(func() {
		tick := time.NewTicker(r.given.lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-kept.Done():
				return
			case <-tick.C:
				_ = l.Extend(kept, r.given.lease) // a loss shows at the end
			}
		}
	})
}

// complete sees to it that all members are held, and for as long as was asked.
func (r *round) complete(ctx context.Context, wait bool) error {
	asked, cancel := r.bound(ctx)
	defer cancel()
	newest := r.leases[len(r.leases)-1]
	err := each(r.leases, func(l *Lease) error {
		if r.given.hasLease && l != newest {
			return l.Extend(asked, r.given.lease)
		}
		return l.Err()
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx)
	case asked.Err() != nil:
		return fmt.Errorf("%w: timed out after %v", ErrNotAcquired, r.given.wait)
	case !errors.Is(err, ErrLeaseLost) && !worthRepeating(err):
		return err
	case wait && r.restarts < multiRestarts:
		// A member was lost that the caller did not have before: nothing was
		// promised yet. (If the caller had it, the next round says so.)
		r.restarts++
		return errAgain
	}
	return because(ErrNotAcquired, err)
}

// bound is the context of what must not take longer than the wait.
func (r *round) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.end.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, r.end)
}

// undo gives back what was taken. It waits for that, but not for long: what takes
// longer goes on in the background.
func (r *round) undo(ctx context.Context) {
	if len(r.leases) == 0 {
		return
	}
	var wg sync.WaitGroup
	for _, l := range r.leases {
		wg.Add(1)
		l.giveBack(ctx, wg.Done)
	}
	r.leases, r.chain = nil, r.outer
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	grace := time.NewTimer(giveUpGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// giveBack unlocks in the background, where Shutdown waits for it. What fails is
// repeated by the watchdog.
func (l *Lease) giveBack(ctx context.Context, done func()) {
	c := l.of.client()
	c.calls.Add(1)
	c.wire.Go(func() {
		defer c.end()
		defer done()
		_ = l.Unlock(ctx)
	})
}

// pause puts a random time between two rounds.
func (r *round) pause(ctx context.Context) error {
	t := time.NewTimer(rand.N(20 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

package rlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// group is what the lease of a MultiLock is of: the leases of its members. It
// lasts as long as all of them do.
type group struct {
	guard
	name    string
	members []*Lease // in the order of the MultiLock
	lease   *Lease
	over    atomic.Bool // it has ended: nobody needs to hear of the members' ends
}

var _ holding = (*group)(nil)

func newGroup(name string, members []*Lease) *Lease {
	g := &group{name: name, members: members}
	g.lease = &Lease{of: g, g: &g.guard, since: g.client().clock.Now()}
	for _, l := range members {
		l.onEnd(func(cause error) {
			if g.over.Load() {
				return
			}
			// From a goroutine of its own: whoever ends a member may be looking at
			// the group, with its guard locked.
			g.client().background(func() { g.lost(cause) })
		})
	}
	return g.lease
}

func (g *group) client() *Client  { return g.members[0].of.client() }
func (g *group) lockName() string { return g.name }
func (g *group) ownerID() string  { return g.members[0].Owner() }

func (g *group) chain(up *chain) *chain {
	for _, l := range g.members {
		up = l.of.chain(up)
	}
	return up
}

// fence grows from hold to hold of the same members, because the token of each
// does.
func (g *group) fence() (token int64) {
	for _, l := range g.members {
		token = max(token, l.Token())
	}
	return token
}

func (g *group) deadlineLocked() time.Time {
	end := g.members[0].Deadline()
	for _, l := range g.members[1:] {
		if d := l.Deadline(); d.Before(end) {
			end = d
		}
	}
	return end
}

func (g *group) checkLocked(time.Time) {
	for _, l := range g.members {
		if err := l.Err(); err != nil {
			g.endLocked(err)
		}
	}
}

// lost ends the group with the end of a member.
func (g *group) lost(cause error) {
	g.lock()
	g.endLocked(cause)
	g.unlock()
}

// endLocked ends the lease because a member has ended. What is left of the
// others protects nothing any more: it is given back. But a member whose client
// shuts down is still held, and all of them are until the holder unlocks.
func (g *group) endLocked(cause error) {
	if g.over.Load() {
		return
	}
	g.lease.endLocked(cause)
	if onlyClosed(cause) {
		return
	}
	g.over.Store(true)
	for _, l := range g.members {
		l.giveBack(context.Background(), func() {})
	}
}

func (g *group) extend(ctx context.Context, _ *Lease, d time.Duration) error {
	err := each(g.members, func(l *Lease) error { return l.Extend(ctx, d) })
	if err != nil {
		// A member that is lost ends the whole, and the others with it: they may say
		// that they were unlocked.
		if why := g.lease.Err(); why != nil {
			return why
		}
	}
	return err
}

func (g *group) release(ctx context.Context, l *Lease, called time.Time) error {
	g.lock()
	g.checkLocked(called)
	if err := l.err; err != nil && !onlyClosed(err) {
		g.unlock()
		return err
	}
	l.endLocked(ErrUnlocked)
	g.over.Store(true)
	g.unlock()
	err := unlockAll(ctx, g.members)
	// A loss has one cause: of several members that were lost, that of the first.
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			if errors.Is(one, ErrLeaseLost) {
				return one
			}
		}
	}
	return err
}

// unlockAll unlocks leases side by side, of those that Locks of one Client and
// cluster slot have by one script. What was unlocked before counts as done: by
// its owner, who has it from Members.
func unlockAll(ctx context.Context, leases []*Lease) error {
	type place struct {
		c    *Client
		slot string
	}
	parties := map[place][]int{} // by their indexes
	for i, l := range leases {
		var at place
		if h, ok := l.of.(*hold); ok {
			if p, ok := h.core.protocol.(plain); ok {
				at = place{p.c, p.keys.clock}
			}
		}
		parties[at] = append(parties[at], i)
	}
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for at, party := range parties {
		if at.c != nil && len(party) > 1 {
			wg.Go(func() { unlockTogether(ctx, leases, party, errs) })
			continue
		}
		for _, i := range party {
			wg.Go(func() { errs[i] = leases[i].Unlock(ctx) })
		}
	}
	wg.Wait()
	for i, err := range errs {
		if errors.Is(err, ErrUnlocked) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// unlockTogether unlocks some of the leases, by one script as far as nothing else is
// done at their locks and nobody has entered these more often.
func unlockTogether(ctx context.Context, leases []*Lease, party []int, errs []error) {
	c := leases[party[0]].of.client()
	limit := time.Now().Add(c.cfg.unlockTimeout)
	var wg sync.WaitGroup
	defer wg.Wait()
	var last []*departure
	var who []int // whose they are
	single := func(i int, d *departure) {
		wg.Go(func() {
			err := d.send(ctx, limit)
			d.end()
			errs[i] = leases[i].told(err)
		})
	}
	for _, i := range party {
		l, h := leases[i], leases[i].of.(*hold)
		called, first := l.claim()
		if !first {
			continue
		}
		// To wait for the turn of one is to keep the turns of others.
		if !h.turn.tryTake() {
			wg.Go(func() { errs[i] = l.told(h.release(ctx, l, called)) })
			continue
		}
		if d := h.depart(l, called, true); d.r == nil || d.rest > 0 {
			single(i, d)
		} else {
			last, who = append(last, d), append(who, i)
		}
	}
	if len(last) < 2 {
		for j, d := range last {
			single(who[j], d)
		}
		return
	}
	a := c.call(ctx, untilOrSoon(limit), releaseAll(last))
	verdicts, err := a.verdicts(len(last))
	for j, d := range last {
		if err != nil && time.Now().Before(limit) {
			// One of the locks is not what it was, or not where the others are, or the
			// server does not take it now: each is released by itself, which bears more.
			d.unsure = a.unsure || !notExecuted(err) && !neverRan(err)
			single(who[j], d)
			continue
		}
		one := a
		if err == nil {
			one.val = verdicts[j]
		}
		err := d.left(one)
		d.end()
		errs[who[j]] = leases[who[j]].told(err)
	}
}

// releaseAll is the last release of several holds of Locks, of one Client and slot.
func releaseAll(all []*departure) *request {
	first := all[0].h.core
	r := &request{script: first.script("release_all"), args: []any{first.announce()}, ends: true, hasty: true}
	for _, d := range all {
		keys, late := d.h.core.keys, int64(0)
		if d.h.unsure {
			late = tombstoneTTL.Milliseconds()
		}
		r.keys = append(r.keys, keys.lock, keys.tombstone(d.h.stay))
		r.args = append(r.args, d.h.stay, late, keys.channel)
	}
	return r
}

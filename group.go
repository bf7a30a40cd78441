package rlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
)

// group is the holding of a MultiLock's lease: the leases of its members. It lasts as long
// as all of them do.
type group struct {
	guard
	name    string
	members []*Lease // in the order of the MultiLock
	lease   *Lease
	over    atomic.Bool // it has ended: the ends of the members are no news
}

var _ holding = (*group)(nil)

func newGroup(name string, members []*Lease) *Lease {
	g := &group{name: name, members: members}
	g.lease = &Lease{of: g, since: g.client().now()}
	for _, l := range members {
		l.onEnd(func(cause error) {
			if g.over.Load() {
				return
			}
			// In a goroutine of its own: the caller that ends a member may have the
			// guard of the group locked.
			end := g.client().env.Begin() // a test that moves the clock waits for it
			g.client().wire.Go(func() {
				defer end()
				g.lost(cause)
			})
		})
	}
	return g.lease
}

func (g *group) client() *Client        { return g.members[0].of.client() }
func (g *group) lockName() string       { return g.name }
func (g *group) memberLeases() []*Lease { return g.members }
func (g *group) holdID() string         { return g.members[0].HoldID() }

func (g *group) chain(up *chain) *chain {
	for _, l := range g.members {
		up = l.of.chain(up)
	}
	return up
}

// fence grows from hold to hold of the same members, because each member's token does.
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

func (g *group) checkLocked(clock.Instant) {
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

// endLocked ends the lease because a member has ended. The other members protect nothing
// any more, and are given back. But a member whose client shuts down is still held, and
// all of them are until the holder unlocks.
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

// listen implements holding: the group is asked when a member is.
func (g *group) listen(l *Lease) {
	for _, m := range g.members {
		m.askedFor(func() {
			g.lock()
			l.tellLocked()
			g.unlock()
		})
	}
}

func (g *group) extend(ctx context.Context, _ *Lease, d time.Duration) error {
	err := each(g.members, func(l *Lease) error { return l.Extend(ctx, d) })
	if err != nil {
		// A lost member ends the whole, and with it the other members, whose errors may
		// say that they were unlocked.
		if why := g.lease.Err(); why != nil {
			return why
		}
	}
	return err
}

func (g *group) release(ctx context.Context, l *Lease, called clock.Instant) error {
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
	// A loss has one cause: that of the first of several lost members.
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			if errors.Is(one, ErrLeaseLost) {
				return one
			}
		}
	}
	return err
}

// tellUnlocked implements holding: an Observer is told of the members.
func (g *group) tellUnlocked(*Lease, error) {}

// each does something with all leases at once, and joins the errors.
func each(leases []*Lease, do func(*Lease) error) error {
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for i, l := range leases[min(1, len(leases)):] {
		wg.Go(func() { errs[i+1] = do(l) })
	}
	if len(leases) > 0 {
		errs[0] = do(leases[0])
	}
	wg.Wait()
	return errors.Join(errs...)
}

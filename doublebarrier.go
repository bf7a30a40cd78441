package rlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// DoubleBarrier lets a fixed number of members begin together (Enter) and end together (Leave); then the
// next generation can begin. Members are calls of Enter, from any process, which all give the same
// number. One that dies counts until the end of its lease. To an [Inspector] members are readers, whom
// nobody can ask to release; ForceUnlock ends the generation. Details:
// https://go-rlock.github.io/rlock/latest/synchronizers/#doublebarrier
type DoubleBarrier struct{ *core }

// NewDoubleBarrier returns the double barrier of a name, for 1 to MaxMembers.
func (c *Client) NewDoubleBarrier(name string, members int, opts ...DoubleBarrierOption) *DoubleBarrier {
	err := noOptions(opts)
	if members < 1 || members > MaxMembers {
		err = invalid("%d members: must be from 1 to %d", members, MaxMembers)
	}
	l, names := newCore(c, protocol.DoubleFamily, name, lockConfig{}, err)
	l.asks = protocol.NewPlaces(&l.c.site, names, members)
	return &DoubleBarrier{l}
}

// Enter waits until all members have called it. Options and errors are those of [Locker]; WithWait(0)
// enters only as the last of them.
func (b *DoubleBarrier) Enter(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return lock(ctx, coreOf(b), true, opts)
}

// Leave unlocks the lease, and waits until all members of its generation have left. If it fails to
// unlock, it returns the error of Lease.Unlock and does not wait, except after a lost reply. Other
// errors are those of a [CountDownLatch], or ErrInvalidArgument for another's lease.
func (b *DoubleBarrier) Leave(ctx context.Context, lease *Lease, opts ...WaitOption) error {
	l := coreOf(b)
	if err := l.check(ctx); err != nil {
		return err
	}
	if _, err := waitOptions(opts); err != nil {
		return l.error(err)
	}
	if lease.none() {
		return l.error(ErrNotHeld)
	}
	h, ok := lease.of.(*hold)
	if !ok || h.core.c != l.c || h.core.id() != l.id() {
		return l.error(invalid("the lease is not of this barrier"))
	}
	unlocked := lease.Unlock(ctx)
	if unlocked != nil && !errors.Is(unlocked, errGone) {
		return unlocked
	}
	w := &leaving{generation: h.token, places: l.asks.(*protocol.Places)}
	// Those of one generation stand in one line, and what the first finds is true for all.
	of := protocol.LockID{Family: protocol.DoubleFamily + " " + strconv.FormatInt(h.token, 10), Name: l.name()}
	w.forAll = true
	if err := w.find(ctx, l, of, w, true, opts); err != nil {
		return err
	}
	return unlocked
}

// leaving is the seeker of Leave: it waits for the end of a generation.
type leaving struct {
	inquiry
	places     *protocol.Places
	generation int64
}

func (w *leaving) look(ctx context.Context) found {
	if err := w.places.Ready(ctx); err != nil {
		return found{err: err}
	}
	r := w.places.Left(w.generation).Do(ctx, w.c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return found{err: r.Err, last: r.Last}
	case r.Outcome.N == 0:
		return found{done: true}
	}
	return found{rest: max(r.Outcome.Rest, time.Millisecond), said: said{membersInside, r.Outcome.N}}
}

func (w *leaving) giveUp() bool                      { return false }
func (w *leaving) listen(notify func()) (end func()) { return w.places.Listen("", notify) }

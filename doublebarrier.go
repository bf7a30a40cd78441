package rlock

import (
	"context"
	"errors"
	"strconv"

	"github.com/go-rlock/rlock/internal/protocol"
)

// DoubleBarrier makes a fixed number of members start together (Enter) and finish together (Leave), as
// often as they like. Each call of Enter is a member, in any process; all must give the same number. A
// member that dies is counted until its lease ends. In a [State] members are readers; ForceUnlock ends the
// generation. Other methods: [Inspection]. Details:
// https://go-rlock.github.io/rlock/latest/synchronizers/#doublebarrier
type DoubleBarrier struct{ inspected }

// NewDoubleBarrier returns a double barrier of 1 to MaxMembers members.
func (c *Client) NewDoubleBarrier(name string, members int) *DoubleBarrier {
	var err error
	if members < 1 || members > MaxMembers {
		err = invalid("%d members: must be from 1 to %d", members, MaxMembers)
	}
	l, names := newCore(c, protocol.DoubleFamily, name, lockConfig{}, err)
	l.proto = protocol.NewPlaces(&l.c.site, names, members)
	return &DoubleBarrier{newInspected(l)}
}

// Enter waits until all members have called it. Options and errors are as for a [Locker]; WithWait(0)
// enters only as the last of them.
func (b *DoubleBarrier) Enter(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return lock(ctx, coreOf(b), true, opts)
}

// Leave unlocks the lease, and waits until all members of its generation have left. If it fails to
// unlock, it returns the error of Lease.Unlock and does not wait, except after a lost reply. Other
// errors are as from a [CountDownLatch], or ErrInvalidArgument for another's lease.
func (b *DoubleBarrier) Leave(ctx context.Context, lease *Lease, opts ...WaitOption) error {
	l := coreOf(b)
	_, err := waitOptions(opts)
	if err := l.check(ctx, err); err != nil {
		return err
	}
	if lease.none() {
		return l.error(ErrNotHeld)
	}
	h := lease.hold
	if h == nil || h.core.c != l.c || h.core.id() != l.id() {
		return l.error(invalid("the lease is not of this barrier"))
	}
	unlocked := lease.Unlock(ctx)
	if unlocked != nil && !errors.Is(unlocked, errGone) {
		return unlocked
	}
	// Members of one generation stand in one line.
	family := strconv.AppendInt(append(make([]byte, 0, 64), protocol.DoubleFamily+" "...), h.token, 10)
	line := protocol.LockID{Family: string(family), Name: l.name()}
	if err := untilZero(ctx, l, line, opts, l.proto.(*protocol.Places).Generation(h.token), membersInside); err != nil {
		return err
	}
	return unlocked
}

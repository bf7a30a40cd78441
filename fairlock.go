package rlock

import "github.com/go-rlock/rlock/internal/protocol"

var _ Locker = (*FairLock)(nil)

// FairLock is a reentrant lock that grants in request order, across processes: the
// counterpart of Redisson's RFairLock. Each waiting Lock has a place in a queue in
// Redis, which Java processes share. The order is that in which the first requests reach
// Redis. TryLock, and Lock with WithWait(0), take the lock only if it is free and nobody
// waits; they never join the queue. A re-entry does not wait.
//
// A waiter keeps its place by reporting each third of the waiter lease
// ([WithWaiterLease]).
//   - A waiter that leaves, because its context ended, its wait is over, or its Client
//     shuts down, gives up its place at once, and wakes the next waiter if it was first
//     itself.
//   - Waiters of a process that died are removed when their waiter lease is over, by
//     whoever looks next: all of them at the head of the queue, a few per look
//     elsewhere. Until then, dead waiters at the head delay the others, unless the lock
//     is held anyway. If no waiter of this library has reported for most of a waiter
//     lease, though one did within the last minute, Redis may have been away: then all
//     keep their places for one more waiter lease, once.
//   - A waiter that is cut off from Redis, or stopped, for longer may lose its place,
//     and then waits at the end of the queue. So do all waiters, in the order in which
//     they come back, if Redis has lost its data.
//
// Waiters of Redisson do not report: they keep their places until a deadline, by default
// some five minutes, even if they are dead, and lose them then, even if they are alive.
// Deadlines are on the clock of Redis; the clocks of Java processes should agree with it
// to within seconds. All waiters of a FairLock talk to Redis, also those of one process.
// The cost of a request does not depend on their number, except for the removal of one
// from the middle of the queue: some 0.1 ms of 10,000.
type FairLock struct{ *core }

// NewFairLock returns the fair lock of a name: see [Client.NewLock]. State.Waiters is the
// length of the queue in Redis, Java's waiters included.
func (c *Client) NewFairLock(name string, opts ...FairLockOption) *FairLock {
	cfg, err := lockOptions(opts, FairLockOption.fairLock)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewFair(&l.c.site, names)
	return &FairLock{l}
}

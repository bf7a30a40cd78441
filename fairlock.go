package rlock

import "github.com/go-rlock/rlock/internal/protocol"

var _ Locker = (*FairLock)(nil)

// FairLock is a reentrant lock that is given to its waiters in the order in
// which they came, across processes: the counterpart of Redisson's RFairLock. Each
// waiting Lock has a place in a queue in Redis, which Java processes share.
//
// The order is that in which the first requests of the waiters reach Redis. TryLock,
// and Lock with WithWait(0), take the lock only if it is free and nobody waits; they
// never stand in the queue. A re-entry does not wait.
//
// A waiter keeps its place by a sign of life each third of the waiter lease (see
// [WithWaiterLease], [DefaultWaiterLease]):
//   - One that leaves, because its context ended, its wait is over, or its Client
//     is shut down, gives up its place at once, and wakes the next if it was the
//     next itself.
//   - Those of a process that died are removed when their waiter lease is over, by
//     whoever looks next: together if they stand at the head, a few with each look
//     elsewhere. Until then they hold the line up if they are at its head; where the
//     head waits for a lock that is held anyway, that costs nothing. If no waiter of
//     this library was heard of for most of a waiter lease, though one was within the
//     last minute, Redis rather than the waiters may have been away: then all keep
//     their places for one more waiter lease, once.
//   - One that is cut off from Redis, or stopped, for longer may find others in its
//     place. It then waits at the end of the queue. So do all waiters, in the order
//     in which they come back, if Redis has lost its data.
//
// A waiter of Redisson has no sign of life. It keeps its place until a deadline, by
// default some five minutes, and loses it then even if it lives.
//
// All waiters of a FairLock talk to Redis, those of one process too. What each of
// their requests costs there does not depend on how many wait, but for the removal
// of one that gives up from the middle of a list: some 0.1 ms of 10,000. Use a
// [Lock] where the order does not matter.
//
// Deadlines are kept on the clock of Redis. Java processes use their own, which
// should agree with it to within seconds.
type FairLock struct{ *core }

// NewFairLock returns the fair lock of a name. It sends nothing; what is wrong
// with the arguments is reported by the first call. For names see [Client.NewLock].
//
// State.Waiters is the length of the queue in Redis, waiters of Java and of other
// processes included.
func (c *Client) NewFairLock(name string, opts ...LockOption) *FairLock {
	cfg, err := lockOptions(opts)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewFair(&l.c.site, names)
	return &FairLock{l}
}

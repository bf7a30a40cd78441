package rlock

import "github.com/go-rlock/rlock/internal/protocol"

var _ Locker = (*FairLock)(nil)

// FairLock is a reentrant lock that grants in request order, across processes: the counterpart of
// Redisson's RFairLock, whose queue Java processes share. TryLock, and Lock with WithWait(0), never
// overtake waiters. One that died delays those behind it by about a waiter lease ([WithWaiterLease]). Other
// methods: [Inspection]. Details: https://go-rlock.github.io/rlock/latest/locks/#fairlock
type FairLock struct{ locker }

// NewFairLock returns a lock that grants in request order.
func (c *Client) NewFairLock(name string, opts ...AnyLockOption) *FairLock {
	cfg, err := lockOptions(lockConfig{}, opts, AnyLockOption.optionOfAnyLock)
	l, names := newCore(c, protocol.HashFamily, name, cfg, err)
	l.proto = protocol.NewFair(&l.c.site, names)
	return &FairLock{newLocker(l)}
}

package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// FencedLock is a Lock whose fencing tokens Java's RFencedLock shares: 1, 2, 3 and so on, from a counter in
// Redis. In Go alone use a [Lock]: its tokens keep growing if Redis loses its data, while these start over
// at 1. All contenders must be fenced locks, as a Lock does not raise the counter. One key stays for each
// name. Other methods: [Inspection]. Details: https://go-rlock.github.io/rlock/latest/locks/#fencedlock
type FencedLock struct{ locker }

var _ Locker = (*FencedLock)(nil)

// NewFencedLock returns a lock whose tokens Java's RFencedLock shares. In Go alone use [Client.NewLock]:
// its leases have fencing tokens too, which survive a loss of Redis' data.
func (c *Client) NewFencedLock(name string, opts ...AnyLockOption) *FencedLock {
	cfg, err := lockOptions(lockConfig{}, opts, AnyLockOption.optionOfAnyLock)
	l, names := newCore(c, protocol.HashFamily, name, cfg, err)
	l.proto = protocol.NewFenced(&l.c.site, names)
	return &FencedLock{newLocker(l)}
}

// CurrentToken returns the token of the current or latest hold, or 0.
func (l *FencedLock) CurrentToken(ctx context.Context) (int64, error) {
	if l == nil {
		l = &FencedLock{}
	}
	r, err := ask(ctx, l.core, func() protocol.Request[int64] { return l.proto.(*protocol.Fenced).Counter() })
	return r.Outcome, err
}

package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// FencedLock is a Lock with the tokens of Redisson's RFencedLock: 1, 2, 3 and so on, from a counter in
// Redis that Java processes raise too. If Redis loses it, tokens start over at 1; those of a Lock keep
// growing. All contenders must be fenced locks: a Lock does not raise it. One key stays for each name.
// Details: https://go-rlock.github.io/rlock/latest/locks/#fencedlock
type FencedLock struct{ locker }

var _ Locker = (*FencedLock)(nil)

// NewFencedLock returns the fenced lock of a name: see [Client.NewLock].
func (c *Client) NewFencedLock(name string, opts ...AnyLockOption) *FencedLock {
	cfg, err := lockOptions(lockConfig{}, opts, AnyLockOption.optionOfAnyLock)
	l, names := newCore(c, protocol.HashFamily, name, cfg, err)
	l.proto = protocol.NewFenced(&l.c.site, names)
	return &FencedLock{locker{l}}
}

// CurrentToken returns the token of the current or latest hold, or 0.
func (l *FencedLock) CurrentToken(ctx context.Context) (int64, error) {
	if l == nil {
		l = &FencedLock{}
	}
	r, err := ask(ctx, l.core, func() protocol.Request[int64] { return l.proto.(*protocol.Fenced).Counter() })
	return r.Outcome, err
}

package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// FencedLock is a Lock with the fencing tokens of Redisson's RFencedLock: 1, 2, 3 and so on, from a
// counter in Redis that Java processes raise too. Use it to share tokens with them, or where tokens
// must be small or everybody must see the current one. An acquire that was given up may leave a gap.
//
// If Redis loses the counter, tokens start over at 1; those of a Lock keep growing. A Lock or SpinLock
// of the same name does not raise it: all contenders must be fenced locks. The counter has no TTL, so
// one key stays for each name. Details: docs/locks.md.
type FencedLock struct{ *core }

var _ Locker = (*FencedLock)(nil)

// NewFencedLock returns the fenced lock of a name: see [Client.NewLock].
func (c *Client) NewFencedLock(name string, opts ...FencedLockOption) *FencedLock {
	cfg, err := lockOptions(opts, FencedLockOption.fencedLock)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewFenced(&l.c.site, names)
	return &FencedLock{l}
}

// CurrentToken returns the counter: the token of the current or latest hold, or 0. Bounds and errors
// are those of an [Inspector].
func (l *FencedLock) CurrentToken(ctx context.Context) (int64, error) {
	if l == nil {
		l = &FencedLock{}
	}
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	r, err := ask(ctx, l.core, l.asks.(*protocol.Fenced).Counter())
	return r.Outcome, err
}

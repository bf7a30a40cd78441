package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// FencedLock is a Lock with the fencing tokens of Redisson's RFencedLock: 1, 2, 3 and so
// on, from a counter in Redis that Java processes raise too. Use it to share a lock and
// its tokens with them, or where tokens must be small or everybody must see the current
// one (CurrentToken, State). Otherwise use Lock, whose tokens survive more.
//
// Each new hold raises the counter by one. A re-entry keeps the token of its hold; in a
// Java process it raises the counter. Either way a later hold has a higher token. An
// acquire that was given up may leave a gap.
//
// What the counter does not promise:
//   - If Redis loses it (a flush, a restart without persistence, eviction under an
//     allkeys policy), tokens start over at 1, and a resource that remembers a higher
//     one refuses everybody. A failover that loses the latest writes repeats the latest
//     tokens; WithReplicaAck makes that unlikely. The tokens of Lock keep growing in
//     both cases.
//   - Every contender must be a fenced lock, here and in Java. Lock and SpinLock of the
//     same name exclude a FencedLock, but do not raise the counter, and their tokens
//     cannot be compared with its. An owner that enters the same name again through
//     another type keeps the token that it has.
//   - It has no TTL: one key stays for each name that was ever locked. For an unbounded
//     number of names (a lock per order) use Lock; or delete the key
//     redisson_lock_token:{name} when neither the lock nor a resource that remembers its
//     tokens will be used again.
type FencedLock struct{ *core }

var _ Locker = (*FencedLock)(nil)

// NewFencedLock returns the fenced lock of a name: see [Client.NewLock].
func (c *Client) NewFencedLock(name string, opts ...FencedLockOption) *FencedLock {
	cfg, err := lockOptions(opts, FencedLockOption.fencedLock)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewFenced(&l.c.site, names)
	return &FencedLock{l}
}

// CurrentToken returns the counter: the token of the current or latest hold, whoever had
// it; 0 if there never was one. Bounds and errors are those of an [Inspector].
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

package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
)

// FencedLock is Lock with the fencing tokens of Redisson's RFencedLock: the
// numbers 1, 2, 3 and so on, from a counter in Redis of the lock's own, which
// Java processes raise too. Use it to share a lock and its tokens with them, or
// where tokens must be small or everybody must be able to see the current one
// (CurrentToken, State). Otherwise Lock is the better choice; its tokens bear
// more.
//
// Each new hold raises the counter by one. A re-entry keeps its hold's token;
// a Java process raises the counter then as well. Either way a later hold has a
// higher token. An acquire that was given up may leave a gap.
//
// What the counter does not promise:
//   - It lives in Redis alone. Should Redis lose it (a flush, a restart without
//     persistence, eviction under an allkeys policy), tokens begin at 1 again, and
//     a resource that remembers a higher one refuses everybody. A failover that
//     loses the latest writes repeats the tokens that were given out last;
//     WithReplicaAck makes that unlikely. The tokens of Lock keep growing in
//     both cases.
//   - It counts only those who use it: every contender must be a fenced lock, here
//     and in Java. Lock and SpinLock of the same name exclude a FencedLock, but
//     do not raise the counter, and their tokens are of another kind, not to be
//     compared with these. An owner that enters the same name again through
//     another type keeps the token that it has.
//   - It has no TTL and stays for ever, one key for each name that was ever
//     locked. For names without number (a lock for each order) use Lock, which
//     leaves nothing behind for a name; or delete the key
//     redisson_lock_token:{name} when neither the lock nor a resource that
//     remembers its tokens will be used again.
type FencedLock struct{ *core }

var _ Locker = (*FencedLock)(nil)

// NewFencedLock returns the fenced lock of a name. It sends nothing; what is
// wrong with the arguments is reported by the first call. The rules for names
// are those of NewLock.
func (c *Client) NewFencedLock(name string, opts ...LockOption) *FencedLock {
	cfg, err := lockOptions(opts)
	l, names := newCore(c, hashFamily, name, cfg, err)
	l.asks = protocol.NewFenced(&l.c.site, names)
	return &FencedLock{l}
}

// CurrentToken returns the value of the counter: the token of the hold that
// there is, or of the latest that there was, whoever had it; 0 if there never was
// one. It looks once and waits for nobody. Bounds and errors are those of State.
func (l *FencedLock) CurrentToken(ctx context.Context) (int64, error) {
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	r, err := ask(ctx, l.core, l.asks.(*protocol.Fenced).Counter())
	return r.Outcome, err
}

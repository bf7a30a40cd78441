package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// SpinLock is Lock without messages: a release is not announced, and who waits
// does not listen but looks again and again, after pauses that grow. It is the
// counterpart of Redisson's RSpinLock. It suits locks that are held for
// milliseconds and of which there are very many, where a message for each
// release would cost more than a few looks, and users who are not allowed to
// publish or subscribe.
//
// Of a client's waiters only the first in line looks; the others cost nothing,
// and hear at once of a release in the same client. So the cost is one look for
// each pause, lock and waiting process: with the default back-off 8 in the
// first quarter of a second and then about 10 a second. The price in time is that
// a free lock is noticed up to a pause late.
//
// Everything else is as with Lock: the same keys, leases, tokens and re-entry.
// The two exclude each other, but a waiter of Lock does not hear the release of
// a SpinLock and sleeps until the lease of its holder would be over, or
// WithLongestPoll.
type SpinLock struct{ *core }

var _ Locker = (*SpinLock)(nil)

// NewSpinLock returns the spin lock of a name. It sends nothing; what is wrong
// with the arguments is reported by the first call. The rules for names are
// those of NewLock.
func (c *Client) NewSpinLock(name string, opts ...SpinLockOption) *SpinLock {
	cfg := spinConfig{backoff: ExponentialBackoff(DefaultFirstBackoff, DefaultLongestBackoff)}
	err := applyEach(opts, func(o SpinLockOption) { o.spinLock(&cfg) })
	if err == nil {
		err = cfg.backoff.check()
	}
	l, names := newCore(c, hashFamily, name, cfg.lockConfig, err)
	l.asks = protocol.NewSpin(&l.c.site, names, func(who int64, look int) time.Duration {
		return cfg.backoff.pause(l.c.seed, who, look)
	})
	return &SpinLock{l}
}

type spinOption func(c *spinConfig)

func (o spinOption) spinLock(c *spinConfig) { o(c) }

// WithBackoff sets how a SpinLock waits. The default is
// ExponentialBackoff([DefaultFirstBackoff], [DefaultLongestBackoff]). Other types
// of locks refuse it.
func WithBackoff(b Backoff) SpinLockOption {
	return spinOption(func(c *spinConfig) { c.backoff = b })
}

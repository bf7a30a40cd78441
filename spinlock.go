package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// SpinLock is a Lock without messages: it publishes no release, and its waiters poll
// with growing pauses instead of subscribing. It is the counterpart of Redisson's
// RSpinLock. It suits very many locks that are held for milliseconds, where a message
// per release would cost more than a few looks, and users that may not publish or
// subscribe.
//
// Of a client's waiters only the first in line looks; the others hear at once of a
// release in the same client. So a lock costs one look per pause and waiting process:
// with the default back-off 8 in the first quarter of a second, then about 10 a second.
// In return, a waiter notices a free lock up to a pause late.
//
// Keys, leases, tokens and re-entry are those of Lock. The two exclude each other, but a
// waiter of Lock does not hear the release of a SpinLock: it sleeps until the holder's
// lease would be over, or WithLongestPoll.
type SpinLock struct{ *core }

var _ Locker = (*SpinLock)(nil)

// NewSpinLock returns the spin lock of a name: see [Client.NewLock].
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

// WithBackoff sets the pauses of a SpinLock. The default is
// ExponentialBackoff([DefaultFirstBackoff], [DefaultLongestBackoff]).
func WithBackoff(b Backoff) SpinLockOption {
	return spinOption(func(c *spinConfig) { c.backoff = b })
}

package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// SpinLock is a Lock whose waiters poll ([WithBackoff]; of a client only the first does) and need no
// messages: the counterpart of Redisson's RSpinLock. It suits very many locks that are held for
// milliseconds, and ACL users of Redis that may not publish. It excludes a Lock of the same name, but does
// not wake its waiters. Other methods: [Inspection]. Details:
// https://go-rlock.github.io/rlock/latest/locks/#spinlock
type SpinLock struct{ locker }

var _ Locker = (*SpinLock)(nil)

// NewSpinLock returns a lock whose waiters poll.
func (c *Client) NewSpinLock(name string, opts ...SpinLockOption) *SpinLock {
	usual := spinConfig{backoff: ExponentialBackoff(DefaultFirstBackoff, DefaultLongestBackoff)}
	cfg, err := lockOptions(usual, opts, SpinLockOption.optionOfNewSpinLock)
	if err == nil {
		err = cfg.backoff.check()
	}
	l, names := newCore(c, protocol.HashFamily, name, cfg.lockConfig, err)
	l.proto = protocol.NewSpin(&l.c.site, names, func(who int64, n int) time.Duration {
		return cfg.backoff.pause(l.c.seed, who, n)
	})
	return &SpinLock{newLocker(l)}
}

type spinOption func(c *spinConfig)

func (o spinOption) optionOfNewSpinLock(c *spinConfig) { o(c) }

// WithBackoff sets the pauses of a SpinLock. The default is 1 ms, doubling to 128 ms:
// ExponentialBackoff([DefaultFirstBackoff], [DefaultLongestBackoff]).
func WithBackoff(b Backoff) SpinLockOption {
	return spinOption(func(c *spinConfig) { c.backoff = b })
}

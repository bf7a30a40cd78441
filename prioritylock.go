package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// PriorityLock is a reentrant, exclusive lock that goes to the waiter with the highest priority
// ([PriorityLock.At]), and among equals to the first, across processes. Without [WithAging] a low priority
// can starve. Its keys are rlock's own, as for a [FairReadWriteLock]. Other methods: [Inspection]. Details:
// https://go-rlock.github.io/rlock/latest/locks/#prioritylock
type PriorityLock struct{ locker }

var _ Locker = (*PriorityLock)(nil)

// NewPriorityLock returns a lock whose callers have priorities ([PriorityLock.At]).
func (c *Client) NewPriorityLock(name string, opts ...PriorityLockOption) *PriorityLock {
	cfg, err := lockOptions(priorityConfig{}, opts, PriorityLockOption.optionOfNewPriorityLock)
	if d := cfg.aging; err == nil && cfg.hasAging && (d < MinAging || d > MaxAging) {
		err = invalid("WithAging(%v): must be between %v and %v", d, MinAging, MaxAging)
	}
	cfg.priority = DefaultPriority
	l, names := newCore(c, protocol.PriorityFamily, name, cfg.lockConfig, err)
	l.proto = protocol.NewPriority(&l.c.site, names, cfg.aging)
	return &PriorityLock{newLocker(l)}
}

// At returns the same lock for callers of a priority, from MinPriority to MaxPriority, the most urgent:
// press.At(9).Lock(ctx).
func (l *PriorityLock) At(priority int) Locker {
	if l == nil || l.core == nil {
		return &PriorityLock{}
	}
	at, set := l.with(l.proto), *l.settings
	set.opts.priority = priority
	if set.argErr == nil && (priority < MinPriority || priority > MaxPriority) {
		set.argErr = invalid("At(%d): a priority must be between %d and %d", priority, MinPriority, MaxPriority)
	}
	at.settings = &set
	return &PriorityLock{newLocker(at)}
}

type priorityOption func(c *priorityConfig)

func (o priorityOption) optionOfNewPriorityLock(c *priorityConfig) { o(c) }

// WithAging adds one step of priority for each d that a waiter has waited, so none starves. It is off by
// default. d is from MinAging to MaxAging, and the same for all clients.
func WithAging(d time.Duration) PriorityLockOption {
	return priorityOption(func(c *priorityConfig) { c.aging, c.hasAging = d, true })
}

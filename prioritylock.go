package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// PriorityLock is a reentrant, exclusive lock that goes to the most urgent waiter: the
// one with the highest priority ([PriorityLock.At]), and among equals the first, from
// whatever client or process. It is never taken from its holder. TryLock takes a free
// lock only if no waiter goes before it. Without WithAging a low priority can starve
// while higher ones keep coming.
//
// What [FairReadWriteLock] says of keys, of other types and of waiters holds here too; a
// waiter that loses its place also loses what it gained by waiting.
type PriorityLock struct{ *core }

var _ Locker = (*PriorityLock)(nil)

// NewPriorityLock returns the priority lock of a name: see [Client.NewLock].
func (c *Client) NewPriorityLock(name string, opts ...PriorityLockOption) *PriorityLock {
	var cfg priorityConfig
	err := applyEach(opts, func(o PriorityLockOption) { o.priorityLock(&cfg) })
	if d := cfg.aging; err == nil && cfg.hasAging && (d < MinAging || d > MaxAging) {
		err = invalid("WithAging(%v): must be between %v and %v", d, MinAging, MaxAging)
	}
	cfg.priority = DefaultPriority
	l, names := newCore(c, priorityFamily, name, cfg.lockConfig, err)
	l.asks = protocol.NewPriority(&l.c.site, names, cfg.aging)
	return &PriorityLock{l}
}

// At returns the lock for callers of a priority, from [MinPriority] to [MaxPriority], the most
// urgent: press.At(9).Lock(ctx). Without it they have [DefaultPriority]. It is the same lock,
// for a MultiLock too, and has all methods of a PriorityLock. It sends nothing; any other
// priority is reported by the first call. A re-entry has no priority.
func (l *PriorityLock) At(priority int) Locker {
	if l == nil || l.core == nil {
		return &PriorityLock{}
	}
	at, set := l.with(l.asks), *l.settings
	set.opts.priority = priority
	if set.argErr == nil && (priority < MinPriority || priority > MaxPriority) {
		set.argErr = invalid("At(%d): a priority must be between %d and %d", priority, MinPriority, MaxPriority)
	}
	at.settings = &set
	return &PriorityLock{at}
}

type priorityOption func(c *priorityConfig)

func (o priorityOption) priorityLock(c *priorityConfig) { o(c) }

// WithAging makes waiting count: each d that a waiter of a PriorityLock has waited adds
// one step of priority, without an upper bound, so none starves: one with priority 1
// goes before all of priority 10 that came more than 9 d after it. d must be between
// [MinAging] and [MaxAging]; fractions of a microsecond are dropped. By default waiting
// does not count. All clients of a lock must use the same.
func WithAging(d time.Duration) PriorityLockOption {
	return priorityOption(func(c *priorityConfig) { c.aging, c.hasAging = d, true })
}

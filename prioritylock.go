package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// PriorityLock is a reentrant, exclusive lock that goes to the most urgent
// waiter: that with the highest priority (WithPriority), and among equals to the
// one that came first, from whatever client or process. It is never taken away
// from who has it.
//
// Without WithAgeing a low priority can starve: it waits for as long as higher
// ones keep coming.
//
// Redisson has no such lock. Its keys are rlock's own: it does not exclude another
// type of lock of the same name. While such a lock is held, Lock and TryLock fail
// with ErrForeignKey. The other type does not look here, so do not change the type
// of a lock that is in use: take another name. (A RedLock and this see nothing of
// each other.)
//
// A waiter that Redis did not hear from for a waiter lease (WithWaiterLease)
// loses its place, and what it gained by waiting; if none was heard, since Redis
// was away for less than a minute, all keep theirs. After a loss of the data the
// waiters queue anew. Each looks at the lock every third of a waiter lease, and
// has a channel on which it, and nobody else, hears that it can enter.
//
// TryLock takes a free lock only if nobody waits that it would not go before.
type PriorityLock struct{ *core }

var _ Locker = (*PriorityLock)(nil)

const (
	// MinAgeing and MaxAgeing bound WithAgeing: below the first the network
	// decides and not the priority, and what takes longer than the second for
	// each step comes too late to help anybody.
	MinAgeing = time.Millisecond
	MaxAgeing = 24 * time.Hour
)

// NewPriorityLock returns the priority lock of a name. It sends nothing; what is
// wrong with the arguments is reported by the first call. Names are those of
// [Client.NewLock].
func (c *Client) NewPriorityLock(name string, opts ...PriorityLockOption) *PriorityLock {
	var cfg priorityConfig
	err := applyEach(opts, func(o PriorityLockOption) { o.priorityLock(&cfg) })
	if d := cfg.ageing; err == nil && cfg.hasAgeing && (d < MinAgeing || d > MaxAgeing) {
		err = invalid("WithAgeing(%v): must be between %v and %v", d, MinAgeing, MaxAgeing)
	}
	l, names := newCore(c, priorityFamily, name, cfg.lockConfig, err)
	l.asks = protocol.NewPriority(&l.c.site, names, cfg.ageing)
	return &PriorityLock{l}
}

type priorityOption func(c *priorityConfig)

func (o priorityOption) priorityLock(c *priorityConfig) { o(c) }

// WithAgeing makes waiting count: each d that a waiter of a PriorityLock has
// waited is worth one step of priority, without an upper bound, so none starves.
// One with priority 1 goes before all of priority 10 that came more than 9 d after
// it. d must be between [MinAgeing] and [MaxAgeing]; fractions of a microsecond are
// dropped. By default waiting does not count.
//
// All clients of a lock must use the same, or their order means nothing. Other
// types of locks refuse it.
func WithAgeing(d time.Duration) PriorityLockOption {
	return priorityOption(func(c *priorityConfig) { c.ageing, c.hasAgeing = d, true })
}

package rlock

import "time"

// LockOption configures a lock of any type but MultiLock.
type LockOption interface {
	SpinLockOption
	PriorityLockOption
	ReadWriteLockOption
	RedLockOption
	PermitSemaphoreOption
	lock(c *lockConfig)
}

// SpinLockOption configures a [SpinLock]: a [LockOption], or [WithBackoff].
type SpinLockOption interface{ spinLock(c *spinConfig) }

// PriorityLockOption configures a [PriorityLock]: a [LockOption], or [WithAging].
type PriorityLockOption interface{ priorityLock(c *priorityConfig) }

// ReadWriteLockOption configures both sides of a [ReadWriteLock]: a [LockOption], or
// [WithReaderPreference].
type ReadWriteLockOption interface{ readWriteLock(c *readWriteConfig) }

// RedLockOption configures a [RedLock]: a [LockOption], [WithQuorum],
// [WithNodeTimeout], [WithRestartQuarantine] or [WithLongestLease].
type RedLockOption interface{ redLock(c *redConfig) }

// PermitSemaphoreOption configures a [PermitSemaphore]: a [LockOption], or [WithFairness].
type PermitSemaphoreOption interface{ permitSemaphore(c *permitConfig) }

// MultiLockOption configures a [MultiLock]: [WithRound].
type MultiLockOption interface{ multiLock(c *multiConfig) }

// lockConfig are the settings of every lock.
type lockConfig struct {
	nonReentrant bool
	maxHold      time.Duration
	priority     int             // of a PriorityLock
	handOver     *handOverBounds // nil: the default
}

// handOverBounds are the bounds of WithHandOver.
type handOverBounds struct {
	passes int
	within time.Duration
}

var usualHandOver = handOverBounds{DefaultHandOverPasses, DefaultHandOverTime}

func (c *lockConfig) handOverBounds() *handOverBounds {
	if c.handOver == nil {
		return &usualHandOver
	}
	return c.handOver
}

// What can be configured of the types that have options of their own.

type spinConfig struct {
	lockConfig
	backoff Backoff
}

type priorityConfig struct {
	lockConfig
	aging    time.Duration
	hasAging bool
}

type readWriteConfig struct {
	lockConfig
	readerPreference bool
}

type permitConfig struct {
	lockConfig
	fair bool
}

type redConfig struct {
	lockConfig
	quorum     int
	timeout    time.Duration
	quarantine bool
	longest    time.Duration // lease
	hasLongest bool
}

type multiConfig struct{ round time.Duration }

type lockOption func(c *lockConfig)

func (o lockOption) lock(c *lockConfig)               { o(c) }
func (o lockOption) spinLock(c *spinConfig)           { o(&c.lockConfig) }
func (o lockOption) priorityLock(c *priorityConfig)   { o(&c.lockConfig) }
func (o lockOption) readWriteLock(c *readWriteConfig) { o(&c.lockConfig) }
func (o lockOption) redLock(c *redConfig)             { o(&c.lockConfig) }
func (o lockOption) permitSemaphore(c *permitConfig)  { o(&c.lockConfig) }

// applyEach calls a function with each option, of which none may be nil.
func applyEach[O comparable](opts []O, call func(O)) error {
	var none O
	for i, opt := range opts {
		if opt == none {
			return invalid("option %d is nil", i)
		}
		call(opt)
	}
	return nil
}

// lockOptions applies the options of a type that has none of its own.
func lockOptions(opts []LockOption) (cfg lockConfig, err error) {
	err = applyEach(opts, func(o LockOption) { o.lock(&cfg) })
	return cfg, err
}

// WithNonReentrant makes an acquire that would enter again fail at once with
// ErrReentrant.
func WithNonReentrant() LockOption {
	return lockOption(func(c *lockConfig) { c.nonReentrant = true })
}

// WithMaxHold bounds the time of a renewed hold, for code that may hang while its
// process lives. When it is over, the lease is lost with ErrMaxHold and not renewed any
// more. Redis keeps the lock for the rest of the lease, so that the holder has time to
// notice; Unlock frees it at once. The default, 0, is no bound. Other values must be at
// least [MinLease]. Fixed leases are not bounded, unless they share the hold of a
// renewed one.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) { c.maxHold = d })
}

// WithHandOver bounds how a [Lock] changes hands among the waiters of one client without
// Redis: at most so many times (0: never), and not after within since the grant; then
// waiters of other clients go first. Only a renewed hold is handed over, to a waiter
// without WithLease; it gets a higher token and the same [Lease.HoldID]. An Unlock that
// hands over asks Redis nothing, so a ForceUnlock in the meantime is told to the holder
// after it.
//
// Other types ask Redis each time, and ignore it.
func WithHandOver(passes int, within time.Duration) LockOption {
	return lockOption(func(c *lockConfig) { c.handOver = &handOverBounds{passes, within} })
}

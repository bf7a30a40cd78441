package rlock

import "time"

// AnyLockOption is [WithNonReentrant], or a [HoldOption].
type AnyLockOption interface {
	LockOption
	FairLockOption
	SpinLockOption
	FencedLockOption
	ReadWriteLockOption
	FairReadWriteLockOption
	PriorityLockOption
	RedLockOption
}

// HoldOption is [WithMaxHold].
type HoldOption interface {
	AnyLockOption
	PermitSemaphoreOption
	ElectionOption
	OnceOption
	CronJobOption
}

// LockOption is an [AnyLockOption], or [WithHandOver].
type LockOption interface{ optionOfNewLock(c *lockConfig) }

// FairLockOption is an [AnyLockOption].
type FairLockOption interface{ optionOfNewFairLock(c *lockConfig) }

// SpinLockOption is an [AnyLockOption], or [WithBackoff].
type SpinLockOption interface{ optionOfNewSpinLock(c *spinConfig) }

// FencedLockOption is an [AnyLockOption].
type FencedLockOption interface{ optionOfNewFencedLock(c *lockConfig) }

// ReadWriteLockOption is an [AnyLockOption], or [WithReaderPreference].
type ReadWriteLockOption interface{ optionOfNewReadWriteLock(c *readWriteConfig) }

// FairReadWriteLockOption is an [AnyLockOption].
type FairReadWriteLockOption interface{ optionOfNewFairReadWriteLock(c *lockConfig) }

// PriorityLockOption is an [AnyLockOption], or [WithAging].
type PriorityLockOption interface{ optionOfNewPriorityLock(c *priorityConfig) }

// RedLockOption configures a [RedLock].
type RedLockOption interface{ optionOfNewRedLock(c *redConfig) }

// MultiLockOption is [WithRound].
type MultiLockOption interface{ optionOfNewMultiLock(c *multiConfig) }

// PermitsOption is [WithPermits].
type PermitsOption interface {
	PermitSemaphoreOption
	SemaphoreOption
}

// PermitSemaphoreOption is [WithPermits], [WithFairness] or [WithMaxHold].
type PermitSemaphoreOption interface{ optionOfNewPermitSemaphore(c *permitConfig) }

// ElectionOption is [WithMaxHold].
type ElectionOption interface{ optionOfNewElection(c *lockConfig) }

// OnceOption is [WithMaxHold].
type OnceOption interface{ optionOfNewOnce(c *lockConfig) }

// CronJobOption is [WithTakeover], [WithRetention] or [WithMaxHold].
type CronJobOption interface{ optionOfNewCronJob(c *cronConfig) }

// DoubleBarrierOption configures a [DoubleBarrier]. There is none yet.
type DoubleBarrierOption interface{ optionOfNewDoubleBarrier() }

// SemaphoreOption is [WithPermits].
type SemaphoreOption interface{ optionOfNewSemaphore(c *semaphoreConfig) }

// CountDownLatchOption configures a [CountDownLatch]. There is none yet.
type CountDownLatchOption interface{ optionOfNewCountDownLatch() }

// BarrierOption configures a [Barrier]. There is none yet.
type BarrierOption interface{ optionOfNewBarrier() }

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
	semaphoreConfig
	fair bool
}

type semaphoreConfig struct {
	permits    int
	hasPermits bool
}

// check joins why the number of permits is invalid to why other options are.
func (c *semaphoreConfig) check(err error) error {
	if err == nil && c.hasPermits && (c.permits < 1 || c.permits > MaxPermits) {
		return invalid("WithPermits(%d): must be from 1 to %d", c.permits, MaxPermits)
	}
	return err
}

type cronConfig struct {
	lockConfig
	takeover  bool
	retention time.Duration
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

func (o lockOption) optionOfNewLock(c *lockConfig)               { o(c) }
func (o lockOption) optionOfNewFairLock(c *lockConfig)           { o(c) }
func (o lockOption) optionOfNewSpinLock(c *spinConfig)           { o(&c.lockConfig) }
func (o lockOption) optionOfNewFencedLock(c *lockConfig)         { o(c) }
func (o lockOption) optionOfNewReadWriteLock(c *readWriteConfig) { o(&c.lockConfig) }
func (o lockOption) optionOfNewFairReadWriteLock(c *lockConfig)  { o(c) }
func (o lockOption) optionOfNewPriorityLock(c *priorityConfig)   { o(&c.lockConfig) }
func (o lockOption) optionOfNewRedLock(c *redConfig)             { o(&c.lockConfig) }

type holdOption struct{ lockOption }

func (o holdOption) optionOfNewPermitSemaphore(c *permitConfig) { o.lockOption(&c.lockConfig) }
func (o holdOption) optionOfNewElection(c *lockConfig)          { o.lockOption(c) }
func (o holdOption) optionOfNewOnce(c *lockConfig)              { o.lockOption(c) }
func (o holdOption) optionOfNewCronJob(c *cronConfig)           { o.lockOption(&c.lockConfig) }

type permitsOption int

func (o permitsOption) optionOfNewPermitSemaphore(c *permitConfig) {
	o.optionOfNewSemaphore(&c.semaphoreConfig)
}
func (o permitsOption) optionOfNewSemaphore(c *semaphoreConfig) {
	c.permits, c.hasPermits = int(o), true
}

type handOverOption handOverBounds

func (o handOverOption) optionOfNewLock(c *lockConfig) { c.handOver = (*handOverBounds)(&o) }

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
func lockOptions[O comparable](opts []O, to func(O, *lockConfig)) (lockConfig, error) {
	if len(opts) == 0 {
		return lockConfig{}, nil // it allocates nothing
	}
	var cfg lockConfig
	err := applyEach(opts, func(o O) { to(o, &cfg) })
	return cfg, err
}

// noOptions checks the options of a type that has none: they are all nil.
func noOptions[O comparable](opts []O) error { return applyEach(opts, func(O) {}) }

// WithNonReentrant makes an acquire that would re-enter fail: ErrReentrant.
func WithNonReentrant() AnyLockOption {
	return lockOption(func(c *lockConfig) { c.nonReentrant = true })
}

// WithMaxHold bounds the time of a renewed hold, for code that may hang: then the lease is lost with
// ErrMaxHold; Unlock, or its end, frees the lock. d is at least [MinLease], or 0, the default: no bound.
func WithMaxHold(d time.Duration) HoldOption {
	return holdOption{func(c *lockConfig) { c.maxHold = d }}
}

// WithPermits has an acquire set n permits, from 1 to MaxPermits, if none are set: at first, and when
// Redis has lost its data. A number that was set stays. Give all clients the same n. With it a Release
// never puts back more than were set and added here: it is not for a [Semaphore] that Java adds to.
func WithPermits(n int) PermitsOption { return permitsOption(n) }

// WithHandOver bounds how a Lock changes hands among the waiters of one client without Redis: at most
// passes times, and only within that time since the grant. See
// https://go-rlock.github.io/rlock/latest/locks/#hand-over
func WithHandOver(passes int, within time.Duration) LockOption {
	return handOverOption{passes, within}
}

package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// AnyLockOption is an option of every type of lock: [WithNonReentrant] and [WithMaxHold].
type AnyLockOption interface {
	LockOption
	SpinLockOption
	ReadWriteLockOption
	PriorityLockOption
	RedLockOption
	optionOfAnyLock(c *lockConfig)
}

// HoldOption is an option of everything that is held under a lease: [WithMaxHold].
type HoldOption interface {
	AnyLockOption
	PermitSemaphoreOption
	CronJobOption
	optionOfAnyHold(c *lockConfig)
}

// LockOption is an option of a [Lock]: [WithHandOver], [WithNonReentrant] and [WithMaxHold].
type LockOption interface{ optionOfNewLock(c *lockConfig) }

// SpinLockOption is an option of a [SpinLock]: [WithBackoff], [WithNonReentrant] and [WithMaxHold].
type SpinLockOption interface{ optionOfNewSpinLock(c *spinConfig) }

// ReadWriteLockOption is an option of a [ReadWriteLock]: [WithReaderPreference], [WithNonReentrant] and
// [WithMaxHold].
type ReadWriteLockOption interface{ optionOfNewReadWriteLock(c *readWriteConfig) }

// PriorityLockOption is an option of a [PriorityLock]: [WithAging], [WithNonReentrant] and [WithMaxHold].
type PriorityLockOption interface{ optionOfNewPriorityLock(c *priorityConfig) }

// RedLockOption is an option of a [RedLock]: [WithQuorum], [WithNodeTimeout], [WithRestartQuarantine],
// [WithLongestLease], [WithNonReentrant] and [WithMaxHold].
type RedLockOption interface{ optionOfNewRedLock(c *redConfig) }

// MultiLockOption is an option of a [MultiLock]: [WithRound].
type MultiLockOption interface{ optionOfNewMultiLock(c *multiConfig) }

// PermitSemaphoreOption is an option of a [PermitSemaphore]: [WithPermits], [WithFairness] and [WithMaxHold].
type PermitSemaphoreOption interface{ optionOfNewPermitSemaphore(c *permitConfig) }

// SemaphoreOption is an option of [Semaphore] and [PermitSemaphore]: [WithPermits].
type SemaphoreOption interface {
	PermitSemaphoreOption
	optionOfNewSemaphore(c *semaphoreConfig)
}

// CronJobOption is an option of a [CronJob]: [WithTakeover], [WithRetention], [WithLeastInterval] and
// [WithMaxHold].
type CronJobOption interface{ optionOfNewCronJob(c *cronConfig) }

// lockConfig are the settings of every lock.
type lockConfig struct {
	nonReentrant bool
	maxHold      time.Duration
	priority     int             // only for a PriorityLock
	handOver     *handOverBounds // nil for the default
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

// check returns the errors of the number of permits and of the other options, joined.
func (c *semaphoreConfig) check(err error) error {
	if err == nil && c.hasPermits && (c.permits < 1 || c.permits > MaxPermits) {
		return invalid("WithPermits(%d): must be from 1 to %d", c.permits, MaxPermits)
	}
	return err
}

type cronConfig struct {
	lockConfig
	takeover      bool
	retention     time.Duration
	leastInterval time.Duration // least time between two ticks
}

type redConfig struct {
	lockConfig
	quorum       int
	timeout      time.Duration
	quarantine   bool
	longestLease time.Duration // longest lease
	hasLongest   bool
}

type multiConfig struct{ roundTime time.Duration }

type lockOption func(c *lockConfig)

func (o lockOption) optionOfAnyLock(c *lockConfig)               { o(c) }
func (o lockOption) optionOfNewLock(c *lockConfig)               { o(c) }
func (o lockOption) optionOfNewSpinLock(c *spinConfig)           { o(&c.lockConfig) }
func (o lockOption) optionOfNewReadWriteLock(c *readWriteConfig) { o(&c.lockConfig) }
func (o lockOption) optionOfNewPriorityLock(c *priorityConfig)   { o(&c.lockConfig) }
func (o lockOption) optionOfNewRedLock(c *redConfig)             { o(&c.lockConfig) }

type holdOption struct{ lockOption }

func (o holdOption) optionOfAnyHold(c *lockConfig)              { o.lockOption(c) }
func (o holdOption) optionOfNewPermitSemaphore(c *permitConfig) { o.lockOption(&c.lockConfig) }
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

// lockOptions applies the options of a constructor to the default settings of a type.
func lockOptions[C any, O comparable](usual C, opts []O, to func(O, *C)) (C, error) {
	if len(opts) == 0 {
		return usual, nil // without an allocation
	}
	cfg := usual
	err := applyEach(opts, func(o O) { to(o, &cfg) })
	return cfg, err
}

// WithNonReentrant makes a lock refuse its own owner: an acquire whose ctx descends from a hold of the lock
// fails with ErrReentrant. By default it enters again.
func WithNonReentrant() AnyLockOption {
	return lockOption(func(c *lockConfig) { c.nonReentrant = true })
}

// WithMaxHold ends a renewed hold d after it began, for code that may hang: the lease is lost with
// ErrMaxHold, and Unlock, or the end of the lease in Redis, frees the lock. The default is 0: no bound.
// Otherwise d is at least [MinLease].
func WithMaxHold(d time.Duration) HoldOption {
	return holdOption{func(c *lockConfig) { c.maxHold = d }}
}

// WithPermits sets how many permits there are, from 1 to MaxPermits: an acquire sets n if none are set, at
// first and when Redis has lost its data. By default it fails with ErrNotSet then. A number that was set
// stays. Give all clients the same n. With it a Release never puts back more than were set and added by
// rlock: it is not for a [Semaphore] that Java adds to.
func WithPermits(n int) SemaphoreOption { return permitsOption(n) }

// WithHandOver limits how long a Lock stays within one client: its waiters get it from each other without
// Redis at most passes times, and only within that time since the grant; then other clients get a turn. The
// default is 64 and 10 ms; WithHandOver(0, 0) turns it off. See
// https://go-rlock.github.io/rlock/latest/how-it-works/#hand-over
func WithHandOver(passes int, within time.Duration) LockOption {
	return handOverOption{passes, within}
}

// The methods of the option types have the name of the call, so that the compiler says of which an option is not one:
// "missing method optionOfTryLock".

// AcquireOption is an option of a call that waits for a lease: [WithLease] and [WithWait].
type AcquireOption interface{ optionOfLock(c *acquireConfig) }

// TryOption is an option of a call that takes a lease or fails: [WithLease].
type TryOption interface {
	AcquireOption
	optionOfTryLock()
}

// WaitOption is an option of a call that waits, also for no lease: [WithWait].
type WaitOption interface {
	AcquireOption
	optionOfWait()
}

type acquireConfig struct {
	lease     time.Duration
	hasLease  bool
	wait      time.Duration
	hasWait   bool
	waits     time.Duration // whole wait of the caller, for the error, if wait is only a part
	value     string        // only for an Election
	isRetried bool          // the caller tries again after a refusal, so its error need not name the holder
	// before is called before each request for the lock. An error ends the acquire, or counts as an unanswered request.
	before func(ctx context.Context) error
}

// limit returns the wait of the caller.
func (c *acquireConfig) limit() time.Duration {
	if c.waits > 0 {
		return c.waits
	}
	return c.wait
}

// mustNotWait reports whether the call must not wait.
func (c *acquireConfig) mustNotWait() bool { return c.hasWait && c.wait == 0 }

// within returns ctx with the end of the wait as its deadline.
func (c *acquireConfig) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if !c.hasWait || c.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.wait)
}

type leaseOption time.Duration

func (o leaseOption) optionOfLock(c *acquireConfig) { c.lease, c.hasLease = time.Duration(o), true }
func (leaseOption) optionOfTryLock()                {}

type waitOption time.Duration

func (o waitOption) optionOfLock(c *acquireConfig) { c.wait, c.hasWait = time.Duration(o), true }
func (waitOption) optionOfWait()                   {}

// valueOption sets the value that a candidate of an Election proclaims.
type valueOption string

func (o valueOption) optionOfLock(c *acquireConfig) { c.value = string(o) }

// partOption sets the wait of the whole MultiLock, for the error of a member.
type partOption time.Duration

func (o partOption) optionOfLock(c *acquireConfig) { c.waits = time.Duration(o) }

// againOption marks a member of a MultiLock that is tried again if it is not free.
type againOption struct{}

func (againOption) optionOfLock(c *acquireConfig) { c.isRetried = true }
func (againOption) optionOfTryLock()              {}

// beforeOption sets a function that a type calls before each request for its lock.
type beforeOption func(ctx context.Context) error

func (o beforeOption) optionOfLock(c *acquireConfig) { c.before = o }
func (beforeOption) optionOfWait()                   {}

// WithLease makes the hold end after d even if the work goes on: it turns renewal OFF. Without it a hold is
// renewed until Unlock, however long the work takes, and ends at most 30 s after its process has died
// ([WithWatchdogLease]). d is from MinLease to MaxLease, rounded up to whole milliseconds, and WithDrift
// must leave some of it. A hold lasts as long as the longest of its leases.
func WithLease(d time.Duration) TryOption { return leaseOption(d) }

// WithWait gives up after d; by default only ctx bounds a wait. The error then matches ErrNotAcquired, or
// ErrUnreachable or ErrRefused in an outage, and never a context error: see
// https://go-rlock.github.io/rlock/latest/errors/#when-an-acquire-fails. Zero means one attempt, which waits
// for Redis as TryLock does.
func WithWait(d time.Duration) WaitOption { return waitOption(d) }

// callOption is any of the option types of a call.
type callOption interface {
	comparable
	AcquireOption
}

func readOptions[O callOption](c *acquireConfig, opts []O) error {
	if err := applyEach(opts, func(o O) { o.optionOfLock(c) }); err != nil {
		return err
	}
	if c.wait < 0 {
		return invalid("WithWait(%v): negative", c.wait)
	}
	return nil
}

// waitOptions reads the options of a wait without a lease.
func waitOptions(opts []WaitOption) (acquireConfig, error) {
	if len(opts) == 0 {
		return acquireConfig{}, nil // without an allocation
	}
	var c acquireConfig
	err := readOptions(&c, opts)
	return c, err
}

// Backoff is how long a waiter of a [SpinLock] pauses between two polls, less a random part of up to
// half; at most the rest of the holder's lease.
type Backoff struct{ first, longest time.Duration }

// ExponentialBackoff pauses for first, then twice as long each time, up to longest. Both must be
// between [MinBackoff] and [MaxLease].
func ExponentialBackoff(first, longest time.Duration) Backoff { return Backoff{first, longest} }

// ConstantBackoff pauses for d each time, from [MinBackoff] to [MaxLease].
func ConstantBackoff(d time.Duration) Backoff { return Backoff{d, d} }

func (b Backoff) check() error {
	if b.first < MinBackoff || b.longest < b.first || b.longest > MaxLease {
		return invalid("WithBackoff(%v to %v): pauses must be between %v and %v, and the longest not shorter than the first", b.first, b.longest, MinBackoff, MaxLease)
	}
	return nil
}

// pause returns how long to sleep after request n, counted from 0.
func (b Backoff) pause(seed uint64, who int64, n int) time.Duration {
	d := b.first
	for range n {
		if d >= b.longest/2 {
			d = b.longest
			break
		}
		d *= 2
	}
	return d - seam.Jitter(seed, who, n, d/2)
}

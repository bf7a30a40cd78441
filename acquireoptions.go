package rlock

import (
	"context"
	"time"
)

// AcquireOption configures one call that waits for a lease: Lock, Campaign, Enter, or the
// Acquire of a [PermitSemaphore].
type AcquireOption interface{ acquire(c *acquireConfig) }

// TryOption configures one call that takes a lease and does not wait, TryLock or TryAcquire,
// or one that waits for it.
type TryOption interface {
	AcquireOption
	try()
}

// WaitOption configures one call that waits: for a lease, or for something that has none,
// as the Acquire of a [Semaphore] and the Wait of a [CountDownLatch] do.
type WaitOption interface {
	AcquireOption
	wait()
}

type acquireConfig struct {
	lease    time.Duration
	hasLease bool
	wait     time.Duration
	hasWait  bool
	waits    time.Duration // what an error says instead of wait, of which it may be the rest
	value    string        // of an Election
}

// limit is the wait that was asked for.
func (c *acquireConfig) limit() time.Duration {
	if c.waits > 0 {
		return c.waits
	}
	return c.wait
}

// looksOnce reports whether the call may not wait at all.
func (c *acquireConfig) looksOnce() bool { return c.hasWait && c.wait == 0 }

// within is ctx with the end of the wait.
func (c *acquireConfig) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if !c.hasWait || c.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.wait)
}

type leaseOption time.Duration

func (o leaseOption) acquire(c *acquireConfig) { c.lease, c.hasLease = time.Duration(o), true }
func (leaseOption) try()                       {}

type waitOption time.Duration

func (o waitOption) acquire(c *acquireConfig) { c.wait, c.hasWait = time.Duration(o), true }
func (waitOption) wait()                      {}

// valueOption is what a candidate of an Election proclaims.
type valueOption string

func (o valueOption) acquire(c *acquireConfig) { c.value = string(o) }

// partOption is for a member of a MultiLock: the wait of the whole.
type partOption time.Duration

func (o partOption) acquire(c *acquireConfig) { c.waits = time.Duration(o) }

// WithLease gives the hold a fixed lease, rounded up to whole milliseconds, and no
// renewal: Redis frees the lock when it is over. It must be between [MinLease] and
// [MaxLease], and WithDrift must leave some of it. Without WithLease the hold has the
// watchdog lease and is renewed until it is unlocked or lost. A re-entry shares one hold
// in Redis with the leases that it joins, which lasts as long as the longest of them:
// while one is renewed, all are.
func WithLease(d time.Duration) TryOption { return leaseOption(d) }

// WithWait bounds how long a call waits. When it is over, the call returns an error that
// matches ErrNotAcquired but no context error. Zero means one look; a negative time is
// refused. The default is no bound but the context's.
func WithWait(d time.Duration) WaitOption { return waitOption(d) }

// callOption is any of the option types of a call.
type callOption interface {
	comparable
	AcquireOption
}

// given reads the options of a call into c.
func given[O callOption](c *acquireConfig, opts []O) error {
	if err := applyEach(opts, func(o O) { o.acquire(c) }); err != nil {
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
		return acquireConfig{}, nil // it allocates nothing
	}
	var c acquireConfig
	err := given(&c, opts)
	return c, err
}

package rlock

import (
	"context"
	"time"
)

// The methods of the option types have the name of the call, so that the compiler says of which an option is not one:
// "missing method optionOfTryLock".

// AcquireOption configures a call that waits for a lease.
type AcquireOption interface{ optionOfLock(c *acquireConfig) }

// TryOption configures a call that takes a lease: [WithLease].
type TryOption interface {
	AcquireOption
	optionOfTryLock()
}

// WaitOption configures a call that waits, for whatever: [WithWait].
type WaitOption interface {
	AcquireOption
	optionOfWait()
}

type acquireConfig struct {
	lease    time.Duration
	hasLease bool
	wait     time.Duration
	hasWait  bool
	waits    time.Duration // what an error says instead of wait, of which it may be the rest
	value    string        // of an Election
	again    bool          // after a refusal its caller goes on, and nobody is told of the holder
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

func (o leaseOption) optionOfLock(c *acquireConfig) { c.lease, c.hasLease = time.Duration(o), true }
func (leaseOption) optionOfTryLock()                {}

type waitOption time.Duration

func (o waitOption) optionOfLock(c *acquireConfig) { c.wait, c.hasWait = time.Duration(o), true }
func (waitOption) optionOfWait()                   {}

// valueOption is what a candidate of an Election proclaims.
type valueOption string

func (o valueOption) optionOfLock(c *acquireConfig) { c.value = string(o) }

// partOption is for a member of a MultiLock: the wait of the whole.
type partOption time.Duration

func (o partOption) optionOfLock(c *acquireConfig) { c.waits = time.Duration(o) }

// againOption is for a member of a MultiLock that is tried again if it is not free.
type againOption struct{}

func (againOption) optionOfLock(c *acquireConfig) { c.again = true }
func (againOption) optionOfTryLock()              {}

// WithLease gives the hold a fixed lease, from MinLease to MaxLease, in whole milliseconds, and no
// renewal; WithDrift must leave some of it. A hold lasts as long as the longest of its leases.
func WithLease(d time.Duration) TryOption { return leaseOption(d) }

// WithWait bounds how long a call waits. Then its error matches no context error, but ErrNotAcquired; in
// an outage ErrUnreachable or ErrRefused: see
// https://go-rlock.github.io/rlock/latest/locks/#when-an-acquire-fails. Zero means one attempt, which
// waits for Redis as TryLock does.
func WithWait(d time.Duration) WaitOption { return waitOption(d) }

// callOption is any of the option types of a call.
type callOption interface {
	comparable
	AcquireOption
}

// given reads the options of a call into c.
func given[O callOption](c *acquireConfig, opts []O) error {
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
		return acquireConfig{}, nil // it allocates nothing
	}
	var c acquireConfig
	err := given(&c, opts)
	return c, err
}

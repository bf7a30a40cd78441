package rlock

import (
	"context"
	"fmt"
	"time"
)

// WithFailoverQuarantine keeps a server that was promoted, has restarted or was flushed
// from granting locks until every lease that it may not know has run out: for the
// longest lease, on the server's clock, from the first acquire that reaches it. Until
// then Lock waits, and TryLock fails with ErrNotAcquired. Holds that the server knows
// continue; those that it has lost are lost. docs/failover.md says what defeats it.
//
// longest is the longest lease that the client may ask for; longer ones are refused. It
// must be between the watchdog lease and [MaxLease], and the same for all clients of the
// server with one prefix, which must all use the option: each prefix is in quarantine by
// itself. A new server is in quarantine too, unless [Client.BootstrapServer] ends it. It
// needs a *redis.Client, to one server or by Sentinel, and permission to use INFO in
// scripts, about 5 µs of server time per acquire. A [RedLock] has [WithRestartQuarantine]
// instead.
func WithFailoverQuarantine(longest time.Duration) Option {
	return func(c *config) { c.quarantined, c.longest = true, longest }
}

// BootstrapServer lets a new server grant locks at once, for clients that use
// [WithFailoverQuarantine]. It is for the operator, once: no lock may have been held
// there within the longest lease. The error matches
//   - ErrInvalidArgument if the client does not use the option, or the server has
//     granted locks before, as another process: then wait for the quarantine after the
//     failover or restart to end;
//   - ErrUnreachable, ErrRefused, ErrClosed, or it is the context's.
func (c *Client) BootstrapServer(ctx context.Context) error {
	switch {
	case !c.made():
		return fmt.Errorf("rlock: %w", errNoClient)
	case ctx == nil:
		return fmt.Errorf("rlock: %w", errNoContext)
	}
	q := c.cfg.quarantine()
	if q == 0 {
		return fmt.Errorf("rlock: BootstrapServer: %w", invalid("the client does not use WithFailoverQuarantine"))
	}
	if !c.begin() {
		return fmt.Errorf("rlock: BootstrapServer: %w", ErrClosed)
	}
	defer c.end()
	r := c.site.Serve().Do(ctx, c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return fmt.Errorf("rlock: BootstrapServer: %w", r.Err)
	case !r.Outcome:
		return fmt.Errorf("rlock: BootstrapServer: %w", invalid("the server was promoted or has restarted: it is not a new deployment"))
	}
	return nil
}

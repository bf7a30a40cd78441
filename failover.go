package rlock

import (
	"context"
	"fmt"
	"time"
)

// WithFailoverQuarantine keeps a server that was promoted, has restarted or was flushed from granting
// locks until every lease that it may not know has run out: for the longest lease, on the server's
// clock, from the first acquire that reaches it. Until then Lock waits, and TryLock fails with
// ErrNotAcquired. Holds that the server knows continue.
//
// longest is from the watchdog lease to MaxLease, the same for all clients of the server and prefix,
// which must all use the option; longer leases are refused. A new server is in quarantine too
// ([Client.BootstrapServer]). It needs a *redis.Client and permission to use INFO in scripts.
// docs/failover.md says what defeats it.
func WithFailoverQuarantine(longest time.Duration) Option {
	return func(c *config) { c.quarantined, c.longest = true, longest }
}

// BootstrapServer lets a new server grant locks at once, for clients WithFailoverQuarantine. It is for
// the operator, once: no lock may have been held there within the longest lease. ErrInvalidArgument:
// the client does not use the option, or the server has granted locks before.
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

package rlock

import (
	"context"
	"fmt"
	"time"
)

// WithFailoverQuarantine keeps a server that was promoted, has restarted or was flushed from granting
// locks until every lease that it may not know has run out: for the longest lease, from the first
// acquire that reaches it. Until then Lock waits, and TryLock fails with ErrNotAcquired. All clients of
// the server must use it with the same longest; longer leases are refused. A new server is in quarantine
// too ([Client.BootstrapServer]). It needs a *redis.Client and INFO in scripts. What defeats it:
// https://go-rlock.github.io/rlock/latest/failover/
func WithFailoverQuarantine(longest time.Duration) Option {
	return func(c *config) { c.quarantined, c.longest = true, longest }
}

// BootstrapServer lets a new server grant locks at once, for clients [WithFailoverQuarantine]. It is for
// the operator, once: no lock may have been held there within the longest lease. ErrInvalidArgument:
// there is no quarantine, or the server has granted locks before.
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

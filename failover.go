package rlock

import (
	"context"
	"fmt"
	"time"
)

// WithFailoverQuarantine keeps a server that was promoted, has restarted or was
// flushed from giving out locks until no lease can be valid any more of which it
// may not know: for the longest lease, counted by the server's clock from the first
// acquire that reaches it. A clock that jumps ahead in that time cuts it short, and a
// master that was demoted and promoted again before any acquire has reached the one
// in between is not noticed. Until then Lock waits, and TryLock fails with ErrNotAcquired.
// Holds that the server does know go on; those that it has lost are lost.
//
// longest is the longest lease that the client may ask for; longer ones are
// refused. It must be between the watchdog lease and [MaxLease], and the same for
// all clients of the server. All of them have to use the option: Redisson has no
// counterpart. A new server is in quarantine too, unless it is let off by
// [Client.BootstrapServer].
//
// It needs a *redis.Client, to one server or by Sentinel, and leave to use INFO in
// scripts. It adds an INFO to each script that acquires, about 5 µs of server time.
// See [WithReplicaAck] for what it is good for. A [RedLock] has a quarantine of its
// own, [WithRestartQuarantine].
func WithFailoverQuarantine(longest time.Duration) Option {
	return func(c *config) { c.quarantined, c.longest = true, longest }
}

// BootstrapServer lets a new server give out locks at once, for clients that use
// [WithFailoverQuarantine]. It is for the operator, once: it relies on that no lock
// was held there within the longest lease. The error matches
//   - ErrInvalidArgument if the client does not use the option, or the server has
//     given out locks before, as another process: then a failover or a restart is to
//     be waited for;
//   - ErrUnreachable, ErrClosed, or it is the context's or Redis's.
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
		return fmt.Errorf("rlock: BootstrapServer: %w", invalid("the server was promoted or has restarted: this is no new deployment"))
	}
	return nil
}

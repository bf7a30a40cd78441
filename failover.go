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
// [Client.Bootstrap].
//
// It needs a *redis.Client, to one server or by Sentinel, and leave to use INFO in
// scripts. It adds an INFO to each script that acquires, about 5 µs of server time.
// See [WithReplicaAck] for what it is good for. A [RedLock] has a quarantine of its
// own, [WithRestartQuarantine].
func WithFailoverQuarantine(longest time.Duration) Option {
	return func(c *config) { c.quarantined, c.longest = true, longest }
}

// servedKey says which process of a server may give out locks, and from when.
const servedKey = "rlock:served"

// quarantine is for how long a server that is new gives out none.
func (c *config) quarantine() time.Duration {
	if !c.quarantined {
		return 0
	}
	return c.longest + time.Duration(float64(c.longest)*c.driftFactor) + c.driftFloor
}

// acked has replicas confirm a request, if that was asked for.
func (l *core) acked(r *request) *request {
	if r.do == nil {
		r.acks, r.within = l.c.cfg.acks, l.c.cfg.ackTimeout
	}
	return r
}

// errAcks says that too few replicas have confirmed a request.
func errAcks(r *request, a answer) error {
	return fmt.Errorf("%d of %d replicas confirmed within %v", a.acks, r.acks, r.within)
}

// served makes an acquire one that a server in quarantine does not obey, if that
// was asked for. The reply is {-3, ms} then.
func (c *Client) served(r *request) *request {
	if q := c.cfg.quarantine(); q > 0 && r.do == nil {
		r.script = c.scripts[r.script.name+servedSuffix]
		r.keys = append(r.keys, servedKey)
		r.args = append(r.args, q.Milliseconds())
	}
	return r
}

// Bootstrap lets a new server give out locks at once, for clients that use
// [WithFailoverQuarantine]. It is for the operator, once: it relies on that no lock
// was held there within the longest lease. The error matches
//   - ErrInvalidArgument if the client does not use the option, or the server has
//     given out locks before, as another process: then a failover or a restart is to
//     be waited for;
//   - ErrUnreachable, ErrClosed, or it is the context's or Redis's.
func (c *Client) Bootstrap(ctx context.Context) error {
	switch {
	case !c.made():
		return fmt.Errorf("rlock: %w", errNoClient)
	case ctx == nil:
		return fmt.Errorf("rlock: %w", errNoContext)
	}
	q := c.cfg.quarantine()
	if q == 0 {
		return fmt.Errorf("rlock: Bootstrap: %w", invalid("the client does not use WithFailoverQuarantine"))
	}
	if !c.begin() {
		return fmt.Errorf("rlock: Bootstrap: %w", ErrClosed)
	}
	defer c.end()
	a := c.call(ctx, c.cfg.commandTimeout, &request{script: c.scripts["serve"], keys: []string{servedKey}})
	n, err := a.int()
	switch {
	case a.err != nil:
		return fmt.Errorf("rlock: Bootstrap: %w", a.err)
	case err != nil:
		return fmt.Errorf("rlock: Bootstrap: %w", err)
	case n != 1:
		return fmt.Errorf("rlock: Bootstrap: %w", invalid("the server was promoted or has restarted: this is no new deployment"))
	}
	return nil
}

package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Ping is for a readiness probe. It returns nil if the server, or each master of a cluster, would grant
// a free lock now, and no renewal of this client is late. Otherwise the error is that of an acquire or a
// renewal. It returns within the command time-out. Of a RedLock, ask each client.
func (c *Client) Ping(ctx context.Context) error {
	switch {
	case !c.made():
		return &Error{Err: errNoClient}
	case ctx == nil:
		return &Error{Err: errNoContext}
	case !c.begin():
		return &Error{Err: ErrClosed}
	}
	defer c.end()
	_, failed, err := c.pingMasters(ctx, true)
	if err != nil {
		return &Error{Err: err}
	}
	for _, err := range failed {
		if err != nil {
			return &Error{Err: err}
		}
	}
	late, first, why := c.lateRenewals()
	if late == 0 {
		return nil
	}
	err = fmt.Errorf("renewals of %d holds are late: the first lease ends in %v", late, first.Round(time.Millisecond))
	if why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return &Error{Err: err}
}

// pingMasters asks each master whether it grants locks, and asLock also whether the user may acquire
// one, and returns why not.
func (c *Client) pingMasters(ctx context.Context, asLock bool) (masters []wire.Master, failed []error, err error) {
	began := time.Now()
	masters, err = c.wire.Masters(ctx, c.cfg.commandTimeout)
	if err != nil {
		return nil, nil, err
	}
	left := func() time.Duration { return max(c.cfg.commandTimeout-time.Since(began), time.Millisecond) }
	keys, err := c.site.PingKeys(ctx, c.cfg.prefix, masters, left())
	if err != nil {
		return nil, nil, err
	}
	var asks []func() (struct{}, error)
	for i, m := range masters {
		asks = append(asks, func() (struct{}, error) {
			if keys[i] == "" {
				return struct{}{}, nil // none of its slots can have a lock with the prefix
			}
			err := granted(c.site.Ping(keys[i], asLock).Do(ctx, left()))
			if err != nil && m.Addr != "" {
				err = fmt.Errorf("%s: %w", m.Addr, err)
			}
			return struct{}{}, err
		})
	}
	for _, r := range wire.Together(c.wire, len(asks), asks) {
		failed = append(failed, r.Err)
	}
	if err := ctx.Err(); err != nil && slices.ContainsFunc(failed, func(e error) bool { return errors.Is(e, err) }) {
		return nil, nil, err
	}
	return masters, failed, nil
}

// granted is why a lock would not have been granted.
func granted(r protocol.Result[protocol.Entered]) error {
	if err := confirmed(&r, ErrNotAcquired); err != nil {
		return err
	}
	if r.Outcome.Verdict == protocol.Quarantined {
		return because(ErrNotAcquired, protocol.InQuarantine{Left: r.Outcome.Rest})
	}
	return nil
}

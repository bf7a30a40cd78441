package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Stats are figures of a [Client]: what there is now, and totals since New.
type Stats struct {
	Holds    int // holds of locks, also of members; several leases of one owner are one
	Waiters  int // acquires and other waits in line, without calls that send their first request
	CleanUps int // ends of holds that are repeated, because Redis has not confirmed them

	Renewals       int64 // renewals that Redis has confirmed
	FailedRenewals int64 // failed renewals, each try counted
	Losses         int64 // holds that have ended before they were unlocked
}

// Stats returns how many holds and waiters this client has, and how many renewals and losses it had. A
// RedLock is counted by its first client.
func (c *Client) Stats() Stats {
	if !c.made() {
		return Stats{}
	}
	return Stats{
		Holds:          c.watchdog.held(),
		CleanUps:       c.cleanups.Count(),
		Waiters:        c.lines.Count(),
		Renewals:       c.totals.renewals.Load(),
		FailedRenewals: c.totals.failedRenewals.Load(),
		Losses:         c.totals.losses.Load(),
	}
}

// Held returns the open leases of the client, neither unlocked nor lost, the oldest first; for a MultiLock
// the leases of its members. It sends nothing.
func (c *Client) Held() []*Lease {
	if !c.made() {
		return nil
	}
	var all []*Lease
	for _, h := range c.watchdog.all() {
		all = h.openTo(all)
	}
	slices.SortFunc(all, func(a, b *Lease) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.HoldID(), b.HoldID()), cmp.Compare(a.Name(), b.Name()))
	})
	return all
}

// openTo adds the open leases of a hold to a list.
func (h *hold) openTo(all []*Lease) []*Lease {
	h.lock()
	defer h.unlock()
	if h.checkLocked(h.core.c.now()); h.state != held {
		return all
	}
	for l := h.leases; l != nil; l = l.nextOpen {
		if !l.isUnlocked {
			all = append(all, l)
		}
	}
	return all
}

// lateRenewals returns the number of holds without a confirmed renewal for two thirds of their lease or
// longer; a renewal is due each third. first is when the first of these holds is lost, and why is the
// error of its renewal, or nil if unknown.
func (c *Client) lateRenewals() (late int, first time.Duration, why error) {
	for _, h := range c.watchdog.all() {
		h.lock()
		now := c.now()
		h.checkLocked(now)
		if left := h.deadline.Sub(now); h.state == held && h.renewedCount > 0 && left < c.cfg.watchdogLease/3 {
			if late++; late == 1 || left < first {
				first, why = left, h.rareState().failure
			}
		}
		h.unlock()
	}
	return late, first, why
}

// Ping is for a readiness probe. It returns nil if the server, or each master of a cluster, would grant a
// free lock now, and no renewal of this client is late. Otherwise the error is as from an acquire or a
// renewal. It returns within the command timeout. For a RedLock, ping each client.
func (c *Client) Ping(ctx context.Context) error {
	if err := c.enter(ctx); err != nil {
		return &Error{Err: err}
	}
	defer c.endCall()
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

// pingMasters requests from each master whether it grants locks. If asLock is true, it also checks whether the user may
// acquire a lock. It returns why not.
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
	var pings []func() (struct{}, error)
	for i, m := range masters {
		pings = append(pings, func() (struct{}, error) {
			if keys[i] == "" {
				return struct{}{}, nil // no slot of this master can have a lock with the prefix
			}
			err := granted(c.site.Ping(keys[i], asLock).Do(ctx, left()))
			if err != nil && m.Addr != "" {
				err = fmt.Errorf("%s: %w", m.Addr, err)
			}
			return struct{}{}, err
		})
	}
	for _, r := range wire.Together(c.wire, len(pings), pings) {
		failed = append(failed, r.Err)
	}
	if err := ctx.Err(); err != nil && slices.ContainsFunc(failed, func(e error) bool { return errors.Is(e, err) }) {
		return nil, nil, err
	}
	return masters, failed, nil
}

// granted returns why a lock would not have been granted.
func granted(r protocol.Result[protocol.Entered]) error {
	if err := confirmed(&r, ErrNotAcquired); err != nil {
		return err
	}
	if r.Outcome.Verdict == protocol.Quarantined {
		return because(ErrNotAcquired, protocol.InQuarantine{Left: r.Outcome.Rest})
	}
	return nil
}

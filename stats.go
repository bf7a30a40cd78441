package rlock

import (
	"cmp"
	"slices"
	"time"
)

// Stats are figures of a [Client]: what there is now, and totals since New.
type Stats struct {
	Holds    int // holds of locks, also of members; several leases of one owner are one
	Waiters  int // acquires and other waits in line; one that looks for the first time is not
	CleanUps int // ends of holds that Redis has not confirmed, and that are repeated

	Renewals       int64 // that Redis has confirmed
	FailedRenewals int64 // each try
	Losses         int64 // holds that have ended before they were unlocked
}

// Stats returns figures of the client; a RedLock counts at its first.
func (c *Client) Stats() Stats {
	if !c.made() {
		return Stats{}
	}
	s := Stats{
		Waiters:        c.lines.count(),
		Renewals:       c.totals.renewals.Load(),
		FailedRenewals: c.totals.failedRenewals.Load(),
		Losses:         c.totals.losses.Load(),
	}
	s.Holds, s.CleanUps = c.watchdog.count()
	return s
}

// Held returns the open leases of the client, the oldest first: neither unlocked nor lost. Of a
// MultiLock it has those of the members.
func (c *Client) Held() []*Lease {
	if !c.made() {
		return nil
	}
	var all []*Lease
	for _, d := range c.watchdog.duties() {
		if h, ok := d.(*hold); ok {
			all = h.openTo(all)
		}
	}
	slices.SortStableFunc(all, func(a, b *Lease) int { return cmp.Compare(a.since, b.since) })
	return all
}

// openTo adds the open leases of a hold to a list.
func (h *hold) openTo(all []*Lease) []*Lease {
	h.lock()
	defer h.unlock()
	if h.checkLocked(h.core.c.now()); h.state != held {
		return all
	}
	for l := h.leases; l != nil; l = l.next {
		if !l.unlocked {
			all = append(all, l)
		}
	}
	return all
}

// count is how many wait in any line.
func (q *lines) count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.byKey {
		n += l.waiters.Len()
	}
	return n
}

// count is how many holds and clean-ups there are.
func (w *watchdog) count() (holds, cleanUps int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holding, w.cleaning
}

// lateRenewals is for how many holds no renewal was confirmed for two thirds of their lease or
// longer, of which one third is how often they are renewed; when the first of these is lost; and why
// its renewal has failed, if that is known.
func (c *Client) lateRenewals() (late int, first time.Duration, why error) {
	for _, d := range c.watchdog.duties() {
		h, ok := d.(*hold)
		if !ok {
			continue
		}
		h.lock()
		now := c.now()
		h.checkLocked(now)
		if left := h.deadline.Sub(now); h.state == held && h.renewed > 0 && left < c.cfg.watchdogLease/3 {
			if late++; late == 1 || left < first {
				first, why = left, h.failureLocked()
			}
		}
		h.unlock()
	}
	return late, first, why
}

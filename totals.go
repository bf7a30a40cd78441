package rlock

import "sync/atomic"

// totals are what a client counts from its beginning: see Stats.
type totals struct{ renewals, failedRenewals, losses atomic.Int64 }

// renewed counts the answer to a renewal.
func (t *totals) renewed(err error) {
	if err == nil {
		t.renewals.Add(1)
	} else {
		t.failedRenewals.Add(1)
	}
}

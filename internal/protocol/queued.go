package protocol

import (
	"strings"
	"time"
)

var _ Reentrant = (*Queued)(nil)

// Queued is the protocol of FairReadWriteLock and PriorityLock, and most of the protocol of an Election.
// Redisson does not have these types, so the format of their queue in Redis is specific to this module. Holds may be
// shared, and each hold has a separate expiry. Each waiter has a rank; the lowest is first.
//
// The rank is the time of arrival less the worth of the waiter's priority. A waiter keeps its rank
// as long as it sends requests. Only the ranks decide who may enter: an exclusive waiter when the lock
// is free and no waiter is before it, a shared waiter when there is no exclusive hold and no exclusive
// waiter before it.
type Queued struct {
	located
	eachWaits
	kind      string // ID of the Kind
	mode      string
	stateKeys keys // see scripts/shared/queuekeys.lua
	// rivals are the keys of the holds of other types with this name: none of them may be held.
	rivals   []string
	channels string // prefix of the channels of clients with waiters
	changes  string // channel on which changes of the exclusive hold are announced, or empty
	// worth is the worth of one step of priority, in µs of waiting.
	worth int64
}

// The names in Redis of the types with such a queue, and of the modes of their holds.
const (
	priorityLock      = "rlock:priority"
	fairReadWriteLock = "rlock:fairrw"

	exclusive = "exclusive"
	shared    = "shared"
)

// neverAges is the aging period, in µs, of a lock without aging: 19 years, so that no
// waiter gains a step. Ten of it and the time since 1970 are below 2^53, up to which
// scores in Redis are exact.
const neverAges = 6e14

// NewPriority returns the protocol of a PriorityLock. A waiter gains a step of priority each
// time it has waited for aging. With an aging of 0 it gains none.
func NewPriority(site *Site, names *Names, aging time.Duration) *Queued {
	q := newQueued(site, names, "priority", priorityLock, fairReadWriteLock, exclusive)
	q.worth = neverAges
	if aging > 0 {
		q.worth = aging.Microseconds()
	}
	return q
}

// NewFairReadSide returns the protocol of the shared side of a FairReadWriteLock.
func NewFairReadSide(site *Site, names *Names) *Queued {
	return newQueued(site, names, "fairread", fairReadWriteLock, priorityLock, shared)
}

// NewFairWriteSide returns the protocol of the exclusive side of a FairReadWriteLock.
func NewFairWriteSide(site *Site, names *Names) *Queued {
	return newQueued(site, names, "fairwrite", fairReadWriteLock, priorityLock, exclusive)
}

func newQueued(site *Site, names *Names, kind, what, other, mode string) *Queued {
	q := queuedAt(site, names, kind, what, mode)
	q.rivals = []string{names.Lock, names.Derived(other + ":ends")}
	return q
}

func queuedAt(site *Site, names *Names, kind, what, mode string) *Queued {
	names.keep()
	base := names.Derived(what)
	return &Queued{
		located:   located{site, names},
		kind:      kind,
		mode:      mode,
		stateKeys: []string{base, base + ":ends", base + ":queue", base + ":queue:shared", base + ":alive", base + ":line"},
		channels:  base + ":turn:",
	}
}

// hold returns the keys of the state that an existing hold needs. While a cluster moves
// their slot, a request fails if one of its keys does not exist, and the queue rarely does.
func (q *Queued) hold() []string { return q.stateKeys[:2:2] }

// reads is the suffix of the id of a shared hold in the name of its tombstone: an exclusive hold may have the same id.
const reads = ":shared"

// tombstone returns the key of the tombstone of a hold of this side.
func (q *Queued) tombstone(id string) string {
	if q.mode == shared {
		id += reads
	}
	return q.names.Tombstone(id)
}

// term returns the waiter lease, in ms.
func (q *Queued) term() int64 { return q.site.WaiterLease.Milliseconds() }

// Enter implements Protocol.
func (q *Queued) Enter(e *Acquire) Request[Entered] {
	args := q.announcing(e.ID, e.Lease.Milliseconds(), q.mode, q.term(), e.Outer, flag(e.Wait), int64(e.Priority)*q.worth)
	if q.changes != "" {
		args = append(args, e.Value)
	}
	keys := append(make([]string, 0, len(q.stateKeys)+5), q.stateKeys...) // one more for the quarantine
	keys = append(keys, q.tombstone(e.ID), q.site.clock(q.names))
	return newEnterRequest(q.site, "queue/enter", append(keys, q.rivals...), args, readEntered).draw(q.names)
}

// announcing returns the arguments of a script that may wake waiters: args, and the arguments with which it
// wakes them.
func (q *Queued) announcing(args ...any) []any {
	all := append(append(make([]any, 0, len(args)+5), args...), q.channels, q.site.how())
	if q.changes != "" {
		all = append(all, q.changes)
	}
	return all
}

// Reenter implements Reentrant.
func (q *Queued) Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept] {
	return q.site.newReenterTask("queue/reenter", confirm, q.hold(), []any{id, lease.Milliseconds(), q.mode, n})
}

// Release implements Protocol.
func (q *Queued) Release(id string, n int) Task {
	return q.site.newReleaseTask("queue/release", n, q.stateKeys,
		q.announcing(id, n, q.mode, q.term()))
}

// Abandon implements Protocol.
func (q *Queued) Abandon(id string, lateCopies bool) Task {
	return q.site.newEndTask("queue/abandon", q.stateKeys.and(q.tombstone(id)),
		q.announcing(id, tombstoneArg(lateCopies), q.mode, q.term()))
}

// Renew implements Protocol.
func (q *Queued) Renew(id string, lease time.Duration) Task {
	return q.site.newRenewTask("queue/renew", lease, q.hold(), []any{id, lease.Milliseconds(), q.mode})
}

// ForceUnlock implements Protocol. Live waiters keep their places.
func (q *Queued) ForceUnlock(holdID string) Request[bool] {
	return q.site.newForceRequest("queue/force_unlock", holdID, q.stateKeys,
		q.announcing(holdID, q.mode, q.term()))
}

// Inspect implements Protocol. It shows both sides.
func (q *Queued) Inspect() Request[State] {
	return newRequest(q.site, "queue/inspect", q.stateKeys, nil, readState)
}

// Probe implements Protocol.
func (q *Queued) Probe(id string) Request[Probed] {
	return newRequest(q.site, "queue/probe", q.hold(), []any{id, q.mode}, readProbed)
}

// View implements Protocol.
func (q *Queued) View() any { return view{"queue/inspect", q.stateKeys[0], q.channels} }

// Listen implements Protocol. The waiters of a client share a channel. A message there
// names the waiter that can enter. There is no channel for an empty id.
func (q *Queued) Listen(id string, notify func()) (end func()) {
	if id == "" {
		return nil
	}
	return q.site.listenFor(q.channels+clientOf(id), id, notify)
}

// Listening implements Queue.
func (q *Queued) Listening(id string) bool { return q.site.Listening(q.channels, clientOf(id)) }

// clientOf returns the client that made an id.
func clientOf(id string) string { return id[:max(strings.LastIndexByte(id, ':'), 0)] }

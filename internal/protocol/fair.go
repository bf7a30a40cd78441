package protocol

// Fair is the protocol of a FairLock: a Lock with a line of waiters in Redis, shared with
// Redisson's clients. A release wakes the next waiter only, on its own channel.
type Fair struct {
	ownedLock
	eachWaits
	line     keys   // keys of the scripts
	channels string // prefix of the waiters' channels
}

// NewFair returns the protocol of a FairLock.
func NewFair(site *Site, names *Names) *Fair {
	return &Fair{
		ownedLock: newOwnedLock(site, names),
		line: []string{
			names.Lock,
			prefixed("redisson_lock_queue", names.Lock),
			prefixed("redisson_lock_timeout", names.Lock),
			names.Derived("rlock:waiters"),
			names.Derived("rlock:line"),
		},
		channels: names.Channel() + ":",
	}
}

// term returns the waiter lease, in ms.
func (l *Fair) term() int64 { return l.site.WaiterLease.Milliseconds() }

// Enter implements Protocol.
func (l *Fair) Enter(e *Acquire) Request[Entered] {
	return newEnterRequest(l.site, "fair/enter",
		l.line.and(l.names.Tombstone(e.ID), l.site.clock(l.names)),
		[]any{e.ID, e.Lease.Milliseconds(), l.term(), flag(e.Wait), l.channels, l.site.how()}, readEntered).draw(l.names)
}

// Release implements Protocol.
func (l *Fair) Release(id string, n int) Task {
	return l.site.newReleaseTask("fair/release", n, l.line, []any{id, n, l.term(), l.channels, l.site.how()})
}

// Abandon implements Protocol.
func (l *Fair) Abandon(id string, lateCopies bool) Task {
	return l.site.newEndTask("fair/abandon",
		l.line.and(l.names.Tombstone(id)),
		[]any{id, tombstoneArg(lateCopies), l.term(), l.channels, l.site.how()})
}

// ForceUnlock implements Protocol. Live waiters keep their places.
func (l *Fair) ForceUnlock(holdID string) Request[bool] {
	return l.site.newForceRequest("fair/force_unlock", holdID, l.line, []any{holdID, l.term(), l.channels, l.site.how()})
}

// Inspect implements Protocol.
func (l *Fair) Inspect() Request[State] {
	return newRequest(l.site, "fair/inspect", l.line[:2], nil, readState)
}

// View implements Protocol.
func (l *Fair) View() any { return view{"fair/inspect", l.names.Lock, l.channels} }

// Listen implements Protocol. Each waiter has a separate channel. There is no channel for an
// empty id.
func (l *Fair) Listen(id string, notify func()) (end func()) {
	if id == "" {
		return nil
	}
	return l.site.listen(l.channels+id, notify)
}

// Listening implements Queue: each waiter has a separate channel, so it has to subscribe.
func (l *Fair) Listening(string) bool { return false }

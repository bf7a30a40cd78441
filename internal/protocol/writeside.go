package protocol

import "time"

var _ Reentrant = (*WriteSide)(nil)

// WriteSide is the protocol of the exclusive side of a ReadWriteLock.
type WriteSide struct{ readWrite }

// NewWriteSide returns the protocol of the exclusive side of a ReadWriteLock. Both sides
// must agree on whether readers are preferred.
func NewWriteSide(site *Site, names *Names, preferReaders bool) *WriteSide {
	return &WriteSide{newReadWrite(site, names, "write", preferReaders)}
}

// writes is the suffix of the id of a write hold in the name of its tombstone: the owner may have a read hold with
// the same id, and the two holds may end at different times.
const writes = ":write"

func (l *WriteSide) tombstone(id string) string { return l.names.Tombstone(id + writes) }

// Enter implements Protocol.
func (l *WriteSide) Enter(e *Acquire) Request[Entered] {
	keys := []string{l.names.Lock, l.tombstone(e.ID), l.site.clock(l.names)}
	if l.turns() {
		keys = append(keys, l.writers, l.admitted)
	}
	place, had := l.place(e)
	return newEnterRequest(l.site, "rw/write_enter", keys, []any{e.ID, e.Lease.Milliseconds(), l.timers, place, had}, readEntered).draw(l.names)
}

// Reenter implements Protocol.
func (l *WriteSide) Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept] {
	return l.site.newReenterTask("rw/write_reenter", confirm, []string{l.names.Lock}, []any{id, lease.Milliseconds(), n})
}

// Release implements Protocol.
func (l *WriteSide) Release(id string, n int) Task {
	t := l.site.newReleaseTask("rw/write_release", n, nil, []any{id, n, l.timers, l.channel, l.site.how()})
	if n == 0 && l.turns() {
		t.r.Put(3, l.names.Lock, l.boxed[0], l.boxed[1])
	} else {
		t.r.Put(1, l.names.Lock)
	}
	return t
}

// Abandon implements Protocol.
func (l *WriteSide) Abandon(id string, lateCopies bool) Task {
	keys := []string{l.names.Lock, l.tombstone(id)}
	if l.turns() {
		keys = l.leaving(append(keys, l.writers)...)
	}
	return l.site.newEndTask("rw/write_abandon", keys, []any{id, tombstoneArg(lateCopies), l.timers, l.channel, l.site.how()})
}

// Renew implements Protocol.
func (l *WriteSide) Renew(id string, lease time.Duration) Task {
	return l.site.newRenewTask("rw/write_renew", lease, []string{l.names.Lock}, []any{id, lease.Milliseconds()})
}

package protocol

import (
	"strconv"
	"time"
)

var _ Reentrant = (*ReadSide)(nil)

// ReadSide is the protocol of the shared side of a ReadWriteLock.
type ReadSide struct{ readWrite }

// NewReadSide returns the protocol of the shared side of a ReadWriteLock. Both sides
// must agree on whether readers are preferred.
func NewReadSide(site *Site, names *Names, preferReaders bool) *ReadSide {
	return &ReadSide{newReadWrite(site, names, "read", preferReaders)}
}

// timer returns the key whose TTL is the lease of the n-th entry of a read hold.
func timer(timers, id string, n int) string {
	return timers + id + ":rwlock_timeout:" + strconv.Itoa(n)
}

// Enter implements Protocol.
func (l *ReadSide) Enter(e *Acquire) Request[Entered] {
	keys := []string{l.names.Lock, l.names.Tombstone(e.ID), timer(l.timers, e.ID, 1)}
	if l.turns() {
		keys = append(keys, l.writers, l.readers, l.admitted)
	}
	since := ""
	if e.Round != NoRound {
		since = strconv.FormatInt(e.Round, 10)
	}
	place, had := l.place(e)
	return newEnterRequest(l.site, "rw/read_enter", keys,
		[]any{e.ID, e.Lease.Milliseconds(), l.timers, e.Outer, place, since, had}, readEntered)
}

// Reenter implements Protocol.
func (l *ReadSide) Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept] {
	return l.site.newReenterTask("rw/read_reenter", confirm,
		[]string{l.names.Lock, timer(l.timers, id, 1), timer(l.timers, id, n)},
		[]any{id, lease.Milliseconds(), l.timers, n})
}

// Release implements Protocol.
func (l *ReadSide) Release(id string, n int) Task {
	return l.site.newReleaseTask("rw/read_release", n, []string{l.names.Lock},
		[]any{id, n, l.timers, l.channel, l.site.how()})
}

// Abandon implements Protocol.
func (l *ReadSide) Abandon(id string, lateCopies bool) Task {
	keys := []string{l.names.Lock, l.names.Tombstone(id)}
	if l.turns() {
		keys = append(keys, l.readers, l.admitted)
	}
	return l.site.newEndTask("rw/read_abandon", keys, []any{id, tombstoneArg(lateCopies), l.timers, l.channel, l.site.how()})
}

// Renew implements Protocol. With a lease of 0 it also restores the TTL of the lock, which
// other clients may have shortened.
func (l *ReadSide) Renew(id string, lease time.Duration) Task {
	return l.site.newRenewTask("rw/read_renew", lease,
		[]string{l.names.Lock, timer(l.timers, id, 1)}, []any{id, lease.Milliseconds(), l.timers})
}

// GuardsFixedLease implements Guarded: Redisson's renewal of a reader may shorten the TTL
// of the lock.
func (l *ReadSide) GuardsFixedLease() {}

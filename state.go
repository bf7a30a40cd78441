package rlock

import (
	"slices"
	"time"
)

// Mode is how a lock is held.
type Mode string

const (
	ModeFree      Mode = "free"
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared" // by readers only
)

// State is what Redis shows of a lock at one moment, of a read-write lock on both sides.
type State struct {
	Mode    Mode
	Holders []Holder // sorted by hold id, a writer before the readers
	// TTL is the rest of the longest lease; -1 if the lock has none, which no client of
	// the protocol leaves behind.
	TTL time.Duration
	// Token is the fencing token of the holder, 0 if the lock is free or held by
	// readers. Types whose keys have no room for it show it only if this client holds
	// the lock, else 0. A FencedLock shows its counter if the holder raised it: a
	// FencedLock, or any holder of Redisson, because Redis does not tell an RFencedLock
	// from an RLock. It shows 0 if another type of this package holds the name.
	Token int64
	// Waiters is how many wait: in all processes if Redis keeps the queue (FairLock,
	// FairReadWriteLock, PriorityLock), with dead ones that are not removed yet;
	// otherwise in this client.
	Waiters int
}

// Holder is one hold that has a lock.
type Holder struct {
	HoldID string
	Count  int  // how often it has entered
	Shared bool // it is a reader
}

// Locked reports whether anybody holds the lock.
func (s State) Locked() bool { return len(s.Holders) > 0 }

// held reports whether anybody holds a side of the lock.
func (s State) held(on side) bool {
	return slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Shared == (on == shared) })
}

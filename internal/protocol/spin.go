package protocol

import "time"

// Spin is the protocol of a SpinLock: a Lock whose releases are not published, and whose
// waiters poll with pauses instead of subscribing.
type Spin struct {
	ownedLock
	pause func(who int64, turn int) time.Duration
}

// NewSpin returns the protocol of a SpinLock. pause is its LongestPause.
func NewSpin(site *Site, names *Names, pause func(who int64, turn int) time.Duration) *Spin {
	return &Spin{newOwnedLock(site, names), pause}
}

// silent is the publish command with which scripts do not publish.
const silent = "none"

// Release implements Protocol.
func (l *Spin) Release(id string, n int) Task { return l.release(id, n, silent) }

// Abandon implements Protocol.
func (l *Spin) Abandon(id string, _ bool) Task { return l.abandon(id, silent) }

// ForceUnlock implements Protocol.
func (l *Spin) ForceUnlock(holdID string) Request[bool] { return l.forceUnlock(holdID, silent) }

// Inspect implements Protocol. There are no subscribers to count.
func (l *Spin) Inspect() Request[State] {
	return newRequest(l.site, "lock/inspect", []string{l.names.Lock}, nil, readState)
}

// View implements Protocol.
func (l *Spin) View() any { return view{"lock/inspect", l.names.Lock, ""} }

// Listen implements Protocol.
func (l *Spin) Listen(string, func()) (end func()) { return nil }

// LongestPause implements Paced.
func (l *Spin) LongestPause(who int64, turn int) time.Duration { return l.pause(who, turn) }

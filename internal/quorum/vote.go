// Package quorum is the protocol of a RedLock: a lock on a majority of independent masters
// (nodes). It sends each request to all nodes in parallel and counts their votes. It implements
// the interfaces of package protocol. Like that package it identifies holds by their ids. It does not
// depend on owners, on waiters, or on the leases that callers get.
//
// # Words
//
// The models model/redlock.pml and model/lasted.pml use the same words. A node grants its
// vote to a hold (ACQ). Each grant has a unique stamp, which contains the new value of the lock's
// counter on that node. The token of the hold is the highest such value in a quorum. The client
// writes the token back (RAISE) to the nodes that are behind. A renewal (RENEW) finds a vote in
// place (CONTINUOUS) or grants it again (FRESH). A release (REL) takes votes back. It leaves a
// tombstone if a late copy of a request could make the node vote again.
//
// # States of a vote
//
// A hold is confirmed when its votes are granted. Each renewal confirms it up to the latest time for
// which the replies prove that no other hold can have had a quorum (ballot.confirm). What a vote
// proves depends on whether it was granted before the last confirmation or after it:
//
//	none   there is no vote, or the client does not know when it was granted
//	older  granted before the confirmation
//	sole   granted after it, but the node voted for no other hold in between (ballot.sole)
//	newer  granted after it
//
// The state is not stored. A reply contains the age of the vote, which is as exact as the delay of
// the reply (ballot.learn). The state follows from that and from the time of the last confirmation
// (ballot.state). A CONTINUOUS vote counts in the round that finds it, a FRESH vote from the next
// round on.
//
// # Failures
//
// A node that does not reply counts as having voted for another hold in some decisions, and as having kept its vote in
// others: each decision makes the safe assumption (means in lasted.go). Unless a quorum replies, an acquire fails with
// ErrNoQuorum, a renewal is unknown, and a release is unconfirmed.
//
// # Reading order
//
// vote.go: what the client has recorded about a vote. lasted.go and tally.go: the decisions. fanout.go: requests to all
// nodes. ballot.go: what each node may have. acquire.go, keep.go, leave.go and look.go use all of
// them. quarantine.go, clocks.go and admit.go decide which nodes may vote at all.
package quorum

import (
	"strconv"
	"strings"
	"time"
)

// vote is the vote of one node for a hold. It also records what the requests may have done on the
// node: whether the vote must be taken back, and whether that takes a tombstone.
type vote struct {
	stamp         string    // stamp of the last grant; empty if there is none, or if either of two grants may be the last
	read          time.Time // when the client first read the stamp
	grantedBy     time.Time // latest possible time of the last grant
	regrantedFrom time.Time // earliest possible time at which a renewal granted the vote again; zero if none did
	noOtherUntil  time.Time // the node has voted for no other hold from the confirmation until then; zero if unknown
	level         int64     // highest known value of the counter while the node has voted for the hold

	inFlight     int     // requests under way
	settler      settler // called when no request is under way; nil if nothing waits
	mayHaveVoted bool    // the node has voted, or may have
	stray        bool    // a copy without a reply may still make the node vote
}

// learn records the vote in a reply, and stores in the reply what the vote proves. began is when the round of renewals
// began; zero for the reply to an acquire, which may come up to prompt after the hold was won.
//
// The vote was granted between from and by. Stamps are unique, so what is known of a grant stays true. A grant with
// another stamp is the later one if its request was sent after the known stamp was read. Otherwise either may be the
// later one, and the next round decides.
func (b *ballot) learn(v *vote, r *reply, began, now time.Time, prompt time.Duration) {
	isKnown, from, grantedBy := r.stamp == v.stamp, began.Add(-r.age), now.Add(-r.age)
	switch {
	case isKnown && grantedBy.Before(v.grantedBy):
		v.grantedBy = grantedBy
	case isKnown:
	case began.Before(v.read):
		v.stamp, v.read, v.level = "", now, 0
	default:
		b.regranted(v, r.stamp, grantedBy)
		v.read = now
	}
	v.level = max(v.level, r.count)
	switch {
	// A vote that is known to be older stays older: the node's clock may have jumped.
	case from.After(v.regrantedFrom) && (r.says == fresh || b.state(v) == none) && (r.age == 0 || from.After(b.confirmedUpTo)):
		v.regrantedFrom = from
	case r.says == granted && now.Sub(b.confirmedAt) <= prompt && !b.confirmedUpTo.Before(b.confirmedAt): // as old as the votes that made the hold
		v.grantedBy, v.regrantedFrom = b.confirmedUpTo, time.Time{}
	}
	r.evidence = b.state(v)
	if !means[r.evidence].mayBeOthers && began.After(v.noOtherUntil) {
		v.noOtherUntil = began
	}
	// The renewal was sent without a stamp if the reply to the acquire came later: the vote is continuous.
	if r.says == fresh && isKnown && means[r.evidence].mayBeOurs {
		r.says = continuous
	}
}

// state returns the state of a vote.
func (b *ballot) state(v *vote) evidence {
	isAnew, isSole := !v.regrantedFrom.Before(b.confirmedAt), b.sole(v.stamp)
	switch {
	case isAnew && isSole:
		return sole
	case isAnew:
		return newer
	case isSole, v.stamp != "" && !v.grantedBy.After(b.confirmedUpTo):
		return older
	}
	return none
}

// regranted records a later grant. Each grant of a node raises its counter. So a count that the counter had reached before
// shows that the node has come back with old data. Without a known stamp, the grant may be the one that the level is of.
func (b *ballot) regranted(v *vote, stamp string, grantedBy time.Time) {
	n := countOf(stamp)
	b.isRolledBack = b.isRolledBack || v.stamp != "" && n <= v.level && !b.isGuarded
	v.stamp, v.grantedBy, v.level = stamp, grantedBy, n
}

// sole reports whether the node that granted a vote with this stamp had voted for no later hold before. A later hold
// has a higher token on each of its nodes, because this hold has written its token back to a quorum. So a counter
// that has not passed the token proves that there was none (model/lasted.pml). Once a node is known to have come back
// with old data, no counter proves anything: a later hold may have got its token from there.
func (b *ballot) sole(stamp string) bool {
	n := countOf(stamp)
	return !b.isRolledBack && n > 0 && n-1 <= b.token
}

// countOf returns the value that a grant gave to the counter, or 0 for no stamp.
func countOf(stamp string) int64 {
	count, _, _ := strings.Cut(stamp, ":")
	n, _ := strconv.ParseInt(count, 10, 64)
	return n
}

// Package quorum is the protocol of a RedLock: a lock on a majority of independent masters
// (nodes). It sends each request to all nodes at once and counts their votes. It implements
// the interface of package protocol, and like that package it knows holds by their ids only,
// and no owners, leases as a caller sees them, or waiters.
//
// The words are those of the models, model/redlock.pml and model/lasted.pml. A node grants its
// vote to a hold (ACQ). The stamp of the grant is unique, and has the new value of the lock's
// counter on that node. The token of the hold is the highest such count of a quorum. It is
// written back (RAISE) to the nodes that are behind. A renewal (RENEW) finds a vote CONTINUOUS,
// or grants it anew, FRESH. A release (REL) takes votes back. It leaves a tombstone where a late
// copy of a request could otherwise make a node vote again.
//
// A hold is confirmed when its votes were granted, and later up to the latest time until which its
// renewals show that no other hold can have had a quorum (ballot.confirm). So it matters whether a
// vote was granted before the last confirmation or after it:
//
//	none   there is no vote, or the client does not know when it was granted
//	older  granted before the confirmation
//	sole   granted after it, but the node voted for no other hold before: see ballot.sole
//	newer  granted after it
//
// The state is not stored. A reply says when the vote was granted, as exactly as its delay
// allows (ballot.learn), and the state follows from that and from the time of the confirmation
// (ballot.state). A CONTINUOUS vote counts in the round that finds it, a FRESH vote from the next
// round on.
//
// Read in this order: vote.go has what is known of a vote, lasted.go and tally.go decide, fanout.go asks,
// ballot.go records what each node may have; acquire.go, keep.go, leave.go and look.go use all of them;
// quarantine.go, clocks.go and admit.go say which nodes may vote at all.
package quorum

import (
	"strconv"
	"strings"
	"time"
)

// vote is that of one node, and what the requests for it may have done there: whether it must be
// taken back, and whether that needs a tombstone.
type vote struct {
	stamp string    // of the last grant; empty if there is none, or if either of two grants may be the last
	read  time.Time // when the client first read that stamp
	by    time.Time // the last grant was not later than this
	anew  time.Time // a renewal granted the vote anew, then or later; zero if none did
	alone time.Time // from the confirmation until then the node has voted for no other hold; zero: not known
	level int64     // the highest known value of the counter, while the node has voted for the hold

	open  int     // requests under way
	waits settler // is told when there are none left; nil: nothing waits
	given bool    // it has voted, or may have
	stray bool    // a copy without an answer may still make it vote
}

// learn records the vote in a reply to a renewal of a round that began at that time, or to an acquire if began is zero,
// and notes in the reply what that shows of the node. The reply to an acquire may come prompt later than the hold.
//
// The vote was granted between from and by. A stamp is unique, and what is known of its grant stays true. A grant with
// another stamp is later if the request was sent after the known stamp was read. Otherwise either may be the later
// one, and the next round finds out.
func (b *ballot) learn(v *vote, r *reply, began, now time.Time, prompt time.Duration) {
	isKnown, from, by := r.stamp == v.stamp, began.Add(-r.age), now.Add(-r.age)
	switch {
	case isKnown && by.Before(v.by):
		v.by = by
	case isKnown:
	case began.Before(v.read):
		v.stamp, v.read, v.level = "", now, 0
	default:
		v.stamp, v.read, v.by, v.level = r.stamp, now, by, 0 // the counter may be lost too
	}
	v.level = max(v.level, r.count)
	switch {
	// A known vote that is older stays so: the node's clock may have jumped.
	case from.After(v.anew) && (r.says == fresh || b.state(v) == none) && (r.age == 0 || from.After(b.sure)):
		v.anew = from
	case r.says == granted && now.Sub(b.since) <= prompt && !b.sure.Before(b.since): // as good as the votes that made the hold
		v.by, v.anew = b.sure, time.Time{}
	}
	r.seen = b.state(v)
	if !means[r.seen].others && began.After(v.alone) {
		v.alone = began
	}
	// The request had no stamp if the acquire was answered while it was under way.
	if r.says == fresh && isKnown && means[r.seen].ours {
		r.says = continuous
	}
}

// state returns the state of a vote.
func (b *ballot) state(v *vote) seen {
	isAnew, isSole := !v.anew.Before(b.since), b.sole(v.stamp)
	switch {
	case isAnew && isSole:
		return sole
	case isAnew:
		return newer
	case isSole, v.stamp != "" && !v.by.After(b.sure):
		return older
	}
	return none
}

// sole reports whether a node that has given a vote with this stamp had voted for no hold before that came
// later than this one. Such a hold has a higher token, because this one has written its own back to a
// quorum, and each of its nodes has counted to that (model/lasted.pml).
func (b *ballot) sole(stamp string) bool {
	count, _, _ := strings.Cut(stamp, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	return err == nil && n-1 <= b.token
}

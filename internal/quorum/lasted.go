package quorum

// This file decides whether a hold has lasted: at a renewal, and at its release. It has lasted if since
// the last confirmation (see round) no other hold can have had the votes of a quorum.

// seen is what a client has seen of a node since a hold was last confirmed.
type seen int

const (
	unseen seen = iota
	kept
	idle
	late
	anew
	gone
	taken
	silent
	kinds
)

// means says what follows from what was seen of a node.
var means = [kinds]struct {
	others bool // another hold may have had the node's vote since then
	ours   bool // this hold may have had it all the time
	left   bool // this hold may have it still, although it is released
	why    string
}{
	unseen: {true, false, false, "the hold never had its vote, as far as is known, and it was not asked for whom it has voted"},
	kept:   {false, true, false, "its vote is older than the confirmation, and a node votes for one hold at a time"},
	idle:   {false, false, false, "it did not vote for the hold all the time, but its counter has not passed the token: that of a hold that came later is higher, on each of its nodes"},
	late:   {true, true, false, "it votes for the hold, and cannot say that it did before the confirmation: in between it may have voted for another"},
	anew:   {true, false, false, "it has voted anew: in between it may have voted for another"},
	gone:   {true, false, false, "it has lost the vote, and may have voted for another that has left"},
	taken:  {true, false, false, "it votes for another: that may be a hold, or a try that will take the vote back"},
	silent: {true, true, true, "it may have kept the vote, or lost its data and voted for another; so also if it has answered only a second copy of the release: the first may have taken the vote back"},
}

// sights count the nodes by what was seen of them.
type sights [kinds]int

// others returns how many of n nodes may have voted for another hold. Those that have not answered yet
// are among them.
func (s *sights) others(n int) int {
	for kind, m := range means {
		if !m.others {
			n -= s[kind]
		}
	}
	return n
}

// ours returns how many nodes may have voted for this hold all the time.
func (s *sights) ours() (n int) {
	for kind, m := range means {
		if m.ours {
			n += s[kind]
		}
	}
	return n
}

// left returns on how many nodes a vote for this hold may be left.
func (s *sights) left() (n int) {
	for kind, m := range means {
		if m.left {
			n += s[kind]
		}
	}
	return n
}

// renewTally counts one round of renewals, by this table. Votes that were granted anew (FRESH), by nodes that
// were away or have lost their data, count from the next round on.
//
//	a quorum votes for it     another may have had one   result    because
//	as known before           no                         yes       the hold has lasted since the last confirmation
//	                          surely not the hold        no        another may have had the lock, and left
//	as known before           perhaps                    doubtful  the hold goes on, since it excludes others again. This is no
//	                                                               confirmation: silent nodes may tell until the release, which
//	                                                               is in doubt too, unless they do
//	no                        perhaps                    unknown
type renewTally struct {
	size
	sights
	open       int // outstanding replies
	continuous int // votes that were known before
	fresh      int // votes that were not
	abandoned  int // nodes where the hold was abandoned
	failed     failures
}

func newRenewTally(s size) renewTally {
	return renewTally{size: s, open: s.n, failed: failures{}}
}

// unanswered notes that there is no usable answer. forgot: the node has voted anew since the last
// confirmation.
func (t *renewTally) unanswered(node int, forgot bool, why error) {
	t.open--
	t.failed[node] = why
	if forgot {
		t.sights[anew]++
	} else {
		t.sights[silent]++
	}
}

// lasted notes a vote that was known before: as kept, or as idle or anew if it was granted since the last
// confirmation.
func (t *renewTally) lasted(node int, as seen) {
	t.open--
	t.continuous++
	t.sights[as]++
	if as == anew {
		t.failed[node] = errAnew
	}
}

// granted notes a vote that was not known before: as idle or anew.
func (t *renewTally) granted(node int, as seen) {
	t.open--
	t.fresh++
	t.sights[as]++
	t.failed[node] = errAnew
}

// gone notes that there is no vote: the hold was abandoned there, or another has it.
func (t *renewTally) gone(_ int, another bool) {
	t.open--
	if another {
		t.sights[taken]++
		return
	}
	t.sights[gone]++
	t.abandoned++
}

// overwritten notes that other data is where the vote was. That is a vote that was lost, not one for another
// hold.
func (t *renewTally) overwritten(node int, why error) {
	t.open--
	t.failed[node] = why
	t.sights[gone]++
}

// alone reports that no other hold can have had a quorum since the last confirmation.
func (t *renewTally) alone() bool { return !t.enough(t.others(t.n)) }

// decided reports whether the round is over: as soon as it is a success, or else by the last reply.
func (t *renewTally) decided() bool { return t.enough(t.continuous) && t.alone() || t.open == 0 }

// verdict returns the result of a decided round.
func (t *renewTally) verdict() decision {
	switch {
	case t.enough(t.continuous) && t.alone():
		return yes
	case !t.blocks(t.ours()), t.blocks(t.abandoned):
		return no
	case t.enough(t.continuous):
		return doubtful
	}
	return unknown
}

// again reports whether another round may succeed after one with an unknown result: with the
// votes that were granted anew there is a quorum.
func (t *renewTally) again() bool {
	return t.verdict() == unknown && t.enough(t.continuous+t.fresh)
}

// releaseTally counts the replies to a release, by this table. The nodes that never had a vote for the hold
// are asked only if that can make the result yes.
//
//	so many nodes that            may                              result   because
//	the others are no quorum      have a vote left for the hold    unknown  nobody may be able to have the lock yet
//	less than a quorum            have voted for another           yes      the hold has lasted until now
//	a quorum                      not have voted for it all along  no       another may have had the lock, and left
//	                              none of these                    unknown  silent nodes, or late votes, would tell
type releaseTally struct {
	size
	sights
	open   int
	asked  int // nodes that were asked, or are
	failed failures
}

func newReleaseTally(s size) releaseTally { return releaseTally{size: s, failed: failures{}} }

// asks notes that so many nodes more are asked.
func (t *releaseTally) asks(nodes int) {
	t.open += nodes
	t.asked += nodes
}

// saw notes what was seen of a node.
func (t *releaseTally) saw(_ int, what seen) {
	t.open--
	t.sights[what]++
}

func (t *releaseTally) unanswered(node int, why error) {
	t.saw(node, silent)
	t.failed[node] = why
}

// incomplete reports whether the votes that may be left keep others from a quorum.
func (t *releaseTally) incomplete() bool { return t.blocks(t.left() + t.open) }

func (t *releaseTally) next() decision {
	alone := !t.enough(t.others(t.n))
	switch {
	case t.open > 0 && !(alone && !t.incomplete()):
		return wait // hanging nodes do not delay the release of a hold that others have confirmed
	case t.incomplete():
		return unknown
	case alone:
		return yes
	case !t.blocks(t.ours()):
		return no
	}
	return unknown
}

// more reports whether the nodes that were not asked may make an unknown result yes.
func (t *releaseTally) more() bool {
	return t.next() == unknown && !t.incomplete() && !t.enough(t.others(t.n)-(t.n-t.asked))
}

package quorum

// This file decides, at a renewal and at a release, whether a hold has lasted: whether no other hold can
// have had the votes of a quorum since the last confirmation (see renewalRound).

// evidence is what the replies since the last confirmation prove about a node. The first four are the states of a vote.
type evidence uint8

const (
	none evidence = iota
	older
	sole
	newer
	gone
	replaced
	taken
	silent
	kinds
)

// means has the conclusions from each kind of evidence.
var means = [kinds]struct {
	mayBeOthers bool // another hold may have had the node's vote since the last confirmation
	mayBeOurs   bool // this hold may have had the vote all the time
	mayRemain   bool // this hold may still have the vote, although it is released
	why         string
}{
	none:     {true, true, false, "the node votes for the hold, but perhaps not since before the confirmation: it may have voted for another in between"},
	older:    {false, true, false, "the vote is older than the confirmation, and a node votes for one hold at a time"},
	sole:     {false, false, false, "the node did not vote for the hold all the time, but its counter has not passed the token, as the grant of a later hold would"},
	newer:    {true, false, false, "the node has voted again: it may have voted for another in between"},
	gone:     {true, false, false, "the node has lost the vote, and may have voted for another hold that has left"},
	replaced: {true, false, false, "other data replaced the vote, and the node is not among those where the hold was abandoned"},
	taken:    {true, false, false, "the node votes for another, which may be a hold, or a try that will take the vote back"},
	silent:   {true, true, true, "the node may have kept the vote, or have lost its data and voted for another. A reply to the second copy of a release proves no more: the first copy may have taken the vote back"},
}

// may returns how many nodes may have voted for another hold, including those that have not replied yet; how many may
// have voted for this hold all the time; and how many may still have a vote for it.
func (t *tally) may() (others, ours, left int) {
	others, left = t.n, t.outstanding
	for kind, m := range means {
		if !m.mayBeOthers {
			others -= t.sights[kind]
		}
		if m.mayBeOurs {
			ours += t.sights[kind]
		}
		if m.mayRemain {
			left += t.sights[kind]
		}
	}
	return others, ours, left
}

// renewed counts a renewed vote, CONTINUOUS or FRESH.
func (t *tally) renewed(r reply) {
	t.add(r.evidence)
	if r.says == continuous {
		t.votes++
	} else {
		t.later++
	}
	if r.says == fresh || r.evidence == newer {
		t.misses(r.node, errAnew)
	}
}

// renewal decides one round of renewals by this table, as soon as it is a success, or else with the last reply.
//
//	a quorum votes for it     another may have had one   result    because
//	as known before           no                         yes       the hold has lasted since the last confirmation
//	                          surely not the hold        no        another may have had the lock, and left
//	as known before           perhaps                    doubtful  the hold excludes others again and continues, unconfirmed.
//	                                                               Silent nodes may still reply before the release, which is
//	                                                               doubtful too otherwise
//	no                        perhaps                    unknown
func (t *tally) renewal() decision {
	others, ours, _ := t.may()
	switch lasted := t.enough(t.votes); {
	case lasted && !t.enough(others):
		return yes
	case t.outstanding > 0:
		return wait
	case !t.blocks(ours), t.blocks(t.sights[gone]):
		return no
	case lasted:
		return doubtful
	}
	return unknown
}

// retryMaySucceed reports whether another round may succeed after an unknown result: the votes that were
// granted again in this round complete a quorum.
func (t *tally) retryMaySucceed() bool { return t.renewal() == unknown && t.enough(t.votes+t.later) }

// release decides a release by this table. Nodes that never had a vote for the hold get a request
// only if their replies can make the result yes.
//
//	so many nodes that            may                              result   because
//	the others are no quorum      still have a vote for the hold   unknown  the lock may not be free yet
//	less than a quorum            have voted for another           yes      the hold has lasted until now
//	a quorum                      not have voted for it all along  no       another may have had the lock, and left
//	                              none of these                    unknown  it depends on silent nodes, or on late votes
func (t *tally) release() decision {
	others, ours, left := t.may()
	switch lasted := !t.enough(others); {
	case t.outstanding > 0 && (!lasted || t.blocks(left)):
		return wait // nodes that hang do not delay the release of a hold that the others have confirmed
	case t.blocks(left):
		return unknown
	case lasted:
		return yes
	case !t.blocks(ours):
		return no
	}
	return unknown
}

// incomplete reports whether the votes that may be left keep other holds from a quorum.
func (t *tally) incomplete() bool {
	_, _, left := t.may()
	return t.blocks(left)
}

// othersMayDecide reports whether replies of nodes that got no request may turn an unknown result into yes.
func (t *tally) othersMayDecide() bool {
	others, _, _ := t.may()
	requested := t.outstanding
	for _, nodes := range t.sights {
		requested += nodes
	}
	return t.release() == unknown && !t.incomplete() && !t.enough(others-(t.n-requested))
}

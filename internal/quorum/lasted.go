package quorum

// This file decides whether a hold has lasted: at a renewal, and at its release. It has lasted if since
// the last confirmation (see round) no other hold can have had the votes of a quorum.

// seen is what a client has seen of a node since a hold was last confirmed. The first four are the states of a vote.
type seen uint8

const (
	none seen = iota
	older
	sole
	newer
	gone
	replaced
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
	none:     {true, true, false, "it votes for the hold, but perhaps not since before the confirmation: in between it may have voted for another"},
	older:    {false, true, false, "its vote is older than the confirmation, and a node votes for one hold at a time"},
	sole:     {false, false, false, "it did not vote for the hold all the time, but its counter has not passed the token: that of a hold that came later is higher, on each of its nodes"},
	newer:    {true, false, false, "it has voted anew: in between it may have voted for another"},
	gone:     {true, false, false, "it has lost the vote, and may have voted for another that has left"},
	replaced: {true, false, false, "it has lost the vote to other data, and is not among those where the hold was abandoned"},
	taken:    {true, false, false, "it votes for another: that may be a hold, or a try that will take the vote back"},
	silent:   {true, true, true, "it may have kept the vote, or lost its data and voted for another; so also if it has answered only a second copy of the release: the first may have taken the vote back"},
}

// may returns how many nodes may have voted for another hold, those that have not answered yet among them; how
// many may have voted for this one all the time; and on how many of them a vote for it may be left.
func (t *tally) may() (others, ours, left int) {
	others, left = t.n, t.open
	for kind, m := range means {
		if !m.others {
			others -= t.sights[kind]
		}
		if m.ours {
			ours += t.sights[kind]
		}
		if m.left {
			left += t.sights[kind]
		}
	}
	return others, ours, left
}

// renewed counts a vote that was renewed: CONTINUOUS or FRESH.
func (t *tally) renewed(r reply) {
	t.saw(r.seen)
	if r.says == continuous {
		t.votes++
	} else {
		t.later++
	}
	if r.says == fresh || r.seen == newer {
		t.misses(r.node, errAnew)
	}
}

// renewal decides one round of renewals, by this table: as soon as it is a success, or else by the last reply.
//
//	a quorum votes for it     another may have had one   result    because
//	as known before           no                         yes       the hold has lasted since the last confirmation
//	                          surely not the hold        no        another may have had the lock, and left
//	as known before           perhaps                    doubtful  the hold goes on, since it excludes others again. This is no
//	                                                               confirmation: silent nodes may tell until the release, which
//	                                                               is in doubt too, unless they do
//	no                        perhaps                    unknown
func (t *tally) renewal() decision {
	others, ours, _ := t.may()
	switch lasted := t.enough(t.votes); {
	case lasted && !t.enough(others):
		return yes
	case t.open > 0:
		return wait
	case !t.blocks(ours), t.blocks(t.sights[gone]):
		return no
	case lasted:
		return doubtful
	}
	return unknown
}

// again reports whether another round may succeed after one with an unknown result: with the
// votes that were granted anew there is a quorum.
func (t *tally) again() bool { return t.renewal() == unknown && t.enough(t.votes+t.later) }

// release decides a release, by this table. The nodes that never had a vote for the hold
// are asked only if that can make the result yes.
//
//	so many nodes that            may                              result   because
//	the others are no quorum      have a vote left for the hold    unknown  nobody may be able to have the lock yet
//	less than a quorum            have voted for another           yes      the hold has lasted until now
//	a quorum                      not have voted for it all along  no       another may have had the lock, and left
//	                              none of these                    unknown  silent nodes, or late votes, would tell
func (t *tally) release() decision {
	others, ours, left := t.may()
	switch alone := !t.enough(others); {
	case t.open > 0 && (!alone || t.blocks(left)):
		return wait // hanging nodes do not delay the release of a hold that others have confirmed
	case t.blocks(left):
		return unknown
	case alone:
		return yes
	case !t.blocks(ours):
		return no
	}
	return unknown
}

// incomplete reports whether the votes that may be left keep others from a quorum.
func (t *tally) incomplete() bool {
	_, _, left := t.may()
	return t.blocks(left)
}

// more reports whether the nodes that were not asked may make an unknown result yes.
func (t *tally) more() bool {
	others, _, _ := t.may()
	asked := t.open
	for _, nodes := range t.sights {
		asked += nodes
	}
	return t.release() == unknown && !t.incomplete() && !t.enough(others-(t.n-asked))
}

package quorum

import (
	"slices"
	"time"
)

// The tallies count the replies of nodes and decide. They do no I/O, have no mutexes and no
// clock: everything that a decision depends on is in this file, and in lasted.go.

// size is how many nodes a lock has, and how many votes are a quorum of them. That is more
// than half, so any two quorums have a node in common.
type size struct{ n, q int }

// enough reports whether so many votes are a quorum.
func (s size) enough(votes int) bool { return votes >= s.q }

// blocks reports whether, without that many nodes, the others are no quorum. Then every
// quorum has one of those nodes.
func (s size) blocks(nodes int) bool { return nodes > s.n-s.q }

// decision is the result of a tally.
type decision int

const (
	wait     decision = iota // for more replies
	raise                    // write the token back to the nodes that are behind
	yes                      // a quorum has granted, renewed, or had the votes
	no                       // it has not, and will not
	unknown                  // replies that were not read could make it yes
	doubtful                 // a quorum has renewed, but another hold may have had one before
)

type failures map[int]error // the nodes that gave no usable answer, and why

// grantTally counts the votes of one try to acquire.
type grantTally struct {
	size
	token  int64   // of the hold, once there are enough votes; it may still grow
	got    []grant // by node
	asking int     // outstanding replies to requests for a vote (ACQ)
	raises int     // outstanding replies to writes of the token (RAISE)
	heard  int     // nodes that have answered
	hurry  bool    // do not wait for silent nodes any more, if a rival has votes

	failed failures
	rivals map[string]int  // how many nodes have voted for another hold, by its id
	rests  []time.Duration // how long those votes last
}

// grant is one node's vote.
type grant struct {
	stamp string // of the grant that was read; "": none, or it does not count any more
	count int64  // the value of the node's counter after the grant
	level int64  // the highest known value of the counter, after the grant or a RAISE
	open  bool   // asked for its vote, no reply yet
}

func newGrantTally(s size) grantTally {
	return grantTally{size: s, got: make([]grant, s.n), failed: failures{}, rivals: map[string]int{}}
}

// asked notes that a node is asked for its vote.
func (t *grantTally) asked(node int) {
	t.got[node].open = true
	t.asking++
}

// answered notes that the node has replied. Other methods note what.
func (t *grantTally) answered(node int) {
	t.got[node].open = false
	t.asking--
	t.heard++
}

// unanswered notes that there is no usable answer.
func (t *grantTally) unanswered(node int, why error) {
	t.got[node].open = false
	t.asking--
	t.failed[node] = why
}

// granted notes a vote whose reply was read. Only these count (model: COUNT_UNREAD).
func (t *grantTally) granted(node int, stamp string, count int64) {
	t.answered(node)
	g := &t.got[node]
	g.stamp, g.count, g.level = stamp, count, count
}

// busy notes that another hold has the node's vote, for rest more.
func (t *grantTally) busy(node int, id string, rest time.Duration) {
	t.answered(node)
	t.rivals[id]++
	t.rests = append(t.rests, rest)
}

// writes notes that the token is being written to a node.
func (t *grantTally) writes() { t.raises++ }

// raised notes that a node's counter has reached a token.
func (t *grantTally) raised(node int, token int64) {
	t.raises--
	t.got[node].level = max(t.got[node].level, token)
}

// refused notes that a RAISE was refused, or may have been. The vote does not count any more:
// a new grant, to a late copy of the acquire, has another stamp (model: NO_STAMP).
func (t *grantTally) refused(node int, why error) {
	t.raises--
	t.got[node].stamp = ""
	if why != nil {
		t.failed[node] = why
	}
}

// votes returns how many grants were read and count.
func (t *grantTally) votes() (n int) {
	for _, g := range t.got {
		if g.stamp != "" {
			n++
		}
	}
	return n
}

// counted returns how many nodes are at the token (model: isCounted). A vote with a higher
// count is not one of them: another hold may have had the token on that node before (model:
// COUNT_PAST).
func (t *grantTally) counted() (n int) {
	for _, g := range t.got {
		if t.token > 0 && g.stamp != "" && g.count <= t.token && g.level >= t.token {
			n++
		}
	}
	return n
}

// behind reports whether a node's vote was read and its counter is below the token.
func (t *grantTally) behind(node int) bool {
	g := t.got[node]
	return g.stamp != "" && g.level < t.token
}

// next decides by the replies so far. yes: the client has the hold with the token. no: it
// cannot get it. raise: write the token to the nodes that are behind. wait: neither yet.
//
// The token is the highest count of the grants that were read. The hold exists only when a
// quorum of the nodes of these grants is at the token (model: decide, writeBack, report).
// Any two holds have such a node in common. There each of them had the vote without a break
// from its grant until its token was written, as the stamp shows. So one had the vote
// entirely before the other, and the later grant counted past the token of the earlier
// hold.
func (t *grantTally) next() decision {
	votes := t.votes()
	switch {
	case t.enough(t.counted()):
		return yes
	case !t.enough(votes + t.asking), !t.enough(votes) && t.hurry && len(t.rivals) > 0:
		return no
	case !t.enough(votes) || t.raises > 0:
		return wait
	}
	// There are enough votes for the first time; or some do not count any more, and later
	// ones have higher counts.
	for _, g := range t.got {
		if g.stamp != "" {
			t.token = max(t.token, g.level)
		}
	}
	if t.enough(t.counted()) {
		return yes
	}
	return raise
}

// most returns the hold for which most of the other votes are, and how many these are.
func (t *grantTally) most() (holder string, most int) {
	for id, votes := range t.rivals {
		if votes > most || votes == most && id < holder {
			most, holder = votes, id
		}
	}
	return holder, most
}

// sights is what was seen of the nodes that have answered: which vote for another hold.
func (t *grantTally) sights() sights { return sights{taken: len(t.rests)} }

// held reports whether another hold was seen: it has a quorum, unless nodes that did not answer have
// voted for others, and keeps all others from one, with nodes that could not vote.
func (t *grantTally) held() bool {
	_, most := t.most()
	return t.blocks(most+len(t.failed)) && t.enough(most+t.n-t.heard)
}

// met reports whether a quorum has answered, and some of it with a vote for another.
func (t *grantTally) met() bool { return t.enough(t.heard) && len(t.rivals) > 0 }

// rest returns how long, as far as is known, another hold has a quorum, or so many votes that
// no other can have one, and its id. It is 0 if votes were split: the clients that split
// them take them back.
func (t *grantTally) rest() (rest time.Duration, holder string) {
	holder, most := t.most()
	if !t.blocks(most) {
		return 0, ""
	}
	slices.Sort(t.rests)
	free := t.n - len(t.rests) - len(t.failed)
	return t.rests[min(max(t.q-free-1, 0), len(t.rests)-1)], holder
}

// stateTally counts the votes of the nodes by hold. A hold with a quorum of votes is the
// holder. If votes that were not read could make a quorum, the result is unknown, which is
// never reported as free.
type stateTally struct {
	size
	open    int
	holders map[string]*candidate
	most    int // votes for one hold
	failed  failures
}

// candidate is a hold for which nodes have voted.
type candidate struct {
	id    string
	votes int
	rests []time.Duration
	token int64
}

func newStateTally(s size) stateTally {
	return stateTally{size: s, holders: map[string]*candidate{}, failed: failures{}}
}

func (t *stateTally) unanswered(node int, why error) {
	t.open--
	t.failed[node] = why
}

func (t *stateTally) free(int) { t.open-- }

func (t *stateTally) votedFor(_ int, id string, rest time.Duration, token int64) {
	t.open--
	h := t.holders[id]
	if h == nil {
		h = &candidate{id: id}
		t.holders[id] = h
	}
	h.votes++
	h.rests = append(h.rests, rest)
	h.token = max(h.token, token)
	t.most = max(t.most, h.votes)
}

// next decides as soon as there is a holder, or there cannot be one. Hanging nodes do not
// delay it.
func (t *stateTally) next() decision {
	switch {
	case t.enough(t.most):
		return yes
	case !t.enough(t.most + t.open + len(t.failed)):
		return no
	case t.open > 0:
		return wait
	}
	return unknown
}

// holder returns the hold with a quorum of votes, and how long a quorum of them lasts.
func (t *stateTally) holder() (h *candidate, rest time.Duration) {
	for _, h := range t.holders {
		if t.enough(h.votes) {
			slices.Sort(h.rests)
			return h, h.rests[len(h.rests)-t.q]
		}
	}
	return nil, 0
}

// forceTally counts what a forced unlock has taken back. The lock was held if one hold had
// a quorum of votes.
type forceTally struct {
	size
	open   int
	taken  map[string]int // votes taken back, by the id of the hold
	most   int            // of one hold
	failed failures
}

func newForceTally(s size) forceTally {
	return forceTally{size: s, taken: map[string]int{}, failed: failures{}}
}

func (t *forceTally) unanswered(node int, why error) {
	t.open--
	t.failed[node] = why
}

func (t *forceTally) took(_ int, id string) {
	t.open--
	t.taken[id]++
	t.most = max(t.most, t.taken[id])
}

func (t *forceTally) free(int) { t.open-- }

// next waits for all replies: every vote is to be taken back.
func (t *forceTally) next() decision {
	switch {
	case t.open > 0:
		return wait
	case t.enough(t.most):
		return yes
	case t.enough(t.most + len(t.failed)):
		return unknown
	}
	return no
}

package quorum

import (
	"errors"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// The tallies count what nodes reply and say what follows. They do no I/O, have no locks,
// and know no time: all that a decision rests on is here.

// size is how many nodes a lock has, and how many votes are a quorum of them. That is more
// than half, so any two quorums have a node in common.
type size struct{ n, q int }

// enough reports whether so many votes are a quorum.
func (s size) enough(votes int) bool { return votes >= s.q }

// blocks reports whether without so many nodes the others are no quorum. So many nodes
// have one in common with every quorum.
func (s size) blocks(nodes int) bool { return nodes > s.n-s.q }

// decision is what a tally comes to.
type decision int

const (
	wait    decision = iota // for more replies
	raise                   // write the token back to the nodes that are behind
	yes                     // the hold, the renewal, the release is a quorum's
	no                      // it is not, and will not be
	unknown                 // the replies that were not read could make it so
)

// failures are the nodes that gave no usable answer, and why.
type failures map[int]error

// grantTally counts the votes of one try to acquire.
type grantTally struct {
	size
	token  int64   // of the hold, once there are votes enough; it may still grow
	got    []grant // by node
	asking int     // replies to come of nodes that were asked for their vote (ACQ)
	raises int     // replies to come of nodes to which the token is written (RAISE)
	heard  int     // nodes that have answered
	hurry  bool    // silent nodes are not waited for any more

	failed failures
	rivals map[string]int  // how many nodes have voted for another hold, by its id
	rests  []time.Duration // for how long those votes last
}

// grant is one node's vote.
type grant struct {
	stamp string // of the grant that was read; "": none was, or it does not count any more
	count int64  // what the node's counter has become by it
	level int64  // what the counter has reached: by the grant, or by a RAISE
	open  bool   // asked for its vote, and no reply yet
}

func newGrantTally(s size) grantTally {
	return grantTally{size: s, got: make([]grant, s.n), failed: failures{}, rivals: map[string]int{}}
}

// asked notes that a node is asked for its vote.
func (t *grantTally) asked(node int) {
	t.got[node].open = true
	t.asking++
}

// answered notes that the node has replied; the others say what.
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

// busy notes that another hold has the node's vote, for so long.
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

// refused notes that a RAISE was refused, or may have been: the vote does not count any
// more. Another grant to a late copy of the acquire has another stamp (model: NO_STAMP).
func (t *grantTally) refused(node int, why error) {
	t.raises--
	t.got[node].stamp = ""
	if why != nil {
		t.failed[node] = why
	}
}

// votes is how many grants were read and count.
func (t *grantTally) votes() (n int) {
	for _, g := range t.got {
		if g.stamp != "" {
			n++
		}
	}
	return n
}

// counted is how many nodes are at the token (model: isCounted). A vote that counted past
// the token is not among them: another hold may have had the token on that node before
// (model: COUNT_PAST).
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

// next says what follows from the replies so far: yes, the client has the hold with the
// token; no, it cannot have it; raise, the token is to be written to the nodes that are
// behind; or wait.
//
// The token is the highest count of the grants that were read, and a hold counts only
// when a quorum of these very nodes is at the token (model: decide, writeBack, report).
// Any two holds have such a node in common. There each of the two had the vote
// without a break from its grant until the counter was written (the stamp shows
// it), so one had it wholly before the other, and the later grant counted past the
// token of the earlier hold.
func (t *grantTally) next() decision {
	votes := t.votes()
	switch {
	case t.enough(t.counted()):
		return yes
	case !t.enough(votes + t.asking), !t.enough(votes) && t.hurry:
		return no
	case !t.enough(votes) || t.raises > 0:
		return wait
	}
	// These are the first votes that suffice; or some do not count any more, and later ones have
	// higher counts.
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

// rest is for how long, as far as is known, another hold has a quorum, or at least
// so many votes that nobody else can have one, and its id. It is 0 if votes were split:
// those who split them take them back.
func (t *grantTally) rest() (rest time.Duration, holder string) {
	most := 0
	for id, votes := range t.rivals {
		if votes > most || votes == most && id < holder {
			most, holder = votes, id
		}
	}
	if !t.blocks(most) {
		return 0, ""
	}
	slices.Sort(t.rests)
	free := t.n - len(t.rests) - len(t.failed)
	return t.rests[min(max(t.q-free-1, 0), len(t.rests)-1)], holder
}

// renewTally counts one round of renewals. The hold goes on if a quorum of nodes says that
// their votes have lasted without a break since the hold was last confirmed (CONTINUOUS).
// Votes that were given anew (FRESH), by nodes that were away or have lost their data,
// count from the next round on; but if those, with the votes that are another's, are a
// quorum themselves, the hold is lost.
type renewTally struct {
	size
	open       int // replies to come
	continuous int
	fresh      int
	cancelled  int // nodes where the hold was given up
	taken      int // nodes that have voted for another hold
	broken     []bool
	failed     failures
}

func newRenewTally(s size) renewTally {
	return renewTally{size: s, open: s.n, broken: make([]bool, s.n), failed: failures{}}
}

func (t *renewTally) unanswered(node int, why error) {
	t.open--
	t.failed[node] = why
}

func (t *renewTally) lasted(int) {
	t.open--
	t.continuous++
}

var errAnew = errors.New("it had no vote for this hold, and has one since now")

func (t *renewTally) anew(node int) {
	t.open--
	t.fresh++
	t.failed[node] = errAnew
}

func (t *renewTally) gone(node int, taken bool) {
	t.open--
	t.broken[node] = true
	if taken {
		t.taken++
	} else {
		t.cancelled++
	}
}

// decided: the first quorum of votes that have lasted decides, or else the last reply.
func (t *renewTally) decided() bool { return t.enough(t.continuous) || t.open == 0 }

// verdict is what a round came to that is decided. anew says which nodes have voted anew
// since the hold was last confirmed, in this round or before.
func (t *renewTally) verdict(anew []bool) decision {
	if t.enough(t.continuous) {
		return yes
	}
	forgot := 0
	for i := range t.broken {
		if t.broken[i] || anew[i] {
			forgot++
		}
	}
	if !t.enough(forgot) && !t.blocks(t.cancelled) {
		// Nobody else can have had a quorum, as far as is known; and a vote that
		// another hold has may be of a try that takes it back.
		return unknown
	}
	// So many nodes have forgotten their votes that another hold may have had a quorum
	// of them, and may be gone again.
	return no
}

// again reports whether a round that came to unknown is worth another one: with the votes
// that were given anew there is a quorum.
func (t *renewTally) again() bool { return t.enough(t.continuous + t.fresh) }

// lost is how the hold ended in a round that came to no.
func (t *renewTally) lost() protocol.Kept {
	if t.taken > 0 {
		return protocol.TakenOver
	}
	return protocol.Removed
}

// releaseTally counts the replies to a release. If so many nodes say that they had voted
// for the hold, of those that answered, that the others are no quorum, the hold has
// lasted until now. The replies to come can only confirm that, if they come: nodes that
// hang delay nobody.
type releaseTally struct {
	size
	open   int
	had    int // nodes that had voted for the hold, or may have
	taken  int // nodes that have voted for another hold
	failed failures
}

func (t *releaseTally) unanswered(node int, why error) {
	t.open--
	t.failed[node] = why
}

func (t *releaseTally) released(int) {
	t.open--
	t.had++
}

func (t *releaseTally) gone(_ int, taken bool) {
	t.open--
	if taken {
		t.taken++
	}
}

func (t *releaseTally) lasted() bool { return t.blocks(t.had + len(t.failed)) }

func (t *releaseTally) next() decision {
	switch {
	case t.open > 0 && !(t.lasted() && !t.blocks(len(t.failed)+t.open)):
		return wait
	case t.blocks(len(t.failed)):
		return unknown
	case t.lasted():
		return yes
	}
	return no
}

// lost is how the hold had ended before a release that came to no.
func (t *releaseTally) lost() protocol.Kept {
	if t.taken > 0 {
		return protocol.TakenOver
	}
	return protocol.Removed
}

// stateTally counts for whom the nodes have voted. One hold with a quorum of votes is the
// holder. If the votes that were not read could make a quorum, it is unknown, which is
// never taken for free.
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

// next comes to a decision as soon as there is a holder, or cannot be one: nodes that hang
// delay nobody.
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

// holder is the hold with a quorum of votes, and for how long a quorum of them lasts.
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
	taken  map[string]int // votes that were taken back, by the id of the hold
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

// next waits for all replies: each vote is to be taken back.
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

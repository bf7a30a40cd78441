package quorum

import (
	"slices"
	"time"
)

// The tallies count the replies of nodes and decide. They do no I/O and have no mutex and no
// clock: everything that a decision depends on is in this file and in lasted.go.

// size is the number of nodes of a lock, and of votes that are a quorum: more than half, so any two
// quorums have a node in common.
type size struct{ n, q int }

// enough reports whether a number of votes is a quorum.
func (s size) enough(votes int) bool { return votes >= s.q }

// blocks reports whether a number of nodes is so large that the other nodes are no quorum. Then
// every quorum contains one of these nodes.
func (s size) blocks(nodes int) bool { return nodes > s.n-s.q }

// decision is the result of a tally.
type decision int

const (
	wait     decision = iota // wait for more replies
	raise                    // write the token back to the nodes that are behind
	yes                      // a quorum has granted, has renewed, or had the votes
	no                       // no quorum has, or can
	unknown                  // missing replies could make it yes
	doubtful                 // a quorum has renewed, but another hold may have had one before
)

type failures map[int]error // the nodes without a usable reply, and why

// tally counts the replies to one question.
type tally struct {
	size
	sights      [kinds]int // how many nodes have replied, by what their replies prove
	outstanding int        // replies to come
	votes       int        // votes that count
	later       int        // votes that count from the next round on
	holders     map[string]candidate
	failed      failures
}

// candidate is a hold for which nodes have voted.
type candidate struct {
	votes int
	rests []time.Duration // how long each vote still lasts
	token int64           // the highest
}

// add counts a reply by what it proves about its node.
func (t *tally) add(kind evidence) {
	t.outstanding--
	t.sights[kind]++
}

// fail is add for a reply that is no vote, with the reason.
func (t *tally) fail(node int, kind evidence, why error) {
	t.add(kind)
	t.misses(node, why)
}

// misses records why a node has not voted.
func (t *tally) misses(node int, why error) {
	if t.failed == nil {
		t.failed = failures{}
	}
	t.failed[node] = why
}

// votedFor counts a vote for a hold.
func (t *tally) votedFor(id string, rest time.Duration, token int64) {
	if t.holders == nil {
		t.holders = map[string]candidate{}
	}
	h := t.holders[id]
	t.holders[id] = candidate{h.votes + 1, append(h.rests, rest), max(h.token, token)}
}

// most returns the hold with most of the votes, and their number.
func (t *tally) most() (holder string, most int) {
	for id, h := range t.holders {
		if h.votes > most || h.votes == most && id < holder {
			most, holder = h.votes, id
		}
	}
	return holder, most
}

// held decides whether any hold has a quorum of votes: yes as soon as there is one, no as soon as there
// cannot be one. If missing replies could complete a quorum, the result is unknown, which callers never
// report as free.
func (t *tally) held() decision {
	switch _, most := t.most(); {
	case t.enough(most):
		return yes
	case !t.enough(most + t.outstanding + len(t.failed)):
		return no
	case t.outstanding > 0:
		return wait
	}
	return unknown
}

// holder returns the hold with a quorum of votes, and how long a quorum of them lasts.
func (t *tally) holder() (id string, h candidate, rest time.Duration) {
	id, _ = t.most()
	h = t.holders[id]
	slices.Sort(h.rests)
	return id, h, h.rests[len(h.rests)-t.q]
}

// grantTally counts the votes of one try to acquire.
type grantTally struct {
	tally
	token  int64   // token of the hold, once there are enough votes; it may still grow
	got    []grant // by node
	raises int     // outstanding replies to writes of the token (RAISE)
	hurry  bool    // if a rival has votes, do not wait for silent nodes any more
}

// grant is one node's vote.
type grant struct {
	stamp     string // stamp of the grant; empty if there is none, or if it does not count any more
	count     int64  // value of the node's counter after the grant
	level     int64  // highest known value of the counter, after the grant or a RAISE
	isPending bool   // the request is under way
}

func newGrantTally(s size) grantTally {
	return grantTally{tally: tally{size: s}, got: make([]grant, s.n)}
}

// expect records that a node gets a request for its vote (ACQ).
func (t *grantTally) expect(node int) {
	t.got[node].isPending = true
	t.outstanding++
}

// count counts a reply to an ACQ, or to a RAISE if the node has already replied to the ACQ.
func (t *grantTally) count(r reply) {
	g := &t.got[r.node]
	isRaise := !g.isPending
	g.isPending = false
	switch {
	case isRaise && r.err == nil && r.says == written:
		t.raises--
		g.level = max(g.level, t.token) // the token does not grow meanwhile
	case isRaise:
		// The node has refused the RAISE, or may have. Its vote does not count any more: a new grant, to a
		// late copy of the acquire, has another stamp (model: NO_STAMP).
		t.raises--
		g.stamp = ""
		if r.err != nil {
			t.misses(r.node, r.err)
		}
	case r.err != nil:
		t.fail(r.node, silent, r.err)
	case r.says == granted:
		// Only votes whose reply was read count (model: COUNT_UNREAD).
		t.add(older)
		g.stamp, g.count, g.level = r.stamp, r.count, r.count
	case r.says == busy:
		t.add(taken)
		t.votedFor(r.id, r.rest, 0)
	default:
		t.add(none)
	}
}

// replied returns how many nodes have replied.
func (t *grantTally) replied() int { return t.sights[older] + t.sights[taken] + t.sights[none] }

// read returns how many grants were read and count.
func (t *grantTally) read() (n int) {
	for _, g := range t.got {
		if g.stamp != "" {
			n++
		}
	}
	return n
}

// counted returns how many nodes are at the token (model: isCounted). A vote with a higher count
// does not count: another hold may have had the token on that node before (model: COUNT_PAST).
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

// decide decides by the replies so far. yes: the client has the hold, with the token. no: it cannot get
// the hold. raise: the token has to be written to the nodes that are behind. wait: more replies decide.
//
// The token is the highest count of the grants. The hold exists only when a quorum of the nodes that
// granted their votes is at the token (model: decide, writeBack, report). Any two holds have such a
// node in common. On that node each hold had the vote without a break from its grant until its token
// was written, as the stamp proves. So one of them had the vote entirely before the other, and the
// later grant counted past the token of the earlier hold.
func (t *grantTally) decide() decision {
	read := t.read()
	switch {
	case t.enough(t.counted()):
		return yes
	case !t.enough(read + t.outstanding), !t.enough(read) && t.hurry && len(t.holders) > 0:
		return no
	case !t.enough(read) || t.raises > 0:
		return wait
	}
	// There are enough votes for the first time, or some votes do not count any more and later ones
	// have higher counts.
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

// isHeld reports whether another hold exists, as far as the replies show: it has a quorum, unless silent nodes
// have voted for others, and together with the nodes that could not vote it keeps all others from one.
func (t *grantTally) isHeld() bool {
	_, most := t.most()
	return t.blocks(most+len(t.failed)) && t.enough(most+t.n-t.replied())
}

// met reports whether a quorum has replied, and some of its nodes with a vote for another.
func (t *grantTally) met() bool { return t.enough(t.replied()) && len(t.holders) > 0 }

// rest returns for how long another hold is known to have a quorum, or so many votes that no other
// can have one, and the id of that hold. It returns 0 if the votes were split: the clients that
// split them take them back.
func (t *grantTally) rest() (rest time.Duration, holder string) {
	holder, most := t.most()
	if !t.blocks(most) {
		return 0, ""
	}
	var rests []time.Duration
	for _, h := range t.holders {
		rests = append(rests, h.rests...)
	}
	slices.Sort(rests)
	free := t.n - len(rests) - len(t.failed)
	return rests[min(max(t.q-free-1, 0), len(rests)-1)], holder
}

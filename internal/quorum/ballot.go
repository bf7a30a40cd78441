package quorum

import (
	"slices"
	"sync"
	"time"
)

// Ballots are the votes for the holds of a client at RedLocks. Its zero value has none.
type Ballots struct {
	mu   sync.Mutex // guards the rest
	byID map[string]*ballot
}

// of returns the ballot of a hold, or nil.
func (b *Ballots) of(id string) *ballot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[id]
}

func (b *Ballots) add(id string, v *ballot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byID == nil {
		b.byID = map[string]*ballot{}
	}
	b.byID[id] = v
}

// remove returns what was known.
func (b *Ballots) remove(id string) *ballot {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.byID[id]
	delete(b.byID, id)
	return v
}

// ballot is what the client knows of the votes for one hold. Its parts last for
// different times: the papers from the first request until the votes are taken
// back, the votes as long as the hold, and a round until the nodes have been heard.
type ballot struct {
	papers papers
	votes  votes
	rounds rounds
}

func (l *Lock) newBallot(lease time.Duration) *ballot {
	return &ballot{
		papers: papers{nodes: make([]paper, l.n)},
		votes: votes{
			stamps: make([]string, l.n), anew: make([]bool, l.n), late: make([]bool, l.n),
			lease: lease, entries: 1,
		},
	}
}

// papers are what may have become of the requests that ask the nodes for their votes: so
// they say what must be taken back from each, and whether a tombstone is needed.
type papers struct {
	mu    sync.Mutex // guards the rest
	nodes []paper
	over  bool // the votes are being taken back: no more are asked for
}

// paper is what one node may have.
type paper struct {
	open    int           // requests under way
	settled chan struct{} // closed when there are none any more; nil: nobody waits
	given   bool          // it has voted, or may have
	stray   bool          // a copy that was not answered may make it vote yet
}

// ask notes, before it is sent, that a node is asked for its vote. It reports false if it
// must not be any more: what takes the votes back has looked already. If it may,
// answered has to be called with what becomes of it.
func (p *papers) ask(node int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.nodes[node].open++
	}
	return !p.over
}

// answered notes what has become of such a request.
func (p *papers) answered(node int, r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := &p.nodes[node]
	n.given = n.given || r.unsure || r.err == nil && r.says.isVote()
	n.stray = n.stray || r.unsure
	n.open--
	if n.open == 0 && n.settled != nil {
		close(n.settled)
		n.settled = nil
	}
}

// given returns which nodes may have voted.
func (p *papers) given() (given []bool, count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.givenLocked()
}

func (p *papers) givenLocked() (given []bool, count int) {
	given = make([]bool, len(p.nodes))
	for i, n := range p.nodes {
		if n.given || n.open > 0 {
			given[i] = true
			count++
		}
	}
	return given, count
}

// close has no more votes asked for. It returns which nodes may have voted.
func (p *papers) close() (given []bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	given, _ = p.givenLocked()
	return given
}

// settle waits until no request to a node is under way, or it is late. It returns
// whether the node may have voted, and whether a copy of a request may make it do so
// later.
func (p *papers) settle(node int, late <-chan time.Time) (given, stray bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := &p.nodes[node]; n.open > 0; {
		if n.settled == nil {
			n.settled = make(chan struct{})
		}
		settled := n.settled
		p.mu.Unlock()
		select {
		case <-settled:
		case <-late:
			p.mu.Lock()
			return true, true
		}
		p.mu.Lock()
	}
	return p.nodes[node].given, p.nodes[node].stray
}

// votes are the votes for a hold, while it lasts.
type votes struct {
	mu      sync.Mutex    // guards the rest
	stamps  []string      // by node; "": none
	anew    []bool        // by node: it has voted anew (FRESH) since the hold was last confirmed
	late    []bool        // by node: it has voted anew before that, or since: its reply came late
	era     int           // how often the hold was confirmed
	since   time.Time     // when it was last
	lease   time.Duration // the longest that was asked for
	token   int64
	entries int // of the owner: the nodes do not know
}

// won notes the token of the hold, and the grants that were read.
func (v *votes) won(token int64, got []grant) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.token = token
	for i, g := range got {
		if g.stamp != "" {
			v.stamps[i] = g.stamp
		}
	}
}

// counts notes how often the owner has entered.
func (v *votes) counts(entries int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.entries = entries
}

func (v *votes) entered() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.entries
}

// atEnd is what a release has to know.
func (v *votes) atEnd() (token int64, lease time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.token, v.lease
}

// renews notes that a lease is asked for. It returns the stamps to ask with, and the era.
func (v *votes) renews(lease time.Duration) (stamps []string, era int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lease = max(v.lease, lease)
	return slices.Clone(v.stamps), v.era
}

// first notes a grant whose reply came when nobody listened any more.
func (v *votes) first(node int, stamp string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stamps[node] = stamp
}

// fresh notes that a node has voted anew, as a reply says that came in some era. What was
// before the hold was confirmed matters no more. But a request of before may have come
// late to the node.
func (v *votes) fresh(node int, stamp string, era int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stamps[node] = stamp
	v.anew[node] = v.anew[node] || era == v.era
	v.late[node] = era != v.era
}

// lasted reports whether a node's vote, which it has granted at that time or before, is
// of before the hold was last confirmed; or is known to be of after that since an
// earlier round, and then it counts. The time is that of the reply less the vote's
// age: it is not earlier than the grant.
func (v *votes) lasted(node int, granted time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.late[node] {
		return true
	}
	v.late[node] = false
	return !granted.After(v.since)
}

// confirm begins a new era: a quorum of votes has lasted until now.
func (v *votes) confirm(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.era++
	v.since = now
	clear(v.anew)
	clear(v.late)
}

// votedAnew says which nodes have voted anew since the hold was last confirmed.
func (v *votes) votedAnew() []bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.anew)
}

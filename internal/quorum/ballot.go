package quorum

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

// Ballots are the votes for a client's holds of RedLocks. The zero value is empty.
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

// remove removes the ballot of a hold and returns it; nil: there was none.
func (b *Ballots) remove(id string) *ballot {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.byID[id]
	delete(b.byID, id)
	return v
}

// ballot is what the client knows of the votes for one hold. Its parts have different
// lifetimes: the papers last from the first request until the votes are taken back, the
// votes as long as the hold, a round until the nodes have answered.
type ballot struct {
	papers papers
	votes  votes
	rounds rounds
}

func (l *Lock) newBallot(lease time.Duration) *ballot {
	return &ballot{
		papers: papers{nodes: make([]paper, l.n)},
		votes: votes{
			nodes: make([]vote, l.n),
			lease: lease, entries: 1,
		},
	}
}

// papers record what the requests for votes may have done on each node: whether a vote must
// be taken back, and whether that needs a tombstone.
type papers struct {
	mu    sync.Mutex // guards the rest
	nodes []paper
	over  bool // the votes are being taken back: no more requests
}

// paper is the state of one node.
type paper struct {
	open  int     // requests under way
	waits settler // is told when there are none left; nil: nothing waits
	given bool    // it has voted, or may have
	stray bool    // a copy without an answer may still make it vote
}

// ask notes that a node is about to be asked for its vote. It returns false if that is too
// late: the votes are already being taken back. Otherwise the caller must call answered with
// the reply.
func (p *papers) ask(node int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.nodes[node].open++
	}
	return !p.over
}

// wanted reports whether votes are of use still. A request for one that is sent after the release
// could outlast its tombstone, if the node restarts without data.
func (p *papers) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over
}

// answered notes the reply to such a request.
func (p *papers) answered(node int, r reply) {
	p.mu.Lock()
	n := &p.nodes[node]
	n.given = n.given || r.unsure || r.err == nil && r.says.isVote()
	n.stray = n.stray || r.unsure
	n.open--
	given, stray := n.given, n.stray
	var waits settler
	if n.open == 0 {
		waits, n.waits = n.waits, nil
	}
	p.mu.Unlock()
	if waits != nil {
		waits.settled(given, stray)
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

// close stops requests for votes. It returns which nodes may have voted.
func (p *papers) close() (given []bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	given, _ = p.givenLocked()
	return given
}

// settler is told when no request to a node is under way any more, or that this takes too long:
// whether the node may have voted, and whether a copy of a request may still make it vote.
type settler interface{ settled(given, stray bool) }

// settle is called once for a node, after close. Unless a request is under way it returns what
// a settler is told, and true. Otherwise s is told when that is answered, or by giveUp.
func (p *papers) settle(node int, s settler) (given, stray, settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := &p.nodes[node]
	if n.open > 0 {
		n.waits = s
		return false, false, false
	}
	return n.given, n.stray, true
}

// giveUp does not let s wait any more, if it does.
func (p *papers) giveUp(node int, s settler) {
	p.mu.Lock()
	waits := p.nodes[node].waits == s
	if waits {
		p.nodes[node].waits = nil
	}
	p.mu.Unlock()
	if waits {
		s.settled(true, true)
	}
}

// votes are the votes for a hold, while it lasts.
type votes struct {
	mu      sync.Mutex // guards the rest
	nodes   []vote
	era     int           // how often the hold was confirmed by a renewal
	since   time.Time     // the last confirmation, which the first grant of a quorum is too,
	sure    time.Time     // and until when in its round a vote may have been granted to be as old
	grace   time.Duration // how much younger than that a vote of an acquire may be
	lease   time.Duration // the longest requested one
	token   int64
	entries int // of the owner; the nodes do not know it
}

// vote is that of one node. What it says of the last confirmation is forgotten at the next one.
type vote struct {
	stamp string // "": none
	level int64  // the highest known value of the counter, while the node has voted for the hold
	anew  bool   // it has voted anew (FRESH) since the last confirmation,
	young bool   // as the reply to the renewal says that granted it;
	idle  bool   // but had voted for no other hold before
	late  bool   // it has voted before the confirmation or after: the reply came late
	mid   bool   // it has voted in the round of the confirmation, perhaps after others had answered
	heard time.Time
}

// won notes the token of the hold, and which of the grants that were counted do count still. A vote
// may be prompt younger.
func (v *votes) won(token int64, got []grant, now time.Time, prompt time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.token, v.since, v.sure, v.grace = token, now, now, prompt
	for i, g := range got {
		if g.count > 0 {
			v.nodes[i].stamp = g.stamp
		}
		v.nodes[i].level = max(v.nodes[i].level, g.level)
	}
}

// counts sets how often the owner has entered.
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

// owes returns the token as the release to a node has it: negative, if the node has reached it.
func (v *votes) owes(node int) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.nodes[node].level >= v.token {
		return -v.token
	}
	return v.token
}

// longest returns the longest lease that was requested.
func (v *votes) longest() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lease
}

// renews notes that a lease is requested. It returns the known stamps, and the era.
func (v *votes) renews(lease time.Duration) (stamps []string, era int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lease = max(v.lease, lease)
	stamps = make([]string, len(v.nodes))
	for i := range v.nodes {
		stamps[i] = v.nodes[i].stamp
	}
	return stamps, v.era
}

// granted notes a node's grant. A hold that has ended there before had a lower count; so one that
// came after this hold, with a higher token, did not, if the count is not past the token. Nor did
// it if the reply comes soon. Otherwise it is not known whether the grant is as old as the hold.
func (v *votes) granted(r reply, now time.Time, prompt time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &v.nodes[r.node]
	known := n.stamp == r.stamp
	n.stamp, n.level = r.stamp, max(n.level, r.count)
	switch {
	case !v.since.IsZero() && r.count > v.token && now.Sub(v.since) > prompt:
		n.late, v.grace = true, prompt // the next renewal tells how old it is, or the release
	case known && now.Sub(v.since) <= prompt: // a renewal was answered before the acquire, and met the same vote
		n.anew, n.young, n.late, n.mid = false, false, false, false
	}
}

// fresh notes that a node has voted anew, according to the reply to a request of some era. A
// vote anew before the last confirmation does not matter any more. But a request of an
// earlier era may have reached the node late, after that confirmation. It returns what the vote tells: idle
// or anew.
func (v *votes) fresh(r reply, now time.Time, era int) seen {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &v.nodes[r.node]
	none := v.none(r.stamp)
	n.idle = none && (n.idle || !n.anew)
	n.anew = n.anew || era == v.era
	n.young = era == v.era && r.age == 0
	n.late = era != v.era && !none
	n.mid, n.heard = false, now
	n.stamp, n.level = r.stamp, 0 // the counter may be lost too
	if n.idle {
		return idle
	}
	return anew
}

// none reports whether a node that has given a vote with this stamp had voted for no hold before that came
// later than this one. Such a hold has a higher token, because this one has written its own back to a
// quorum, and each of its nodes has counted to that (model/lasted.pml).
func (v *votes) none(stamp string) bool {
	count, _, _ := strings.Cut(stamp, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	return err == nil && n-1 <= v.token
}

// age returns what a known vote tells about the time since the last confirmation.
func (v *votes) age(node int) seen {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch n := v.nodes[node]; {
	case n.mid:
		return late
	case !n.anew:
		return kept
	case n.idle:
		return idle
	}
	return anew
}

// hasVotedAnew reports whether the node has voted anew since the last confirmation.
func (v *votes) hasVotedAnew(node int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodes[node].anew
}

// knows reports whether a stamp is that of a vote of which the client heard in another way than by a
// renewal that granted it. A request does not have it if the reply to the acquire was under way.
func (v *votes) knows(node int, stamp string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodes[node].stamp == stamp && !v.nodes[node].anew
}

// lasted reports whether a node's vote counts as continuous: it was granted before the last
// confirmation, or an earlier round already knew that it was granted later. granted is the
// time of the reply less the vote's age: not earlier than the grant.
func (v *votes) lasted(node int, granted time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &v.nodes[node]
	if !n.late {
		return true
	}
	n.late = false
	n.mid = granted.After(v.sure.Add(v.grace)) && !granted.After(v.since)
	return !granted.After(v.since.Add(v.grace))
}

// old reports whether a node's vote is known to be older than the last confirmation, or as good as that.
func (v *votes) old(node int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodes[node].old()
}

func (n *vote) old() bool { return n.stamp != "" && (!n.anew || n.idle) && !n.late && !n.mid }

// ended reports whether a vote that a release has taken back was older than the last confirmation, as
// far as is known. A release that does not tell the stamp and the age of the vote was sent where it was old.
func (v *votes) ended(r reply, now time.Time) (old bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &v.nodes[r.node]
	switch known := r.stamp == n.stamp; {
	case r.stamp == "" || known && n.old():
		return true
	case known && (n.young || n.mid):
		return false
	}
	return !now.Add(-r.age).After(v.sure.Add(v.grace))
}

// confirm begins a new era: a quorum of votes has lasted until now, by a round of an era that began at some
// time. If that era is over, a round that began later has confirmed them, and has told more.
//
// A vote that was granted in this round may be younger than the answers that confirm the hold: in between
// another hold may have come and gone (model: NO_MID). That this takes less than prompt is not to be expected.
func (v *votes) confirm(now, began time.Time, prompt time.Duration, era int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if era != v.era {
		return
	}
	v.era++
	v.since, v.sure, v.grace = now, began.Add(prompt), 0
	if v.sure.After(now) {
		v.sure = now
	}
	for i := range v.nodes {
		n := &v.nodes[i]
		n.mid = n.anew && !n.idle && n.heard.After(v.sure)
		n.anew, n.young, n.idle, n.late = false, false, false, false
	}
}

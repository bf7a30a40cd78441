package quorum

import (
	"sync"
	"sync/atomic"
	"time"
)

// Ballots has the ballot of each hold that a client has of a RedLock. The zero value is empty.
type Ballots struct {
	mu   sync.Mutex // guards the rest
	byID map[string]*ballot
}

// get returns the ballot of a hold, or nil.
func (b *Ballots) get(id string) *ballot {
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

// remove removes the ballot of a hold and returns it, or nil.
func (b *Ballots) remove(id string) *ballot {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.byID[id]
	delete(b.byID, id)
	return v
}

// ballot records the votes for one hold, from the first request until they are taken back.
type ballot struct {
	entries atomic.Int64 // how often the owner has entered; the nodes do not store it

	mu            sync.Mutex    // guards the rest
	votes         []vote        // by node
	isClosed      bool          // the votes are being taken back: no more requests
	confirmedAt   time.Time     // last confirmation; at first, when a quorum had granted its votes
	confirmedUpTo time.Time     // the hold is confirmed up to then: a vote granted by then counts as older
	lease         time.Duration // longest requested lease
	token         int64
	isRolledBack  bool // a node is known to have come back with old data: no counter proves anything any more
	isGuarded     bool // there is a quarantine: after it a node counts on from the tokens of the others

	latestRound *renewalRound   // latest round of the watchdog
	errands     []renewalErrand // by node; nil before the first renewal
}

func (l *Lock) newBallot(lease time.Duration) *ballot {
	b := &ballot{votes: make([]vote, l.n), lease: lease, isGuarded: l.quarantine != nil}
	b.entries.Store(1)
	return b
}

// ask records that a request for a vote is about to be sent to a node. It returns false if the votes
// are already being taken back. Otherwise the caller must call answered with the reply.
func (b *ballot) ask(node int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isClosed {
		b.votes[node].inFlight++
	}
	return !b.isClosed
}

// wanted reports whether votes are still useful. A request for a vote that is sent after the release
// could outlast the tombstone if the node restarts without data.
func (b *ballot) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isClosed
}

// answered records the reply to a request for a vote (see learn). A release that waits for the reply continues after that,
// so it takes the vote back.
func (b *ballot) answered(r *reply, began, now time.Time, prompt time.Duration) {
	b.mu.Lock()
	v := &b.votes[r.node]
	if r.err == nil && r.says.isVote() {
		b.learn(v, r, began, now, prompt)
		v.mayHaveVoted = true
	}
	v.mayHaveVoted, v.stray = v.mayHaveVoted || r.unsure, v.stray || r.unsure
	v.inFlight--
	mayHaveVoted, stray := v.mayHaveVoted, v.stray
	var waits settler
	if v.inFlight == 0 {
		waits, v.settler = v.settler, nil
	}
	b.mu.Unlock()
	if waits != nil {
		waits.settled(mayHaveVoted, stray)
	}
}

// renews records that a lease is requested, and returns the known stamps by node.
func (b *ballot) renews(lease time.Duration) (stamps []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lease = max(b.lease, lease)
	stamps = make([]string, len(b.votes))
	for i := range b.votes {
		stamps[i] = b.votes[i].stamp
	}
	return stamps
}

// won records the token of the hold and the grants that count. A vote that was granted up to prompt
// later counts as older too.
func (b *ballot) won(token int64, got []grant, now time.Time, prompt time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token, b.confirmedAt, b.confirmedUpTo = token, now, now.Add(prompt)
	for i, g := range got {
		if g.count > 0 {
			v := &b.votes[i]
			v.stamp, v.level = g.stamp, max(v.level, g.level)
		}
	}
}

// confirm confirms the hold up to the latest time until which so many nodes have voted for no other hold that the
// others are no quorum. Several rounds may find these nodes: a vote that was found in place has been there all the
// time (model: confirm). The caller holds the mutex.
//
// A vote that was granted in such a round may be younger than the replies that confirm the hold, and in between another
// hold may have come and gone (model: NO_MID). That takes longer than prompt.
func (b *ballot) confirm(s size, now time.Time, prompt time.Duration) {
	var latest time.Time
	for i := range b.votes {
		at, nodes := b.votes[i].noOtherUntil, 0
		for j := range b.votes {
			if !b.votes[j].noOtherUntil.Before(at) {
				nodes++
			}
		}
		if at.After(latest) && s.blocks(nodes) {
			latest = at
		}
	}
	if latest.Before(b.confirmedAt) {
		return
	}
	b.confirmedAt, b.confirmedUpTo = now, latest.Add(prompt)
	if b.confirmedUpTo.After(now) {
		b.confirmedUpTo = now
	}
}

// close stops requests for votes. It returns which nodes may have voted, their number, and the longest requested
// lease.
func (b *ballot) close() (voters []bool, count int, lease time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isClosed = true
	voters = make([]bool, len(b.votes))
	for i, v := range b.votes {
		if voters[i] = v.mayHaveVoted || v.inFlight > 0; voters[i] {
			count++
		}
	}
	return voters, count, b.lease
}

// settler is called when no request to a node is under way, or when that takes too long. mayHaveVoted: the node
// may have voted. stray: a copy of a request may still make it vote.
type settler interface {
	settled(mayHaveVoted, stray bool)
}

// settle is called once for a node, after close. If no request is under way, it returns the arguments
// of settled and true. Otherwise s is called with the last reply, or by giveUp.
func (b *ballot) settle(node int, s settler) (mayHaveVoted, stray, settled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.votes[node]
	if v.inFlight > 0 {
		v.settler = s
		return false, false, false
	}
	return v.mayHaveVoted, v.stray, true
}

// giveUp calls s, unless s was called before.
func (b *ballot) giveUp(node int, s settler) {
	b.mu.Lock()
	waits := b.votes[node].settler == s
	if waits {
		b.votes[node].settler = nil
	}
	b.mu.Unlock()
	if waits {
		s.settled(true, true)
	}
}

// old reports whether a node is known to have voted for no other hold since the last confirmation. It returns true for
// a try that did not become a hold, where this does not matter.
func (b *ballot) old(node int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.confirmedAt.IsZero() || !means[b.state(&b.votes[node])].mayBeOthers
}

// owes returns the token argument of a release to a node: negative if the node's counter has reached the token.
func (b *ballot) owes(node int) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.votes[node].level >= b.token {
		return -b.token
	}
	return b.token
}

// hasOldData records that a node that had voted has no vote, and a counter that has gone back.
func (b *ballot) hasOldData() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isRolledBack = !b.isGuarded
}

// countersProve reports whether no node is known to have come back with old data.
func (b *ballot) countersProve() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isRolledBack
}

// ended returns what a reply to a release proves if the node has taken its vote back. The reply has neither stamp nor
// age if the vote was old when the release was sent.
func (b *ballot) ended(r reply, now time.Time) evidence {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.stamp == "" {
		return older
	}
	v, grantedBy := b.votes[r.node], now.Add(-r.age)
	if r.stamp != v.stamp {
		b.regranted(&v, r.stamp, grantedBy)
	} else if grantedBy.Before(v.grantedBy) {
		v.grantedBy = grantedBy
	}
	return b.state(&v)
}

// unanswered returns the evidence about a node that does not reply to a renewal. A vote that was granted again had been
// lost before. The caller holds the mutex.
func (b *ballot) unanswered(node int) evidence {
	if means[b.state(&b.votes[node])].mayBeOurs {
		return silent
	}
	return newer
}

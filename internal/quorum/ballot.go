package quorum

import (
	"sync"
	"sync/atomic"
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

// ballot is what the client knows of the votes for one hold, from the first request until they are
// taken back.
type ballot struct {
	entries atomic.Int64 // of the owner; the nodes do not know it

	mu    sync.Mutex    // guards the rest
	votes []vote        // by node
	over  bool          // the votes are being taken back: no more requests
	since time.Time     // the last confirmation, which the first grant of a quorum is too
	sure  time.Time     // the hold is confirmed up to then: a vote that was granted by then counts as older
	lease time.Duration // the longest requested one
	token int64

	latest  *round   // of the watchdog
	errands []errand // by node; nil: none yet
}

func (l *Lock) newBallot(lease time.Duration) *ballot {
	b := &ballot{votes: make([]vote, l.n), lease: lease}
	b.entries.Store(1)
	return b
}

// ask notes that a node is about to be asked for its vote. It returns false if that is too
// late: the votes are already being taken back. Otherwise the caller must call answered with
// the reply.
func (b *ballot) ask(node int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.votes[node].open++
	}
	return !b.over
}

// wanted reports whether votes are of use still. A request for one that is sent after the release
// could outlast its tombstone, if the node restarts without data.
func (b *ballot) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.over
}

// answered notes the reply to such a request, and in the reply whether the vote counts, and what it shows: see
// learn. A release that waits for the reply comes after that: it is to know of the vote.
func (b *ballot) answered(r *reply, began, now time.Time, prompt time.Duration) {
	b.mu.Lock()
	v := &b.votes[r.node]
	if r.err == nil && r.says.isVote() {
		b.learn(v, r, began, now, prompt)
		v.given = true
	}
	v.given, v.stray = v.given || r.unsure, v.stray || r.unsure
	v.open--
	given, stray := v.given, v.stray
	var waits settler
	if v.open == 0 {
		waits, v.waits = v.waits, nil
	}
	b.mu.Unlock()
	if waits != nil {
		waits.settled(given, stray)
	}
}

// renews notes that a lease is requested. It returns the known stamps.
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

// won notes the token of the hold, and which of the grants that were counted do count still. A vote
// may be prompt younger.
func (b *ballot) won(token int64, got []grant, now time.Time, prompt time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token, b.since, b.sure = token, now, now.Add(prompt)
	for i, g := range got {
		if g.count > 0 {
			v := &b.votes[i]
			v.stamp, v.level = g.stamp, max(v.level, g.level)
		}
	}
}

// confirm confirms the hold up to the latest time until which so many nodes have voted for no other hold that the rest
// is no quorum. It may take several rounds to find these nodes: no matter, since a vote that was found in place has
// been there all the time (model: confirm). The caller holds the mutex.
//
// A vote that was granted in such a round may be younger than the answers that confirm the hold: in between another
// hold may have come and gone (model: NO_MID). That this takes less than prompt is not to be expected.
func (b *ballot) confirm(s size, now time.Time, prompt time.Duration) {
	var latest time.Time
	for i := range b.votes {
		at, nodes := b.votes[i].alone, 0
		for j := range b.votes {
			if !b.votes[j].alone.Before(at) {
				nodes++
			}
		}
		if at.After(latest) && s.blocks(nodes) {
			latest = at
		}
	}
	if latest.Before(b.since) {
		return
	}
	b.since, b.sure = now, latest.Add(prompt)
	if b.sure.After(now) {
		b.sure = now
	}
}

// close stops requests for votes. It returns which nodes may have voted, how many these are, and the longest
// lease that was requested.
func (b *ballot) close() (given []bool, count int, lease time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	given = make([]bool, len(b.votes))
	for i, v := range b.votes {
		if given[i] = v.given || v.open > 0; given[i] {
			count++
		}
	}
	return given, count, b.lease
}

// settler is told when no request to a node is under way any more, or that this takes too long:
// whether the node may have voted, and whether a copy of a request may still make it vote.
type settler interface{ settled(given, stray bool) }

// settle is called once for a node, after close. Unless a request is under way it returns what
// a settler is told, and true. Otherwise s is told when that is answered, or by giveUp.
func (b *ballot) settle(node int, s settler) (given, stray, settled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.votes[node]
	if v.open > 0 {
		v.waits = s
		return false, false, false
	}
	return v.given, v.stray, true
}

// giveUp does not let s wait any more, if it does.
func (b *ballot) giveUp(node int, s settler) {
	b.mu.Lock()
	waits := b.votes[node].waits == s
	if waits {
		b.votes[node].waits = nil
	}
	b.mu.Unlock()
	if waits {
		s.settled(true, true)
	}
}

// old reports whether a node's vote is known to be older than the last confirmation, or as good as that. It does not
// matter for a try that did not become a hold.
func (b *ballot) old(node int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.since.IsZero() || !means[b.state(&b.votes[node])].others
}

// owes returns the token as the release to a node has it: negative, if the node has reached it.
func (b *ballot) owes(node int) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.votes[node].level >= b.token {
		return -b.token
	}
	return b.token
}

// ended returns what it shows of a node that a release has taken its vote back. The reply has no stamp and no
// age if the vote was old when the release was sent.
func (b *ballot) ended(r reply, now time.Time) seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.stamp == "" {
		return older
	}
	v, by := b.votes[r.node], now.Add(-r.age)
	if r.stamp != v.stamp || by.Before(v.by) {
		v.stamp, v.by = r.stamp, by
	}
	return b.state(&v)
}

// unanswered returns what it shows of a node that it does not answer a renewal. A vote that was granted anew was lost
// before. The caller holds the mutex.
func (b *ballot) unanswered(node int) seen {
	if means[b.state(&b.votes[node])].ours {
		return silent
	}
	return newer
}

package quorum

import (
	"strconv"
	"strings"
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
	era   int           // how often the hold was confirmed by a renewal
	since time.Time     // the last confirmation, which the first grant of a quorum is too,
	sure  time.Time     // and until when in its round a vote may have been granted to be as old
	grace time.Duration // how much younger than that a vote of an acquire may be
	lease time.Duration // the longest requested one
	token int64

	latest  *round   // of the watchdog
	errands []errand // by node; nil: none yet
}

// vote is that of one node, and what the requests for it may have done there: whether it must be
// taken back, and whether that needs a tombstone.
type vote struct {
	state state
	stamp string    // "": none
	level int64     // the highest known value of the counter, while the node has voted for the hold
	heard time.Time // when it was last FRESH

	open  int     // requests under way
	waits settler // is told when there are none left; nil: nothing waits
	given bool    // it has voted, or may have
	stray bool    // a copy without an answer may still make it vote
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

// answered notes the reply to such a request, of a round that began in some era. A vote may be
// prompt younger than the hold. It notes in the reply whether the vote counts, and what it shows.
// A release that waits for the reply comes after that: it is to know of the vote.
func (b *ballot) answered(r *reply, era int, now time.Time, prompt time.Duration) {
	b.mu.Lock()
	v := &b.votes[r.node]
	if r.err == nil && r.says.isVote() {
		b.hear(v, r, era, now, prompt)
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

// hear moves a vote by a reply.
func (b *ballot) hear(v *vote, r *reply, era int, now time.Time, prompt time.Duration) {
	if r.says == granted {
		e := b.acquired(v, r, now, prompt)
		if v.state = moves[e][v.state]; e == acquiredLate {
			v.heard = now
		}
		v.stamp, v.level = r.stamp, max(v.level, r.count)
		return
	}
	// A request does not have the stamp if the reply to the acquire was under way.
	if r.says == fresh && r.stamp == v.stamp && shows[v.state].silence != anew {
		r.says = continuous
	}
	if r.says == continuous {
		// Not earlier than the grant.
		switch at := now.Add(-r.age); {
		case v.state == untold && at.After(b.since.Add(b.grace)):
			r.says = fresh
		case at.After(b.sure.Add(b.grace)) && !at.After(b.since):
			v.state = moves[continuousAmid][v.state]
		default:
			v.state = moves[continuousBefore][v.state]
		}
	}
	if r.says == continuous {
		r.seen = shows[v.state].continuous
		return
	}
	v.state = moves[b.granted(r, era)][v.state]
	v.stamp, v.level, v.heard = r.stamp, 0, now // the counter may be lost too
	r.seen = shows[v.state].fresh
}

// acquired returns what a grant by an acquire is. A hold that has ended there before had a lower count; so one
// that came after this hold, with a higher token, did not, if the count is not past the token. Nor did
// it if the reply comes soon. Otherwise it is not known whether the grant is as old as the hold: the next
// renewal tells, or the release.
func (b *ballot) acquired(v *vote, r *reply, now time.Time, prompt time.Duration) event {
	soon := now.Sub(b.since) <= prompt
	switch {
	case b.since.IsZero(): // it is no hold yet
	case r.count > b.token && !soon:
		b.grace = prompt
		return acquiredLate
	case r.stamp == v.stamp && soon: // a renewal was answered before the acquire, and met the same vote
		return acquiredKnown
	}
	return acquired
}

// granted returns what a FRESH vote is. One of before the last confirmation does not matter any more. But
// a request of an earlier era may have reached the node late, after that confirmation.
func (b *ballot) granted(r *reply, era int) event {
	switch isSole := b.sole(r.stamp); {
	case era == b.era && isSole:
		return freshSole
	case era == b.era && r.age == 0:
		return freshNow
	case era == b.era:
		return freshFound
	case isSole:
		return staleSole
	}
	return staleFresh
}

// sole reports whether a node that has given a vote with this stamp had voted for no hold before that came
// later than this one. Such a hold has a higher token, because this one has written its own back to a
// quorum, and each of its nodes has counted to that (model/lasted.pml).
func (b *ballot) sole(stamp string) bool {
	count, _, _ := strings.Cut(stamp, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	return err == nil && n-1 <= b.token
}

// renews notes that a lease is requested. It returns the known stamps, and the era.
func (b *ballot) renews(lease time.Duration) (stamps []string, era int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lease = max(b.lease, lease)
	stamps = make([]string, len(b.votes))
	for i := range b.votes {
		stamps[i] = b.votes[i].stamp
	}
	return stamps, b.era
}

// won notes the token of the hold, and which of the grants that were counted do count still. A vote
// may be prompt younger.
func (b *ballot) won(token int64, got []grant, now time.Time, prompt time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token, b.since, b.sure, b.grace = token, now, now, prompt
	for i, g := range got {
		v := &b.votes[i]
		v.level = max(v.level, g.level)
		if g.count > 0 {
			v.stamp = g.stamp
			e := acquired
			if g.stamp == "" {
				e = raiseRefused
			}
			v.state = moves[e][v.state]
		}
	}
}

// confirm begins a new era: a quorum of votes has lasted until now, by a round of an era that began at some
// time. If that era is over, a round that began later has confirmed them, and has told more.
//
// A vote that was granted in this round may be younger than the answers that confirm the hold: in between
// another hold may have come and gone (model: NO_MID). That this takes less than prompt is not to be expected.
// The caller holds the mutex.
func (b *ballot) confirm(now, began time.Time, prompt time.Duration, era int) {
	if era != b.era {
		return
	}
	b.era++
	b.since, b.sure, b.grace = now, began.Add(prompt), 0
	if b.sure.After(now) {
		b.sure = now
	}
	for i := range b.votes {
		v, e := &b.votes[i], confirmedInTime
		if v.heard.After(b.sure) {
			e = confirmedLate
		}
		v.state = moves[e][v.state]
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

// old reports whether a node's vote is known to be older than the last confirmation, or as good as that.
func (b *ballot) old(node int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return shows[b.votes[node].state].release == kept
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

// ended returns what it shows of a node that a release has taken its vote back: kept or late. A release that
// does not tell the stamp and the age of the vote was sent where it was old.
func (b *ballot) ended(r reply, now time.Time) seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.votes[r.node]
	what := shows[v.state].release
	switch {
	case r.stamp == "":
		return kept
	case r.stamp == v.stamp && what != unseen:
		return what
	case now.Add(-r.age).After(b.sure.Add(b.grace)):
		return late
	}
	return kept
}

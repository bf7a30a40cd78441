package quorum

import (
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// node is one master as a lock uses it.
type node struct {
	Node
	took atomic.Int64 // ns of its last answer, or for which one was waited in vain
}

// foremost is the first node that answers, and no later than others, as far as is
// known; or -1.
func (l *Lock) foremost() int {
	late := l.patience()
	for i, n := range l.nodes {
		if time.Duration(n.took.Load()) < late && !n.Wire.IsLost(l.cfg.NodeTimeout) {
			return i
		}
	}
	return -1
}

// patience is how long a single node is waited for when others could be asked: some
// times what a quorum of them takes.
func (l *Lock) patience() time.Duration {
	return max(8*time.Duration(l.pace.Load()), 5*time.Millisecond)
}

// reply is what a node says, read once. It has the fields of all requests; those of the
// others are zero.
type reply struct {
	node   int
	err    error // why there is none
	unsure bool  // another copy of the request may have done what the reply does not say
	says   says

	raisedTo int64         // of a RAISE: the token; of a request for a vote: 0
	stamp    string        // granted, continuous, fresh: of the vote
	count    int64         // granted: what the counter has become by it
	age      time.Duration // continuous, fresh: since when the vote has lasted
	id       string        // busy, votedFor, released by force: whose vote it is, or was
	rest     time.Duration // busy, votedFor: for how long
	token    int64         // votedFor: of the hold; 0: it is none, or not yet
	about    *about        // of a node that was asked about itself
}

// says is what a node says. The zero value is that it has nothing to do with the hold.
type says int

const (
	nothing    says = iota // no vote was found, or the node was not asked in the end
	granted                // ACQ: it votes for the hold, since now or an earlier copy
	busy                   // another hold has the vote
	cancelled              // the hold was given up
	continuous             // RENEW: the vote has lasted since the stamp that we know
	fresh                  // RENEW: the vote was given anew, or we do not know its stamp
	written                // RAISE: the counter is at least the token
	released               // the vote was the hold's, and is taken back
	votedFor               // a look: the node votes for a hold
)

// isVote reports whether the node votes for the hold that asked.
func (s says) isVote() bool { return s == granted || s == continuous || s == fresh }

// text returns an item of a list that is a string.
func text(list []any, i int) (string, bool) {
	if i >= len(list) {
		return "", false
	}
	s, ok := list[i].(string)
	return s, ok
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// first reads a reply that is an integer, or a list that begins with one.
func first(a wire.Answer) (n int64, rest []any, err error) {
	if list, ok := a.Val.([]any); ok && len(list) > 0 && a.Err == nil {
		if n, ok := list[0].(int64); ok {
			return n, list[1:], nil
		}
	}
	n, err = a.Int()
	return n, nil, err
}

// readAcquire reads the reply of quorum/acquire.
func readAcquire(a wire.Answer) (r reply, err error) {
	n, rest, err := first(a)
	if err != nil {
		return r, err
	}
	var number int64
	var whose string
	ok := n < 0
	if len(rest) == 2 {
		number, ok = rest[0].(int64)
		whose, _ = rest[1].(string)
		ok = ok && whose != ""
	}
	switch {
	case !ok:
		return r, wire.ErrReply(a.Val)
	case n < 0:
		return reply{says: cancelled}, nil
	case n == 0:
		return reply{says: busy, id: whose, rest: millis(number)}, nil
	}
	return reply{says: granted, stamp: whose, count: number}, nil
}

// readRaise reads the reply of quorum/raise.
func readRaise(a wire.Answer) (r reply, err error) {
	n, err := a.Int()
	if n == 1 {
		r.says = written
	}
	return r, err
}

// readRenew reads the reply of quorum/renew.
func readRenew(a wire.Answer) (r reply, err error) {
	n, rest, err := first(a)
	switch {
	case err != nil:
		return r, err
	case n == 0:
		return reply{says: cancelled}, nil
	case n < 0:
		return reply{says: busy}, nil
	}
	stamp, ok := text(rest, 1)
	if !ok {
		return r, wire.ErrReply(a.Val)
	}
	age, ok := rest[0].(int64)
	if !ok {
		return r, wire.ErrReply(a.Val)
	}
	r = reply{says: continuous, stamp: stamp, age: micros(age)}
	if n == 2 {
		r.says = fresh
	}
	return r, nil
}

// readRelease reads the reply of quorum/release.
func readRelease(a wire.Answer) (r reply, err error) {
	n, err := a.Int()
	switch {
	case n > 0:
		r.says = released
	case n < 0:
		r.says = busy
	}
	return r, err
}

// readForce reads the reply of quorum/force_unlock.
func readForce(a wire.Answer) (r reply, err error) {
	n, rest, err := first(a)
	if err != nil || n != 1 {
		return r, err
	}
	id, ok := text(rest, 0)
	if !ok {
		return r, wire.ErrReply(a.Val)
	}
	return reply{says: released, id: id}, nil
}

// readInspect reads the reply of quorum/inspect.
func readInspect(a wire.Answer) (r reply, err error) {
	ms, token, rest, err := a.Pair()
	if err != nil || ms == -2 {
		return r, err
	}
	id, ok := text(rest, 1)
	if !ok || id == "" {
		return r, wire.ErrReply(a.Val)
	}
	return reply{says: votedFor, id: id, rest: millis(ms), token: token}, nil
}

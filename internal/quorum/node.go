package quorum

import (
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// node is one master as a lock uses it.
type node struct {
	Node
	took atomic.Int64 // how long its last reply took, or the wait for one, ns
}

// foremost returns the first node that is known to reply as fast as the others, or -1.
func (l *Lock) foremost() int {
	limit := l.patience()
	for i, n := range l.nodes {
		if time.Duration(n.took.Load()) < limit && !n.Wire.IsLost(l.cfg.NodeTimeout) {
			return i
		}
	}
	return -1
}

// patience returns how long to wait for the reply of the first node before requests to the others: a multiple of the time
// that a quorum takes.
func (l *Lock) patience() time.Duration {
	return max(8*time.Duration(l.pace.Load()), 5*time.Millisecond)
}

// promptFloor is how long a busy process or server may take now and then. In that time no node loses
// its data while another hold comes and goes.
const promptFloor = 100 * time.Millisecond

// prompt returns how much later than the replies of the quorum the reply of a node may come, if it
// usually takes so long: a distant node must not count as a late request.
func (l *Lock) prompt(usual time.Duration) time.Duration {
	return max(2*usual, 2*time.Duration(l.pace.Load()), promptFloor)
}

// reply is the reply of a node to any kind of request. Fields that do not apply are zero.
type reply struct {
	node      int
	err       error // why there is no usable reply
	unsure    bool  // another copy of the request may have done more than the reply says
	listeners int   // how many connections got what was published
	says      says
	usual     time.Duration // how long the node's previous reply took

	stamp    string        // granted, continuous, fresh: stamp of the vote; released: the same, if requested
	count    int64         // granted: new value of the counter
	age      time.Duration // continuous, fresh, and released with a stamp: how long the vote has lasted
	id       string        // busy, votedFor, released by force: the hold that has or had the vote
	rest     time.Duration // busy, votedFor: how long that vote lasts
	token    int64         // votedFor: token of the hold; 0 if it is not a hold yet
	evidence evidence      // granted, continuous, fresh: what the reply proves about the node
	report   *nodeReport   // what a node reports about itself
}

// says is the meaning of a reply. Zero means that the node has no vote for the hold.
type says int

const (
	nothing    says = iota // there was no vote, or the node got no request
	granted                // ACQ: the node votes for the hold, by this copy or an earlier one
	busy                   // another hold has the vote
	abandoned              // the hold was abandoned
	continuous             // RENEW: the vote has lasted since the grant with the known stamp
	fresh                  // RENEW: the vote was granted again, or its stamp was not known
	written                // RAISE: the counter is at least the token
	released               // REL: the vote was for the hold, and is taken back
	unmoved                // REL: there was no vote, and the counter has not passed the token
	behind                 // REL: there was no vote, and the counter has gone back: the node has old data
	votedFor               // inspect: the node votes for a hold
)

// isVote reports whether the node votes for the hold of the request.
func (s says) isVote() bool { return s == granted || s == continuous || s == fresh }

// scan reads the first items of a list into *int64 and *string. It reports whether the list has them.
func scan(list []any, into ...any) bool {
	if len(list) < len(into) {
		return false
	}
	for i, to := range into {
		ok := false
		switch to := to.(type) {
		case *int64:
			*to, ok = list[i].(int64)
		case *string:
			*to, ok = list[i].(string)
		}
		if !ok {
			return false
		}
	}
	return true
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
	if stamp, ok := a.Val.(string); ok && a.Err == nil {
		count, _, _ := strings.Cut(stamp, ":")
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			return r, wire.ErrReply(a.Val)
		}
		return reply{says: granted, stamp: stamp, count: n}, nil
	}
	n, rest, err := first(a)
	if err != nil {
		return r, err
	}
	if n < 0 {
		return reply{says: abandoned}, nil
	}
	var ms int64
	if !scan(rest, &ms, &r.id) || r.id == "" {
		return reply{}, wire.ErrReply(a.Val)
	}
	r.says, r.rest = busy, millis(ms)
	return r, nil
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
		return reply{says: abandoned}, nil
	case n < 0:
		return reply{says: busy}, nil
	}
	var age int64
	if !scan(rest, &age, &r.stamp) {
		return reply{}, wire.ErrReply(a.Val)
	}
	r.says, r.age = continuous, micros(age)
	if n == 2 {
		r.says = fresh
	}
	return r, nil
}

// readRelease reads the reply of quorum/release.
func readRelease(a wire.Answer) (r reply, err error) {
	n, rest, err := first(a)
	switch {
	case err != nil:
		return r, err
	case n == -2:
		return reply{says: unmoved}, nil
	case n == -3:
		return reply{says: behind}, nil
	case n < 0:
		return reply{says: busy}, nil
	case n == 0:
		return r, nil
	}
	r.says = released
	if len(rest) > 0 {
		var age int64
		if !scan(rest, &age, &r.stamp) {
			return reply{}, wire.ErrReply(a.Val)
		}
		r.age = micros(age)
	}
	return r, nil
}

// readForce reads the reply of quorum/force_unlock.
func readForce(a wire.Answer) (r reply, err error) {
	n, rest, err := first(a)
	if err != nil || n == 0 {
		return r, err
	}
	if !scan(rest, &r.id) {
		return r, wire.ErrReply(a.Val)
	}
	r.says = released
	if n == 2 {
		r.says = votedFor
	}
	return r, nil
}

// readInspect reads the reply of quorum/inspect.
func readInspect(a wire.Answer) (r reply, err error) {
	ms, token, rest, err := a.Pair()
	if err != nil || ms == -2 {
		return r, err
	}
	if len(rest) < 2 || !scan(rest[1:], &r.id) || r.id == "" {
		return r, wire.ErrReply(a.Val)
	}
	r.says, r.rest, r.token = votedFor, millis(ms), token
	return r, nil
}

package rlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// renewal is one round in which the nodes are asked to renew their votes for a
// hold. The hold goes on if a quorum of nodes says that their votes have stood
// without a break since the hold was last confirmed. Votes that were given anew, by
// nodes that were away or have lost their data, count from the next round on; but if
// those, with the votes that are another's, are a quorum themselves, the hold is lost.
//
// Why nobody else can have had the lock since it was last confirmed: his quorum has
// a node in common with the one whose votes have stood. There his vote ended before
// this one was given, or began after the node answered. In the first case it ended
// before the confirmation, and a vote outlives the hold that counts on it: he took it
// back, or his deadline had passed. So it matters when a vote was given, and not when
// the client heard of it. A renewal of before the confirmation may come late to a node,
// after another has had its vote, and his hold. If the reply is late too, only the node
// can tell: see votes.stood.
type renewal struct {
	*red
	stay   string
	lease  time.Duration
	votes  *votes
	stamps []string // by node, when it began
	era    int
	spread *spreading // by the watchdog; nil: it has a caller who waits

	decided atomic.Bool // set under mu

	mu     sync.Mutex // guards the rest
	open   int        // replies to come
	sent   time.Time  // when the first of the nodes was asked whose votes have stood
	stood  int
	anew   int
	ended  int
	taken  int
	failed map[int]error
	broken []bool
}

// spreading is how the watchdog has votes renewed.
type spreading struct {
	lanes  *lanes
	goesOn func() bool                    // the hold does
	done   func(sent time.Time, a answer) // called once
	again  bool                           // this is the second round
}

func (r *red) newRenewal(v *votes, stay string, lease time.Duration) *renewal {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lease = max(v.lease, lease)
	return &renewal{
		red: r, stay: stay, lease: lease, votes: v, stamps: slices.Clone(v.stamps), era: v.era,
		failed: map[int]error{}, broken: make([]bool, len(r.nodes)),
	}
}

func (n *renewal) request(i int, node *redNode) *request {
	return n.guarded(i, true, &request{
		script: n.script("red_renew"),
		keys:   []string{node.record, node.counter, redHighest, node.gone + n.stay},
		args:   []any{n.stay, n.stamps[i], n.lease.Milliseconds()},
	})
}

// count counts a node's reply to what was sent at sent. It reports whether that
// decides the round: the first quorum of votes that have stood does, or else the
// last reply. Of replies that come later, only votes that were given anew are noted.
func (n *renewal) count(p reply, sent time.Time) (decides bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.err == nil && p.ints[0] == 1 {
		age := time.Duration(p.ints[1]) * time.Microsecond
		if !n.votes.stood(p.node, n.c.clock.Now().Add(-age)) {
			p.ints[0] = 2
		}
	}
	if p.err == nil && p.ints[0] == 2 {
		n.votes.has(p.node, p.texts[0], true, n.era)
	}
	if n.decided.Load() {
		return false
	}
	n.open--
	switch {
	case p.err != nil:
		n.failed[p.node] = p.err
	case p.ints[0] == 1:
		n.stood++
		if n.sent.IsZero() || sent.Before(n.sent) {
			n.sent = sent
		}
	case p.ints[0] == 2:
		n.failed[p.node] = errAnew
		n.anew++
	case p.ints[0] == 0:
		n.broken[p.node] = true
		n.ended++
	default:
		n.broken[p.node] = true
		n.taken++
	}
	decides = n.stood >= n.quorum || n.open == 0
	n.decided.Store(decides)
	return decides
}

var errAnew = errors.New("it had no vote for this hold, and has one since now")

// verdict is what the round came to. It is worth another one if with the votes
// that were given anew there is a quorum.
func (n *renewal) verdict() (a answer, again bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.votes
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.stood >= n.quorum {
		v.era++
		v.since = n.c.clock.Now()
		clear(v.anew)
		clear(v.late)
		return answer{val: int64(1)}, false
	}
	forgot := 0
	for i := range n.broken {
		if n.broken[i] || v.anew[i] {
			forgot++
		}
	}
	switch {
	case forgot < n.quorum && n.ended <= len(n.nodes)-n.quorum:
		// Nobody else can have had a quorum, as far as is known; and a vote that
		// another one has may be of a try that he takes back.
		return answer{err: n.noQuorum(n.failed)}, n.stood+n.anew >= n.quorum
	case n.taken > 0:
		return answer{val: int64(-1)}, false
	}
	// So many nodes have forgotten their votes that another may have had a quorum
	// of them, and may be gone again.
	return answer{val: int64(0)}, false
}

func (r *red) renew(stay string, lease time.Duration) *request {
	return &request{
		lease: lease,
		do:    func(ctx context.Context) answer { return r.renewAll(ctx, stay, lease) },
		spread: func(lanes *lanes, goesOn func() bool, done func(time.Time, answer)) {
			r.renewSpread(stay, lease, &spreading{lanes: lanes, goesOn: goesOn, done: done})
		},
	}
}

// renewAll renews the votes for a hold while the caller waits, in one round or two.
func (r *red) renewAll(ctx context.Context, stay string, lease time.Duration) answer {
	a, again := r.renewOnce(ctx, stay, lease)
	if again {
		a, _ = r.renewOnce(ctx, stay, lease)
	}
	return a
}

func (r *red) renewOnce(ctx context.Context, stay string, lease time.Duration) (a answer, again bool) {
	v := r.c.elections.of(stay)
	if v == nil {
		return answer{val: int64(0)}, false
	}
	if err := r.prepare(ctx); err != nil {
		return answer{err: err}, false
	}
	n := r.newRenewal(v, stay, lease)
	n.open = len(r.nodes)
	poll := r.poll(v)
	defer poll.end()
	poll.late = func(p reply) { n.count(p, time.Time{}) }
	poll.ask(context.WithoutCancel(ctx), 0, n.request)
	for {
		select {
		case p := <-poll.replies:
			if n.count(p, time.Time{}) {
				return n.verdict()
			}
		case <-ctx.Done():
			return answer{err: ctx.Err()}, false
		}
	}
}

// renewSpread renews them for the watchdog, by errands in the lanes to the nodes.
func (r *red) renewSpread(stay string, lease time.Duration, s *spreading) {
	v := r.c.elections.of(stay)
	if v == nil {
		s.done(time.Time{}, answer{val: int64(0)})
		return
	}
	begin := func(err error) {
		if err != nil {
			s.done(time.Time{}, answer{err: err})
			return
		}
		r.newRenewal(v, stay, lease).begin(s)
	}
	if r.quarantine == nil {
		begin(nil)
		return
	}
	r.quarantine.whenReady(begin)
}

// voteErrand asks a node to renew its vote for a hold. There is one for each hold
// and node: what is to be renewed waits once for a node that is slow, and is not
// asked for again while it has not answered.
type voteErrand struct {
	red   *red
	votes *votes
	node  int

	// Guarded by votes.mu.
	state   errandState
	renewal *renewal // that it is on, or was last
	asked   bool
}

type errandState int

const (
	errandIdle   errandState = iota
	errandQueued             // in the lane: whatever round is going on then sends it
	errandSent
)

var errUnanswered = errors.New("it has not answered the last renewal yet")

// begin begins a round, unless there is one going on. That one will come to an
// end: each errand does, though it may have to wait in its lane.
func (n *renewal) begin(s *spreading) {
	n.spread = s
	v := n.votes
	v.mu.Lock()
	if v.renewal != nil && !v.renewal.decided.Load() {
		v.mu.Unlock()
		return
	}
	v.renewal = n
	if v.errands == nil {
		v.errands = make([]voteErrand, len(n.nodes))
		for i := range v.errands {
			v.errands[i] = voteErrand{red: n.red, votes: v, node: i}
		}
	}
	n.open = len(n.nodes)
	var fresh, silent []int
	for i := range v.errands {
		e := &v.errands[i]
		switch e.state {
		case errandIdle:
			e.state, e.renewal = errandQueued, n
			fresh = append(fresh, i)
		case errandQueued:
			e.renewal = n
		case errandSent:
			silent = append(silent, i)
		}
	}
	v.mu.Unlock()
	for _, i := range fresh {
		s.lanes.put(n.nodes[i].c, &v.errands[i])
	}
	for _, i := range silent {
		n.note(reply{node: i, err: errUnanswered}, time.Time{})
	}
}

// note counts a reply to an errand, and goes on from there.
func (n *renewal) note(p reply, sent time.Time) {
	if !n.count(p, sent) {
		return
	}
	s := n.spread
	a, again := n.verdict()
	if again && !s.again {
		s.again = true
		n.newRenewal(n.votes, n.stay, n.lease).begin(s)
		return
	}
	s.done(n.sent, a)
}

func (e *voteErrand) timeout() time.Duration { return e.red.timeout }

func (e *voteErrand) write() (*request, error) {
	v := e.votes
	v.mu.Lock()
	e.state = errandSent
	n := e.renewal
	v.mu.Unlock()
	// A vote must not be lengthened for a hold that was lost while it waited here.
	if !n.spread.goesOn() || !v.ask(e.node) {
		return nil, errTooLate
	}
	v.mu.Lock()
	e.asked = true
	v.mu.Unlock()
	return n.request(e.node, n.nodes[e.node]), nil
}

func (e *voteErrand) read(sent time.Time, a answer) {
	v := e.votes
	v.mu.Lock()
	n, asked := e.renewal, e.asked
	e.state, e.renewal, e.asked = errandIdle, nil, false
	v.mu.Unlock()
	got := e.red.reply(e.node, a)
	if asked {
		v.answered(e.node, got)
	}
	n.note(got, sent)
}

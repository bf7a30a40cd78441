package rlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultNodeTimeout bounds what a RedLock waits for one of its nodes. It is far
// above a round trip in one site, and small beside a lease: a node that hangs
// holds nothing up for longer.
const DefaultNodeTimeout = 500 * time.Millisecond

// RedLock is a lock on a majority of independent masters: it goes on excluding,
// and can be had, as long as a majority of them answers and keeps its data.
//
// It differs from Redlock as its author specified it, and from Redisson's, in
// that tokens strictly increase in the order of holds: the highest counter of
// the nodes that voted is the token, and is written back to a majority of them
// before the hold is handed out. The masters need not agree on anything, and
// their clocks matter only in that they run at the same speed.
//
// What it does not survive: so many of the nodes that voted for a hold losing their
// data within one lease that they and the others are a quorum. With N nodes and a
// quorum of q that takes at least 2q-N of them: one of five with the default quorum
// of three, if the other two could not vote; three with WithQuorum(4). Then there
// may be two holders. The first is lost with its next renewal if that reaches a
// quorum of nodes that have forgotten it; in any case its token is the lower one.
//
// The keys are its own: it does not share holds with Redisson's RedissonRedLock. A
// MultiLock of plain locks does share with Redisson's.
//
// The first client is the home of the lock: its options, watchdog and observer
// serve, and its Shutdown ends the leases. The others are ways to their nodes.
type RedLock struct{ *core }

// RedLockOption configures a RedLock.
type RedLockOption func(*red)

// WithQuorum sets how many nodes have to vote for a hold: from a majority, which
// is the default, to all. With more, fewer nodes may be away, and more may lose
// their data.
func WithQuorum(q int) RedLockOption { return func(r *red) { r.quorum = q } }

// WithNodeTimeout bounds each request to one node. The default is
// [DefaultNodeTimeout]; it must be between 1 ms and a sixth of the watchdog lease.
func WithNodeTimeout(d time.Duration) RedLockOption { return func(r *red) { r.timeout = d } }

// NewRedLock returns the lock of a name on some masters that know nothing of each
// other, usually three or five. It sends nothing. It fails with an error that
// matches ErrInvalidArgument if there is no client, one is nil or occurs twice,
// two have one server's address or different prefixes, or the name or an option is
// not valid.
//
// A server has one vote, however many clients lead to it. Two addresses of one server
// are not noticed here, nor are Sentinel deployments and wrapped clients compared,
// which show no address; with [WithRestartQuarantine] nodes are compared by their
// run_id before they vote.
func NewRedLock(name string, clients []*Client, opts ...RedLockOption) (*RedLock, error) {
	wrong := func(format string, args ...any) (*RedLock, error) {
		return nil, fmt.Errorf("rlock: NewRedLock: %w", invalid(format, args...))
	}
	if len(clients) == 0 {
		return wrong("no clients")
	}
	for i, c := range clients {
		if !c.made() {
			return wrong("client %d is nil or was not made by New", i)
		}
		if slices.Index(clients, c) != i {
			return wrong("client %d occurs twice", i)
		}
		if one, ok := c.rdb.(*redis.Client); ok && slices.IndexFunc(clients, func(c *Client) bool { return c.rdb == one }) != i {
			return wrong("client %d is of the same go-redis client as another: a node has one vote", i)
		}
		if addr := address(c.rdb); addr != "" {
			if j := slices.IndexFunc(clients, func(c *Client) bool { return c != nil && address(c.rdb) == addr }); j != i {
				return wrong("clients %d and %d are of one server, %s: a node has one vote", j, i, addr)
			}
		}
		if p, q := clients[0].cfg.prefix, c.cfg.prefix; p != q {
			// Processes may list their clients in different orders: they must
			// come to the same keys, whichever of them is the home.
			return wrong("client 0 has the prefix %q, and client %d has %q: all nodes of a lock have the same keys", p, i, q)
		}
	}
	l := newCore(clients[0], redFamily(clients), name, nil)
	if l.bad != nil {
		return nil, fmt.Errorf("rlock: NewRedLock: %w", l.bad)
	}
	r := &red{core: l, quorum: len(clients)/2 + 1, timeout: DefaultNodeTimeout}
	if err := apply(opts, r); err != nil {
		return nil, fmt.Errorf("rlock: NewRedLock: %w", err)
	}
	if r.quorum <= len(clients)/2 || r.quorum > len(clients) {
		return wrong("WithQuorum(%d): must be from %d to %d of %d nodes", r.quorum, len(clients)/2+1, len(clients), len(clients))
	}
	if most := l.c.cfg.watchdogLease / 6; r.timeout < time.Millisecond || r.timeout > most {
		return wrong("WithNodeTimeout(%v): must be from 1ms to %v, a sixth of the watchdog lease", r.timeout, most)
	}
	switch {
	case !r.hasLongest:
		r.longest = l.c.cfg.watchdogLease
	case r.quarantine == nil:
		return wrong("WithLongestLease is for a RedLock with WithRestartQuarantine")
	}
	for i, c := range clients {
		if c.cluster != nil {
			return wrong("client %d is of a cluster: a RedLock needs masters that are independent", i)
		}
		n, err := newRedNode(i, c, name)
		if err != nil {
			return nil, fmt.Errorf("rlock: NewRedLock: %w", err)
		}
		r.nodes = append(r.nodes, n)
	}
	if r.quarantine != nil {
		if err := r.quarantine.init(); err != nil {
			return nil, fmt.Errorf("rlock: NewRedLock: %w", err)
		}
		l.longest = r.longest
	}
	l.protocol = r
	l.listen = r.listenAll
	l.hesitate = redHesitation
	return &RedLock{l}, nil
}

// redFamily makes RedLocks of one name and home the same lock if their nodes are
// the same, in whatever order.
func redFamily(clients []*Client) string {
	var ids []string
	for _, c := range clients {
		ids = append(ids, c.id)
	}
	slices.Sort(ids)
	return "redlock " + strings.Join(ids, " ")
}

// redKey is where a node keeps its vote for a RedLock. What is known of the node is its
// server, or else its go-redis client.
type redKey struct {
	node any
	key  string
}

// votesAt are the votes that a hold consists of. Two RedLocks that have one in common
// exclude each other.
func (r *red) votesAt() (keys []redKey) {
	for _, n := range r.nodes {
		key := redKey{node: n.c.rdb, key: n.record}
		if addr := address(n.c.rdb); addr != "" {
			key.node = addr
		}
		keys = append(keys, key)
	}
	return keys
}

const (
	// redHighest is a node's highest counter of all locks, and redAdmitted says
	// which process of it may vote.
	redHighest  = "rlock:red:highest"
	redAdmitted = "rlock:red:admitted"

	// redHesitation spreads those who hear of a release, so that they do not
	// split the votes among them.
	redHesitation = 5 * time.Millisecond

	// redBackoff is the pause after votes were split, at random up to this the
	// first time, and doubling up to redBackoffMax.
	redBackoff    = 4 * time.Millisecond
	redBackoffMax = 128 * time.Millisecond

	// redGrace is the shortest time that silent nodes are given when a quorum has
	// answered: no timer is much finer.
	redGrace = time.Millisecond

	// redSettle is which part of the node time-out a release waits for the answer to
	// what was asked before.
	redSettle = 4

	// redLooks is how often, of as many looks in a row that showed no holder, all
	// nodes are asked at once: once.
	redLooks = 4
)

// red is the protocol of a RedLock: each request goes to all nodes at once, and
// their votes are counted.
type red struct {
	*core
	nodes      []*redNode
	quorum     int
	timeout    time.Duration
	longest    time.Duration // lease
	hasLongest bool
	quarantine *quarantine // nil: none

	pace atomic.Int64 // ns in which a quorum of nodes has last answered a try
}

// elections are the votes for the stays of a client at RedLocks.
type elections struct {
	mu     sync.Mutex // guards the rest
	byStay map[string]*votes
}

func (e *elections) of(stay string) *votes {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byStay[stay]
}

func (e *elections) add(stay string, v *votes) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byStay == nil {
		e.byStay = map[string]*votes{}
	}
	e.byStay[stay] = v
}

// remove returns what was known.
func (e *elections) remove(stay string) *votes {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.byStay[stay]
	delete(e.byStay, stay)
	return v
}

// votes are what the client knows of the votes for a stay.
type votes struct {
	mu     sync.Mutex    // guards the rest
	stamps []string      // by node; "": none
	anew   []bool        // by node: it has voted anew since the hold was last confirmed
	late   []bool        // by node: it has voted anew before that, or since: its reply came late
	era    int           // how often the hold was confirmed
	since  time.Time     // when it was last
	nodes  []nodeVote    // by node: what may have become of the requests for its vote
	over   bool          // the votes are being taken back: no more are asked for
	lease  time.Duration // the longest that was asked for
	token  int64
	count  int // entries of the owner: the nodes do not know

	renewal *renewal     // the watchdog's latest
	errands []voteErrand // of renewals, by node; nil: none yet
}

// nodeVote is what may have become of the requests that ask a node for its vote.
type nodeVote struct {
	open    int           // requests under way
	settled chan struct{} // closed when there are none any more; nil: nobody waits
	given   bool          // it has voted, or may have
	stray   bool          // a copy that was not answered may make it vote yet
}

func (r *red) newVotes(lease time.Duration) *votes {
	n := len(r.nodes)
	return &votes{stamps: make([]string, n), anew: make([]bool, n), late: make([]bool, n), nodes: make([]nodeVote, n), lease: lease, count: 1}
}

// has notes that a node has voted, as a reply says that came in some era. The vote
// was anew, or the first one.
func (v *votes) has(i int, stamp string, anew bool, era int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stamps[i] = stamp
	// What was before the hold was confirmed matters no more. But a request of before
	// may have come late to the node.
	if anew {
		v.anew[i] = v.anew[i] || era == v.era
		v.late[i] = era != v.era
	}
}

// stood reports whether a node's vote, which it has given at that time or before, is
// of before the hold was last confirmed; or is known to be of after that since an
// earlier round, and then it counts. The time is that of the reply less the vote's age:
// it is not earlier than the grant.
func (v *votes) stood(i int, granted time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.late[i] {
		return true
	}
	v.late[i] = false
	return !granted.After(v.since)
}

// ask notes, before it is sent, that a node is asked for its vote. It reports
// false if it must not be any more: what takes the votes back has looked already.
// If it may, answered has to be called with what becomes of it.
func (v *votes) ask(i int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over {
		v.nodes[i].open++
	}
	return !v.over
}

// answered notes what has become of such a request.
func (v *votes) answered(i int, p reply) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &v.nodes[i]
	n.given = n.given || p.unsure || p.err == nil && p.ints[0] > 0
	n.stray = n.stray || p.unsure
	n.open--
	if n.open == 0 && n.settled != nil {
		close(n.settled)
		n.settled = nil
	}
}

// given is how many nodes may have voted.
func (v *votes) given() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, node := range v.nodes {
		if node.given || node.open > 0 {
			n++
		}
	}
	return n
}

// end has no more votes asked for. It returns which nodes may have voted.
func (v *votes) end() (given []bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
	for _, node := range v.nodes {
		given = append(given, node.given || node.open > 0)
	}
	return given
}

// settle waits until no request to a node is under way, or it is late. It returns
// whether the node may have voted, and whether a copy of a request may make it do so
// later.
func (v *votes) settle(i int, late <-chan time.Time) (given, stray bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for n := &v.nodes[i]; n.open > 0; {
		if n.settled == nil {
			n.settled = make(chan struct{})
		}
		settled := n.settled
		v.mu.Unlock()
		select {
		case <-settled:
		case <-late:
			v.mu.Lock()
			return true, true
		}
		v.mu.Lock()
	}
	return v.nodes[i].given, v.nodes[i].stray
}

// redNode is one master.
type redNode struct {
	c       *Client
	name    string // for errors
	record  string
	counter string
	gone    string
	channel string

	took atomic.Int64 // ns of its last answer, or for which one was waited in vain
}

func newRedNode(i int, c *Client, lock string) (*redNode, error) {
	lock = c.cfg.prefix + lock
	keys, err := deriveNames(lock)
	if err != nil {
		return nil, err
	}
	n := &redNode{
		c:       c,
		name:    fmt.Sprint("node ", i+1),
		record:  suffixed(lock, "rlock:red"),
		counter: suffixed(lock, "rlock:red:counter"),
		gone:    keys.gone,
		channel: suffixed(lock, "rlock:red:free"),
	}
	if one, ok := c.rdb.(*redis.Client); ok {
		n.name += " (" + one.Options().Addr + ")"
	}
	return n, nil
}

// poll asks the nodes, and collects what they reply for as long as somebody
// listens.
type poll struct {
	r       *red
	votes   *votes // which the questions ask for; nil: they do not
	replies chan reply
	done    chan struct{} // closed when nobody listens any more

	// missed is called with a node that did not reply, also when nobody listens;
	// late with a reply that nobody listens to.
	missed func(i int, n *redNode)
	late   func(reply)

	// revise is called just before a node is asked, may wait, and returns the request;
	// nil if there is nothing to be done on the node after all.
	revise func(i int, n *redNode) *request
}

// reply is what a node answered.
type reply struct {
	node   int
	tag    int64 // of the question
	err    error
	ints   []int64
	unsure bool     // another copy of the request may have done what the reply does not say
	texts  []string // those among the items of a list
}

func (r *red) poll(v *votes) *poll {
	return &poll{r: r, votes: v, replies: make(chan reply), done: make(chan struct{})}
}

func (p *poll) end() { close(p.done) }

// ask sends a request to each node for which there is one, all at once, and
// returns to how many. The replies come within the node time-out.
func (p *poll) ask(ctx context.Context, tag int64, request func(i int, n *redNode) *request) (asked int) {
	for i, n := range p.r.nodes {
		req := request(i, n)
		if req == nil {
			continue
		}
		asked++
		if p.missed != nil {
			// Shutdown waits for it, of the home and of the node: nobody else does.
			p.r.c.calls.add(1)
			n.c.calls.add(1)
		}
		p.r.c.background(func() {
			if p.missed != nil {
				defer p.r.c.end()
				defer n.c.end()
			}
			if p.revise != nil {
				req = p.revise(i, n)
			}
			got := reply{ints: []int64{0}}
			if req != nil {
				got = p.askOne(ctx, i, n, req)
			}
			got.node, got.tag = i, tag
			if got.err != nil && p.missed != nil {
				p.missed(i, n)
			}
			select {
			case p.replies <- got:
			case <-p.done:
				if p.late != nil {
					p.late(got)
				}
			}
		})
	}
	return asked
}

var errTooLate = errors.New("not asked any more")

func (p *poll) askOne(caller context.Context, i int, n *redNode, req *request) (got reply) {
	r := p.r
	ctx, cancel := context.WithTimeout(caller, r.timeout)
	defer cancel()
	if err := n.c.reachable(ctx, r.timeout, p.done); err != nil {
		return reply{err: err}
	}
	if p.votes != nil && !p.votes.ask(i) {
		return reply{err: errTooLate}
	}
	req.hasty = true
	var a answer
	if n.c.publishCommand() == "" { // else the guess will do: a node is no cluster
		a.err = n.c.ready(ctx)
	}
	if a.err == nil {
		sent := r.c.clock.Now()
		a = n.c.call(ctx, r.timeout, req)
		n.took.Store(int64(r.c.clock.Now().Sub(sent)))
	}
	if a.err != nil && caller.Err() == nil && req.do == nil {
		n.c.reach.failed(a.err)
	}
	got = r.reply(i, a)
	if p.votes != nil {
		p.votes.answered(i, got)
	}
	return got
}

// reply is what an answer of a node says.
func (r *red) reply(i int, a answer) reply {
	got := reply{node: i, err: a.err, unsure: a.unsure}
	if got.err == nil {
		got.parse(a.val)
	}
	if q := r.quarantine; q != nil && got.err == nil {
		got.err = q.refused(i, got)
	}
	if errors.Is(got.err, context.DeadlineExceeded) || errors.Is(got.err, context.Canceled) {
		got.err = noAnswer(r.timeout, nil) // not the end of the caller's context
	}
	return got
}

func (p *reply) parse(val any) {
	list, ok := val.([]any)
	if !ok {
		list = []any{val}
	}
	for _, v := range list {
		switch v := v.(type) {
		case int64:
			p.ints = append(p.ints, v)
		case string:
			p.texts = append(p.texts, v)
		}
	}
	if len(p.ints) == 0 {
		p.err = errReply(val)
	}
}

// noQuorum is ErrNoQuorum with what became of each node.
func (r *red) noQuorum(failed map[int]error) error { return r.tooFew(r.quorum, failed) }

// tooFew is noQuorum when some number of nodes are needed.
func (r *red) tooFew(need int, failed map[int]error) error {
	return r.perNode(fmt.Errorf("%w: %d of %d nodes could not vote, %d have to", ErrNoQuorum, len(failed), len(r.nodes), need), failed)
}

// unknown is the error when so many votes for one holder were read, and the others
// could make them a quorum.
func (r *red) unknown(votes int, failed map[int]error) error {
	err := fmt.Errorf("%w: %d of %d nodes vote for one holder, and of %d nobody knows", ErrNoQuorum, votes, len(r.nodes), len(failed))
	return because(ErrUnreachable, r.perNode(err, failed))
}

// perNode adds what became of each node.
func (r *red) perNode(err error, failed map[int]error) error {
	for i, n := range r.nodes {
		if why := failed[i]; why != nil {
			err = fmt.Errorf("%w; %s: %w", err, n.name, why)
		}
	}
	return err
}

func (r *red) newStay() (string, int64) { return r.c.newStay() }

func (r *red) enter(a *attempt, wait bool) *request {
	if a.tries > 1 {
		// Each try has an id of its own: the one before was taken back for good.
		if r.c.elections.of(a.stay) != nil { // but for one that came too late to be a hold
			now := r.c.clock.Now()
			r.c.cleanUp(r.abandon(a.stay, true), now, now.Add(a.opts.lease+tombstoneTTL))
		}
		a.granted = false
		a.stay, a.number = r.c.newStay()
	}
	stay, number, lease := a.stay, a.number, a.opts.lease
	tries, splits := a.tries, a.splits
	return &request{do: func(ctx context.Context) answer {
		if err := r.prepare(ctx); err != nil {
			return answer{err: err}
		}
		v := r.newVotes(lease)
		e := &election{
			red: r, stay: stay, lease: lease, votes: v,
			stamps: make([]string, len(r.nodes)), counts: make([]int64, len(r.nodes)), levels: make([]int64, len(r.nodes)),
			failed: map[int]error{}, voted: map[string]int{}, first: -1,
			began: time.Now(), open: make([]bool, len(r.nodes)),
		}
		if wait && tries > 1 && splits%redLooks != redLooks-1 {
			e.first = r.foremost()
		}
		if token := e.run(ctx); token > 0 {
			v.mu.Lock()
			v.token = token
			for i, stamp := range e.stamps {
				if stamp != "" {
					v.stamps[i] = stamp
				}
			}
			v.mu.Unlock()
			r.c.elections.add(stay, v)
			return answer{val: []any{int64(1), token}, unsure: true}
		}
		// Those who saw so many votes, of which some were perhaps not read here,
		// may have taken them for a hold.
		e.giveBack(ctx, v.given() > len(r.nodes)-r.quorum)
		switch {
		case ctx.Err() != nil:
			return answer{err: ctx.Err(), last: e.silent()}
		case len(e.failed) > len(r.nodes)-r.quorum:
			if q := r.quarantine; q != nil && wait {
				if rest := q.rest(e.failed); rest > 0 {
					return answer{val: []any{int64(0), rest.Milliseconds()}}
				}
			}
			return answer{err: r.noQuorum(e.failed)}
		}
		rest, holder := e.rest()
		if rest > 0 {
			a.splits = 0
		} else {
			rest = 1 + jitter(r.c.seed, number, a.splits, min(redBackoff<<min(a.splits, 10), redBackoffMax)).Milliseconds()
			a.splits++
		}
		return answer{val: []any{int64(0), rest, holder, int64(0)}}
	}}
}

// foremost is the first node that answers, and no later than others, as far as is
// known.
func (r *red) foremost() int {
	late := r.patience()
	for i, n := range r.nodes {
		if time.Duration(n.took.Load()) < late && !n.c.isLost(r.timeout) {
			return i
		}
	}
	return -1
}

// patience is how long a single node is waited for when others could be asked: some
// times what a quorum of them takes.
func (r *red) patience() time.Duration {
	return max(8*time.Duration(r.pace.Load()), 5*time.Millisecond)
}

// election is one try to get a quorum.
type election struct {
	*red
	stay   string
	first  int // the node that is asked before the others; -1: none
	lease  time.Duration
	votes  *votes
	token  int64          // the hold's, once there are enough votes; it may still grow
	stamps []string       // of the votes that were read, by node; "": none
	counts []int64        // to which the counters of those nodes came by these votes
	levels []int64        // what the counters of those nodes have reached
	voting int            // replies to come of nodes that were asked to vote
	failed map[int]error  // nodes that did not answer
	voted  map[string]int // how many others have voted, by the attempt they voted for
	rests  []int64        // for how many ms those votes last
	heard  int            // nodes that have answered
	began  time.Time      // of the try
	open   []bool         // by node: asked to vote, and no reply yet
}

// run returns the token of the hold, or 0.
//
// The token is the highest counter of the nodes whose votes were read, and a
// hold counts only when a quorum of these very nodes has reached it. Any two
// holds have such a node in common. There each of the two had the vote without
// a break from its grant until the counter was written (the stamp shows it), so
// one had it wholly before the other, and the later one's vote counted past the
// earlier one's token.
func (e *election) run(ctx context.Context) int64 {
	poll := e.poll(e.votes) // the replies are votes, with tag 0, and counters written, with the token
	defer poll.end()
	raises := *poll
	raises.votes = nil // these are no requests for votes
	poll.late = func(p reply) {
		if p.tag == 0 && p.err == nil && p.ints[0] == 1 {
			e.votes.has(p.node, p.texts[0], false, 0)
		}
	}
	// What was begun is not broken off when there are votes enough: the more nodes
	// vote, the more may fail later.
	asking := context.WithoutCancel(ctx)
	// Of those who wait for a lock, and have heard that it is free, only the one to
	// whom the first node gives its vote goes on to ask the others: so they do not
	// split the votes among them. That vote may also be of one who has died before
	// it got the others, so every few looks all nodes are asked at once.
	e.voting = e.askVotes(asking, poll, func(i int) bool { return e.first < 0 || i == e.first })
	clock := e.c.clock
	asked := clock.Now()
	late := clock.NewTimer(farAway)
	defer late.Stop()
	alone := e.first >= 0 // only the first node was asked
	if alone {
		late.Reset(e.patience())
	}
	askOthers := func() {
		alone, asked = false, clock.Now()
		late.Reset(farAway)
		e.voting += e.askVotes(asking, poll, func(i int) bool { return i != e.first })
	}
	paced, enough, writing := false, false, 0
	for e.voting+writing > 0 {
		select {
		case p := <-poll.replies:
			if p.tag == 0 {
				e.voting--
				e.vote(p)
				if alone {
					if p.err == nil && p.ints[0] == 0 {
						return 0
					}
					askOthers()
				}
			} else {
				writing--
				e.wrote(p)
			}
		case <-late.C():
			if alone {
				e.nodes[e.first].took.Store(int64(e.patience()))
				askOthers()
			} else {
				enough = true
			}
		case <-ctx.Done():
			return 0
		}
		// What a quorum of nodes takes to answer, the others may take once more. If
		// there are not votes enough then, a rival has some, who may wait for those
		// that are kept here as long as these wait for a node that is silent.
		if !paced && e.heard >= e.quorum {
			paced = true
			took := clock.Now().Sub(asked)
			e.pace.Store(int64(took))
			late.Reset(max(took, redGrace))
		}
		votes, written, highest := e.count()
		switch {
		case written >= e.quorum:
			return e.token
		case votes+e.voting < e.quorum || votes < e.quorum && enough:
			return 0
		case votes < e.quorum || writing > 0:
			continue
		}
		// Either these are the first votes that suffice; or some of those did
		// not stand, and later ones have counters that are higher.
		e.token = highest
		if _, written, _ = e.count(); written >= e.quorum {
			return e.token
		}
		writing = raises.ask(asking, e.token, func(i int, n *redNode) *request {
			if e.stamps[i] == "" || e.levels[i] >= e.token {
				return nil
			}
			return e.guarded(i, true, &request{
				script: e.script("red_raise"),
				keys:   []string{n.record, n.counter, redHighest},
				args:   []any{e.stay, e.stamps[i], e.token},
			})
		})
	}
	return 0
}

func (e *election) askVotes(ctx context.Context, poll *poll, which func(i int) bool) (asked int) {
	return poll.ask(ctx, 0, func(i int, n *redNode) *request {
		if !which(i) {
			return nil
		}
		e.open[i] = true
		return e.guarded(i, true, &request{
			script: e.script("red_acquire"),
			keys:   []string{n.record, n.counter, redHighest, n.gone + e.stay},
			args:   []any{e.stay, e.lease.Milliseconds()},
		})
	})
}

func (e *election) vote(p reply) {
	e.open[p.node] = false
	if p.err == nil {
		e.heard++
	}
	switch {
	case p.err != nil:
		e.failed[p.node] = p.err
	case p.ints[0] == 1:
		e.stamps[p.node], e.counts[p.node], e.levels[p.node] = p.texts[0], p.ints[1], p.ints[1]
	case p.ints[0] == 0 && len(p.ints) == 2 && len(p.texts) == 1:
		e.voted[p.texts[0]]++
		e.rests = append(e.rests, p.ints[1])
	}
}

func (e *election) wrote(p reply) {
	if p.err == nil && p.ints[0] == 1 {
		e.levels[p.node] = max(e.levels[p.node], p.tag)
		return
	}
	e.stamps[p.node] = "" // the vote does not stand, or nobody knows
	if p.err != nil {
		e.failed[p.node] = p.err
	}
}

// count returns how many votes there are, on how many of these nodes the token
// is written, and what the highest of their counters is.
func (e *election) count() (votes, written int, highest int64) {
	for i, stamp := range e.stamps {
		if stamp == "" {
			continue
		}
		votes++
		highest = max(highest, e.levels[i])
		// A later vote may have counted past the token: then another hold may
		// have had that count before.
		if e.token > 0 && e.counts[i] <= e.token && e.levels[i] >= e.token {
			written++
		}
	}
	return votes, written, highest
}

// silent is ErrNoQuorum if a context ended the try, and so many nodes had failed by
// then, or had not answered for some time, that the others are no quorum.
func (e *election) silent() error {
	failed := maps.Clone(e.failed)
	if waited := time.Since(e.began); waited >= giveUpGrace {
		for i, open := range e.open {
			if open {
				failed[i] = noAnswer(waited.Round(time.Millisecond), nil)
			}
		}
	}
	if len(failed) <= len(e.nodes)-e.quorum {
		return nil
	}
	return e.noQuorum(failed)
}

// rest is for how many ms, as far as is known, another has a quorum, or at least
// so many votes that nobody else can have one, and that other. It is 0 if votes were
// split: those who split them take them back.
func (e *election) rest() (ms int64, holder string) {
	for holder, n := range e.voted {
		if n > len(e.nodes)-e.quorum {
			slices.Sort(e.rests)
			free := len(e.nodes) - len(e.rests) - len(e.failed)
			return e.rests[min(max(e.quorum-free-1, 0), len(e.rests)-1)], holder
		}
	}
	return 0, ""
}

// giveBack takes the votes back after a try without success. It waits for the
// nodes that are known to have voted, so that the next try does not meet them; but
// not for long if there is no next try, as ctx has ended.
func (e *election) giveBack(ctx context.Context, tell bool) {
	poll, open := e.takeBack(e.stay, e.votes, 0, e.lease, tell)
	defer poll.end()
	known := 0
	for _, stamp := range e.stamps {
		if stamp != "" {
			known++
		}
	}
	grace, ended := e.c.clock.NewTimer(farAway), ctx.Done()
	defer grace.Stop()
	for open > 0 && known > 0 {
		select {
		case p := <-poll.replies:
			open--
			if e.stamps[p.node] != "" {
				known--
			}
		case <-ended:
			ended = nil
			grace.Reset(giveUpGrace)
		case <-grace.C():
			return
		}
	}
}

// takeBack takes the votes for a stay back from the nodes that have voted, or may
// have, and writes the token to their counters, if there is one. A node that has not
// answered yet what it was asked is waited for, but not for long: it needs no
// tombstone if it does. On the others one stops what may come late. Where that fails the watchdogs go on with
// it. It returns how many replies are to come; 0 is that of a node that had nothing
// to take back.
func (r *red) takeBack(stay string, v *votes, token int64, lease time.Duration, tell bool) (replies *poll, open int) {
	given := v.end()
	releases := make([]*request, len(r.nodes)) // each of the goroutine that asks the node
	replies = r.poll(nil)
	replies.revise = func(i int, n *redNode) *request {
		late := r.c.clock.NewTimer(r.timeout / redSettle)
		defer late.Stop()
		given, stray := v.settle(i, late.C())
		if !given {
			return nil
		}
		tombstone, announce := int64(0), "none"
		if stray {
			tombstone = tombstoneTTL.Milliseconds()
		}
		if tell {
			announce = n.c.publishCommand()
		}
		releases[i] = &request{
			script: r.script("red_release"),
			keys:   []string{n.record, n.counter, redHighest, n.gone + stay},
			args:   []any{stay, tombstone, token, n.channel, announce},
			ends:   true,
		}
		return releases[i]
	}
	replies.missed = func(i int, n *redNode) {
		c, req := n.c, releases[i]
		if c.watchdog.isClosed() {
			one := req
			c, req = r.c, &request{ends: true, do: func(ctx context.Context) answer { return n.c.call(ctx, r.timeout, one) }}
		}
		now := c.clock.Now()
		c.cleanUp(req, now, now.Add(lease+tombstoneTTL))
	}
	// Not of the caller's context, or the client's: what was taken is given back also
	// when those have ended.
	return replies, replies.ask(context.Background(), 0, func(i int, _ *redNode) *request {
		if !given[i] {
			return nil
		}
		return &request{} // it is made when the node has answered
	})
}

// guarded makes a request one that a node in quarantine does not obey, if there
// is such a thing.
func (r *red) guarded(i int, voting bool, req *request) *request {
	if r.quarantine == nil {
		return req
	}
	return r.quarantine.guard(i, voting, req)
}

// prepare is called before votes are asked for.
func (r *red) prepare(ctx context.Context) error {
	if r.quarantine == nil {
		return nil
	}
	return r.quarantine.ready(ctx)
}

func (r *red) reenter(stay string, lease time.Duration, n int) *request {
	return &request{do: func(ctx context.Context) answer {
		a := r.renewAll(ctx, stay, lease)
		if a.err != nil {
			return a
		}
		if v := a.val.(int64); v != 1 {
			return answer{val: []any{int64(-2), -v}}
		}
		r.counted(stay, n)
		return answer{val: []any{int64(1), int64(0)}}
	}}
}

// counted notes how often the owner has entered. The nodes need not know.
func (r *red) counted(stay string, n int) {
	if v := r.c.elections.of(stay); v != nil {
		v.mu.Lock()
		v.count = n
		v.mu.Unlock()
	}
}

func (r *red) release(stay string, n int) *request {
	if n == 0 {
		return r.abandon(stay, true)
	}
	return &request{do: func(context.Context) answer {
		r.counted(stay, n)
		return answer{val: int64(2)}
	}}
}

func (r *red) abandon(stay string, _ bool) *request {
	return &request{ends: true, do: func(ctx context.Context) answer {
		v := r.c.elections.remove(stay)
		if v == nil {
			return answer{val: int64(0)} // this was done before: the watchdogs go on with it
		}
		v.mu.Lock()
		token, lease := v.token, v.lease
		v.mu.Unlock()
		poll, open := r.takeBack(stay, v, token, lease, true)
		defer poll.end()
		// If so many nodes say that they had voted for it, of those that answered,
		// that the others are no quorum, the hold has lasted. The replies to come
		// can only confirm that, if they come: nodes that hang delay nobody.
		had, taken, failed := 0, 0, map[int]error{}
		lasted := func() bool { return had+len(failed) > len(r.nodes)-r.quorum }
		for ; open > 0 && !(lasted() && len(failed)+open <= len(r.nodes)-r.quorum); open-- {
			var p reply
			select {
			case p = <-poll.replies:
			case <-ctx.Done():
				return answer{err: ctx.Err()} // what does not answer is seen to
			}
			switch {
			case p.err != nil:
				failed[p.node] = p.err
			case p.ints[0] == 1 || p.unsure:
				had++
			case p.ints[0] == -1:
				taken++
			}
		}
		switch {
		case len(failed) > len(r.nodes)-r.quorum:
			return answer{err: because(ErrUnreachable, r.noQuorum(failed))}
		case lasted():
			return answer{val: int64(1)}
		case taken > 0:
			return answer{val: int64(-1)}
		}
		return answer{val: int64(0)}
	}}
}

func (r *red) forceUnlock(owner string) *request {
	return &request{single: true, do: func(ctx context.Context) answer {
		poll := r.poll(nil)
		defer poll.end()
		taken, most, failed := map[string]int{}, 0, map[int]error{}
		for open := poll.ask(ctx, 0, func(_ int, n *redNode) *request {
			return &request{
				script: r.script("red_force_unlock"),
				keys:   []string{n.record},
				args:   []any{owner, n.gone, tombstoneTTL.Milliseconds(), n.channel, n.c.publishCommand()},
				single: owner == "",
			}
		}); open > 0; open-- {
			p := <-poll.replies
			switch {
			case p.err != nil:
				failed[p.node] = p.err
			case p.ints[0] == 1 && len(p.texts) == 1:
				taken[p.texts[0]]++
				most = max(most, taken[p.texts[0]])
			case p.unsure:
				failed[p.node] = errRepeated
			}
		}
		switch {
		case most >= r.quorum:
			return answer{val: int64(1)}
		case most+len(failed) >= r.quorum:
			return answer{err: r.unknown(most, failed)}
		}
		return answer{val: int64(0)}
	}}
}

var errRepeated = errors.New("the repeated request found nothing")

// inspect asks the nodes whom they have voted for. If that is one for a quorum of
// them, it is the holder; if the votes that were not read could make one that, it is
// unknown. The reply has the form of that of a lock on one server.
func (r *red) inspect() *request {
	return &request{do: func(ctx context.Context) answer {
		poll := r.poll(nil)
		defer poll.end()
		type holder struct {
			votes int
			ms    []int64
			token int64
		}
		holders, failed := map[string]*holder{}, map[int]error{}
		most := 0 // votes for one
		open := poll.ask(ctx, 0, func(i int, n *redNode) *request {
			return r.guarded(i, false, &request{script: r.script("red_inspect"), keys: []string{n.record}})
		})
		// Until there is a holder, or cannot be one: nodes that hang delay nobody.
		for ; open > 0 && most < r.quorum && most+open+len(failed) >= r.quorum; open-- {
			var p reply
			select {
			case p = <-poll.replies:
			case <-ctx.Done():
				return answer{err: ctx.Err()}
			}
			switch {
			case p.err != nil:
				failed[p.node] = p.err
			case len(p.ints) == 2 && len(p.texts) == 1 && p.texts[0] != "":
				h := holders[p.texts[0]]
				if h == nil {
					h = &holder{}
					holders[p.texts[0]] = h
				}
				h.votes++
				h.ms = append(h.ms, p.ints[0])
				h.token = max(h.token, p.ints[1])
				most = max(most, h.votes)
			}
		}
		if most < r.quorum && most+open+len(failed) >= r.quorum {
			return answer{err: r.unknown(most, failed)}
		}
		for stay, h := range holders {
			if h.votes < r.quorum {
				continue
			}
			count := 1
			if v := r.c.elections.of(stay); v != nil {
				v.mu.Lock()
				count = v.count
				v.mu.Unlock()
			}
			slices.Sort(h.ms)
			return answer{val: []any{h.ms[len(h.ms)-r.quorum], h.token, stay, fmt.Sprint(count)}}
		}
		return answer{val: []any{int64(-2), int64(0)}}
	}}
}

// probe is inspect: that has one holder at most.
func (r *red) probe(stay string) *request {
	look := r.inspect()
	return &request{do: func(ctx context.Context) answer {
		a := look.do(ctx)
		if a.err != nil {
			return a
		}
		s, err := r.state(a.val.([]any))
		if err != nil {
			return answer{err: err}
		}
		var held, count int64
		for _, h := range s.Holders {
			held = 1
			if h.Owner == stay {
				count = int64(h.Count)
			}
		}
		return answer{val: []any{held, count}}
	}}
}

func (r *red) state(reply []any) (State, error) { return plain{r.core}.state(reply) }

func (r *red) channel(string) string { return r.nodes[0].channel }

// listenAll hears of a release from every node.
func (r *red) listenAll(_ string, notify func()) (end func()) {
	var subs []*subscription
	for _, n := range r.nodes {
		subs = append(subs, n.c.hub.subscribe(n.channel, notify))
	}
	return func() {
		for _, s := range subs {
			s.close()
		}
	}
}

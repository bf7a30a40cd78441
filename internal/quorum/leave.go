package quorum

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// settlePart is the part of the node timeout for which a release waits for the replies to earlier
// requests.
const settlePart = 4

// takeBack takes the votes for a hold back from the nodes that have voted or may have voted, and writes
// the token, if there is one, to the counters that are behind. It waits a short time for the replies to
// earlier requests: with them, a node needs no tombstone. On the others a tombstone stops late copies.
// If a node fails, the watchdogs repeat the release. It returns which nodes get a request, and their number.
func (l *Lock) takeBack(f *fanout, id string, b *ballot) (voters []bool, n int) {
	voters, n, lease := b.close()
	// The votes may have kept waiters out, as a hold does, even if some replies were lost.
	r := &releaseRequests{Lock: l, ballot: b, id: id, announces: l.blocks(n), lease: lease}
	r.outstanding.Store(int64(n))
	// Not the context of the caller or of the client: the votes are taken back even after the end of these contexts.
	return voters, f.ask(context.Background(), question{nodes: voters, read: readRelease, back: r})
}

// releaseRequests makes the requests of one release. Nodes that need the same request share one.
type releaseRequests struct {
	*Lock
	ballot    *ballot
	id        string
	announces bool
	lease     time.Duration

	outstanding atomic.Int64 // nodes that have not replied

	mu          sync.Mutex    // guards the rest: nodes settle in any order
	lastRequest *wire.Request // the latest request
	lastForm    releaseForm   // the form of lastRequest
}

// releaseForm has what differs between the requests of a release.
type releaseForm struct {
	token    int64
	stray    bool // a copy of a request may come late, so a tombstone is needed
	needsAge bool // the reply must contain the age of the vote
	announce string
}

// to returns the REL for a node that may have voted.
func (l *releaseRequests) to(i int, stray bool) *wire.Request {
	return l.request(i, releaseForm{token: l.ballot.owes(i), stray: stray, needsAge: stray || !l.ballot.old(i)})
}

// answered records the reply of a node. Without a reply, the watchdog of the node's client repeats the request, or the
// watchdog of the home.
func (l *releaseRequests) answered(i int, req *wire.Request, err error) {
	if err == nil {
		l.outstanding.Add(-1)
		return
	}
	if rest := l.rest(i, req); rest != nil {
		req = rest
	}
	n := l.nodes[i]
	t, keep := &nodeTask{on: n.Wire, req: req, requests: l}, l.lease+protocol.TombstoneTTL
	now := n.Wire.Clock().Now()
	if !n.CleanUp(t, now, now.Add(keep)) {
		now = l.clock.Now()
		l.home().CleanUp(l.byHome(t), now, now.Add(keep))
	}
}

// request returns the REL for a node.
func (l *releaseRequests) request(i int, m releaseForm) *wire.Request {
	m.announce = "none"
	if l.announces {
		m.announce = l.nodes[i].Wire.PublishCommand()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastRequest == nil || l.lastForm != m {
		l.lastRequest, l.lastForm = l.make(m), m
	}
	return l.lastRequest
}

func (l *releaseRequests) make(m releaseForm) *wire.Request {
	r := &wire.Request{Script: l.script("release"), OneEffect: true, FailFast: true}
	if !m.stray && !m.needsAge && m.token <= 0 && m.announce == "publish" { // the usual case
		r.Put(1, l.keys[0], l.id, l.freed)
		return r
	}
	return l.whole(r, m)
}

// whole fills in the long form of a REL.
func (l *releaseRequests) whole(r *wire.Request, m releaseForm) *wire.Request {
	r.Put(3, l.keys[0], l.keys[1], l.keys[2], l.id, l.freed, m.token)
	r.Args = []any{m.announce}
	if m.stray {
		r.Keys, r.Args = []string{l.gone + l.id}, append(r.Args, protocol.TombstoneTTL.Milliseconds())
	}
	return r
}

// rest returns a REL with the token, for a node that may have forgotten its vote and its counter. It
// returns nil if the first request had the token.
func (l *releaseRequests) rest(i int, req *wire.Request) *wire.Request {
	token := l.ballot.owes(i)
	if keys, _ := req.Words(); len(keys) > 1 || token == 0 {
		return nil
	}
	return l.whole(&wire.Request{Script: req.Script, OneEffect: true, FailFast: true}, releaseForm{token: token, announce: "publish"})
}

// Release implements protocol.Protocol. The nodes do not store how often the owner has entered.
func (l *Lock) Release(id string, entries int) protocol.Task {
	if entries == 0 {
		return l.Abandon(id, true)
	}
	return l.task(func(context.Context) protocol.Result[protocol.Kept] {
		if b := l.cfg.Ballots.get(id); b != nil {
			b.entries.Store(int64(entries))
		}
		return outcome(protocol.Done)
	})
}

// Abandon implements protocol.Protocol. The ballot records whether a copy may come late.
func (l *Lock) Abandon(id string, _ bool) protocol.Task {
	return l.task(func(ctx context.Context) protocol.Result[protocol.Kept] { return l.abandon(ctx, id) })
}

func (l *Lock) abandon(ctx context.Context, id string) protocol.Result[protocol.Kept] {
	b := l.cfg.Ballots.remove(id)
	if b == nil {
		return outcome(protocol.Removed) // the votes were taken back before; the watchdogs repeat that if necessary
	}
	f := l.fanout().decides()
	defer f.end()
	voters, requested := l.takeBack(f, id, b)
	n := &release{Lock: l, ballot: b, tally: tally{size: l.size, outstanding: requested}}
	began := l.clock.Now()
	verdict := n.tally.release()
	if verdict == wait {
		err := f.collect(ctx, func(r reply) (done bool) {
			n.count(r)
			verdict = n.tally.release()
			return verdict != wait
		})
		if err != nil {
			return failed[protocol.Kept](err) // the watchdogs repeat it on nodes that did not reply
		}
	}
	if verdict != yes && !n.tally.incomplete() && l.quarantine != nil {
		verdict = n.quarantined(ctx)
	}
	if n.tally.othersMayDecide() && b.countersProve() {
		verdict = n.askOthers(ctx, f, id, voters)
	}
	switch verdict {
	case yes:
		// The process may end when this returns, and a request that was not sent would leave its vote.
		f.linger(ctx, max(l.clock.Now().Sub(began), hurryGrace))
		done := outcome(protocol.Done)
		done.Receivers = n.listeners
		return done
	case unknown:
		if n.tally.incomplete() {
			return failed[protocol.Kept](l.noQuorum(&n.tally))
		}
		return failed[protocol.Kept](l.doubted(&n.tally))
	}
	return outcome(lostTo(n.tally.sights[taken]))
}

// release is the release of a hold.
type release struct {
	*Lock
	ballot    *ballot
	tally     tally
	forgot    []int // nodes that had voted, and now have no vote for any hold
	listeners int   // most connections on one node that got the message of the release
}

// count counts the reply of a node that may have voted for the hold.
func (n *release) count(r reply) {
	n.listeners = max(n.listeners, r.listeners)
	switch {
	case n.overwritten(r.err) && !r.unsure:
		n.tally.add(gone)
	case r.err != nil:
		n.tally.fail(r.node, silent, r.err)
	case r.says == released:
		n.tally.add(n.ballot.ended(r, n.clock.Now()))
	case r.unsure && r.says == busy:
		n.tally.fail(r.node, silent, errRepeatedBusy)
	case r.unsure:
		n.tally.fail(r.node, silent, errRepeated)
	case r.says == busy:
		n.tally.add(taken)
	default:
		if n.ballot.old(r.node) {
			n.forgot = append(n.forgot, r.node)
		}
		n.tally.add(gone)
	}
}

// quarantined counts nodes that have forgotten their votes, and have not been allowed to vote since, as if they had
// kept their votes.
func (n *release) quarantined(ctx context.Context) decision {
	held := n.quarantine.kept(ctx, n.forgot)
	n.tally.sights[gone] -= held
	n.tally.sights[older] += held
	return n.tally.release()
}

// askOthers finds out whether the nodes that never voted for the hold have voted for another since.
func (n *release) askOthers(ctx context.Context, f *fanout, id string, voters []bool) decision {
	all, others := &releaseRequests{Lock: n.Lock, id: id}, make([]bool, n.n)
	for i := range others {
		others[i] = !voters[i]
	}
	n.tally.outstanding += f.ask(ctx, question{
		nodes: others,
		request: func(i int) (*wire.Request, error) {
			return all.request(i, releaseForm{token: n.ballot.owes(i), needsAge: true}), nil
		},
		read: readRelease,
	})
	f.collectAll(ctx, func(r reply) {
		switch {
		case r.err != nil:
			n.tally.fail(r.node, silent, r.err)
		case r.says == unmoved:
			n.tally.add(sole)
		case r.says == busy:
			n.tally.add(taken)
		default:
			n.tally.add(gone)
		}
	})
	return n.tally.release()
}

// linger waits a bounded time for the rest of the replies, but not for nodes that wait for a PING.
func (f *fanout) linger(ctx context.Context, within time.Duration) {
	enough := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.outstanding <= len(f.parked)
	}
	if enough() {
		return
	}
	timer := f.l.clock.NewTimer(within)
	defer timer.Stop()
	f.alarm = timer.C()
	_ = f.collect(ctx, func(reply) (done bool) { return enough() })
}

// nodeTask is the release on one node, which the watchdog of the node's client repeats. It
// implements protocol.Task.
type nodeTask struct {
	on         *wire.Deployment
	req        *wire.Request
	requests   *releaseRequests
	isAnswered atomic.Bool // the node has replied
}

var _ protocol.Dispensable = (*nodeTask)(nil)

// Dispensable implements protocol.Dispensable. Votes on too few nodes to keep others from a quorum may be left: they
// run out, or are lost with the node's data.
func (t *nodeTask) Dispensable() bool {
	return !t.requests.blocks(int(t.requests.outstanding.Load())) && t.on.IsDead(t.requests.cfg.NodeTimeout)
}

// Do implements protocol.Request.
func (t *nodeTask) Do(ctx context.Context, budget time.Duration) protocol.Result[protocol.Kept] {
	return t.result(t.on.Do(ctx, budget, t.req))
}

// Name implements protocol.Task.
func (t *nodeTask) Name() string { return t.req.Name() }

// OfQuorum implements protocol.Task.
func (t *nodeTask) OfQuorum() bool { return false }

// Send implements protocol.Task.
func (t *nodeTask) Send(d protocol.Dispatch) {
	to := d.Recipient
	d.Round.Add(t.req, func(sent time.Time, a wire.Answer) { to.Done(sent, t.result(a)) })
}

func (t *nodeTask) result(a wire.Answer) (got protocol.Result[protocol.Kept]) {
	r, err := readRelease(a)
	got.Err, got.Unsure = err, a.Unsure
	if err == nil && !t.isAnswered.Swap(true) {
		t.requests.outstanding.Add(-1)
	}
	switch r.says {
	case nothing, unmoved, behind:
		got.Outcome = protocol.Removed
	case busy:
		got.Outcome = protocol.TakenOver
	}
	return got
}

// byHome returns the release on a node whose client was shut down. The watchdog of the home repeats
// it, over the connections of that client.
func (l *Lock) byHome(n *nodeTask) protocol.Task {
	t := l.task(func(ctx context.Context) protocol.Result[protocol.Kept] {
		got := n.Do(ctx, l.cfg.NodeTimeout)
		if got.Err != nil {
			n.on.Failed(got.Err) // no other request would notice
		}
		return got
	})
	t.onNode = n
	return t
}

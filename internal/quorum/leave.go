package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// settlePart is the part of the node time-out for which a release waits for the answers to
// earlier requests.
const settlePart = 4

// takeBack takes the votes for a hold back from the nodes that have voted or may have, and
// writes the token, if there is one, to the counters that are behind. It waits a short time for nodes
// that have not answered earlier requests: a node that does needs no tombstone. On the
// others a tombstone stops late copies. If a node fails, the watchdogs repeat the release.
func (l *Lock) takeBack(f *fanout, id string, b *ballot, tell bool) {
	given, lease := b.papers.close(), b.votes.longest()
	all := &releases{Lock: l, id: id, tell: tell}
	// Without the context of the caller or of the client: the votes are taken back also
	// when those have ended.
	f.ask(context.Background(), question{
		which: func(i int) bool { return given[i] },
		back:  &b.papers,
		release: func(i int, stray bool) *wire.Request {
			return all.request(i, made{token: b.votes.owes(i), stray: stray, tells: stray || !b.votes.old(i)})
		},
		rest: func(i int, req *wire.Request) *wire.Request { return all.rest(b.votes.owes(i), req) },
		read: readRelease,
		missed: func(i int, req *wire.Request) {
			if rest := all.rest(b.votes.owes(i), req); rest != nil {
				req = rest
			}
			n, home := l.nodes[i], l.home()
			now := n.Wire.Clock().Now()
			until := now.Add(lease + protocol.TombstoneTTL)
			if !n.CleanUp(&nodeTask{n.Wire, req}, now, until) {
				now = l.clock.Now()
				home.CleanUp(l.byHome(n, req), now, now.Add(lease+protocol.TombstoneTTL))
			}
		},
	})
}

// releases makes the requests of one release. Nodes to which it would send the same share one.
type releases struct {
	*Lock
	id   string
	tell bool

	mu   sync.Mutex    // guards the rest: nodes settle in any order
	last *wire.Request // the one made last,
	from made          // and from what
}

// made is what differs between the requests of a release.
type made struct {
	token    int64
	stray    bool // a copy of a request may come late, so a tombstone is needed
	tells    bool // the node is to tell how old its vote is
	announce string
}

// request is REL.
func (l *releases) request(i int, m made) *wire.Request {
	m.announce = "none"
	if l.tell {
		m.announce = l.nodes[i].Wire.PublishCommand()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil || l.from != m {
		l.last, l.from = l.make(m), m
	}
	return l.last
}

func (l *releases) make(m made) *wire.Request {
	r := &wire.Request{Script: l.script("release"), OneEffect: true, FailFast: true}
	if !m.stray && !m.tells && m.token <= 0 && m.announce == "publish" { // most often
		r.Put(1, l.keys[0], l.id, l.freed)
		return r
	}
	return l.whole(r, m)
}

// whole has the request say all.
func (l *releases) whole(r *wire.Request, m made) *wire.Request {
	r.Put(3, l.keys[0], l.keys[1], l.keys[2], l.id, l.freed, m.token)
	r.Args = []any{m.announce}
	if m.stray {
		r.Keys, r.Args = []string{l.gone + l.id}, append(r.Args, protocol.TombstoneTTL.Milliseconds())
	}
	return r
}

// rest is REL for a node that may have forgotten its vote, and with it the token, which the
// request did not have; nil: it had.
func (l *releases) rest(token int64, req *wire.Request) *wire.Request {
	if keys, _ := req.Words(); len(keys) > 1 || token == 0 {
		return nil
	}
	return l.whole(&wire.Request{Script: req.Script, OneEffect: true, FailFast: true}, made{token: token, announce: "publish"})
}

// Release implements protocol.Protocol. The nodes need not know how often the owner has
// entered.
func (l *Lock) Release(id string, entries int) protocol.Task {
	if entries == 0 {
		return l.Abandon(id, true)
	}
	return &task{l: l, request: request[protocol.Kept]{func(context.Context) protocol.Result[protocol.Kept] {
		if b := l.cfg.Ballots.of(id); b != nil {
			b.votes.counts(entries)
		}
		return outcome(protocol.Done)
	}}}
}

// Abandon implements protocol.Protocol. The ballot says whether a copy may come late.
func (l *Lock) Abandon(id string, _ bool) protocol.Task {
	return &task{l: l, request: request[protocol.Kept]{func(ctx context.Context) protocol.Result[protocol.Kept] {
		return l.abandon(ctx, id)
	}}}
}

func (l *Lock) abandon(ctx context.Context, id string) protocol.Result[protocol.Kept] {
	b := l.cfg.Ballots.remove(id)
	if b == nil {
		return outcome(protocol.Removed) // this was done before: the watchdogs repeat it if necessary
	}
	f := l.fanout().decides()
	defer f.end()
	l.takeBack(f, id, b, true)
	t := releaseTally{size: l.size, open: f.open, failed: failures{}}
	var forgot []int // nodes that had voted, and have no vote for any hold
	verdict, heard, began := t.next(), 0, l.clock.Now()
	if verdict == wait {
		err := f.collect(ctx, func(r reply) (over bool) {
			heard = max(heard, r.heard)
			switch {
			case l.overwritten(r.err) && !r.unsure:
				t.gone(r.node, false)
			case r.err != nil:
				t.unanswered(r.node, r.err)
			case r.says == released:
				t.released(r.node, b.votes.ended(r, l.clock.Now()))
			case r.unsure:
				// A copy before may have taken the vote back, whoever has got it since; or the node had
				// lost it.
				t.unanswered(r.node, errRepeated)
			case r.says == nothing && b.votes.old(r.node):
				forgot = append(forgot, r.node)
				t.gone(r.node, false)
			default:
				t.gone(r.node, r.says == busy)
			}
			verdict = t.next()
			return verdict != wait
		})
		if err != nil {
			return failed[protocol.Kept](err) // the watchdogs repeat it on nodes that did not answer
		}
	}
	if (verdict == no || t.doubtful()) && l.quarantine != nil {
		t.had += l.quarantine.kept(ctx, forgot)
		verdict = t.next()
	}
	switch verdict {
	case yes:
		// The process may end when this returns. What was not sent then would keep its vote.
		f.linger(ctx, max(l.clock.Now().Sub(began), hurryGrace))
		done := outcome(protocol.Done)
		done.Heard = heard
		return done
	case unknown:
		if t.doubtful() {
			return failed[protocol.Kept](l.doubted(&t))
		}
		return failed[protocol.Kept](l.noQuorum(t.failed))
	}
	return outcome(lostTo(t.taken))
}

// linger waits for the rest of the replies, for a while, except for those of nodes that are not known
// to answer.
func (f *fanout) linger(ctx context.Context, within time.Duration) {
	enough := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.open <= len(f.parked)
	}
	if enough() {
		return
	}
	timer := f.l.clock.NewTimer(within)
	defer timer.Stop()
	f.alarm, f.rang = timer.C(), func() (over bool) { return true }
	_ = f.collect(ctx, func(reply) (over bool) { return enough() })
}

// nodeTask is a release on one node. The watchdog of the node's client repeats it. It
// implements protocol.Task.
type nodeTask struct {
	on  *wire.Deployment
	req *wire.Request
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
	got.Err, got.Unsure, got.Last = err, a.Unsure, a.Last
	switch r.says {
	case nothing:
		got.Outcome = protocol.Removed
	case busy:
		got.Outcome = protocol.TakenOver
	}
	return got
}

// byHome is a release on a node whose client was shut down. The watchdog of the home repeats
// it, over the connections of that client.
func (l *Lock) byHome(n *node, req *wire.Request) protocol.Task {
	t := &nodeTask{n.Wire, req}
	return &task{l: l, request: request[protocol.Kept]{func(ctx context.Context) protocol.Result[protocol.Kept] {
		return t.Do(ctx, l.cfg.NodeTimeout)
	}}}
}

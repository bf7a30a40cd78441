package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// fanout sends requests to nodes, and collects their replies until the caller calls end. Requests under way are not
// canceled then.
type fanout struct {
	l           *Lock
	signal      chan struct{}    // capacity 1: there are replies for the collector, at least wants
	alarm       <-chan time.Time // ends the wait for a reply; nil if it is unbounded
	outstanding int              // replies to come, for the collector
	taken       int              // replies that the collector has taken
	asks        []ask            // the latest requests

	// wants is the least number of replies that can decide. With fewer the collector sleeps, unless all replies have come.
	wants int

	mu         sync.Mutex // guards the rest
	replies    []reply
	requests   int
	ended      bool
	quit       chan struct{} // closed by end; nil if nothing waits for it
	unanswered int           // nodes that have not replied; the shutdown of the home waits for them
	work       func()        // ends the work that began with the first request
	parked     []parked      // requests that wait for the PING of a node
	later      *time.Timer   // sends the requests that wait for the replies to earlier ones
	settles    int           // how many requests wait so
}

// parked is a request to a node that may not reply.
type parked struct {
	*ask
	*wire.Waiting
}

func (l *Lock) fanout() *fanout {
	return &fanout{l: l, signal: make(chan struct{}, 1)}
}

// decides makes the collector sleep until there are enough replies to find a quorum, or to exclude
// one.
func (f *fanout) decides() *fanout {
	f.wants = min(f.l.q, f.l.n-f.l.q+1)
	return f
}

// end stops collecting replies.
func (f *fanout) end() {
	f.mu.Lock()
	f.ended = true
	if f.quit != nil {
		close(f.quit)
	}
	parked := f.parked
	f.mu.Unlock()
	for _, p := range parked {
		if p.Withdraw() {
			p.answer(reply{err: wire.ErrTooLate})
		}
	}
}

// question describes the requests of a fan-out.
type question struct {
	nodes []bool // which nodes get a request; nil means all
	// request returns the request to a node, or an error if the node is known to refuse it.
	request func(i int) (*wire.Request, error)
	// read reads the reply.
	read func(wire.Answer) (reply, error)

	ballot *ballot   // ballot of the hold, for requests for votes; otherwise nil
	began  time.Time // when the round of renewals began; zero for an acquire

	// back is the release that takes votes back, or nil. It makes the requests, once earlier requests to the
	// node have a reply, or have had none for a while. Nodes that never voted are skipped, and count as `none`.
	// No caller waits for the replies, but the shutdown of the home and of the node does.
	back *releaseRequests
}

// ask is a request to one node. It implements wire.Errand and settler.
type ask struct {
	f    *fanout
	q    *question
	ctx  context.Context
	node int
	req  *wire.Request

	sent       time.Time
	isNoted    bool  // the ballot has recorded the request
	isRest     bool  // a second request, for the rest of a release, is under way
	firstReply reply // the reply to the first request, which is the one that counts
}

// ask sends requests to nodes in parallel, and returns n, their number. The replies come within the node
// timeout. ctx has values for hooks; its end does not matter.
func (f *fanout) ask(ctx context.Context, q question) (n int) {
	l := f.l
	ctx = lasting(ctx)
	all := make([]ask, 0, l.n)
	for i := range l.nodes {
		if q.nodes == nil || q.nodes[i] {
			all = append(all, ask{f: f, q: &q, ctx: ctx, node: i})
		}
	}
	f.outstanding += len(all)
	f.asks = all
	f.register(len(all))
	for i := range all {
		all[i].start()
	}
	if q.back != nil {
		f.settleSoon(all)
	}
	return len(all)
}

// lasting returns a context with the values of ctx that does not end.
func lasting(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// register records that n requests begin.
func (f *fanout) register(n int) {
	if n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.replies == nil {
		f.replies = make([]reply, 0, n)
	}
	f.requests += n
	if f.unanswered == 0 {
		f.work = f.l.home().Wire.Begin()
	}
	f.unanswered += n
}

// answered records that a node has replied, or that its request has failed.
func (f *fanout) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unanswered--
	if f.unanswered == 0 {
		f.l.home().Wire.End(f.work)
	}
}

func (a *ask) start() {
	if a.q.back != nil {
		a.calls(1)
		if mayHaveVoted, stray, settled := a.q.back.ballot.settle(a.node, a); settled {
			a.goOn(mayHaveVoted, stray)
		} else {
			a.f.mu.Lock()
			a.f.settles++
			a.f.mu.Unlock()
		}
		return
	}
	req, refusal := a.q.request(a.node)
	if refusal != nil {
		a.answer(a.f.l.read(a.node, wire.Answer{Err: refusal}, a.q.read))
		return
	}
	a.send(req)
}

// calls changes the number of calls that the shutdown of the home and of the node waits for.
func (a *ask) calls(n int) {
	a.f.l.home().Calls.Add(n)
	a.f.l.nodes[a.node].Calls.Add(n)
}

// settled implements settler.
func (a *ask) settled(mayHaveVoted, stray bool) {
	f := a.f
	f.mu.Lock()
	f.settles--
	if f.settles == 0 && f.later != nil {
		f.later.Stop()
	}
	f.mu.Unlock()
	a.goOn(mayHaveVoted, stray)
}

// goOn sends the release to the node if the node may have voted. Otherwise no request is needed.
func (a *ask) goOn(mayHaveVoted, stray bool) {
	if mayHaveVoted {
		a.send(a.q.back.to(a.node, stray))
	} else {
		a.answer(reply{})
	}
}

// settleSoon bounds the wait for the replies to earlier requests.
func (f *fanout) settleSoon(all []ask) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settles > 0 {
		f.later = time.AfterFunc(f.l.cfg.NodeTimeout/settlePart, func() {
			for i := range all {
				all[i].q.back.ballot.giveUp(all[i].node, &all[i])
			}
		})
	}
}

// send sends a request to the node. A node that is silent gets only a PING, so that it has no stale
// command to run when it recovers.
func (a *ask) send(req *wire.Request) {
	f, n := a.f, a.f.l.nodes[a.node]
	if !req.FailFast { // otherwise the request is shared, and may already be sent to another node
		req.FailFast = true // there are other nodes
	}
	a.req = req
	if n.Wire.PublishCommand() == "" { // otherwise that command is good enough: a node is not a cluster
		f.l.background(a.sendReady)
		return
	}
	a.put()
}

func (a *ask) put() {
	f, n := a.f, a.f.l.nodes[a.node]
	w := n.Wire.Ask(a)
	if w == nil {
		return
	}
	f.mu.Lock()
	ended := f.ended
	f.parked = append(f.parked, parked{a, w})
	f.mu.Unlock()
	if ended && w.Withdraw() {
		a.answer(reply{err: wire.ErrTooLate})
	}
}

// sendReady is send to a node whose command for publishing is not known yet.
func (a *ask) sendReady() {
	f, n := a.f, a.f.l.nodes[a.node]
	timeout := f.l.cfg.NodeTimeout
	f.mu.Lock()
	if f.quit == nil {
		f.quit = make(chan struct{})
		if f.ended {
			close(f.quit)
		}
	}
	quit := f.quit
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.ctx, timeout)
	defer cancel()
	err := n.Wire.Reachable(ctx, timeout, quit)
	if err == nil {
		if err = n.Wire.Ready(ctx); err != nil {
			n.Wire.Failed(err)
		}
	}
	if err != nil {
		a.answer(f.l.read(a.node, wire.Answer{Err: err}, a.q.read))
		return
	}
	a.put()
}

// Context implements wire.Errand.
func (a *ask) Context() context.Context { return a.ctx }

// Timeout implements wire.Errand.
func (a *ask) Timeout() time.Duration { return a.f.l.cfg.NodeTimeout }

// Wanted implements wire.Errand.
func (a *ask) Wanted() bool { return !a.isNoted || a.q.ballot.wanted() }

// Request implements wire.Errand.
func (a *ask) Request() (*wire.Request, error) {
	if b := a.q.ballot; b != nil {
		if !b.ask(a.node) {
			return nil, wire.ErrTooLate
		}
		a.isNoted = true
	}
	a.sent = a.f.l.clock.Now()
	return a.req, nil
}

// Answered implements wire.Errand.
func (a *ask) Answered(_ time.Time, answer wire.Answer) {
	l := a.f.l
	got := l.read(a.node, answer, a.q.read)
	if !a.sent.IsZero() {
		got.usual = time.Duration(l.nodes[a.node].took.Swap(int64(l.clock.Now().Sub(a.sent))))
	}
	if a.q.back != nil && got.says == behind {
		a.q.back.ballot.hasOldData()
	}
	if a.q.back != nil && !a.isRest && got.err == nil && got.says != released {
		if rest := a.q.back.rest(a.node, a.req); rest != nil {
			a.isRest, a.firstReply = true, got
			a.send(rest)
			return
		}
	}
	if a.isNoted {
		a.q.ballot.answered(&got, a.q.began, l.clock.Now(), l.prompt(got.usual))
	}
	a.answer(got)
}

// answer passes the reply on.
func (a *ask) answer(got reply) {
	back := a.q.back
	if back != nil {
		back.answered(a.node, a.req, got.err)
	}
	if a.isRest {
		got = a.firstReply // the second request does not change whether the node had a vote
	}
	got.node = a.node
	a.f.deliver(got)
	if back != nil {
		a.calls(-1)
	}
	a.f.answered()
}

func (f *fanout) deliver(got reply) {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return
	}
	f.replies = append(f.replies, got)
	wake := len(f.replies) >= min(f.wants, f.requests)
	f.mu.Unlock()
	if wake {
		select {
		case f.signal <- struct{}{}:
		default: // the collector is woken already
		}
	}
}

// take returns the next reply, if there is one.
func (f *fanout) take() (r reply, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.taken == len(f.replies) {
		return r, false
	}
	f.taken++
	f.outstanding--
	return f.replies[f.taken-1], true
}

// read reads the reply of a node.
func (l *Lock) read(i int, a wire.Answer, read func(wire.Answer) (reply, error)) (got reply) {
	err := a.Err
	if err == nil && l.quarantine != nil {
		err = l.quarantine.refused(i, a.Val)
	}
	if err == nil {
		got, err = read(a)
	}
	if wire.Ended(err) {
		err = wire.NoAnswer(l.cfg.NodeTimeout, nil) // not the end of the caller's context
	}
	got.node, got.err, got.unsure, got.listeners = i, err, a.Unsure || wire.Unreadable(err), a.Receivers
	return got
}

// nextReply waits for the next reply. Only this function waits for replies of nodes. ok is false if no reply is outstanding,
// if the alarm rings, or if ctx has ended, which is the error. Replies that have come by then are returned first.
func (f *fanout) nextReply(ctx context.Context) (r reply, ok bool, err error) {
	for f.outstanding > 0 {
		if r, ok := f.take(); ok {
			return r, true, nil
		}
		select {
		case <-f.signal:
		case <-f.alarm:
			return r, false, nil
		case <-ctx.Done():
			// The collector was not woken for fewer replies than wants.
			if r, ok := f.take(); ok {
				return r, true, nil
			}
			return r, false, ctx.Err()
		}
	}
	return r, false, nil
}

// collect passes each reply to count, until count returns true or there is no next reply.
func (f *fanout) collect(ctx context.Context, count func(reply) (done bool)) error {
	for {
		if r, ok, err := f.nextReply(ctx); !ok || count(r) {
			return err
		}
	}
}

// collectAll passes every reply to count. When ctx ends, it passes an error for each node that has not
// replied.
func (f *fanout) collectAll(ctx context.Context, count func(reply)) {
	replied := make([]bool, f.l.n)
	for {
		r, ok, err := f.nextReply(ctx)
		if !ok && err == nil {
			return
		}
		if !ok {
			break
		}
		replied[r.node] = true
		count(r)
	}
	for i := range f.asks {
		if node := f.asks[i].node; !replied[node] {
			count(reply{node: node, err: wire.NoAnswer(f.l.cfg.NodeTimeout, nil)})
		}
	}
}

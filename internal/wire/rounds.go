package wire

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RoundSize is how many requests of a round go into one pipeline. One script renews all of them, and
// callers wait for it meanwhile. With 100,000 holds that are renewed every 2 s, the 99th percentile of
// an acquire is a third lower with 50 than with 100; with fewer it is not much lower, and more callers
// wait.
const RoundSize = 50

// Round is a set of requests that are sent together, in pipelines: to several nodes in parallel, and to a
// near node one pipeline after the other.
type Round struct {
	d      *Deployment
	all    []inRound
	isBusy bool // see Busy
}

type inRound struct {
	*Request
	done func(sent time.Time, a Answer)
}

// NewRound returns an empty round with room for n requests.
func (d *Deployment) NewRound(n int) *Round { return &Round{d: d, all: make([]inRound, 0, n)} }

// Add adds a request. done is called once, with the answer and the time of sending, perhaps concurrently with the done of
// another request.
func (r *Round) Add(request *Request, done func(sent time.Time, a Answer)) {
	r.all = append(r.all, inRound{request, done})
}

// Busy notes that this process seems to be short of processors, and will read replies late. A small round is then sent as
// one pipeline. For a large one the first reply decides: see lateAfter.
func (r *Round) Busy() { r.isBusy = true }

// Send sends the round and returns when all requests have got a reply or have failed; in a cluster it
// returns sooner, and waits for each node in a goroutine. report is called after each pipeline, when done
// was called for its requests, with the answers to the requests with Reported.
func (r *Round) Send(report func(node redis.UniversalClient, answers []Answer)) {
	d := r.d
	if d.cluster == nil {
		r.sendTo(d.rdb, d.io, r.all, report)
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.CommandTimeout)
	defer cancel()
	nodes := map[redis.UniversalClient][]inRound{}
	for _, q := range r.all {
		// A pipeline of the cluster client would group requests too, but it waits for
		// the slowest node before it returns any answer.
		node, err := d.NodeFor(ctx, q.route())
		if err != nil {
			q.done(d.cfg.Clock.Now(), Answer{Err: Refused(err), Unsure: true})
			continue
		}
		nodes[node] = append(nodes[node], q)
	}
	for node, group := range nodes {
		// The cluster client follows redirections. But WAIT has to go to the node that
		// got the requests.
		var to redis.Cmdable = d.io
		if d.cfg.Acks > 0 {
			to = node
		}
		d.Go(func() { r.sendTo(node, to, group, report) })
	}
}

// roundContext bounds one pipeline of a round.
func (d *Deployment) roundContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.ctx, d.cfg.CommandTimeout+d.cfg.AckTimeout)
}

var errEnded = errors.New("a hook of go-redis has ended the goroutine that sends")

// A server that is far away is idle most of the time that a pipeline takes. At 10 ms, one pipeline after the other would
// renew only some thousand holds a second. So such a server gets farRounds pipelines at a time, which share the requests of
// the round, up to farRound requests each. Callers have the other connections: see farPipelines.
const (
	farRounds = 4
	farRound  = 500
)

// parts has the requests of a round to one node that no pipeline has taken yet.
type parts struct {
	mu     sync.Mutex // guards the rest
	left   []inRound
	size   int  // how many requests a pipeline takes
	isWide bool // several pipelines are under way at a time
}

// lateAfter is how long a pipeline of a round takes at least if replies are late, for whatever reason. Pipelines one after
// the other might then take longer than the leases last: with one processor and 64 goroutines that never wait, a reply is
// read 1 to 2 s after it has come. So each pipeline takes as many requests as one to a server far away.
const lateAfter = 100 * time.Millisecond

// hurry makes each pipeline from now on take as many requests as it can.
func (p *parts) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size = farRound
}

// take returns the requests of the next pipeline, or none.
func (p *parts) take() []inRound {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.left), p.size)
	which := p.left[:n]
	p.left = p.left[n:]
	return which
}

// end returns the requests that were not taken. They are not sent.
func (p *parts) end() (left []inRound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, p.left = p.left, nil
	return left
}

// widen divides the remaining requests among several pipelines. It returns how many pipelines have to be added to the one
// under way.
func (p *parts) widen(pipelines int) (more int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isWide || len(p.left) <= p.size {
		return 0
	}
	p.isWide = true
	p.size = min(max(p.size, (len(p.left)+pipelines-1)/pipelines), farRound)
	return min(pipelines, (len(p.left)+p.size-1)/p.size) - 1
}

// sendTo sends requests to one node, and returns when all have got a reply or have failed. The distance of the node may be known only after
// the first reply.
func (r *Round) sendTo(node redis.UniversalClient, to redis.Cmdable, which []inRound, report func(redis.UniversalClient, []Answer)) {
	p := &parts{left: which, size: RoundSize}
	var others sync.WaitGroup
	defer others.Wait()
	widen := func() {
		if r.isBusy && len(which) <= farRound || r.d.senders.renewals.tookLong() {
			p.hurry()
		}
		if !r.d.isFar(node) {
			return
		}
		for range p.widen(r.d.senders.renewals.far) {
			others.Add(1)
			r.d.Go(func() {
				defer others.Done()
				r.sendParts(node, to, p, report)
			})
		}
	}
	widen()
	r.sendParts(node, to, p, func(node redis.UniversalClient, answers []Answer) {
		report(node, answers)
		widen()
	})
}

// sendParts sends pipelines to a node, one after the other. If the node does not answer one, the rest is not sent, because
// it would hang too. If a hook ends the goroutine, the requests fail as if their replies were lost.
func (r *Round) sendParts(node redis.UniversalClient, to redis.Cmdable, p *parts, report func(redis.UniversalClient, []Answer)) {
	d := r.d
	sent := d.cfg.Clock.Now()
	var which []inRound
	defer func() {
		if len(which) == 0 {
			return
		}
		for _, some := range [][]inRound{which, p.end()} {
			for _, q := range some {
				q.done(sent, Answer{Err: Because(ErrUnreachable, errEnded), Unsure: true})
			}
		}
	}()
	var batch []*Request
	var room []Answer
	for which = p.take(); len(which) > 0; which = p.take() {
		if cap(batch) < len(which) {
			batch, room = make([]*Request, 0, len(which)), make([]Answer, 0, len(which))
		}
		batch = batch[:0]
		for _, q := range which {
			batch = append(batch, q.Request)
		}
		ctx, cancel := d.roundContext()
		sent = d.cfg.Clock.Now()
		began := time.Now()
		answers := d.sendBatch(ctx, to, batch, nil, room)
		for i, r := range batch {
			answers[i].Err = d.foreign(d.io, ctx, r, answers[i].Err)
		}
		cancel()
		reported := answers[:0] // reuses the room of answers that were read
		var silent error
		answered := false
		for len(which) > 0 {
			a, q := &answers[len(answers)-len(which)], which[0]
			answered = answered || a.Err == nil
			if a.Err != nil {
				a.Err, a.Unsure = Refused(a.Err), !NotExecuted(a.Err)
			}
			if Ended(a.Err) {
				a.Err = NoAnswer(d.cfg.CommandTimeout, a.Err)
			}
			if a.Unsure && Transient(a.Err) {
				silent = a.Err
			}
			which = which[1:] // first, so that done is called once even if it ends the goroutine
			q.done(sent, *a)
			if q.Reported {
				reported = append(reported, *a)
			}
		}
		if answered {
			d.senders.renewals.took(began)
		}
		if silent != nil {
			d.RefreshTopology()
			for _, q := range p.end() {
				q.done(sent, Answer{Err: silent})
			}
		}
		report(node, reported)
	}
}

package wire

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// RoundSize is how many requests of a round go into one pipeline. One script renews all of them,
// and whoever asks for a lock meanwhile waits for it. Beside 100,000 holds that are renewed every
// 2 s, 50 at a time cost such a caller about a third less than 100 do, at the 99th percentile;
// with fewer it is not much less, and more of them wait.
const RoundSize = 50

// Round is a set of requests that are sent together, in pipelines: nodes side by side, the
// pipelines to one node one after the other.
type Round struct {
	d   *Deployment
	all []inRound
}

type inRound struct {
	*Request
	done func(sent time.Time, a Answer)
}

// NewRound returns an empty round with room for n requests.
func (d *Deployment) NewRound(n int) *Round { return &Round{d: d, all: make([]inRound, 0, n)} }

// Add adds a request. done is called once, with the answer and the time of sending.
func (r *Round) Add(request *Request, done func(sent time.Time, a Answer)) {
	r.all = append(r.all, inRound{request, done})
}

// Send sends the round and returns when all requests were answered or have failed; in a
// cluster it returns sooner, and waits for each node in a goroutine. told is called after
// each pipeline, when done was called for its requests, with the answers to the requests
// that say Told.
func (r *Round) Send(told func(node redis.UniversalClient, answers []Answer)) {
	d := r.d
	if d.cluster == nil {
		r.sendTo(d.rdb, d.io, r.all, told)
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
		// Sent through the cluster client, which follows redirections. But WAIT has to
		// go to the node that got the requests.
		var to redis.Cmdable = d.io
		if d.cfg.Acks > 0 {
			to = node
		}
		d.Go(func() { r.sendTo(node, to, group, told) })
	}
}

var errEnded = errors.New("a hook of go-redis has ended the goroutine that sends")

// sendTo sends requests to one node, a pipeline at a time. If the node does not answer one
// pipeline, the rest are not sent: they would only hang one after the other. A hook may end the
// goroutine: then it is as if the replies were lost.
func (r *Round) sendTo(node redis.UniversalClient, to redis.Cmdable, which []inRound, told func(redis.UniversalClient, []Answer)) {
	d := r.d
	sent := d.cfg.Clock.Now()
	defer func() {
		for _, q := range which {
			q.done(sent, Answer{Err: Because(ErrUnreachable, errEnded), Unsure: true})
		}
	}()
	most := min(len(which), RoundSize)
	batch, room := make([]*Request, 0, most), make([]Answer, 0, most)
	for len(which) > 0 {
		n := min(len(which), RoundSize)
		batch = batch[:0]
		for _, q := range which[:n] {
			batch = append(batch, q.Request)
		}
		ctx, cancel := context.WithTimeout(d.ctx, d.cfg.CommandTimeout+d.cfg.AckTimeout)
		sent = d.cfg.Clock.Now()
		answers := d.sendBatch(ctx, to, batch, nil, room)
		for i, r := range batch {
			answers[i].Err = d.foreign(ctx, r, answers[i].Err)
		}
		cancel()
		heard := answers[:0] // in the same room: each answer is read before
		var silent error
		for j := range answers {
			a := &answers[j]
			if a.Err != nil {
				a.Err, a.Unsure = Refused(a.Err), !NotExecuted(a.Err)
			}
			if Ended(a.Err) {
				a.Err = NoAnswer(d.cfg.CommandTimeout, a.Err)
			}
			if a.Unsure && Transient(a.Err) {
				silent = a.Err
			}
			which[j].done(sent, *a)
			if which[j].Told {
				heard = append(heard, *a)
			}
		}
		told(node, heard)
		which = which[n:]
		if silent == nil {
			continue
		}
		d.RefreshTopology()
		for _, q := range which {
			q.done(sent, Answer{Err: silent})
		}
		which = nil
	}
}

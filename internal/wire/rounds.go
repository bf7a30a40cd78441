package wire

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Round is a set of requests that are sent together, in pipelines: nodes side by side, the
// pipelines to one node one after the other.
type Round struct {
	d        *Deployment
	requests []*Request
	told     []bool
	done     []func(sent time.Time, a Answer)
}

// NewRound returns an empty round.
func (d *Deployment) NewRound() *Round { return &Round{d: d} }

// Add adds a request. done is called once, with the answer and the time of sending. With
// told, the answer is also passed to the function that Send gets.
func (r *Round) Add(request *Request, told bool, done func(sent time.Time, a Answer)) {
	r.requests = append(r.requests, request)
	r.told = append(r.told, told)
	r.done = append(r.done, done)
}

// Send sends the round and returns when all requests were answered or have failed; in a
// cluster it returns sooner, and waits for each node in a goroutine. told is called after
// each pipeline, when done was called for its requests, with the answers to the requests
// that were added with told.
func (r *Round) Send(told func(node redis.UniversalClient, answers []Answer)) {
	d := r.d
	all := make([]int, len(r.requests))
	for i := range all {
		all[i] = i
	}
	if d.cluster == nil {
		r.sendTo(d.rdb, d.io, all, told)
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.CommandTimeout)
	defer cancel()
	nodes := map[redis.UniversalClient][]int{}
	for _, i := range all {
		// A pipeline of the cluster client would group requests too, but it waits for
		// the slowest node before it returns any answer.
		node, err := d.NodeFor(ctx, r.requests[i].route())
		if err != nil {
			r.done[i](d.cfg.Clock.Now(), Answer{Err: err, Unsure: true})
			continue
		}
		nodes[node] = append(nodes[node], i)
	}
	for node, group := range nodes {
		// Sent through the cluster client, which follows redirections. But WAIT has to
		// go to the node that got the requests.
		var to redis.Cmdable = d.io
		if d.cfg.Acks {
			to = node
		}
		d.Go(func() { r.sendTo(node, to, group, told) })
	}
}

// sendTo sends requests to one node, a pipeline at a time. If the node does not answer one
// pipeline, the rest are not sent: they would only hang one after the other.
func (r *Round) sendTo(node redis.UniversalClient, to redis.Cmdable, which []int, told func(redis.UniversalClient, []Answer)) {
	d := r.d
	for len(which) > 0 {
		n := min(len(which), BatchSize)
		batch := make([]*Request, n)
		for j, i := range which[:n] {
			batch[j] = r.requests[i]
		}
		ctx, cancel := context.WithTimeout(d.ctx, d.cfg.CommandTimeout+d.cfg.AckTimeout)
		sent := d.cfg.Clock.Now()
		answers := d.sendBatch(ctx, to, batch)
		cancel()
		var silent error
		var heard []Answer
		for j := range answers {
			a := &answers[j]
			if a.Err != nil {
				a.Unsure = !NotExecuted(a.Err)
			}
			if a.Unsure && Transient(a.Err) {
				silent = a.Err
			}
			r.done[which[j]](sent, *a)
			if r.told[which[j]] {
				heard = append(heard, *a)
			}
		}
		told(node, heard)
		which = which[n:]
		if silent == nil {
			continue
		}
		d.RefreshTopology()
		for _, i := range which {
			r.done[i](sent, Answer{Err: silent})
		}
		return
	}
}

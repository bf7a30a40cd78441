package wire

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Round is a set of requests that are sent together, without waiting for the answers:
// to each node by itself, in pipelines one after the other.
type Round struct {
	d        *Deployment
	requests []*Request
	told     []bool
	done     []func(sent time.Time, a Answer)
}

// NewRound returns an empty round.
func (d *Deployment) NewRound() *Round { return &Round{d: d} }

// Add adds a request. done is called once, with what became of it and when it was sent.
// With told, the function that Send gets hears of it too.
func (r *Round) Add(request *Request, told bool, done func(sent time.Time, a Answer)) {
	r.requests = append(r.requests, request)
	r.told = append(r.told, told)
	r.done = append(r.done, done)
}

// Send sends the round and returns when all of it has been answered, or has failed. In
// a cluster it returns sooner: nodes are waited for side by side. told is called after
// each pipeline that was sent, once its requests have heard what became of them, with
// the answers to those that it is to hear of.
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
		// A pipeline of the cluster client would do the grouping too, but wait
		// for the slowest node before it shows any answer.
		node, err := d.NodeFor(ctx, r.requests[i].Keys[0])
		if err != nil {
			r.done[i](d.cfg.Clock.Now(), Answer{Err: err, Unsure: true})
			continue
		}
		nodes[node] = append(nodes[node], i)
	}
	for node, group := range nodes {
		// Through the cluster client all the same: it follows redirections. But
		// WAIT has to go where the requests went.
		var to redis.Cmdable = d.io
		if d.cfg.Acks {
			to = node
		}
		d.Go(func() { r.sendTo(node, to, group, told) })
	}
}

// sendTo sends requests to one node, a pipeline at a time. If the node does not
// answer one, the rest is not tried: they would only hang one after the other.
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

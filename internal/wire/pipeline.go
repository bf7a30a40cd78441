package wire

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// parcel is a command of a pipeline: one request of a batch, or several that one script does together.
type parcel struct {
	script *Script
	which  []int // indexes into the batch
	isMany bool  // script does all requests together
	tries  int   // how often it was sent
	cmd    *packed
}

// command is a command with a reply of any form.
type command interface {
	redis.Cmder
	Val() any
}

// mostTogether is how many requests one script does at most, because the server does nothing else
// meanwhile.
const mostTogether = RoundSize

// mostTries is how often a parcel is sent at most. The second time is for scripts that the node did not
// know: the first parcel of each script has the full text, which loads the script for the rest. The third
// time is for a batch that redirections have spread over several nodes.
const mostTries = 3

// parcels returns the commands for a batch.
func (d *Deployment) parcels(batch []*Request) (all []*parcel) {
	var kinds map[*Script]*parcel // parcels with room
	for i, r := range batch {
		many := r.many()
		if many == nil || !d.AnySlots() {
			all = append(all, &parcel{script: r.Script, which: []int{i}})
			continue
		}
		p := kinds[many]
		if p == nil || len(p.which) == mostTogether {
			if kinds == nil {
				kinds = map[*Script]*parcel{}
			}
			p = &parcel{script: many, which: make([]int, 0, min(len(batch)-i, mostTogether)), isMany: true}
			kinds[many] = p
			all = append(all, p)
		}
		p.which = append(p.which, i)
	}
	for _, p := range kinds {
		if len(p.which) == 1 {
			p.isMany, p.script = false, batch[p.which[0]].Script
		}
	}
	return all
}

// command returns the command of a parcel.
func (p *parcel) command(ctx context.Context, batch []*Request, flights []flight, whole bool) *packed {
	words := func(which []int) []any {
		if p.isMany {
			return together(p.script, batch, which, whole)
		}
		return batch[which[0]].words(nil, whole)
	}
	cmd := &packed{which: p.which, flights: flights, some: words}
	cmd.Cmd = *redis.NewCmd(ctx, words(p.which)...) // not allocated separately
	if p.script != nil {
		cmd.SetFirstKeyPos(3)
	}
	return cmd
}

// pipeline sends the requests of a batch, and stores their answers.
func (d *Deployment) pipeline(ctx context.Context, node redis.Cmdable, batch []*Request, flights []flight, answers []Answer) {
	acked := slices.ContainsFunc(batch, func(r *Request) bool { return r.Acked })
	todo := d.parcels(batch)
	for try := 0; len(todo) > 0; try++ {
		if try > 0 && flights == nil {
			// The server does not know a script, and this reply may have been late. No caller waits for a round, so the
			// text is sent with a new timeout: otherwise the next round would have to send it.
			retryCtx, cancel := d.roundContext()
			defer cancel()
			ctx = retryCtx
		}
		pipe := node.Pipeline()
		loaded := map[*Script]bool{}
		for _, p := range todo {
			whole := d.sendsText.Load() || p.tries == 2 || p.tries == 1 && !loaded[p.script]
			loaded[p.script] = true
			p.cmd = p.command(ctx, batch, flights, whole)
			_ = pipe.Process(ctx, p.cmd)
		}
		var wait once
		if acked {
			wait = d.wait(ctx)
			_ = pipe.Process(ctx, wait)
		}
		sent, err := pipe.Exec(ctx) // each command has its own error
		spread(sent, err)
		confirmed := 0
		if acked {
			confirmed, _ = wait.Int()
		}
		var resend []*parcel
		for _, p := range todo {
			err := p.cmd.Err()
			p.tries++
			if p.keep(answers); len(p.which) == 0 {
				continue
			}
			if p.tries < mostTries && d.needsText(err) {
				resend = append(resend, p)
				continue
			}
			for _, i := range d.unpack(p, batch, answers, confirmed) {
				resend = append(resend, &parcel{script: batch[i].Script, which: []int{i}})
			}
		}
		todo = resend
	}
}

// keep keeps the requests of a parcel that were sent, and answers the others.
func (p *parcel) keep(answers []Answer) {
	sent := p.cmd.sent()
	if len(sent) == len(p.which) {
		return
	}
	err := p.cmd.Err()
	if err == nil {
		err = context.Canceled
	}
	for _, i := range p.which {
		if !slices.Contains(sent, i) {
			answers[i] = Answer{Err: err, unsent: true}
		}
	}
	p.which = sent
}

// spread sets the error of a pipeline on its commands if none of them has an error: then the server has
// refused the connection, as for a wrong password.
func spread(sent []redis.Cmder, err error) {
	if err == nil || slices.ContainsFunc(sent, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		return
	}
	for _, cmd := range sent {
		cmd.SetErr(err)
	}
}

// unpack stores the answers of a parcel. It returns the requests that have to be sent alone: the server refused
// these requests, or the whole parcel. The reason may be a single request with a key that the user must not
// use, or, at a node of a cluster, keys of several slots.
func (d *Deployment) unpack(p *parcel, batch []*Request, answers []Answer, confirmed int) (alone []int) {
	err := p.cmd.Err()
	if !p.isMany {
		i := p.which[0]
		answers[i] = d.answer(batch[i], p.cmd.Val())
		answers[i].Acks, answers[i].Err = confirmed, err
		return nil
	}
	if err != nil && !IsReply(err) {
		for _, i := range p.which {
			answers[i] = Answer{Err: err}
		}
		return nil
	}
	replies, _ := p.cmd.Val().([]any)
	if len(replies) != len(p.which) {
		return p.which
	}
	for j, i := range p.which {
		if _, failed := replies[j].(error); failed || replies[j] == nil {
			alone = append(alone, i)
			continue
		}
		answers[i] = d.answer(batch[i], replies[j])
		answers[i].Acks = confirmed
	}
	return alone
}

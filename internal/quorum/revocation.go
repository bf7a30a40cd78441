package quorum

import (
	"context"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// revocation implements protocol.Revocation. A request to release is written to at least a quorum of the nodes. The holder
// polls all nodes until one replies that it has the request, or no quorum can have it: two quorums have a node in common. A message of
// any node makes the holder poll.
type revocation struct{ l *Lock }

// Revocation implements protocol.Revocable.
func (l *Lock) Revocation() protocol.Revocation { return revocation{l} }

// Ready implements protocol.Revocation; see Lock.Ready.
func (r revocation) Ready(context.Context) error { return nil }

// Listen implements protocol.Revocation.
func (r revocation) Listen(notify func()) (end func()) {
	return r.l.listen(r.l.cfg.Names.AskedChannel(), notify)
}

// RequestRelease implements protocol.Revocation.
func (r revocation) RequestRelease(ids []string) protocol.Request[bool] {
	l, names := r.l, r.l.cfg.Names
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = names.AskedKey(id)
	}
	return request[bool]{func(ctx context.Context) protocol.Result[bool] {
		t, err := l.poll(ctx, func(i int) *wire.Request {
			return &wire.Request{
				Script: l.cfg.Scripts["lock/request_release"],
				Keys:   keys,
				Args:   []any{protocol.RequestStands.Milliseconds(), names.AskedChannel(), l.nodes[i].Wire.PublishCommand()},
			}
		}, func(t *tally) bool { return t.written() || t.blocks(len(t.failed)) })
		if err != nil {
			return failed[bool](err)
		}
		if !t.written() {
			return failed[bool](l.noQuorum(&t))
		}
		return outcome(true)
	}}
}

// Asked implements protocol.Revocation.
func (r revocation) Asked(id string) protocol.Task {
	l, key := r.l, r.l.cfg.Names.AskedKey(id)
	return l.task(func(ctx context.Context) protocol.Result[protocol.Kept] {
		t, err := l.poll(ctx, func(int) *wire.Request {
			return &wire.Request{Script: l.cfg.Scripts["lock/asked"], Keys: []string{key}}
		}, func(t *tally) bool { return t.votes > 0 || t.noneHasRequest() })
		switch {
		case err != nil:
			return failed[protocol.Kept](err)
		case t.votes > 0:
			return outcome(protocol.Done)
		case t.noneHasRequest():
			return outcome(protocol.Removed)
		}
		return failed[protocol.Kept](l.noQuorum(&t))
	})
}

// poll sends requests to all nodes, and counts which of them have a request to release, until decides returns true.
func (l *Lock) poll(ctx context.Context, request func(i int) *wire.Request, decides func(*tally) bool) (t tally, err error) {
	f := l.fanout()
	defer f.end()
	t = tally{size: l.size}
	t.outstanding = f.ask(ctx, question{
		request: func(i int) (*wire.Request, error) { return request(i), nil },
		read:    readRaise,
	})
	err = f.collect(ctx, func(r reply) (done bool) {
		t.countRequest(r)
		return decides(&t)
	})
	return t, err
}

// countRequest counts whether a node has a request to the holder, or has it now.
func (t *tally) countRequest(r reply) {
	switch {
	case r.err != nil:
		t.fail(r.node, silent, r.err)
	default:
		t.add(none)
	}
	if r.says == written {
		t.votes++
	}
}

// written reports whether a quorum has the request.
func (t *tally) written() bool { return t.enough(t.votes) }

// noneHasRequest reports whether no quorum can have the request.
func (t *tally) noneHasRequest() bool { return t.votes == 0 && t.blocks(t.sights[none]) }

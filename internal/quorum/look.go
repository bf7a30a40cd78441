package quorum

import (
	"context"
	"slices"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Inspect implements protocol.Protocol. It reads from each node which hold has its vote.
func (l *Lock) Inspect() protocol.Request[protocol.State] {
	return request[protocol.State]{l.inspect}
}

// Probe implements protocol.Protocol. It uses Inspect, which returns at most one holder.
func (l *Lock) Probe(id string) protocol.Request[protocol.Probed] {
	return request[protocol.Probed]{func(ctx context.Context) protocol.Result[protocol.Probed] {
		s := l.inspect(ctx)
		if s.Err != nil {
			return failed[protocol.Probed](s.Err)
		}
		var got protocol.Probed
		for _, h := range s.Outcome.Holders {
			got.Held = true
			if h.HoldID == id {
				got.Entries = h.Count
			}
		}
		return outcome(got)
	}}
}

func (l *Lock) inspect(ctx context.Context) protocol.Result[protocol.State] {
	f := l.fanout().decides()
	defer f.end()
	t := tally{size: l.size}
	t.outstanding = f.ask(ctx, question{
		request: func(i int) (*wire.Request, error) {
			return l.quarantine.guard(i, false, &wire.Request{Script: l.script("inspect"), Keys: []string{l.record}})
		},
		read: readInspect,
	})
	verdict := wait
	err := f.collect(ctx, func(r reply) (done bool) {
		switch {
		case r.err != nil:
			t.fail(r.node, silent, r.err)
		case r.says == votedFor:
			t.votedFor(r.id, r.rest, r.token)
			fallthrough
		default:
			t.add(none)
		}
		verdict = t.held()
		return verdict != wait
	})
	switch {
	case err != nil:
		if l.blocks(len(t.failed)) {
			err = wire.Cut(err, l.noQuorum(&t))
		}
		return failed[protocol.State](err)
	case verdict == unknown:
		return failed[protocol.State](l.unsettled(&t))
	case verdict == no:
		return outcome(protocol.State{Waiters: -1})
	}
	id, h, rest := t.holder()
	entries := 1 // the least possible, for a hold of another client
	if b := l.cfg.Ballots.get(id); b != nil {
		entries = int(b.entries.Load())
	}
	return outcome(protocol.State{
		Holders: []protocol.Holder{{HoldID: id, Count: entries}},
		TTL:     rest, Token: h.token, Waiters: -1,
	})
}

// ForceUnlock implements protocol.Protocol. Without an id it first reads from each node the id of the hold that has its
// vote, so that a newer hold keeps the vote.
func (l *Lock) ForceUnlock(holdID string) protocol.Request[bool] {
	return request[bool]{func(ctx context.Context) protocol.Result[bool] {
		t := tally{size: l.size}
		t.outstanding = l.n
		ids, hasVote := make([]string, l.n), make([]bool, l.n)
		for i := range ids {
			ids[i], hasVote[i] = holdID, holdID != ""
		}
		if holdID == "" {
			l.force(ctx, nil, ids, func(r reply) {
				if r.says == votedFor {
					ids[r.node], hasVote[r.node] = r.id, true
				} else if r.err != nil {
					t.fail(r.node, silent, r.err)
				} else {
					t.add(none)
				}
			})
		}
		l.force(ctx, hasVote, slices.Clone(ids), func(r reply) {
			switch {
			case r.err != nil:
				t.fail(r.node, silent, r.err)
			case r.says == released:
				t.votedFor(r.id, 0, 0)
				t.add(none)
			case r.unsure:
				t.fail(r.node, silent, errRepeated)
			default:
				t.add(none)
			}
		})
		if t.held() == unknown {
			return failed[bool](l.unsettled(&t))
		}
		return outcome(t.held() == yes)
	}}
}

// force takes the votes of nodes back from the holds with these ids. For an empty id it only reads which hold has the vote
// of the node.
func (l *Lock) force(ctx context.Context, nodes []bool, ids []string, count func(reply)) {
	f := l.fanout()
	defer f.end()
	f.ask(ctx, question{
		nodes: nodes,
		request: func(i int) (*wire.Request, error) {
			r := &wire.Request{
				Script: l.script("force_unlock"),
				Keys:   []string{l.record},
				Args:   []any{ids[i], protocol.TombstoneTTL.Milliseconds(), l.channel, l.nodes[i].Wire.PublishCommand()},
			}
			if ids[i] != "" {
				r.Keys = append(r.Keys, l.gone+ids[i])
			}
			return r, nil
		},
		read: readForce,
	})
	f.collectAll(ctx, count)
}

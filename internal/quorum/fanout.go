package quorum

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// fanout asks nodes, and collects their replies until the caller calls end. Requests under
// way are not canceled then.
type fanout struct {
	l       *Lock
	replies chan reply
	done    chan struct{} // closed by end: no replies are collected any more
	open    int           // replies to come

	late  func(reply)        // gets a reply that comes after end; nil: it is dropped
	alarm <-chan time.Time   // nil: none
	rang  func() (over bool) // called by collect when alarm fires
}

func (l *Lock) fanout() *fanout {
	return &fanout{l: l, replies: make(chan reply), done: make(chan struct{})}
}

// end stops collecting replies.
func (f *fanout) end() { close(f.done) }

// question is what a fan-out asks.
type question struct {
	// which says which nodes are asked; nil: all.
	which func(i int) bool
	// request returns the request to a node, or an error if it is known that the node
	// would refuse it.
	request func(i int) (*wire.Request, error)
	// settle, unless nil, is called instead, just before the node is asked, and may wait.
	// If it returns nil the node is not asked, and counts as saying nothing.
	settle func(i int) *wire.Request
	// read reads the answer.
	read func(wire.Answer) (reply, error)

	papers   *papers // of the hold that the question asks votes for; nil: it asks for none
	raisedTo int64   // of a RAISE
	// missed is called with a node that did not answer, also after end. If it is set, the
	// shutdown of the home and of the node waits for the question: no caller does.
	missed func(i int)
}

// ask asks nodes side by side, and returns how many. Their replies come within the node
// time-out.
func (f *fanout) ask(ctx context.Context, q question) (asked int) {
	home := f.l.home()
	for i, n := range f.l.nodes {
		if q.which != nil && !q.which(i) {
			continue
		}
		var req *wire.Request
		var known error
		if q.settle == nil {
			req, known = q.request(i)
		}
		asked++
		if q.missed != nil {
			home.Calls.Add(1)
			n.Calls.Add(1)
		}
		f.l.background(func() {
			if q.missed != nil {
				defer home.Calls.Add(-1)
				defer n.Calls.Add(-1)
			}
			if q.settle != nil {
				req = q.settle(i)
			}
			var got reply
			if req != nil || known != nil {
				got = f.askOne(ctx, q, i, req, known)
			}
			got.node, got.raisedTo = i, q.raisedTo
			if got.err != nil && q.missed != nil {
				q.missed(i)
			}
			select {
			case f.replies <- got:
			case <-f.done:
				if f.late != nil {
					f.late(got)
				}
			}
		})
	}
	f.open += asked
	return asked
}

// askOne asks one node. A node that does not answer gets only a PING, so that no stale
// command is left to run when it recovers.
func (f *fanout) askOne(caller context.Context, q question, i int, req *wire.Request, known error) reply {
	l, n := f.l, f.l.nodes[i]
	ctx, cancel := context.WithTimeout(caller, l.cfg.NodeTimeout)
	defer cancel()
	if err := n.Wire.Reachable(ctx, l.cfg.NodeTimeout, f.done); err != nil {
		return reply{err: err}
	}
	if q.papers != nil && !q.papers.ask(i) {
		return reply{err: wire.ErrTooLate}
	}
	a := wire.Answer{Err: known}
	if known == nil {
		a = l.send(ctx, n, req)
		if a.Err != nil && caller.Err() == nil {
			n.Wire.Failed(a.Err)
		}
	}
	got := l.read(i, a, q.read)
	if q.papers != nil {
		q.papers.answered(i, got)
	}
	return got
}

// send sends a request to a node, and measures how long the answer takes.
func (l *Lock) send(ctx context.Context, n *node, req *wire.Request) wire.Answer {
	req.FailFast = true                // there are other nodes
	if n.Wire.PublishCommand() == "" { // otherwise the guess will do: a node is not a cluster
		if err := n.Wire.Ready(ctx); err != nil {
			return wire.Answer{Err: err}
		}
	}
	sent := l.clock.Now()
	a := n.Wire.Do(ctx, l.cfg.NodeTimeout, req)
	n.took.Store(int64(l.clock.Now().Sub(sent)))
	return a
}

// read reads the answer of a node.
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
	got.node, got.err, got.unsure = i, err, a.Unsure
	return got
}

// collect passes each reply to count, until that reports that it is over, or no reply is
// outstanding. Only here does anything wait for the replies of nodes. If ctx ends first,
// collect returns its error and does not wait for the nodes that have not answered.
func (f *fanout) collect(ctx context.Context, count func(reply) (over bool)) error {
	for f.open > 0 {
		select {
		case r := <-f.replies:
			f.open--
			if count(r) {
				return nil
			}
		case <-f.alarm:
			if f.rang() {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// collectAll passes every reply to count. The questions end with the context that they were
// asked with; a node that has not answered by then counts as not answering.
func (f *fanout) collectAll(count func(reply)) {
	_ = f.collect(context.Background(), func(r reply) (over bool) {
		count(r)
		return false
	})
}

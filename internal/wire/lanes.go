package wire

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Errand is a request to one server that waits in a lane.
type Errand interface {
	// Request returns the request as it is to be sent now, or why it is not to be sent.
	Request() (*Request, error)
	// Answered is called once, with the answer or the reason why it was not sent.
	Answered(sent time.Time, a Answer)
	// Timeout bounds the wait for the answer, from when the request is sent.
	Timeout() time.Duration
	// Wanted reports whether the answer is of use still. When it is not, the request is not
	// sent again.
	Wanted() bool
}

// Lanes send requests to several deployments: one lane for each, with one pipeline under
// way at a time. An errand that waits in a lane costs bytes, but no goroutine and no timer.
// A server that hangs does not delay errands for other servers.
type Lanes struct {
	home *Deployment // its context and clock are used

	mu     sync.Mutex               // guards the rest
	byNode map[*Deployment][]Errand // for each deployment whose goroutine is sending: what waits
}

// NewLanes returns lanes that end when home is stopped.
func NewLanes(home *Deployment) *Lanes { return &Lanes{home: home} }

// Put queues an errand for a deployment. It does not wait.
func (l *Lanes) Put(node *Deployment, e Errand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting, busy := l.byNode[node]
	if l.byNode == nil {
		l.byNode = map[*Deployment][]Errand{}
	}
	l.byNode[node] = append(waiting, e)
	if !busy {
		l.home.Go(func() {
			for batch := l.take(node); len(batch) > 0; batch = l.take(node) {
				l.send(node, batch)
			}
		})
	}
}

// take removes the errands for the next pipeline. The lane ends when none is left.
func (l *Lanes) take(node *Deployment) []Errand {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.byNode[node]
	n := min(len(waiting), BatchSize)
	if n == 0 {
		delete(l.byNode, node)
		return nil
	}
	l.byNode[node] = waiting[n:]
	return waiting[:n]
}

// takeAll removes all waiting errands.
func (l *Lanes) takeAll(node *Deployment) []Errand {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.byNode[node]
	l.byNode[node] = nil
	return waiting
}

// reach waits for a PING, unless the node is known to answer: that another request got no
// answer may have other reasons.
func (l *Lanes) reach(node *Deployment, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(l.home.ctx, timeout)
	defer cancel()
	return node.Reachable(ctx, timeout, nil)
}

// send sends a batch, and waits for its answers until the time-out, even if go-redis waits
// for longer.
func (l *Lanes) send(node *Deployment, batch []Errand) {
	home := l.home
	var timeout time.Duration
	for _, e := range batch {
		timeout = max(timeout, e.Timeout())
	}
	now := home.cfg.Clock.Now()
	if home.ctx.Err() != nil {
		for _, e := range batch {
			e.Answered(now, Answer{Err: ErrTooLate})
		}
		return
	}
	if err := l.reach(node, timeout); err != nil {
		// The rest would only wait for the next PING. Callers that still need the node
		// put their errands again soon.
		for _, e := range append(slices.Clone(batch), l.takeAll(node)...) {
			e.Answered(now, Answer{Err: err})
		}
		return
	}
	var errands []Errand
	var requests []*Request
	for _, e := range batch {
		if r, err := e.Request(); err != nil {
			e.Answered(now, Answer{Err: err})
		} else {
			errands, requests = append(errands, e), append(requests, r)
		}
	}
	if len(errands) == 0 {
		return
	}
	sent := home.cfg.Clock.Now()
	// Not with the node's context: after Stop that deployment may still supply
	// connections.
	ctx, cancel := context.WithTimeout(home.ctx, timeout)
	defer cancel()
	done := make(chan []Answer, 1)
	home.Go(func() { done <- node.typed(ctx, requests, node.sendBatch(ctx, node.io, requests, nil, nil)) })
	var answers []Answer
	select {
	case answers = <-done:
	case <-ctx.Done():
		select {
		case answers = <-done: // they came at the last moment, or while the process was stopped
		default:
			answers = make([]Answer, len(requests))
			for i := range answers {
				answers[i].Err = ctx.Err()
			}
		}
	}
	for i, a := range answers {
		if a.Err != nil {
			a.Unsure = !NotExecuted(a.Err)
			if Ended(a.Err) {
				a.Err = NoAnswer(timeout, nil) // not the end of a caller's context
			}
			if home.ctx.Err() == nil {
				node.Failed(a.Err)
			}
		}
		errands[i].Answered(sent, a)
	}
}

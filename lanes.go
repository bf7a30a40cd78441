package rlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// errand is a request to one server that waits in a lane.
type errand interface {
	// write returns the request as it is to be sent now, or why it is not to be sent.
	write() (*request, error)
	// read is called once, with what became of it, also if it was not written.
	read(sent time.Time, a answer)
	// timeout bounds how long the server is waited for, from when it is sent.
	timeout() time.Duration
}

// lanes are the ways on which a watchdog sends to the nodes of RedLocks: one to
// each node, with one pipeline under way at a time. What waits in a lane costs
// bytes, no goroutine, and no time-out of its own; and a node that hangs delays
// nobody who waits for another.
type lanes struct {
	c *Client // whose watchdog it is

	mu     sync.Mutex           // guards the rest
	byNode map[*Client][]errand // for each with a goroutine that sends: what waits
}

// put has an errand done. It does not wait.
func (s *lanes) put(node *Client, e errand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, busy := s.byNode[node]
	if s.byNode == nil {
		s.byNode = map[*Client][]errand{}
	}
	s.byNode[node] = append(waiting, e)
	if !busy {
		s.c.background(func() {
			for batch := s.take(node); len(batch) > 0; batch = s.take(node) {
				s.send(node, batch)
			}
		})
	}
}

// take takes out what goes into the next pipeline. With nothing left the lane ends.
func (s *lanes) take(node *Client) []errand {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.byNode[node]
	n := min(len(waiting), batchSize)
	if n == 0 {
		delete(s.byNode, node)
		return nil
	}
	s.byNode[node] = waiting[n:]
	return waiting[:n]
}

// reach waits for a PING, if the node is not known to answer: another request may
// have had no answer for reasons of its own.
func (s *lanes) reach(node *Client, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(s.c.ctx, timeout)
	defer cancel()
	return node.reachable(ctx, timeout, nil)
}

// send sends a batch, and waits for its answers until the time-out, even if
// go-redis waits for longer.
func (s *lanes) send(node *Client, batch []errand) {
	var timeout time.Duration
	for _, e := range batch {
		timeout = max(timeout, e.timeout())
	}
	now := s.c.clock.Now()
	if s.c.ctx.Err() != nil {
		for _, e := range batch {
			e.read(now, answer{err: errTooLate})
		}
		return
	}
	if err := s.reach(node, timeout); err != nil {
		// The rest would only wait for the next PING. Who still needs the node asks
		// again soon.
		s.mu.Lock()
		batch = append(slices.Clone(batch), s.byNode[node]...)
		s.byNode[node] = nil
		s.mu.Unlock()
		for _, e := range batch {
			e.read(now, answer{err: err})
		}
		return
	}
	var errands []errand
	var requests []*request
	for _, e := range batch {
		r, err := e.write()
		switch {
		case err != nil:
			e.read(now, answer{err: err})
		case r.do != nil: // it is known what the node would say
			e.read(now, r.do(s.c.ctx))
		default:
			errands, requests = append(errands, e), append(requests, r)
		}
	}
	if len(errands) == 0 {
		return
	}
	sent := s.c.clock.Now()
	// Not of the node's client, which may be shut down and still be the way to it.
	ctx, cancel := context.WithTimeout(s.c.ctx, timeout)
	defer cancel()
	done := make(chan []answer, 1)
	s.c.background(func() { done <- node.sendBatch(ctx, node.io, requests) })
	var answers []answer
	select {
	case answers = <-done:
	case <-ctx.Done():
		select {
		case answers = <-done: // in the last moment, or while the process was stopped
		default:
			answers = make([]answer, len(requests))
			for i := range answers {
				answers[i].err = ctx.Err()
			}
		}
	}
	for i, a := range answers {
		if a.err != nil {
			a.unsure = !notExecuted(a.err)
			if errors.Is(a.err, context.DeadlineExceeded) || errors.Is(a.err, context.Canceled) {
				a.err = noAnswer(timeout, nil) // not the end of a caller's context
			}
			if s.c.ctx.Err() == nil {
				node.reach.failed(a.err)
			}
		}
		errands[i].read(sent, a)
	}
}

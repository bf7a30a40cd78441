package rlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// reach is whether a server answers at all, for a RedLock that has others to ask.
// After a request without an answer the next ones wait for the answer to a PING,
// of which one is under way at a time. So a node that is dead or hangs costs no
// more than that, however many ask; and nothing lies in its socket that it obeys
// when it comes back, and that had to be taken back then.
type reach struct {
	mu    sync.Mutex // guards the rest
	lost  error      // why it counts as lost; nil: it answers
	probe *probe     // under way; nil: none
}

// probe is a PING.
type probe struct {
	done chan struct{}
	err  error // once done is closed
}

// failed notes how a request has failed. That a server answers with an error, or
// that there is no room in the pool for the request, does not mean that it is lost.
func (s *reach) failed(err error) {
	var reply redis.Error
	if errors.As(err, &reply) || !transient(err) || errors.Is(err, redis.ErrPoolTimeout) {
		return
	}
	s.mu.Lock()
	s.lost = err
	s.mu.Unlock()
}

// reachable returns nil if the server answers, as far as is known: at once if it
// did the last time, else after a PING. It returns an error when that fails, when
// ctx ends, and when nobody wants to know any more.
func (c *Client) reachable(ctx context.Context, timeout time.Duration, quit <-chan struct{}) error {
	s := &c.reach
	s.mu.Lock()
	if s.lost == nil {
		s.mu.Unlock()
		return nil
	}
	if s.probe == nil {
		s.probe = c.probe(timeout)
	}
	lost, p := s.lost, s.probe
	s.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return noAnswer(timeout, lost)
	case <-quit:
		return errTooLate
	}
}

// isLost is reachable for one who does not wait: while the server does not answer, a
// PING is under way.
func (c *Client) isLost(timeout time.Duration) bool {
	s := &c.reach
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		return false
	}
	if s.probe == nil {
		s.probe = c.probe(timeout)
	}
	return true
}

// probe sends a PING.
func (c *Client) probe(timeout time.Duration) *probe {
	p := &probe{done: make(chan struct{})}
	c.background(func() { c.ping(p, timeout) })
	return p
}

func (c *Client) ping(p *probe, timeout time.Duration) {
	// Not of the client's context: also one that was shut down may be the way to a node.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	answered := make(chan error, 1)
	c.background(func() {
		// As a pipeline, for which go-redis has connections of their own: many who
		// wait for one of the others are not the server's fault.
		answered <- c.safely(func() error {
			pipe, ping := c.io.Pipeline(), once{redis.NewCmd(ctx, "ping")}
			_ = pipe.Process(ctx, ping)
			_, _ = pipe.Exec(ctx)
			return ping.Err()
		})
	})
	select {
	case p.err = <-answered:
		var reply redis.Error
		if errors.As(p.err, &reply) {
			p.err = nil // it may not serve, but it is there
		}
	case <-ctx.Done():
		p.err = context.DeadlineExceeded
	}
	if p.err != nil {
		p.err = noAnswer(timeout, p.err)
	}
	s := &c.reach
	s.mu.Lock()
	s.lost, s.probe = p.err, nil
	s.mu.Unlock()
	close(p.done)
}

package wire

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrTooLate is the error of a request that nobody wants to be sent any more.
var ErrTooLate = errors.New("not asked any more")

// health is whether a server answers at all, for a caller that has others to ask.
// After a request without an answer the next ones wait for the answer to a PING,
// of which one is under way at a time. So a node that is dead or hangs costs no
// more than that, however many ask, and no stale command is left to run when it
// recovers.
type health struct {
	mu   sync.Mutex // guards the rest
	lost error      // why it counts as lost; nil: it answers
	ping *ping      // under way; nil: none
}

// ping is a PING.
type ping struct {
	done chan struct{}
	err  error // once done is closed
}

// Failed notes how a request has failed. That a server answers with an error, or
// that there is no room in the pool for the request, does not mean that it is lost.
func (d *Deployment) Failed(err error) {
	if IsReply(err) || !Transient(err) || errors.Is(err, redis.ErrPoolTimeout) {
		return
	}
	h := &d.health
	h.mu.Lock()
	h.lost = err
	h.mu.Unlock()
}

// Reachable returns nil if the server answers, as far as is known: at once if it
// did the last time, else after a PING. It returns an error when that fails, when
// ctx ends, and when nobody wants to know any more.
func (d *Deployment) Reachable(ctx context.Context, timeout time.Duration, quit <-chan struct{}) error {
	h := &d.health
	h.mu.Lock()
	if h.lost == nil {
		h.mu.Unlock()
		return nil
	}
	if h.ping == nil {
		h.ping = d.ping(timeout)
	}
	lost, p := h.lost, h.ping
	h.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return NoAnswer(timeout, lost)
	case <-quit:
		return ErrTooLate
	}
}

// IsLost is Reachable for a caller that does not wait: while the server does not
// answer, a PING is under way.
func (d *Deployment) IsLost(timeout time.Duration) bool {
	h := &d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil {
		return false
	}
	if h.ping == nil {
		h.ping = d.ping(timeout)
	}
	return true
}

// ping sends a PING.
func (d *Deployment) ping(timeout time.Duration) *ping {
	p := &ping{done: make(chan struct{})}
	d.Go(func() { d.await(p, timeout) })
	return p
}

func (d *Deployment) await(p *ping, timeout time.Duration) {
	// Not of the deployment's context: one that was stopped may still be the way to a
	// node for others.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	answered := make(chan error, 1)
	d.Go(func() {
		// As a pipeline, for which go-redis has connections of their own: many who
		// wait for one of the others are not the server's fault.
		answered <- d.Safely(func() error {
			pipe, cmd := d.io.Pipeline(), once{redis.NewCmd(ctx, "ping")}
			_ = pipe.Process(ctx, cmd)
			_, _ = pipe.Exec(ctx)
			return cmd.Err()
		})
	})
	select {
	case p.err = <-answered:
		if IsReply(p.err) {
			p.err = nil // it may not serve, but it is there
		}
	case <-ctx.Done():
		p.err = context.DeadlineExceeded
	}
	if p.err != nil {
		p.err = NoAnswer(timeout, p.err)
	}
	h := &d.health
	h.mu.Lock()
	h.lost, h.ping = p.err, nil
	h.mu.Unlock()
	close(p.done)
}

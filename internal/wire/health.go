package wire

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrTooLate is the error of a request that was dropped because it is no longer needed.
var ErrTooLate = errors.New("not asked any more")

// health records whether a server answers, for callers that can use other servers. After a request
// without a reply, the next requests wait for the reply to a PING. One PING is under way at a time. So
// a dead node, or one that hangs, costs one PING, however many callers there are, and has no stale
// commands to run when it recovers.
type health struct {
	mu     sync.Mutex // guards the rest
	lost   error      // why the server counts as unreachable; nil if it answers; errLate if only a reply is late
	isDead bool       // the server did not answer the last PING either, or accepts no connection
	ping   *ping      // PING under way, or nil
}

// ping is a PING.
type ping struct {
	done    chan struct{}
	timeout time.Duration
	waiting []*Waiting // errands that wait for the reply; guarded by health.mu until done is closed
	err     error      // valid once done is closed
}

// Failed records the error of a request. A server that replies with an error still answers, and a full
// pool proves nothing about the server.
func (d *Deployment) Failed(err error) {
	if IsReply(err) || !Transient(err) || errors.Is(err, redis.ErrPoolTimeout) {
		return
	}
	h := &d.health
	h.mu.Lock()
	h.lost, h.isDead = err, h.isDead || notDialed(err)
	h.mu.Unlock()
}

// Reachable returns nil if the server answers: immediately if it answered the last request, otherwise
// after a PING. It returns an error when the PING fails, when ctx ends, and when quit is closed.
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

// IsLost reports, without waiting, whether the server counts as unreachable. While it does, a PING is
// under way.
func (d *Deployment) IsLost(timeout time.Duration) bool {
	h := &d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil || h.lost == errLate {
		return false
	}
	if h.ping == nil {
		h.ping = d.ping(timeout)
	}
	return true
}

// IsDead is IsLost for a caller that gives up. It is stricter: the server did not answer the last PING either, or
// accepted no connection.
func (d *Deployment) IsDead(timeout time.Duration) bool {
	if !d.IsLost(timeout) {
		return false
	}
	d.health.mu.Lock()
	defer d.health.mu.Unlock()
	return d.health.isDead
}

// doubt records that a reply is late. The next requests wait for a PING, if only for its round trip;
// IsLost still returns false.
func (d *Deployment) doubt() {
	d.health.mu.Lock()
	defer d.health.mu.Unlock()
	if d.health.lost == nil {
		d.health.lost = errLate
	}
}

// lost reports whether requests have to wait for a PING.
func (d *Deployment) lost() bool {
	d.health.mu.Lock()
	defer d.health.mu.Unlock()
	return d.health.lost != nil
}

// ping sends a PING.
func (d *Deployment) ping(timeout time.Duration) *ping {
	p := &ping{done: make(chan struct{}), timeout: timeout}
	d.Go(func() { d.await(p, timeout) })
	return p
}

func (d *Deployment) await(p *ping, timeout time.Duration) {
	// Not the context of the deployment: after Stop, others may still use its connections.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	answered := make(chan error, 1)
	d.Go(func() {
		d.Gate("ping") // the caller continues meanwhile
		// As a pipeline, for which go-redis has a separate pool: a full ordinary pool proves
		// nothing about the server.
		answered <- d.askPing(ctx, d.io)
	})
	select {
	case p.err = <-answered:
		if IsReply(p.err) {
			p.err = nil // an error reply: the server answers
		}
	case <-ctx.Done():
		p.err = context.DeadlineExceeded
	}
	if p.err != nil {
		p.err = NoAnswer(timeout, p.err)
	}
	h := &d.health
	h.mu.Lock()
	h.lost, h.isDead, h.ping = p.err, p.err != nil, nil
	h.mu.Unlock()
	close(p.done)
	p.pinged()
}

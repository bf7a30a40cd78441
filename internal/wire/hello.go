package wire

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Ready finds out how to publish, and whether a script may use keys of several slots. It is called before the first
// acquire, so that every release can publish in the right way.
//
// It sends HELLO, which needs no permission. The type of the go-redis client is not enough: a *redis.ClusterClient may lead
// to a Sentinel deployment, and a wrapper of any kind to a cluster.
//
// Callers that come together share the reply to one request, and its error. Otherwise ten thousand
// callers would wait for ten thousand replies before the first acquire.
func (d *Deployment) Ready(ctx context.Context) error {
	if d.hello.Known() {
		return nil
	}
	return d.hello.Ask(ctx, d, d.greet)
}

// Greet sends another HELLO, for a server that may have changed.
func (d *Deployment) Greet(ctx context.Context) error { return d.greet(ctx) }

// greet sends a HELLO.
func (d *Deployment) greet(ctx context.Context) error {
	a := d.Do(ctx, d.cfg.CommandTimeout, &Request{Args: []any{"hello"}})
	command, slotted, err := readHello(a)
	if err == nil {
		d.slotted.Store(slotted)
		d.mode.Store(command)
	}
	return err
}

// Slotted reports whether the server is known to be in cluster mode. Then all keys of a script must be
// in one slot.
func (d *Deployment) Slotted() bool { return d.slotted.Load() }

// FoundSlots records that the server has refused a script with keys of several slots, although the reply
// to HELLO may not show a cluster, as behind a proxy.
func (d *Deployment) FoundSlots() { d.slotted.Store(true) }

// Shared is a request that is sent until the server has answered it once. One caller sends it for all
// callers that wait for the reply.
type Shared struct {
	isKnown atomic.Bool
	mu      sync.Mutex // guards under
	under   *question  // request under way, or nil
}

// question is a request under way, with the callers that share it.
type question struct {
	done  chan struct{}
	seats int // how many callers share it; guarded by Shared.mu
	// Valid once done is closed:
	err        error
	senderLeft bool // the context of the caller that sent it has ended
}

// Known reports whether the server has answered.
func (s *Shared) Known() bool { return s.isKnown.Load() }

// Ask returns when the server has answered, or with the error. If the context of the caller that sends
// ends, the others do not get that error: one of them sends the request again.
func (s *Shared) Ask(ctx context.Context, d *Deployment, ask func(context.Context) error) error {
	for !s.Known() {
		if err := ctx.Err(); err != nil {
			return err
		}
		q, seat := s.question()
		if seat == 0 {
			return s.answer(ctx, q, ask)
		}
		select {
		case <-q.done:
			if q.err != nil && !q.senderLeft {
				return q.err
			}
		case <-ctx.Done():
		}
		if d.cfg.Gate != nil {
			d.Gate("ready " + strconv.Itoa(seat)) // otherwise all continue in the same instant
		}
	}
	return nil
}

// question returns the request under way. Seat 0 means that the caller has to send it.
func (s *Shared) question() (q *question, seat int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.under == nil {
		s.under = &question{done: make(chan struct{})}
		return s.under, 0
	}
	s.under.seats++
	return s.under, s.under.seats
}

// answer sends the request, and wakes the callers that share it, also if ask panics.
func (s *Shared) answer(ctx context.Context, q *question, ask func(context.Context) error) (err error) {
	err = errors.New("the request was not sent") // kept if ask panics
	defer func() {
		s.mu.Lock()
		q.err, q.senderLeft = err, ctx.Err() != nil
		if err == nil {
			s.isKnown.Store(true) // under stays, so that a caller that has just found isKnown false does not send again
		} else {
			s.under = nil
		}
		s.mu.Unlock()
		close(q.done)
	}()
	err = ask(ctx)
	return err
}

// readHello reads from the reply to HELLO how to publish, and whether the server is in cluster mode. The
// command is "both" if the reply does not show how to publish, because other clients may use either way.
func readHello(a Answer) (command string, slotted bool, err error) {
	switch {
	case a.Err == nil:
	case !IsReply(a.Err):
		return "", false, a.Err // no answer
	case redis.HasErrorPrefix(a.Err, "unknown command"),
		redis.HasErrorPrefix(a.Err, "wrong number of arguments"):
		// HELLO without arguments came with Redis 6.2, sharded channels with 7.0.
		return "publish", false, nil
	default:
		return "both", false, nil
	}
	hello := Fields(a.Val)
	version, _ := hello["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	mode := hello["mode"]
	slotted = mode == "cluster"
	switch {
	case mode == "standalone" || mode == "sentinel":
		return "publish", false, nil
	case !slotted || err != nil:
		return "both", slotted, nil
	case n < 7:
		return "publish", true, nil
	}
	return "spublish", true, nil
}

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

// Ready finds out what the server is: how to publish, and whether a script may use keys of several
// slots. It is called before the first acquire, so that every release knows.
//
// The server says what it is. The type of the go-redis client does not tell:
// a *redis.ClusterClient may lead to a Sentinel deployment, and a wrapper of any kind to a
// cluster. HELLO needs no permission.
//
// Callers that come together share the answer to one request, and its error: ten thousand of
// them would otherwise wait for as many answers before the first lock is asked for.
func (d *Deployment) Ready(ctx context.Context) error {
	if d.hello.Known() {
		return nil
	}
	return d.hello.Ask(ctx, d, d.greet)
}

// Greet asks the server once more what it is.
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

// Slotted reports whether the server is in cluster mode, as far as is known: then all keys of a
// script are in one slot.
func (d *Deployment) Slotted() bool { return d.slotted.Load() }

// FoundSlots notes that the server has refused a script with keys of several slots, whatever
// HELLO says: a proxy may have answered that.
func (d *Deployment) FoundSlots() { d.slotted.Store(true) }

// Shared is something that a server is asked for until it has answered, by one caller for all who
// want to know it.
type Shared struct {
	known atomic.Bool
	mu    sync.Mutex // guards under
	under *question  // nil: nobody asks
}

// question is a request under way that several wait for.
type question struct {
	done  chan struct{}
	seats int // how many wait for it; guarded by Shared.mu
	// Once done is closed:
	err  error
	left bool // the context of the one that asked has ended
}

// Known reports whether the server has answered.
func (s *Shared) Known() bool { return s.known.Load() }

// Ask returns when the server has answered, or with the error. Only the end of the context of the
// one that asks is not shared: then another one asks.
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
			if q.err != nil && !q.left {
				return q.err
			}
		case <-ctx.Done():
		}
		if d.cfg.Gate != nil {
			d.Gate("ready " + strconv.Itoa(seat)) // all in the same instant otherwise
		}
	}
	return nil
}

// question returns what is under way, or what the caller is to ask: then it is
// the first of those that share it, with the seat 0.
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

// answer asks. Those that share it go on whatever happens here.
func (s *Shared) answer(ctx context.Context, q *question, ask func(context.Context) error) (err error) {
	err = errors.New("nobody has asked") // ask has panicked
	defer func() {
		s.mu.Lock()
		q.err, q.left = err, ctx.Err() != nil
		if err == nil {
			s.known.Store(true) // and remains under way: a caller that has just found it unknown does not ask again
		} else {
			s.under = nil
		}
		s.mu.Unlock()
		close(q.done)
	}()
	err = ask(ctx)
	return err
}

// readHello reads how to publish from the answer to HELLO, and whether the server is in cluster
// mode. The command is "both" if the server does not say what it is: other clients may then use
// either way.
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

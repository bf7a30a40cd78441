package rlock

import (
	"context"
	"errors"
	"iter"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// FoundLock is a lock that [Client.Locks] has found.
type FoundLock struct {
	Name string // without the prefix, as constructors take it
	Type string // as in an Event, as far as the keys show: some types look like a Lock
	// State is the result of the lock's State; for a PermitSemaphore Holders has the holds, for a RedLock one vote.
	State State
}

// Locks finds the locks in Redis that are held, and whose name, without the prefix of the client, matches a
// pattern as in the command SCAN; "" is all. It reads all keys of the database, in batches. A lock that is
// held throughout is found, maybe twice, unless a cluster moves its slot meanwhile. The first error ends
// the iteration; one that is about a lock comes with it. What the ACL user needs:
// https://go-rlock.github.io/rlock/latest/acl/
func (c *Client) Locks(ctx context.Context, pattern string) iter.Seq2[FoundLock, error] {
	return func(yield func(FoundLock, error) bool) {
		fail := func(err error) { yield(FoundLock{}, &Error{Err: err}) }
		if err := c.enter(ctx); err != nil {
			fail(err)
			return
		}
		defer c.endCall()
		if pattern == "" {
			pattern = "*"
		}
		names, err := protocol.ParsePattern(pattern)
		if err != nil {
			fail(invalid("Locks(%.100q): %v", pattern, err))
			return
		}
		nodes, err := c.wire.Masters(ctx, c.cfg.commandTimeout)
		if err != nil {
			fail(err)
			return
		}
		for _, node := range nodes {
			s := protocol.NewSearch(c.cfg.prefix, names)
			for more := true; more; {
				var found []protocol.Found
				if found, more, err = s.Next(ctx, c.wire, node.Client, c.cfg.commandTimeout); err != nil {
					fail(err)
					return
				}
				if !c.yieldHeld(ctx, found, yield) {
					return
				}
			}
		}
	}
}

// yieldHeld inspects locks that were found, and yields the held ones. It reports whether to continue.
func (c *Client) yieldHeld(ctx context.Context, all []protocol.Found, yield func(FoundLock, error) bool) bool {
	looks := make([]func() (State, error), 0, len(all))
	for _, f := range all {
		looks = append(looks, func() (State, error) { return c.inspectFound(ctx, f) })
	}
	for i, r := range wire.Together(c.wire, mostInspected, looks) {
		f := FoundLock{Name: all[i].Name, Type: all[i].Kind.Type, State: r.Value}
		switch {
		case errors.Is(r.Err, ErrForeignKey), errors.Is(r.Err, ErrInvalidArgument):
			continue // the key does not belong to a lock, or no lock can have its name
		case r.Err != nil:
			yield(f, r.Err)
			return false
		case !f.State.Locked():
			continue // not held any more
		case !yield(f, nil):
			return false
		}
	}
	return true
}

// mostInspected is how many locks are inspected in parallel: enough for their requests to share pipelines.
const mostInspected = 32

// inspectFound returns the State of a lock that was found.
func (c *Client) inspectFound(ctx context.Context, f protocol.Found) (State, error) {
	if f.Kind.Open == nil {
		return c.voteFor(ctx, f.Name)
	}
	l, names := newCore(c, f.Kind.Family, f.Name, lockConfig{}, nil)
	if err := l.check(ctx); err != nil {
		return State{}, err
	}
	l.proto = f.Open(&c.site, names)
	if protocol.Takes(l.proto) > 0 {
		if err := l.ready(ctx); err != nil {
			return State{}, err
		}
	}
	return Inspection{l}.State(ctx)
}

// voteFor returns the vote of the server for a RedLock.
func (c *Client) voteFor(ctx context.Context, name string) (State, error) {
	l := c.NewLock(name)
	r, err := ask(ctx, l.core, func() protocol.Request[protocol.State] { return c.site.Vote(&l.names) })
	if err != nil {
		return State{}, err
	}
	return l.stateOf(&r.Outcome), nil
}

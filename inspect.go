package rlock

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-rlock/rlock/internal/protocol"
)

// IsLocked reports whether anybody holds the lock; of a read-write lock, this
// side of it. It costs the same however many do. Its bounds and errors are those of
// State.
func (l *core) IsLocked(ctx context.Context) (bool, error) {
	held, _, err := l.ofHold(ctx, "")
	return held, err
}

// ofHold asks whether the lock is held, and how often a hold has been entered.
func (l *core) ofHold(ctx context.Context, id string) (held bool, entries int, err error) {
	if err := l.check(ctx); err != nil {
		return false, 0, err
	}
	p, err := ask(ctx, l, l.asks.Probe(id))
	return p.Outcome.Held, p.Outcome.Entries, err
}

// State returns who holds the lock, as Redis shows it now. It is bounded by ctx
// and the command time-out. It fails with an error that matches ErrUnreachable,
// if Redis did not answer in time, ctx.Err(), ErrClosed or ErrInvalidArgument
// (the name), or with an error of Redis. The State of a RedLock is unknown while the
// votes that could not be read would decide whether it is held: the error then
// matches ErrNoQuorum too.
func (l *core) State(ctx context.Context) (State, error) {
	if err := l.check(ctx); err != nil {
		return State{Mode: ModeFree}, err
	}
	r, err := ask(ctx, l, l.asks.Inspect())
	if err != nil {
		return State{Mode: ModeFree}, err
	}
	return l.stateOf(&r.Outcome), nil
}

// stateOf is the state that Redis shows, and what this client knows beside it.
func (l *core) stateOf(p *protocol.State) State {
	s := State{Mode: ModeFree, TTL: p.TTL, Token: p.Token, Waiters: p.Waiters}
	if p.Waiters < 0 {
		s.Waiters = l.waiters()
	}
	for _, h := range p.Holders {
		s.Holders = append(s.Holders, Holder(h))
	}
	slices.SortFunc(s.Holders, func(a, b Holder) int {
		if a.Shared != b.Shared {
			if b.Shared {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Owner, b.Owner)
	})
	switch {
	case s.held(exclusive):
		s.Mode = ModeExclusive
		if s.Token == 0 {
			s.Token = l.c.watchdog.tokenOf(s.Holders[0].Owner)
		}
	case s.held(shared):
		s.Mode, s.Token = ModeShared, 0
	default:
		s.Token, s.TTL = 0, 0
	}
	return s
}

// HeldBy returns how often the hold that ctx descends from has been entered,
// according to Redis: 0 if it is gone, or ctx descends from none. The latter costs
// no request, and what it costs does not depend on how many hold the lock. Bounds and
// errors are those of State.
func (l *core) HeldBy(ctx context.Context) (int, error) {
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	h := chainFrom(ctx).held(l, l.side)
	if h == nil {
		return 0, nil
	}
	_, entries, err := l.ofHold(ctx, h.id)
	return entries, err
}

// ForceUnlock frees the lock whoever holds it, and reports whether it was held.
// Of a read-write lock it ends the holds of this side: all readers, or the writer.
// The holder learns of it with its next renewal, as ErrRemoved (or
// ErrTakenOver, if another was quicker); with a fixed lease only when it calls
// Extend or Unlock, or at the end of the lease.
//
// It is bounded by ctx and the command time-out; before the first acquire in a
// cluster, finding out how to publish may take as long again. It fails with an
// error that matches ErrUnreachable, ctx.Err(), ErrClosed or ErrInvalidArgument,
// or with an error of Redis. A request that may have run is not sent again: after
// ErrUnreachable or ctx.Err() it is open whether the lock was freed.
func (l *core) ForceUnlock(ctx context.Context) (bool, error) { return l.force(ctx, "") }

// ForceUnlockIf is ForceUnlock for one hold: it frees the lock only if the
// owner with this id holds it (Lease.Owner, Holder.Owner). The id belongs to
// that hold alone, so a newer one cannot be hit. It is the owner and not the
// fencing token that names the hold, because the shared wire has no place for
// the token.
//
// Bounds and errors are those of ForceUnlock, and ErrInvalidArgument if owner is
// empty. The request may be sent again: if a reply was lost and the repeated
// request finds nothing, the error matches ErrUnreachable, and the outcome is
// unknown.
func (l *core) ForceUnlockIf(ctx context.Context, owner string) (bool, error) {
	if err := l.check(ctx); err != nil {
		return false, err
	}
	if owner == "" {
		return false, l.error(invalid("ForceUnlockIf needs an owner"))
	}
	return l.force(ctx, owner)
}

func (l *core) force(ctx context.Context, owner string) (bool, error) {
	if err := l.check(ctx); err != nil {
		return false, err
	}
	if !l.c.begin() {
		return false, l.error(ErrClosed)
	}
	defer l.c.end()
	if err := l.asks.Ready(ctx); err != nil {
		return false, l.error(err)
	}
	r, err := ask(ctx, l, l.asks.ForceUnlock(owner))
	if err != nil {
		return false, err
	}
	if !r.Outcome && r.Unsure {
		// Another copy of the request may have done it.
		return false, l.error(fmt.Errorf("%w in time, and the repeated request found nothing: the outcome is unknown", ErrUnreachable))
	}
	l.c.lines.wake(l.id)
	return r.Outcome, nil
}

// ask asks something about the lock itself, not about a hold.
func ask[T any](ctx context.Context, l *core, what protocol.Request[T]) (protocol.Result[T], error) {
	if !l.c.begin() {
		return protocol.Result[T]{}, l.error(ErrClosed)
	}
	defer l.c.end()
	r := what.Do(ctx, l.c.cfg.commandTimeout)
	if r.Err != nil {
		return protocol.Result[T]{Unsure: r.Unsure}, l.error(r.Err)
	}
	return r, nil
}

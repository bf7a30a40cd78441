package rlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mode is how a lock is held.
type Mode string

const (
	ModeFree      Mode = "free"
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared" // by readers only
)

// State is what Redis shows of a lock at one moment. By the time it is read it
// may be otherwise. Of a read-write lock it shows both sides.
type State struct {
	Mode    Mode
	Holders []Holder // sorted by owner, a writer before the readers
	// TTL is the rest of the longest lease; -1 if the lock has none, which no
	// client of the protocol leaves behind.
	TTL time.Duration
	// Token is the fencing token of the holder. Types whose place in Redis has no
	// room for it show it only if this client holds the lock; otherwise it is 0,
	// as it is when the lock is free or held by readers. A FencedLock shows its
	// counter, of a holder that raised it: a FencedLock, or any holder of Redisson,
	// because Redis does not tell an RFencedLock from an RLock. It shows 0 if another
	// type of this package holds the name.
	Token int64
	// Waiters is how many wait: in all processes, if Redis keeps the queue
	// (FairLock, FairReadWriteLock, PriorityLock), dead ones that nobody has removed yet
	// among them; otherwise in this client.
	Waiters int
}

// Holder is one owner that holds a lock.
type Holder struct {
	Owner  string
	Count  int  // how often it has entered
	Shared bool // it reads; others may too
}

// Locked reports whether anybody holds the lock.
func (s State) Locked() bool { return len(s.Holders) > 0 }

// held reports whether anybody holds a side of the lock.
func (s State) held(on side) bool {
	return slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Shared == (on == shared) })
}

// IsLocked reports whether anybody holds the lock; of a read-write lock, this
// side of it. It costs the same however many do. Its bounds and errors are those of
// State.
func (l *core) IsLocked(ctx context.Context) (bool, error) {
	held, _, err := l.ofHold(ctx, "")
	return held, err
}

// ofHold asks whether the lock is held, and how often a stay has entered it.
func (l *core) ofHold(ctx context.Context, stay string) (held bool, entries int, err error) {
	if err := l.check(ctx); err != nil {
		return false, 0, err
	}
	a, err := l.ask(ctx, l.probe(stay))
	if err != nil {
		return false, 0, err
	}
	reply, err := a.pair()
	if err != nil {
		return false, 0, l.error(err)
	}
	return reply[0] == 1, int(reply[1]), nil
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
	a, err := l.ask(ctx, l.inspect())
	if err != nil {
		return State{Mode: ModeFree}, err
	}
	return l.stateOf(a)
}

// stateOf reads the answer to inspect.
func (l *core) stateOf(a answer) (State, error) {
	list, ok := a.val.([]any)
	if !ok {
		return State{Mode: ModeFree}, l.error(errReply(a.val))
	}
	s, err := l.state(list)
	if err != nil {
		return State{Mode: ModeFree}, l.error(fmt.Errorf("%w: %w", errReply(a.val), err))
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
		s.Mode, s.Token, s.TTL = ModeFree, 0, 0
	}
	return s, nil
}

func (p plain) state(reply []any) (State, error) {
	s := State{Waiters: p.c.queues.waiting(p.line(""))}
	ttl, token, fields, err := stateReply(reply)
	if err != nil {
		return s, err
	}
	s.TTL, s.Token = ttl, token
	for len(fields) > 0 {
		var h Holder
		if h, fields, err = nextHolder(fields); err != nil {
			return s, err
		}
		s.Holders = append(s.Holders, h)
	}
	return s, nil
}

// stateReply takes apart {pttl, token, field, value, ...}.
func stateReply(reply []any) (ttl time.Duration, token int64, fields []any, err error) {
	if len(reply) < 2 || len(reply)%2 != 0 {
		return 0, 0, nil, fmt.Errorf("%d items", len(reply))
	}
	ms, ok1 := reply[0].(int64)
	token, ok2 := reply[1].(int64)
	if !ok1 || !ok2 {
		return 0, 0, nil, fmt.Errorf("no numbers in front")
	}
	return max(time.Duration(ms)*time.Millisecond, -1), token, reply[2:], nil
}

// nextHolder reads an owner and its count off a list of fields and values.
func nextHolder(fields []any) (h Holder, rest []any, err error) {
	owner, ok1 := fields[0].(string)
	text, ok2 := fields[1].(string)
	if !ok1 || !ok2 {
		return h, nil, fmt.Errorf("no field and value")
	}
	h.Owner = owner
	h.Count, err = strconv.Atoi(text)
	return h, fields[2:], err
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
	_, entries, err := l.ofHold(ctx, h.stay)
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
	if err := l.ready(ctx); err != nil {
		return false, l.error(err)
	}
	a, err := l.ask(ctx, l.forceUnlock(owner))
	if err != nil {
		return false, err
	}
	n, err := a.int()
	if err != nil {
		return false, l.error(err)
	}
	if n == 0 && a.unsure {
		// Another copy of the request may have done it.
		return false, l.error(fmt.Errorf("%w in time, and the repeated request found nothing: the outcome is unknown", ErrUnreachable))
	}
	l.c.queues.wake(l.id)
	return n == 1, nil
}

// ask is call for requests of the lock itself, not of a hold.
func (l *core) ask(ctx context.Context, r *request) (answer, error) {
	if !l.c.begin() {
		return answer{}, l.error(ErrClosed)
	}
	defer l.c.end()
	a := l.c.call(ctx, l.c.cfg.commandTimeout, r)
	if a.err != nil {
		return a, l.error(a.err)
	}
	return a, nil
}

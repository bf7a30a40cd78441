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
)

// State is what Redis shows of a lock at one moment. By the time it is read it
// may be otherwise.
type State struct {
	Mode    Mode
	Holders []Holder // sorted by owner
	// TTL is the rest of the longest lease; -1 if the lock has none, which no
	// client of the protocol leaves behind.
	TTL time.Duration
	// Token is the fencing token, if this client holds the lock; 0 otherwise:
	// on the shared wire there is no place for it.
	Token int64
	// Waiters is how many wait in this client. Waiters of other processes leave
	// no trace in Redis.
	Waiters int
}

// Holder is one owner that holds a lock.
type Holder struct {
	Owner string
	Count int // how often it has entered
}

// Locked reports whether anybody holds the lock.
func (s State) Locked() bool { return len(s.Holders) > 0 }

func (l *core) state(ctx context.Context) (State, error) {
	s := State{Mode: ModeFree, Waiters: l.c.queues.waiting(l.name)}
	a, err := l.ask(ctx, &request{script: l.c.scripts.inspect, keys: []string{l.keys.lock}})
	if err != nil {
		return State{Mode: ModeFree}, err
	}
	list, ok := a.val.([]any)
	if !ok || len(list)%2 != 1 {
		return s, l.error(errReply(a.val))
	}
	ttl, _ := list[0].(int64)
	for f := list[1:]; len(f) > 0; f = f[2:] {
		owner, _ := f[0].(string)
		text, _ := f[1].(string)
		count, err := strconv.Atoi(text)
		if err != nil {
			return s, l.error(errReply(a.val))
		}
		s.Mode = ModeExclusive
		s.Holders = append(s.Holders, Holder{owner, count})
	}
	if !s.Locked() {
		return s, nil
	}
	slices.SortFunc(s.Holders, func(a, b Holder) int { return strings.Compare(a.Owner, b.Owner) })
	s.TTL = max(time.Duration(ttl)*time.Millisecond, -1)
	s.Token = l.c.watchdog.tokenOf(s.Holders[0].Owner)
	return s, nil
}

func (l *core) heldBy(ctx context.Context) (int, error) {
	if l.bad != nil {
		return 0, l.error(l.bad)
	}
	h := ownerFrom(ctx).find(l.c, l.name)
	if h == nil {
		return 0, nil
	}
	s, err := l.state(ctx)
	for _, holder := range s.Holders {
		if holder.Owner == h.stay {
			return holder.Count, nil
		}
	}
	return 0, err
}

func (l *core) forceUnlock(ctx context.Context, owner string) (bool, error) {
	if l.bad != nil {
		return false, l.error(l.bad)
	}
	if !l.c.begin() {
		return false, l.error(ErrClosed)
	}
	defer l.c.end()
	if err := l.c.ready(ctx); err != nil {
		return false, l.error(err)
	}
	a, err := l.ask(ctx, &request{
		script: l.c.scripts.forceUnlock,
		keys:   []string{l.keys.lock},
		args:   []any{owner, l.keys.channel, l.c.publishCommand()},
		single: owner == "",
	})
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
	l.c.queues.wake(l.name)
	return n == 1, nil
}

// ask is call for requests of the lock itself, not of a hold.
func (l *core) ask(ctx context.Context, r *request) (answer, error) {
	if l.bad != nil {
		return answer{}, l.error(l.bad)
	}
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

package rlock

import (
	"context"
	"time"
)

// protocol is what tells the lock types apart: what each asks of Redis. Every
// request may run twice. Replies have one form for all types; an error of the
// form {-1, 0} or {-2, n} changes nothing in Redis.
type protocol interface {
	// newStay makes the id of a stay, of which the number is a part.
	newStay() (id string, number int64)
	// enter asks for the first entry of a stay. The reply is
	//   {1, token}  entered; the token is 0 for a shared hold
	//   {0, rest}   not now; look again within rest ms (-1: there is no telling)
	//   {-1, 0}     the stay was given up: this is a late copy
	//   {-2, 0|1}   the hold under which it was to enter is gone (1: others hold
	//               the lock)
	//   {-3, ms}    the server is in quarantine; see Client.served
	//   {-4, 0}     another type of lock of this name is held, which has other keys
	// With wait, a type that keeps its waiters in Redis adds this one, or keeps
	// its place fresh.
	enter(a *attempt, wait bool) *request
	// reenter makes n the count of a stay's entries: {1, 0} or {-2, 0|1}.
	reenter(stay string, lease time.Duration, n int) *request
	// release leaves n entries: 2. With n = 0 it ends the stay: 1. If there is no
	// such stay the reply is 0, or -1 if others hold the lock.
	release(stay string, n int) *request
	// abandon ends a stay however far it got: entered, waiting or nothing. If
	// copies of its requests may come late, it sees to it that they do nothing.
	// The reply is that of release.
	abandon(stay string, late bool) *request
	// renew makes a stay last for at least lease from now: 1, or as release.
	renew(stay string, lease time.Duration) *request
	// forceUnlock ends all stays, or an owner's only: 1, or 0 if there is none.
	forceUnlock(owner string) *request
	// inspect looks at the lock; state reads its reply.
	inspect() *request
	state(reply []any) (State, error)
	// probe asks whether the lock is held, of a read-write lock this side of it, and
	// how often a stay has entered it: {0|1, n}. The stay may be empty.
	probe(stay string) *request
	// channel is where a waiter hears that it should look. It is empty if there
	// is none.
	channel(stay string) string
}

// plain is the protocol of the lock types whose state is one hash with the
// field of the one stay that holds it.
type plain struct{ *core }

func (p plain) newStay() (string, int64) { return p.c.newStay() }

func (p plain) enter(a *attempt, _ bool) *request {
	return p.take(a, "clock", p.keys.clock)
}

// take is enter with a source of tokens.
func (p plain) take(a *attempt, tokens, key string) *request {
	return &request{
		script: p.script("acquire"),
		keys:   []string{p.keys.lock, key, p.keys.tombstone(a.stay)},
		args:   []any{a.stay, a.opts.lease.Milliseconds(), 1, tokens},
	}
}

func (p plain) reenter(stay string, lease time.Duration, n int) *request {
	return &request{
		script: p.script("acquire"),
		keys:   []string{p.keys.lock},
		args:   []any{stay, lease.Milliseconds(), n},
	}
}

func (p plain) release(stay string, n int) *request {
	return &request{
		script: p.script("release"),
		keys:   []string{p.keys.lock},
		args:   []any{stay, n, p.keys.channel, p.announce()},
		ends:   n == 0,
	}
}

func (p plain) abandon(stay string, late bool) *request {
	return &request{
		script: p.script("abandon"),
		keys:   []string{p.keys.lock, p.keys.tombstone(stay)},
		args:   []any{stay, tombstoneTTL.Milliseconds(), p.keys.channel, p.announce()},
		ends:   true,
	}
}

func (p plain) renew(stay string, lease time.Duration) *request {
	return &request{
		script: p.script("renew"),
		keys:   []string{p.keys.lock},
		args:   []any{stay, lease.Milliseconds()},
		lease:  lease,
	}
}

func (p plain) forceUnlock(owner string) *request {
	return &request{
		script: p.script("force_unlock"),
		keys:   []string{p.keys.lock},
		args:   []any{owner, p.keys.channel, p.announce()},
		single: owner == "",
	}
}

func (p plain) inspect() *request {
	return &request{script: p.script("inspect"), keys: []string{p.keys.lock}}
}

func (p plain) probe(stay string) *request {
	return &request{script: p.script("probe"), keys: []string{p.keys.lock}, args: []any{stay}}
}

func (p plain) channel(string) string { return p.keys.channel }

// announce says how the scripts publish. It is known once the lock is ready.
func (l *core) announce() string {
	if l.silent {
		return "none"
	}
	return l.c.publishCommand()
}

// ready comes before the first request that may publish. A RedLock asks each of its
// nodes by itself: its home may be the one that is away.
func (l *core) ready(ctx context.Context) error {
	if l.silent || l.listen != nil {
		return nil
	}
	return l.c.ready(ctx)
}

package rlock

import (
	"fmt"
	"time"
)

// queued is the protocol of the locks whose queue stands in Redis in a form of
// our own: Redisson has nothing like them. Its holds may be shared, each has an
// expiry of its own, and each waiter a rank, the lowest of which is first.
//
// The rank is the time of arrival less what the waiter's priority is worth in
// time. A waiter keeps it for as long as it gives signs of life, which it does
// by looking. Who may enter follows from the ranks alone: who wants the lock
// for itself, when nobody holds it and nobody is before it; who shares it, when
// nobody has it for itself and nobody before it wants that.
type queued struct {
	*core
	base string // the first of its keys; the others and the channels begin with it
	// other is where the holds of the other such type of this name would end.
	other string
	// worth is what one step of priority is worth, in µs of waiting.
	worth int64
}

// newQueued makes one side of such a lock.
func newQueued(c *Client, what, name string, side side, opts []LockOption, takes ...string) (*core, *queued) {
	l := newCore(c, what, name, opts, takes...)
	l.side, l.placed, l.standing = side, true, true
	other := priorityQueue
	if what == priorityQueue {
		other = fairReadWrite
	}
	q := &queued{core: l, base: suffixed(l.name, "rlock:"+what), other: suffixed(l.name, "rlock:"+other+":ends")}
	l.protocol = q
	return l, q
}

func (q *queued) script(name string) *script { return q.core.script("queued_" + name) }

// state in Redis: see scripts/shared/queued.lua.
func (q *queued) stateKeys(more ...string) []string {
	keys := []string{q.base, q.base + ":ends", q.base + ":queue", q.base + ":queue:shared", q.base + ":alive", q.base + ":line"}
	return append(keys, more...)
}

// holdKeys are those of the state that a hold needs which has been entered. A
// request with more keys fails while a cluster moves their slot if one of them
// does not exist, as the queue mostly does not.
func (q *queued) holdKeys() []string { return q.stateKeys()[:2] }

// tombstone is one for the stay's hold of this side: the other side's may have
// the same id.
func (q *queued) tombstone(stay string) string {
	if q.side == shared {
		stay += ":shared"
	}
	return q.keys.tombstone(stay)
}

func (q *queued) mode() string {
	if q.side == shared {
		return "shared"
	}
	return "exclusive"
}

// turn is what the channel of a waiter begins with.
func (q *queued) turn() string { return q.base + ":turn:" }

func (q *queued) channel(stay string) string { return q.turn() + stay }

func (q *queued) patience() int64 { return q.c.cfg.waiterLease.Milliseconds() }

func (q *queued) newStay() (string, int64) { return q.c.newStay() }

func (q *queued) enter(a *attempt, wait bool) *request {
	var under string
	if a.under != nil {
		under = a.under.stay
	}
	stands := 0
	if wait {
		stands = 1
	}
	return &request{
		script: q.script("enter"),
		keys:   q.stateKeys(q.keys.clock, q.tombstone(a.stay), q.keys.lock, q.other),
		args: []any{
			a.stay, q.mode(), a.opts.lease.Milliseconds(), under, stands, q.patience(), int64(a.opts.priority) * q.worth,
			q.turn(), q.announce(),
		},
	}
}

func (q *queued) reenter(stay string, lease time.Duration, n int) *request {
	return &request{
		script: q.script("reenter"),
		keys:   q.holdKeys(),
		args:   []any{stay, q.mode(), lease.Milliseconds(), n},
	}
}

func (q *queued) release(stay string, n int) *request {
	return &request{
		script: q.script("release"),
		keys:   q.stateKeys(),
		args:   []any{stay, q.mode(), n, q.patience(), q.turn(), q.announce()},
		ends:   n == 0,
	}
}

func (q *queued) abandon(stay string, late bool) *request {
	var keep int64
	if late {
		keep = tombstoneTTL.Milliseconds()
	}
	return &request{
		script: q.script("abandon"),
		keys:   q.stateKeys(q.tombstone(stay)),
		args:   []any{stay, q.mode(), keep, q.patience(), q.turn(), q.announce()},
		ends:   true,
	}
}

func (q *queued) renew(stay string, lease time.Duration) *request {
	return &request{
		script: q.script("renew"),
		keys:   q.holdKeys(),
		args:   []any{stay, q.mode(), lease.Milliseconds()},
		lease:  lease,
	}
}

func (q *queued) forceUnlock(owner string) *request {
	return &request{
		script: q.script("force_unlock"),
		keys:   q.stateKeys(),
		args:   []any{owner, q.mode(), q.patience(), q.turn(), q.announce()},
		single: owner == "",
	}
}

func (q *queued) inspect() *request {
	return &request{script: q.script("inspect"), keys: q.stateKeys()}
}

func (q *queued) probe(stay string) *request {
	return &request{script: q.script("probe"), keys: q.holdKeys(), args: []any{stay, q.mode()}}
}

func (q *queued) state(reply []any) (State, error) {
	var s State
	if len(reply) < 3 || len(reply)%3 != 0 {
		return s, fmt.Errorf("%d items", len(reply))
	}
	var head [3]int64
	for i := range head {
		n, ok := reply[i].(int64)
		if !ok {
			return s, fmt.Errorf("no numbers in front")
		}
		head[i] = n
	}
	s.Waiters, s.TTL, s.Token = int(head[0]), time.Duration(head[1])*time.Millisecond, head[2]
	for rest := reply[3:]; len(rest) > 0; rest = rest[3:] {
		owner, ok1 := rest[0].(string)
		n, ok2 := rest[1].(int64)
		mode, ok3 := rest[2].(string)
		if !ok1 || !ok2 || !ok3 {
			return s, fmt.Errorf("no holder")
		}
		s.Holders = append(s.Holders, Holder{Owner: owner, Count: int(n), Shared: mode == "shared"})
	}
	return s, nil
}

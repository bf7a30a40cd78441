package rlock

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-rlock/rlock/internal/oplock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
)

// chain is what a context descends from: the holds whose leases made it, the
// innermost first, and at its end the owner of WithOwner, if there is one. An
// acquire with the context enters these again; every other lock it enters as a
// new owner. Chains live in contexts and never leave the process: Redis sees the
// id of each hold.
//
// A chain is never changed, so that goroutines that share its end do not see each
// other's holds.
type chain struct {
	hold  *hold  // nil: this is the end, which is the owner's
	up    *chain // of the context that the lease's was made from
	owner *owner // at the end; nil: none
}

// descent is a context that descends from leases, or was cut off from them.
type descent struct {
	context.Context
	chain *chain // what an acquire enters again
	lease *Lease // the innermost; nil: none
}

type descentKey struct{}

func (d *descent) Value(key any) any {
	if _, is := key.(descentKey); is {
		return d
	}
	return d.Context.Value(key)
}

func (d *descent) String() string { return fmt.Sprint(d.Context) + ".rlock" }

// descentOf returns what a context descends from.
func descentOf(ctx context.Context) (*chain, *Lease) {
	if d, _ := ctx.Value(descentKey{}).(*descent); d != nil {
		return d.chain, d.lease
	}
	return nil, nil
}

func chainFrom(ctx context.Context) *chain {
	ch, _ := descentOf(ctx)
	return ch
}

// in returns a context with the chain, and the lease that is the innermost.
func (ch *chain) in(ctx context.Context, innermost *Lease) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	return &descent{ctx, ch, innermost}
}

// WithOwner is for code that cannot pass on the context of a lease; prefer [Lease.Context]. DANGER:
// goroutines below the returned context do not exclude each other, from any lock. All calls with it, or
// with contexts made from it, are one owner, like one thread of Redisson, and re-enter every lock that it
// holds. Locks that ctx descends from exclude it.
func WithOwner(ctx context.Context) context.Context {
	return (&chain{owner: &owner{}}).in(ctx, nil)
}

// WithoutOwner returns a context that descends from no lease and has no owner.
func WithoutOwner(ctx context.Context) context.Context { return (*chain)(nil).in(ctx, nil) }

// with is the chain with one more hold. It leaves out a hold of the chain's owner, which
// is found there, and holds whose leases are all unlocked.
func (ch *chain) with(h *hold) *chain {
	for ch != nil && ch.hold != nil && !ch.hold.entered() {
		ch = ch.up
	}
	own := ch.own()
	if own != nil && h.owned != nil && h.owned.owner == own || ch != nil && ch.hold == h {
		return ch
	}
	return &chain{hold: h, up: ch, owner: own}
}

// find returns the innermost hold of a side of a lock, except the owner's holds.
func (ch *chain) find(l *core, side protocol.Side) *hold {
	for ; ch != nil && ch.hold != nil; ch = ch.up {
		if inner := ch.hold.core; inner.c == l.c && inner.side == side && inner.id() == l.id() && ch.hold.entered() {
			return ch.hold
		}
	}
	return nil
}

// held is find that includes the holds of the owner.
func (ch *chain) held(l *core, side protocol.Side) *hold {
	if h := ch.find(l, side); h != nil {
		return h
	}
	if own := ch.own(); own != nil {
		own.mu.Lock()
		defer own.mu.Unlock()
		if o := own.locks[ownedKey{l.c, l.id()}]; o != nil {
			return o.holds[side]
		}
	}
	return nil
}

// toEnterAgain is advice for a caller that waits for a hold, or several, of its own client. It may have meant to enter
// its own hold again, with a context from outside the lease: then it waits for itself, forever. It cannot be
// distinguished from a caller that waits for another goroutine, maybe with the very same context: an acquire makes no
// context, and goroutines have no ids. So the error of each such caller has the advice, and no log has it.
func (l *core) toEnterAgain(several bool) string {
	writes := l.side == protocol.Exclusive && l.proto.Kind().Sides
	switch {
	case !protocol.Is[protocol.Reentrant](l.proto) || l.opts.nonReentrant || writes && several: // only readers are several
		return ""
	case writes:
		return "; whoever holds it enters again with the context of its lease, unless it is a reader's"
	}
	return "; whoever holds it enters again with the context of its lease"
}

func (ch *chain) own() *owner {
	if ch == nil {
		return nil
	}
	return ch.owner
}

// owner is an owner of WithOwner.
type owner struct {
	mu    sync.Mutex // guards the rest, and fields of owned that say so
	locks map[ownedKey]*owned
}

type ownedKey struct {
	client *Client
	lock   protocol.LockID
}

// owned is a lock that an owner holds, or is about to enter; both sides of a read-write
// lock.
type owned struct {
	owner *owner
	key   ownedKey
	ops   oplock.Lock // for all operations of the owner at the lock, the first entry included
	users int         // guarded by owner.mu: operations under way
	holds [2]*hold    // guarded by owner.mu: by side; changed with ops taken only
	seen  wait.Seen   // guarded by owner.mu: by the latest request
}

// at finds or makes the record of a lock, and counts a user of it.
func (own *owner) at(l *core) *owned {
	own.mu.Lock()
	defer own.mu.Unlock()
	key := ownedKey{l.c, l.id()}
	o := own.locks[key]
	if o == nil {
		o = &owned{owner: own, key: key}
		if own.locks == nil {
			own.locks = map[ownedKey]*owned{}
		}
		own.locks[key] = o
	}
	o.users++
	return o
}

// doneUsing ends what at began.
func (o *owned) doneUsing() {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.users--
	o.dropLocked()
}

// dropLocked forgets a lock that the owner has left.
func (o *owned) dropLocked() {
	if o.users == 0 && o.holds == [2]*hold{} {
		delete(o.owner.locks, o.key)
	}
}

func (o *owned) held(side protocol.Side) *hold {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	return o.holds[side]
}

// setSeen passes what a call has seen to the other calls of its owner, which wait for that call.
func (o *owned) setSeen(s *wait.Seen) {
	if o == nil {
		return
	}
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.seen = *s
}

// lastSeen is for a call that has waited for another call of its owner without success.
func (o *owned) lastSeen() wait.Seen {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	if s := o.seen; s.Err != nil || explains(&s) || !s.Pending.IsZero() {
		return s
	}
	return wait.Seen{Note: wait.Note{Text: oplock.ErrEntering.Error()}}
}

// set records a hold. A hold without an owner needs no record.
func (o *owned) set(h *hold) {
	if o == nil {
		return
	}
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.holds[h.core.side] = h
}

// clear records that all leases of a hold are unlocked. An Unlock that could not wait
// any longer for other operations may find a newer hold there, or none.
func (o *owned) clear(h *hold) {
	if o == nil {
		return
	}
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	if on := h.core.side; o.holds[on] == h {
		o.holds[on] = nil
		o.dropLocked()
	}
}

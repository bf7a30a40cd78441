package rlock

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-rlock/rlock/internal/oplock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
)

// chain has the holds that a context descends from, the innermost first, because
// their leases made the context. At its end it has the owner of WithOwner, if
// there is one. An acquire with the context enters these holds again, and every
// other lock as a new owner. Chains are values of contexts and never leave the
// process: Redis has only the id of each hold.
//
// A chain is never changed, so the holds of one goroutine do not appear in another
// goroutine that shares its end.
type chain struct {
	hold  *hold  // nil at the end of the chain
	up    *chain // chain of the context from which the context of the lease was made
	owner *owner // owner of WithOwner, at the end of the chain; nil without one
}

// descent is a context that descends from leases, or that was separated from them.
type descent struct {
	context.Context
	chain *chain // holds that an acquire enters again
	lease *Lease // innermost lease; nil without one
}

type descentKey struct{}

func (d *descent) Value(key any) any {
	if _, is := key.(descentKey); is {
		return d
	}
	return d.Context.Value(key)
}

func (d *descent) String() string { return fmt.Sprint(d.Context) + ".rlock" }

// descentOf returns the chain and the innermost lease of a context.
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

// in returns a context with the chain and the innermost lease.
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

// with returns the chain with one more hold. It does not add a hold of the chain's owner, because the owner
// already has it, or a hold whose leases are all unlocked.
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

// held is find, and also finds the holds of the owner.
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

// toEnterAgain returns advice for a caller that waits for one or several holds of its own client. The caller may have
// meant to enter its own hold again, but with a context from outside the lease: then it waits for itself, forever. Such
// a caller cannot be distinguished from one that waits for another goroutine, perhaps with the same context, because an
// acquire makes no context, and goroutines have no ids. So the error of each such caller has the advice, and no log has it.
func (l *core) toEnterAgain(several bool) string {
	writes := l.side == protocol.Exclusive && l.proto.Kind().Sides
	switch {
	case !protocol.Is[protocol.Reentrant](l.proto) || l.opts.nonReentrant || writes && several: // several holders are readers
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
	mu    sync.Mutex // guards the rest, and fields of owned whose comments refer to it
	locks map[ownedKey]*owned
}

type ownedKey struct {
	client *Client
	lock   protocol.LockID
}

// owned is the record of a lock that an owner holds, or is about to enter. Both sides of a read-write lock share
// one record.
type owned struct {
	owner  *owner
	key    ownedKey
	ops    oplock.Lock // taken by each operation of the owner at the lock, including the first entry
	users  int         // operations under way; guarded by owner.mu
	holds  [2]*hold    // holds by side; guarded by owner.mu, and changed only while ops is taken
	status wait.Status // result of the latest request; guarded by owner.mu
}

// at returns the record of a lock, which it makes if necessary, and counts a user of it. The user must call doneUsing.
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

// doneUsing ends a use of the record that began with at.
func (o *owned) doneUsing() {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.users--
	o.dropLocked()
}

// dropLocked removes the record if the owner has no hold of the lock, and no operation is under way.
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

// setStatus stores the result of a request, for other calls of the owner, which wait for this call.
func (o *owned) setStatus(s *wait.Status) {
	if o == nil {
		return
	}
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.status = *s
}

// lastStatus returns the stored status to a call that has waited for another call of its owner without success.
func (o *owned) lastStatus() wait.Status {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	if s := o.status; s.Err != nil || explains(&s) || !s.Pending.IsZero() {
		return s
	}
	return wait.Status{Note: wait.Note{Text: oplock.ErrEntering.Error()}}
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

// clear records that all leases of a hold are unlocked. If the Unlock could not wait
// any longer for other operations, the record may have a newer hold, or none.
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

package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Adoption: another process goes on with a hold, whose holder has given it a handle.
//
// In Redis the hold changes its id, in one script: from then on nobody else can enter, and whatever
// the holder before still sends (a renewal, Extend, Unlock, a late copy of any of them) finds no
// hold. But that holder may not know yet, and both would have the same fencing token. So the adopter
// does not begin before the leases of that holder have ended: it asks again until the holder has confirmed that,
// or until the lease that Redis last confirmed to the holder is over, by the clock of the server.
//
// A holder whose handle others have is subscribed to adoptions, and looks each third of a watchdog lease. When it finds
// its hold adopted, its leases end first (ErrAdopted). Then it confirms that, by the tombstone of its hold. Detach
// confirms it in advance. A hold without a handle costs nothing.
//
// An adoption that is given up (its context ends, or Redis does not answer) is undone. The holder has its hold again
// then, if it has not found the adoption yet. If it has left meanwhile, the hold ends.
//
// A hold with a handle is not handed over in its client (see handover.go): the next owner's would have
// the same id, and the handle with it.

// Handle returns a text, fit for a URL, with which another process can go on with this hold: see
// [Client.Adopt]. Whoever has it, and may use Redis, can take the lock from this holder: keep it as a
// secret. It is of no use after the end of the hold. The error matches ErrInvalidArgument for a RedLock,
// MultiLock, Election, Once, PermitSemaphore or DoubleBarrier. If the lease has ended it is that of Err.
func (l *Lease) Handle() (string, error) { return l.handle(true) }

func (l *Lease) handle(listens bool) (string, error) {
	if l.none() {
		return "", errNoLease
	}
	h, _ := l.of.(*hold)
	if h == nil || !h.core.proto.Kind().Adoptable {
		return "", l.error(invalid("holds of this type of lock cannot be adopted"))
	}
	if err := h.exposeHandle(l, listens); err != nil {
		return "", l.error(err)
	}
	return handle{h.core.proto.Kind(), h.id(), h.token, h.core.name()}.String(), nil
}

// Detach ends the lease without freeing the lock: the hold stays in Redis for what is left of its lease,
// for whoever goes on with it by the handle ([Client.Adopt]). The error is as that of Unlock, or of
// Handle: nil only if the hold was there; ErrInvalidArgument, and nothing was done, if the owner has
// entered more than once. After ErrUnconfirmed a hold that was not lost can be adopted.
func (l *Lease) Detach(ctx context.Context) (handle string, err error) {
	handle, err = l.handle(false)
	if err != nil {
		return "", err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	h := l.of.(*hold)
	if n, _ := h.openLeases(); n > 1 {
		return "", l.error(invalid("the owner has entered %d times", n))
	}
	h.lock()
	proto, rest := h.core.proto.(protocol.Adoptable), h.untilLocked().Sub(h.core.c.now())
	h.unlock()
	err = l.endBy(ctx, finish{task: func(id string, _ bool) protocol.Task { return protocol.Detach(proto, id, rest) }})
	switch {
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrUnlocked):
		return "", err
	case err == nil && !l.ends:
		return "", l.error(invalid("the owner has entered again meanwhile; only this lease has ended"))
	}
	return handle, err
}

// Adopt goes on with the hold of a handle ([Lease.Handle]), of this or another process, under the same
// fencing token. The leases of the holder before end with ErrAdopted. Adopt returns when they have, or
// at the end of the lease if that process does not answer. WithWait and ctx bound that. Without
// WithLease the hold is renewed; other options of the lock do not pass on. The error matches
// ErrInvalidArgument for a damaged handle or another prefix; ErrNotAcquired, if the hold has ended, was
// adopted already or cannot be; otherwise it is as that of Lock. After an error this call holds nothing.
// Details: https://go-rlock.github.io/rlock/latest/locks/#adoption
func (c *Client) Adopt(ctx context.Context, handle string, opts ...AcquireOption) (*Lease, error) {
	if !c.made() {
		return nil, &Error{Err: errNoClient}
	}
	of, err := readHandle(handle)
	if err != nil {
		return nil, &Error{Err: err}
	}
	name, ours := strings.CutPrefix(of.name, c.cfg.prefix)
	if !ours {
		return nil, &Error{Lock: of.name, Err: invalid("the lock of the handle has not the prefix of this Client, %.100q", c.cfg.prefix)}
	}
	l, names := newCore(c, of.kind.Family, name, lockConfig{}, nil)
	proto := of.kind.Open(&c.site, names).(protocol.Adoptable)
	l.proto = proto
	if of.kind.Side == protocol.Shared {
		l.side = protocol.Shared
	}
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	a := &adopting{core: l, proto: proto, old: of.id, token: of.token}
	if err := l.begin(ctx, options(l, &a.opts, opts)); err != nil {
		return nil, err
	}
	defer c.end()
	if ctx.Err() != nil {
		return nil, l.error(endOf(ctx))
	}
	ctx, o := l.observe(ctx, 0)
	a.observed = o
	lease, err := a.run(ctx)
	lease.granted(o, AcquireEvent{Attempts: a.tries, Err: err})
	return lease, err
}

// adopting is one Adopt.
type adopting struct {
	core     *core
	proto    protocol.Adoptable
	old      string // id of the hold
	token    int64
	opts     acquireConfig
	observed *observed

	id         protocol.HoldID
	tries      int
	lateCopies bool          // a copy of the request may still arrive
	has        bool          // the hold has got the new id
	until      clock.Instant // when the leases of the holder before have ended for certain, by our clock; or zero
}

func (a *adopting) run(caller context.Context) (*Lease, error) {
	ctx, cancel := a.opts.within(caller)
	defer cancel()
	a.id = a.proto.NewID()
	lease, last, err := a.wait(ctx)
	if err == nil {
		return lease, nil
	}
	a.giveUp()
	last.settle(a.core.c.env.Clock.Now(), true)
	limit := a.opts.limit()
	return nil, a.core.error(interrupted(caller, err, ErrNotAcquired, limit, limit, &last, a.core.c.env.Clock.Now()))
}

// The pauses between two looks whether the holder before has ended.
const (
	firstAdoptionPause   = 2 * time.Millisecond
	longestAdoptionPause = 500 * time.Millisecond
)

var (
	errHoldEnded = errors.New("the hold of the handle has ended, or was adopted already")
	errEntangled = errors.New("the owner of the hold holds the other side of the lock too")
	errStillHeld = errors.New("its holder has not ended yet")
)

// wait asks for the hold until the holder before has ended.
func (a *adopting) wait(ctx context.Context) (lease *Lease, last snapshot, err error) {
	c, pause := a.core.c, firstAdoptionPause
	var failing clock.Instant // since when Redis gives no answer
	var s *clock.Sleeper
	for {
		a.tries++
		sent := c.now()
		r := a.ask(ctx)
		rest := r.Outcome.Rest
		switch verdict := r.Outcome.Verdict; {
		case r.Err != nil:
			if failing == 0 {
				failing = sent
			}
			if a.opts.looksOnce() || !worthRepeating(r.Err) || !c.now().Before(failing.Add(c.cfg.watchdogLease)) {
				return nil, last, r.Err
			}
			last.err = r.Err
			rest = pause
		case r.TooFew != nil:
			return nil, last, because(ErrNotAcquired, r.TooFew)
		case verdict == protocol.Quarantined:
			failing, last = 0, snapshot{err: protocol.InQuarantine{Left: rest}}
			if a.opts.looksOnce() {
				return nil, last, because(ErrNotAcquired, last.err)
			}
		case verdict != protocol.Granted:
			return nil, last, notAdopted(r.Outcome)
		case rest == 0:
			lease, err = a.accept(sent)
			if err != errShortLease || a.opts.looksOnce() {
				return lease, last, err
			}
			rest, last = pause, snapshot{err: err} // it has the hold, and asks for a longer lease
		default:
			failing, last = 0, a.stillHeld(rest)
			if a.opts.looksOnce() {
				return nil, last, because(ErrNotAcquired, errStillHeld)
			}
		}
		if s == nil {
			s = clock.NewSleeper(&c.env)
			defer s.Stop()
		}
		switch s.Sleep(min(rest, pause), nil, nil, ctx.Done(), c.closing) {
		case clock.ByEnd:
			return nil, last, ctx.Err()
		case clock.ByClosing:
			return nil, last, ErrClosed
		}
		pause = min(2*pause, longestAdoptionPause)
	}
}

// notAdopted is why a hold cannot be adopted.
func notAdopted(o protocol.Adoption) error {
	switch o.Verdict {
	case protocol.Entangled:
		return because(ErrNotAcquired, errEntangled)
	case protocol.Withdrawn:
		return errWithdrawn
	}
	if o.TakenOver {
		return because(ErrNotAcquired, fmt.Errorf("%w; another owner has the lock", errHoldEnded))
	}
	return because(ErrNotAcquired, errHoldEnded)
}

// stillHeld notes that the hold is adopted, but that the leases of the holder before may last for rest.
func (a *adopting) stillHeld(rest time.Duration) (s snapshot) {
	c := a.core.c
	a.has = true
	a.until = c.now().Add(rest + c.cfg.driftFloor + time.Duration(float64(rest)*c.cfg.driftFactor))
	s = snapshot{held: true, holderKnown: true, holder: a.old, until: c.env.Clock.Now().Add(rest)}
	a.observed.contends()
	a.observed.noteHolder(&s)
	return s
}

func (a *adopting) ask(ctx context.Context) (r protocol.Result[protocol.Adoption]) {
	c := a.core.c
	if r.Err = a.proto.Ready(ctx); r.Err != nil {
		return r
	}
	r = protocol.Adopt(a.proto, a.id.ID, a.old, a.opts.lease).Do(ctx, c.cfg.commandTimeout)
	a.lateCopies = a.lateCopies || r.Unsure || r.Err != nil && wire.MayHaveRun(r.Err)
	a.has = a.has || r.Err == nil && r.Outcome.Verdict == protocol.Granted
	return r
}

// accept makes a lease of the hold, in answer to a request that was sent at sent.
func (a *adopting) accept(sent clock.Instant) (*Lease, error) {
	c, l := a.core.c, a.core
	c.env.Stop("granted")
	switch {
	case !c.now().Before(sent.Add(l.validity(a.opts.lease))):
		return nil, errShortLease
	case c.isClosing():
		return nil, ErrClosed
	}
	// The tombstone of the hold before stops late copies of its acquire, and copies of this adoption
	// find that hold no more: so nothing can bring this one back.
	h := &hold{core: l, observed: a.observed, number: a.id.Number, token: a.token}
	return h.begin(sent, sent, a.opts), nil
}

// giveUp undoes what the adoption may have done, now or when a copy of its request arrives late.
func (a *adopting) giveUp() {
	if !a.lateCopies && !a.has {
		return
	}
	c := a.core.c
	until := max(a.until, c.now()).Add(a.opts.lease + protocol.TombstoneTTL)
	c.undoThen(a.core.id(), protocol.GiveBack(a.proto, a.id.ID, a.old), until, nil)
}

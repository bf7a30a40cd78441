package rlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/handle"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Adoption: another process continues a hold that its holder has detached, with a handle.
//
// Detach ends the leases in this client, and leaves an offer in Redis: the hash of a secret of 128 random
// bits. Only the handle has the secret. Adopt gives the hold another id, by one script that compares the
// secret. After that no other process can enter, only one of several concurrent Adopts succeeds, and late
// requests of the previous holder (a renewal, a late copy) do not find the hold. Everything that is
// printed about a lock, such as its name, the id of its hold and its token, is not enough to make a handle.
//
// An Adopt that is given up (its context ends, or Redis does not answer) is undone: the hold is offered
// again, to the same handle.

// Detach ends the lease, and leaves the hold in Redis for what is left of it: who has the handle, a text
// fit for a URL, can go on with it ([Client.Adopt]), lengthen it ([Client.Extend]) or end it
// ([Client.Unlock]). Keep the handle as a secret. The error is as from Unlock: nil only if the hold was
// there. It matches ErrInvalidArgument, and nothing was done, for a RedLock, MultiLock, Election, Once,
// PermitSemaphore or DoubleBarrier, or if the owner has entered more than once. After ErrUnconfirmed the
// handle may be valid.
func (l *Lease) Detach(ctx context.Context) (handle string, err error) {
	if l.none() {
		return "", errNoLease
	}
	h := l.hold
	if h == nil || !h.core.proto.Kind().Adoptable {
		return "", l.error(invalid("holds of this type of lock cannot be adopted"))
	}
	n, cause := h.openLeases()
	switch err := l.Err(); {
	case cause != nil:
		return "", l.error(cause)
	case err != nil && !errors.Is(err, ErrClosed): // during a Shutdown the holder keeps the hold until it unlocks
		return "", err
	case n > 1:
		return "", l.error(invalid("the owner has entered %d times", n))
	}
	if ctx == nil {
		ctx = context.Background()
	}
	offer, err := h.newHandle()
	if err != nil {
		return "", l.error(err)
	}
	h.lock()
	rest := h.untilLocked().Sub(h.core.c.now())
	h.unlock()
	rest = max(rest, h.core.c.cfg.watchdogLease+protocol.TombstoneTTL) // a renewal may be under way
	proto := h.core.proto.(protocol.Adoptable)
	err = l.end(ctx, &finish{task: func(id string, _ bool) protocol.Task {
		return protocol.Detach(proto, id, offer.Secret, h.token, rest)
	}})
	switch {
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrUnlocked):
		return "", err
	case err == nil && !l.endsHold:
		return "", l.error(invalid("the owner has entered again meanwhile; only this lease has ended"))
	}
	return offer.String(), err
}

func (h *hold) newHandle() (offer handle.Handle, err error) {
	offer = handle.Handle{Kind: h.core.proto.Kind(), HoldID: h.id(), Name: h.core.name()}
	_, err = io.ReadFull(h.core.c.env.Random, offer.Secret[:])
	return offer, err
}

// detached is the hold of a handle.
type detached struct {
	*core
	proto  protocol.Adoptable
	handle handle.Handle
}

// detached parses a handle, and returns its hold.
func (c *Client) detached(text string) (d detached, err error) {
	if !c.made() {
		return d, &Error{Err: errNoClient}
	}
	d.handle, err = handle.Parse(text)
	if err != nil {
		return d, &Error{Err: invalid("%s", err)}
	}
	name, ours := strings.CutPrefix(d.handle.Name, c.cfg.prefix)
	if !ours {
		return d, &Error{Lock: d.handle.Name, Err: invalid("the lock of the handle has not the prefix of this Client, %.100q", c.cfg.prefix)}
	}
	var names *protocol.Names
	d.core, names = newCore(c, d.handle.Kind.Family, name, lockConfig{}, nil)
	d.proto = d.handle.Kind.Open(&c.site, names).(protocol.Adoptable)
	d.core.proto = d.proto
	if d.handle.Kind.Side == protocol.Shared { // the core must not share the settings of the client's other locks then
		d.side = protocol.Shared
	}
	return d, nil
}

// Adopt goes on with the hold of a handle, under the same token and a lease of its own: renewed, unless
// WithLease. The handle cannot be used again. WithWait and ctx bound the wait for Redis. The error
// matches ErrInvalidArgument for a damaged handle; ErrNotAcquired, if the hold has ended or cannot be adopted;
// otherwise it is as from Lock. After an error this call holds nothing. Details:
// https://go-rlock.github.io/rlock/latest/adoption/
func (c *Client) Adopt(ctx context.Context, handle string, opts ...AcquireOption) (*Lease, error) {
	d, err := c.detached(handle)
	if err != nil {
		return nil, err
	}
	l := d.core
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	a := &adopting{detached: d}
	if err := l.beginCall(ctx, options(l, &a.opts, opts)); err != nil {
		return nil, err
	}
	defer c.endCall()
	if ctx.Err() != nil {
		return nil, l.error(endOf(ctx))
	}
	ctx, o := l.observe(ctx, 0)
	a.observed = o
	lease, err := a.run(ctx)
	lease.granted(o, AcquireEvent{Attempts: a.tries, Err: err})
	return lease, err
}

// Extend makes the detached hold of a handle last for at least d from now; it never shortens it. The error
// matches ErrNotHeld, if the hold has ended or was adopted; ErrInvalidArgument; ErrUnreachable, ctx.Err() or
// ErrRefused: the hold may last longer than before. Then call it again.
func (c *Client) Extend(ctx context.Context, handle string, d time.Duration) error {
	if err := checkLease("Extend", d); err != nil {
		return &Error{Err: err}
	}
	d = wholeMillis(d)
	return c.withDetached(ctx, handle, d, func(ctx context.Context, p protocol.Adoptable, id string) protocol.Result[protocol.Kept] {
		r := p.Renew(id, d).Do(ctx, c.cfg.commandTimeout)
		r.Err = confirmed(&r, ErrUnreachable)
		return r
	})
}

// Unlock frees the lock of a handle. The error is as from Extend, and matches ErrUnconfirmed if Redis did
// not confirm it. Then call it again, until ErrNotHeld.
func (c *Client) Unlock(ctx context.Context, handle string) error {
	return c.withDetached(ctx, handle, 0, func(ctx context.Context, p protocol.Adoptable, id string) protocol.Result[protocol.Kept] {
		// An Abandon also finds a read hold whose lease has run out, and this client does not know its
		// deadline. So a Renew checks first that the hold exists.
		r := p.Renew(id, 0).Do(ctx, c.cfg.commandTimeout)
		if r.Err != nil || r.Outcome != protocol.Done {
			return r
		}
		r = p.Abandon(id, true).Do(ctx, c.cfg.commandTimeout)
		switch {
		case r.Err != nil:
			r.Err = because(ErrUnconfirmed, unanswered(r.Err))
		case r.Outcome != protocol.Done && r.Unsure: // another copy may have freed it
			r.Err = because(ErrUnconfirmed, errHoldEnded)
		}
		return r
	})
}

// withDetached calls do with the current id of the hold of a handle, unless the hold was adopted. If the hold is adopted
// in the meantime, the request of do does not find it. withDetached may lengthen the hold to a lease.
func (c *Client) withDetached(ctx context.Context, handle string, lease time.Duration, do func(ctx context.Context, p protocol.Adoptable, id string) protocol.Result[protocol.Kept]) error {
	d, err := c.detached(handle)
	if err != nil {
		return err
	}
	l := d.core
	if err := l.check(ctx); err != nil {
		return err
	}
	if most := l.longestLease(); most > 0 && lease > most {
		return l.error(invalid("Extend(%v): longer than the longest lease of the lock, %v", lease, most))
	}
	if !c.beginCall() {
		return l.error(ErrClosed)
	}
	defer c.endCall()
	withLock, began := c.events.withSubject(ctx, l), c.env.Clock.Now()
	found := d.find(withLock, lease)
	r := protocol.Result[protocol.Kept]{Outcome: protocol.Removed, Err: found.Err}
	if found.Err == nil && found.Outcome != "" {
		r = do(withLock, d.proto, found.Outcome)
		c.lines.Wake(l.id()) // the lock may be free
	}
	switch {
	case errors.Is(r.Err, ErrUnconfirmed):
		return l.error(r.Err)
	case r.Err != nil:
		return l.error(l.cutShort(ctx, r.Err, began))
	case r.Outcome != protocol.Done:
		return l.error(because(ErrNotHeld, errHoldEnded))
	}
	return nil
}

// find requests the current id of the hold, for a task that may lengthen the hold to a lease.
func (d *detached) find(ctx context.Context, lease time.Duration) (r protocol.Result[string]) {
	if r.Err = d.proto.Ready(ctx); r.Err != nil {
		return r
	}
	return protocol.FindDetached(d.proto, d.handle.HoldID, d.handle.Secret, lease).Do(ctx, d.c.cfg.commandTimeout)
}

// adopting is one Adopt.
type adopting struct {
	detached
	opts     acquireConfig
	observed *observed

	id         protocol.HoldID
	tries      int
	mayHaveRun bool // a request may have run, or may still run
}

func (a *adopting) run(caller context.Context) (*Lease, error) {
	ctx, cancel := a.opts.within(caller)
	defer cancel()
	a.id = a.proto.NewID()
	lease, last, err := a.wait(ctx)
	if err == nil {
		return lease, nil
	}
	if a.mayHaveRun {
		c := a.c
		c.undoThen(a.core.id(), protocol.GiveBack(a.proto, a.id.ID, a.handle.HoldID, a.opts.lease), c.now().Add(a.opts.lease+protocol.TombstoneTTL), nil)
	}
	a.settle(&last, true)
	limit := a.opts.limit()
	return nil, a.error(interrupted(caller, err, ErrNotAcquired, limit, limit, &last, a.c.env.Clock.Now()))
}

// The pauses between two requests.
const (
	firstAdoptionPause   = 2 * time.Millisecond
	longestAdoptionPause = 500 * time.Millisecond
)

var (
	errHoldEnded = errors.New("the hold of the handle has ended, or was adopted already")
	errEntangled = errors.New("the owner of the hold holds the other side of the lock too")
)

// wait requests the hold until Redis replies.
func (a *adopting) wait(ctx context.Context) (lease *Lease, last snapshot, err error) {
	c, pause := a.c, firstAdoptionPause
	var failing clock.Instant // when Redis began not to answer; zero if it answers
	var s *clock.Sleeper
	for {
		a.tries++
		sent := c.now()
		r := a.request(ctx)
		rest := pause
		switch {
		case r.Err != nil:
			if failing == 0 {
				failing = sent
			}
			if a.opts.mustNotWait() || !worthRepeating(r.Err) || !c.now().Before(failing.Add(c.cfg.watchdogLease)) {
				return nil, last, r.Err
			}
			last.Err = r.Err
		case r.TooFew != nil:
			return nil, last, because(ErrNotAcquired, r.TooFew)
		case r.Outcome.Verdict == protocol.Quarantined:
			failing, last, rest = 0, failed(protocol.InQuarantine{Left: r.Outcome.Rest}), r.Outcome.Rest
			if a.opts.mustNotWait() {
				return nil, last, because(ErrNotAcquired, last.Err)
			}
		case r.Outcome.Verdict != protocol.Granted:
			return nil, last, notAdopted(r.Outcome)
		default:
			lease, err = a.accept(sent, r.Outcome.Token)
			if err != errShortLease || a.opts.mustNotWait() {
				return lease, last, err
			}
			last = failed(err) // the hold is adopted, and the next request lengthens its lease
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

// notAdopted returns why a hold cannot be adopted.
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

func (a *adopting) request(ctx context.Context) (r protocol.Result[protocol.Adoption]) {
	if r.Err = a.proto.Ready(ctx); r.Err != nil {
		return r
	}
	r = protocol.Adopt(a.proto, a.id.ID, a.handle.HoldID, a.handle.Secret, a.opts.lease).Do(ctx, a.c.cfg.commandTimeout)
	a.mayHaveRun = a.mayHaveRun || r.Unsure || r.Err != nil && wire.MayHaveRun(r.Err) || r.Err == nil && r.Outcome.Verdict == protocol.Granted
	return r
}

// accept makes a lease of the hold after the reply to a request. sent is when the request was sent.
func (a *adopting) accept(sent clock.Instant, token int64) (*Lease, error) {
	c, l := a.c, a.core
	c.env.Stop("granted")
	switch {
	case !c.now().Before(sent.Add(l.validity(a.opts.lease))):
		return nil, errShortLease
	case c.isClosing():
		return nil, ErrClosed
	}
	if err := l.hasToken(token); err != nil {
		return nil, err
	}
	// The offer is taken, so late copies of this adoption cannot bring the hold back after it has ended.
	h := &hold{core: l, observed: a.observed, number: a.id.Number, token: token}
	return h.start(sent, sent, a.opts), nil
}

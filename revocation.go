package rlock

import (
	"context"
	"slices"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// Revocation: a process that wants a lock asks its holder to give it up (RequestRelease), and the
// holder decides (ReleaseRequested).
//
// A request is a key in Redis for each hold that is meant, named after its id, and a message
// that some holder was asked. The message carries no data: a holder who gets it looks for its
// key. A holder who does not listen costs nothing: no key of its own, no command, no channel.
// The first ReleaseRequested of a hold subscribes and looks for the key. Nothing is missed:
//   - A request that came before the subscription was confirmed, as while the lock was being
//     acquired, has left its key before the poll that follows the confirmation.
//   - The same holds for each time that the subscription is broken and confirmed again.
//   - If messages do not come at all (PUBLISH or SUBSCRIBE is forbidden), the watchdog looks
//     each third of a watchdog lease.
//
// And no holder gets the request for another hold: ids are not used again, so a request that arrives late, or twice,
// or that nobody has received, means nothing to the next hold. Nobody has to remove the key, which expires.
//
// Owners to whom a hold is handed over (see handover.go) share its id: each who listens gets the request. But a hold
// whose holder has got a request is released through Redis, not handed over, so that the client that asked comes
// before other waiters of the holder's client.

// ReleaseRequested returns a channel that is closed when somebody asks for this hold by RequestRelease,
// or has asked before; a nil lease has none. The holder decides. The first call begins to listen. The
// end of the lease does not close the channel: wait for Done too. See
// https://go-rlock.github.io/rlock/latest/using-a-lock/#asking-holders-to-release
func (l *Lease) ReleaseRequested() <-chan struct{} {
	if l.none() {
		return nil
	}
	return l.listenForRequest(nil)
}

// listenForRequest makes the lease listen for requests to release. then, if it is given, is called when a request
// comes, or immediately if one has come.
func (l *Lease) listenForRequest(then func()) <-chan struct{} {
	l.lock()
	on := l.listenersLocked()
	begins := on.request == nil
	if begins {
		on.request = &releaseRequest{done: make(chan struct{})}
	}
	w := on.request
	already := w.received
	if then != nil && !already {
		w.then = append(w.then, then)
	}
	l.unlock()
	if then != nil && already {
		then()
	}
	switch {
	case begins && l.multi != nil:
		l.multi.listen()
	case begins:
		l.hold.listen(l)
	}
	return w.done
}

// notifyRequestLocked closes the channel of a lease after a request, once, unless the lease has ended.
func (l *Lease) notifyRequestLocked() {
	if l.err != nil || l.listeners == nil || l.listeners.request == nil || l.listeners.request.received {
		return
	}
	w := l.listeners.request
	w.received = true
	close(w.done)
	for _, then := range w.then {
		l.guard().cancelLocked(func(error) { then() }, nil) // it locks another guard
	}
	w.then = nil
}

// revocationListener polls the key of a request to release a hold: from time to time, and immediately when there may
// have been a message. The guard of the hold guards it.
type revocationListener struct {
	h     *hold
	next  clock.Instant // when it looks
	found bool          // there was a request
	end   func()        // ends the subscription; nil: there is none
}

// listen begins to listen for requests to release, on behalf of a lease.
func (h *hold) listen(l *Lease) {
	c, requests := h.core.c, protocol.RevocationOf(h.core.proto)
	h.lock()
	h.checkLocked(c.now())
	switch {
	case requests == nil || h.state != held || h.closing:
		h.unlock()
		return
	case h.rareState().revocation != nil:
		if h.releaseRequestedLocked() {
			l.notifyRequestLocked()
		}
		h.unlock()
		return
	}
	e := &revocationListener{h: h}
	h.rareLocked().revocation = e
	h.unlock()
	// It looks even if the subscription fails, and again when it is confirmed.
	e.lookSoon()
	if end := requests.Listen(e.lookSoon); end != nil {
		e.keepSubscription(end)
		return
	}
	c.wire.Go(func() { // it is not known yet how to publish
		if requests.Ready(c.wire.Context()) != nil {
			return
		}
		if end := requests.Listen(e.lookSoon); end != nil {
			e.keepSubscription(end)
		}
	})
}

// releaseRequestedLocked reports whether the holder has got a request to release.
func (h *hold) releaseRequestedLocked() bool {
	e := h.rareState().revocation
	return e != nil && e.found
}

// listensLocked reports whether it is not over.
func (e *revocationListener) listensLocked() bool { return !e.found && e.h.state == held }

// keepSubscription notes how the subscription is ended, or ends it, if it is not needed any more.
func (e *revocationListener) keepSubscription(end func()) {
	e.h.lock()
	if e.listensLocked() {
		e.end, end = end, nil
	}
	e.h.unlock()
	if end != nil {
		end()
	}
}

// lookSoon makes the watchdog poll immediately.
func (e *revocationListener) lookSoon() {
	e.h.lock()
	defer e.h.unlock()
	if e.listensLocked() {
		e.next = e.h.core.c.now()
		e.h.core.c.watchdog.Hurry(&e.h.Entry)
	}
}

// overLocked ends the subscription.
func (e *revocationListener) overLocked() {
	if e.end != nil {
		e.end()
		e.end = nil
	}
}

// nextLocked is when to look; zero: never.
func (e *revocationListener) nextLocked() clock.Instant {
	if !e.listensLocked() {
		return 0
	}
	return e.next
}

// dueLocked returns a poll of the key. A message that comes from now on needs another poll.
func (e *revocationListener) dueLocked(now clock.Instant) protocol.Task {
	e.next = now.Add(e.h.core.c.cfg.watchdogLease / 3)
	return protocol.RevocationOf(e.h.core.proto).Asked(e.h.id())
}

func (e *revocationListener) answeredLocked(now clock.Instant, r protocol.Result[protocol.Kept]) {
	h := e.h
	switch {
	case !e.listensLocked():
	case r.Err != nil:
		e.next = min(e.next, now.Add(h.core.retryAfter()))
		h.tellRetry("asked", r.Err)
	case r.Outcome == protocol.Done:
		e.overLocked()
		e.found = true
		for l := h.leases; l != nil; l = l.next {
			l.notifyRequestLocked()
		}
	}
}

// RequestRelease asks the holders that keep the caller out to release the lock, and reports whether there was
// any to ask. Each holder decides: see [Lease.ReleaseRequested]. After ErrUnreachable, ErrNoQuorum or ctx.Err()
// it is unknown whether anybody was asked. For a [DoubleBarrier] the error matches ErrInvalidArgument. See
// https://go-rlock.github.io/rlock/latest/using-a-lock/#asking-holders-to-release
func (l Inspection) RequestRelease(ctx context.Context) (asked bool, err error) {
	if err := l.check(ctx); err != nil {
		return false, err
	}
	requests := protocol.RevocationOf(l.proto)
	if requests == nil {
		return false, l.error(invalid("its holders cannot be asked to release it"))
	}
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	defer l.c.end()
	began := l.c.env.Clock.Now()
	if err := requests.Ready(ctx); err != nil {
		return false, l.error(l.cutShort(ctx, err, began))
	}
	// First who they are: a request that does not name them could reach the next ones.
	s, err := ask(ctx, l.core, func() protocol.Request[protocol.State] { return l.proto.Inspect() })
	if err != nil {
		return false, err
	}
	var ids []string
	for _, h := range s.Outcome.Holders {
		if l.side == protocol.Exclusive || !h.Shared {
			ids = append(ids, h.HoldID)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids) // a writer that reads has one id for both
	for some := range slices.Chunk(ids, protocol.MostAsked) {
		if _, err := ask(ctx, l.core, func() protocol.Request[bool] { return requests.RequestRelease(some) }); err != nil {
			return false, err
		}
	}
	return len(ids) > 0, nil
}

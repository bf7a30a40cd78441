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
// that a holder was asked. The message carries no data: a holder that gets it polls its
// key. A holder that does not listen costs nothing: no key, no command, no channel.
// The first ReleaseRequested of a hold subscribes and polls the key. No request is missed:
//   - A request that came before the subscription was confirmed, as while the lock was being
//     acquired, has left its key before the poll that follows the confirmation.
//   - The same holds for each time that the subscription is broken and confirmed again.
//   - If no messages are delivered (PUBLISH or SUBSCRIBE is forbidden), the watchdog polls
//     each third of a watchdog lease.
//
// And no holder gets the request for another hold: ids are not used again, so a request that arrives late, or twice,
// or that was not received, has no effect on the next hold. The key expires, so no client has to remove it.
//
// Owners to whom a hold is handed over (see handover.go) share its id: each who listens gets the request. But a hold
// whose holder has received a request is released through Redis, not handed over, so that the client that sent it comes
// before other waiters of the holder's client.

// ReleaseRequested returns a channel that is closed when RequestRelease asks for this hold, or has
// asked for it before; a nil lease has none. The holder decides. The first call begins to listen. The
// end of the lease does not close the channel: wait for Done too. See
// https://go-rlock.github.io/rlock/latest/using-a-lock/#asking-holders-to-release
func (l *Lease) ReleaseRequested() <-chan struct{} {
	if l.none() {
		return nil
	}
	return l.listenForRequest(nil)
}

// listenForRequest makes the lease listen for requests to release. then, unless nil, is called when a request
// is received, or immediately if a request was received before.
func (l *Lease) listenForRequest(then func()) <-chan struct{} {
	l.lock()
	on := l.listenersLocked()
	begins := on.request == nil
	if begins {
		on.request = &releaseRequest{requested: make(chan struct{})}
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
	return w.requested
}

// notifyRequestLocked closes the channel of a lease after a request, once, unless the lease has ended.
func (l *Lease) notifyRequestLocked() {
	if l.err != nil || l.listeners == nil || l.listeners.request == nil || l.listeners.request.received {
		return
	}
	w := l.listeners.request
	w.received = true
	close(w.requested)
	for _, then := range w.then {
		l.guard().cancelLocked(func(error) { then() }, nil) // then locks another guard
	}
	w.then = nil
}

// revocationListener polls the key of a request to release a hold, from time to time, and immediately when a message
// may have come. The guard of the hold guards it.
type revocationListener struct {
	h           *hold
	pollAt      clock.Instant // when the next poll is due
	received    bool          // a request was received
	unsubscribe func()        // ends the subscription; nil if unsubscribed
}

// listen subscribes the hold to requests to release, for a lease.
func (h *hold) listen(l *Lease) {
	c, requests := h.core.c, protocol.RevocationOf(h.core.proto)
	h.lock()
	h.checkLocked(c.now())
	switch {
	case requests == nil || h.state != held || h.isClosing:
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
	// The first poll is sent even if the subscription fails, and another when the subscription is confirmed.
	e.pollSoon()
	if end := requests.Listen(e.pollSoon); end != nil {
		e.keepSubscription(end)
		return
	}
	c.wire.Go(func() { // the publish command is not known yet
		if requests.Ready(c.wire.Context()) != nil {
			return
		}
		if end := requests.Listen(e.pollSoon); end != nil {
			e.keepSubscription(end)
		}
	})
}

// releaseRequestedLocked reports whether the hold has received a request to release.
func (h *hold) releaseRequestedLocked() bool {
	e := h.rareState().revocation
	return e != nil && e.received
}

// isActiveLocked reports whether the listener still polls: the hold lasts, and no request was received.
func (e *revocationListener) isActiveLocked() bool { return !e.received && e.h.state == held }

// keepSubscription stores end, the function that ends the subscription, or calls it if the listener is not active any
// more.
func (e *revocationListener) keepSubscription(end func()) {
	e.h.lock()
	if e.isActiveLocked() {
		e.unsubscribe, end = end, nil
	}
	e.h.unlock()
	if end != nil {
		end()
	}
}

// pollSoon makes the watchdog poll immediately.
func (e *revocationListener) pollSoon() {
	e.h.lock()
	defer e.h.unlock()
	if e.isActiveLocked() {
		e.pollAt = e.h.core.c.now()
		e.h.core.c.watchdog.Hurry(&e.h.Entry)
	}
}

// endLocked ends the subscription.
func (e *revocationListener) endLocked() {
	if e.unsubscribe != nil {
		e.unsubscribe()
		e.unsubscribe = nil
	}
}

// nextLocked returns when the next poll is due; zero for never.
func (e *revocationListener) nextLocked() clock.Instant {
	if !e.isActiveLocked() {
		return 0
	}
	return e.pollAt
}

// dueLocked returns a poll of the key. A message after this call causes another poll.
func (e *revocationListener) dueLocked(now clock.Instant) protocol.Task {
	e.pollAt = now.Add(e.h.core.c.cfg.watchdogLease / 3)
	return protocol.RevocationOf(e.h.core.proto).Asked(e.h.id())
}

func (e *revocationListener) answeredLocked(now clock.Instant, r protocol.Result[protocol.Kept]) {
	h := e.h
	switch {
	case !e.isActiveLocked():
	case r.Err != nil:
		e.pollAt = min(e.pollAt, now.Add(h.core.retryAfter()))
		h.reportRetry("asked", r.Err)
	case r.Outcome == protocol.Done:
		e.endLocked()
		e.received = true
		for l := h.leases; l != nil; l = l.nextOpen {
			l.notifyRequestLocked()
		}
	}
}

// RequestRelease asks the holders that keep the caller out to release the lock, and reports whether there was
// one. Each holder decides: see [Lease.ReleaseRequested]. After ErrUnreachable, ErrNoQuorum or ctx.Err()
// it is unknown whether a holder was asked. For a [DoubleBarrier] the error matches ErrInvalidArgument. See
// https://go-rlock.github.io/rlock/latest/using-a-lock/#asking-holders-to-release
func (l Inspection) RequestRelease(ctx context.Context) (asked bool, err error) {
	if err := l.check(ctx); err != nil {
		return false, err
	}
	requests := protocol.RevocationOf(l.proto)
	if requests == nil {
		return false, l.error(invalid("its holders cannot be asked to release it"))
	}
	if err := l.beginCall(ctx); err != nil {
		return false, err
	}
	defer l.c.endCall()
	began := l.c.env.Clock.Now()
	if err := requests.Ready(ctx); err != nil {
		return false, l.error(l.cutShort(ctx, err, began))
	}
	// First request the ids of the holders: a request to release without ids could reach the next holders.
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
	ids = slices.Compact(ids) // a writer that also reads has one id for both holds
	for some := range slices.Chunk(ids, protocol.MostAsked) {
		if _, err := ask(ctx, l.core, func() protocol.Request[bool] { return requests.RequestRelease(some) }); err != nil {
			return false, err
		}
	}
	return len(ids) > 0, nil
}

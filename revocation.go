package rlock

import (
	"context"
	"slices"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// Revocation: whoever wants a lock asks its holder to give it up (RequestRelease), and the
// holder decides (ReleaseRequested).
//
// A request is a key in Redis for each hold that is meant, named after its id, and a message
// that somebody was asked. The message carries nothing: a holder who gets one looks for its
// key. A holder who does not listen pays nothing: no key of its own, no command, no channel.
// The first ReleaseRequested of a hold subscribes and looks for the key. Nothing is missed:
//   - A request that came before the subscription was confirmed, as while the lock was being
//     acquired, has left its key before the look that follows the confirmation.
//   - The same holds for each time that the subscription is broken and confirmed again.
//   - If messages do not come at all (PUBLISH or SUBSCRIBE is forbidden), the watchdog looks
//     each third of a watchdog lease.
//
// And nothing is heard that does not concern the hold: ids are not used again, so a request
// that arrives late, or twice, or was never heard, means nothing to the next hold. Nobody has
// to remove the key, which expires.
//
// Owners to whom a hold is handed over (see handover.go) share its id: each who listens hears
// the request. But a hold whose holder has heard it is released through Redis, not handed
// over, so that the one who asked comes before the others of that client.

// ReleaseRequested returns a channel that is closed when somebody asks for this hold by RequestRelease,
// or has asked before; a nil lease has none. The holder decides. The first call begins to listen. The
// end of the lease does not close the channel: wait for Done too. See
// https://go-rlock.github.io/rlock/latest/locks/#asking-holders-to-release
func (l *Lease) ReleaseRequested() <-chan struct{} {
	if l.none() {
		return nil
	}
	return l.askedFor(nil)
}

// askedFor makes the lease listen for requests. then, if it is given, is called when it is
// asked for, at once if it was.
func (l *Lease) askedFor(then func()) <-chan struct{} {
	l.of.lock()
	on := l.listenersLocked()
	begins := on.wanted == nil
	if begins {
		on.wanted = &wanted{done: make(chan struct{})}
	}
	w := on.wanted
	already := w.is
	if then != nil && !already {
		w.then = append(w.then, then)
	}
	l.of.unlock()
	if then != nil && already {
		then()
	}
	if begins {
		l.of.listen(l)
	}
	return w.done
}

// tellLocked tells a lease that it is asked for, once, unless it has ended.
func (l *Lease) tellLocked() {
	if l.err != nil || l.listeners == nil || l.listeners.wanted == nil || l.listeners.wanted.is {
		return
	}
	w := l.listeners.wanted
	w.is = true
	close(w.done)
	for _, then := range w.then {
		l.of.cancelLocked(func(error) { then() }, nil) // it locks another guard
	}
	w.then = nil
}

// hears is how a hold hears of requests: it looks for the key. It is guarded as the hold is.
type hears struct{ periodic }

// listen implements holding.
func (h *hold) listen(l *Lease) {
	c, requests := h.core.c, protocol.RevocationOf(h.core.proto)
	h.lock()
	h.checkLocked(c.now())
	switch {
	case requests == nil || h.state != held || h.closing:
		h.unlock()
		return
	case h.hearsLocked() != nil:
		if h.wasAskedLocked() {
			l.tellLocked()
		}
		h.unlock()
		return
	}
	e := &hears{periodic{h: h}}
	h.rareLocked().hears = e
	h.rare.addLocked(e)
	h.unlock()
	// It looks even if the subscription fails, and again when it is confirmed.
	e.looksNow()
	if end := requests.Listen(e.looksNow); end != nil {
		e.hearsBy(end)
		return
	}
	c.wire.Go(func() { // it is not known yet how to publish
		if requests.Ready(c.wire.Context()) != nil {
			return
		}
		if end := requests.Listen(e.looksNow); end != nil {
			e.hearsBy(end)
		}
	})
}

// hearsLocked is how the hold hears of requests; nil: it does not.
func (h *hold) hearsLocked() *hears {
	if h.rare == nil {
		return nil
	}
	e, _ := h.hears.(*hears)
	return e
}

// wasAskedLocked reports whether the holder has heard a request to release.
func (h *hold) wasAskedLocked() bool {
	e := h.hearsLocked()
	return e != nil && e.was
}

// dueLocked is a look for the key. A message that comes from now on calls for another one.
func (e *hears) dueLocked(now clock.Instant) protocol.Task {
	e.next = now.Add(e.h.core.c.cfg.watchdogLease / 3)
	return protocol.RevocationOf(e.h.core.proto).Asked(e.h.id())
}

func (e *hears) answeredLocked(now clock.Instant, r protocol.Result[protocol.Kept]) (gone bool) {
	h := e.h
	switch {
	case !e.listensLocked():
	case r.Err != nil:
		e.next = min(e.next, now.Add(h.core.retryAfter()))
		h.tellRetry("asked", r.Err)
	case r.Outcome == protocol.Done:
		e.overLocked()
		e.was = true
		for l := h.leases; l != nil; l = l.next {
			l.tellLocked()
		}
	}
	return false
}

// RequestRelease asks the holders to release it: see [ReleaseRequester].
func (l *core) RequestRelease(ctx context.Context) (asked bool, err error) {
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
		return false, l.error(cutShort(ctx, err, nil, false, began, l.c.env.Clock.Now()))
	}
	// First who they are: a request that does not name them could reach the next ones.
	s, err := ask(ctx, l, func() protocol.Request[protocol.State] { return l.proto.Inspect() })
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
		if _, err := ask(ctx, l, func() protocol.Request[bool] { return requests.RequestRelease(some) }); err != nil {
			return false, err
		}
	}
	return len(ids) > 0, nil
}

package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// A hand-over passes the lock from one owner to the next inside a client, without Redis:
// lock cohorting (Dice, Marathe, Shavit 2012). What Redis shows is the client's time at the
// lock, under one hold id. What changes hands is the right to it, and each owner gets a
// hold of its own here, with a fencing token of its own. Only a Lock is handed over: where an
// order among clients is promised, Redis says who comes next.
//
// Why no two owners hold the lock:
//   - The lease of the owner before has ended when the next one is told (see beginUnlock).
//   - The next one's deadline is the same: nothing in Redis has changed, so that what
//     Redis promised is all there is. It is renewed like any other hold. A lease that Extend or
//     a re-entry has made longer than its own would be is not handed over, nor one that they may
//     have: if it died, others would wait for that long.
//   - A hold is handed over only while no renewal of it is due or under way. So no answer
//     that concerns the new hold goes to the old one.
//   - Copies of earlier requests under the id that come late do no harm to it: a renewal
//     lengthens the lease, an acquire finds its hold, a release was never sent. The last
//     release leaves a tombstone if any of them may come still.
//   - Its tokens were drawn by the script that began the batch, and each is used once.
//
// A removal by force, or a loss of the server's data, is noticed by the next renewal or
// release, as by any holder. Until then the client may hand the lock over, within the
// bounds of the batch.

// mostInRow is how many releases in a row may grant the lock to a waiter that stands by: see
// internal/wait/handover.go.
const mostInRow = 8

// pass is a hold on its way to its next owner.
type pass struct {
	*batch
	token  int64
	number int64 // of the id
	unsure bool

	inRow int // see rare

	deadline, expires, renewAt, asked clock.Instant
}

// passOn hands the hold to the first waiter of the client, if there is one that sleeps,
// after its last lease has ended. It reports whether it did; otherwise the hold has to be
// released.
func (d *unlocking) passOn() bool {
	h, c := d.h, d.h.core.c
	if d.batch == nil || d.batch.tokens <= 0 || d.task == nil || d.rest > 0 || !d.alone || c.isClosing() {
		return false
	}
	h.lock()
	p := &pass{
		batch: d.batch, number: h.number, unsure: h.unsure,
		deadline: h.deadline, expires: h.expires, renewAt: h.renewAt, asked: h.asked, inRow: h.inRow,
	}
	quiet := h.attempts == 0 && !h.miscounted // the count in Redis is 1
	quiet = quiet && !h.wasAskedLocked()      // others asked for the lock, and this holder heard it
	h.unlock()
	now := c.now()
	own := now.Add(c.cfg.watchdogLease)
	longer := p.expires.After(own) || p.asked.After(own.Add(c.cfg.commandTimeout))
	// Only its holder draws tokens. If nobody takes this one it is never seen.
	if !quiet || longer || !now.Before(p.renewAt) || !now.Before(p.until) || !now.Before(p.deadline) {
		return false
	}
	p.token = p.next()
	return c.lines.Give(h.core.line(""), p, sight{held: true, known: true, holder: d.id, until: c.timeline.Time(p.expires)})
}

// hold makes the hold of the next owner.
func (p *pass) hold(l *core, by *owned, o *observed) *hold {
	if o != nil {
		o.handedOver = true
	}
	return &hold{
		core: l, owned: by, number: p.number, token: p.token, unsure: p.unsure,
		deadline: p.deadline, expires: p.expires, renewAt: p.renewAt,
		rare: &rare{asked: p.asked, batch: p.batch, inRow: p.inRow, observed: o},
	}
}

// letOthers makes this client let the waiters of others go first, if others listen: after a batch,
// or after each release if those who hear of it rush for the lock. They get time for a message and
// a request, which take about as long as the release.
func (d *unlocking) letOthers(heard int, rush bool) {
	h, c := d.h, d.h.core.c
	key := h.core.line("")
	others := c.lines.NoteListeners(key, heard, rush)
	pause := 2 * d.took
	switch {
	case others == 0 || d.batch == nil && !rush:
		return
	case d.next && others == 1 && c.lines.Waiting(key) == 0:
		return // most likely that one has it now
	case d.batch != nil:
		pause = min(pause+time.Millisecond, h.core.opts.handOverBounds().within)
	default:
		pause += protocol.Hesitation(h.core.proto, 0, others > 1)
	}
	c.lines.Yield(key, c.now().Add(pause))
}

// sendTo sends the release. The last one of a hold names the first waiter of this client, if Redis
// keeps their order: see wait.Lines.Offer.
func (d *unlocking) sendTo(ctx context.Context, limit time.Time) protocol.Result[protocol.Kept] {
	l, c := d.h.core, d.h.core.c
	if d.rest > 0 || d.h.unsure || d.by {
		return d.task.Do(ctx, untilOrSoon(limit))
	}
	if next := protocol.StandingOf(l.proto); next != nil {
		if d.next = d.inRow < mostInRow && c.lines.OthersMayStandBy(l.line("")); d.next {
			return next.ReleaseNext(d.id, d.h.token, d.inRow+1).Do(ctx, untilOrSoon(limit))
		}
		return d.task.Do(ctx, untilOrSoon(limit))
	}
	proto := protocol.SuccessionOf(l.proto)
	if proto == nil || c.isClosing() {
		return d.task.Do(ctx, untilOrSoon(limit))
	}
	r, offered := c.lines.Offer(l.id(), func(to protocol.Heir) (sent clock.Instant, r protocol.Result[protocol.Released]) {
		sent = c.now()
		return sent, proto.ReleaseTo(d.id, to).Do(ctx, untilOrSoon(limit))
	})
	if !offered {
		return d.task.Do(ctx, untilOrSoon(limit))
	}
	return protocol.Result[protocol.Kept]{Outcome: r.Outcome.Kept, Err: r.Err, Unsure: r.Unsure, Last: r.Last}
}

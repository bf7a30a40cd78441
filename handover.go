package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/wire"
)

// A hand-over passes the lock from one owner to the next inside a client, without Redis: lock cohorting (Dice, Marathe,
// Shavit 2012). Redis shows one hold id for all these owners. In this process each owner gets a separate hold, with a
// separate fencing token. Only a Lock is handed over: it promises no order among clients, and its tokens can be drawn
// ahead.
//
// Why no two owners hold the lock:
//   - The lease of the previous owner has ended when the next one is notified (see beginUnlock).
//   - The next owner's deadline is the same, as the lease in Redis has not changed. It is renewed like any other
//     hold. If Extend or a re-entry has made the lease longer than a watchdog lease, or may have, the hold is not
//     handed over: if the next owner died, others would wait for that long.
//   - A hold is handed over only while no renewal of it is due or under way. So the old hold gets no answer
//     that concerns the new one.
//   - Late copies of earlier requests with the id do no harm: a renewal lengthens the lease, an acquire finds its
//     hold, a release was never sent. The last release leaves a tombstone if a copy of the acquire may still arrive.
//   - The script that began the batch drew its tokens, and each is used at most once.
//
// The next renewal or release detects a removal by force, or a loss of the server's data, as for any hold. Until then the
// client may hand the lock over, within the bounds of the batch.

// handOver is a hold on its way to its next owner.
type handOver struct {
	*batch
	token      int64
	number     int64 // number in the id
	lateCopies bool  // this and the fields below are as in hold and rare

	inRow int

	deadline, expires, renewAt, requestedEnd clock.Instant
}

// handOver hands the hold over to the first waiter of the client if that waiter sleeps. The last lease of the hold has
// ended. If handOver returns false, the hold has to be released.
func (d *unlocking) handOver() bool {
	h, c := d.h, d.h.core.c
	if d.batch == nil || d.batch.tokens <= 0 || d.task == nil || d.rest > 0 || d.isFinish || !d.isAlone || c.isClosing() {
		return false
	}
	h.lock()
	r := h.rareState()
	p := &handOver{
		batch: d.batch, number: h.number, lateCopies: h.lateCopies,
		deadline: h.deadline, expires: h.expires, renewAt: h.renewAt, requestedEnd: r.requestedEnd, inRow: r.inRow,
	}
	ready := h.attempts == 0 && !r.mayBeMiscounted // no renewal is under way, and the count in Redis is 1
	ready = ready && !h.releaseRequestedLocked()   // a client that requested the release comes first
	h.unlock()
	now := c.now()
	own := now.Add(c.cfg.watchdogLease)
	longer := p.expires.After(own) || p.requestedEnd.After(own.Add(c.cfg.commandTimeout))
	// Only the holder draws tokens. If no waiter takes the hold, this token is never used.
	if !ready || longer || !now.Before(p.renewAt) || !now.Before(p.until) || !now.Before(p.deadline) {
		return false
	}
	p.token = p.nextToken()
	return c.lines.Give(h.core.line(""), p, ownStatus(d.id, c.timeline.Time(p.expires)))
}

// hold makes the hold of the next owner.
func (p *handOver) hold(l *core, by *owned, o *observed) *hold {
	if o != nil {
		o.handedOver = true
	}
	return &hold{
		core: l, owned: by, observed: o, number: p.number, token: p.token, lateCopies: p.lateCopies,
		deadline: p.deadline, expires: p.expires, renewAt: p.renewAt,
		rare: &rare{requestedEnd: p.requestedEnd, batch: p.batch, inRow: p.inRow},
	}
}

// yieldToOthers makes this client let waiters of other clients go first, if some are subscribed: after a batch, or after
// each release if its message makes all waiters poll (rush). They get time for a message and a request, which take about
// as long as the release. listeners is the number of connections that received the message.
func (d *unlocking) yieldToOthers(listeners int, rush bool) {
	h, c := d.h, d.h.core.c
	key := h.core.line("")
	others := c.lines.NoteListeners(key, listeners, rush)
	pause := 2 * d.took
	switch {
	case others == 0 || d.batch == nil && !rush:
		return
	case d.grantsNext && others == 1 && c.lines.Waiting(key) == 0:
		return // the release has most likely granted the lock to the one other client
	case d.batch != nil:
		pause = min(pause+time.Millisecond, h.core.opts.handOverBounds().within)
	default:
		pause += protocol.Hesitation(h.core.proto, 0, others > 1)
	}
	c.lines.Yield(key, c.now().Add(pause))
}

// preferWorker returns ctx for a request about a lock. If more than n callers of this client wait for the lock, a worker
// sends the request: most of the time these callers hand the lock over to each other, and the request then holds up fewer
// of them. With 8 callers in each of 4 processes there were a tenth fewer hand-overs without the worker.
func (c *Client) preferWorker(ctx context.Context, line wait.Key, n int) context.Context {
	if c.lines.Waiting(line) > n {
		return wire.ByWorker(ctx)
	}
	return ctx
}

// sendTo sends the release. The last release of a hold may grant the lock to a waiter of another client: see standby.go.
// Any other release only wakes the waiters, or the first one if Redis keeps their order.
func (d *unlocking) sendTo(ctx context.Context, limit time.Time) protocol.Result[protocol.Kept] {
	task := d.task
	if d.rest == 0 && !d.h.lateCopies && !d.isFinish {
		task = d.releaseTask()
	}
	return task.Do(d.h.core.c.preferWorker(ctx, d.h.core.line(""), 0), untilOrSoon(limit))
}

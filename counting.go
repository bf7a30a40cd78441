package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// changeOnce runs a request that changes something once, and returns its outcome. If there is
// none, undo is sent, and repeated, until Redis confirms it: it undoes the change, or at
// least stops late copies.
func changeOnce[T any](ctx context.Context, l *core, request func(protocol.Op) protocol.Request[T], undo func(protocol.Op) protocol.Task) (T, error) {
	var none T
	c := l.c
	if !c.begin() {
		return none, l.error(ErrClosed)
	}
	defer c.end()
	began := c.env.Clock.Now()
	if err := c.wire.Ready(ctx); err != nil {
		return none, l.error(cutShort(ctx, err, nil, false, began, c.env.Clock.Now()))
	}
	p := c.pages.Take(c.id)
	op := p.Next()
	r := request(op).Do(c.events.about(ctx, l), c.onceTimeout())
	if r.Err == nil {
		c.pages.Give(p)
		c.lines.wake(l.id())
		return r.Outcome, nil
	}
	c.forget(l.id(), p, r.Unsure || wire.MayHaveRun(r.Err), func() protocol.Task { return undo(op) })
	return none, l.error(refusedCount(cutShort(ctx, r.Err, r.Last, false, began, c.env.Clock.Now())))
}

// onceTimeout is for how long copies of one operation may be sent: no copy may come when the
// record of the first is gone.
func (c *Client) onceTimeout() time.Duration {
	return min(c.cfg.commandTimeout, protocol.RecordTTL-protocol.TombstoneTTL)
}

// refusedCount is the error of a request that has failed.
func refusedCount(err error) error {
	if errors.Is(err, protocol.ErrOverflow) {
		return because(ErrInvalidArgument, err)
	}
	return err
}

// surely runs a request that changes something once and must do so even if ctx has ended:
// without an answer it is repeated in the background, until Redis confirms it. If it is
// refused, or there was nothing to change, seal stops late copies.
func surely(ctx context.Context, l *core, request, seal func(protocol.Op) protocol.Task) error {
	c := l.c
	c.calls.Add(1) // also while the client shuts down, as Unlock
	defer c.end()
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	limit := time.Now().Add(c.cfg.unlockTimeout)
	if !c.wire.PublishKnown() {
		asking, cancel := context.WithTimeout(ctx, c.cfg.unlockTimeout/2)
		_ = c.wire.Ready(asking) // otherwise it is published both ways
		cancel()
	}
	p := c.pages.Take(c.id)
	op := p.Next()
	t := request(op)
	r := t.Do(c.events.about(ctx, l), untilOrSoon(limit))
	switch {
	case errors.Is(r.Err, protocol.ErrOverflow), errors.Is(r.Err, ErrForeignKey):
		c.forget(l.id(), p, r.Unsure, func() protocol.Task { return seal(op) })
		return l.error(refusedCount(r.Err))
	case r.Err != nil:
		// No copy may be sent when the record of the first is gone.
		c.cleanUp(l.id(), t, c.now(), c.now().Add(protocol.RecordTTL-protocol.TombstoneTTL), func() { c.pages.Give(p) })
		return l.error(because(ErrUnconfirmed, unanswered(r.Err)))
	case r.Outcome != protocol.Done && r.Unsure:
		c.cleanUp(l.id(), seal(op), c.now(), c.now().Add(protocol.TombstoneTTL), func() { c.pages.Give(p) })
	default:
		c.pages.Give(p)
	}
	c.lines.wake(l.id())
	return nil
}

// untilZero waits until what is asked for is 0 or less, for all of a client at once. The
// text says what is left; see said.
func untilZero(ctx context.Context, l *core, opts []WaitOption, ask func() protocol.Request[int64], listen func(notify func()) (end func()), text string) error {
	o, err := waitOptions(opts)
	if err != nil {
		return l.error(err)
	}
	c := l.c
	if !c.begin() {
		return l.error(ErrClosed)
	}
	defer c.end()
	w := &zero{ask: ask, hear: listen, text: text}
	w.inquire(c, l.id(), w)
	w.wait, w.limit, w.forAll = !o.looksOnce(), o.wait, true
	return w.untilFound(ctx, l, &o)
}

// untilFound runs an inquiry that waits for something that is not acquired.
func (q *inquiry) untilFound(ctx context.Context, l *core, o *acquireConfig) (err error) {
	ctx, q.observed = l.observe(ctx, 0)
	within, cancel := o.within(ctx)
	defer cancel()
	if err = q.run(ctx, within); err != nil {
		err = l.error(err)
	}
	q.observed.end(AcquireEvent{Attempts: q.tries, Err: err})
	return err
}

// zero is the seeker of untilZero.
type zero struct {
	inquiry
	ask  func() protocol.Request[int64]
	hear func(notify func()) (end func())
	text string
}

func (w *zero) look(ctx context.Context) found {
	if err := w.c.wire.Ready(ctx); err != nil {
		return found{err: err}
	}
	r := w.ask().Do(ctx, w.c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return found{err: r.Err, last: r.Last}
	case r.Outcome <= 0:
		return found{done: true}
	}
	return found{rest: -1, said: said{w.text, r.Outcome}}
}

func (w *zero) giveUp() bool                      { return false }
func (w *zero) listen(notify func()) (end func()) { return w.hear(notify) }

package wire

import (
	"context"
	"errors"
	"time"
)

// copies is how many copies of a request may be under way at once. The second
// goes out when half of the budget is spent: earlier, or more of them, would
// multiply the load of a server that is merely slow.
const copies = 2

var errLate = errors.New("no reply yet")

// Do runs a request until it is answered, ctx ends, or the budget and the time for
// replicas are spent. Then it returns, even if go-redis does not: canceling a context
// does not interrupt go-redis's I/O, and its read time-out may be longer or off. Copies
// that are still under way end with go-redis's time-outs; Answer.Unsure tells the caller
// of them.
//
// If a reply is late, a second copy is sent while the first may still be answered: every
// script may run twice. After errors that mean "not now" or "not here" the request is sent
// again until the budget is spent.
func (d *Deployment) Do(ctx context.Context, budget time.Duration, r *Request) Answer {
	if err := ctx.Err(); err != nil {
		return Answer{Err: err}
	}
	// Waiting for replicas is not a delay of the reply.
	patience := budget / copies
	if r.Acks > 0 {
		budget += r.Within
		patience += r.Within
	}
	opCtx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()

	answers := make(chan Answer, copies) // never full: no more are under way
	launch := func() {
		d.Go(func() { answers <- d.send(opCtx, r) })
	}
	launch()
	waiting, sent := 1, 1 // copies not yet answered; copies that may have run or may run yet
	pause := 10 * time.Millisecond
	late := time.NewTimer(patience)
	defer late.Stop()
	var last error
	var absent *Answer // a copy found the work done, and others are still under way
	answered := 0
	for {
		select {
		case a := <-answers:
			waiting--
			if a.Err == nil && r.OneEffect && a.Val != int64(1) {
				answered++
				a = a.after(absent)
				if waiting > 0 {
					absent = &a
					continue
				}
				a.Unsure = sent > answered
				return a
			}
			if a.Err == nil || !Transient(a.Err) {
				a.Unsure = sent > 1 || a.Err != nil && Panicked(a.Err)
				return a
			}
			last = a.Err
			if NotExecuted(a.Err) {
				sent--
			}
			if absent != nil && waiting == 0 {
				absent.Unsure = sent > answered
				return *absent
			}
			if r.NoResend && !NotExecuted(a.Err) {
				return Answer{Err: Because(ErrUnreachable, a.Err), Unsure: true}
			}
			if r.FailFast && NotExecuted(a.Err) {
				if waiting > 0 {
					continue
				}
				return Answer{Err: Because(ErrUnreachable, a.Err), Unsure: sent > 0}
			}
			d.cfg.Events.Retried(r.Name(), a.Err)
			d.RefreshTopology()
			late.Reset(pause)
			pause = min(2*pause, 200*time.Millisecond)
		case <-late.C:
			if waiting > 0 {
				if r.NoResend || absent != nil {
					continue
				}
				d.cfg.Events.Retried(r.Name(), errLate)
				// Perhaps the node hangs and its replica has taken over.
				d.RefreshTopology()
			}
			launch()
			waiting++
			sent++
			if waiting < copies { // otherwise one of them has to be answered or fail first
				late.Reset(patience)
			}
		case <-opCtx.Done():
			select {
			case a := <-answers: // it came at the last moment, or while the process was stopped
				if a.Err == nil {
					a = a.after(absent)
					a.Unsure = sent > 1
					return a
				}
			default:
			}
			if absent != nil {
				absent.Unsure = true
				return *absent
			}
			if err := ctx.Err(); err != nil {
				return Answer{Err: err, Unsure: sent > 0, Last: last}
			}
			return Answer{Err: NoAnswer(budget, last), Unsure: sent > 0}
		}
	}
}

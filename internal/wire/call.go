package wire

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// copies is how many copies of a request may be under way at once. The second
// goes out when half of the budget is spent: earlier, or more of them, would
// multiply the load of a server that is merely slow.
const copies = 2

var (
	errLate = errors.New("no reply yet")
	errTick = errors.New("the timer has fired") // not an answer
)

// call is a Do under way. It is used again when all its copies were answered: then nobody
// else has it.
type call struct {
	answers chan Answer   // has room for all copies under way, and for the ticks of the timer
	over    chan struct{} // closed if Do returns while a copy is under way
	timer   *time.Timer   // a channel of its own would make each wait dearer
	armed   time.Time     // when the timer fires, unless its tick is in answers; zero: neither

	d        *Deployment
	r        *Request
	first    *firstCopy      // nil: none was under way before
	ctx      context.Context // the caller's
	began    time.Time
	deadline time.Time
	heard    time.Time // when a copy failed last
	late     time.Time // when the next copy is due; zero: it is not
	patience time.Duration
	glance   time.Duration // how often it looks whether a copy still waits for a worker
	held     job           // such a copy; see combiner
	in       *combiner     // where copies wait; nil: nowhere
	queued   bool          // it waits still; guarded by combiner.mu, as is the next
	begun    time.Time     // when a worker took the copy that waited; zero: none has
	withdrew bool          // a copy was withdrawn: its job may be in a queue for a while
	waiting  int           // copies not yet answered
	sent     int           // copies that may have run or may run yet
	taken    [copies]bool  // the slots of those that are not answered

	// Of the copy in each slot, when a worker has begun with it; grounded: it may not begin.
	flights [copies]atomic.Pointer[flight]
}

// newCall returns a call at rest.
func newCall() *call {
	// There is one tick at a time; two if the timer fires just before it is set again, and the
	// process is stopped then. A worker must not wait for room: nobody may take answers any more.
	c := &call{answers: make(chan Answer, copies+2), over: make(chan struct{})}
	c.timer = time.AfterFunc(time.Hour, func() {
		select {
		case c.answers <- Answer{Err: errTick}:
		default: // an earlier tick is there
		}
	})
	c.timer.Stop()
	return c
}

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
	return d.doAfter(ctx, budget, r, nil)
}

// doAfter is Do; first, unless it is nil, is a copy that is under way already.
func (d *Deployment) doAfter(ctx context.Context, budget time.Duration, r *Request, first *firstCopy) Answer {
	if err := ctx.Err(); err != nil {
		return Answer{Err: err}
	}
	c := d.spare.call()
	c.d, c.r, c.first, c.ctx = d, r, first, ctx
	a := c.do(budget)
	if c.waiting > 0 {
		close(c.over) // go-redis sends no copy now that it has not sent yet
	}
	if c.waiting > 0 || c.withdrew {
		c.timer.Stop()
		return a
	}
	c.d, c.r, c.first, c.ctx, c.in = nil, nil, nil, nil, nil
	d.spare.rest(c)
	return a
}

// launch sends a copy, or has it wait for a worker. It does not wait if another copy is under
// way: workers that hang may be why that has no answer.
func (c *call) launch(now time.Time) {
	d := c.d
	c.waiting++
	c.sent++
	d.sending.Add(1)
	j := job{call: c, r: c.r, end: d.work(), slot: c.slot()}
	c.late = time.Time{}
	if c.waiting < copies { // otherwise one of them has to be answered or fail first
		c.late = now.Add(c.patience)
	}
	if c.waiting == 1 && c.first == nil {
		if j.combiner = d.combinerOf(c.r); j.combiner != nil {
			c.in = j.combiner
			var at bool
			if j.term, at = j.combiner.admit(j, now); !at {
				c.held = j
				c.late = now.Add(c.glance)
				return
			}
		}
	}
	d.perform(j)
}

// slot takes a slot for a copy. There is one: no more copies than slots are under way.
func (c *call) slot() uint8 {
	i := slices.Index(c.taken[:], false)
	c.taken[i] = true
	c.flights[i].Store(nil)
	return uint8(i)
}

// begins notes that a worker begins with a copy, and reports whether it may. If another copy is
// under way that takes the place of the first, it counts as sent.
func (c *call) begins(j job, f *flight) bool {
	if c.first != nil && !c.first.taken.Load() {
		f.leave()
	}
	return c.flights[j.slot].CompareAndSwap(nil, f)
}

// recall withdraws the copies that have not left the process yet.
func (c *call) recall() {
	for i, taken := range c.taken {
		if taken {
			if f := c.flights[i].Swap(grounded); f == nil || f.withdraw() {
				c.sent--
			}
		}
	}
}

// withdraw takes back the copy that waits for a worker: it was never sent. It reports whether
// there was one.
func (c *call) withdraw() bool {
	j := c.held
	c.held = job{}
	if j.combiner == nil || !j.combiner.withdraw(j) {
		return false
	}
	c.withdrew, c.taken[j.slot] = true, false
	c.waiting--
	c.sent--
	c.d.ended(j)
	return true
}

// look is called when the copy that waits for a worker has waited for a while.
func (c *call) look(now time.Time) {
	if c.held.combiner.relieve(c.held, c.glance) {
		c.late = now.Add(c.glance)
		return
	}
	c.held = job{} // it was taken
	c.late = now.Add(c.patience)
}

// next is whatever comes first: the time for another copy, or the deadline.
func (c *call) next() time.Time {
	if !c.late.IsZero() && c.late.Before(c.deadline) {
		return c.late
	}
	return c.deadline
}

// arm has the timer fire at the next time, or before. It is left as it was armed for an earlier
// request: to set and to stop it for each costs more than a tick too early once in a while.
func (c *call) arm(now time.Time) {
	if next := c.next(); c.armed.IsZero() || c.armed.After(next) {
		c.armed = next
		c.timer.Reset(next.Sub(now))
	}
}

// limit is when nobody waits for the answer any more.
func (c *call) limit() time.Time {
	if at, ok := c.ctx.Deadline(); ok && at.Before(c.deadline) {
		return at
	}
	return c.deadline
}

// isLate reports, when the timer has fired, whether another copy is due; if not, the
// deadline has passed.
func (c *call) isLate(now time.Time) bool {
	return now.Before(c.deadline) && !c.late.IsZero() && !now.Before(c.late)
}

func (c *call) do(budget time.Duration) Answer {
	d, r, ctx := c.d, c.r, c.ctx
	// Waiting for replicas is not a delay of the reply.
	patience := budget / copies
	if r.Acked {
		budget += d.cfg.AckTimeout
		patience += d.cfg.AckTimeout
	}
	now := time.Now()
	c.began, c.deadline = now, now.Add(budget)
	c.patience, c.glance = patience, budget/stuckPart
	c.waiting, c.sent, c.taken, c.in, c.begun = 0, 0, [copies]bool{}, nil, time.Time{}
	c.launch(now)
	c.arm(now)
	pause := 10 * time.Millisecond
	var last error
	var absent *Answer // a copy found the work done, and others are still under way
	answered := 0
	for {
		var a Answer
		select {
		case a = <-c.answers:
		case <-ctx.Done():
			return c.leave(budget, last, absent)
		}
		if a.Err == errTick {
			if !c.tick(absent) {
				return c.leave(budget, last, absent)
			}
			continue
		}
		c.waiting--
		c.taken[a.slot] = false
		c.held = job{}
		if a.Err == nil && r.OneEffect && !a.didIt() {
			answered++
			a = a.after(absent)
			if c.waiting > 0 {
				found := a // only this one is allocated
				absent = &found
				continue
			}
			a.Unsure = c.sent > answered
			return a
		}
		if a.Err == nil || !Transient(a.Err) {
			c.recall()
			a.Err = Refused(a.Err)
			a.Unsure = a.Unsure || c.sent > 1 || a.Err != nil && Panicked(a.Err)
			return a
		}
		last, c.heard = a.Err, time.Now()
		ran := a.Unsure || !a.unsent && !NotExecuted(a.Err)
		if !ran {
			c.sent--
		}
		if absent != nil && c.waiting == 0 {
			absent.Unsure = c.sent > answered
			return *absent
		}
		if r.NoResend && ran {
			return Answer{Err: Failure(a.Err), Unsure: true}
		}
		if !ran && (r.FailFast || !r.OneEffect && d.barred(&a)) { // the end of a hold is worth its whole time
			if c.waiting > 0 {
				continue
			}
			return Answer{Err: Failure(a.Err), Unsure: c.sent > 0}
		}
		d.cfg.Events.Retried(ctx, r.Name(), a.Err)
		d.RefreshTopology()
		now := time.Now()
		c.late = now.Add(pause)
		c.arm(now)
		pause = min(2*pause, 200*time.Millisecond)
	}
}

// tick is called when the timer has fired. It reports whether to wait on: the deadline has not
// passed, and a copy is under way or is sent now. absent: a copy found the work done.
func (c *call) tick(absent *Answer) bool {
	now := time.Now()
	c.armed = time.Time{}
	switch {
	case now.Before(c.next()): // it was armed for an earlier request
	case !c.isLate(now):
		return false
	case c.held.combiner != nil:
		c.look(now)
	case c.first != nil && !c.first.wanted():
		if c.waiting == 0 {
			return false
		}
		c.late = time.Time{}
	case c.waiting > 0 && (c.r.NoResend || absent != nil):
		c.late = time.Time{}
	default:
		if c.waiting > 0 {
			c.d.cfg.Events.Retried(c.ctx, c.r.Name(), errLate)
			// Perhaps the node hangs and its replica has taken over.
			c.d.RefreshTopology()
		}
		c.launch(now)
	}
	c.arm(now)
	return true
}

// leave is the answer of a call whose context has ended, or whose time is over.
func (c *call) leave(budget time.Duration, last error, absent *Answer) Answer {
	c.withdraw()
	select {
	case a := <-c.answers: // it came at the last moment, or while the process was stopped
		if a.Err == errTick {
			c.armed = time.Time{}
			return c.leave(budget, last, absent)
		}
		c.waiting--
		c.taken[a.slot] = false
		if a.Err == nil {
			c.recall()
			a = a.after(absent)
			a.Unsure = c.sent > 1
			return a
		}
		if a.unsent {
			c.sent--
		}
	default:
	}
	c.recall()
	if absent != nil {
		absent.Unsure = true
		return *absent
	}
	if IsReply(last) && c.waiting > 0 && time.Since(c.heard) > c.patience {
		last = nil // it has answered before, and does no more
	}
	waited := time.Since(c.began)
	local := last == nil && c.sent == 0 && waited >= c.glance && c.in.answersSince(c.began)
	if err := c.ctx.Err(); err != nil {
		if local {
			last = &notSent{waited}
		}
		return Answer{Err: err, Unsure: c.sent > 0, Last: last}
	}
	if c.first != nil {
		budget = c.first.within
	}
	if local {
		return Answer{Err: &notSent{budget}}
	}
	err := NoAnswer(budget, last)
	if queued := c.in.queued(c); (last == nil || CutOff(last)) && queued >= c.glance && c.in.answersSince(c.began) {
		err = &sentLate{err, queued}
	}
	return Answer{Err: err, Unsure: c.sent > 0}
}

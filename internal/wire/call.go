package wire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// copies is how many copies of a request may be under way at a time. The second is sent when half of the
// budget is spent: earlier, or more of them, would multiply the load of a server that is merely slow.
const copies = 2

var (
	errLate = errors.New("no reply yet")
	errTick = errors.New("the timer has fired") // not an answer
)

// call waits for the reply to a request: of a Do, or of an errand whose first copy has no reply yet. A call is reused
// when all its copies have got their replies: then no other goroutine has it.
type call struct {
	answers   chan Answer   // has room for all copies under way, and for the ticks of the timer
	abandoned chan struct{} // closed if the call ends while a copy is under way
	timer     *time.Timer   // sends a tick to answers: a separate channel would make each wait slower
	armed     time.Time     // when the timer fires, unless its tick is in answers; zero otherwise

	d             *Deployment
	r             *Request
	errand        Errand          // errand whose first copy has no reply yet; nil for a Do
	ctx           context.Context // context of the caller
	budget        time.Duration
	began         time.Time
	deadline      time.Time
	pause         time.Duration // pause before the next copy, after a failure
	last          error         // latest failure of a copy
	failedAt      time.Time     // when the latest failure came
	notFound      *Answer       // reply of a copy that found nothing to do while others were under way
	notFoundCount int           // copies that found nothing to do
	nextCopyAt    time.Time     // when the next copy is due; zero if no copy is due
	patience      time.Duration // how long a copy may have no reply before the next copy is sent
	waitingJob    job           // copy that waits for a worker
	firstSender   *sender       // sender of the first copy, which may wait there
	queued        bool          // the first copy still waits; guarded by the mutex of firstSender, like begun
	begun         time.Time     // when a worker took the waiting copy; zero if none has
	withdrew      bool          // a copy was withdrawn: its job may stay in a queue for a while
	waiting       int           // copies without a reply
	sent          int           // copies that may have run or may run yet
	taken         [copies]bool  // slots of the copies without a reply

	// flights has the copy in each slot, once a worker has begun with it, or grounded if it may not begin.
	flights [copies]atomic.Pointer[flight]
}

// newCall returns a call at rest.
func newCall() *call {
	// There is one tick at a time, or two if the timer fires just before it is set again and the process is
	// stopped then. A worker must not wait for room, because the caller may have left.
	c := &call{answers: make(chan Answer, copies+2), abandoned: make(chan struct{})}
	c.timer = time.AfterFunc(time.Hour, func() {
		select {
		case c.answers <- Answer{Err: errTick}:
		default: // an earlier tick is there
		}
	})
	c.timer.Stop()
	return c
}

// calls are the calls at rest of a deployment. They are not shared by the process, and neither are workers: in a
// synctest bubble, channels and timers from another bubble must not be used.
type calls struct {
	mu  sync.Mutex // guards all
	all []*call
}

// get returns a call at rest, or a new one.
func (s *calls) get() *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.all)
	if n == 0 {
		return newCall()
	}
	c := s.all[n-1]
	s.all = s.all[:n-1]
	return c
}

// put keeps a call for later.
func (s *calls) put(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) < mostSpare {
		s.all = append(s.all, c)
	}
}

// Do sends a request until it gets a reply, ctx ends, or the budget and the time for replicas are spent.
// Then it returns, even if go-redis does not: canceling a context does not interrupt the I/O of go-redis,
// and its read timeout may be longer or off. Copies that are still under way end with the timeouts of
// go-redis; Answer.Unsure reports them.
//
// If a reply is late, a second copy is sent while the first may still get its reply: every script may run
// twice. After errors that mean "not now" or "not here" the request is sent again until the budget is
// spent.
func (d *Deployment) Do(ctx context.Context, budget time.Duration, r *Request) Answer {
	if err := ctx.Err(); err != nil {
		return Answer{Err: err}
	}
	c, now := d.calls.get(), time.Now()
	c.d, c.r, c.ctx = d, r, ctx
	c.start(now, budget)
	c.launch(now, c.direct(now))
	if len(c.answers) == 0 {
		c.arm(now)
	}
	return c.result()
}

// start begins a call that counts from now.
func (c *call) start(now time.Time, budget time.Duration) {
	// Waiting for replicas is not a delay of the reply.
	c.patience = budget / copies
	if c.r.Acked {
		budget += c.d.cfg.AckTimeout
		c.patience += c.d.cfg.AckTimeout
	}
	c.budget, c.began, c.deadline = budget, now, now.Add(budget)
	c.waiting, c.sent, c.taken, c.firstSender, c.begun = 0, 0, [copies]bool{}, &c.d.senders.free, time.Time{}
	c.pause, c.last, c.notFound, c.notFoundCount = 10*time.Millisecond, nil, nil, 0
}

// follow begins the call of an errand whose first copy was sent before.
func (c *call) follow(sent time.Time, budget time.Duration, f *flight) {
	c.start(sent, budget)
	c.waiting, c.sent, c.taken[0] = 1, 1, true
	c.flights[0].Store(f)
	now := time.Now()
	c.nextCopyAt = now.Add(c.deadline.Sub(now) / copies)
	c.arm(now)
}

// result waits for the reply, and puts the call to rest.
func (c *call) result() Answer {
	a := c.wait()
	if c.waiting > 0 {
		close(c.abandoned) // go-redis must not send copies that it has not sent yet
	}
	if c.waiting > 0 || c.withdrew {
		c.timer.Stop()
		return a
	}
	d := c.d
	c.d, c.r, c.errand, c.ctx, c.firstSender = nil, nil, nil, nil, nil
	d.calls.put(c)
	return a
}

// launch sends a copy, or queues it for a worker. A second copy is never queued: workers that hang may be
// the reason why the first has no reply. If by is not zero, the caller may send the copy itself: then
// launch returns with the reply.
func (c *call) launch(now time.Time, by way) {
	c.waiting++
	c.sent++
	c.nextCopyAt = time.Time{}
	if c.waiting < copies { // otherwise one of the copies has to be answered or fail first
		c.nextCopyAt = now.Add(c.patience)
	}
	to := &c.d.senders.free
	if c.waiting == 1 {
		to = c.d.senderOf(c.r)
		c.firstSender = to
	}
	j := c.d.newJob()
	j.call, j.r, j.slot = c, c.r, c.slot()
	if to == &c.d.senders.free {
		by = way{} // the server is not known
	}
	self, begins := to.put(j, now, by)
	switch {
	case self != nil:
		self.serveSelf()
	case !begins:
		c.waitingJob = j
		c.nextCopyAt = now.Add(c.budget / overduePart)
	}
}

// slot takes a free slot for a copy. There is one, because no more copies than slots are under way.
func (c *call) slot() uint8 {
	i := slices.Index(c.taken[:], false)
	c.taken[i] = true
	c.flights[i].Store(nil)
	return uint8(i)
}

// begins records that a worker begins with a copy, and reports whether it may.
func (c *call) begins(slot uint8, f *flight) bool { return c.flights[slot].CompareAndSwap(nil, f) }

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

// withdraw withdraws the copy that waits for a worker and was never sent. It reports whether a copy
// waited.
func (c *call) withdraw() bool {
	j := c.waitingJob
	c.waitingJob = job{}
	if j.call == nil || !c.firstSender.withdraw(c) {
		return false
	}
	c.withdrew, c.taken[j.slot] = true, false
	c.waiting--
	c.sent--
	j.ended()
	return true
}

// isEarly is called when another copy may be due. It reports whether that copy is too early, because the first has waited
// for a worker: then it sets the time of the next check. Each call checks at a different time, so calls that share a
// pipeline do not all send their second copy in the same instant.
func (c *call) isEarly(now time.Time) bool {
	if c.waitingJob.call == nil {
		return false
	}
	if _, waits := c.firstSender.taken(c); waits {
		c.nextCopyAt = now.Add(c.budget / overduePart)
	} else {
		c.waitingJob = job{}
		c.nextCopyAt = now.Add(c.patience)
	}
	return true
}

// wakeAt returns when another copy is due, or the deadline if that is earlier.
func (c *call) wakeAt() time.Time {
	if !c.nextCopyAt.IsZero() && c.nextCopyAt.Before(c.deadline) {
		return c.nextCopyAt
	}
	return c.deadline
}

// arm makes the timer fire at wakeAt, or before. A timer that was armed for an earlier request stays armed: to set and
// stop it for each request costs more than an occasional early tick.
func (c *call) arm(now time.Time) {
	if at := c.wakeAt(); c.armed.IsZero() || c.armed.After(at) {
		c.armed = at
		c.timer.Reset(at.Sub(now))
	}
}

// isLate reports, when the timer has fired, whether another copy is due. Otherwise the deadline has passed.
func (c *call) isLate(now time.Time) bool {
	return now.Before(c.deadline) && !c.nextCopyAt.IsZero() && !now.Before(c.nextCopyAt)
}

// wait waits for a reply, and sends other copies when they are due.
func (c *call) wait() Answer {
	for {
		select {
		case a := <-c.answers:
			if a.Err == errTick && !c.tick() {
				return c.leave()
			}
			if a.Err != errTick && c.isDone(&a) {
				return a
			}
		case <-c.ctx.Done():
			return c.leave()
		}
	}
}

// isDone takes the answer to a copy, and reports whether that ends the call.
func (c *call) isDone(a *Answer) bool {
	c.takes(a)
	switch {
	case a.Err == nil && c.r.OneEffect && !c.r.isDoneBy(a):
		c.notFoundCount++
		if c.r.Each {
			*a = a.after(c.notFound)
		}
		if c.waiting > 0 {
			found := *a // so that only this answer is allocated
			c.notFound = &found
			return false
		}
		a.Unsure = c.sent > c.notFoundCount
	case a.Err == nil || !Transient(a.Err):
		c.recall()
		a.Err = final(a.Err)
		a.Unsure = a.Unsure || c.sent > 1 || a.Err != nil && Panicked(a.Err)
	default:
		return c.isOver(a)
	}
	return true
}

// takes records that a copy has got its reply, or has failed.
func (c *call) takes(a *Answer) {
	c.waiting--
	c.taken[a.slot] = false
	c.waitingJob = job{}
}

// isOver is called when a copy has failed with a transient error. It reports whether the call ends. Otherwise
// another copy is sent after a pause, or the call waits for the copy under way.
func (c *call) isOver(a *Answer) bool {
	d, r, now := c.d, c.r, time.Now()
	c.last, c.failedAt = a.Err, now
	ran := a.Unsure || !a.unsent && !NotExecuted(a.Err)
	if !ran {
		c.sent--
	}
	switch {
	case c.notFound != nil && c.waiting == 0:
		*a = *c.notFound
		a.Unsure = c.sent > c.notFoundCount
		return true
	case r.NoResend && ran:
		*a = Answer{Err: Failure(a.Err), Unsure: true}
		return true
	case !ran && (r.FailFast || !r.OneEffect && d.barred(a)): // a release is tried for its whole budget
		if c.waiting == 0 {
			*a = Answer{Err: Failure(a.Err), Unsure: c.sent > 0}
		}
		return c.waiting == 0
	}
	d.cfg.Events.Retried(c.ctx, r.Name(), a.Err)
	d.RefreshTopology()
	c.nextCopyAt = now.Add(c.pause)
	c.arm(now)
	c.pause = min(2*c.pause, 200*time.Millisecond)
	return false
}

// tick is called when the timer has fired. It reports whether to continue waiting: the deadline has not
// passed, and a copy is under way or is sent now.
func (c *call) tick() bool {
	now := time.Now()
	c.armed = time.Time{}
	switch {
	case now.Before(c.wakeAt()): // the timer was armed for an earlier request
	case !c.isLate(now):
		return false
	case c.isEarly(now):
	case c.errand != nil && !c.errand.Wanted():
		if c.waiting == 0 {
			return false
		}
		c.nextCopyAt = time.Time{}
	case c.waiting > 0 && (c.r.NoResend || c.notFound != nil):
		c.nextCopyAt = time.Time{}
	default:
		if c.waiting > 0 {
			c.d.cfg.Events.Retried(c.ctx, c.r.Name(), errLate)
			// Perhaps the node hangs and its replica has taken over.
			c.d.RefreshTopology()
		}
		c.launch(now, way{})
	}
	c.arm(now)
	return true
}

// leave returns the answer of a call whose context has ended, or whose time is over.
func (c *call) leave() Answer {
	c.withdraw()
	select {
	case a := <-c.answers: // the reply came at the last moment, or while the process was stopped
		if a.Err == errTick {
			c.armed = time.Time{}
			return c.leave()
		}
		c.takes(&a)
		if a.Err == nil {
			c.recall()
			a = a.after(c.notFound)
			a.Unsure = c.sent > 1
			return a
		}
		if a.unsent {
			c.sent--
		}
	default:
	}
	c.recall()
	if c.notFound != nil {
		c.notFound.Unsure = true
		return *c.notFound
	}
	last := c.last
	if IsReply(last) && c.waiting > 0 && time.Since(c.failedAt) > c.patience {
		last = nil // the server answered before, and is silent now
	}
	waited := time.Since(c.began)
	local := last == nil && c.sent == 0 && c.waitedLong(waited)
	if err := c.ctx.Err(); err != nil {
		if local {
			last = &notSent{waited}
		}
		return Answer{Err: Cut(err, last), Unsure: c.sent > 0}
	}
	if local {
		return Answer{Err: &notSent{c.budget}}
	}
	err := NoAnswer(c.budget, last)
	if at, _ := c.firstSender.taken(c); !at.IsZero() && (last == nil || CutOff(last)) && c.waitedLong(at.Sub(c.began)) {
		err = &sentLate{err, at.Sub(c.began)}
	}
	return Answer{Err: err, Unsure: c.sent > 0}
}

// waitedLong reports whether a wait in this process was long, while the server answered others.
func (c *call) waitedLong(d time.Duration) bool {
	return d >= c.budget/overduePart && c.firstSender.answersSince(c.began)
}

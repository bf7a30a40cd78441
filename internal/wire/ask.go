package wire

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Callers that ask several servers at once share the connections to each. A drain is a
// goroutine that sends what waits for its server, as one pipeline, and reads the answers.
// While few ask, a drain is free for each request at once. While many do, the requests that
// arrive during a round trip wait for the next pipeline, and cost the server and this process a
// part of what they would cost one by one. A drain that has nothing to send stays for a while:
// to wake it is cheaper than to start a goroutine.
const (
	// drains is how many pipelines are under way to one server at a time. If the server is
	// far away, a request would wait for most of a round trip; so one more pipeline, up to
	// drainsMost, begins when the last began stagger ago.
	drains     = 2
	drainsMost = 8
	stagger    = 5 * time.Millisecond

	// idleDrain is how long a drain stays that has nothing to send.
	idleDrain = time.Second

	// overduePart is the part of its time-out after which a request that has no answer gets a
	// goroutine, which decides about a second copy and about the end of the wait; see Do. The
	// pipeline of which it is a part does not hold up other requests from then on.
	overduePart = 8
)

// desk has the requests that wait for one server, and its drains.
type desk struct {
	mu      sync.Mutex // guards the rest, and what drains say that it guards
	waiting []asked
	busy    int       // drains that are not idle, and not overdue
	idle    []*drain  // drains that wait for their channel
	last    time.Time // when a drain began to send
}

// asked is an errand, and the context whose values the hooks of go-redis see if it is sent
// alone.
type asked struct {
	Errand
	values context.Context
}

// Waiting is an errand that waits for the answer of a server to a PING.
type Waiting struct {
	d     *Deployment
	asked // without an Errand: it was withdrawn, or waits no more; guarded by health.mu
}

// Ask has an errand done: with others if the server is busy with them, and otherwise at once.
// It does not wait for the answer. If the request is answered late, it is sent again, as by Do.
// ctx has the values that hooks see, and does not end.
//
// If it is not known that the server answers, the errand waits for that of a PING. If the
// server did not answer the last time, Ask returns a handle with which the errand can be
// withdrawn; otherwise it returns nil.
func (d *Deployment) Ask(ctx context.Context, e Errand) *Waiting {
	a := asked{e, ctx}
	w, waits := d.afterPing(a)
	if !waits {
		d.put(a)
	}
	return w
}

// Begin notes that work begins which Wait waits for. It ends with End, which takes the result.
func (d *Deployment) Begin() (end func()) {
	d.sending.Add(1)
	return d.work()
}

// End ends the work that has begun with Begin.
func (d *Deployment) End(end func()) {
	end()
	d.sending.Add(-1)
}

// afterPing has an errand wait for a PING, unless the server is known to answer. See Ask for w.
func (d *Deployment) afterPing(a asked) (w *Waiting, waits bool) {
	h := &d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil {
		return nil, false
	}
	if h.ping == nil {
		h.ping = d.ping(a.Timeout())
	}
	w = &Waiting{d: d, asked: a}
	h.ping.waiting = append(h.ping.waiting, w)
	if lost, timeout := h.lost, a.Timeout(); timeout < h.ping.timeout {
		time.AfterFunc(timeout, func() {
			if w.Withdraw() {
				a.Answered(d.cfg.Clock.Now(), Answer{Err: NoAnswer(timeout, lost)})
			}
		})
	}
	if h.lost == errLate {
		return nil, true
	}
	return w, true
}

// Withdraw reports whether the errand waited for the PING until now. Then it is not sent, nor
// answered.
func (w *Waiting) Withdraw() bool {
	h := &w.d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	waited := w.Errand != nil
	w.asked = asked{}
	return waited
}

// pinged goes on with the errands that have waited for a PING.
func (d *Deployment) pinged(p *ping) {
	for _, w := range p.waiting {
		d.health.mu.Lock()
		a := w.asked
		w.asked = asked{}
		d.health.mu.Unlock()
		switch {
		case a.Errand == nil:
		case p.err != nil:
			a.Answered(d.cfg.Clock.Now(), Answer{Err: p.err})
		default:
			d.put(a)
		}
	}
}

// put has an errand sent by a drain.
func (d *Deployment) put(a asked) {
	k := &d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = append(k.waiting, a)
	if k.busy < drains || k.busy < drainsMost && time.Since(k.last) > stagger {
		d.begin()
	}
}

// begin has one more drain begin. The caller holds the mutex of the desk.
func (d *Deployment) begin() {
	k := &d.desk
	k.busy++
	d.sending.Add(1)
	if n := len(k.idle); n > 0 {
		w := k.idle[n-1]
		k.idle[n-1] = nil
		k.idle = k.idle[:n-1]
		w.wake <- struct{}{} // has room: it is idle
		return
	}
	w := &drain{d: d, wake: make(chan struct{}, 1), over: make(chan struct{})}
	go w.run()
}

// drain is a goroutine that sends pipelines to a server.
type drain struct {
	d    *Deployment
	wake chan struct{}
	over chan struct{} // closed when the answers are overdue for so long that nobody waits

	batch    []asked
	requests []*Request

	patience *time.Timer // ends the sleep, if it is not ended before
	ticking  bool        // patience may fire

	// Guarded by desk.mu.
	sending bool
	sent    time.Time     // by the real clock
	late    *time.Timer   // runs overdue
	armed   time.Time     // when late fires; zero: it does not
	within  time.Duration // from sent on, until the batch is overdue
	copies  []chan Answer // overdue: where the answers go
}

// run sends what waits until there has been nothing for a while.
func (w *drain) run() {
	for w.take() {
		if !w.work() {
			return
		}
	}
}

// work sends the batch. It returns false if another drain is in the place of this one. A hook of
// go-redis may end the goroutine: then the batch stays unanswered, as if the replies were lost.
func (w *drain) work() (goesOn bool) {
	defer func() {
		if !goesOn {
			w.d.sending.Add(-1)
		}
	}()
	defer w.d.work()()
	return w.send()
}

// take takes errands that wait, and waits for some. It returns false when the drain ends.
func (w *drain) take() bool {
	k := &w.d.desk
	k.mu.Lock()
	// A drain that was added because answers took long stays away when they do not: the
	// others take what waits, in larger pipelines.
	for len(k.waiting) == 0 || k.busy > drains && time.Since(k.last) < stagger {
		k.busy--
		over := w.d.ctx.Err() != nil
		if !over {
			k.idle = append(k.idle, w)
		}
		k.mu.Unlock()
		w.d.sending.Add(-1)
		if over || !w.sleep() {
			return false
		}
		k.mu.Lock()
	}
	defer k.mu.Unlock()
	n := min(len(k.waiting), BatchSize)
	w.batch = append(w.batch[:0], k.waiting[:n]...)
	k.waiting = slices.Delete(k.waiting, 0, n)
	k.last = time.Now()
	return true
}

// sleep waits until the drain is woken, which then counts as busy. It returns false if that does
// not happen for a while, or the deployment is stopped.
func (w *drain) sleep() bool {
	since := time.Now()
	if w.patience == nil {
		w.patience = time.NewTimer(idleDrain)
	} else if !w.ticking {
		w.patience.Reset(idleDrain)
	}
	for w.ticking = true; w.ticking; {
		select {
		case <-w.wake:
			return true // the timer may go on: to set it each time costs more
		case <-w.patience.C:
			if rest := idleDrain - time.Since(since); rest > 0 {
				w.patience.Reset(rest)
				continue
			}
		case <-w.d.ctx.Done():
		}
		w.ticking = false
	}
	k := &w.d.desk
	k.mu.Lock()
	i := slices.Index(k.idle, w)
	if i >= 0 {
		k.idle = slices.Delete(k.idle, i, i+1)
	}
	k.mu.Unlock()
	if i >= 0 {
		w.patience.Stop()
		return false
	}
	<-w.wake // it was woken in between
	w.patience.Stop()
	return true
}

// send sends the batch, and passes the answers on. It returns false if the batch was overdue:
// another drain is in the place of this one.
func (w *drain) send() bool {
	d := w.d
	if d.lost() {
		// It would cost each batch a time-out to find that out again.
		for _, a := range w.batch {
			if _, waits := d.afterPing(a); !waits {
				d.put(a)
			}
		}
		return true
	}
	timeout := time.Duration(0)
	asks, requests := w.batch[:0], w.requests[:0]
	sent := d.cfg.Clock.Now()
	for _, a := range w.batch {
		r, err := a.Request()
		if err != nil { // it is not needed any more
			a.Answered(sent, Answer{Err: err})
			continue
		}
		asks, requests = append(asks, a), append(requests, r)
		if t := a.Timeout(); timeout == 0 || t < timeout {
			timeout = t
		}
	}
	if len(asks) == 0 {
		return true
	}
	w.batch, w.requests = asks, requests
	w.expect(timeout / overduePart)
	var one [1]Answer
	answers := one[:]
	if len(asks) == 1 {
		c := call{r: requests[0], ctx: asks[0].values, deadline: time.Now().Add(timeout), over: w.over}
		one[0] = d.send(newCopy(&c), requests[0], nil)
	} else {
		ctx := &ioContext{Context: context.Background(), deadline: time.Now().Add(timeout), over: w.over}
		answers = d.sendBatch(ctx, d.io, requests, nil)
		for i := range answers {
			answers[i].Err = d.foreign(ctx, requests[i], answers[i].Err)
		}
	}
	copies := w.expected()
	for i, a := range answers {
		switch {
		case copies != nil:
			copies[i] <- a // has room
		case a.Err == nil:
			asks[i].Answered(sent, a)
		default:
			ask, r, began, first := asks[i], requests[i], w.sent, make(chan Answer, 1)
			first <- a
			d.Go(func() { d.resume(ask, r, sent, began, first) })
		}
	}
	if copies == nil {
		clear(asks)
		clear(requests)
	}
	return copies == nil
}

// expect begins the wait for the answers to the batch. The timer is set only if it would fire
// too late: a drain that is answered all the time does not set it for each batch.
func (w *drain) expect(within time.Duration) {
	k := &w.d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	w.sending, w.sent, w.within = true, time.Now(), within
	due := w.sent.Add(within)
	switch {
	case w.late == nil:
		w.late = time.AfterFunc(within, w.overdue)
	case w.armed.IsZero() || w.armed.After(due):
		w.late.Reset(within)
	default:
		return
	}
	w.armed = due
}

// expected ends the wait, and returns where the answers go if they were overdue.
func (w *drain) expected() (copies []chan Answer) {
	k := &w.d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	w.sending = false
	return w.copies
}

// overdue is called when the answers may be overdue. Then each errand goes on in a goroutine of
// its own, and another drain may take the place of this one. Perhaps the server hangs: if all
// that waits were sent now, it would have as many stale commands to run when it recovers.
func (w *drain) overdue() {
	d := w.d
	k := &d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	w.armed = time.Time{}
	if !w.sending || w.copies != nil {
		return
	}
	if rest := time.Until(w.sent.Add(w.within)); rest > 0 {
		w.armed = w.sent.Add(w.within)
		w.late.Reset(rest)
		return
	}
	d.doubt() // what waits is not sent before the answer to a PING
	k.busy--
	under := new(atomic.Int64)
	under.Store(int64(len(w.batch)))
	began := w.sent
	sent := d.cfg.Clock.Now().Add(-time.Since(began))
	for i, a := range w.batch {
		r, first := w.requests[i], make(chan Answer, 1)
		w.copies = append(w.copies, first)
		d.Go(func() {
			d.resume(a, r, sent, began, first)
			if under.Add(-1) == 0 {
				close(w.over) // a copy that waits for a connection need not be sent
			}
		})
	}
	if len(k.waiting) > 0 && k.busy < drains {
		d.begin()
	}
}

// resume goes on with an errand whose first copy has failed, or has not been answered yet. The
// answer to that copy comes, or has come, from first.
func (d *Deployment) resume(a asked, r *Request, sent, began time.Time, first chan Answer) {
	got := d.doAfter(a.values, max(a.Timeout()-time.Since(began), time.Millisecond), r,
		&firstCopy{answer: first, wanted: a.Wanted, within: a.Timeout()})
	if got.Err != nil {
		d.Failed(got.Err)
	}
	a.Answered(sent, got)
}

// firstCopy is a copy of a request that is under way when Do is called, and takes the place
// of the first one that Do would send.
type firstCopy struct {
	taken  atomic.Bool
	answer chan Answer
	wanted func() bool   // reports whether the others are to be sent
	within time.Duration // of which the budget of Do is what is left
}

// await waits for the first copy. It returns false if that was waited for before.
func (c *firstCopy) await(ctx context.Context) (Answer, bool) {
	if c == nil || c.taken.Swap(true) {
		return Answer{}, false
	}
	select {
	case a := <-c.answer:
		return a, true
	case <-ctx.Done():
		return Answer{Err: ctx.Err()}, true
	}
}

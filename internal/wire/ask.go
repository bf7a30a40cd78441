package wire

import (
	"context"
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
	// pipeline of which it is a part does not hold up other requests from then on. If the
	// server is so far away that it usually takes more than half of that, its answer is late
	// after twice as long as usual. Some of the time-out is left in any case.
	overduePart = 8
)

// patience is how long to wait for the answers to a pipeline until they are overdue.
func (k *desk) patience(timeout time.Duration) time.Duration {
	return min(max(timeout/overduePart, 2*k.usual), timeout*3/4)
}

// took notes how long the server took to answer.
func (k *desk) took(d time.Duration) {
	if k.usual == 0 {
		k.usual = d
	}
	k.usual += (d - k.usual) / 8
}

// desk has the requests that wait for one server, and its drains.
type desk struct {
	mu      sync.Mutex // guards the rest, and what drains say that it guards
	waiting []asked
	busy    int       // drains that are not idle, and not overdue
	passing int       // those of them that pass answers on, and then take what waits
	idle    []*drain  // drains that wait for their channel
	last    time.Time // when a drain began to send

	usual time.Duration // how long the server takes to answer, on average; 0: not known
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
	if !d.lost() { // most often; the rest would have each errand allocated
		return nil, false
	}
	return d.awaitPing(a)
}

func (d *Deployment) awaitPing(a asked) (_ *Waiting, waits bool) {
	h := &d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil {
		return nil, false
	}
	if h.ping == nil {
		h.ping = d.ping(a.Timeout())
	}
	w := &Waiting{d: d, asked: a}
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
	switch {
	case k.busy < drains:
		// An answer may have brought the next request about: its drain is about to send that.
		if k.passing == 0 {
			d.begin()
		}
	case k.busy < drainsMost && time.Since(k.last) > stagger:
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

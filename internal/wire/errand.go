package wire

import (
	"context"
	"time"
)

// Errand is a request to one of several servers, without a goroutine that waits for the reply. It is sent
// immediately, or together with others if many errands are under way. While it waits it needs no goroutine
// and no timer.
type Errand interface {
	// Context has the values for hooks. When it ends, the errand is not needed any more.
	Context() context.Context
	// Request returns the request to send now, or the reason not to send it.
	Request() (*Request, error)
	// Answered is called once, with the answer or the reason why the request was not sent.
	Answered(sent time.Time, a Answer)
	// Timeout bounds the wait for the reply, from when the request is sent.
	Timeout() time.Duration
	// Wanted reports whether the reply is still useful. Otherwise the request is not sent again.
	Wanted() bool
}

// Waiting is an errand that waits for the reply of a server to a PING.
type Waiting struct {
	s   *sender
	job // its errand is nil once it was withdrawn or sent; guarded by health.mu
}

// Ask sends an errand on behalf of a caller, without waiting for the reply. If the reply is late, the
// request is sent again, as by Do.
//
// If the server may be silent, the errand waits for the reply to a PING. If the server did not answer
// the last request, Ask returns a handle with which the errand can be withdrawn; otherwise it returns
// nil.
func (d *Deployment) Ask(e Errand) *Waiting { return d.senders.votes.take(d.newJob(), e) }

// Put is Ask for background work, one pipeline at a time. Wait of the deployment home waits for the
// errand.
func (d *Deployment) Put(home *Deployment, e Errand) { d.senders.renewals.take(home.newJob(), e) }

// take sends an errand, now or after a PING.
func (s *sender) take(j job, e Errand) *Waiting {
	j.errand = e
	w, waits := s.park(j)
	if !waits {
		s.put(j, time.Now(), way{})
	}
	return w
}

// Begin begins work that Wait waits for. Pass the result to End when the work ends.
func (d *Deployment) Begin() (end func()) {
	d.sending.Add(1)
	return d.work()
}

// End ends the work that Begin has begun.
func (d *Deployment) End(end func()) {
	end()
	d.sending.Add(-1)
}

// park makes an errand wait for the reply to a PING, if the server may be silent. See Ask for w.
func (s *sender) park(j job) (w *Waiting, waits bool) {
	if !s.d.lost() { // the usual case, which does not allocate the job
		return nil, false
	}
	return s.awaitPing(j)
}

func (s *sender) awaitPing(j job) (_ *Waiting, waits bool) {
	d, h, timeout := s.d, &s.d.health, j.errand.Timeout()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil {
		return nil, false
	}
	if h.ping == nil {
		h.ping = d.ping(timeout)
	}
	w := &Waiting{s, j}
	h.ping.waiting = append(h.ping.waiting, w)
	if lost := h.lost; timeout < h.ping.timeout {
		time.AfterFunc(timeout, func() { w.fail(NoAnswer(timeout, lost)) })
	}
	if h.lost == errLate {
		return nil, true
	}
	return w, true
}

// leave ends the wait, and returns the errand if it has waited until now.
func (w *Waiting) leave() (j job, waited bool) {
	h := &w.s.d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	j, w.job = w.job, job{}
	return j, j.errand != nil
}

// fail answers the errand with an error if it still waits.
func (w *Waiting) fail(err error) {
	if j, waited := w.leave(); waited {
		defer j.ended()
		j.errand.Answered(w.s.d.cfg.Clock.Now(), Answer{Err: err})
	}
}

// Withdraw reports whether the errand waited for the PING until now. Then it is neither sent nor
// answered.
func (w *Waiting) Withdraw() bool {
	j, waited := w.leave()
	if waited {
		j.ended()
	}
	return waited
}

// pinged continues with the errands that have waited for a PING.
func (p *ping) pinged() {
	for _, w := range p.waiting {
		if p.err != nil {
			w.fail(p.err)
		} else if j, waited := w.leave(); waited {
			w.s.put(j, time.Now(), way{})
		}
	}
}

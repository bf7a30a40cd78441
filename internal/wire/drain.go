package wire

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// drain is a goroutine that sends pipelines to a server.
type drain struct {
	d    *Deployment
	wake chan struct{}
	over chan struct{} // closed when the answers are overdue for so long that nobody waits

	batch    []asked
	requests []*Request
	began    time.Time // by the real clock: when it took the batch

	patience *time.Timer // ends the sleep, if it is not ended before
	ticking  bool        // patience may fire

	// Guarded by desk.mu.
	passing bool // it counts as passing there
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
			w.end()
		}
	}()
	defer w.d.work()()
	return w.send()
}

// end notes that the drain ends, with another one in its place or none. If it was passing, another
// one takes what waits for it.
func (w *drain) end() {
	k := &w.d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	if w.passes(false) {
		k.busy-- // nobody else does: its answers are not overdue
		if len(k.waiting) > 0 {
			w.d.begin()
		}
	}
	w.d.sending.Add(-1)
}

// passes sets whether the drain is passing, and returns whether it was. The caller holds the mutex
// of the desk.
func (w *drain) passes(is bool) (was bool) {
	was = w.passing
	if w.passing = is; is != was {
		if is {
			w.d.desk.passing++
		} else {
			w.d.desk.passing--
		}
	}
	return was
}

// take takes errands that wait, and waits for some. It returns false when the drain ends.
func (w *drain) take() bool {
	k := &w.d.desk
	k.mu.Lock()
	w.passes(false)
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
	w.began = time.Now()
	k.last = w.began
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
	w.expect(timeout)
	var one [1]Answer
	answers := one[:]
	if len(asks) == 1 {
		c := call{r: requests[0], ctx: asks[0].values, deadline: w.began.Add(timeout), over: w.over}
		one[0] = d.send(newCopy(&c), requests[0], nil)
	} else {
		callers := make([]context.Context, len(asks))
		for i, a := range asks {
			callers[i] = a.values
		}
		ctx := forCallers(&ioContext{Context: context.Background(), deadline: w.began.Add(timeout), over: w.over}, callers)
		answers = d.sendBatch(ctx, d.io, requests, make([]flight, len(requests)), nil)
		for i := range answers {
			answers[i].Err = d.foreign(ctx, requests[i], answers[i].Err)
		}
	}
	copies := w.expected(answers[0].Err == nil)
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
func (w *drain) expect(timeout time.Duration) {
	k := &w.d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	within := k.patience(timeout)
	w.sending, w.sent, w.within = true, w.began, within
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

// expected ends the wait, by answers or by none, and returns where they go if they were overdue. If
// not, the drain is passing them on from here until it takes what waits then.
func (w *drain) expected(answered bool) (copies []chan Answer) {
	k := &w.d.desk
	k.mu.Lock()
	defer k.mu.Unlock()
	if answered {
		k.took(time.Since(w.sent))
	}
	w.sending = false
	if w.copies == nil {
		w.passes(true)
	}
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

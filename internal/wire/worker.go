package wire

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// job is what a worker sends: a copy of a call, or an errand. Whoever sends it answers it, once.
type job struct {
	call   *call  // of an errand: the one that waits for its answer, once that is overdue or was none
	errand Errand // nil: it is a copy of a caller's request
	r      *Request
	flight *flight     // of an errand that is under way
	of     *Deployment // what counts it as under way
	end    func()      // see seam.Env.Work
	slot   uint8       // of the copy in its call
}

// newJob counts a job as under way. ended is called at its end.
func (d *Deployment) newJob() job { return job{of: d, end: d.Begin()} }

func (j *job) ended() { j.of.End(j.end) }

// terms are the timeout of a job that is sent now, and until when somebody waits for the answer.
func (j *job) terms(now time.Time) (timeout time.Duration, until time.Time) {
	if j.errand != nil {
		timeout = j.errand.Timeout()
		return timeout, now.Add(timeout)
	}
	return j.call.budget, j.call.deadline
}

// context has the values that hooks see.
func (j *job) context() context.Context {
	if j.errand != nil {
		return j.errand.Context()
	}
	return j.call.ctx
}

// worker is a goroutine that sends batches of jobs, one at a time. It keeps its stack, which a new
// goroutine would have to grow for each request.
type worker struct {
	s    *sender
	wake chan struct{} // has room for one: whoever takes a worker at rest wakes it once, or closes it
	over chan struct{} // closed when nobody waits for what it has sent
	at   time.Time     // by the clock of leases: when it sent errands
	by   way           // not zero: a caller is the worker, for its own request

	// Guarded by the mutex of the sender; but the jobs of the batch are the worker's, unless it is sending errands.
	batch   []job
	state   workerState
	several bool        // it counts as a pipeline
	sent    time.Time   // by the real clock, as are the next
	due     time.Time   // from then on it is overdue
	limit   time.Time   // from then on nobody waits
	late    *time.Timer // runs overdue
	armed   time.Time   // when it does so; zero: it does not
	shut    bool        // over is closed
}

type workerState int

const (
	resting workerState = iota // or new
	given                      // errands, which it has yet to ask for their requests
	sending
	passing // the answers to errands on
	silent  // overdue: it does not count as busy
)

// mostSpare is how many workers of a sender, and calls, at rest are kept. Workers that were not
// needed for all of a restFor end at the end of it, so that a client at rest has none.
const (
	mostSpare = 16
	restFor   = 500 * time.Millisecond
)

// workerLocked returns a worker at rest, or a new one, which counts as busy now.
func (s *sender) workerLocked() *worker {
	s.busy++
	n := len(s.idle)
	if n == 0 {
		return &worker{s: s, over: make(chan struct{})}
	}
	w := s.idle[n-1]
	s.idle = s.idle[:n-1]
	s.fewest = min(s.fewest, n-1)
	return w
}

// beginLocked has a worker begin with its batch.
func (s *sender) beginLocked(w *worker, now time.Time) {
	s.givenLocked(w, now)
	w.begin()
}

// begin has the goroutine of a worker begin with the batch.
func (w *worker) begin() {
	if w.wake != nil {
		w.wake <- struct{}{}
		return
	}
	w.wake = make(chan struct{}, 1)
	go w.run()
}

// givenLocked notes that a worker was given a batch.
func (s *sender) givenLocked(w *worker, now time.Time) {
	if s.busy == 1 && s.overdue == 0 && !s.heard.Before(s.last) {
		s.begun = now
	}
	s.last = now
	if w.several = len(w.batch) > 1; w.several {
		s.pipelines++
	}
	if w.shut {
		w.over, w.shut = make(chan struct{}), false
	}
	if w.state = given; !s.errands {
		w.expectLocked(now)
	}
}

// freeLocked has a worker not count any more.
func (s *sender) freeLocked(w *worker) {
	if w.state == silent {
		s.overdue--
		return
	}
	s.busy--
	if w.several {
		s.pipelines--
		w.several = false
	}
	if w.state == passing {
		s.passing--
	}
}

// next is called when a worker has sent its batch, and answered has come or not. It gives the
// worker what waits. rests: there is nothing for it, and it waits for more; otherwise it ends.
func (s *sender) next(w *worker, answered bool) (more, rests bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if answered {
		s.hearsLocked(now, now.Sub(w.sent))
	} else if w.by.client != nil {
		s.fast = false
		s.d.direct.cut.Store(now.UnixNano())
	}
	w.by = way{}
	stays := w.state != silent || s.busy < s.alone // otherwise others are in its place
	s.freeLocked(w)
	clear(w.batch)
	w.batch, w.state = w.batch[:0], resting
	if !stays || s.waitsLocked() == 0 || !s.roomLocked() {
		return false, s.restLocked(w)
	}
	s.busy++
	s.takeLocked(w, now)
	s.givenLocked(w, now)
	if s.overdue > 0 && s.busy < s.alone {
		s.addLocked(now) // in the place of one that is overdue: the server answers again
	}
	return true, false
}

// restLocked puts a worker to rest, and reports whether it is needed.
func (s *sender) restLocked(w *worker) bool {
	if s.d.ctx.Err() != nil || len(s.idle) >= mostSpare {
		return false
	}
	s.idle = append(s.idle, w)
	if !s.trims {
		s.trims, s.fewest = true, 0
		time.AfterFunc(restFor, s.trim)
	}
	return true
}

// trim ends the workers that were at rest for all of a restFor: those that were put to rest
// first. It is called again until none is at rest.
func (s *sender) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(s.fewest, len(s.idle)) // dismiss may have removed some
	for _, w := range s.idle[:n] {
		w.end() // nobody can take it any more
	}
	s.idle = slices.Delete(s.idle, 0, n)
	s.fewest = len(s.idle)
	if s.trims = s.fewest > 0; s.trims {
		time.AfterFunc(restFor, s.trim)
	}
}

// end has the goroutine of a worker end, if it has one.
func (w *worker) end() {
	if w.wake != nil {
		close(w.wake)
	}
}

// dismiss removes a worker at rest. It reports whether the worker was still there.
func (s *sender) dismiss(w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.idle, w)
	if i >= 0 {
		s.idle = slices.Delete(s.idle, i, i+1)
	}
	return i >= 0
}

// run sends what the worker is given. It ends when there are enough workers at rest, when it is
// not needed any more, and when the deployment is stopped.
func (w *worker) run() {
	for w.serve() {
		more := true
		select {
		case _, more = <-w.wake:
		case <-w.s.d.ctx.Done():
			if w.s.dismiss(w) {
				return
			}
			_, more = <-w.wake // it was taken just before
		}
		if !more {
			return
		}
	}
}

// serve sends the batch, and then what has come to wait meanwhile. It reports whether the worker
// rests then.
func (w *worker) serve() (rests bool) {
	gone := true
	defer func() {
		if gone {
			w.left()
		}
	}()
	for more := true; more; {
		more, rests = w.turn()
	}
	gone = false
	return rests
}

// turn sends the batch, and reports what is next.
func (w *worker) turn() (more, rests bool) {
	answered := w.send()
	if !w.s.errands {
		w.gather()
		w.s.d.Gate("next")
	}
	return w.s.next(w, answered)
}

// serveSelf is serve for the caller whose request is the batch. The goroutine of the worker goes on with what has come to
// wait meanwhile.
func (w *worker) serveSelf() {
	gone := true
	defer func() {
		if gone {
			w.left()
			w.end()
		}
	}()
	more, rests := w.turn()
	gone = false
	switch {
	case more:
		w.begin()
	case !rests:
		w.end()
	}
}

// gather lets the callers of a pipeline go on before its worker takes what waits. Who asks again at once is in
// the next pipeline, and need not wait for an answer or a gap: callers that share a pipeline go on together.
// If the server is near they have one turn. If it is far away, those that run on another processor are
// worth some microseconds more. 64 callers of one 5 ms away waited for 1 ms before each request
// without a turn, for 0.4 ms with one, and for 0.15 ms with up to mostTurns. In a busy process
// a single turn may take long.
func (w *worker) gather() {
	if len(w.batch) < 2 {
		return
	}
	answered := time.Now()
	for range mostTurns {
		runtime.Gosched()
		if w.s.gathered(len(w.batch), time.Since(answered)) {
			return
		}
	}
}

// gathered reports whether as many wait as were answered a while ago, or are waited for no longer.
func (s *sender) gathered(answered int, ago time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	away := s.away.least()
	return away < s.from || ago > away/gatherPart || s.waitsLocked() >= answered
}

// left is called when a hook of go-redis has ended the goroutine, or what an answer brought about.
// What is not answered stays so, as if the replies were lost, and another worker goes on.
func (w *worker) left() {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.state != silent {
		w.awaitLocked()
	}
	s.freeLocked(w)
	w.state = resting // for ever
	for _, j := range w.batch {
		if j.errand == nil && j.call != nil {
			j.ended()
		}
	}
	s.addLocked(time.Now())
}

// expectLocked begins the wait for the answers to the batch. The timer is set only if it would fire
// too late: a worker that is answered all the time does not set it for each batch.
func (w *worker) expectLocked(now time.Time) {
	least := time.Duration(math.MaxInt64)
	w.state, w.sent, w.limit = sending, now, now
	for i := range w.batch {
		timeout, until := w.batch[i].terms(now)
		if least = min(least, timeout); until.After(w.limit) {
			w.limit = until
		}
	}
	patience := w.s.patience(least)
	if w.by.client != nil {
		patience, w.limit = min(patience, w.by.within), now.Add(w.by.within)
	}
	w.due = now.Add(patience)
	w.armLocked(now, w.due)
}

func (w *worker) armLocked(now, at time.Time) {
	switch {
	case w.late == nil:
		w.late = time.AfterFunc(at.Sub(now), w.overdue)
	case w.armed.IsZero() || w.armed.After(at):
		w.late.Reset(at.Sub(now))
	default:
		return
	}
	w.armed = at
}

// overdue is called when the answers may be overdue, and from then on after each such while.
func (w *worker) overdue() {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now, patience := time.Now(), w.due.Sub(w.sent)
	w.armed = time.Time{}
	if w.state == sending && !now.Before(w.due) {
		s.freeLocked(w)
		w.state = silent
		s.overdue++
		w.awaitLocked()
		if s.errands {
			s.d.doubt() // what waits is not sent before the answer to a PING
		}
	}
	switch {
	case w.state == sending:
		w.armLocked(now, w.due)
	case w.state != silent || w.shut:
	case now.Before(w.limit):
		if now.Sub(s.last) >= patience {
			s.addLocked(now)
		}
		w.armLocked(now, now.Add(min(patience, w.limit.Sub(now))))
	default:
		close(w.over) // what waits for a connection still need not be sent
		w.shut = true
	}
}

// awaitLocked has a goroutine wait for each errand of the batch that is not answered.
func (w *worker) awaitLocked() {
	for i := range w.batch {
		if j := &w.batch[i]; w.s.errands && j.r != nil {
			w.await(j, nil)
		}
	}
}

// await has a goroutine wait for the answer to an errand as a caller would: it decides about a second
// copy, and about the end of the wait. failed, unless it is nil, is what the first copy has ended in.
func (w *worker) await(j *job, failed *Answer) {
	d, at := w.s.d, w.at
	c := d.calls.get()
	c.d, c.r, c.ctx, c.errand = d, j.r, j.errand.Context(), j.errand
	c.follow(w.sent, j.errand.Timeout(), j.flight)
	j.call = c
	waits := *j
	go func() {
		defer waits.ended()
		if failed != nil {
			failed.Err = d.foreign(d.io, c.ctx, c.r, failed.Err)
			c.answers <- *failed
		}
		a := c.result()
		if a.Err != nil && waits.errand.Context().Err() == nil {
			d.Failed(a.Err)
		}
		waits.errand.Answered(at, a)
	}()
}

// send sends the batch, and passes the answers on. It reports whether the server has given any. A hook may
// end the goroutine: see left.
func (w *worker) send() (answered bool) {
	if w.s.errands && !w.ready() {
		return false
	}
	if len(w.batch) == 1 {
		return w.sendOne()
	}
	return w.sendTogether()
}

// ready leaves in the batch what is to be sent now, and asks it for its requests.
func (w *worker) ready() bool {
	d, kept := w.s.d, w.batch[:0]
	w.at = d.cfg.Clock.Now()
	for _, j := range w.batch {
		if _, waits := w.s.park(j); waits {
			continue // it would cost each batch a timeout to find out again that nobody answers
		}
		err := ErrTooLate
		if j.errand.Context().Err() == nil {
			j.r, err = j.errand.Request()
		}
		if err != nil { // it is not needed any more
			j.errand.Answered(w.at, Answer{Err: err})
			j.ended()
			continue
		}
		kept = append(kept, j)
	}
	clear(w.batch[len(kept):])
	w.batch = kept
	return len(kept) > 0
}

// client is what the worker sends with.
func (w *worker) client() redis.UniversalClient {
	if w.by.client != nil {
		return w.by.client
	}
	return w.s.d.io
}

// leaves notes the flight of a job that is about to be sent, and reports whether it may be.
func (j *job) leaves(f *flight) bool {
	if j.errand != nil {
		j.flight = f
		return true
	}
	return j.call.begins(j.slot, f)
}

// expect is expectLocked for errands, which have been asked for their requests.
func (w *worker) expect() {
	if w.s.errands {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.expectLocked(time.Now())
	}
}

// sendOne sends the only job as a command of its own.
func (w *worker) sendOne() (answered bool) {
	j := &w.batch[0]
	_, until := j.terms(time.Now())
	over := w.over
	if w.by.client != nil {
		until = w.limit
	} else if j.errand == nil {
		over = j.call.over
	}
	one, r := newCopy(j.context(), j.r, w.s.d.inFull.Load(), until, over), j.r
	if !j.leaves(&one.flight) {
		j.ended()
		*j = job{}
		return false
	}
	w.expect()
	a := [1]Answer{w.s.d.send(w.client(), one, r, w.by.client == nil && !w.s.errands)}
	return w.deliver(&one.io, a[:])
}

// sendTogether sends the jobs as one pipeline.
func (w *worker) sendTogether() (answered bool) {
	n, until := len(w.batch), time.Now()
	requests, flights, callers := make([]*Request, n), make([]flight, n), make([]context.Context, n)
	now := until
	for i := range w.batch {
		j := &w.batch[i]
		requests[i], callers[i] = j.r, j.context()
		if !j.leaves(&flights[i]) {
			flights[i].withdraw()
		}
		if _, at := j.terms(now); at.After(until) {
			until = at
		}
	}
	w.expect()
	// It ends with none of the callers' contexts: others wait for it too.
	ctx := forCallers(&ioContext{Context: context.Background(), deadline: until, over: w.over}, callers)
	d := w.s.d
	return w.deliver(ctx, d.sendBatch(ctx, d.io, requests, flights, nil))
}

// deliver passes answers on, and reports whether the server has given any.
func (w *worker) deliver(ctx context.Context, answers []Answer) (answered bool) {
	if s := w.s; s.errands {
		s.mu.Lock()
		if w.state == sending { // from here on they are not overdue
			w.state = passing
			s.passing++
		}
		s.mu.Unlock()
	}
	// The failed ones are the last: it may take a command to say why.
	for _, failed := range []bool{false, true} {
		for i, a := range answers {
			if failed == (a.Err != nil) {
				answered = answered || !failed || IsReply(a.Err)
				w.answer(ctx, i, a)
			}
		}
	}
	return answered
}

// answer answers a job of the batch.
func (w *worker) answer(ctx context.Context, i int, a Answer) {
	d, j := w.s.d, w.batch[i]
	w.batch[i] = job{}
	switch {
	case j.call == nil && a.Err == nil:
		defer j.ended()
		d.Gate("reply")
		j.errand.Answered(w.at, a)
	case j.call == nil:
		j, a := j, a // only here they are allocated
		w.await(&j, &a)
	default:
		if j.errand == nil {
			defer j.ended()
		}
		a.Err, a.slot = d.foreign(w.client(), ctx, j.r, a.Err), j.slot
		d.Gate("reply")
		j.call.answers <- a // has room
	}
}

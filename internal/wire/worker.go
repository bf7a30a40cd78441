package wire

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// job is a copy of a call, or an errand. The worker that sends it answers it, once.
type job struct {
	call   *call  // call of the copy; for an errand, the call that waits for an overdue reply
	errand Errand // nil for a copy of a call
	r      *Request
	flight *flight     // flight of an errand under way
	home   *Deployment // deployment that counts the job as under way
	end    func()      // see seam.Env.Work
	slot   uint8       // slot of the copy in its call
}

// newJob returns a job that counts as under way until ended is called.
func (d *Deployment) newJob() job { return job{home: d, end: d.Begin()} }

func (j *job) ended() { j.home.End(j.end) }

// terms returns the timeout of a job that is sent now, and until when a caller waits for the reply.
func (j *job) terms(now time.Time) (timeout time.Duration, until time.Time) {
	if j.errand != nil {
		timeout = j.errand.Timeout()
		return timeout, now.Add(timeout)
	}
	return j.call.budget, j.call.deadline
}

// context returns the context with the values for hooks.
func (j *job) context() context.Context {
	if j.errand != nil {
		return j.errand.Context()
	}
	return j.call.ctx
}

// worker sends batches of jobs, one at a time, on a goroutine, or on the goroutine of a caller for the caller's
// own request. The goroutine stays for the next batch, so its stack need not grow for each request.
type worker struct {
	s         *sender
	wake      chan struct{} // capacity 1: a worker at rest that is taken is woken once, or wake is closed
	abandoned chan struct{} // closed when no caller waits for the batch any more
	at        time.Time     // when the errands of the batch were sent, by the clock of leases
	by        way           // not zero if a caller is the worker, for its own request

	// Guarded by the mutex of the sender; but the jobs of the batch belong to the worker, except while it sends errands.
	batch        []job
	state        workerState
	isPipeline   bool        // counts as a pipeline
	sent         time.Time   // when the batch was sent, by the real clock, like due, limit and armed
	due          time.Time   // when the worker is overdue
	limit        time.Time   // when no caller waits any more
	overdueTimer *time.Timer // calls overdue
	armed        time.Time   // when overdueTimer fires; zero if it does not
	isAbandoned  bool        // abandoned is closed
}

type workerState int

const (
	resting workerState = iota // at rest, or new
	given                      // has errands, whose requests are not made yet
	sending                    // waits for replies
	passing                    // passes the replies to errands on
	silent                     // overdue: does not count as busy
)

// mostSpare is how many workers of a sender, and how many calls, are kept at rest. Workers that were not
// needed for a restFor end, so that an idle client has none.
const (
	mostSpare = 16
	restFor   = 500 * time.Millisecond
)

// workerLocked returns a worker at rest, or a new one. It counts as busy from now on.
func (s *sender) workerLocked() *worker {
	s.busy++
	n := len(s.idle)
	if n == 0 {
		return &worker{s: s, abandoned: make(chan struct{})}
	}
	w := s.idle[n-1]
	s.idle = s.idle[:n-1]
	s.fewest = min(s.fewest, n-1)
	return w
}

// beginLocked starts a worker with its batch.
func (s *sender) beginLocked(w *worker, now time.Time) {
	s.givenLocked(w, now)
	w.start()
}

// start wakes or starts the goroutine of a worker.
func (w *worker) start() {
	if w.wake != nil {
		w.wake <- struct{}{}
		return
	}
	w.wake = make(chan struct{}, 1)
	go w.run()
}

// givenLocked records that a worker was given a batch.
func (s *sender) givenLocked(w *worker, now time.Time) {
	if s.busy == 1 && s.overdue == 0 && !s.repliedAt.Before(s.givenAt) {
		s.busySince = now
	}
	s.givenAt = now
	if w.isPipeline = len(w.batch) > 1; w.isPipeline {
		s.pipelines++
	}
	if w.isAbandoned {
		w.abandoned, w.isAbandoned = make(chan struct{}), false
	}
	if w.state = given; !s.errands {
		w.expectLocked(now)
	}
}

// freeLocked stops counting a worker.
func (s *sender) freeLocked(w *worker) {
	if w.state == silent {
		s.overdue--
		return
	}
	s.busy--
	if w.isPipeline {
		s.pipelines--
		w.isPipeline = false
	}
	if w.state == passing {
		s.passing--
	}
}

// takeNext is called when a worker has got the replies to its batch (answered), or has failed. It gives the
// worker the waiting jobs (more). Otherwise the worker rests (rests), or ends.
func (s *sender) takeNext(w *worker, answered bool) (more, rests bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if answered {
		s.noteReplyLocked(now, now.Sub(w.sent))
	} else if w.by.client != nil {
		s.isFast = false
		s.d.direct.cut.Store(now.UnixNano())
	}
	w.by = way{}
	stays := w.state != silent || s.busy < s.alone // otherwise other workers have replaced it
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
		s.addLocked(now) // for an overdue worker: the server answers again
	}
	return true, false
}

// restLocked puts a worker to rest, and reports whether it is needed.
func (s *sender) restLocked(w *worker) bool {
	if s.d.ctx.Err() != nil || len(s.idle) >= mostSpare {
		return false
	}
	s.idle = append(s.idle, w)
	if !s.willTrim {
		s.willTrim, s.fewest = true, 0
		time.AfterFunc(restFor, s.trim)
	}
	return true
}

// trim ends the workers that were at rest for all of a restFor, and is called again until no worker is
// at rest.
func (s *sender) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(s.fewest, len(s.idle)) // dismiss may have removed some
	for _, w := range s.idle[:n] {
		w.end() // it is removed below, under the same lock
	}
	s.idle = slices.Delete(s.idle, 0, n)
	s.fewest = len(s.idle)
	if s.willTrim = s.fewest > 0; s.willTrim {
		time.AfterFunc(restFor, s.trim)
	}
}

// end ends the goroutine of a worker, if it has one.
func (w *worker) end() {
	if w.wake != nil {
		close(w.wake)
	}
}

// dismiss removes a worker from the workers at rest, and reports whether it was at rest.
func (s *sender) dismiss(w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.idle, w)
	if i >= 0 {
		s.idle = slices.Delete(s.idle, i, i+1)
	}
	return i >= 0
}

// run sends the batches that the worker is given. It ends when enough workers are at rest, when the worker
// is not needed any more, and when the deployment is stopped.
func (w *worker) run() {
	for w.serve() {
		more := true
		select {
		case _, more = <-w.wake:
		case <-w.s.d.ctx.Done():
			if w.s.dismiss(w) {
				return
			}
			_, more = <-w.wake // the worker was taken just before
		}
		if !more {
			return
		}
	}
}

// serve sends the batch, and then the jobs that wait by then. It reports whether the worker rests afterwards.
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

// turn sends the batch, and returns the result of takeNext.
func (w *worker) turn() (more, rests bool) {
	answered := w.send()
	if !w.s.errands {
		w.gather()
		w.s.d.Gate("next")
	}
	return w.s.takeNext(w, answered)
}

// serveSelf is serve for the caller whose request is the batch. The goroutine of the worker continues with the jobs that
// wait by then.
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
		w.start()
	case !rests:
		w.end()
	}
}

// gather lets the callers of a pipeline run before the worker takes the waiting jobs: callers that send their next
// request immediately share the next pipeline. For a near server they get one turn of the scheduler. For a
// server far away it is worth some microseconds to wait for callers on another processor. 64 callers of a
// server 5 ms away waited for 1 ms before each request without a turn, for 0.4 ms with one, and for 0.15 ms
// with up to mostTurns. In a busy process a single turn may take long.
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

// gathered reports whether as many jobs wait as got a reply, or the wait for them has been long enough.
func (s *sender) gathered(answered int, ago time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	away := s.away.least()
	return away < s.from || ago > away/gatherPart || s.waitsLocked() >= answered
}

// left is called when a hook of go-redis, or a function called with a reply, has ended the goroutine. Jobs
// without a reply never get one, as if the replies were lost, and another worker continues.
func (w *worker) left() {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.state != silent {
		w.awaitLocked()
	}
	s.freeLocked(w)
	w.state = resting // not used again
	for _, j := range w.batch {
		if j.errand == nil && j.call != nil {
			j.ended()
		}
	}
	s.addLocked(time.Now())
}

// expectLocked begins the wait for the replies to the batch. It sets the timer only if the timer would fire
// too late: so a worker that gets its replies in time does not set the timer for each batch.
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
	case w.overdueTimer == nil:
		w.overdueTimer = time.AfterFunc(at.Sub(now), w.overdue)
	case w.armed.IsZero() || w.armed.After(at):
		w.overdueTimer.Reset(at.Sub(now))
	default:
		return
	}
	w.armed = at
}

// overdue is called when the replies may be overdue, and from then on after each patience.
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
			s.d.doubt() // waiting errands are not sent before the reply to a PING
		}
	}
	switch {
	case w.state == sending:
		w.armLocked(now, w.due)
	case w.state != silent || w.isAbandoned:
	case now.Before(w.limit):
		if now.Sub(s.givenAt) >= patience {
			s.addLocked(now)
		}
		w.armLocked(now, now.Add(min(patience, w.limit.Sub(now))))
	default:
		close(w.abandoned) // requests that still wait for a connection need not be sent
		w.isAbandoned = true
	}
}

// awaitLocked starts a goroutine that waits for the reply of each errand of the batch without one.
func (w *worker) awaitLocked() {
	for i := range w.batch {
		if j := &w.batch[i]; w.s.errands && j.r != nil {
			w.await(j, nil)
		}
	}
}

// await starts a goroutine that waits for the reply to an errand like a caller, and decides about a second
// copy and the end of the wait. failed, unless nil, is the failure of the first copy.
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

// send sends the batch, and passes the replies on. It reports whether a reply came. A hook may end the
// goroutine: see left.
func (w *worker) send() (answered bool) {
	if w.s.errands && !w.ready() {
		return false
	}
	if len(w.batch) == 1 {
		return w.sendOne()
	}
	return w.sendTogether()
}

// ready removes from the batch the errands that are not to be sent now, and gets the requests of the others.
func (w *worker) ready() bool {
	d, kept := w.s.d, w.batch[:0]
	w.at = d.cfg.Clock.Now()
	for _, j := range w.batch {
		if _, waits := w.s.park(j); waits {
			continue // otherwise each batch would wait for a timeout of a silent server
		}
		err := ErrTooLate
		if j.errand.Context().Err() == nil {
			j.r, err = j.errand.Request()
		}
		if err != nil { // the errand is not needed any more
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

// client returns the client with which the worker sends.
func (w *worker) client() redis.UniversalClient {
	if w.by.client != nil {
		return w.by.client
	}
	return w.s.d.io
}

// leaves records the flight of a job that is about to be sent, and reports whether the job may be sent.
func (j *job) leaves(f *flight) bool {
	if j.errand != nil {
		j.flight = f
		return true
	}
	return j.call.begins(j.slot, f)
}

// expect is expectLocked for errands, once their requests are made.
func (w *worker) expect() {
	if w.s.errands {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.expectLocked(time.Now())
	}
}

// sendOne sends the only job of the batch as a command.
func (w *worker) sendOne() (answered bool) {
	j := &w.batch[0]
	_, until := j.terms(time.Now())
	abandoned := w.abandoned
	if w.by.client != nil {
		until = w.limit
	} else if j.errand == nil {
		abandoned = j.call.abandoned
	}
	one, r := newCopy(j.context(), j.r, w.s.d.sendsText.Load(), until, abandoned), j.r
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
	// The pipeline does not end with the context of one caller: others wait for it too.
	ctx := forCallers(&ioContext{Context: context.Background(), deadline: until, abandoned: w.abandoned}, callers)
	d := w.s.d
	return w.deliver(ctx, d.sendBatch(ctx, d.io, requests, flights, nil))
}

// deliver passes answers on, and reports whether any of them is a reply of the server.
func (w *worker) deliver(ctx context.Context, answers []Answer) (answered bool) {
	if s := w.s; s.errands {
		s.mu.Lock()
		if w.state == sending { // from here on the replies are not overdue
			w.state = passing
			s.passing++
		}
		s.mu.Unlock()
	}
	// Failures last: another command may be needed to find the reason.
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

package wire

import (
	"slices"
	"sync"
	"time"
)

// job is a copy to send. Whoever sends it answers its call, once.
type job struct {
	call     *call
	r        *Request
	end      func()    // see seam.Env.Work
	combiner *combiner // whose worker sends it; nil: it is sent by itself
	term     int       // of the worker that begins with it
	slot     uint8     // of the copy in its call
}

// answer answers the call of a job.
func (j *job) answer(a Answer) {
	a.slot = j.slot
	j.call.answers <- a
}

// worker is a goroutine that sends copies, one at a time. It keeps its stack, which a new
// goroutine would have to grow for each request.
type worker struct {
	// jobs is of one: whoever takes a worker at rest gives it one job, or closes it.
	jobs chan job
	room []job // for a batch
}

// mostSpare is how many workers, and calls, at rest are kept. Workers that were not needed
// for all of a restFor end at the end of it, so that a client at rest has none.
const (
	mostSpare = 16
	restFor   = 500 * time.Millisecond
)

// spare is what rests until the next request. It belongs to one Deployment, not to the
// process: in a synctest bubble, channels and timers from another one must not be used.
type spare struct {
	mu      sync.Mutex // guards the rest
	calls   []*call
	workers []*worker // the last was put to rest last, and is taken first
	fewest  int       // workers at rest at any time of this restFor: so many are not needed
	trims   bool      // trim is going to be called
}

// call returns a call at rest, or a new one.
func (s *spare) call() *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.calls)
	if n == 0 {
		return newCall()
	}
	c := s.calls[n-1]
	s.calls = s.calls[:n-1]
	return c
}

// rest keeps a call for later.
func (s *spare) rest(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) < mostSpare {
		s.calls = append(s.calls, c)
	}
}

// perform has a worker do a job. It does not wait for that.
func (d *Deployment) perform(j job) {
	s := &d.spare
	s.mu.Lock()
	n := len(s.workers)
	if n == 0 {
		s.mu.Unlock()
		w := &worker{jobs: make(chan job, 1)}
		go w.run(d, j)
		return
	}
	w := s.workers[n-1]
	s.workers = s.workers[:n-1]
	s.fewest = min(s.fewest, n-1)
	s.mu.Unlock()
	w.jobs <- j // it does not block: only the taker of a worker gives it a job
}

// run does a job, and those that follow. It ends when there are enough workers at rest, when
// it is not needed any more, and when the deployment is stopped.
func (w *worker) run(d *Deployment, j job) {
	for {
		if j.combiner == nil {
			d.do(j)
		} else {
			w.serve(d, j.combiner, append(w.room, j), j.term)
		}
		j = job{} // while it rests, it keeps nothing alive
		if !d.rests(w) {
			return
		}
		more := true
		select {
		case j, more = <-w.jobs:
		case <-d.ctx.Done():
			if d.dismiss(w) {
				return
			}
			j, more = <-w.jobs // it was taken just before
		}
		if !more {
			return
		}
	}
}

// do sends a copy, and reports whether the server has answered. A hook may end the goroutine: then
// the copy stays unanswered, as if its reply were lost, and the worker with it.
func (d *Deployment) do(j job) (answered bool) {
	defer d.ended(j)
	s := newCopy(j.call)
	if !j.call.begins(j, &s.flight) {
		return false
	}
	a := d.send(s, j.r, j.call.first)
	j.answer(a)
	return a.Err == nil || IsReply(a.Err)
}

// ended notes the end of a job that launch has begun.
func (d *Deployment) ended(j job) {
	j.end()
	d.sending.Add(-1)
}

// rests puts a worker to rest, and reports whether it is needed.
func (d *Deployment) rests(w *worker) bool {
	s := &d.spare
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ctx.Err() != nil || len(s.workers) >= mostSpare {
		return false
	}
	s.workers = append(s.workers, w)
	if !s.trims {
		s.trims, s.fewest = true, 0
		time.AfterFunc(restFor, s.trim)
	}
	return true
}

// trim ends the workers that were at rest for all of a restFor: those that were put to rest
// first. It is called again until none is at rest.
func (s *spare) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(s.fewest, len(s.workers)) // dismiss may have removed some
	for _, w := range s.workers[:n] {
		close(w.jobs) // nobody can take it any more
	}
	s.workers = slices.Delete(s.workers, 0, n)
	s.fewest = len(s.workers)
	if s.trims = s.fewest > 0; s.trims {
		time.AfterFunc(restFor, s.trim)
	}
}

// dismiss removes a worker at rest. It reports whether the worker was still there.
func (d *Deployment) dismiss(w *worker) bool {
	s := &d.spare
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.workers {
		if other == w {
			last := len(s.workers) - 1
			s.workers[i] = s.workers[last]
			s.workers = s.workers[:last]
			return true
		}
	}
	return false
}

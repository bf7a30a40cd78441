package wire

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Requests of concurrent callers to one server are combined. While few are under way, each is
// sent at once, as a command of its own. Otherwise it waits, and a worker that has its answer
// takes what waits as one pipeline: one write and one read for all of them. In it, a script
// for several does what it can: see Script.Many.
const (
	// direct is how many workers send to one server at a time.
	direct = 8

	// pipelines is how many of them send several requests. The fewer they are, the longer are
	// the pipelines; but if the server is far away, the longer a request waits.
	pipelines = 4

	// combined is how many requests go into one pipeline. Over a network a pipeline is under way
	// for long, and as many callers come meanwhile as it could take: with 32, 512 callers got
	// through to a server 10 ms away half as often. Nobody else waits for a whole pipeline: no
	// script in it is for more than mostTogether.
	combined = 256

	// A server is far away if it takes so long to answer at least. A pipeline to it is under way
	// for long, and most of that time neither the server nor this process is busy with it. So what
	// waits is sent as soon as nothing was for gapPart of that time, and not when an answer comes:
	// in up to farPipelines. To a server that is near, more pipelines would only be shorter ones.
	far          = 500 * time.Microsecond
	gapPart      = 32
	farPipelines = 8

	// stuckPart is the part of its budget after which a request that waits looks whether
	// anything was taken meanwhile. If not, all workers hang: see relieve.
	stuckPart = 8
)

// combiner has the requests that wait for the workers of one server.
type combiner struct {
	of *combiners

	mu        sync.Mutex // guards the rest
	waiting   []job      // from head on, and those that were withdrawn, for a while
	head      int
	withdrawn int       // how many these are
	busy      int       // workers that send
	pipelines int       // those that send several requests
	last      time.Time // when a worker took what it sends
	heard     time.Time // when the server answered a worker
	away      distance  // how far away the server is
	paced     bool      // a timer is going to call paceLocked
	term      int       // workers of an earlier one do not count: see relieve
}

// combiners are those of a deployment.
type combiners struct {
	direct, pipelines int
	far               int // pipelines for a server that is far away

	one    combiner    // of a deployment that is one server, as far as is known
	mapped atomic.Bool // go-redis knows which node of the cluster has which keys

	mu     sync.Mutex // guards byNode
	byNode map[string]*combiner
}

// open sets the limits of a deployment. pool is how many connections go-redis has for pipelines
// alone; 0: that is not known. Some of them are left to renewals.
func (s *combiners) open(direct, pool int) {
	s.direct, s.pipelines, s.far = direct, pipelines, pipelines
	if pool > 0 {
		s.pipelines, s.far = max(1, min(pipelines, pool-2)), max(1, min(farPipelines, pool-2))
	}
	s.one.of = s
}

// known notes that a command was answered: in a cluster, go-redis has its map then.
func (s *combiners) known(d *Deployment) {
	if d.cluster != nil && !s.mapped.Load() {
		s.mapped.Store(true)
	}
}

// combinerOf returns where a request waits while its server is busy with others. It returns nil
// if the request does not wait: WAIT needs a connection of its own.
func (d *Deployment) combinerOf(r *Request) *combiner {
	s := &d.combiners
	switch {
	case r.Script == nil || r.Acked:
		return nil
	case d.cluster == nil:
		return &s.one
	case !s.mapped.Load():
		return nil // go-redis may ask a server now, which takes time
	}
	// Each node has its own: a node that hangs does not hold up requests to the others.
	node, err := d.NodeFor(d.ctx, r.route())
	one, ok := node.(*redis.Client)
	if err != nil || !ok {
		return nil
	}
	address := one.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.byNode[address]
	if k == nil {
		if s.byNode == nil {
			s.byNode = map[string]*combiner{}
		}
		k = &combiner{of: s}
		s.byNode[address] = k
	}
	return k
}

// admit reports whether a job is to be sent at once, by a worker of that term. Otherwise it
// waits.
func (k *combiner) admit(j job, now time.Time) (term int, at bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// What waits comes first, and a worker is going to take it: see next. What was withdrawn
	// does not count: it would wait for a pipeline that may hang, and has nobody to relieve it.
	if k.busy < k.of.direct && len(k.waiting)-k.head == k.withdrawn {
		k.busy++
		k.last = now
		return k.term, true
	}
	j.call.queued = true
	if k.head > 0 && len(k.waiting) == cap(k.waiting) {
		k.keep(func(job) bool { return true })
	}
	k.waiting = append(k.waiting, j)
	k.paceLocked(j.call.d, now)
	return 0, false
}

// mostLocked is how many pipelines may be under way.
func (k *combiner) mostLocked() int {
	if k.away.least() >= far {
		return max(k.of.pipelines, k.of.far)
	}
	return k.of.pipelines
}

// paceLocked has what waits for a server that is far away sent: now, or when nothing was sent for
// a while. But if nobody had an answer lately, the server may hang: then it is for relieve.
func (k *combiner) paceLocked(d *Deployment, now time.Time) {
	away := k.away.least()
	if away < far || now.Sub(k.heard) > 2*away || k.paced || k.pipelines >= k.of.far || k.busy >= k.of.direct+k.of.far {
		return
	}
	rest := k.last.Add(away / gapPart).Sub(now)
	if rest <= 0 {
		k.addLocked(d)
		return
	}
	k.paced = true
	time.AfterFunc(rest, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.paced = false; len(k.waiting)-k.head > k.withdrawn {
			k.paceLocked(d, time.Now())
		}
	})
}

// distance is how far away a server is: the shortest time in which it answers. Two windows of it are kept, so
// that the shortest of the last ten seconds is always known.
type distance struct {
	since       time.Time     // when the window of now began
	now, before time.Duration // the shortest of each window; 0: none
}

// forgetAfter is how long a window is.
const forgetAfter = 10 * time.Second

// add notes an answer.
func (a *distance) add(now time.Time, took time.Duration) {
	if now.Sub(a.since) > forgetAfter {
		a.since, a.now, a.before = now, took, a.now
	}
	a.now = min(a.now, took)
}

// least is the shortest of the last answers; 0: it is not known.
func (a *distance) least() time.Duration {
	if a.before == 0 {
		return a.now
	}
	return min(a.now, a.before)
}

// withdraw reports whether a job still waits. Then it is not sent any more.
func (k *combiner) withdraw(j job) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !j.call.queued {
		return false
	}
	j.call.queued = false
	k.withdrawn++
	if k.withdrawn > combined && k.withdrawn > (len(k.waiting)-k.head)/2 {
		k.keep(func(j job) bool { return j.call.queued })
		k.withdrawn = 0
	}
	return true
}

// keep moves some of what waits to the front, and forgets the rest.
func (k *combiner) keep(which func(job) bool) {
	kept := k.waiting[:0]
	for _, j := range k.waiting[k.head:] {
		if which(j) {
			kept = append(kept, j)
		}
	}
	clear(k.waiting[len(kept):])
	k.waiting, k.head = kept, 0
}

// relieve is called for a job that has waited for a while, and reports whether it waits still.
// If nothing was taken meanwhile, all workers hang. Perhaps only their connections do, so they
// do not count any more, and a new worker begins, with one pipeline. When that is answered
// others follow: see next. Until then one more begins after each such while.
//
// Why not all that waits is sent: the server, or this process, may only have been short of time.
// Ten thousand requests that are sent one by one would keep it so until all were too late.
func (k *combiner) relieve(j job, within time.Duration) (waits bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if j.call.queued && time.Since(k.last) >= within {
		k.term++
		k.busy, k.pipelines = 0, 0
		k.addLocked(j.call.d)
	}
	return j.call.queued
}

// addLocked has one more worker begin with what waits.
func (k *combiner) addLocked(d *Deployment) {
	k.busy++
	if batch := k.takeLocked(nil); len(batch) > 0 {
		go (&worker{}).serve(d, k, batch, k.term)
	}
}

// takeLocked returns what a worker sends next, in room. If nothing, the worker has left.
func (k *combiner) takeLocked(room []job) []job {
	batch, now := room, time.Now()
	if k.pipelines < k.mostLocked() {
		for ; k.head < len(k.waiting) && len(batch) < combined; k.head++ {
			if j := k.waiting[k.head]; j.call.queued {
				j.call.queued, j.call.begun = false, now
				batch = append(batch, j)
			} else {
				k.withdrawn--
			}
			k.waiting[k.head] = job{}
		}
		if k.head == len(k.waiting) {
			k.waiting, k.head = k.waiting[:0], 0
		}
	}
	switch len(batch) {
	case 0:
		k.busy--
		return batch
	case 1:
	default:
		k.pipelines++
	}
	k.last = now
	return batch
}

// queued is for how long a call waited until a worker took it; 0: it did not, or was not taken.
func (k *combiner) queued(c *call) time.Duration {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.begun.IsZero() {
		return 0
	}
	return c.begun.Sub(c.began)
}

// answersSince reports whether the server has answered others for a while.
func (k *combiner) answersSince(t time.Time) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.heard.After(t)
}

// next returns what a worker of a term sends after a batch, which the server has answered or
// not, and in which term; if nothing, the worker has left. While something waits, it leaves only if others send pipelines: they come
// here when they are done. Since a relieve there may be fewer workers than there is work for:
// then another one begins.
func (k *combiner) next(d *Deployment, batch []job, term int, sent time.Time, answered bool) ([]job, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if answered {
		k.heard = time.Now()
		k.away.add(k.heard, k.heard.Sub(sent))
	}
	n := len(batch)
	clear(batch)
	batch = batch[:0]
	switch {
	case term != k.term && k.busy >= k.of.direct:
		return batch, term // others are in the places of those that hung
	case term != k.term:
		k.busy++
	case n > 1:
		k.pipelines--
	}
	batch = k.takeLocked(batch)
	if k.term > 0 && len(batch) > 0 && k.head < len(k.waiting) && k.pipelines < k.mostLocked() && k.busy < k.of.direct {
		k.addLocked(d)
	}
	return batch, k.term
}

// serve sends a batch, and then what has come to wait meanwhile.
func (w *worker) serve(d *Deployment, k *combiner, batch []job, term int) {
	var sent time.Time
	defer func() {
		if len(batch) == 0 {
			return
		}
		// A hook of go-redis has ended the goroutine: another one goes on.
		if batch, term = k.next(d, batch, term, sent, false); len(batch) > 0 {
			go (&worker{}).serve(d, k, batch, term)
		}
	}()
	for len(batch) > 0 {
		var answered bool
		sent = time.Now()
		if len(batch) == 1 {
			answered = d.do(batch[0])
		} else {
			answered = d.doTogether(batch)
		}
		d.gate("next") // its callers go on meanwhile
		batch, term = k.next(d, batch, term, sent, answered)
	}
	w.room = batch
}

// doTogether sends the requests of jobs as one pipeline, and answers their calls. It reports
// whether the server has answered any. A hook may end the goroutine: see do.
func (d *Deployment) doTogether(batch []job) (answered bool) {
	defer func() {
		for _, j := range batch {
			if j.call != nil {
				d.ended(j)
			}
		}
	}()
	var last time.Time
	requests, flights := make([]*Request, len(batch)), make([]flight, len(batch))
	callers := make([]context.Context, len(batch))
	for i, j := range batch {
		requests[i], callers[i] = j.r, j.call.ctx
		if !j.call.begins(j, &flights[i]) {
			flights[i].withdraw()
		}
		if at := j.call.limit(); at.After(last) {
			last = at
		}
	}
	// It ends with none of the callers' contexts: others wait for it too.
	bounded, cancel := context.WithDeadline(context.Background(), last)
	defer cancel()
	ctx := forCallers(bounded, callers)
	answers := d.sendBatch(ctx, d.io, requests, flights, nil)
	// The failed ones are the last: it may take a command to say why.
	for _, failed := range []bool{false, true} {
		for i, a := range answers {
			if failed != (a.Err != nil) {
				continue
			}
			answered = answered || a.Err == nil || IsReply(a.Err)
			a.Err = d.foreign(ctx, requests[i], a.Err)
			d.gate("reply") // as if each came by itself
			j := batch[i]
			batch[i] = job{}
			j.answer(a)
			d.ended(j)
		}
	}
	return answered
}

package wire

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A sender sends the requests of one class to one server. While few are under way, each is sent at
// once, as a command of its own, by a worker or, if the server is near, by its caller: see direct.
// Otherwise it waits, and a worker that has its answer takes what waits as one pipeline: one write
// and one read for all of them. In it, a script for several does what it can: see Script.Many.
//
// A server that is silent is met by one rule. What a worker has sent is overdue after a part of its
// timeout: see patience. From then on the worker does not count, so nothing waits for it.
//   - What callers wait for (Do) is sent again by themselves. One more worker takes what waits, as one
//     pipeline. When that is answered others follow; until then one more begins after each such
//     while. Perhaps only connections hang.
//   - What is asked of several servers (Ask, Put) has no goroutine that waits. Each errand gets one
//     now, and the rest goes when the server has answered a PING: see health.
//
// Why not all that waits is sent at once: the server, or this process, may only have been short of
// time. Ten thousand requests that are sent one by one would keep it so until all were too late,
// and a server that hangs would have as many stale commands to run when it recovers.
type sender struct {
	d *Deployment
	limits

	mu        sync.Mutex // guards the rest
	waiting   []job      // from head on, and those that were withdrawn, for a while
	head      int
	withdrawn int           // how many these are
	busy      int           // workers that send, or pass answers on, and are not overdue
	pipelines int           // those of them that were given several requests
	passing   int           // those of them that pass answers to errands on, and then take what waits
	overdue   int           // workers that are silent
	last      time.Time     // when a worker was given what it sends
	begun     time.Time     // when one was after a rest: what was sent before it has ended, and not in silence
	heard     time.Time     // when the server answered a worker
	away      distance      // how far away the server is
	usual     time.Duration // how long it takes to answer, on average; 0: not known
	fast      bool          // the last answer took less than nearby, and no copy without a worker was without one since
	latest    time.Duration // how long a pipeline of a round took last
	paced     bool          // a timer is going to call paceLocked

	idle   []*worker // the last was put to rest last, and is taken first
	fewest int       // workers at rest at any time of this restFor: so many are not needed
	trims  bool      // trim is going to be called
}

// limits are those of a class of requests.
type limits struct {
	alone   int           // workers that send at a time, if the server is near
	near    int           // those of them that send several requests. The fewer, the longer are the pipelines
	far     int           // the same, for a server that is far away; 0: no more than if it is near
	from    time.Duration // how long it takes to answer at least if it is far away
	batch   int           // how many requests go into one pipeline
	errands bool          // errands are sent, and not copies of calls
}

const (
	// alone is how many requests of callers are sent to one server at a time, and pipelines how many pipelines with several
	// of them.
	alone     = 8
	pipelines = 4

	// combined is how many requests of callers go into one pipeline. Over a network a pipeline is
	// under way for long, and as many callers come meanwhile as it could take: with 32, 512
	// callers got through to a server 10 ms away half as often. Nobody else waits for a whole
	// pipeline: no script in it is for more than mostTogether.
	combined = 256

	// asked is how many workers send what callers ask several servers at once. That costs this
	// process a request for each server, so a pipeline is worth more than to be sent at once.
	asked = 2

	// A server is far away if it takes so long to answer at least. A pipeline to it is under way
	// for long, and most of that time neither the server nor this process is busy with it. So what
	// waits does not wait for an answer: it is sent in up to farPipelines, which are spread evenly
	// over that time. To a server that is near, more pipelines would only be shorter ones.
	// For whoever asks five servers that is so from farAsked on: this process is five times as busy.
	// 64 callers of a RedLock whose servers are 1 ms away made 4.4 to 4.9 k pairs a second with
	// more pipelines and 5.8 to 6.9 k without, and 10 ms away 1.8 to 1.9 and 1.3 to 1.9 k.
	far          = 500 * time.Microsecond
	farAsked     = 5 * time.Millisecond
	farPipelines = 8

	// The callers of a pipeline to a server far away have so many turns before what waits is sent, for a
	// part of the time in which it answers: see gather.
	mostTurns, gatherPart = 128, 32

	// overduePart is the part of its timeout after which a request that has no answer is overdue.
	// If the server is so far away that it usually takes more than half of that, its answer is
	// late after twice as long as usual. Some of the timeout is left in any case.
	overduePart = 8
)

// senders are those of a deployment.
type senders struct {
	one      sender // for callers, of a deployment that is one server as far as is known
	votes    sender // for Ask
	renewals sender // for Put: one pipeline at a time
	free     sender // for what does not wait: a second copy, and what needs a connection of its own

	mapped atomic.Bool // go-redis knows which node of the cluster has which keys

	mu     sync.Mutex         // guards byNode
	byNode map[string]*sender // for callers, of the nodes of a cluster
}

// open sets the limits. atATime is how many pipelines there are connections for.
func (s *senders) open(d *Deployment, alone, atATime int) {
	near, away := max(1, min(pipelines, atATime)), max(1, min(farPipelines, atATime))
	for to, class := range map[*sender]limits{
		&s.one:      {alone: alone, near: near, far: away, from: far, batch: combined},
		&s.votes:    {alone: asked, near: asked, far: away, from: farAsked, batch: BatchSize, errands: true},
		&s.renewals: {alone: 1, near: 1, far: min(farRounds, away), from: farAsked, batch: BatchSize, errands: true},
		&s.free:     {alone: math.MaxInt},
	} {
		to.d, to.limits = d, class
	}
}

// answered notes that a command was: in a cluster, go-redis has its map then.
func (d *Deployment) answered() {
	if d.cluster != nil && !d.senders.mapped.Load() {
		d.senders.mapped.Store(true)
	}
}

// senderOf returns the sender of a caller's request. It is free if the request does not wait: WAIT
// needs a connection of its own.
func (d *Deployment) senderOf(r *Request) *sender {
	s := &d.senders
	switch {
	case r.Script == nil || r.Acked:
		return &s.free
	case d.cluster == nil:
		return &s.one
	case !s.mapped.Load():
		return &s.free // go-redis may ask a server now, which takes time
	}
	// Each node has its own: a node that hangs does not hold up requests to the others.
	node, err := d.NodeFor(d.ctx, r.route())
	one, ok := node.(*redis.Client)
	if err != nil || !ok {
		return &s.free
	}
	address := one.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.byNode[address]
	if of == nil {
		if s.byNode == nil {
			s.byNode = map[string]*sender{}
		}
		of = &sender{d: d, limits: s.one.limits}
		s.byNode[address] = of
	}
	return of
}

// put has a job sent. It reports whether a worker begins with it at once; otherwise it waits. If by is not
// zero, the caller may send it itself. Then put returns the worker that it is for this time.
func (s *sender) put(j job, now time.Time, by way) (self *worker, begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What waits comes first, and a worker is going to take it: see next. What was withdrawn does
	// not count: it would wait for a pipeline that may hang, and has nobody to take it. An answer
	// that is passed on may have brought this request about: its worker is about to send that.
	if s.busy < s.alone && s.passing == 0 && s.waitsLocked() == 0 {
		w := s.workerLocked()
		w.batch = append(w.batch, j)
		if by.client == nil || !s.directLocked() {
			s.beginLocked(w, now)
			return nil, true
		}
		w.by = by
		s.givenLocked(w, now)
		return w, true
	}
	if j.call != nil {
		j.call.queued = true
	}
	if s.head > 0 && len(s.waiting) == cap(s.waiting) {
		s.keepLocked(func(job) bool { return true })
	}
	s.waiting = append(s.waiting, j)
	s.paceLocked(now)
	return nil, false
}

// directLocked reports whether the caller of one more request sends it: few are under way, and the server is near, as the
// last answer was fast, and most before it.
func (s *sender) directLocked() bool {
	return s.busy <= mostDirect && s.fast && s.usual < nearby && s.overdue == 0
}

// waitsLocked is how many jobs wait.
func (s *sender) waitsLocked() int { return len(s.waiting) - s.head - s.withdrawn }

// roomLocked reports whether one more pipeline may be under way.
func (s *sender) roomLocked() bool {
	if s.away.least() >= s.from {
		return s.pipelines < max(s.near, s.far)
	}
	return s.pipelines < s.near
}

// paceLocked has what waits for a server that is far away sent: now, or when nothing was sent for
// a while. But if requests are under way and nobody had an answer lately, the server may hang: see
// overdue. And a worker that passes answers on takes what waits.
func (s *sender) paceLocked(now time.Time) {
	away := s.away.least()
	silent := min(now.Sub(s.heard), now.Sub(s.begun))
	if away < s.from || silent > 2*away || s.paced || s.passing > 0 || s.pipelines >= s.far || s.busy >= s.alone+s.far {
		return
	}
	rest := s.last.Add(away / time.Duration(s.far)).Sub(now)
	if rest <= 0 {
		s.addLocked(now)
		return
	}
	s.paced = true
	time.AfterFunc(rest, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.paced = false; s.waitsLocked() > 0 {
			s.paceLocked(time.Now())
		}
	})
}

// addLocked has one more worker begin with what waits, if anything does.
func (s *sender) addLocked(now time.Time) {
	if s.waitsLocked() > 0 && s.roomLocked() {
		w := s.workerLocked()
		s.takeLocked(w, now)
		s.beginLocked(w, now)
	}
}

// takeLocked gives a worker what waits. There is some.
func (s *sender) takeLocked(w *worker, now time.Time) {
	for ; s.head < len(s.waiting) && len(w.batch) < s.batch; s.head++ {
		switch j := s.waiting[s.head]; {
		case j.call == nil:
			w.batch = append(w.batch, j)
		case j.call.queued:
			j.call.queued, j.call.begun = false, now
			w.batch = append(w.batch, j)
		default:
			s.withdrawn--
		}
		s.waiting[s.head] = job{}
	}
	if s.head == len(s.waiting) {
		s.waiting, s.head = s.waiting[:0], 0
	}
}

// withdraw reports whether a call's copy still waits. Then it is not sent any more.
func (s *sender) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.queued {
		return false
	}
	c.queued = false
	s.withdrawn++
	if left := s.waitsLocked(); left == 0 || s.withdrawn > max(left, combined) {
		s.keepLocked(func(j job) bool { return j.call.queued })
		s.withdrawn = 0
	}
	return true
}

// keepLocked moves some of what waits to the front, and forgets the rest.
func (s *sender) keepLocked(which func(job) bool) {
	kept := s.waiting[:0]
	for _, j := range s.waiting[s.head:] {
		if which(j) {
			kept = append(kept, j)
		}
	}
	clear(s.waiting[len(kept):])
	s.waiting, s.head = kept, 0
}

// taken returns when a worker took the copy of a call that waited; zero: none did. waits: it waits still.
func (s *sender) taken(c *call) (at time.Time, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.begun, c.queued
}

// answersSince reports whether the server has answered others for a while.
func (s *sender) answersSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard.After(t)
}

// patience is how long to wait for an answer until it is overdue.
func (s *sender) patience(timeout time.Duration) time.Duration {
	return min(max(timeout/overduePart, 2*s.usual), timeout*3/4)
}

// newConnection is how many round trips go-redis needs at most before the first request on a new connection: one for
// TCP, two for TLS, one for HELLO, and two for what it says of itself.
const newConnection = 6

// isFar reports whether a node is far away, as callers have seen it lately, or renewals: there may be no callers, and a
// pipeline of renewals takes some time on any server.
func (d *Deployment) isFar(node redis.UniversalClient) bool {
	s := &d.senders.one
	if one, ok := node.(*redis.Client); ok && d.cluster != nil {
		d.senders.mu.Lock()
		s = d.senders.byNode[one.Options().Addr]
		d.senders.mu.Unlock()
	}
	return s != nil && s.distance() >= far || d.senders.renewals.distance() >= farAsked
}

func (s *sender) distance() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away.least()
}

// Patience is how long the server may be silent without being away, as far as is known: twice as long as it usually
// takes to answer callers, on a new connection; 0 if it has not answered any.
func (d *Deployment) Patience() time.Duration {
	s := &d.senders
	longest := max(s.one.reach(), s.votes.reach())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.byNode {
		longest = max(longest, of.reach())
	}
	return longest
}

// reach is Patience for what a sender has heard.
func (s *sender) reach() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newConnection*s.away.least() + 2*s.usual
}

// hearsLocked notes that the server has answered, and how long it took.
func (s *sender) hearsLocked(now time.Time, took time.Duration) {
	s.heard = now
	s.away.add(now, took)
	if s.usual == 0 {
		s.usual = took
	}
	s.usual += (took - s.usual) / 8
	s.fast = took < nearby
}

// took notes that a pipeline of a round, which has no worker, was answered.
func (s *sender) took(since time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = now.Sub(since)
	s.away.add(now, s.latest)
}

// tookLong reports whether the last pipeline of a round was answered late.
func (s *sender) tookLong() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest > lateAfter
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

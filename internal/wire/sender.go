package wire

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A sender sends the requests of one class to one server. While few are under way, each is sent
// immediately as a separate command, by a worker or, if the server is near, by its caller (direct.go).
// Otherwise requests wait, and the next worker that gets a reply takes all waiting requests as one
// pipeline: one write and one read for all of them. Scripts for several requests combine them further: see
// Script.Many.
//
// If the server is silent, the requests of a worker are overdue after a part of their timeout: see
// patience. From then on the worker does not count as busy, so no request waits for it.
//   - Callers that wait (Do) send their requests again themselves. One more worker takes the waiting
//     requests, as one pipeline. When that pipeline gets a reply, other workers follow. Until then one
//     more worker begins after each further patience, because perhaps only some connections hang.
//   - Errands (Ask, Put) have no goroutine that waits. Each overdue errand gets a goroutine now, and the
//     waiting errands are sent after the reply to a PING: see health.
//
// The waiting requests are not all sent immediately, because the server, or this process, may only have
// been busy. Ten thousand single requests would keep the server busy until all were too late, and a server
// that hangs would have ten thousand stale commands to run when it recovers.
type sender struct {
	d *Deployment
	limits

	mu        sync.Mutex    // guards the rest
	waiting   []job         // waiting jobs from head on; withdrawn ones stay for a while
	head      int           // index of the first waiting job
	withdrawn int           // how many of the waiting jobs were withdrawn
	busy      int           // workers that send, or pass replies on, and are not overdue
	pipelines int           // busy workers that have several requests
	passing   int           // busy workers that pass replies to errands on, and then take the waiting jobs
	overdue   int           // workers without a reply in time
	givenAt   time.Time     // when a worker was last given requests
	busySince time.Time     // when the current busy period began; all requests sent earlier have got replies
	repliedAt time.Time     // when a worker last got a reply
	away      distance      // distance of the server
	usual     time.Duration // average time until a reply; 0 if not known
	isFast    bool          // the last reply took less than nearby, and no caller's own copy was without a reply since
	latest    time.Duration // how long the latest pipeline of a round took
	willPace  bool          // a timer will call paceLocked

	idle     []*worker // workers at rest; the last one rests for the shortest time, and is taken first
	fewest   int       // least number of workers at rest in this restFor: so many are not needed
	willTrim bool      // a timer will call trim
}

// limits are the limits of a class of requests.
type limits struct {
	alone   int           // busy workers, if the server is near
	near    int           // busy workers with several requests. The fewer, the longer are the pipelines
	far     int           // busy workers with several requests, if the server is far away; 0 means as many as near
	from    time.Duration // distance from which on a server is far away
	batch   int           // requests in one pipeline
	errands bool          // the requests are errands, not copies of calls
}

const (
	// alone is how many workers send requests of callers to one server at a time, and pipelines how many of
	// them may have several requests.
	alone     = 8
	pipelines = 4

	// combined is how many requests of callers go into one pipeline. Over a network a pipeline takes
	// long, and as many callers come meanwhile as it could take: with 32, 512 callers of a server 10 ms
	// away made half as many pairs. Other clients do not wait for a whole pipeline, because no script in
	// it is for more than mostTogether requests.
	combined = 256

	// voteWorkers is how many workers send errands of callers to one of several servers. Each errand costs this
	// process a request per server, so a pipeline saves more than sending immediately.
	voteWorkers = 2

	// far is the distance (the shortest time until a reply) from which on a server is far away. Most of
	// the time that a pipeline to it takes, neither the server nor this process is busy with it. So the
	// waiting requests are sent before a reply comes, in up to farPipelines pipelines, which are spread
	// evenly over that time. To a near server, more pipelines would only be shorter.
	// For errands (votes and renewals) the distance is farVotes, because with several servers this process is
	// several times as busy: 64 callers of a RedLock on five servers made 4.4 to 4.9 k pairs a second with more pipelines
	// and 5.8 to 6.9 k without, if the servers were 1 ms away, and 1.8 to 1.9 and 1.3 to 1.9 k at 10 ms.
	far          = 500 * time.Microsecond
	farVotes     = 5 * time.Millisecond
	farPipelines = 8

	// mostTurns and gatherPart bound the wait for the callers of a pipeline to a server far away: see
	// gather.
	mostTurns, gatherPart = 128, 32

	// overduePart is the part of its timeout after which a request without a reply is overdue: an eighth.
	// For a server that usually takes more than half of that time, a request is overdue after twice the
	// usual time, but at most after three quarters of the timeout.
	overduePart = 8
)

// senders are the senders of a deployment.
type senders struct {
	one      sender // requests of callers, unless the deployment is known to be a cluster
	votes    sender // errands of Ask
	renewals sender // errands of Put, one pipeline at a time
	free     sender // requests that never wait: second copies, and those that need a separate connection

	hasMap atomic.Bool // go-redis knows which node of the cluster has which keys

	mu     sync.Mutex         // guards byNode
	byNode map[string]*sender // requests of callers, by node of a cluster
}

// setLimits sets the limits. There are connections for atATime pipelines at a time.
func (s *senders) setLimits(d *Deployment, alone, atATime int) {
	near, away := max(1, min(pipelines, atATime)), max(1, min(farPipelines, atATime))
	for to, class := range map[*sender]limits{
		&s.one:      {alone: alone, near: near, far: away, from: far, batch: combined},
		&s.votes:    {alone: voteWorkers, near: voteWorkers, far: away, from: farVotes, batch: BatchSize, errands: true},
		&s.renewals: {alone: 1, near: 1, far: min(farRounds, away), from: farVotes, batch: BatchSize, errands: true},
		&s.free:     {alone: math.MaxInt},
	} {
		to.d, to.limits = d, class
	}
}

// answered records that a command got a reply. In a cluster, go-redis then has the map of the slots.
func (d *Deployment) answered() {
	if d.cluster != nil && !d.senders.hasMap.Load() {
		d.senders.hasMap.Store(true)
	}
}

// senderOf returns the sender of a caller's request. It is the sender free if the request needs a
// separate connection, as for WAIT, or if its node is not known.
func (d *Deployment) senderOf(r *Request) *sender {
	s := &d.senders
	switch {
	case r.Script == nil || r.Acked:
		return &s.free
	case d.cluster == nil:
		return &s.one
	case !s.hasMap.Load():
		return &s.free // to find the node, go-redis may send a request, which takes time
	}
	// Each node has a sender, so that a node that hangs does not hold up requests to the others.
	node, err := d.NodeFor(d.ctx, r.route())
	one, ok := node.(*redis.Client)
	if err != nil || !ok {
		return &s.free
	}
	address := one.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	nodeSender := s.byNode[address]
	if nodeSender == nil {
		if s.byNode == nil {
			s.byNode = map[string]*sender{}
		}
		nodeSender = &sender{d: d, limits: s.one.limits}
		s.byNode[address] = nodeSender
	}
	return nodeSender
}

// put queues a job. It reports whether a worker begins with it immediately; otherwise the job waits. If by is
// not zero, the caller may send the job itself: then put returns the worker that the caller has to be.
func (s *sender) put(j job, now time.Time, by way) (self *worker, begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Waiting jobs go first, and a worker will take them: see takeNext. Withdrawn jobs do not count: behind
	// them, this job would wait for a pipeline that may hang. If a worker passes replies on, a reply may have
	// caused this request, and that worker takes it next.
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

// directLocked reports whether a caller may send its request itself: few are under way, and the server is near, because
// the last reply and most before it were fast.
func (s *sender) directLocked() bool {
	return s.busy <= mostDirect && s.isFast && s.usual < nearby && s.overdue == 0
}

// waitsLocked returns how many jobs wait.
func (s *sender) waitsLocked() int { return len(s.waiting) - s.head - s.withdrawn }

// roomLocked reports whether one more pipeline may be under way.
func (s *sender) roomLocked() bool {
	if s.away.least() >= s.from {
		return s.pipelines < max(s.near, s.far)
	}
	return s.pipelines < s.near
}

// paceLocked sends the jobs that wait for a server far away: now, or some time after the last pipeline. The jobs stay if
// no reply has come lately to the requests under way, because the server may hang: see overdue. They also stay if a worker
// passes replies on: that worker will take them.
func (s *sender) paceLocked(now time.Time) {
	away := s.away.least()
	silent := min(now.Sub(s.repliedAt), now.Sub(s.busySince))
	if away < s.from || silent > 2*away || s.willPace || s.passing > 0 || s.pipelines >= s.far || s.busy >= s.alone+s.far {
		return
	}
	rest := s.givenAt.Add(away / time.Duration(s.far)).Sub(now)
	if rest <= 0 {
		s.addLocked(now)
		return
	}
	s.willPace = true
	time.AfterFunc(rest, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.willPace = false; s.waitsLocked() > 0 {
			s.paceLocked(time.Now())
		}
	})
}

// addLocked starts one more worker with the waiting jobs, if any.
func (s *sender) addLocked(now time.Time) {
	if s.waitsLocked() > 0 && s.roomLocked() {
		w := s.workerLocked()
		s.takeLocked(w, now)
		s.beginLocked(w, now)
	}
}

// takeLocked gives a worker the waiting jobs. At least one job waits.
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

// withdraw withdraws a call's copy, and reports whether it still waited.
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

// keepLocked moves some of the waiting jobs to the front, and drops the rest.
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

// taken returns when a worker took the waiting copy of a call, or zero. waits: the copy still waits.
func (s *sender) taken(c *call) (at time.Time, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.begun, c.queued
}

// answersSince reports whether the server has replied to any request since a time.
func (s *sender) answersSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repliedAt.After(t)
}

// patience returns after which time without a reply a request is overdue.
func (s *sender) patience(timeout time.Duration) time.Duration {
	return min(max(timeout/overduePart, 2*s.usual), timeout*3/4)
}

// newConnection is how many round trips go-redis needs at most before the first request on a new connection: one for
// TCP, two for TLS, one for HELLO, and two for CLIENT SETINFO.
const newConnection = 6

// isFar reports whether a node is far away, by the latest replies to callers, or to renewals: there may be no callers,
// and a pipeline of renewals takes some time on any server.
func (d *Deployment) isFar(node redis.UniversalClient) bool {
	s := &d.senders.one
	if one, ok := node.(*redis.Client); ok && d.cluster != nil {
		d.senders.mu.Lock()
		s = d.senders.byNode[one.Options().Addr]
		d.senders.mu.Unlock()
	}
	return s != nil && s.distance() >= far || d.senders.renewals.distance() >= farVotes
}

func (s *sender) distance() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away.least()
}

// Patience returns how long the server may be silent without being unreachable: the time that it usually takes to reply
// to callers on a new connection, with a margin; 0 if it has not replied to any.
func (d *Deployment) Patience() time.Duration {
	s := &d.senders
	longest := max(s.one.reach(), s.votes.reach())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, nodeSender := range s.byNode {
		longest = max(longest, nodeSender.reach())
	}
	return longest
}

// reach is Patience for the replies of one sender.
func (s *sender) reach() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newConnection*s.away.least() + 2*s.usual
}

// noteReplyLocked records that a reply has come, and how long it took.
func (s *sender) noteReplyLocked(now time.Time, took time.Duration) {
	s.repliedAt = now
	s.away.add(now, took)
	if s.usual == 0 {
		s.usual = took
	}
	s.usual += (took - s.usual) / 8
	s.isFast = took < nearby
}

// took records the time of a pipeline of a round, which has no worker.
func (s *sender) took(since time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = now.Sub(since)
	s.away.add(now, s.latest)
}

// tookLong reports whether the latest pipeline of a round got its reply late.
func (s *sender) tookLong() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest > lateAfter
}

// distance is the shortest time until a reply of a server. It keeps two windows, so the shortest of the last ten
// seconds is always known.
type distance struct {
	since       time.Time     // when the window of now began
	now, before time.Duration // shortest time of each window; 0 if none
}

// forgetAfter is the length of a window.
const forgetAfter = 10 * time.Second

// add records the time of a reply.
func (a *distance) add(now time.Time, took time.Duration) {
	if now.Sub(a.since) > forgetAfter {
		a.since, a.now, a.before = now, took, a.now
	}
	a.now = min(a.now, took)
}

// least returns the shortest of the latest times; 0 if not known.
func (a *distance) least() time.Duration {
	if a.before == 0 {
		return a.now
	}
	return min(a.now, a.before)
}

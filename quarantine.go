package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// WithRestartQuarantine keeps a node from voting after it has restarted, lost its
// data, or was replaced, until no hold can be valid any more that it voted for
// before: for the longest lease, counted by each client from when it first sees the
// new process. Then the highest counter of the others is restored to it, so that
// tokens go on growing. A node whose clock jumps does not vote while it is off the
// median of all.
//
// With it a hold survives any number of restarts without data, one after the other
// or at once, as long as the clocks of a majority do not jump together. All clients
// of the lock have to use it, with the same longest lease (WithLongestLease). It
// needs three nodes or more, which allow INFO in scripts and evict no keys
// (maxmemory-policy noeviction), and takes about 2 s of a lease of 30 s.
//
// A new deployment is in quarantine as a whole, until the longest lease has passed
// or [RedLock.Bootstrap] is called.
func WithRestartQuarantine() RedLockOption {
	return func(r *red) { r.quarantine = &quarantine{red: r} }
}

// WithLongestLease is the bound of all leases of a RedLock with a quarantine, and
// how long that takes. Longer leases are refused. The default is the watchdog
// lease of the first client.
func WithLongestLease(d time.Duration) RedLockOption { return func(r *red) { r.longest = d } }

const (
	// clockSkew is by how much the clock of a node may differ from the median of
	// all, as a part of the longest lease, and flightTime is how long a request
	// may be under way: 500 ms and 1 s of 30 s, as long as that is not more.
	clockSkewPart, clockSkewMax   = 60, 500 * time.Millisecond
	flightTimePart, flightTimeMax = 30, time.Second

	// lookAgain is for how long what was learnt of the nodes' clocks is relied
	// on. Quartz clocks drift by less than 100 µs in it.
	lookAgain = 10 * time.Second
)

// quarantine knows the nodes of a RedLock as processes, not as addresses.
type quarantine struct {
	*red
	skew, flight time.Duration
	epoch        time.Time // of this client's monotonic clock

	mu     sync.Mutex // guards the rest
	known  []standing // by node
	looked time.Time  // when the nodes were last looked at
	busy   bool       // somebody is looking
}

// standing is what is known of a node.
type standing struct {
	epoch  string        // its process, and since when that must not vote
	since  time.Time     // when this client first saw that
	offset time.Duration // of its clock to this client's monotonic one
	heard  bool          // offset is known
	evicts string        // the policy, if it may evict keys
}

func (q *quarantine) init() error {
	n := len(q.nodes)
	switch {
	case n < 3:
		return invalid("WithRestartQuarantine: %d nodes cannot tell a clock that has jumped, three can", n)
	case q.longest < q.c.cfg.watchdogLease || q.longest > MaxLease:
		return invalid("WithLongestLease(%v): must be from the watchdog lease, %v, to %v", q.longest, q.c.cfg.watchdogLease, MaxLease)
	}
	q.skew = min(q.longest/clockSkewPart, clockSkewMax)
	q.flight = min(q.longest/flightTimePart, flightTimeMax)
	q.margin = 2*q.skew + q.flight
	q.epoch = q.c.clock.Now()
	q.known = make([]standing, n)
	return nil
}

// guard makes a request one that only a node that may vote obeys, and only while
// it is no late copy and the node's clock is right.
func (q *quarantine) guard(i int, voting bool, r *request) *request {
	lo, hi := int64(0), int64(1)<<53
	if voting {
		q.mu.Lock()
		k := q.known[i]
		q.mu.Unlock()
		if k.evicts != "" {
			return &request{do: func(context.Context) answer { return answer{err: q.unfit(k)} }}
		}
		lo, hi = q.window()
	}
	r.keys = append(r.keys, redAdmitted)
	r.args = append(r.args, lo, hi)
	return r
}

// time is the median of the nodes' clocks, in µs: what is built on it is not
// undone when one that had jumped ahead is set right.
func (q *quarantine) time() int64 {
	now := q.c.clock.Now().Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	offsets := q.offsetsLocked()
	return (now + offsets[len(offsets)/2]).Microseconds()
}

// window is between which times of the nodes a request that is sent now may run,
// in µs: by the median of their clocks, which one that has jumped cannot move.
func (q *quarantine) window() (lo, hi int64) {
	now := q.c.clock.Now().Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	offsets := q.offsetsLocked()
	median := now + offsets[len(offsets)/2]
	return (median - q.skew).Microseconds(), (median + q.skew + q.flight).Microseconds()
}

// ready sees to it that the nodes' clocks are known.
func (q *quarantine) ready(ctx context.Context) error {
	q.mu.Lock()
	fresh := !q.looked.IsZero() && q.c.clock.Now().Sub(q.looked) < lookAgain
	q.mu.Unlock()
	if fresh {
		return nil
	}
	return q.look(ctx)
}

// look asks all nodes who and how they are, and admits those whose quarantine is
// over.
func (q *quarantine) look(ctx context.Context) error {
	nodes, failed := q.survey(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(nodes) < q.quorum {
		return q.noQuorum(failed)
	}
	q.mu.Lock()
	known := q.offsetsLocked()
	q.mu.Unlock()
	if len(known) < 3 && known[len(known)-1]-known[0] > q.skew {
		return fmt.Errorf("%w: the clocks of two nodes differ by %v, and no third tells which of them is right", ErrNoQuorum, known[len(known)-1]-known[0])
	}
	q.admit(ctx, nodes)
	return nil
}

// offsetsLocked are the known offsets of the nodes' clocks, sorted. That of a node
// which is away now is still good.
func (q *quarantine) offsetsLocked() (offsets []time.Duration) {
	for _, s := range q.known {
		if s.heard {
			offsets = append(offsets, s.offset)
		}
	}
	slices.Sort(offsets)
	return offsets
}

// seen is a node as it describes itself.
type seen struct {
	admitted bool
	highest  int64
	now      int64
	epoch    string
}

func (q *quarantine) survey(ctx context.Context) (nodes map[int]seen, failed map[int]error) {
	poll := q.poll(nil)
	defer poll.end()
	sent := q.c.clock.Now()
	nodes, failed = map[int]seen{}, map[int]error{}
	for open := poll.ask(ctx, 0, func(int, *redNode) *request {
		return &request{script: q.script("red_highest"), keys: []string{redHighest, redAdmitted}}
	}); open > 0; open-- {
		p := <-poll.replies
		if p.err != nil || len(p.ints) != 3 || len(p.texts) != 2 {
			failed[p.node] = p.err
			continue
		}
		now := q.c.clock.Now()
		s := seen{p.ints[0] == 1, p.ints[1], p.ints[2], p.texts[0]}
		nodes[p.node] = s
		q.mu.Lock()
		k := &q.known[p.node]
		q.meetLocked(k, s.epoch, now)
		// It was read between the two; the middle is off by half of that at most.
		middle := sent.Add(now.Sub(sent) / 2)
		k.offset, k.heard = time.Duration(s.now)*time.Microsecond-middle.Sub(q.epoch), true
		k.evicts = ""
		if policy := p.texts[1]; policy != "noeviction" {
			k.evicts = policy
			delete(nodes, p.node)
			failed[p.node] = q.unfit(*k)
		}
		q.mu.Unlock()
	}
	q.mu.Lock()
	if len(nodes) >= q.quorum {
		q.looked = sent
	}
	q.mu.Unlock()
	return nodes, failed
}

// meetLocked notes the epoch of a node.
func (q *quarantine) meetLocked(k *standing, epoch string, now time.Time) {
	if k.epoch != epoch {
		k.epoch, k.since = epoch, now
	}
}

// left is for how long a process is still in quarantine: no hold that its
// predecessor voted for is valid after that, by any client's clock.
func (q *quarantine) left(k standing) time.Duration {
	wait := q.longest + time.Duration(float64(q.longest)*q.c.cfg.driftFactor) + q.c.cfg.driftFloor + q.flight
	return max(k.since.Add(wait).Sub(q.c.clock.Now()), 0)
}

// admit lets nodes vote whose quarantine is over. The floor of their counters is
// the highest of so many nodes that voted all the time that every quorum of the
// past has one among them besides the node itself. If there are not so many, the
// time is the floor: it is beyond all counters.
func (q *quarantine) admit(ctx context.Context, nodes map[int]seen) {
	var floor, reachable int64
	intact := 0
	for _, s := range nodes {
		if s.admitted {
			intact++
			floor = max(floor, s.highest)
		}
		reachable = max(reachable, s.highest)
	}
	if intact < len(q.nodes)-q.quorum+1 {
		if len(nodes) < q.quorum {
			return
		}
		floor = max(reachable, q.time())
	}
	q.admitWith(ctx, floor, func(i int) bool {
		s, ok := nodes[i]
		q.mu.Lock()
		defer q.mu.Unlock()
		return ok && !s.admitted && q.known[i].epoch == s.epoch && q.left(q.known[i]) == 0
	})
}

// admitWith admits some of the nodes and returns what became of those that failed.
func (q *quarantine) admitWith(ctx context.Context, floor int64, which func(i int) bool) (failed map[int]error) {
	poll := q.poll(nil)
	defer poll.end()
	failed = map[int]error{}
	for open := poll.ask(ctx, 0, func(i int, _ *redNode) *request {
		if !which(i) {
			return nil
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		return &request{
			script: q.script("red_admit"),
			keys:   []string{redHighest, redAdmitted},
			args:   []any{q.known[i].epoch, floor},
		}
	}); open > 0; open-- {
		p := <-poll.replies
		if p.err == nil && p.ints[0] != 1 {
			p.err = errors.New("restarted meanwhile")
		}
		if p.err != nil {
			failed[p.node] = p.err
		}
	}
	return failed
}

var errClockOff = errors.New("its clock is off the median of the nodes")

// quarantined is why a node does not vote.
type quarantined struct{ left time.Duration }

func (e quarantined) Error() string {
	return fmt.Sprintf("in quarantine for %v, after a restart or a loss of data", e.left.Round(time.Millisecond))
}

func (q *quarantine) unfit(k standing) error {
	return fmt.Errorf("maxmemory-policy %s may evict the record of a hold: set noeviction", k.evicts)
}

// refused is the error of a node that does not vote, nil if it does. It has
// somebody look what can be done about it.
func (q *quarantine) refused(i int, p reply) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := &q.known[i]
	switch {
	case p.ints[0] == -3 && len(p.texts) == 1:
		q.meetLocked(k, p.texts[0], q.c.clock.Now())
		left := q.left(*k)
		if left == 0 {
			q.lookSoonLocked()
		}
		return quarantined{left}
	case p.ints[0] == -4:
		q.lookSoonLocked()
		return errClockOff
	}
	return nil
}

// lookSoonLocked has somebody look at the nodes, one at a time.
func (q *quarantine) lookSoonLocked() {
	if q.busy {
		return
	}
	q.busy = true
	q.c.background(func() {
		_ = q.look(q.c.ctx)
		q.mu.Lock()
		q.busy = false
		q.mu.Unlock()
	})
}

// rest is for how long it takes until enough of the nodes that failed to vote are
// out of quarantine; 0 if others are the reason.
func (q *quarantine) rest(failed map[int]error) time.Duration {
	var waits []time.Duration
	others := 0
	for _, err := range failed {
		if w := (quarantined{}); errors.As(err, &w) {
			waits = append(waits, w.left)
		} else {
			others++
		}
	}
	need := q.quorum - (len(q.nodes) - len(failed))
	if need <= 0 || need > len(waits) {
		return 0
	}
	slices.Sort(waits)
	return max(waits[need-1], 10*time.Millisecond)
}

// Bootstrap lets all nodes of a new deployment vote at once, instead of after the
// longest lease. It is for the operator, once, before the lock is first used: it
// relies on that no process has held any RedLock on these nodes within the
// longest lease.
//
// It needs all nodes, and fails with an error that matches ErrNoQuorum if one does
// not answer or is unfit, and with ErrInvalidArgument if the lock has no quarantine
// or only a part of the nodes may vote: then one of them has restarted, and is to
// be waited for. If all may vote already there is nothing to do.
func (l *RedLock) Bootstrap(ctx context.Context) error {
	r := l.protocol.(*red)
	q := r.quarantine
	if q == nil {
		return l.error(invalid("Bootstrap: the lock has no quarantine"))
	}
	if !l.c.begin() {
		return l.error(ErrClosed)
	}
	defer l.c.end()
	nodes, failed := q.survey(ctx)
	if err := ctx.Err(); err != nil {
		return l.error(err)
	}
	if len(failed) > 0 {
		return l.error(r.noQuorum(failed))
	}
	admitted, floor := 0, q.time()
	for _, s := range nodes {
		if s.admitted {
			admitted++
		}
		floor = max(floor, s.highest)
	}
	switch admitted {
	case len(r.nodes):
		return nil
	case 0:
	default:
		return l.error(invalid("Bootstrap: %d of %d nodes vote already: this is no new deployment", admitted, len(r.nodes)))
	}
	if failed := q.admitWith(ctx, floor, func(int) bool { return true }); len(failed) > 0 {
		return l.error(r.noQuorum(failed))
	}
	return nil
}

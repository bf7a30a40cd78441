package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// WithRestartQuarantine keeps a node from voting after it has restarted, lost its
// data, or was replaced by a replica, until no hold can be valid any more that it
// voted for before: for the longest lease, counted by each client from when it
// first sees the new process. Then the highest counter of the others is restored
// to it, so that tokens go on growing. A node whose clock jumps does not vote
// while it is off the median of all.
//
// With it a hold survives any number of restarts without data or with old data,
// one after the other or at once, and jumps of the clocks of fewer than a quorum
// of nodes. All clients of the lock have to use it, with the same longest lease
// (WithLongestLease). It takes a fifteenth of that off each lease, 2 s at most, and
// nodes do not obey requests that were under way for half as long.
//
// It needs three nodes or more, each a server of its own (an acquire fails with
// ErrInvalidArgument if two show the same run_id), whose clocks differ by less than a hundredth of the
// longest lease, which allow INFO in scripts, and evict no keys: one whose
// maxmemory-policy is not noeviction does not vote, and is in quarantine when that
// has been mended.
//
// A node is let in by a client that has used RedLocks with it for the longest lease
// and goes on to use them: processes that all live for less never do. What clients
// have seen of a node is kept in its [Client], so clients should be kept, locks need
// not.
//
// A new deployment is in quarantine as a whole, until the longest lease has passed
// or [RedLock.Bootstrap] is called. If so many nodes lose their data that fewer
// than N-q+1 of N with a quorum of q know the counters, the median of their clocks
// takes their place: tokens go on growing unless that happens again while it shows
// less than then.
//
// What it does not notice: a virtual machine that is set back to a snapshot of its
// memory; a master that was demoted and promoted again before any client has asked
// the one in between; and a clock that jumps ahead by more than 30 days, whatever it
// does then, as Redis drops keys at once.
func WithRestartQuarantine() RedLockOption {
	return func(r *red) { r.quarantine = &quarantine{red: r} }
}

// WithLongestLease is the bound of all leases of a RedLock with a quarantine, and
// how long that takes. Longer leases are refused. The default is the watchdog
// lease of the first client. It is not for a RedLock without a quarantine.
//
// All RedLocks with a quarantine that share nodes should have the same, since a
// node is in quarantine for all of them at once. The nodes remember the longest of
// any, and clients go by it; but where fewer than N-q+1 nodes are left that
// remember, clients know no more than what they have seen. To lower it, remove the
// field longest of rlock:red:admitted on all nodes while no client runs.
func WithLongestLease(d time.Duration) RedLockOption {
	return func(r *red) { r.longest, r.hasLongest = d, true }
}

const (
	// clockSkew is by how much the clock of a node may differ from the median of
	// all, as a part of the longest lease, and flightTime is how long a request
	// may be under way: 500 ms and 1 s of 30 s, as long as that is not more.
	clockSkewPart, clockSkewMax   = 60, 500 * time.Millisecond
	flightTimePart, flightTimeMax = 30, time.Second

	// lookAgain is for how long what was learnt of the nodes' clocks is relied
	// on. After that they are looked at again, and after twice that time there
	// are no votes without it.
	lookAgain = 10 * time.Second

	// clockDrift is how fast two clocks part: at most one part in so many. Clocks
	// that are set right by NTP may run off by 500 parts in a million.
	clockDrift = 2000
)

// quarantine knows the nodes of a RedLock as processes, not as addresses.
type quarantine struct {
	*red
	skew, flight time.Duration
}

// standing is what a client knows of its server as a node of RedLocks with a
// quarantine, whichever of them has learnt it: locks may come and go.
type standing struct {
	mu   sync.Mutex // guards the rest
	view view
	busy bool // as the home of locks: one of them looks at its nodes

	waiting map[lookKey][]func(error) // as the home: for what somebody is to find out
}

// lookKey is what ready finds out: about which nodes, of how many, and what it tells.
type lookKey struct {
	family  string
	quorum  int
	longest time.Duration
}

// view is what is known of a node.
type view struct {
	epoch   string        // its process, and since when that must not vote
	since   time.Time     // when this client first saw that
	evicts  string        // the policy, if it may evict keys
	longest time.Duration // lease of all RedLocks that it has heard of

	// What its clock showed when ours showed heard, within fuzz; heard is zero
	// if nobody knows.
	heard time.Time
	clock time.Duration // since 1970
	fuzz  time.Duration
}

func (s *standing) get() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// met notes the epoch of a node.
func (v *view) met(epoch string, now time.Time) {
	if v.epoch != epoch {
		v.epoch, v.since = epoch, now
	}
}

// times are between what the node's clock shows.
func (v view) times(now time.Time) (early, late time.Duration) {
	age := now.Sub(v.heard)
	fuzz := v.fuzz + age/clockDrift
	return v.clock + age - fuzz, v.clock + age + fuzz
}

// told notes what a node's clock showed at some time between two.
func (v *view) told(clock time.Duration, sent, now time.Time) {
	early, late := clock, clock+now.Sub(sent)
	if !v.heard.IsZero() {
		// What was known before may be better: unless the clock was set since, the
		// truth is where both agree.
		if e, l := v.times(now); e <= late && early <= l {
			early, late = max(early, e), min(late, l)
		}
	}
	v.heard, v.clock, v.fuzz = now, early+(late-early)/2, (late-early)/2
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
	margin := 2*q.skew + q.flight
	if q.c.cfg.validity(q.c.cfg.watchdogLease)-margin <= q.c.cfg.watchdogLease/3 {
		return invalid("WithLongestLease(%v) takes %v off each lease, and leaves too little of the watchdog lease, %v, to renew in", q.longest, margin, q.c.cfg.watchdogLease)
	}
	q.margin = margin
	return nil
}

// guard makes a request one that only a node that may vote obeys, and only while
// it is no late copy and the node's clock is right.
func (q *quarantine) guard(i int, voting bool, r *request) *request {
	lo, hi := int64(0), int64(1)<<53
	if voting {
		if err := q.mayVote(i); err != nil {
			return &request{do: func(context.Context) answer { return answer{err: err} }}
		}
		lo, hi = q.window()
	}
	r.keys = append(r.keys, redAdmitted)
	r.args = append(r.args, lo, hi)
	return r
}

// mayVote returns nil if a node may be asked for its vote, as far as is known.
func (q *quarantine) mayVote(i int) error {
	v := q.nodes[i].c.standing.get()
	switch {
	case v.evicts != "":
		return v.unfit()
	case v.epoch == "":
		// Its reply does not say which process it is of: perhaps that of another
		// node, which has voted already.
		if !q.nodes[i].c.isLost(q.timeout) {
			q.lookSoon()
		}
		return errUnknown
	}
	return q.distinct()
}

// distinct returns nil unless two nodes are known to be one server.
func (q *quarantine) distinct() error {
	seen := map[string]*redNode{}
	for _, n := range q.nodes {
		run, _, _ := strings.Cut(n.c.standing.get().epoch, "/")
		if other := seen[run]; run != "" && other != nil {
			q.lookSoon() // an address may have moved meanwhile
			return invalid("%s and %s are one server, with run_id %s: a node has one vote", other.name, n.name, run)
		}
		seen[run] = n
	}
	return nil
}

// window is between which times of the nodes a request that is sent now may run,
// in µs: by the median of their clocks, which one that has jumped cannot move.
// What is not known for sure makes it narrower, never wider: how far two clients
// may be apart in it is paid for with a part of each lease.
func (q *quarantine) window() (lo, hi int64) {
	early, late := q.times()
	return (late[len(late)/2] - q.skew).Microseconds(), (early[len(early)/2] + q.skew + q.flight).Microseconds()
}

// times are the bounds of what the nodes' clocks show, each sorted. The clock of a
// node that is away goes on.
func (q *quarantine) times() (early, late []time.Duration) {
	now := q.c.clock.Now()
	for _, n := range q.nodes {
		if v := n.c.standing.get(); !v.heard.IsZero() {
			e, l := v.times(now)
			early, late = append(early, e), append(late, l)
		}
	}
	slices.Sort(early)
	slices.Sort(late)
	return early, late
}

// time is the median of the nodes' clocks, in µs: what is built on it is not
// undone when one that had jumped ahead is set right.
func (q *quarantine) time() int64 {
	_, late := q.times()
	return late[len(late)/2].Microseconds()
}

// ready sees to it that the nodes' clocks are known, and that the nodes know how
// long the leases are.
func (q *quarantine) ready(ctx context.Context) error {
	switch age := q.age(); {
	case age < lookAgain:
	case age < 2*lookAgain:
		q.lookSoon()
	default:
		// A quorum is enough, nodes that hang delay nobody, unless they have to
		// say whose clock is right.
		enough, done := make(chan struct{}), make(chan error, 1)
		began := time.Now()
		q.c.background(func() { done <- q.look(q.c.ctx, enough) })
		select {
		case <-enough:
			// A node of which nothing is known may not vote: it is given about as
			// long again to answer.
			rest := time.NewTimer(time.Since(began))
			select {
			case err := <-done:
				done <- err
			case <-rest.C:
			case <-ctx.Done():
			}
			rest.Stop()
			if q.agree() == nil {
				return nil
			}
		case err := <-done:
			done <- err
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return q.agree()
}

// whenReady has fn called with what ready returns: at once if it need not wait.
// Of those who wait for the same, one asks.
func (q *quarantine) whenReady(fn func(error)) {
	if q.age() < 2*lookAgain {
		fn(q.ready(q.c.ctx))
		return
	}
	what, home := lookKey{q.id.family, q.quorum, q.longest}, &q.c.standing
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.waiting == nil {
		home.waiting = map[lookKey][]func(error){}
	}
	home.waiting[what] = append(home.waiting[what], fn)
	if len(home.waiting[what]) > 1 {
		return
	}
	q.c.background(func() {
		err := q.ready(q.c.ctx)
		home.mu.Lock()
		waiting := home.waiting[what]
		delete(home.waiting, what)
		home.mu.Unlock()
		for _, fn := range waiting {
			fn(err)
		}
	})
}

// agree reports whether the nodes are known to be different servers, and whether it
// is known which of their clocks are right.
func (q *quarantine) agree() error {
	if err := q.distinct(); err != nil {
		return err
	}
	early, late := q.times()
	if n := len(early); n < 3 && early[n-1]-late[0] > q.skew {
		return fmt.Errorf("%w: the clocks of two nodes differ by %v, and no third tells which of them is right", ErrNoQuorum, early[n-1]-late[0])
	}
	return nil
}

// age is when a quorum of nodes was last looked at.
func (q *quarantine) age() time.Duration {
	now := q.c.clock.Now()
	var ages []time.Duration
	for _, n := range q.nodes {
		if v := n.c.standing.get(); !v.heard.IsZero() && v.longest >= q.longest {
			ages = append(ages, now.Sub(v.heard))
		}
	}
	if len(ages) < q.quorum {
		return farAway
	}
	slices.Sort(ages)
	return ages[q.quorum-1]
}

// look asks all nodes who and how they are, and admits those whose quarantine is
// over. It closes enough, if there
// is that, as soon as a quorum has answered.
func (q *quarantine) look(ctx context.Context, enough chan<- struct{}) error {
	began := q.c.clock.Now()
	nodes, failed := q.survey(ctx, enough)
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(nodes) < q.quorum {
		return q.noQuorum(failed)
	}
	if err := q.distinct(); err != nil {
		return err
	}
	q.admit(ctx, nodes, began)
	return nil
}

// lookSoon has somebody look at the nodes, one at a time.
func (q *quarantine) lookSoon() {
	home := &q.c.standing
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.busy {
		return
	}
	home.busy = true
	q.c.background(func() {
		_ = q.look(q.c.ctx, nil)
		home.mu.Lock()
		home.busy = false
		home.mu.Unlock()
	})
}

// seen is a node as it describes itself.
type seen struct {
	admitted bool
	voted    bool // since it was admitted, perhaps
	highest  int64
	epoch    string
}

func (q *quarantine) survey(ctx context.Context, enough chan<- struct{}) (nodes map[int]seen, failed map[int]error) {
	poll := q.poll(nil)
	defer poll.end()
	sent := q.c.clock.Now()
	nodes, failed = map[int]seen{}, map[int]error{}
	for open := poll.ask(ctx, 0, func(int, *redNode) *request {
		return &request{
			script: q.script("red_highest"),
			keys:   []string{redHighest, redAdmitted},
			args:   []any{q.leases().Milliseconds()},
		}
	}); open > 0; open-- {
		p := <-poll.replies
		if p.err == nil && (len(p.ints) != 4 || len(p.texts) != 2) {
			p.err = fmt.Errorf("unexpected reply from Redis: %v %q", p.ints, p.texts)
		}
		if p.err != nil {
			failed[p.node] = p.err
			continue
		}
		now := q.c.clock.Now()
		s := seen{p.ints[0] > 0, p.ints[0] == 1, p.ints[1], p.texts[0]}
		known := &q.nodes[p.node].c.standing
		known.mu.Lock()
		v := &known.view
		v.met(s.epoch, now)
		v.told(time.Duration(p.ints[2])*time.Microsecond, sent, now)
		v.longest = max(v.longest, time.Duration(p.ints[3])*time.Millisecond)
		v.evicts = ""
		if policy := p.texts[1]; policy != "noeviction" {
			v.evicts = policy
			failed[p.node] = v.unfit()
		} else {
			nodes[p.node] = s
		}
		known.mu.Unlock()
		if len(nodes) == q.quorum && enough != nil {
			close(enough)
			enough = nil
		}
	}
	return nodes, failed
}

// leases is the longest lease of any RedLock with a quarantine on these nodes, as
// far as is known. A quorum of them was told before the first vote.
func (q *quarantine) leases() time.Duration {
	longest := q.longest
	for _, n := range q.nodes {
		longest = max(longest, n.c.standing.get().longest)
	}
	return longest
}

// left is for how long a process is still in quarantine at a time: no hold that
// its predecessor voted for is valid after that, by any client's clock.
func (q *quarantine) left(v view, now time.Time) time.Duration {
	longest := q.leases()
	wait := longest + time.Duration(float64(longest)*q.c.cfg.driftFactor) + q.c.cfg.driftFloor + q.flight
	return max(v.since.Add(wait).Sub(now), 0)
}

// admit lets nodes vote whose quarantine was over at a time before they were asked.
// The floor of their counters is the highest of so many nodes that voted all the
// time that every quorum of the past has one among them besides the node itself.
// If there are not so many, the time is the floor: it is beyond all counters.
//
// When the counters were read no hold could be valid any more, nor become so, that
// counts on what the node has forgotten: had the quarantine ended in between, such
// a hold could yet have raised the counter of a node that was read before.
func (q *quarantine) admit(ctx context.Context, nodes map[int]seen, began time.Time) {
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
		floor = max(reachable, q.time())
	}
	q.admitWith(ctx, floor, nodes, func(i int, s seen) bool {
		v := q.nodes[i].c.standing.get()
		return !s.admitted && v.epoch == s.epoch && q.left(v, began) == 0
	})
}

// admitWith admits some of the nodes and returns what became of those that failed.
func (q *quarantine) admitWith(ctx context.Context, floor int64, nodes map[int]seen, which func(i int, s seen) bool) (failed map[int]error) {
	poll := q.poll(nil)
	defer poll.end()
	failed = map[int]error{}
	longest := q.leases().Milliseconds()
	for open := poll.ask(ctx, 0, func(i int, _ *redNode) *request {
		s, ok := nodes[i]
		if !ok || !which(i, s) {
			return nil
		}
		return &request{
			script: q.script("red_admit"),
			keys:   []string{redHighest, redAdmitted},
			args:   []any{s.epoch, floor, longest},
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

var errUnknown = errors.New("not known yet: it has not told its run_id")

var errClockOff = errors.New("its clock is off the median of the nodes, or the request was under way for too long")

// quarantined is why a node does not vote.
type quarantined struct{ left time.Duration }

func (e quarantined) Error() string {
	return fmt.Sprintf("in quarantine for %v, after a restart or a loss of data", e.left.Round(time.Millisecond))
}

func (v view) unfit() error {
	return fmt.Errorf("maxmemory-policy %s may evict the record of a hold: set noeviction", v.evicts)
}

// refused is the error of a node that does not vote, nil if it does. It has
// somebody look what can be done about it.
func (q *quarantine) refused(i int, p reply) error {
	switch {
	case p.ints[0] == -3 && len(p.texts) == 1:
		known := &q.nodes[i].c.standing
		now := q.c.clock.Now()
		known.mu.Lock()
		known.view.met(p.texts[0], now)
		v := known.view
		known.mu.Unlock()
		left := q.left(v, now)
		if left == 0 {
			q.lookSoon()
		}
		return quarantined{left}
	case p.ints[0] == -4:
		q.lookSoon()
		return errClockOff
	}
	return nil
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
// or only a part of the nodes may vote and has done so: then one of the others has
// restarted, and is to be waited for. If all may vote already there is nothing to
// do. After a failure half-way it may be called again.
func (l *RedLock) Bootstrap(ctx context.Context) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	r := l.protocol.(*red)
	q := r.quarantine
	if q == nil {
		return l.error(invalid("Bootstrap: the lock has no quarantine"))
	}
	if !l.c.begin() {
		return l.error(ErrClosed)
	}
	defer l.c.end()
	nodes, failed := q.survey(ctx, nil)
	if err := ctx.Err(); err != nil {
		return l.error(err)
	}
	if len(failed) > 0 {
		return l.error(r.tooFew(len(r.nodes), failed))
	}
	if err := q.distinct(); err != nil {
		return l.error(err)
	}
	admitted, voted, floor := 0, 0, q.time()
	for _, s := range nodes {
		if s.admitted {
			admitted++
		}
		if s.voted {
			voted++
		}
		floor = max(floor, s.highest)
	}
	switch {
	case admitted == len(r.nodes):
		return nil
	case voted > 0:
		// No hold can be valid for which none of those has voted that may.
		return l.error(invalid("Bootstrap: %d of %d nodes vote already: this is no new deployment", admitted, len(r.nodes)))
	}
	if failed := q.admitWith(ctx, floor, nodes, func(int, seen) bool { return true }); len(failed) > 0 {
		return l.error(r.tooFew(len(r.nodes), failed))
	}
	return nil
}

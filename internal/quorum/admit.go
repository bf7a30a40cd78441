package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// nodeReport is what a node reports about itself.
type nodeReport struct {
	isAdmitted   bool
	mayHaveVoted bool // the node may have voted since it was admitted
	highest      int64
	epoch        string
	clock        time.Duration // since 1970
	longest      time.Duration // longest lease that a client has reported to it
	policy       string        // maxmemory-policy
}

// readHighest reads the reply of quorum/highest.
func readHighest(a wire.Answer) (r reply, err error) {
	admitted, highest, rest, err := a.Pair()
	if err != nil {
		return r, err
	}
	at := &nodeReport{isAdmitted: admitted > 0, mayHaveVoted: admitted == 1, highest: highest}
	var clock, longest int64
	if len(rest) != 4 || !scan(rest, &clock, &longest, &at.epoch, &at.policy) {
		return r, wire.ErrReply(a.Val)
	}
	at.clock, at.longest, r.report = micros(clock), millis(longest), at
	return r, nil
}

// survey requests the identity and state of all nodes. It closes answered, unless nil, as soon as a quorum has replied.
func (q *quarantine) survey(ctx context.Context, answered chan<- struct{}) (nodes map[int]*nodeReport, failed failures) {
	f := q.fanout()
	defer f.end()
	sent := q.clock.Now()
	nodes, failed = map[int]*nodeReport{}, failures{}
	f.ask(ctx, question{
		request: func(int) (*wire.Request, error) {
			return &wire.Request{
				Script: q.script("highest"),
				Keys:   []string{q.highest, q.admitted, q.since},
				Args:   []any{q.leases().Milliseconds()},
			}, nil
		},
		read: readHighest,
	})
	f.collectAll(ctx, func(r reply) {
		if r.err != nil {
			failed[r.node] = r.err
			return
		}
		if err := q.note(r.node, r.report, sent); err != nil {
			failed[r.node] = err
		} else {
			nodes[r.node] = r.report
		}
		if len(nodes) == q.q && answered != nil {
			close(answered)
			answered = nil
		}
	})
	return nodes, failed
}

// kept returns how many of the nodes that have forgotten a vote are in quarantine: they have voted for
// no other hold since.
func (q *quarantine) kept(ctx context.Context, forgot []int) (n int) {
	if len(forgot) == 0 {
		return 0
	}
	nodes, _ := q.survey(ctx, nil)
	for _, i := range forgot {
		if a := nodes[i]; a != nil && !a.isAdmitted {
			n++
		}
	}
	return n
}

// note records what a node has reported. It returns an error if the node is unfit.
func (q *quarantine) note(i int, a *nodeReport, sent time.Time) error {
	known, now := q.nodes[i].Knowledge, q.clock.Now()
	known.mu.Lock()
	defer known.mu.Unlock()
	v := &known.view
	v.noteEpoch(a.epoch, now)
	v.noteClock(a.clock, sent, now)
	v.longest = max(v.longest, a.longest)
	v.evicts = ""
	if a.policy != "noeviction" {
		v.evicts = a.policy
		return v.unfit()
	}
	return nil
}

// refresh requests the identity and state of all nodes, and admits the nodes whose quarantine is over. It closes answered,
// unless nil, as soon as a quorum has replied.
func (q *quarantine) refresh(ctx context.Context, answered chan<- struct{}) error {
	began := q.clock.Now()
	nodes, failed := q.survey(ctx, answered)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !q.enough(len(nodes)) {
		return q.noQuorum(&tally{failed: failed})
	}
	if err := q.distinct(); err != nil {
		return err
	}
	q.admit(ctx, nodes, began)
	return nil
}

// refreshSoon calls refresh in the background, once at a time.
func (q *quarantine) refreshSoon() {
	home := q.home().Knowledge
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.isRefreshing {
		return
	}
	home.isRefreshing = true
	q.background(func() {
		_ = q.refresh(q.home().Wire.Context(), nil)
		home.mu.Lock()
		home.isRefreshing = false
		home.mu.Unlock()
	})
}

// admit lets nodes vote whose quarantine was over before the request for their state was sent. The floor of their counters
// is the highest counter of the nodes that could vote all the time, if these are so many that every past quorum contains
// one of them (model: readCounter, NO_RESTORE). Otherwise the floor is the time, which is above all counters.
//
// The quarantine must be over before the counters are read. Then no hold that relies on a forgotten
// vote is valid or can become valid. Otherwise such a hold could raise the counter of a node after
// this read it.
func (q *quarantine) admit(ctx context.Context, nodes map[int]*nodeReport, began time.Time) {
	var floor, reachable int64
	intact := 0
	for _, a := range nodes {
		if a.isAdmitted {
			intact++
			floor = max(floor, a.highest)
		}
		reachable = max(reachable, a.highest)
	}
	if !q.blocks(intact) {
		floor = max(reachable, q.time())
	}
	q.admitWith(ctx, floor, nodes, func(i int, a *nodeReport) bool {
		v := q.nodes[i].Knowledge.get()
		return !a.isAdmitted && v.epoch == a.epoch && q.left(v, began) == 0
	})
}

// admitWith admits some of the nodes, and returns the failures.
func (q *quarantine) admitWith(ctx context.Context, floor int64, nodes map[int]*nodeReport, which func(i int, a *nodeReport) bool) failures {
	f := q.fanout()
	defer f.end()
	failed := failures{}
	longest := q.leases().Milliseconds()
	chosen := make([]bool, q.n)
	for i, a := range nodes {
		chosen[i] = which(i, a)
	}
	f.ask(ctx, question{
		nodes: chosen,
		request: func(i int) (*wire.Request, error) {
			return &wire.Request{
				Script: q.script("admit"),
				Keys:   []string{q.highest, q.admitted, q.since},
				Args:   []any{nodes[i].epoch, floor, longest},
			}, nil
		},
		read: readAdmit,
	})
	f.collectAll(ctx, func(r reply) {
		if r.err != nil {
			failed[r.node] = r.err
		}
	})
	return failed
}

// readAdmit reads the reply of quorum/admit.
func readAdmit(a wire.Answer) (r reply, err error) {
	n, err := a.Int()
	if err == nil && n != 1 {
		err = errRestarted
	}
	return r, err
}

// Bootstrap lets all nodes of a new deployment vote immediately, instead of after the longest lease.
// The operator guarantees that no process has held any lock on these nodes within that time. It needs
// all nodes. The error matches ErrNoQuorum if a node does not reply or is unfit, and
// ErrInvalidArgument if there is no quarantine, or if only a part of the nodes may vote and has voted.
// After a failure half-way it may be called again.
func (l *Lock) Bootstrap(ctx context.Context) error {
	q := l.quarantine
	if q == nil {
		return argErr("Bootstrap: the lock has no quarantine")
	}
	nodes, failed := q.survey(ctx, nil)
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(failed) > 0 {
		return l.tooFew(l.n, &tally{failed: failed})
	}
	if err := q.distinct(); err != nil {
		return err
	}
	admitted, voted, floor := 0, 0, q.time()
	for _, a := range nodes {
		if a.isAdmitted {
			admitted++
		}
		if a.mayHaveVoted {
			voted++
		}
		floor = max(floor, a.highest)
	}
	switch {
	case admitted == l.n:
		return nil
	case voted > 0:
		// Each valid hold has the vote of at least one admitted node: there may be one.
		return argErr("Bootstrap: %d of %d nodes vote already: this is no new deployment", admitted, l.n)
	}
	if failed := q.admitWith(ctx, floor, nodes, func(int, *nodeReport) bool { return true }); len(failed) > 0 {
		return l.tooFew(l.n, &tally{failed: failed})
	}
	return nil
}

// Quarantined sends a request to all nodes in parallel, which changes nothing, and calls fn for each node in quarantine,
// with the shortest time that the quarantine lasts after the next acquire. The timeout is the command timeout of the home.
func (l *Lock) Quarantined(ctx context.Context, fn func(name string, left time.Duration)) {
	q := l.quarantine
	if q == nil {
		return
	}
	epochs := make([]string, l.n)
	var all sync.WaitGroup
	for i, n := range l.nodes {
		all.Go(func() {
			a := n.Wire.Do(ctx, l.cfg.CommandTimeout, &wire.Request{Script: l.script("quarantined"), Keys: []string{q.admitted, q.since}})
			epochs[i], _ = a.Val.(string)
		})
	}
	all.Wait()
	now := l.clock.Now()
	for i, n := range l.nodes {
		if epochs[i] == "" {
			continue
		}
		v := n.Knowledge.get()
		v.noteEpoch(epochs[i], now)
		fn(n.Name, q.left(v, now))
	}
}

package quorum

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// quarantine keeps a node from voting after it has restarted or lost its data, until no hold that it
// voted for before can be valid, and while its clock differs from the median of all. It identifies
// nodes by their processes, not by addresses. It may be nil: then every node may vote.
type quarantine struct {
	*Lock
	skew, flight time.Duration
}

func newQuarantine(l *Lock) (*quarantine, error) {
	longest, watchdog := l.cfg.LongestLease, l.cfg.WatchdogLease
	q := &quarantine{Lock: l, skew: min(longest/skewPart, skewMax), flight: min(longest/flightPart, flightMax)}
	if l.n < 3 {
		return nil, argErr("WithRestartQuarantine: %d nodes cannot tell a clock that has jumped, three can", l.n)
	}
	if l.cfg.Validity(watchdog)-q.margin() <= watchdog/3 {
		return nil, argErr("WithLongestLease(%v) takes %v off each lease, and leaves too little of the watchdog lease, %v, to renew in", longest, q.margin(), watchdog)
	}
	return q, nil
}

// margin is subtracted from each lease: the windows of two clients may be apart by twice the
// skew, and a late request may run within the flight time.
func (q *quarantine) margin() time.Duration { return 2*q.skew + q.flight }

// guard makes a node refuse the request if the node may not vote, if its clock is off, or if the
// request is a late copy. It returns an error if the node is known to refuse.
func (q *quarantine) guard(i int, voting bool, req *wire.Request) (*wire.Request, error) {
	if q == nil {
		return req, nil
	}
	lo, hi := int64(0), int64(1)<<53
	if voting {
		if err := q.mayVote(i); err != nil {
			return nil, err
		}
		lo, hi = q.window()
	}
	req.Keys = append(req.Keys, q.admitted, q.since)
	req.Args = append(req.Args, lo, hi)
	return req, nil
}

// mayVote returns nil unless a node is known not to be allowed to vote.
func (q *quarantine) mayVote(i int) error {
	n := q.nodes[i]
	switch v := n.Knowledge.get(); {
	case v.evicts != "":
		return v.unfit()
	case v.epoch == "":
		// Its reply would not contain its process, which may be the process of another node that has
		// already voted.
		if !n.Wire.IsLost(q.cfg.NodeTimeout) {
			q.refreshSoon()
		}
		return errUnknown
	}
	return q.distinct()
}

// distinct returns nil unless two nodes are known to be one server.
func (q *quarantine) distinct() error {
	seen := map[string]*node{}
	for _, n := range q.nodes {
		run, _, _ := strings.Cut(n.Knowledge.get().epoch, "/")
		if other := seen[run]; run != "" && other != nil {
			q.refreshSoon() // an address may have moved since
			return argErr("%s and %s are one server, with run_id %s: a node has one vote", other.Name, n.Name, run)
		}
		seen[run] = n
	}
	return nil
}

// refused returns the error of a node that refuses to vote, or nil. It starts a refresh, which may
// admit the node.
func (q *quarantine) refused(i int, val any) error {
	list, _ := val.([]any)
	if len(list) == 0 {
		return nil
	}
	var epoch string
	switch {
	case list[0] == int64(-3) && len(list) > 2 && scan(list[2:], &epoch):
		known := q.nodes[i].Knowledge
		now := q.clock.Now()
		known.mu.Lock()
		known.view.noteEpoch(epoch, now)
		v := known.view
		known.mu.Unlock()
		left := q.left(v, now)
		if left == 0 {
			q.refreshSoon()
		}
		return protocol.InQuarantine{Left: left}
	case list[0] == int64(-4):
		q.refreshSoon()
		return errClockOff
	}
	return nil
}

// leases returns the longest known lease of any RedLock with a quarantine on these nodes. A quorum of
// the nodes stores it before the first vote.
func (q *quarantine) leases() time.Duration {
	longest := q.cfg.LongestLease
	for _, n := range q.nodes {
		longest = max(longest, n.Knowledge.get().longest)
	}
	return longest
}

// left returns how long a process is still in quarantine. After that, no hold that its predecessor
// voted for is valid by any client's clock (model: NO_WAIT).
func (q *quarantine) left(v nodeView, now time.Time) time.Duration {
	longest := q.leases()
	wait := longest + time.Duration(float64(longest)*q.cfg.DriftFactor) + q.cfg.DriftFloor + q.flight
	return max(v.epochSince.Add(wait).Sub(now), 0)
}

// rest returns the time until enough of the nodes that refused are out of quarantine; 0 if the failure
// has other reasons.
func (q *quarantine) rest(failed failures) time.Duration {
	var waits []time.Duration
	for _, err := range failed {
		if w := (protocol.InQuarantine{}); errors.As(err, &w) {
			waits = append(waits, w.Left)
		}
	}
	need := q.q - (q.n - len(failed))
	if need <= 0 || need > len(waits) {
		return 0
	}
	slices.Sort(waits)
	return max(waits[need-1], 10*time.Millisecond)
}

// ready makes sure that the client knows the nodes' clocks, and that the nodes know the longest lease.
// It is called before each request for votes.
func (q *quarantine) ready(ctx context.Context) error {
	if q == nil {
		return nil
	}
	switch age := q.age(); {
	case age < refreshAfter:
	case age < 2*refreshAfter:
		q.refreshSoon()
	default:
		if agreed, err := q.refreshNow(ctx); err != nil || agreed {
			return err
		}
	}
	return q.agree()
}

// refreshNow calls refresh while the caller waits. A quorum of replies is enough: nodes that hang delay
// it only if their clocks are needed to find out which clock is right. It reports whether the nodes
// that have replied agree.
func (q *quarantine) refreshNow(ctx context.Context) (agreed bool, err error) {
	enough, done := make(chan struct{}), make(chan struct{})
	var failed error // once done is closed
	began := time.Now()
	q.background(func() {
		defer close(done)
		failed = q.refresh(q.home().Wire.Context(), enough)
	})
	select {
	case <-enough:
		// A node without a known epoch may not vote. It gets about as much time again to reply.
		rest := time.NewTimer(time.Since(began))
		select {
		case <-done:
		case <-rest.C:
		case <-ctx.Done():
		}
		rest.Stop()
		if q.agree() == nil {
			return true, nil
		}
	case <-done:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	select {
	case <-done:
		return false, failed
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// refreshKey identifies equal refreshes: the nodes, the quorum, and the longest lease.
type refreshKey struct {
	family       any
	quorum       int
	longestLease time.Duration
}

// whenReady calls fn with the result of ready, immediately if that need not wait. Callers with equal
// refreshes share one.
func (q *quarantine) whenReady(fn func(error)) {
	switch {
	case q == nil:
		fn(nil)
		return
	case q.age() < 2*refreshAfter:
		fn(q.ready(q.home().Wire.Context()))
		return
	}
	what, home := refreshKey{q.cfg.Family, q.q, q.cfg.LongestLease}, q.home().Knowledge
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.whenFresh == nil {
		home.whenFresh = map[refreshKey][]func(error){}
	}
	home.whenFresh[what] = append(home.whenFresh[what], fn)
	if len(home.whenFresh[what]) > 1 {
		return
	}
	q.background(func() {
		err := q.ready(q.home().Wire.Context())
		home.mu.Lock()
		waiting := home.whenFresh[what]
		delete(home.whenFresh, what)
		home.mu.Unlock()
		for _, fn := range waiting {
			fn(err)
		}
	})
}

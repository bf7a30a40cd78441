package quorum

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// quarantine keeps a node from voting after it has restarted or lost its data, until no
// hold can be valid any more that it voted for before, and while its clock is off the
// median of all. It knows the nodes as processes, not as addresses.
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

// margin is what is taken off each lease: two clients' windows may be apart by twice the
// skew, and a late request may run for the time of the flight.
func (q *quarantine) margin() time.Duration { return 2*q.skew + q.flight }

// guard makes a request one that only a node that may vote obeys, and only while it is no
// late copy and the node's clock is right.
func (q *quarantine) guard(i int, voting bool, req *wire.Request) (*wire.Request, error) {
	lo, hi := int64(0), int64(1)<<53
	if voting {
		if err := q.mayVote(i); err != nil {
			return nil, err
		}
		lo, hi = q.window()
	}
	req.Keys = append(req.Keys, keyAdmitted)
	req.Args = append(req.Args, lo, hi)
	return req, nil
}

// mayVote returns nil if a node may be asked for its vote, as far as is known.
func (q *quarantine) mayVote(i int) error {
	n := q.nodes[i]
	switch v := n.Standing.get(); {
	case v.evicts != "":
		return v.unfit()
	case v.epoch == "":
		// Its reply does not say which process it is of: perhaps that of another node,
		// which has voted already.
		if !n.Wire.IsLost(q.cfg.NodeTimeout) {
			q.lookSoon()
		}
		return errUnknown
	}
	return q.distinct()
}

// distinct returns nil unless two nodes are known to be one server.
func (q *quarantine) distinct() error {
	seen := map[string]*node{}
	for _, n := range q.nodes {
		run, _, _ := strings.Cut(n.Standing.get().epoch, "/")
		if other := seen[run]; run != "" && other != nil {
			q.lookSoon() // an address may have moved meanwhile
			return argErr("%s and %s are one server, with run_id %s: a node has one vote", other.Name, n.Name, run)
		}
		seen[run] = n
	}
	return nil
}

// refused is the error of a node that does not vote, nil if it does. It has somebody look
// what can be done about it.
func (q *quarantine) refused(i int, val any) error {
	list, _ := val.([]any)
	if len(list) == 0 {
		return nil
	}
	switch epoch, ok := text(list, 2); {
	case list[0] == int64(-3) && ok:
		known := q.nodes[i].Standing
		now := q.clock.Now()
		known.mu.Lock()
		known.view.met(epoch, now)
		v := known.view
		known.mu.Unlock()
		left := q.left(v, now)
		if left == 0 {
			q.lookSoon()
		}
		return quarantinedError{left}
	case list[0] == int64(-4):
		q.lookSoon()
		return errClockOff
	}
	return nil
}

// leases is the longest lease of any RedLock with a quarantine on these nodes, as far as
// is known. A quorum of them was told before the first vote.
func (q *quarantine) leases() time.Duration {
	longest := q.cfg.LongestLease
	for _, n := range q.nodes {
		longest = max(longest, n.Standing.get().longest)
	}
	return longest
}

// left is for how long a process is still in quarantine at a time: no hold that its
// predecessor voted for is valid after that, by any client's clock (model: NO_WAIT).
func (q *quarantine) left(v view, now time.Time) time.Duration {
	longest := q.leases()
	wait := longest + time.Duration(float64(longest)*q.cfg.DriftFactor) + q.cfg.DriftFloor + q.flight
	return max(v.since.Add(wait).Sub(now), 0)
}

// rest is for how long it takes until enough of the nodes that failed to vote are out of
// quarantine; 0 if others are the reason.
func (q *quarantine) rest(failed failures) time.Duration {
	var waits []time.Duration
	for _, err := range failed {
		if w := (quarantinedError{}); errors.As(err, &w) {
			waits = append(waits, w.left)
		}
	}
	need := q.q - (q.n - len(failed))
	if need <= 0 || need > len(waits) {
		return 0
	}
	slices.Sort(waits)
	return max(waits[need-1], 10*time.Millisecond)
}

// ready sees to it that the nodes' clocks are known, and that the nodes know how long the
// leases are.
func (q *quarantine) ready(ctx context.Context) error {
	switch age := q.age(); {
	case age < lookAgain:
	case age < 2*lookAgain:
		q.lookSoon()
	default:
		if agreed, err := q.lookNow(ctx); err != nil || agreed {
			return err
		}
	}
	return q.agree()
}

// lookNow looks at the nodes while the caller waits. A quorum is enough, nodes that hang
// delay nobody, unless they have to say whose clock is right. It reports whether the
// nodes that have answered so far agree.
func (q *quarantine) lookNow(ctx context.Context) (agreed bool, err error) {
	enough, done := make(chan struct{}), make(chan struct{})
	var failed error // once done is closed
	began := time.Now()
	q.background(func() {
		defer close(done)
		failed = q.look(q.home().Wire.Context(), enough)
	})
	select {
	case <-enough:
		// A node of which nothing is known may not vote: it is given about as long again
		// to answer.
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

// lookKey is what ready finds out: about which nodes, of how many, and what it tells.
type lookKey struct {
	family  any
	quorum  int
	longest time.Duration
}

// whenReady has fn called with what ready returns: at once if it need not wait. Of those
// who wait for the same, one asks.
func (q *quarantine) whenReady(fn func(error)) {
	if q.age() < 2*lookAgain {
		fn(q.ready(q.home().Wire.Context()))
		return
	}
	what, home := lookKey{q.cfg.Family, q.q, q.cfg.LongestLease}, q.home().Standing
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.waiting == nil {
		home.waiting = map[lookKey][]func(error){}
	}
	home.waiting[what] = append(home.waiting[what], fn)
	if len(home.waiting[what]) > 1 {
		return
	}
	q.background(func() {
		err := q.ready(q.home().Wire.Context())
		home.mu.Lock()
		waiting := home.waiting[what]
		delete(home.waiting, what)
		home.mu.Unlock()
		for _, fn := range waiting {
			fn(err)
		}
	})
}

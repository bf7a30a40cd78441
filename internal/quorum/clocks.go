package quorum

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

const (
	// The clock of a node may differ from the median of all by the skew, and a request may be under
	// way for the flight. Both are parts of the longest lease: 500 ms and 1 s for 30 s, and never more.
	skewPart, skewMax     = 60, 500 * time.Millisecond
	flightPart, flightMax = 30, time.Second

	// refreshAfter is how long the knowledge of the nodes' clocks is fresh. After that it is refreshed in
	// the background; after twice that time, a request for votes waits for the refresh.
	refreshAfter = 10 * time.Second

	// clockDrift bounds how fast two clocks diverge: at most by one part in this number.
	// NTP may slew a clock by 500 parts in a million.
	clockDrift = 2000
)

// Knowledge has what a client knows about its server as a node of RedLocks with a quarantine. All such
// locks share it. The zero value is empty.
type Knowledge struct {
	mu           sync.Mutex // guards the rest
	view         nodeView
	isRefreshing bool // as the home of locks: a refresh is under way

	whenFresh map[refreshKey][]func(error) // as the home: callers that wait for a refresh
}

func (s *Knowledge) get() nodeView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// nodeView is the knowledge of a node at one time.
type nodeView struct {
	epoch      string        // the id of the node's process and, if the process must not vote, since when
	epochSince time.Time     // when this client first got the epoch
	evicts     string        // the policy, if it may evict keys
	longest    time.Duration // longest lease of RedLocks that the node has stored

	// When our clock showed clockAt, the node's showed clock, give or take fuzz. clockAt is zero if that is
	// not known.
	clockAt time.Time
	clock   time.Duration // since 1970
	fuzz    time.Duration
}

// noteEpoch records the epoch of a node.
func (v *nodeView) noteEpoch(epoch string, now time.Time) {
	if v.epoch != epoch {
		v.epoch, v.epochSince = epoch, now
	}
}

// times returns the bounds of the current time on the node's clock.
func (v nodeView) times(now time.Time) (lower, upper time.Duration) {
	age := now.Sub(v.clockAt)
	fuzz := v.fuzz + age/clockDrift
	return v.clock + age - fuzz, v.clock + age + fuzz
}

// noteClock records what a node's clock showed at some time between sent and now.
func (v *nodeView) noteClock(clock time.Duration, sent, now time.Time) {
	lower, upper := clock, clock+now.Sub(sent)
	if !v.clockAt.IsZero() {
		// The earlier bounds may be narrower: unless the clock was set since, the true time
		// is where both overlap.
		if e, l := v.times(now); e <= upper && lower <= l {
			lower, upper = max(lower, e), min(upper, l)
		}
	}
	v.clockAt, v.clock, v.fuzz = now, lower+(upper-lower)/2, (upper-lower)/2
}

func (v nodeView) unfit() error {
	return fmt.Errorf("maxmemory-policy %s may evict the record of a hold: set noeviction", v.evicts)
}

// window returns the times of the nodes, in µs, between which a request that is sent now may
// run. It follows the median of their clocks, which one jumping clock cannot move.
// Uncertainty makes it narrower, never wider. The margin of each lease covers how far the
// windows of two clients may be apart.
func (q *quarantine) window() (lo, hi int64) {
	lower, upper := q.times()
	return (upper[len(upper)/2] - q.skew).Microseconds(), (lower[len(lower)/2] + q.skew + q.flight).Microseconds()
}

// times returns the lower and upper bounds of the current times on the nodes' clocks, each sorted. The clock of a node that
// cannot be reached is extrapolated.
func (q *quarantine) times() (lower, upper []time.Duration) {
	now := q.clock.Now()
	for _, n := range q.nodes {
		if v := n.Knowledge.get(); !v.clockAt.IsZero() {
			e, l := v.times(now)
			lower, upper = append(lower, e), append(upper, l)
		}
	}
	slices.Sort(lower)
	slices.Sort(upper)
	return lower, upper
}

// time returns the median of the nodes' clocks, in µs. One clock that has jumped ahead, and
// is set right later, does not affect it.
func (q *quarantine) time() int64 {
	_, upper := q.times()
	return upper[len(upper)/2].Microseconds()
}

// agree returns an error unless the nodes are known to be different servers and it is known
// which of their clocks are right.
func (q *quarantine) agree() error {
	if err := q.distinct(); err != nil {
		return err
	}
	lower, upper := q.times()
	if n := len(lower); n < 3 && lower[n-1]-upper[0] > q.skew {
		return fmt.Errorf("%w: the clocks of two nodes differ by %v, and no third tells which of them is right", ErrNoQuorum, lower[n-1]-upper[0])
	}
	return nil
}

// age returns how old the knowledge of a quorum is.
func (q *quarantine) age() time.Duration {
	now := q.clock.Now()
	var ages []time.Duration
	for _, n := range q.nodes {
		if v := n.Knowledge.get(); !v.clockAt.IsZero() && v.longest >= q.cfg.LongestLease {
			ages = append(ages, now.Sub(v.clockAt))
		}
	}
	if !q.enough(len(ages)) {
		return seam.FarAway
	}
	slices.Sort(ages)
	return ages[q.q-1]
}

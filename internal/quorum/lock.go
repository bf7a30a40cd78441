// Package quorum is the protocol of a RedLock: a lock on a majority of independent masters
// (nodes). Each request goes to all nodes at once, and their votes are counted. It knows
// holds by their ids only, like package protocol, whose interface it implements.
//
// The words are those of the model, model/redlock.pml. A node grants its vote to a hold;
// the stamp of the grant tells it from every other one, and says what the counter of the
// lock on that node has become by it. The token of the hold is the highest such count of a
// quorum, and is written back (RAISE) to the nodes that are behind. A renewal finds a vote
// CONTINUOUS or grants it anew, FRESH. A release takes votes back, with a tombstone
// where a late copy of a request could otherwise make a node vote again.
//
// Read in this order: tally.go decides, fanout.go asks, ballot.go remembers what each node
// may have; acquire.go, keep.go, leave.go and look.go put them together; quarantine.go and
// clocks.go say which nodes may vote at all.
package quorum

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Node is one master, and the client that leads to it. A server has one vote, however many
// clients lead to it.
type Node struct {
	Wire *wire.Deployment
	Name string // for errors: "node 1 (addr)"
	// Listen subscribes to a channel of the node. It may return nil.
	Listen func(channel string, notify func()) (end func())
	// Calls counts what a shutdown of the client waits for.
	Calls *wire.Tally
	// CleanUp has the client's watchdog send t from some time on, until it is answered
	// or it is later than until. It returns false if that watchdog does nothing any more.
	CleanUp func(t protocol.Task, from, until time.Time) bool
	// Standing is what the client knows of the node, whichever lock has learned it.
	Standing *Standing
}

// Config is what the locks of one name on the same nodes have in common. What it does not
// name is up to the first node's client, the home of the lock: its clock, its goroutines
// and its watchdog serve.
type Config struct {
	Name           string // of the lock, with the prefix; a valid one
	Quorum         int    // from a majority of the nodes to all
	NodeTimeout    time.Duration
	CommandTimeout time.Duration // bounds a task that is sent without a caller who waits
	Scripts        protocol.Scripts
	Seed           uint64 // of jitter
	NewID          func() protocol.HoldID
	Ballots        *Ballots // of the home's holds
	// Family is equal, as a key of a map, for locks on the same nodes.
	Family any

	Quarantine    bool          // nodes that have restarted do not vote for the longest lease
	LongestLease  time.Duration // with a quarantine: the bound of all leases
	WatchdogLease time.Duration
	DriftFactor   float64       // how far clocks drift, as a part of a lease,
	DriftFloor    time.Duration // and beside that
	// Validity is how long after sending its request a holder relies on a lease, before
	// the margin of the quarantine is taken off.
	Validity func(lease time.Duration) time.Duration
}

// Lock is the protocol of one RedLock.
type Lock struct {
	size
	cfg     Config
	nodes   []*node
	clock   seam.Clock
	record  string // where a node keeps its vote,
	counter string // the counter of the lock,
	gone    string // tombstones, by the id of the hold,
	channel string // and where it announces a release

	quarantine *quarantine  // nil: none
	pace       atomic.Int64 // ns in which a quorum of nodes has last answered a try
}

var _ protocol.Protocol = (*Lock)(nil)

const (
	// keyHighest is a node's highest counter of all locks, and keyAdmitted says which
	// process of it may vote.
	keyHighest  = "rlock:red:highest"
	keyAdmitted = "rlock:red:admitted"

	// hesitation spreads those who hear of a release, so that they do not split the
	// votes among them.
	hesitation = 5 * time.Millisecond

	// giveUpGrace is how long a caller whose wait is over still waits for its votes to be
	// taken back. Nodes answer within it unless they are silent.
	giveUpGrace = 100 * time.Millisecond
)

// New returns the lock of a name on some nodes, of which the first is the home. It sends
// nothing. The caller has checked the arguments, except for what only a quarantine
// needs: then the error matches ErrInvalidArgument.
func New(nodes []Node, cfg Config) (*Lock, error) {
	l := &Lock{
		size:    size{len(nodes), cfg.Quorum},
		cfg:     cfg,
		clock:   nodes[0].Wire.Clock(),
		record:  suffixed(cfg.Name, "rlock:red"),
		counter: suffixed(cfg.Name, "rlock:red:counter"),
		gone:    suffixed(cfg.Name, "rlock:gone:"),
		channel: suffixed(cfg.Name, "rlock:red:free"),
	}
	for _, n := range nodes {
		l.nodes = append(l.nodes, &node{Node: n})
	}
	if cfg.Quarantine {
		q, err := newQuarantine(l)
		if err != nil {
			return nil, err
		}
		l.quarantine = q
	}
	return l, nil
}

// suffixed derives a key from the name of a lock: in its slot, should a node be one of a
// cluster after all.
func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// home is the node whose client the lock belongs to.
func (l *Lock) home() *node { return l.nodes[0] }

// background runs fn in a goroutine of the home, which its shutdown waits for.
func (l *Lock) background(fn func()) { l.home().Wire.Go(fn) }

func (l *Lock) script(name string) *wire.Script { return l.cfg.Scripts["quorum/"+name] }

// VoteKey is where a node keeps its vote. Two locks that have one in common exclude each
// other.
type VoteKey struct {
	Node any // its address, or else its go-redis client
	Key  string
}

// Votes are what a hold consists of.
func (l *Lock) Votes() (keys []VoteKey) {
	for _, n := range l.nodes {
		key := VoteKey{n.Wire.Redis(), l.record}
		if addr := n.Wire.Address(); addr != "" {
			key.Node = addr
		}
		keys = append(keys, key)
	}
	return keys
}

// NewID implements protocol.Protocol.
func (l *Lock) NewID() protocol.HoldID { return l.cfg.NewID() }

// View implements protocol.Protocol. Another lock of this name may count other nodes, or
// to another quorum.
func (l *Lock) View() any { return l }

// Ready implements protocol.Protocol. Each node is asked how to publish by itself: the
// home may be the one that is away.
func (l *Lock) Ready(context.Context) error { return nil }

// Listen implements protocol.Protocol. Every node announces a release.
func (l *Lock) Listen(_ string, notify func()) (end func()) {
	var ends []func()
	for _, n := range l.nodes {
		if end := n.Listen(l.channel, notify); end != nil {
			ends = append(ends, end)
		}
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// QueuedInRedis implements protocol.Protocol.
func (l *Lock) QueuedInRedis() bool { return false }

// KeepsPlace implements protocol.Protocol.
func (l *Lock) KeepsPlace() bool { return false }

// LongestPause implements protocol.Protocol.
func (l *Lock) LongestPause(int64, int) time.Duration { return math.MaxInt64 }

// Hesitation implements protocol.Protocol.
func (l *Lock) Hesitation() time.Duration { return hesitation }

// GuardsFixedLease implements protocol.Protocol.
func (l *Lock) GuardsFixedLease() bool { return false }

// Margin implements protocol.Protocol. It is what the clocks of the nodes and late copies
// cost, with a quarantine.
func (l *Lock) Margin() time.Duration {
	if l.quarantine == nil {
		return 0
	}
	return l.quarantine.margin()
}

// LongestLease implements protocol.Protocol. It is 0 without a quarantine.
func (l *Lock) LongestLease() time.Duration {
	if l.quarantine == nil {
		return 0
	}
	return l.cfg.LongestLease
}

// request is a question to a quorum: it implements protocol.Request.
type request[T any] struct {
	do func(ctx context.Context) protocol.Result[T] // ends with ctx
}

// Do implements protocol.Request.
func (r request[T]) Do(ctx context.Context, budget time.Duration) protocol.Result[T] {
	if err := ctx.Err(); err != nil {
		return failed[T](err)
	}
	within, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	got := r.do(within)
	if got.Err != nil && ctx.Err() == nil && within.Err() != nil {
		// Our own time limit must not look like the end of the caller's context.
		got.Err = wire.NoAnswer(budget, got.Err)
	}
	got.OfQuorum = true
	return got
}

func failed[T any](err error) protocol.Result[T] {
	return protocol.Result[T]{Err: err, OfQuorum: true}
}

func outcome[T any](o T) protocol.Result[T] {
	return protocol.Result[T]{Outcome: o, OfQuorum: true}
}

// task is a request about a hold that can also be sent without a caller who waits: it
// implements protocol.Task.
type task struct {
	request[protocol.Kept]
	l *Lock
	// send, if it is there, is what Send does.
	send func(d protocol.Dispatch)
}

// Name implements protocol.Task.
func (t *task) Name() string { return "quorum" }

// OfQuorum implements protocol.Task.
func (t *task) OfQuorum() bool { return true }

// Send implements protocol.Task.
func (t *task) Send(d protocol.Dispatch) {
	if t.send != nil {
		t.send(d)
		return
	}
	home := t.l.home().Wire
	t.l.background(func() {
		sent := t.l.clock.Now()
		ctx, cancel := context.WithTimeout(home.Context(), t.l.cfg.CommandTimeout)
		defer cancel()
		d.Done(sent, t.do(ctx))
	})
}

package quorum

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Node is one master, and the client that supplies connections to it. A server has one vote,
// however many clients it has.
type Node struct {
	Wire *wire.Deployment
	Name string // for errors: "node 1 (addr)"
	// Listen subscribes to a channel of the node. It may return nil.
	Listen func(channel string, notify func()) (end func())
	// Calls counts the calls that a shutdown of the client waits for.
	Calls *wire.Tally
	// CleanUp makes the client's watchdog send t from a given time on, until there is a reply
	// or until has passed. It returns false if that watchdog has stopped.
	CleanUp func(t protocol.Task, from, until time.Time) bool
	// Knowledge has what the client knows about the node. All its locks share it.
	Knowledge *Knowledge
}

// Config configures a lock. The client of the first node is the home of the lock: the lock
// uses its clock, its goroutines and its watchdog.
type Config struct {
	Names          *protocol.Names // names of the lock's keys
	Prefix         string          // prefix of the client
	Quorum         int             // from a majority of the nodes to all
	NodeTimeout    time.Duration
	CommandTimeout time.Duration // bounds a task that is sent without a waiting caller
	LongestPoll    time.Duration // longest pause of a waiter
	Scripts        protocol.Scripts
	Seed           uint64 // seed of jitter
	NewID          func() protocol.HoldID
	Ballots        *Ballots // ballots of the home's holds
	// Family is a map key that is equal for locks on the same nodes.
	Family any

	Quarantine    bool          // nodes that have restarted do not vote for LongestLease
	LongestLease  time.Duration // with a quarantine: the bound of all leases
	WatchdogLease time.Duration
	DriftFactor   float64       // how far clocks drift, as a part of a lease
	DriftFloor    time.Duration // how far they drift in addition to that
	// Validity returns how long a holder relies on a lease, counted from the sending of its
	// request, before the margin of the quarantine is subtracted.
	Validity func(lease time.Duration) time.Duration
}

// Lock is the protocol of one RedLock.
type Lock struct {
	size
	cfg                      Config
	nodes                    []*node
	clock                    seam.Clock
	record                   string // key of a node's vote
	counter                  string // key of the lock's counter
	gone                     string // prefix of the keys of tombstones; the id of the hold follows
	channel                  string // channel on which a node announces a release
	highest, admitted, since string // see keyHighest
	keys                     [3]any // record, counter and highest as arguments, allocated once
	freed                    any    // channel as an argument

	quarantine *quarantine  // nil without WithRestartQuarantine
	pace       atomic.Int64 // how long a quorum took to reply to the last try, ns
}

var (
	_ protocol.Reentrant = (*Lock)(nil)
	_ protocol.Quorum    = (*Lock)(nil)
)

const (
	// keyHighest is a node's highest counter of all locks with a prefix. keyAdmitted is the process of the node
	// that may vote for them. keySince is since when another process may not vote. All three begin with the prefix.
	keyHighest  = "rlock:red:highest"
	keyAdmitted = "rlock:red:admitted"
	keySince    = "rlock:red:since"
)

// New returns the lock of a name on some nodes; the first one is the home. It sends nothing.
// The caller has checked the arguments, except those for the quarantine: for them the error
// matches ErrInvalidArgument.
func New(nodes []Node, cfg Config) (*Lock, error) {
	l := &Lock{
		size:    size{len(nodes), cfg.Quorum},
		cfg:     cfg,
		clock:   nodes[0].Wire.Clock(),
		record:  cfg.Names.Derived("rlock:red"),
		counter: cfg.Names.Derived("rlock:red:counter"),
		gone:    cfg.Names.Tombstone(""),
		channel: cfg.Names.Derived("rlock:red:free"),
	}
	l.highest, l.admitted, l.since = cfg.Prefix+keyHighest, cfg.Prefix+keyAdmitted, cfg.Prefix+keySince
	l.keys, l.freed = [3]any{l.record, l.counter, l.highest}, l.channel
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

// home returns the node whose client the lock belongs to.
func (l *Lock) home() *node { return l.nodes[0] }

// background runs fn in a goroutine that the shutdown of the home waits for.
func (l *Lock) background(fn func()) { l.home().Wire.Go(fn) }

func (l *Lock) script(name string) *wire.Script { return l.cfg.Scripts["quorum/"+name] }

// EachNode calls fn with each node and its name.
func (l *Lock) EachNode(fn func(name string, d *wire.Deployment)) {
	for _, n := range l.nodes {
		fn(n.Name, n.Wire)
	}
}

// VoteKey identifies a vote of a node. Two locks with a common VoteKey exclude each other.
type VoteKey struct {
	Node any // its address, or its go-redis client if that is not known
	Key  string
}

// Votes returns the votes that a hold consists of.
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

// Wires implements protocol.Quorum.
func (l *Lock) Wires() (all []*wire.Deployment) {
	for _, n := range l.nodes {
		all = append(all, n.Wire)
	}
	return all
}

// NewID implements protocol.Protocol.
func (l *Lock) NewID() protocol.HoldID { return l.cfg.NewID() }

// View implements protocol.Protocol. Another lock of this name may have other nodes or
// another quorum.
func (l *Lock) View() any { return l }

// Ready implements protocol.Protocol. It does nothing: fanout finds out for each node how to publish,
// because the home may be unreachable.
func (l *Lock) Ready(context.Context) error { return nil }

// Prepare implements protocol.Protocol.
func (l *Lock) Prepare() {
	for _, n := range l.nodes {
		n.Wire.Prepare(l.record)
	}
}

// Listen implements protocol.Protocol. Every node announces a release.
func (l *Lock) Listen(_ string, notify func()) (end func()) { return l.listen(l.channel, notify) }

// listen subscribes to a channel of each node.
func (l *Lock) listen(channel string, notify func()) (end func()) {
	var ends []func()
	for _, n := range l.nodes {
		if end := n.Listen(channel, notify); end != nil {
			ends = append(ends, end)
		}
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// Kind implements protocol.Protocol.
func (l *Lock) Kind() *protocol.Kind { return protocol.KindNamed("red") }

// Hesitation implements protocol.Hesitant. After clashes, or in a crowd, it spreads the waiters that get the message
// of a release over time, so that they do not split the votes and take turns in being the first.
func (l *Lock) Hesitation(clashes int, crowd bool) time.Duration {
	if clashes == 0 && !crowd {
		return 0
	}
	return l.backOff(min(clashes, hesitations))
}

// Margin implements protocol.Bounded. With a quarantine it covers the skew of the nodes'
// clocks and late copies.
func (l *Lock) Margin() time.Duration {
	if l.quarantine == nil {
		return 0
	}
	return l.quarantine.margin()
}

// LongestLease implements protocol.Bounded. It is 0 without a quarantine.
func (l *Lock) LongestLease() time.Duration {
	if l.quarantine == nil {
		return 0
	}
	return l.cfg.LongestLease
}

// request is a request to a quorum. It implements protocol.Request.
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
	if got.Err != nil && ctx.Err() == nil && within.Err() != nil && !errors.Is(got.Err, ErrNoQuorum) {
		// The end of the budget is not the end of the caller's context.
		got.Err = wire.NoAnswer(budget, got.Err)
	}
	return got
}

func failed[T any](err error) protocol.Result[T] {
	return protocol.Result[T]{Err: err}
}

func outcome[T any](o T) protocol.Result[T] {
	return protocol.Result[T]{Outcome: o}
}

// lostTo returns how a hold has ended if a round or a release has the result no. taken is how many nodes
// have voted for others.
func lostTo(taken int) protocol.Kept {
	if taken > 0 {
		return protocol.TakenOver
	}
	return protocol.Removed
}

// task is a request about a hold that can also be sent without a waiting caller. It
// implements protocol.Task.
type task struct {
	request[protocol.Kept]
	l *Lock
	// send replaces Send unless nil.
	send   func(d protocol.Dispatch)
	onNode *nodeTask // release that the home sends for a node's client; usually nil
}

func (l *Lock) task(do func(ctx context.Context) protocol.Result[protocol.Kept]) *task {
	return &task{request: request[protocol.Kept]{do}, l: l}
}

// Dispensable implements protocol.Dispensable.
func (t *task) Dispensable() bool { return t.onNode != nil && t.onNode.Dispensable() }

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

package rlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/quorum"
)

// RedLock is a lock on a majority of independent masters: it excludes, and can be acquired, as long as a
// majority of them answers and keeps its data. If, of N nodes with a quorum of q, at least 2q-N that voted
// for a hold lose their data within one lease, there may be two holders, except with
// [WithRestartQuarantine]. All clients of a lock must name the same nodes. The options, watchdog and
// observer of the first client apply. Other methods: [Inspection]. Details:
// https://go-rlock.github.io/rlock/latest/redlock/
type RedLock struct{ locker }

var _ Locker = (*RedLock)(nil)

type redOption func(c *redConfig)

func (o redOption) optionOfNewRedLock(c *redConfig) { o(c) }

// WithQuorum sets how many nodes must vote for a hold: from a majority, the default, to all. With more,
// fewer may be unavailable, and more may lose their data.
func WithQuorum(q int) RedLockOption {
	return redOption(func(c *redConfig) { c.quorum = q })
}

// WithNodeTimeout bounds each request to one node. The default is 500 ms ([DefaultNodeTimeout]); it is from
// 1 ms to a sixth of the watchdog lease.
func WithNodeTimeout(d time.Duration) RedLockOption {
	return redOption(func(c *redConfig) { c.timeout = d })
}

// WithRestartQuarantine keeps a node that has restarted, lost its data, or was replaced by a replica from
// voting until every hold that it voted for has run out. Then a hold survives any number of restarts, and
// clock jumps of fewer than a quorum of nodes. It is off by default. All clients of the lock must use it,
// with the same longest lease ([WithLongestLease]). A new deployment is in quarantine as a whole
// ([RedLock.BootstrapNodes]). What else it needs and costs:
// https://go-rlock.github.io/rlock/latest/redlock/#withrestartquarantine
func WithRestartQuarantine() RedLockOption {
	return redOption(func(c *redConfig) { c.quarantine = true })
}

// WithLongestLease bounds all leases of a RedLock [WithRestartQuarantine], and the time of its quarantine.
// The default is the watchdog lease of the first client, which is the least too. RedLocks that share nodes
// have the same: https://go-rlock.github.io/rlock/latest/redlock/#withrestartquarantine
func WithLongestLease(d time.Duration) RedLockOption {
	return redOption(func(c *redConfig) { c.longestLease, c.hasLongest = d, true })
}

// NewRedLock returns the lock of a name on independent masters, usually three or five. It sends nothing.
// The error matches ErrInvalidArgument if there is no client, one is nil or occurs twice, two have one
// server's address or different prefixes, or the name or an option is invalid.
func NewRedLock(name string, clients []*Client, opts ...RedLockOption) (*RedLock, error) {
	l, err := newRedLock(name, clients, opts)
	if err != nil {
		return nil, fmt.Errorf("rlock: NewRedLock: %w", err)
	}
	return l, nil
}

func newRedLock(name string, clients []*Client, opts []RedLockOption) (*RedLock, error) {
	if err := checkNodes(clients); err != nil {
		return nil, err
	}
	home := clients[0]
	usual := redConfig{quorum: len(clients)/2 + 1, timeout: DefaultNodeTimeout, longestLease: home.cfg.watchdogLease}
	cfg, err := lockOptions(usual, opts, RedLockOption.optionOfNewRedLock)
	l, names := newCore(home, redFamily(clients), name, cfg.lockConfig, err)
	if l.argErr != nil {
		return nil, l.argErr
	}
	if cfg.quorum <= len(clients)/2 || cfg.quorum > len(clients) {
		return nil, invalid("WithQuorum(%d): must be from %d to %d of %d nodes", cfg.quorum, len(clients)/2+1, len(clients), len(clients))
	}
	if most := home.cfg.watchdogLease / 6; cfg.timeout < time.Millisecond || cfg.timeout > most {
		return nil, invalid("WithNodeTimeout(%v): must be from 1ms to %v, a sixth of the watchdog lease", cfg.timeout, most)
	}
	if cfg.hasLongest && !cfg.quarantine {
		return nil, invalid("WithLongestLease is for a RedLock with WithRestartQuarantine")
	}
	if cfg.quarantine && (cfg.longestLease < home.cfg.watchdogLease || cfg.longestLease > MaxLease) {
		return nil, invalid("WithLongestLease(%v): must be from the watchdog lease, %v, to %v", cfg.longestLease, home.cfg.watchdogLease, MaxLease)
	}
	var nodes []quorum.Node
	for i, c := range clients {
		nodes = append(nodes, redNode(i, c, l.name()))
	}
	l.proto, err = quorum.New(nodes, quorum.Config{
		Names: names, Prefix: home.cfg.prefix, Family: l.family, Quorum: cfg.quorum,
		NodeTimeout: cfg.timeout, CommandTimeout: home.cfg.commandTimeout, LongestPoll: home.cfg.longestPoll,
		Scripts: home.site.Scripts, Seed: home.seed, NewID: home.newID, Ballots: &home.ballots,
		Quarantine: cfg.quarantine, LongestLease: cfg.longestLease, WatchdogLease: home.cfg.watchdogLease,
		DriftFactor: home.cfg.driftFactor, DriftFloor: home.cfg.driftFloor, Validity: home.cfg.validity,
	})
	if err != nil {
		return nil, err
	}
	return &RedLock{newLocker(l)}, nil
}

// checkNodes reports why the clients cannot be nodes of one lock.
func checkNodes(clients []*Client) error {
	if len(clients) == 0 {
		return invalid("no clients")
	}
	for i, c := range clients {
		if !c.made() {
			return invalid("client %d is nil or was not made by New", i)
		}
		if slices.Index(clients, c) != i {
			return invalid("client %d occurs twice", i)
		}
		same := func(equal func(other *Client) bool) int {
			return slices.IndexFunc(clients[:i], equal)
		}
		if one, ok := c.wire.Redis().(*redis.Client); ok && same(func(o *Client) bool { return o.wire.Redis() == one }) >= 0 {
			return invalid("client %d uses the go-redis client of another: a server has one vote", i)
		}
		if addr := c.wire.Address(); addr != "" {
			if j := same(func(o *Client) bool { return o.wire.Address() == addr }); j >= 0 {
				return invalid("clients %d and %d connect to one server, %s: a server has one vote", j, i, addr)
			}
		}
		if p, q := clients[0].cfg.prefix, c.cfg.prefix; p != q {
			// Processes may list their clients in different orders: they must
			// come to the same keys, whichever of them is the home.
			return invalid("client 0 has the prefix %q, and client %d has %q: all nodes of a lock have the same keys", p, i, q)
		}
		if c.wire.IsCluster() {
			return invalid("client %d connects to a cluster: a RedLock needs independent masters", i)
		}
	}
	return nil
}

// redNode is a client as a node of a lock.
func redNode(i int, c *Client, lock string) quorum.Node {
	n := quorum.Node{
		Wire: c.wire, Name: fmt.Sprint("node ", i+1), Listen: c.hub.Listen, Calls: &c.calls, Knowledge: &c.knowledge,
		CleanUp: func(t protocol.Task, from, until time.Time) bool {
			if c.watchdog.IsClosed() {
				return false
			}
			c.cleanUp(redCleanup(lock), t, c.timeline.At(from), c.timeline.At(until), nil)
			return true
		},
	}
	if one, ok := c.wire.Redis().(*redis.Client); ok {
		n.Name += " (" + one.Options().Addr + ")"
	}
	return n
}

// redCleanup is the line of the clean-ups of a node's votes.
type redCleanup string

// redFamily makes RedLocks of one name and home the same lock if their nodes are
// the same, in whatever order.
func redFamily(clients []*Client) string {
	var ids []string
	for _, c := range clients {
		ids = append(ids, c.id)
	}
	slices.Sort(ids)
	return "redlock " + strings.Join(ids, " ")
}

// BootstrapNodes lets all nodes of a new deployment vote immediately. It is for the operator, once: no
// process may have held any RedLock on these nodes within the longest lease. The error matches
// ErrNoQuorum if a node does not answer or is unfit: then call again. ErrInvalidArgument: the lock has
// no quarantine, or only some nodes may vote and have voted.
func (l *RedLock) BootstrapNodes(ctx context.Context) error {
	if l == nil {
		l = &RedLock{}
	}
	if err := l.beginCall(ctx); err != nil {
		return err
	}
	defer l.c.endCall()
	if err := l.proto.(*quorum.Lock).Bootstrap(ctx); err != nil {
		return l.error(err)
	}
	return nil
}

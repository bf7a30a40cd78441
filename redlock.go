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

// RedLock is a lock on a majority of independent masters: it excludes, and can be
// acquired, as long as a majority of them answers and keeps its data. It does not
// survive that so many of the nodes that voted for a hold lose their data within one
// lease that they and the others are a quorum: with N nodes and a quorum of q, at least
// 2q-N of them. Then there may be two holders; the token of the first is lower, unless
// so many nodes came back with old data, or with a clock that is behind.
// [WithRestartQuarantine] and docs/failover.md say more.
//
// Unlike Redlock as its author specified it, and Redisson's, its tokens strictly
// increase in the order of holds: the token is the highest counter of the nodes that
// voted, and is written back to a majority of them before the hold is granted. The
// masters need not agree on anything, and their clocks must only run at the same speed.
//
// All clients of a lock must name the same nodes, in any order, and the same prefix: two
// sets of nodes are two locks, even if most of the nodes are the same. docs/failover.md
// says how to replace a node, and how to have more of them.
//
// The keys are its own: it does not share holds with Redisson's RedissonRedLock. A
// MultiLock of plain locks does.
//
// Unlock returns when so many nodes have taken their votes back that the others are no
// quorum, and waits for these for as long again. The rest goes on in the background, where
// Close of the first client waits for it. A process that ends without Close may leave votes
// on nodes that were slow or dead, until their lease is over.
//
// The first client is the home of the lock: its options, watchdog and observer apply,
// and its Shutdown ends the leases. The others only supply connections to their nodes.
type RedLock struct{ *core }

var _ Locker = (*RedLock)(nil)

type redOption func(c *redConfig)

func (o redOption) redLock(c *redConfig) { o(c) }

// WithQuorum sets how many nodes must vote for a hold: from a majority, the default, to
// all. With more, fewer nodes may be away, and more may lose their data.
func WithQuorum(q int) RedLockOption {
	return redOption(func(c *redConfig) { c.quorum = q })
}

// WithNodeTimeout bounds each request to one node. The default is
// [DefaultNodeTimeout]; it must be between 1 ms and a sixth of the watchdog lease.
func WithNodeTimeout(d time.Duration) RedLockOption {
	return redOption(func(c *redConfig) { c.timeout = d })
}

// WithRestartQuarantine keeps a node that has restarted, lost its data, or was replaced
// by a replica from voting until every hold that it voted for before has run out. With
// it a hold survives any number of restarts without data or with old data, one after the
// other or at once, and clock jumps of fewer than a quorum of nodes. docs/failover.md
// says how, and what it does not notice.
//
// All clients of the lock must use it, with the same longest lease (WithLongestLease).
// It takes a fifteenth of that off each lease, 2 s at most. It needs three nodes or
// more, each a server of its own, whose clocks differ by less than a hundredth of the
// longest lease, which allow INFO in scripts and evict no keys. A client ends the
// quarantine of a node when it has used RedLocks with it for the longest lease:
// processes that all live for less never do. A new deployment is in quarantine as a
// whole, until the longest lease has passed or [RedLock.BootstrapNodes] is called.
func WithRestartQuarantine() RedLockOption {
	return redOption(func(c *redConfig) { c.quarantine = true })
}

// WithLongestLease bounds all leases of a RedLock with a quarantine, and sets how long
// that takes: the same for all RedLocks that share nodes. Longer leases are refused. The
// default is the watchdog lease of the first client. A RedLock without a quarantine
// refuses it. docs/failover.md says how to lower it.
func WithLongestLease(d time.Duration) RedLockOption {
	return redOption(func(c *redConfig) { c.longest, c.hasLongest = d, true })
}

// NewRedLock returns the lock of a name on independent masters, usually three or five.
// It sends nothing. The error matches ErrInvalidArgument if there is no client, one is
// nil or occurs twice, two have one server's address or different prefixes, or the name
// or an option is invalid. A server has one vote, but two addresses of one server,
// Sentinel deployments and wrapped clients are not recognized as one here:
// [WithRestartQuarantine] compares the run_id of nodes before they vote.
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
	cfg := redConfig{quorum: len(clients)/2 + 1, timeout: DefaultNodeTimeout, longest: home.cfg.watchdogLease}
	err := applyEach(opts, func(o RedLockOption) { o.redLock(&cfg) })
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
	if cfg.quarantine && (cfg.longest < home.cfg.watchdogLease || cfg.longest > MaxLease) {
		return nil, invalid("WithLongestLease(%v): must be from the watchdog lease, %v, to %v", cfg.longest, home.cfg.watchdogLease, MaxLease)
	}
	var nodes []quorum.Node
	for i, c := range clients {
		nodes = append(nodes, redNode(i, c, l.name()))
	}
	l.asks, err = quorum.New(nodes, quorum.Config{
		Names: names, Prefix: home.cfg.prefix, Family: l.family, Quorum: cfg.quorum,
		NodeTimeout: cfg.timeout, CommandTimeout: home.cfg.commandTimeout, LongestPoll: home.cfg.longestPoll,
		Scripts: home.site.Scripts, Seed: home.seed, NewID: home.newID, Ballots: &home.ballots,
		Quarantine: cfg.quarantine, LongestLease: cfg.longest, WatchdogLease: home.cfg.watchdogLease,
		DriftFactor: home.cfg.driftFactor, DriftFloor: home.cfg.driftFloor, Validity: home.cfg.validity,
	})
	if err != nil {
		return nil, err
	}
	return &RedLock{l}, nil
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
		Wire: c.wire, Name: fmt.Sprint("node ", i+1), Listen: c.hub.listen, Calls: &c.calls, Knowledge: &c.knowledge,
		CleanUp: func(t protocol.Task, from, until time.Time) bool {
			if c.watchdog.isClosed() {
				return false
			}
			c.cleanups.add(redCleanup(lock), t, c.at(from), c.at(until))
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

// BootstrapNodes lets all nodes of a new deployment vote at once, instead of after the
// longest lease. It is for the operator, once, before the lock is first used: no process
// may have held any RedLock on these nodes within the longest lease.
//
// It needs all nodes. The error matches ErrNoQuorum if one does not answer or is unfit,
// and ErrInvalidArgument if the lock has no quarantine, or if only some nodes may vote
// and have voted: then another one has restarted, and its quarantine must end. If all
// may vote, it does nothing. After a failure it may be called again.
func (l *RedLock) BootstrapNodes(ctx context.Context) error {
	if l == nil {
		l = &RedLock{}
	}
	if err := l.check(ctx); err != nil {
		return err
	}
	if !l.c.begin() {
		return l.error(ErrClosed)
	}
	defer l.c.end()
	if err := l.asks.(*quorum.Lock).Bootstrap(ctx); err != nil {
		return l.error(err)
	}
	return nil
}

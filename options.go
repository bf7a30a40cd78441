package rlock

import (
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/seam"
)

// Defaults and bounds.
const (
	// DefaultWatchdogLease is the lease of holds without WithLease. It is
	// Redisson's: long enough for a slow failover, short enough that the locks
	// of a crashed process are free again within half a minute.
	DefaultWatchdogLease = 30 * time.Second

	// DefaultCommandTimeout bounds one operation on Redis, its resends
	// included. Redisson waits as long for a reply.
	DefaultCommandTimeout = 3 * time.Second

	// DefaultUnlockTimeout bounds an Unlock, which does not listen to its
	// context.
	DefaultUnlockTimeout = 3 * time.Second

	// DefaultLongestPoll is the longest a waiter sleeps without looking, should
	// every message be lost.
	DefaultLongestPoll = 5 * time.Second

	// DefaultWaiterLease is for how long a waiter keeps its place in a queue in
	// Redis without a sign of life; it gives one each third of it. So it bears a
	// lost command, or a pause of its process of some seconds. A waiter that dies
	// while it is next delays those behind it for at most as long. (A waiter of
	// Redisson keeps its place for five minutes.)
	DefaultWaiterLease = 10 * time.Second

	// MinWaiterLease is the shortest waiter lease: each waiter sends three
	// commands in it.
	MinWaiterLease = 100 * time.Millisecond

	// DefaultDriftFactor and DefaultDriftFloor shorten the local validity of a
	// lease: clocks of different machines run at slightly different speeds,
	// and Redis counts whole milliseconds. Both figures are Redlock's.
	DefaultDriftFactor = 0.01
	DefaultDriftFloor  = 2 * time.Millisecond

	// MinLease is the shortest lease. Below it a round trip and the drift can
	// use up the lease before the holder has it.
	MinLease = 10 * time.Millisecond

	// MaxLease is the longest lease. A crashed holder's lock stays locked for
	// that long; use renewal, not a long lease, for long work.
	MaxLease = 24 * time.Hour
)

// PubSubMode says with which commands releases are announced and awaited.
type PubSubMode string

const (
	// PubSubAuto does what Redisson's defaults do: sharded in a cluster of
	// Redis or Valkey 7 and later, plain otherwise. The server is asked what it is
	// (HELLO), once; if it does not say, both kinds are used. It is the default.
	PubSubAuto PubSubMode = "auto"
	// PubSubPlain uses PUBLISH, which in a cluster reaches every node.
	PubSubPlain PubSubMode = "plain"
	// PubSubSharded uses SPUBLISH, which stays on the lock's shard. It needs a
	// cluster of version 7.
	PubSubSharded PubSubMode = "sharded"
	// PubSubBoth uses both, for a cluster whose clients disagree: Redisson
	// before 3.22 beside newer ones, or during a change of this option.
	PubSubBoth PubSubMode = "both"
)

// apply calls options, of which none may be nil.
func apply[C any, O ~func(*C)](opts []O, c *C) error {
	for i, opt := range opts {
		if opt == nil {
			return invalid("option %d is nil", i)
		}
		opt(c)
	}
	return nil
}

// Option configures a Client. As with the options of locks and acquires, a nil one is
// refused with ErrInvalidArgument.
type Option func(*config)

type config struct {
	watchdogLease  time.Duration
	commandTimeout time.Duration
	unlockTimeout  time.Duration
	longestPoll    time.Duration
	waiterLease    time.Duration
	driftFactor    float64
	driftFloor     time.Duration
	prefix         string
	acks           int
	ackTimeout     time.Duration
	quarantined    bool
	longest        time.Duration // lease, if quarantined
	pubsub         PubSubMode
	observer       Observer
	logger         *slog.Logger
	env            seam.Env
}

func defaults() config {
	return config{
		watchdogLease:  DefaultWatchdogLease,
		commandTimeout: DefaultCommandTimeout,
		unlockTimeout:  DefaultUnlockTimeout,
		longestPoll:    DefaultLongestPoll,
		waiterLease:    DefaultWaiterLease,
		driftFactor:    DefaultDriftFactor,
		driftFloor:     DefaultDriftFloor,
		pubsub:         PubSubAuto,
		observer:       NopObserver{},
		logger:         slog.New(slog.DiscardHandler),
	}
}

func (c *config) validate() error {
	if err := checkLease("WithWatchdogLease", c.watchdogLease); err != nil {
		return err
	}
	for _, d := range []struct {
		option string
		value  time.Duration
	}{
		{"WithCommandTimeout", c.commandTimeout},
		{"WithUnlockTimeout", c.unlockTimeout},
		{"WithLongestPoll", c.longestPoll},
	} {
		if d.value < time.Millisecond || d.value > MaxLease {
			return invalid("%s(%v): must be between 1ms and %v", d.option, d.value, MaxLease)
		}
	}
	if c.waiterLease < MinWaiterLease || c.waiterLease > MaxLease {
		return invalid("WithWaiterLease(%v): must be between %v and %v", c.waiterLease, MinWaiterLease, MaxLease)
	}
	if c.driftFactor < 0 || c.driftFactor > 0.5 || c.driftFloor < 0 {
		return invalid("WithDrift(%v, %v): the factor must be between 0 and 0.5, the floor not negative", c.driftFactor, c.driftFloor)
	}
	if c.validity(c.watchdogLease) <= c.watchdogLease/3 {
		return invalid("WithDrift(%v, %v) leaves too little of WithWatchdogLease(%v) to renew in", c.driftFactor, c.driftFloor, c.watchdogLease)
	}
	if c.acks < 0 || c.acks > 0 && (c.ackTimeout < time.Millisecond || c.ackTimeout > MaxLease) {
		return invalid("WithReplicaAck(%d, %v): need a number of replicas, and between 1ms and %v for them to answer", c.acks, c.ackTimeout, MaxLease)
	}
	if c.quarantined && (c.longest < c.watchdogLease || c.longest > MaxLease) {
		return invalid("WithFailoverQuarantine(%v): must be between the watchdog lease, %v, and %v", c.longest, c.watchdogLease, MaxLease)
	}
	switch c.pubsub {
	case PubSubAuto, PubSubPlain, PubSubSharded, PubSubBoth:
	default:
		return invalid("WithPubSub(%q): not a mode", c.pubsub)
	}
	if c.observer == nil {
		return invalid("WithObserver(nil)")
	}
	if c.logger == nil {
		return invalid("WithLogger(nil)")
	}
	return nil
}

// validateFor reports what of the configuration does not suit a go-redis client.
func (c *config) validateFor(rdb redis.UniversalClient) error {
	var readTimeout time.Duration // 0: none
	switch r := rdb.(type) {
	case *redis.Client:
		readTimeout = r.Options().ReadTimeout
	case *redis.ClusterClient:
		if c.quarantined {
			return invalid("WithFailoverQuarantine is not for a cluster: each slot would be in quarantine by itself")
		}
		readTimeout = r.Options().ReadTimeout
	default:
		if c.quarantined {
			return invalid("WithFailoverQuarantine needs a *redis.Client, not a %T", rdb)
		}
		if c.acks > 0 {
			return invalid("WithReplicaAck needs a *redis.Client or *redis.ClusterClient, not a %T: the acquire and its WAIT must share a connection", rdb)
		}
	}
	if c.acks > 0 && readTimeout > 0 && c.ackTimeout >= readTimeout {
		return invalid("WithReplicaAck(%d, %v): the go-redis client gives up reading after %v, before Redis answers", c.acks, c.ackTimeout, readTimeout)
	}
	return nil
}

// validity is how long after sending its request a holder may rely on a lease.
func (c *config) validity(lease time.Duration) time.Duration {
	return lease - time.Duration(float64(lease)*c.driftFactor) - c.driftFloor
}

// quarantine is for how long a server that is new gives out none.
func (c *config) quarantine() time.Duration {
	if !c.quarantined {
		return 0
	}
	return c.longest + time.Duration(float64(c.longest)*c.driftFactor) + c.driftFloor
}

// wholeMillis rounds a lease up to what Redis counts in.
func wholeMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

func checkLease(what string, d time.Duration) error {
	if d < MinLease || d > MaxLease {
		return invalid("%s(%v): a lease must be between %v and %v", what, d, MinLease, MaxLease)
	}
	return nil
}

// WithWatchdogLease sets the lease of holds without WithLease. They are
// renewed each third of it. The default is [DefaultWatchdogLease]; it must be
// between [MinLease] and [MaxLease], and WithDrift must leave more than a third
// of it.
func WithWatchdogLease(d time.Duration) Option { return func(c *config) { c.watchdogLease = d } }

// WithCommandTimeout bounds one operation on Redis, its resends included,
// whatever the time-outs of the go-redis client are. When half of it has passed
// without a reply, the request is sent again on another connection. The default
// is [DefaultCommandTimeout]; it must be between 1 ms and [MaxLease].
func WithCommandTimeout(d time.Duration) Option { return func(c *config) { c.commandTimeout = d } }

// WithUnlockTimeout bounds Unlock, which goes on when its context has ended,
// and Close. The default is [DefaultUnlockTimeout]; it must be between 1 ms and
// [MaxLease].
func WithUnlockTimeout(d time.Duration) Option { return func(c *config) { c.unlockTimeout = d } }

// WithLongestPoll bounds how long a waiter sleeps without looking at the lock.
// Messages wake it earlier; this is for when they are lost. The default is
// [DefaultLongestPoll]; it must be between 1 ms and [MaxLease].
func WithLongestPoll(d time.Duration) Option { return func(c *config) { c.longestPoll = d } }

// WithWaiterLease sets for how long a waiter keeps its place in a queue in Redis
// (of a FairLock, FairReadWriteLock or PriorityLock, and of a writer that is
// preferred) without a sign of life. A waiter that is cut off from Redis, or whose
// process is stopped, for longer than that may find itself at the end of the queue;
// one that dies delays those behind it by as much. The default is
// [DefaultWaiterLease]; it must be between [MinWaiterLease] and [MaxLease].
// Clients of one lock should use the same.
func WithWaiterLease(d time.Duration) Option { return func(c *config) { c.waiterLease = d } }

// WithDrift sets by how much a holder distrusts its lease: it counts as lost
// after lease - lease*factor - floor. The defaults are [DefaultDriftFactor] and
// [DefaultDriftFloor]. The factor must be between 0 and 0.5, the floor not
// negative, and of the watchdog lease more than a third must be left.
func WithDrift(factor float64, floor time.Duration) Option {
	return func(c *config) { c.driftFactor, c.driftFloor = factor, floor }
}

// WithPrefix puts a prefix before the name of each lock. The result is what
// Redis and other clients see (a Java client needs a NameMapper that does the
// same). The default is none. The keys of the fencing clocks, rlock:clock:{...}, have no prefix:
// clients with different prefixes must agree on them.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithReplicaAck makes each lease count only when n replicas have confirmed it
// (WAIT, on the connection of the request), for which they get at most the time-out.
// That must be shorter than the read time-out of the go-redis client. With too few,
// an acquire releases the lock and fails with ErrNotAcquired; a renewal is repeated
// until the deadline, which has not moved; Extend, and a re-entry with a lease of its
// own, fail with ErrUnreachable. A re-entry without one does not wait, and does not
// move the deadline.
//
// The default is 0 replicas: no waiting. With more, the time-out must be between
// 1 ms and [MaxLease], and rdb a *redis.Client or *redis.ClusterClient. The time
// that WithCommandTimeout allows for a request that waits grows by the time-out.
// Members of a [RedLock] do not wait.
//
// There are three levels, by what a hold survives:
//
//   - Without this option: no failover. The master answers before it replicates.
//   - With n of the replicas: the failover to one of those that confirmed. A holder
//     whose master is cut off from all of them loses its lease by its own deadline.
//     Another replica may be promoted, one that was away or is behind, and a master
//     that is cut off together with n replicas goes on granting: two owners then.
//   - With n all the replicas there are, and [WithFailoverQuarantine]: any one
//     failover, to a replica with old data or none too. A hold that is not known there
//     is lost, and nobody gets its lock before its deadline. While a replica is away no
//     lock can be had, nor kept.
//
// Fencing tokens cover the rest: those of a [FencedLock] as far as its counter was
// replicated, those of the other types also by the server's clock, if it is not
// behind by more than the quarantine.
func WithReplicaAck(n int, timeout time.Duration) Option {
	return func(c *config) { c.acks, c.ackTimeout = n, timeout }
}

// WithPubSub sets the kind of publish and subscribe. All clients of a lock
// must use the same, or some wake up late. The default is [PubSubAuto].
func WithPubSub(mode PubSubMode) Option { return func(c *config) { c.pubsub = mode } }

// WithObserver sets who is told what the client does; nil is refused. The default
// is [NopObserver]. Lost, Renewed, Unpublished, Subscription (off), and Retry of renewals
// and clean-ups may come late, from a goroutine of their own, in order; a method that
// blocks there delays only later events and Shutdown. The other methods are
// called from the goroutine that does the work, and delay it.
func WithObserver(o Observer) Option { return func(c *config) { c.observer = o } }

// WithLogger sets where the few things worth a line are logged: lost leases,
// renewals that fail, broken subscriptions. The default is silence; nil is
// refused.
//
// The lines are written from a goroutine of their own, late perhaps but in
// order: a handler that blocks delays only later events and Shutdown.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

func init() {
	seam.Option = func(env seam.Env) any { return Option(func(c *config) { c.env = env }) }
	seam.Script = func(name string) (text, sha string) { return embedded[name].Text, embedded[name].SHA }
}

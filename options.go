package rlock

import (
	"embed"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/presence"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// Defaults of the options, and bounds. Lengths are in bytes.
const (
	DefaultWatchdogLease   = 30 * time.Second // Redisson's: outlasts a slow failover
	DefaultCommandTimeout  = 3 * time.Second  // Redisson's timeout of a reply
	DefaultUnlockTimeout   = 3 * time.Second
	DefaultLongestPoll     = 5 * time.Second
	DefaultWaiterLease     = 10 * time.Second       // tolerates a lost command; Redisson's is five minutes
	MinWaiterLease         = 100 * time.Millisecond // each waiter sends three commands in it
	DefaultDriftFactor     = 0.01                   // Redlock's, for clocks that differ slightly in speed
	DefaultDriftFloor      = 2 * time.Millisecond   // Redlock's: Redis counts whole milliseconds
	MinLease               = 10 * time.Millisecond  // a round trip and the drift could use up less
	MaxLease               = 24 * time.Hour         // how long a crashed holder can keep a lock
	MaxNameLength          = protocol.MaxNameLength // of a lock, with the prefix
	MaxLabelLength         = 64                     // of WithLabel
	DefaultHandOverPasses  = 64                     // others wait for some ms of short sections
	MaxHandOverPasses      = 1000
	DefaultHandOverTime    = 10 * time.Millisecond
	DefaultFirstBackoff    = time.Millisecond       // of a SpinLock, as in Redisson
	DefaultLongestBackoff  = 128 * time.Millisecond // Redisson's: about ten commands a second
	DefaultConstantBackoff = 64 * time.Millisecond  // Redisson's
	MinBackoff             = 100 * time.Microsecond // about a round trip
	MinPriority            = 1
	MaxPriority            = 10
	DefaultPriority        = 5
	MinAging               = time.Millisecond        // with less the network decides
	MaxAging               = 24 * time.Hour          // more would come too late to help
	DefaultMultiLockRound  = 1500 * time.Millisecond // Redisson's, for each member
	DefaultNodeTimeout     = 500 * time.Millisecond  // of a RedLock: far above a round trip in one site
	MaxPermits             = math.MaxInt32           // of a semaphore, as in Java
	MaxLeasePermits        = protocol.MostPermits    // of a lease: Redis has a record of each
	MaxMembers             = 10_000                  // of a DoubleBarrier
	MaxValueLength         = 64 << 10                // of an Election: candidates send it again and again
	MinKeep                = time.Millisecond        // of a result of a Once
	MaxKeep                = 365 * 24 * time.Hour    // a mistake, if it is longer: use a database
	MaxResultLength        = 1 << 20                 // of a Once: Redis sends it to each client that waits
	DefaultRetention       = 40 * 24 * time.Hour     // of the runs of a CronJob: a monthly job still has its last
	MinRetention           = time.Minute             // more than clocks differ
	MaxRuns                = protocol.CronRuns       // that Redis keeps of a CronJob, and that Missed returns
)

// PubSubMode says which commands announce releases and wait for them.
type PubSubMode string

const (
	PubSubAuto    PubSubMode = "auto"    // as Redisson: sharded in a cluster of version 7 and later, else plain
	PubSubPlain   PubSubMode = "plain"   // PUBLISH, which in a cluster reaches every node
	PubSubSharded PubSubMode = "sharded" // SPUBLISH, in a cluster of version 7 and later
	PubSubBoth    PubSubMode = "both"    // for a cluster whose clients disagree, as with Redisson before 3.22
)

// apply calls options, of which none may be nil.
func apply(opts []Option, c *config) error {
	for i, opt := range opts {
		if opt == nil {
			return invalid("option %d is nil", i)
		}
		opt(c)
	}
	return nil
}

// Option is an option of a [Client]. New refuses a value out of bounds, and a nil Option, with
// ErrInvalidArgument. Durations are from 1 ms to MaxLease unless the option says otherwise.
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
	observer       Observer // nil without an Observer
	isObserverSet  bool     // WithObserver was given, even with nil
	logger         *slog.Logger
	label          string
	anonymous      bool
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
	if !(c.driftFactor >= 0 && c.driftFactor <= 0.5) || c.driftFloor < 0 { // NaN too
		return invalid("WithDrift(%v, %v): the factor must be between 0 and 0.5, the floor not negative", c.driftFactor, c.driftFloor)
	}
	if c.validity(c.watchdogLease) <= c.watchdogLease/3 {
		return invalid("WithDrift(%v, %v) leaves too little of WithWatchdogLease(%v) to renew in", c.driftFactor, c.driftFloor, c.watchdogLease)
	}
	if c.acks < 0 || c.acks > 0 && (c.ackTimeout < time.Millisecond || c.ackTimeout > MaxLease) {
		return invalid("WithReplicaAck(%d, %v): the number must not be negative, and the timeout between 1ms and %v", c.acks, c.ackTimeout, MaxLease)
	}
	if c.quarantined && (c.longest < c.watchdogLease || c.longest > MaxLease) {
		return invalid("WithFailoverQuarantine(%v): must be between the watchdog lease, %v, and %v", c.longest, c.watchdogLease, MaxLease)
	}
	switch c.pubsub {
	case PubSubAuto, PubSubPlain, PubSubSharded, PubSubBoth:
	default:
		return invalid("WithPubSub(%q): unknown mode", c.pubsub)
	}
	if strings.Contains(c.prefix, "{") && wire.Slot(c.prefix+"x") != wire.Slot(c.prefix+"y") {
		return invalid("WithPrefix(%.100q): it has a brace but no hash tag such as {app}", c.prefix)
	}
	if c.observer == nil && c.isObserverSet {
		return invalid("WithObserver(nil)")
	}
	if c.observer != nil {
		if method := neverCalled(c.observer); method != "" {
			return invalid("WithObserver: the method %s of a %T is not that of an Observer, and would never be called", method, c.observer)
		}
	}
	if c.logger == nil {
		return invalid("WithLogger(nil)")
	}
	if err := presence.CheckLabel(c.label); err != nil {
		return invalid("%v", err)
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
		return invalid("WithReplicaAck(%d, %v): the timeout must be shorter than the ReadTimeout of the go-redis client, %v", c.acks, c.ackTimeout, readTimeout)
	}
	return nil
}

// validity is how long after sending its request a holder may rely on a lease.
func (c *config) validity(lease time.Duration) time.Duration {
	return lease - time.Duration(float64(lease)*c.driftFactor) - c.driftFloor
}

// quarantine is how long a new server grants no locks.
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

// WithWatchdogLease sets for how long a lock stays taken after its process has died: the lease of holds
// without [WithLease], renewed every third of it. The default is 30 s. A shorter one also loses locks in
// shorter outages of Redis. It is at least [MinLease], and WithDrift must leave more than a third of it.
func WithWatchdogLease(d time.Duration) Option { return func(c *config) { c.watchdogLease = d } }

// WithCommandTimeout bounds one operation on Redis, with all its retries. The default is 3 s. After it
// TryLock fails with ErrUnreachable; Lock tries again for a watchdog lease.
func WithCommandTimeout(d time.Duration) Option { return func(c *config) { c.commandTimeout = d } }

// WithUnlockTimeout bounds Close, and Unlock, which goes on after the end of its context. The default is 3
// s. After it Unlock fails with ErrUnconfirmed, and the release is repeated in the background.
func WithUnlockTimeout(d time.Duration) Option { return func(c *config) { c.unlockTimeout = d } }

// WithLongestPoll bounds how long a waiter without a message sleeps before it polls Redis. The default
// is 5 s.
func WithLongestPoll(d time.Duration) Option { return func(c *config) { c.longestPoll = d } }

// WithWaiterLease sets by how long a crashed waiter delays those behind it, where Redis keeps a queue: it
// keeps its place for that long without a sign of life. The default is 10 s, the least [MinWaiterLease].
// All clients should use the same.
func WithWaiterLease(d time.Duration) Option { return func(c *config) { c.waiterLease = d } }

// WithDrift sets by how much a holder's lease ends before that in Redis, for clocks of different speeds:
// lease*factor + floor. The default is 1 % + 2 ms. The factor is from 0 to 0.5, the floor not negative.
func WithDrift(factor float64, floor time.Duration) Option {
	return func(c *config) { c.driftFactor, c.driftFloor = factor, floor }
}

// WithPrefix puts a prefix before the name of each lock, and its keys. The default is none. An opening
// brace in it must begin a hash tag, such as {app}.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithReplicaAck makes a lease count only if n replicas confirm it within the timeout, so that a hold
// survives a failover to one that did. The default is 0: off. The timeout must be shorter than the read
// timeout of go-redis, and is added to WithCommandTimeout. With too few, an acquire fails with
// ErrNotAcquired, a renewal does not move the deadline, and Extend fails with ErrUnreachable. rdb must be a
// *redis.Client or *redis.ClusterClient. Details: https://go-rlock.github.io/rlock/latest/failover/
func WithReplicaAck(n int, timeout time.Duration) Option {
	return func(c *config) { c.acks, c.ackTimeout = n, timeout }
}

// WithPubSub chooses between PUBLISH and SPUBLISH. The default is [PubSubAuto]; [PubSubBoth] is for a
// cluster shared with Redisson before 3.22. All clients of a lock must use the same, or some wake up late.
func WithPubSub(mode PubSubMode) Option { return func(c *config) { c.pubsub = mode } }

// WithObserver sets an Observer, which the client calls for its events; by default there is none. It refuses
// nil, and an o that has a method with the name of an optional Observer method but other parameters.
func WithObserver(o Observer) Option {
	return func(c *config) { c.observer, c.isObserverSet = o, true }
}

// WithLogger logs losses, failing renewals and the like to l; by default nothing is logged. See
// https://go-rlock.github.io/rlock/latest/observing/#logger
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithLabel sets how errors and State in other processes name this one, by default by the name of its
// program: see [Process]. It is printable, and has at most [MaxLabelLength] bytes.
func WithLabel(label string) Option { return func(c *config) { c.label = label } }

// WithAnonymity turns off the names of holders, which are on by default: the client neither writes its
// label, program, host and PID to Redis, for all who share the prefix, nor reads what other clients wrote.
func WithAnonymity() Option { return func(c *config) { c.anonymous = true } }

func init() {
	seam.Option = func(env seam.Env) any { return Option(func(c *config) { c.env = env }) }
	seam.Script = func(name string) (text, sha string) { return embedded()[name].Text(), embedded()[name].SHA() }
}

//go:embed scripts/*/*.lua
var scriptFiles embed.FS

// scripts are read by the first New, so that a program that only imports the package need not.
var scripts = sync.OnceValue(func() *protocol.Files {
	files, err := protocol.Read(scriptFiles)
	if err != nil {
		panic(err) // embedded at build time: cannot fail
	}
	return files
})

// embedded are the scripts as the library brings them.
var embedded = sync.OnceValue(func() protocol.Scripts {
	all, err := scripts().Scripts(nil)
	if err != nil {
		panic(err) // nothing was replaced: cannot fail
	}
	return all
})

// loadScripts returns the scripts of a client, some of which may have other texts.
func loadScripts(override map[string]string) (protocol.Scripts, error) {
	if len(override) == 0 {
		return embedded(), nil
	}
	return scripts().Scripts(override)
}

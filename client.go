package rlock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/presence"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/pubsub"
	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/watch"
	"github.com/go-rlock/rlock/internal/wire"
)

// Client makes locks on one Redis deployment. It is safe for concurrent use.
type Client struct {
	cfg      config
	id       string
	serial   int64 // number of the Client in this process
	seed     uint64
	env      seam.Env
	timeline clock.Timeline

	wire     *wire.Deployment
	site     protocol.Site // used by the protocols of all locks
	usual    settings      // settings that most locks share
	events   *events
	watchdog *watchdog
	cleanups *timers.CleanUps
	hub      *pubsub.Hub
	lines    *wait.Lines
	crowds   crowds
	pages    protocol.Pages
	pollers  *watch.Pollers[watchedState]
	presence *presence.Introduction // nil if the client is anonymous
	whois    *presence.WhoIs        // nil if the client is anonymous

	// For RedLocks: the client may be their home, or one of their nodes.
	ballots   quorum.Ballots
	knowledge quorum.Knowledge

	totals   totals
	lastHold atomic.Int64  // number of the latest hold
	closing  chan struct{} // closed when Shutdown begins
	once     sync.Once     // closes closing
	calls    wire.Tally    // acquires and unlocks under way
	running  wire.Tally    // goroutines that run code of users: watches, and the delivery to Observers
}

// settings has what most locks of a client share: see Client.usual.
type settings struct {
	c      *Client
	family string
	opts   lockConfig
	argErr error // why the arguments of the constructor are invalid
	side   protocol.Side
}

// clients counts the Clients of this process.
var clients atomic.Int64

// New returns a Client on rdb, and sends nothing. rdb is a *redis.Client (also of Sentinel), a
// *redis.ClusterClient, or a wrapper, but no *redis.Ring. The Client neither changes nor closes rdb;
// close the Client first. Blocking commands on all connections of rdb hold up locks. Its ReadTimeout and
// WriteTimeout should be 10 s at most, or ContextTimeoutEnabled set:
// https://go-rlock.github.io/rlock/latest/using-a-lock/#the-go-redis-client
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	c := &Client{cfg: defaults(), closing: make(chan struct{})}
	c.usual = settings{c: c, family: protocol.HashFamily}
	err := apply(opts, &c.cfg)
	if err == nil {
		err = c.cfg.validate()
	}
	if err == nil {
		c.cfg.watchdogLease = wholeMillis(c.cfg.watchdogLease)
		err = c.connect(rdb)
	}
	if err == nil {
		err = c.cfg.validateFor(rdb)
	}
	if err != nil {
		return nil, fmt.Errorf("rlock: %w", err)
	}
	scripts, err := loadScripts(c.cfg.env.Scripts)
	if err != nil {
		return nil, fmt.Errorf("rlock: %w", err)
	}

	c.serial = clients.Add(1)
	id := uuid.New()
	id[6] = id[6]&0x0f | protocol.UUIDVersion<<4
	c.id, c.seed = id.String(), binary.NativeEndian.Uint64(id[:8])
	if c.env.ClientID != "" {
		c.id, c.seed = c.env.ClientID, c.env.Seed
	}
	c.watchdog = newWatchdog(&c.env, c.timeline, c.wire, c.events, c.cfg.watchdogLease)
	c.cleanups = timers.NewCleanUps(timers.CleanUpsConfig{Wire: c.wire, Timers: c.watchdog.Timers, Retried: c.events.cleanUpFailed, Patience: min(c.cfg.commandTimeout, time.Second)})
	c.pollers = watch.New[watchedState](watch.Config{Env: &c.env, Wire: c.wire, Running: &c.running, Closing: c.closing, Seed: c.seed, Longest: c.cfg.longestPoll})
	c.lines, c.crowds.seed = newLines(c), c.seed
	introduces, self, name := !c.cfg.anonymous && !c.env.Anonymous, presence.This(c.cfg.label), ""
	if introduces {
		name = self.ConnectionName()
	}
	c.hub = newHub(&c.env, c.wire, c.events, name)
	c.site = protocol.Site{
		Wire: c.wire, Scripts: scripts, Clock: protocol.NewFencingClock(c.cfg.prefix), Served: protocol.ServedKey(c.cfg.prefix), NewID: c.newID, Listen: c.hub.Listen, ListenFor: c.hub.ListenFor,
		ListenTo: c.hub.ListenTo, Listening: c.hub.Listening, MayBeSubscribed: c.hub.MayBeSubscribed, Client: c.id,
		CommandTimeout: c.cfg.commandTimeout, WaiterLease: c.cfg.waiterLease,
		Quarantine: c.cfg.quarantine(),
	}
	if introduces {
		c.presence = presence.New(presence.Config{
			Site: &c.site, Timers: c.watchdog.Timers, Queue: c.events.Queue, Calls: &c.calls, Seed: c.seed, Prefix: c.cfg.prefix, Self: self,
		})
		c.whois = presence.NewWhoIs(c.presence)
	}
	c.events.Call(func() {
		c.cfg.logger.Info("rlock: client", "client.id", c.id, "label", c.cfg.label, "prefix", c.cfg.prefix)
	})
	if attach := c.env.Attach; attach != nil {
		attach(c.watchdog.check)
	}
	return c, nil
}

// connect makes the layers below the client.
func (c *Client) connect(rdb redis.UniversalClient) (err error) {
	c.env = c.cfg.env
	if c.env.Random == nil {
		c.env.Random = rand.Reader
	}
	if c.env.Clock == nil {
		c.env.Clock = seam.SystemClock{}
	}
	c.timeline = clock.NewTimeline(c.env.Clock)
	c.events = newEvents(c.cfg.observer, c.cfg.logger, &c.running)
	c.wire, err = wire.Open(rdb, wire.Config{
		Clock: c.env.Clock, Gate: c.env.Gate, Work: c.env.Work, Alone: c.env.Alone,
		CommandTimeout: c.cfg.commandTimeout, UnlockTimeout: c.cfg.unlockTimeout,
		LongestCall: max(c.cfg.commandTimeout, c.cfg.unlockTimeout),
		Acks:        c.cfg.acks, AckTimeout: c.cfg.ackTimeout,
		Publish: wire.PublishMode(c.cfg.pubsub), Events: c.events, Panics: &c.events.Panics,
	})
	if err != nil {
		return invalid("%v", err)
	}
	c.events.Go = c.wire.Go
	return nil
}

// ID is the client's UUID, the first half of its hold ids in Redis.
func (c *Client) ID() string {
	if c == nil {
		return ""
	}
	return c.id
}

// made reports whether the client was made by New.
func (c *Client) made() bool { return c != nil && c.wire != nil }

var (
	errNoClient  = invalid("the Client is nil or was not made by New")
	errNoContext = invalid("the context is nil")
)

func (c *Client) newID() protocol.HoldID {
	n := c.lastHold.Add(1)
	return protocol.HoldID{ID: c.holdID(n), Number: n}
}

// holdID returns the id of the hold with a number.
func (c *Client) holdID(n int64) string {
	var room [64]byte
	return string(strconv.AppendInt(append(append(room[:0], c.id...), ':'), n, 10))
}

// numberOf returns the number in the id of a hold of this client, or 0.
func (c *Client) numberOf(id string) int64 {
	rest, ours := strings.CutPrefix(id, c.id)
	digits, colon := strings.CutPrefix(rest, ":")
	if !ours || !colon {
		return 0
	}
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// beginCall registers a call of the user, unless the client is closing. If it returns true, the caller must call endCall.
func (c *Client) beginCall() bool {
	c.calls.Add(1)
	if c.isClosing() {
		c.calls.Add(-1)
		return false
	}
	return true
}

func (c *Client) endCall() { c.calls.Add(-1) }

// enter is beginCall for a call that concerns no single lock. It returns why the call cannot be served.
func (c *Client) enter(ctx context.Context) error {
	switch {
	case !c.made():
		return errNoClient
	case ctx == nil:
		return errNoContext
	case !c.beginCall():
		return ErrClosed
	}
	return nil
}

// WithFailoverQuarantine keeps a server that was promoted, has restarted or was flushed from granting locks
// until every lease that its data may lack has run out: for the longest lease, from the first acquire that
// reaches it. It is off by default. Until then Lock waits, and TryLock fails with ErrNotAcquired. All
// clients of the server must use it with the same longest; longer leases are refused. A new server is in
// quarantine too ([Client.BootstrapServer]). It needs a *redis.Client and INFO in scripts. What defeats it:
// https://go-rlock.github.io/rlock/latest/failover/
func WithFailoverQuarantine(longest time.Duration) Option {
	return func(c *config) { c.quarantined, c.longest = true, longest }
}

// BootstrapServer lets a new server grant locks immediately, for clients [WithFailoverQuarantine]. It is for
// the operator, once: no lock may have been held there within the longest lease. ErrInvalidArgument:
// there is no quarantine, or the server has granted locks before.
func (c *Client) BootstrapServer(ctx context.Context) error {
	switch {
	case !c.made():
		return fmt.Errorf("rlock: %w", errNoClient)
	case ctx == nil:
		return fmt.Errorf("rlock: %w", errNoContext)
	}
	q := c.cfg.quarantine()
	if q == 0 {
		return fmt.Errorf("rlock: BootstrapServer: %w", invalid("the client does not use WithFailoverQuarantine"))
	}
	if !c.beginCall() {
		return fmt.Errorf("rlock: BootstrapServer: %w", ErrClosed)
	}
	defer c.endCall()
	r := c.site.Serve().Do(ctx, c.cfg.commandTimeout)
	switch {
	case r.Err != nil:
		return fmt.Errorf("rlock: BootstrapServer: %w", r.Err)
	case !r.Outcome:
		return fmt.Errorf("rlock: BootstrapServer: %w", invalid("the server was promoted or has restarted: it is not a new deployment"))
	}
	return nil
}

// totals has the counters of a client: see Stats.
type totals struct{ renewals, failedRenewals, losses atomic.Int64 }

func (t *totals) renewed(err error) {
	if err == nil {
		t.renewals.Add(1)
	} else {
		t.failedRenewals.Add(1)
	}
}

func (c *Client) now() clock.Instant { return c.timeline.Now() }

// cleanUp repeats a task in the background until Redis has confirmed it, at most until the time until: see
// timers.CleanUps.
func (c *Client) cleanUp(lockID any, t protocol.Task, from, until clock.Instant, then func()) (done <-chan struct{}) {
	done = c.cleanups.Add(lockID, t, from, until, then)
	c.presence.Use()
	return done
}

// forget ends an operation that has failed. If the operation may have had an effect, or may still have
// one, forget sends undo. It reports whether the undo was answered.
func (c *Client) forget(lockID protocol.LockID, p *protocol.Page, effect bool, undo func() protocol.Task) (answered bool) {
	give := func() { c.pages.Give(p) }
	if !effect {
		give()
		return false
	}
	return c.undoThen(lockID, undo(), c.now().Add(protocol.RecordTTL), give)
}

// undoThen sends the task t in the background until Redis has confirmed it, and waits up to GiveUpGrace for the
// confirmation, which it reports. It calls then, unless nil, when the task is not repeated any more.
func (c *Client) undoThen(lockID protocol.LockID, t protocol.Task, until clock.Instant, then func()) (answered bool) {
	done := c.cleanUp(lockID, t, c.now(), until, then)
	grace := time.NewTimer(protocol.GiveUpGrace - c.wire.HeldUp())
	defer grace.Stop()
	select {
	case <-done:
		c.lines.Wake(lockID)
		return true
	case <-grace.C:
		return false
	}
}

package rlock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/seam"
)

// Client makes locks on one Redis deployment. A process needs one for each
// deployment. It is safe for concurrent use.
//
// All locks of a Client share one watchdog goroutine, which is started with
// the first hold, and one subscribed connection (in a cluster with sharded
// pub/sub: one for each node), which is opened when a waiter first needs it.
type Client struct {
	rdb     redis.UniversalClient
	io      redis.UniversalClient // rdb, with time-outs of ours where that can be had
	cluster clusterNodes          // rdb, if it knows the nodes of a cluster
	cfg     config
	clock   seam.Clock
	seed    uint64
	id      string
	serial  int64 // among the Clients of this process
	stays   atomic.Int64
	watches pollers
	scripts scripts

	watchdog  *watchdog
	giveUps   giveUps
	hub       *hub
	reach     reach
	elections elections
	standing  standing
	queues    queues
	observed  bool // there is an observer or a logger
	herald    herald
	panics    sync.Map  // of places where code of the user's has panicked
	muted     sync.Once // of telling that nothing can be published

	ctx     context.Context // ends when nothing may be sent any more
	stop    context.CancelFunc
	closing chan struct{} // closed when Shutdown begins
	once    sync.Once     // of closing
	calls   tally         // acquires and unlocks under way
	running tally         // goroutines that run code of users: watches, and what tells observers
	sending tally         // goroutines that talk to Redis, which may hang

	mode atomic.Value // of string: what PubSubAuto came to, once known
}

// clusterNodes is what a *redis.ClusterClient, and a type that embeds one, can
// tell of a cluster.
type clusterNodes interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// clients counts those of this process.
var clients atomic.Int64

// New returns a Client on rdb: a *redis.Client (also of a Sentinel
// deployment), a *redis.ClusterClient, or something that wraps one of them. It
// sends nothing.
//
// rdb stays the caller's: the Client neither changes nor closes it. Close the
// Client first. Its time-outs and retries do not matter: calls are bounded by
// WithCommandTimeout, and commands never retried by go-redis. But a reply that never
// comes keeps a connection of the pool for as long as the ReadTimeout of rdb, so
// that should be 10 s at most, and WriteTimeout too. If those of a *redis.Client are
// longer, or off, the Client sends its commands through rdb.WithTimeout, and hooks of
// rdb do not see them: WithTimeout leaves hooks out. A *redis.ClusterClient whose
// time-outs are off is refused. ContextTimeoutEnabled does as well for both. What
// wraps a client is not looked at.
//
// The pool of rdb is shared with all else that uses rdb. Commands that block (BLPOP)
// on all its connections keep locks from being taken and released. Renewals are
// pipelines: give those a pool of their own, or such commands may cost the leases.
// With go-redis 9.22 that is PipelineReadBufferSize or PipelineWriteBufferSize in
// the options; from 9.23 on it is the default.
//
// A *redis.Ring is refused: when one of its shards drops out, the keys of that
// shard move to another, and two owners hold one lock.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	c := &Client{rdb: rdb, cfg: defaults(), closing: make(chan struct{})}
	if err := apply(opts, &c.cfg); err != nil {
		return nil, fmt.Errorf("rlock: %w", err)
	}
	if err := c.cfg.validate(); err != nil {
		return nil, fmt.Errorf("rlock: %w", err)
	}
	c.cfg.watchdogLease = wholeMillis(c.cfg.watchdogLease)
	var readTimeout time.Duration // 0: none
	switch r := rdb.(type) {
	case nil:
		return nil, fmt.Errorf("rlock: %w", invalid("no Redis client"))
	case *redis.Client:
		if r == nil {
			return nil, fmt.Errorf("rlock: %w", invalid("no Redis client"))
		}
		readTimeout = r.Options().ReadTimeout
	case *redis.ClusterClient:
		if r == nil {
			return nil, fmt.Errorf("rlock: %w", invalid("no Redis client"))
		}
		if c.cfg.quarantined {
			return nil, fmt.Errorf("rlock: %w", invalid("WithFailoverQuarantine is not for a cluster: each slot would be in quarantine by itself"))
		}
		c.cluster = r
		readTimeout = r.Options().ReadTimeout
	case *redis.Ring:
		return nil, fmt.Errorf("rlock: %w", invalid("a *redis.Ring cannot be used for locks: when a shard drops out its keys move to another shard, and two owners hold one lock; use a cluster, or a Client on one server"))
	default:
		c.cluster, _ = rdb.(clusterNodes)
		if c.cfg.quarantined {
			return nil, fmt.Errorf("rlock: %w", invalid("WithFailoverQuarantine needs a *redis.Client, not a %T", rdb))
		}
		if c.cfg.acks > 0 {
			return nil, fmt.Errorf("rlock: %w", invalid("WithReplicaAck needs a *redis.Client or *redis.ClusterClient, not a %T: the acquire and its WAIT must share a connection", rdb))
		}
	}
	if c.cfg.acks > 0 && readTimeout > 0 && c.cfg.ackTimeout >= readTimeout {
		return nil, fmt.Errorf("rlock: %w", invalid("WithReplicaAck(%d, %v): the go-redis client gives up reading after %v, before Redis answers", c.cfg.acks, c.cfg.ackTimeout, readTimeout))
	}

	io, err := c.bounded(rdb)
	if err != nil {
		return nil, fmt.Errorf("rlock: %w", err)
	}
	c.io = io

	c.serial = clients.Add(1)
	id := uuid.New()
	id[6] = id[6]&0x0f | ownVersion<<4
	c.id, c.seed = id.String(), binary.NativeEndian.Uint64(id[:8])
	if env := c.cfg.env; env.ClientID != "" {
		c.id, c.seed = env.ClientID, env.Seed
	}
	c.clock = c.cfg.env.Clock
	if c.clock == nil {
		c.clock = systemClock{}
	}
	_, nop := c.cfg.observer.(NopObserver)
	c.observed = !nop || c.cfg.logger.Handler() != slog.DiscardHandler
	if !nop {
		c.cfg.observer = observer{c, c.cfg.observer}
	}
	c.scripts = embedded
	if c.cfg.env.Scripts != nil {
		c.scripts = loadScripts(c.cfg.env.Scripts)
	}
	if c.cfg.quarantined {
		c.scripts = c.scripts.served()
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.watchdog = newWatchdog(c)
	c.hub = newHub(c)
	if attach := c.cfg.env.Attach; attach != nil {
		attach(c.watchdog.check)
	}
	return c, nil
}

// longestIO is the longest time-out of a go-redis client that is left as it is. Its
// default is half of that.
const longestIO = 10 * time.Second

// bounded returns rdb with time-outs of ours. A call returns in time whatever those
// of go-redis are, but a connection whose reply does not come is lost to the pool
// until go-redis gives it up: with no time-out at all, after as many lost replies as
// the pool is large nothing works any more. rdb itself is better where that can be
// borne, as it has its hooks.
func (c *Client) bounded(rdb redis.UniversalClient) (redis.UniversalClient, error) {
	bounded := func(d time.Duration) bool { return d > 0 && d <= longestIO }
	switch r := rdb.(type) {
	case *redis.Client:
		if o := r.Options(); !o.ContextTimeoutEnabled && !(bounded(o.ReadTimeout) && bounded(o.WriteTimeout)) {
			return r.WithTimeout(max(c.cfg.commandTimeout, c.cfg.unlockTimeout) + c.cfg.ackTimeout), nil // of the same pool
		}
	case *redis.ClusterClient:
		if o := r.Options(); !o.ContextTimeoutEnabled && (o.ReadTimeout <= 0 || o.WriteTimeout <= 0) {
			return nil, invalid("a cluster client without ReadTimeout or WriteTimeout: each reply that is lost would cost a connection for ever; set them, or ContextTimeoutEnabled")
		}
	}
	return rdb, nil
}

// ID is the client's UUID, the first half of the owner ids that Redis shows.
func (c *Client) ID() string {
	if c == nil {
		return ""
	}
	return c.id
}

// made reports whether the client was made by New.
func (c *Client) made() bool { return c != nil && c.ctx != nil }

var (
	errNoClient  = invalid("no Client: it is made by New")
	errNoContext = invalid("the context is nil")
)

// ownVersion is that of the UUIDs of this package's clients, the one that is free for
// any use. Redisson's have version 4: so a hold id tells which of them made it.
const ownVersion = 8

// isOwn reports whether a hold id was made by a Client of this package.
func isOwn(owner string) bool {
	return len(owner) > 36 && owner[36] == ':' && owner[14] == '0'+ownVersion
}

// newStay makes the id of a stay: an owner's time at a lock, from its first
// entry until it has left. It is never used again, so a late copy of a request
// of one stay cannot touch another.
func (c *Client) newStay() (string, int64) {
	n := c.stays.Add(1)
	return c.id + ":" + strconv.FormatInt(n, 10), n
}

func (c *Client) gate(point string) {
	if g := c.cfg.env.Gate; g != nil {
		g(point)
	}
}

// gateOf is gate for one of many who may stand at a point in the same instant.
func (c *Client) gateOf(point string, who int64) {
	if g := c.cfg.env.Gate; g != nil {
		g(point + " " + strconv.FormatInt(who, 10))
	}
}

// work tells a test that something begins; see seam.Env.
func (c *Client) work() (end func()) {
	if w := c.cfg.env.Work; w != nil {
		return w()
	}
	return func() {}
}

// background runs fn in a goroutine of the client.
func (c *Client) background(fn func()) {
	c.sending.add(1)
	end := c.work()
	go func() {
		defer c.sending.add(-1)
		defer end()
		fn()
	}()
}

func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// nodeFor is the client of the node that serves a key.
func (c *Client) nodeFor(ctx context.Context, key string) (node redis.UniversalClient, err error) {
	if c.cluster == nil {
		return c.io, nil
	}
	err = c.safely(func() error {
		master, err := c.cluster.MasterForKey(ctx, key)
		if err == nil {
			node = master
		}
		return err
	})
	return node, err
}

// refreshTopology is called after a failure. go-redis itself looks at the
// cluster again only when a node tells it to, which a dead one does not.
func (c *Client) refreshTopology() {
	if c.cluster != nil {
		c.cluster.ReloadState(c.ctx)
	}
}

// publishCommand is how releases are announced: the argument that the scripts
// take. Until ready has found out it is the best guess, which may be none ("").
func (c *Client) publishCommand() string {
	mode, known := c.publishMode()
	if _, server := c.rdb.(*redis.Client); server && !known {
		return "publish"
	}
	return mode
}

func (c *Client) publishMode() (mode string, known bool) {
	switch c.cfg.pubsub {
	case PubSubBoth:
		return "both", true
	case PubSubSharded:
		return "spublish", true
	case PubSubPlain:
		return "publish", true
	}
	mode, known = c.mode.Load().(string)
	return mode, known
}

// ready finds out how releases are announced, if that is not known yet. It comes
// before the first acquire, so that whatever ends a hold knows.
//
// In auto mode the server is asked what it is. The type of rdb does not tell: a
// *redis.ClusterClient may lead to a Sentinel deployment, and a wrapper of any
// kind to a cluster. HELLO needs no permission.
func (c *Client) ready(ctx context.Context) error {
	if _, known := c.publishMode(); known {
		return nil
	}
	a := c.call(ctx, c.cfg.commandTimeout, &request{plain: []any{"hello"}})
	mode, err := readPublishMode(a)
	if err == nil {
		c.mode.Store(mode)
	}
	return err
}

// readPublishMode reads how to publish from the answer to HELLO. It is "both" where
// the server does not say what it is: then other clients may use either way.
func readPublishMode(a answer) (string, error) {
	var reply redis.Error
	switch {
	case a.err == nil:
	case !errors.As(a.err, &reply):
		return "", a.err // no answer
	case redis.HasErrorPrefix(a.err, "unknown command"),
		redis.HasErrorPrefix(a.err, "wrong number of arguments"):
		// HELLO without arguments came with Redis 6.2, sharded channels with 7.0.
		return "publish", nil
	default:
		return "both", nil
	}
	hello := fields(a.val)
	version, _ := hello["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch mode := hello["mode"]; {
	case mode == "standalone" || mode == "sentinel":
		return "publish", nil
	case mode != "cluster" || err != nil:
		return "both", nil
	case n < 7:
		return "publish", nil
	}
	return "spublish", nil
}

// fields reads a reply that is a map, which is a list of keys and values under
// the older protocol.
func fields(val any) map[string]any {
	out := map[string]any{}
	switch val := val.(type) {
	case map[any]any:
		for k, v := range val {
			out[fmt.Sprint(k)] = v
		}
	case []any:
		for i := 1; i < len(val); i += 2 {
			out[fmt.Sprint(val[i-1])] = val[i]
		}
	}
	return out
}

// Shutdown ends the client in good order. From its beginning no lock is given
// out, waiters return with ErrClosed, and watches end. The leases end with
// ErrClosed, and with them the contexts that they gave out: that asks the holders
// to leave. The locks stay theirs, and are renewed, until they call Unlock, which
// returns nil as ever. Shutdown returns nil when all of them have, and when every
// release and every acquire that was given up is confirmed by Redis.
//
// Nothing is taken from a holder. If ctx ends first, what is still held is no
// longer renewed and runs out by its lease; Unlock still frees it before that. The
// error then says how many locks that are and names some, and matches ctx.Err().
// A fixed lease (WithLease) is never renewed, so it may run out while Shutdown
// waits; its holder then counts as gone, and Unlock tells it. As nobody renews it,
// nobody learns of a ForceUnlock before that: until then Shutdown waits for it.
//
// Holders must not wait for Shutdown: a Shutdown with a lease held by its own
// caller lasts until ctx ends. The first of several calls whose ctx ends stops the
// client for all.
//
// When all is released, Shutdown also waits for callbacks of an Observer or a
// Logger under way, at most for the unlock time-out: it fails if they do not
// return. It does not wait for what hangs in go-redis, which ends with the
// go-redis client.
func (c *Client) Shutdown(ctx context.Context) error {
	if !c.made() {
		return fmt.Errorf("rlock: %w", errNoClient)
	}
	if ctx == nil {
		return fmt.Errorf("rlock: %w", errNoContext)
	}
	c.once.Do(func() { close(c.closing) })
	c.watchdog.drain()
	err := c.released(ctx)
	c.stop()
	left := c.watchdog.close()

	// Goroutines that end at once are waited for in any case, so that nothing of
	// the client runs any more, but not those that hang in go-redis.
	c.hub.close()
	moment, cancel := context.WithTimeout(context.Background(), giveUpGrace)
	defer cancel()
	_ = c.hub.work.wait(moment)
	_ = c.sending.wait(moment)
	if err != nil {
		_ = c.running.wait(moment)
		return fmt.Errorf("rlock: shutdown was not finished: %s: %w", unreleased(left), err)
	}
	ctx, cancel = context.WithTimeout(ctx, c.cfg.unlockTimeout)
	defer cancel()
	if err := c.running.wait(ctx); err != nil {
		return fmt.Errorf("rlock: shutdown was not finished: all is released, but the Observer or Logger has not returned: %w", err)
	}
	return nil
}

// released waits until nothing is held, no call is under way, and no clean-up is
// left to be done.
func (c *Client) released(ctx context.Context) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	for {
		// A call that is under way may leave a hold or a clean-up when it ends. So
		// nothing is left only if there is none after the last call.
		err := c.watchdog.left.wait(waiting)
		if err == nil {
			err = c.calls.wait(waiting)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			return errStopped
		case err != nil:
			return err
		case c.watchdog.left.none():
			return nil
		}
	}
}

var errStopped = errors.New("an earlier shutdown had too little time")

// unreleasedNames is how many locks an error of Shutdown names.
const unreleasedNames = 5

// unreleased says in words what Shutdown had no time for.
func unreleased(left []duty) string {
	var names []string
	for _, d := range left {
		if h, ok := d.(*hold); ok {
			names = append(names, h.core.name)
		}
	}
	var what []string
	if n := len(names); n > 0 {
		slices.Sort(names)
		text := fmt.Sprintf("still held, until their leases run out: %d (", n)
		for i, name := range names[:min(n, unreleasedNames)] {
			if i > 0 {
				text += ", "
			}
			text += fmt.Sprintf("%.100q", name)
		}
		if n > unreleasedNames {
			text += ", ..."
		}
		what = append(what, text+")")
	}
	if n := len(left) - len(names); n > 0 {
		what = append(what, fmt.Sprintf("releases that Redis has not confirmed: %d", n))
	}
	if len(what) == 0 {
		return "a call is still under way"
	}
	return strings.Join(what, "; ")
}

// Close is Shutdown bounded by the unlock time-out. For workers that need longer to
// leave, call Shutdown with a context of your own.
func (c *Client) Close() error {
	if !c.made() {
		return fmt.Errorf("rlock: %w", errNoClient)
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.unlockTimeout)
	defer cancel()
	return c.Shutdown(ctx)
}

// begin counts a call of the user's in, unless the client is closing.
func (c *Client) begin() bool {
	c.calls.add(1)
	if c.isClosing() {
		c.calls.add(-1)
		return false
	}
	return true
}

func (c *Client) end() { c.calls.add(-1) }

// tally counts what is under way and lets one wait until nothing is. Unlike a
// sync.WaitGroup it may grow again during a wait, and a wait has an end.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n falls to 0; nil if nobody waits
}

func (t *tally) add(d int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += d
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) none() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}

func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errShortLease = errors.New("the lease was over before Redis answered")

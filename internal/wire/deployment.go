// Package wire sends requests to one Redis deployment: a server, a master found by Sentinel, or a cluster. It sends them
// again when no reply comes, and returns the replies. It handles connections, nodes, scripts and requests. Locks, holds and
// leases are the subject of its callers.
//
// # A request and its copies
//
// A request is sent as one or more copies: the second one if the first has no reply in time, or has
// failed with a transient error. A copy is sent by the caller itself (direct.go), or waits for a
// worker, which sends several as one pipeline (sender.go, worker.go). Every request may run twice, and
// its reply may be lost: [Answer].Unsure reports that another copy may have run, or may run yet. If the
// caller has left, the request is withdrawn, unless it has left this process.
//
// # A server that is silent
//
// A worker without a reply is overdue after a part of its timeout, and other workers replace it. Requests
// of RedLocks and clean-ups wait for the reply to one PING instead (health.go). Calls return when their
// context ends or their budget is spent, even if go-redis does not.
//
// # Why not AutoPipeline of go-redis
//
// It is faster with 500 callers (since 9.22, experimental), but it ignores the context of a queued
// command: with a server that was stopped for 2 s, calls with a deadline of 300 ms returned after 1.9 s,
// and all of them had run (9.23, November 2026).
package wire

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/seam"
)

// Config configures a Deployment.
type Config struct {
	// Clock is the clock of leases. Calls and I/O are bounded by the real clock.
	Clock seam.Clock
	// CommandTimeout bounds a request that is sent in the background.
	CommandTimeout time.Duration
	// UnlockTimeout is the budget of a request with OneEffect that begins in time.
	UnlockTimeout time.Duration
	// LongestCall is the longest budget of any call. It bounds I/O where the timeouts
	// of go-redis do not.
	LongestCall time.Duration
	// Acks is how many replicas must confirm a request with Acked, and AckTimeout how long they
	// may take.
	Acks       int
	AckTimeout time.Duration
	// Publish is how to publish.
	Publish PublishMode
	// Alone is how many requests may be under way to one server before others are combined;
	// 0 means the default.
	Alone int
	// Gate and Work are as in seam.Env, or nil.
	Gate func(point string)
	Work func() (end func())
	// Events gets the events of the wire.
	Events Events
	// Panics gets the panics in hooks and dialers of go-redis.
	Panics *Panics
}

// Events gets the events of the wire. Its methods must not block, except Retried, which is called by
// the goroutine that waits for the reply.
type Events interface {
	// Retried is called when a request is sent again. ctx has the values of its caller.
	Retried(ctx context.Context, request string, err error)
	// Unpublished is called when Redis does not let a script publish.
	Unpublished(why error)
}

// Deployment is one Redis deployment.
type Deployment struct {
	rdb        redis.UniversalClient
	io         redis.UniversalClient // rdb, with our timeouts if rdb allows that
	cluster    clusterNodes          // rdb, if it knows the nodes of a cluster
	cfg        Config
	hasLimiter bool // rdb has a Limiter

	ctx       context.Context // ends when nothing may be sent any more
	stop      context.CancelFunc
	sending   Tally // goroutines that send to Redis, which may hang
	calls     calls
	senders   senders
	direct    direct
	health    health
	opened    prepared
	slots     atomic.Pointer[[]redis.ClusterSlot] // for a wrapper, see masterOf; nil if not known
	mode      atomic.Value                        // of string: how to publish under PublishAuto, once known
	hello     Shared                              // the reply to HELLO
	slotted   atomic.Bool                         // see Slotted
	sendsText atomic.Bool                         // scripts are sent in full: the server does not permit EVALSHA, or has none
}

// clusterNodes are the methods of *redis.ClusterClient, and of types that embed one, that find the
// nodes of a cluster.
type clusterNodes interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// longestIO is the longest timeout of a go-redis client that Open does not replace. The
// default of go-redis is half of it.
const longestIO = 10 * time.Second

// Open returns the deployment of rdb. It sends nothing. It fails if rdb is
// nil, a *redis.Ring, or a *redis.ClusterClient whose timeouts are off.
func Open(rdb redis.UniversalClient, cfg Config) (*Deployment, error) {
	d := &Deployment{rdb: rdb, io: rdb, cfg: cfg}
	atATime := pipelines
	bounded := func(d time.Duration) bool { return d > 0 && d <= longestIO }
	switch r := rdb.(type) {
	case nil:
		return nil, errNoRedis
	case *redis.Client:
		if r == nil {
			return nil, errNoRedis
		}
		// A call returns in time, whatever the timeouts of go-redis are. But a connection whose
		// reply never comes is missing in the pool until go-redis closes it. Without a timeout,
		// one lost reply for each connection of the pool would stop all requests. If the timeouts of rdb
		// are short enough, rdb itself is used, with its hooks.
		if o := r.Options(); !o.ContextTimeoutEnabled && !(bounded(o.ReadTimeout) && bounded(o.WriteTimeout)) {
			d.io = r.WithTimeout(cfg.LongestCall + cfg.AckTimeout) // it shares the pool
		}
		o := r.Options()
		atATime, d.hasLimiter = pipelinesOf(o, o.PoolSize), o.Limiter != nil
	case *redis.ClusterClient:
		if r == nil {
			return nil, errNoRedis
		}
		if o := r.Options(); !o.ContextTimeoutEnabled && (o.ReadTimeout <= 0 || o.WriteTimeout <= 0) {
			return nil, errors.New("a cluster client without ReadTimeout or WriteTimeout: each reply that is lost would cost a connection for ever; set them, or ContextTimeoutEnabled")
		}
		d.cluster = r
		atATime = pipelinesOf(r.Options(), r.Options().PoolSize)
	case *redis.Ring:
		return nil, errors.New("a *redis.Ring cannot be used for locks: when a shard drops out its keys move to another shard, and two owners hold one lock; use a cluster, or a Client on one server")
	default:
		d.cluster, _ = rdb.(clusterNodes)
	}
	d.senders.setLimits(d, cmp.Or(cfg.Alone, alone), atATime)
	d.direct.prepare(rdb, cfg.UnlockTimeout)
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// pipelinesOf returns for how many pipelines at a time go-redis has connections, if its pool for other commands has the
// size pool. It leaves some connections to renewals and to the program. Unless PipelinePoolSize is set, pipelines have ten
// separate connections, or share the pool with the other commands, or, from 9.23 on, both. Versions before 9.22 do not have
// the option.
func pipelinesOf(options any, pool int) int {
	if set := reflect.ValueOf(options).Elem().FieldByName("PipelinePoolSize"); set.IsValid() && set.Int() > 0 {
		return int(set.Int()) - 2
	}
	return max(pipelines, min(farPipelines, pool/2))
}

var errNoRedis = errors.New("no Redis client")

// Redis returns the go-redis client that the deployment was opened with.
func (d *Deployment) Redis() redis.UniversalClient { return d.rdb }

// IO returns the go-redis client to send with: Redis(), with our timeouts if necessary.
func (d *Deployment) IO() redis.UniversalClient { return d.io }

// IsCluster reports whether the nodes of a cluster are known.
func (d *Deployment) IsCluster() bool { return d.cluster != nil }

// AnySlots reports whether a script may use keys of any slots, as far as is known.
func (d *Deployment) AnySlots() bool { return d.OneServer() && !d.Slotted() }

// OneServer reports whether all keys are on one server, as far as is known.
func (d *Deployment) OneServer() bool {
	_, one := d.rdb.(*redis.Client)
	return one
}

// Acks returns how many replicas must confirm a request with Acked, and how long they may take.
func (d *Deployment) Acks() (n int, within time.Duration) { return d.cfg.Acks, d.cfg.AckTimeout }

// Clock returns the clock of leases.
func (d *Deployment) Clock() seam.Clock { return d.cfg.Clock }

// Context returns a context that ends when Stop is called.
func (d *Deployment) Context() context.Context { return d.ctx }

// Stop ends all background work. After it no request is sent in the background.
func (d *Deployment) Stop() { d.stop() }

// Wait waits until all goroutines that Go has started have ended, or ctx ends.
func (d *Deployment) Wait(ctx context.Context) error { return d.sending.Wait(ctx) }

// Go runs fn in a goroutine that Wait waits for.
func (d *Deployment) Go(fn func()) {
	d.sending.Add(1)
	end := d.work()
	go func() {
		defer d.sending.Add(-1)
		defer end()
		fn()
	}()
}

// work reports to a test that work begins; see seam.Env.
func (d *Deployment) work() (end func()) {
	if w := d.cfg.Work; w != nil {
		return w()
	}
	return func() {}
}

// Gate lets a test stop the process at a point; see seam.Env.
func (d *Deployment) Gate(point string) {
	if g := d.cfg.Gate; g != nil {
		g(point)
	}
}

// NodeFor returns the client of the node that serves a key.
func (d *Deployment) NodeFor(ctx context.Context, key string) (node redis.UniversalClient, err error) {
	if d.cluster == nil {
		return d.io, nil
	}
	err = d.Safely(func() error {
		master, err := d.cluster.MasterForKey(ctx, key)
		if err == nil {
			node = master
		}
		return err
	})
	return node, err
}

// RefreshTopology makes go-redis read the topology of a cluster again. It is called after a failure:
// go-redis does so only when a node redirects it, which a dead node does not.
func (d *Deployment) RefreshTopology() {
	d.slots.Store(nil)
	if d.cluster != nil {
		d.cluster.ReloadState(d.ctx)
	}
}

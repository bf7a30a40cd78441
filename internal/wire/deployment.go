// Package wire talks to one Redis deployment: a server, a master found by Sentinel,
// or a cluster. It sends requests, sends them again when no answer comes, and reports
// the answers. It knows connections, nodes, scripts, requests and answers. It knows no
// lock, hold or lease: its callers give meaning to requests.
//
// Requests of many callers share pipelines, and the package makes these itself. AutoPipeline of
// go-redis does too (since 9.22, experimental), and is faster with 500 callers, but it does not look
// at the context of a command that is queued: with a server that was stopped for 2 s, calls with a
// deadline of 300 ms returned after 1.9 s, and all of them had run (9.23, November 2026). Here a
// request whose caller has left is withdrawn, if it has not left this process, and one that has no
// answer in time is sent again on another connection.
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

// Config says how a Deployment is used.
type Config struct {
	// Clock is the time as leases see it. Calls and I/O are bounded by the real clock.
	Clock seam.Clock
	// CommandTimeout bounds a request that is sent in the background.
	CommandTimeout time.Duration
	// UnlockTimeout is the budget of a request with OneEffect that begins in time.
	UnlockTimeout time.Duration
	// LongestCall is the longest budget of any call. It bounds I/O where the timeouts
	// of go-redis do not.
	LongestCall time.Duration
	// Acks is how many replicas confirm the requests that ask for it, and AckTimeout how long
	// they get.
	Acks       int
	AckTimeout time.Duration
	// Publish is how to publish.
	Publish PublishMode
	// Alone is how many requests may be under way to one server before others are combined;
	// 0: as many as is best.
	Alone int
	// Gate and Work are those of seam.Env; nil: none.
	Gate func(point string)
	Work func() (end func())
	// Events is told what happens.
	Events Events
	// Panics is told of panics in hooks and dialers of go-redis.
	Panics *Panics
}

// Events is told what happens on the wire. Its methods must not block, except
// Retried, which is called by the goroutine that waits for the answer.
type Events interface {
	// Retried is called when a request is sent again. ctx has the values of its caller.
	Retried(ctx context.Context, request string, err error)
	// Unpublished is called when Redis does not let a script publish.
	Unpublished(why error)
}

// Deployment is one Redis deployment.
type Deployment struct {
	rdb     redis.UniversalClient
	io      redis.UniversalClient // rdb, with our timeouts if rdb allows that
	cluster clusterNodes          // rdb, if it knows the nodes of a cluster
	cfg     Config
	limited bool // rdb has a Limiter

	ctx     context.Context // ends when nothing may be sent any more
	stop    context.CancelFunc
	sending Tally // goroutines that talk to Redis, which may hang
	calls   calls
	senders senders
	direct  direct
	health  health
	opened  prepared
	slots   atomic.Pointer[[]redis.ClusterSlot] // for a wrapper: see masterOf; nil: to be asked for
	mode    atomic.Value                        // of string: how to publish under PublishAuto, once known
	hello   Shared                              // what the server is
	slotted atomic.Bool                         // see Slotted
	inFull  atomic.Bool                         // scripts are sent in full: the server does not permit EVALSHA, or has none
}

// clusterNodes is what a *redis.ClusterClient, and a type that embeds one, knows about a
// cluster.
type clusterNodes interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// longestIO is the longest timeout of a go-redis client that is left as it is. Its
// default is half of that.
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
		// A call returns in time whatever the timeouts of go-redis are. But a connection
		// whose reply never comes is lost to the pool until go-redis closes it. Without a
		// timeout, as many lost replies as the pool has connections stop everything. If
		// its timeouts are short enough, rdb itself is better: it has its hooks.
		if o := r.Options(); !o.ContextTimeoutEnabled && !(bounded(o.ReadTimeout) && bounded(o.WriteTimeout)) {
			d.io = r.WithTimeout(cfg.LongestCall + cfg.AckTimeout) // it shares the pool
		}
		o := r.Options()
		atATime, d.limited = pipelinesOf(o, o.PoolSize), o.Limiter != nil
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
	d.senders.open(d, cmp.Or(cfg.Alone, alone), atATime)
	d.direct.open(rdb, cfg.UnlockTimeout)
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// pipelinesOf is how many pipelines at a time go-redis has connections for, and the pool of its other commands
// so many. Renewals and the program itself need some of them. Unless the option is set, pipelines have ten of
// their own, share the pool with the other commands, or, from 9.23 on, have both. Versions before 9.22 do not know it.
func pipelinesOf(options any, pool int) int {
	if set := reflect.ValueOf(options).Elem().FieldByName("PipelinePoolSize"); set.IsValid() && set.Int() > 0 {
		return int(set.Int()) - 2
	}
	return max(pipelines, min(farPipelines, pool/2))
}

var errNoRedis = errors.New("no Redis client")

// Redis is the go-redis client that the deployment was opened with.
func (d *Deployment) Redis() redis.UniversalClient { return d.rdb }

// IO is the go-redis client to send with: Redis(), with our timeouts if necessary.
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

// Acks is how many replicas confirm the requests that ask for it, and how long they get.
func (d *Deployment) Acks() (n int, within time.Duration) { return d.cfg.Acks, d.cfg.AckTimeout }

// Clock is the time as leases see it.
func (d *Deployment) Clock() seam.Clock { return d.cfg.Clock }

// Context ends when Stop is called.
func (d *Deployment) Context() context.Context { return d.ctx }

// Stop ends all background work. Nothing is sent in the background after it.
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

// work tells a test that something begins; see seam.Env.
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

// NodeFor is the client of the node that serves a key.
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

// RefreshTopology has go-redis read the topology of a cluster again. It is called after a
// failure: go-redis itself does so only when a node redirects it, which a dead node does
// not.
func (d *Deployment) RefreshTopology() {
	d.slots.Store(nil)
	if d.cluster != nil {
		d.cluster.ReloadState(d.ctx)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

const nodes, quorum = 5, 5/2 + 1

// contender makes handles of locks on several masters.
type contender struct {
	name, about string
	direct      []string
	handle      func(name string) handle
	slow        bool // with dead nodes: it waits seconds for each
}

const (
	floorName   = "floor"
	redLockName = "rlock, RedLock"
	eager       = "redsync, fail fast"
	impatientN  = "redsync, fail fast, no retries"
)

// contenders are what is compared, each with connections of its own to these addresses of the servers.
func (b *bench) contenders(servers []*server, addrs []string) []contender {
	connect := func(edit ...func(*redis.Options)) (all []redis.UniversalClient) {
		for i, s := range servers {
			all = append(all, s.Client(append(edit, func(o *redis.Options) { o.Addr = addrs[i] })...))
		}
		return all
	}
	// What is dead is dead. By default go-redis dials a dead server five times
	// within half a second, and does that four times for most commands.
	impatient := func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }
	set := []string{"set"}
	return []contender{
		{floorName, "`SET NX PX` on all nodes at once until a quorum has answered, and a script that compares and deletes, the same way: no tokens, no renewal, and it does not take back what it gives up", set, floor(connect(impatient)), false},
		{redLockName, "`NewRedLock`, with ordered tokens and renewal", nil, b.redLock(connect()), false},
		{syncName, "redsync on five masters, as it comes", set, mutexes(connect()), true},
		{eager, "with `WithFailFast`", set, mutexes(connect(), redsync.WithFailFast(true)), false},
		{impatientN, "and go-redis neither repeats a command nor a dial", set, mutexes(connect(impatient), redsync.WithFailFast(true)), false},
	}
}

func (b *bench) redLock(rdbs []redis.UniversalClient) func(string) handle {
	var clients []*rlock.Client
	for _, rdb := range rdbs {
		c, err := rlock.New(rdb)
		b.host.must(err)
		b.host.Cleanup(func() {
			// The servers are dead, or about to be: nothing is worth waiting for.
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_ = c.Shutdown(ctx)
		})
		clients = append(clients, c)
	}
	return func(name string) handle {
		l, err := rlock.NewRedLock(name, clients)
		b.host.must(err)
		return &rlockHandle{l: l}
	}
}

func mutexes(rdbs []redis.UniversalClient, opts ...redsync.Option) func(string) handle {
	var pools []syncredis.Pool
	for _, rdb := range rdbs {
		pools = append(pools, goredis.NewPool(rdb))
	}
	all := redsync.New(pools...)
	var serial atomic.Int64
	return func(name string) handle {
		return &mutexHandle{func() *redsync.Mutex { return all.NewMutex(fmt.Sprint(name, ":", serial.Add(1)), opts...) }, nil}
	}
}

// mutexHandle takes a name for each pair: when it fails fast, a SET that is slow may come
// after the release, and keep a name taken for eight seconds.
type mutexHandle struct {
	next func() *redsync.Mutex
	m    *redsync.Mutex
}

func (h *mutexHandle) lock(ctx context.Context) error {
	h.m = h.next()
	return h.m.LockContext(ctx)
}

func (h *mutexHandle) unlock(ctx context.Context) error {
	// With true, the error of a minority counts.
	if ok, err := h.m.UnlockContext(ctx); !ok {
		return errors.Join(errors.New("not released"), err)
	}
	return nil
}

func floor(rdbs []redis.UniversalClient) func(string) handle {
	var serial atomic.Int64
	return func(name string) handle { return &floorHandle{rdbs: rdbs, name: name, serial: &serial} }
}

// floorHandle has a key of its own for each pair: on the slower nodes the last one may be
// there yet, or again.
type floorHandle struct {
	rdbs   []redis.UniversalClient
	name   string
	serial *atomic.Int64
	key    string
}

func (h *floorHandle) onAll(do func(redis.UniversalClient) error) error {
	errs := make(chan error, len(h.rdbs))
	for _, rdb := range h.rdbs {
		go func() { errs <- do(rdb) }()
	}
	for yes, no := 0, 0; yes < quorum; {
		if err := <-errs; err == nil {
			yes++
		} else if no++; no > len(h.rdbs)-quorum {
			return err
		}
	}
	return nil
}

func (h *floorHandle) lock(ctx context.Context) error {
	key := fmt.Sprint(h.name, ":", h.serial.Add(1))
	h.key = key
	return h.onAll(func(rdb redis.UniversalClient) error {
		return rdb.SetArgs(ctx, key, rawToken, redis.SetArgs{Mode: "NX", TTL: lease}).Err()
	})
}

func (h *floorHandle) unlock(ctx context.Context) error {
	key := h.key
	return h.onAll(func(rdb redis.UniversalClient) error {
		return compareAndDelete.Run(ctx, rdb, []string{key}, rawToken).Err()
	})
}

// masters measures with all servers alive, and then with two of five dead.
func (b *bench) masters() {
	redis.SetLogger(quiet{})
	servers := b.servers(nodes)
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	all := b.contenders(servers, addrs)
	for _, dead := range []int{0, nodes - quorum} {
		for i := range dead {
			servers[nodes-1-i].Kill()
		}
		if dead > 0 {
			all = slices.DeleteFunc(all, func(c contender) bool { return c.slow })
		}
		for _, callers := range []int{1, 64} {
			b.contend(servers[:nodes-dead], all, mastersDead(dead), float64(callers), callers)
			b.say("%d dead, %d callers: %s", dead, callers, b.results.line(mastersDead(dead), float64(callers), "pairs/s"))
		}
	}
}

// contend measures callers with keys of their own.
func (b *bench) contend(servers []*server, all []contender, measure string, x float64, callers int) {
	var jobs []job
	for _, c := range all {
		handles := make([]handle, callers)
		for i := range handles {
			handles[i] = c.handle(fmt.Sprintf("%s:%v:%s:%d:%d", measure, x, c.name, callers, i))
		}
		turn := func() sample { return pairs(servers, peer{direct: c.direct}, handles, b.slice) }
		turn() // connects, finds out who is dead
		jobs = append(jobs, job{measure, c.name, x, turn})
	}
	b.interleave(b.rounds, jobs)
}

func mastersDead(dead int) string { return fmt.Sprintf("masters, %d dead", dead) }

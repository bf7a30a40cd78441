//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/check"
	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

const (
	processes  = 3
	goroutines = 3 // of each process
	names      = 2 // of each type of lock
)

// The ways in which a lock is broken on purpose.
const (
	unshared = "unshared" // each process has locks of its own
	unfenced = "unfenced" // unshared, and the register has no fence
	removed  = "removed"  // its holder removes it from Redis, as if something else had done so, but not in its first two leases
)

// started is when this process did.
var started = time.Now()

// worker is a process that locks.
type worker struct {
	name    string
	top     *topology
	broken  string
	log     *check.Log
	store   check.Registers
	open    func(kind, name string) rlock.Locker
	kept    sync.Map // objects of locks, by key: half of the uses share one, as programs do, and its tokens are compared
	holds   atomic.Int64
	stopped atomic.Bool
}

// childWorks has the arguments folder, name, seed, topology, how its locks are broken, and the addresses of nodes with
// those of the proxies to them. Its own address is the address of the registers.
func childWorks(t *testing.T, p *locktest.Parent, addr string, args []string) {
	log, err := check.NewLog(args[0], args[1])
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := strconv.ParseUint(args[2], 10, 64)
	w := &worker{name: args[1], top: find(args[3]), broken: args[4], log: log}
	w.store.Store = redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	if w.open, err = w.top.connect(args[5], args[6]); err != nil {
		t.Fatal(err)
	}
	go log.Pulse(w.name, w.top.lease/4)
	p.Report("works")
	var wg sync.WaitGroup
	for g := range uint64(goroutines) {
		wg.Go(func() {
			one := &goroutine{worker: w, rnd: rand.New(rand.NewPCG(seed, g))}
			for !w.stopped.Load() {
				one.work()
			}
			one.turns()
		})
	}
	p.Await("stop")
	w.stopped.Store(true)
	wg.Wait()
	p.Report("done")
}

// routes parses addresses of nodes with those of the proxies to them, and returns the addresses of the nodes and what
// dials a proxy for each. Other addresses are dialed as they are.
func routes(text string) (nodes []string, dial func(context.Context, string, string) (net.Conn, error)) {
	proxies := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		node, proxy, _ := strings.Cut(pair, "=")
		nodes, proxies[node] = append(nodes, node), proxy
	}
	return nodes, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if proxy := proxies[addr]; proxy != "" {
			addr = proxy
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// goroutine is one that works, with its own random numbers.
type goroutine struct {
	*worker
	rnd *rand.Rand
}

// lock draws one.
func (g *goroutine) lock() (key string, l rlock.Locker) {
	keys := g.top.keys()
	key = keys[g.rnd.IntN(len(keys))]
	kind, _, _ := strings.Cut(key, "-")
	return key, g.opened(kind, key)
}

func (g *goroutine) opened(kind, key string) rlock.Locker {
	if g.broken == unshared || g.broken == unfenced {
		return g.open(kind, key+"-"+g.name)
	}
	if g.rnd.IntN(2) == 0 {
		return g.open(kind, key)
	}
	l, ok := g.kept.Load(key)
	if !ok {
		l, _ = g.kept.LoadOrStore(key, g.open(kind, key))
	}
	return l.(rlock.Locker)
}

// work locks, updates the registers below the lock, and unlocks. A wait mostly ends before a dead holder's lease does, or
// soon all would wait for that.
func (g *goroutine) work() {
	key, l := g.lock()
	wait := g.top.lease / 20
	if g.rnd.IntN(8) == 0 {
		wait = 3 * g.top.lease
	}
	if !g.hold(key, l, wait, true) {
		time.Sleep(g.top.lease / 50) // an error may come immediately, again and again
	}
}

// hold reports whether the lock was acquired.
func (g *goroutine) hold(key string, l rlock.Locker, wait time.Duration, linger bool) bool {
	hold := fmt.Sprintf("%s/%d", g.name, g.holds.Add(1))
	end := g.log.Call(check.Operation{Do: check.Acquire, Key: key, Hold: hold})
	lease, err := l.Lock(bg, rlock.WithWait(wait))
	switch {
	case err == nil:
		end(check.Operation{Out: check.OK, Token: lease.Token()})
	case errors.Is(err, rlock.ErrNotAcquired):
		end(check.Operation{Out: check.Refused, Value: err.Error()})
		return false
	default:
		end(check.Operation{Out: check.Unknown, Value: err.Error()})
		return false
	}
	if g.broken == removed && linger && time.Since(started) > 2*g.top.lease {
		_, _ = l.(interface {
			ForceUnlock(context.Context) (bool, error)
		}).ForceUnlock(bg)
	} else {
		g.section(key, hold, lease, linger)
	}
	end = g.log.Call(check.Operation{Do: check.Release, Key: key, Hold: hold})
	end(ended(lease.Unlock(bg)))
	return true
}

func ended(err error) check.Operation {
	switch {
	case err == nil:
		return check.Operation{Out: check.OK}
	case errors.Is(err, rlock.ErrLeaseLost):
		return check.Operation{Out: check.Lost, Value: err.Error()}
	default:
		return check.Operation{Out: check.Unknown, Value: err.Error()}
	}
}

// section updates two registers, in two steps. It does not watch its lease, so the update is lost if the lease is, except
// where the register has a fence.
func (g *goroutine) section(key, hold string, l *rlock.Lease, linger bool) {
	token := l.Token()
	if g.broken == unfenced {
		token = 0
	}
	out, fenced := g.store.Access(bg, key+" fenced", token, "", "")
	out2, plain := g.store.Access(bg, key+" plain", 0, "", "")
	g.look(key, hold, l)
	if linger && g.rnd.IntN(6) == 0 {
		for range 1 + g.rnd.IntN(30) {
			time.Sleep(g.top.lease / 20)
			if !g.look(key, hold, l) {
				break
			}
		}
	}
	if out == check.OK {
		g.store.Access(bg, key+" fenced", token, hold, fenced)
	}
	if out2 == check.OK {
		g.store.Access(bg, key+" plain", 0, hold, plain)
	}
	g.look(key, hold, l)
}

// look logs whether the lease lasts: the claim that others are compared with.
func (g *goroutine) look(key, hold string, l *rlock.Lease) bool {
	end := g.log.Call(check.Operation{Do: check.Look, Key: key, Hold: hold})
	err := l.Err()
	end(ended(err))
	return err == nil
}

// turns has each lock once more, when all faults are over, within the bound of the topology.
func (g *goroutine) turns() {
	for _, key := range g.top.keys() {
		kind, _, _ := strings.Cut(key, "-")
		l := g.opened(kind, key)
		end := g.log.Call(check.Operation{Do: check.Turn, Key: key})
		// Twice the bound, so that the judge reports how late it was.
		for began := time.Now(); time.Since(began) < 2*g.top.bound(); time.Sleep(g.top.lease / 50) {
			if g.hold(key, l, g.top.bound(), false) {
				end(check.Operation{Out: check.OK})
				break
			}
		}
	}
}

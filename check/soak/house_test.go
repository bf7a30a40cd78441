//go:build linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/redistest"
)

var bg = context.Background()

const (
	nodes   = 3   // servers, which know nothing of each other
	members = 3   // stand for processes: each has a client of each server
	workers = 12  // of each member
	names   = 112 // of each type: 2,016 in all

	pool         = 4 // connections of a client
	pipelinePool = 2

	lease = 1500 * time.Millisecond // the watchdog lease, and the longest that a hold is left behind
	wait  = 500 * time.Millisecond  // of an acquire: less than most faults last, so that waits end in all ways
)

// house has servers, and workers that use locks there.
type house struct {
	t       *testing.T
	servers []*redistest.Server
	direct  []*redis.Client // clients of the servers, past the proxies
	members []*member
	uses    []use

	gate    sync.RWMutex // a worker has it for each use; the house has it while all is quiet
	open    bool         // the gate is
	stopped atomic.Bool

	done   []atomic.Int64   // uses that succeeded, by type
	failed atomic.Int64     // uses that failed as they may under fire
	seen   [][]atomic.Bool  // names that were used, by type
	struck map[string]int   // faults
	mu     sync.Mutex       // guards wrong
	wrong  map[string]error // errors that no fault explains, by type
}

// member is a process, so to speak: it has a client of each server.
type member struct {
	clients []*rlock.Client
	links   []*link
}

// link is the way of a client to its server.
type link struct {
	*faultproxy.Proxy
	loses atomic.Bool // the reply of each third script is lost, with its connection
	sent  atomic.Int64
}

func newLink(t *testing.T, addr string) *link {
	l := &link{Proxy: faultproxy.New(t, addr)}
	l.Handle(func(c faultproxy.Command) faultproxy.Action {
		n := l.sent.Add(1)
		if n%256 == 0 {
			l.ResetLog() // or it would grow
		}
		if l.loses.Load() && n%3 == 0 && strings.HasPrefix(c.Name, "eval") {
			return faultproxy.ResetAfter
		}
		return faultproxy.Pass
	})
	return l
}

func newHouse(t *testing.T, seed uint64, uses []use) *house {
	t.Helper()
	h := &house{t: t, uses: uses, struck: map[string]int{}, wrong: map[string]error{}}
	h.done, h.seen = make([]atomic.Int64, len(uses)), make([][]atomic.Bool, len(uses))
	for i := range uses {
		h.seen[i] = make([]atomic.Bool, names)
	}
	for range nodes {
		s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
		h.servers, h.direct = append(h.servers, s), append(h.direct, s.Client())
	}
	for range members {
		h.members = append(h.members, h.join())
	}
	h.gate.Lock() // until begin
	var all sync.WaitGroup
	for i := range members * workers {
		w := &worker{house: h, member: i % members, rnd: rand.New(rand.NewPCG(seed, uint64(i+1)))}
		all.Go(w.work)
	}
	t.Cleanup(func() { // before the clients are closed
		h.stopped.Store(true)
		if !h.open { // a test that failed between begin and end has left it open
			h.begin()
		}
		all.Wait()
	})
	return h
}

// join connects a member to the servers.
func (h *house) join() *member {
	m := &member{}
	for _, s := range h.servers {
		l := newLink(h.t, s.Addr())
		rdb := redis.NewClient(&redis.Options{
			Addr: l.Addr(), PoolSize: pool, PipelinePoolSize: pipelinePool,
			DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
		})
		c, err := rlock.New(rdb, rlock.WithWatchdogLease(lease), rlock.WithWaiterLease(lease/2), rlock.WithLongestPoll(lease/3),
			rlock.WithCommandTimeout(lease/2), rlock.WithUnlockTimeout(lease/2))
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() {
			if err := c.Close(); err != nil {
				h.t.Error(err)
			}
			_ = rdb.Close()
		})
		m.clients, m.links = append(m.clients, c), append(m.links, l)
	}
	return m
}

// begin lets the workers work, and end waits until each has ended its use.
func (h *house) begin() {
	h.open = true
	h.gate.Unlock()
}

func (h *house) end() {
	h.gate.Lock()
	h.open = false
}

// worker uses locks, as a goroutine of a member.
type worker struct {
	*house
	member int
	rnd    *rand.Rand
}

func (w *worker) work() {
	for {
		w.gate.RLock()
		if w.stopped.Load() {
			w.gate.RUnlock()
			return
		}
		w.use()
		w.gate.RUnlock()
	}
}

// use uses a name. Half of all uses meet at a few names of each type, so that there are waiters.
func (w *worker) use() {
	kind, name := w.rnd.IntN(len(w.uses)), w.rnd.IntN(names)
	if w.rnd.IntN(2) == 0 {
		name %= 4
	}
	ctx, cancel := context.WithTimeout(bg, 4*lease)
	defer cancel()
	u := w.uses[kind]
	err := u.do(ctx, w, fmt.Sprintf("%s-%d", u.kind, name), name%nodes)
	switch {
	case err == nil:
		w.done[kind].Add(1)
	case mayFail(err):
		w.failed.Add(1)
	default:
		w.mu.Lock()
		w.wrong[u.kind] = err
		w.mu.Unlock()
	}
	w.seen[kind][name].Store(true)
}

// client is the client that this worker has of a server, and other that of another member.
func (w *worker) client(node int) *rlock.Client { return w.members[w.member].clients[node] }
func (w *worker) other(node int) *rlock.Client {
	return w.members[(w.member+1)%len(w.members)].clients[node]
}

// errorsUnderFire are those that waits, faults and losses of data explain.
var errorsUnderFire = []error{
	rlock.ErrNotAcquired, rlock.ErrUnreachable, rlock.ErrNoQuorum, rlock.ErrLeaseLost, rlock.ErrUnconfirmed, rlock.ErrNotHeld,
	rlock.ErrFailed, rlock.ErrNoLeader, rlock.ErrNotSet, context.DeadlineExceeded, errOfFunction,
}

// joinedType is what errors.Join returns. An error of a kind with its cause has another type.
var joinedType = reflect.TypeOf(errors.Join(errOfFunction))

// mayFail says whether faults explain an error, and each part of errors that are joined. A server that has just been started
// refuses all, and nothing else may.
func mayFail(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if reflect.TypeOf(e) == joinedType {
			return !slices.ContainsFunc(e.(interface{ Unwrap() []error }).Unwrap(), func(part error) bool { return !mayFail(part) })
		}
	}
	if errors.Is(err, rlock.ErrRefused) && redis.HasErrorPrefix(err, "LOADING") {
		return true
	}
	return slices.ContainsFunc(errorsUnderFire, func(target error) bool { return errors.Is(err, target) })
}

// unexpected are the errors that nothing explains.
func (h *house) unexpected() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for kind, err := range h.wrong {
		all = append(all, fmt.Sprintf("%s: %v", kind, err))
	}
	return all
}

// touched is how many names of a type were used.
func (h *house) touched(kind int) (n int) {
	for i := range h.seen[kind] {
		if h.seen[kind][i].Load() {
			n++
		}
	}
	return n
}

func (h *house) summary() string {
	var b strings.Builder
	all := int64(0)
	for i, u := range h.uses {
		all += h.done[i].Load()
		fmt.Fprintf(&b, " %s %d,", u.kind, h.done[i].Load())
	}
	return fmt.Sprintf("%d uses,%s %d failed; faults: %v", all, b.String(), h.failed.Load(), h.struck)
}

// Package rlocktest helps to unit-test code that uses package rlock: an
// in-memory Redis that needs nothing installed, a clock that a test can move,
// and each way to lose a lock at the push of a button.
//
//	func TestReportIsWrittenOnce(t *testing.T) {
//		srv := rlocktest.New(t)
//		other := srv.Steal("report") // another process holds the lock
//		...                          // the code under test waits, or gives up
//		other.Unlock(ctx)            // and is woken
//	}
//
// Nothing sleeps: ten minutes with a held lock pass in about a fifth of a
// second, most of which is its renewals. How to get each of the losses that a holder can meet:
//
//	rlock.ErrExpired      Pause for longer than the lease; Advance, if the lease is fixed
//	rlock.ErrTakenOver    Steal
//	rlock.ErrRemoved      Remove, or ForceUnlock and Advance
//	rlock.ErrUnreachable  Disconnect or Hang, then Advance past the lease
//	rlock.ErrRefused      Fail or ReadOnly, then Advance past the lease
//	rlock.ErrMaxHold      Advance past rlock.WithMaxHold
//
// When Pause, Steal, Remove or Advance has returned, the holder has been notified: its
// lease's Done is closed and the contexts made by Lease.Context have ended. While commands
// fail or hang, that may take a moment longer.
//
// LoseAt runs a test with a loss at each point, one after the other: it finds code that writes after a loss.
// Verify checks a lock of the user's own: a wrapper, a fake, or an adapter.
//
// A RedLock, or a MultiLock over several deployments, needs servers that share a clock: NewServers.
// Each server that New makes has a clock of its own, which renews only the holds of its own clients.
//
// # Which clock
//
// Leases, renewals and the polling of waiters run on the clock of the test, which Advance and Pause
// move. Contexts with a deadline, rlock.WithWait and the timeouts of commands run in real time.
//
// In a bubble of testing/synctest all of these run on the clock of the bubble, which passes while its
// goroutines wait. Make the server in the bubble, with its *testing.T. There Advance lets time pass
// for everything, like time.Sleep; servers that are made one by one share the clock. A server from outside panics
// there, with the reason.
package rlocktest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// Server is an in-memory Redis and the clock of its clients. Its methods may be
// called from any goroutine of the test; those that move the clock wait for one
// another.
//
// It speaks enough of Redis for locks, and much of the rest, but is not a
// cluster, does not replicate and loses its data with the test. Tests of those
// need a real Redis.
type Server struct {
	*common
	round   *Round // of LoseAt; nil: none
	mini    *miniredis.Miniredis
	network *network
	first   *rlock.Client
	raw     *redis.Client // Redis()

	failing  atomic.Pointer[string] // what Fail has the server answer; nil: it works
	readOnly atomic.Bool

	mu      sync.Mutex // guards the rest
	clients []*rlock.Client
	redises []*redis.Client
	peers   map[*server.Peer]struct{} // of connections
	other   *rlock.Client             // owner of what Steal takes; nil: not needed yet
}

// checks makes every client in the process check its holds of a lock: the client of a RedLock may
// belong to another server than the vote that was removed.
var checks struct {
	mu       sync.Mutex // guards the rest
	byClient map[*rlock.Client]holder
	// between is held while Steal has removed a lock and not taken it yet. A check in between, by another test
	// with a lock of the same name, would report the lock as removed.
	between sync.RWMutex
}

// holder is a client that can check its holds. Only clients of the same synctest bubble, or of none, may call each other.
type holder struct {
	ask    func(lock string)
	bubble testing.TB
}

func (c *common) check(lock string) {
	checks.mu.Lock()
	all := slices.Collect(maps.Values(checks.byClient))
	checks.mu.Unlock()
	checks.between.RLock()
	defer checks.between.RUnlock()
	for _, h := range all {
		if h.bubble == c.bubble {
			h.ask(lock)
		}
	}
}

// New starts a server that lasts until the end of the test, and makes a client
// with the options. At the end of the test, after the test's own clean-ups, all
// clients are shut down, and then the server. The leases of holders end with
// rlock.ErrClosed, and holders get a moment to leave. Locks that are still held
// after that vanish with the server; that is not an error.
func New(t testing.TB, opts ...rlock.Option) *Server {
	t.Helper()
	return NewServers(t, 1, opts...)[0]
}

// dial makes a go-redis client that is closed with the server.
func (s *Server) dial() *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:          s.network.addr.String(),
		Dialer:        s.network.dial,
		DialerRetries: 1, // it pauses between them with a mutex held
		// A wait for a connection would use a timer that go-redis shares between bubbles.
		PoolSize:        1000,
		DisableIdentity: true, // miniredis does not know these two
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redises = append(s.redises, rdb)
	return rdb
}

// Client returns the client that New made, for the code under test.
func (s *Server) Client() *rlock.Client { return s.first }

// NewClient makes one more client, with separate connections: to the server it
// is another process. The test fails immediately if an option is wrong.
func (s *Server) NewClient(opts ...rlock.Option) *rlock.Client {
	s.t.Helper()
	return s.newClient(opts, s.round != nil)
}

// newClient makes a client. observed: its acquires are points of the round.
func (s *Server) newClient(opts []rlock.Option, observed bool) *rlock.Client {
	s.t.Helper()
	rdb := s.dial()
	var checkHolds func(lock string)
	attach := func(check func(lock string)) { checkHolds = check }
	env := seam.Option(seam.Env{Clock: s.clock, Work: s.works.begin, Attach: attach}).(rlock.Option)
	opts = append(slices.Clone(opts), env)
	if observed {
		opts = append(opts, rlock.WithObserver(points{s.round}))
	}
	c, err := rlock.New(rdb, opts...)
	if err != nil {
		s.t.Fatalf("rlocktest: %v", err)
	}
	checks.mu.Lock()
	if checks.byClient == nil {
		checks.byClient = map[*rlock.Client]holder{}
	}
	// One check at a time: a check that finds a loss that another check has just noticed must return only when
	// that one has notified the holder.
	var asking sync.Mutex
	checks.byClient[c] = holder{func(lock string) {
		asking.Lock()
		defer asking.Unlock()
		checkHolds(lock)
	}, s.bubble}
	checks.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Redis returns a go-redis client of the server, to inspect the keys or for other
// data of the code under test.
func (s *Server) Redis() *redis.Client { return s.raw }

// Addr returns the server's host:port, for code that makes its own connections. An
// rlock.Client made by rlock.New works too, but its leases run in real time,
// while Redis follows the clock of the test.
func (s *Server) Addr() string {
	s.t.Helper()
	if s.bubble != nil {
		s.t.Fatal("rlocktest: Addr in a synctest bubble: time does not pass while a goroutine waits at a socket; use Client or Redis")
	}
	addr, err := s.network.listen()
	if err != nil {
		s.t.Fatalf("rlocktest: %v", err)
	}
	return addr
}

// Now returns the time on the clock of the server's clients: the real time, plus
// what Advance and Pause have added. Lease.Deadline is on this clock.
func (s *Server) Now() time.Time { return s.clock.Now() }

// Advance lets d pass as usual, step by step from one event to the next, and each
// event is handled before time continues. Holds with a watchdog are renewed and
// survive, however long d is. Fixed leases end, first for their holder, then in
// Redis. Waiters poll their lock when they would have.
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	s.checkTime("Advance", d)
	s.moving.take()
	defer s.moving.give()
	if s.bubble != nil {
		time.Sleep(d) // for everything in the bubble
		s.settle()
		return
	}
	s.settle() // a hold that has just begun may not be on the watchdog's list yet
	for end := s.clock.Now().Add(d); ; {
		next, more := s.clock.next(end)
		s.jump(next)
		s.settle()
		if !more {
			return
		}
	}
}

// Pause lets d pass in one step, as if every process that uses the server had
// been stopped for so long: a suspended machine, a debugger, a very long garbage
// collection. Holds that could not be renewed in time are lost (rlock.ErrExpired),
// and their locks are free.
func (s *Server) Pause(d time.Duration) {
	s.t.Helper()
	s.checkTime("Pause", d)
	s.moving.take()
	defer s.moving.give()
	s.settle()
	s.jump(s.clock.Now().Add(d))
	s.settle()
}

func (s *Server) checkTime(method string, d time.Duration) {
	s.t.Helper()
	if d < 0 {
		s.t.Fatalf("rlocktest: %s(%v): time does not go back", method, d)
	}
}

// Remove makes a lock, of any type, vanish from Redis without a word, as a flush, an
// eviction or the restart of a server without persistence would. A MultiLock is lost
// with any of its members: remove one of those. The name is with
// the client's prefix, as lock.Name gives it. Waiters in a queue in Redis stay there.
// For a RedLock, the vote of this server vanishes: the hold lasts until votes have
// been removed from so many servers that the others are no quorum ([NewServers]).
// Semaphores lose their number of permits with it, latches their count, a Once its result, a
// CronJob all its runs;
// a barrier is lifted, without waking anybody.
//
// The holder is notified immediately (rlock.ErrRemoved), as if it had just tried to renew its
// lease. No time passes, and other locks do not change.
func (s *Server) Remove(name string) {
	s.t.Helper()
	s.moving.take()
	defer s.moving.give()
	s.settle() // renewals under way end before the removal
	s.remove(name)
	s.check(name)
	s.settle() // a MultiLock is notified of the losses of its members
}

// remove deletes the keys that show who holds a lock, and the keys of types that are not locks.
func (s *Server) remove(name string) {
	for _, key := range holding(name) {
		s.mini.Del(key)
	}
	for _, what := range ownTypes {
		s.mini.Del(within(name) + "rlock:" + what + ":places")
		s.mini.Del(within(name) + "rlock:" + what + ":result")
	}
	for _, key := range s.mini.Keys() { // a CronJob has one for each tick that runs
		if strings.HasPrefix(key, within(name)+"rlock:cron") {
			s.mini.Del(key)
		}
	}
}

// ownTypes have keys of rlock's own.
var ownTypes = []string{"fairrw", "priority", "red", "election", "permits", "double", "once", "barrier"}

// within returns the prefix of the additional keys of a lock.
func within(name string) string {
	if strings.Contains(name, "{") {
		return name + ":"
	}
	return "{" + name + "}:"
}

// holding returns the keys that show who holds the lock of a name, or its permits.
func holding(name string) []string {
	keys := []string{name, within(name) + "timeout"} // timeout has the held permits
	for _, what := range ownTypes {
		keys = append(keys, within(name)+"rlock:"+what, within(name)+"rlock:"+what+":ends")
	}
	return keys
}

// Steal gives a lock to another owner, no matter who holds it: the holder is
// notified (rlock.ErrTakenOver) immediately, as Remove describes. A free lock is
// simply taken. The other owner's lease is renewed; Unlock it to let waiters have the lock.
//
// Steal takes a lock of type rlock.Lock, and of those that exclude it. For other
// types of locks there is StealWith, and StealBy for types that are not locks.
func (s *Server) Steal(name string) *rlock.Lease {
	s.t.Helper()
	return s.StealWith(func(c *rlock.Client) rlock.Locker { return c.NewLock(name) })
}

// StealWith is Steal for any type of lock; for a MultiLock, take a member. lock is called
// with a client that is not the holder's, and returns the lock to take, such as
// c.NewReadWriteLock("prices").Writer. The client has no prefix. A lock whose
// waiters have a queue in Redis can be taken only while the queue is empty.
func (s *Server) StealWith(lock func(c *rlock.Client) rlock.Locker) *rlock.Lease {
	s.t.Helper()
	l := lock(s.thief())
	return s.steal(l.Name(), func(ctx context.Context) (*rlock.Lease, error) { return l.TryLock(ctx) })
}

// StealBy is Steal for types that are not an rlock.Locker: the leadership of an Election, permits, a
// place at a DoubleBarrier. take is called with a client that is not the holder's, after
// Remove of the name, perhaps several times. It must not wait: use TryAcquire, or
// rlock.WithWait(0). Before it takes permits it has to set their number again.
func (s *Server) StealBy(name string, take func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error)) *rlock.Lease {
	s.t.Helper()
	c := s.thief()
	return s.steal(name, func(ctx context.Context) (*rlock.Lease, error) { return take(ctx, c) })
}

// thief returns the client of the other owner.
func (s *Server) thief() *rlock.Client {
	s.mu.Lock()
	other := s.other
	s.mu.Unlock()
	if other == nil {
		other = s.newClient([]rlock.Option{rlock.WithObserver(waker{s: s})}, false)
		s.mu.Lock()
		s.other = other
		s.mu.Unlock()
	}
	return other
}

func (s *Server) steal(name string, take func(ctx context.Context) (*rlock.Lease, error)) *rlock.Lease {
	s.t.Helper()
	s.moving.take()
	defer s.moving.give()
	defer s.settle() // a MultiLock is notified of the losses of its members
	// A renewal between the removal and the new owner's acquire would find a free lock.
	release, held := func() {}, false
	for try := 0; try < 100 && !held; try++ {
		s.settle()
		release, held = s.clock.hold()
	}
	defer release()
	var err error
	replace := func() (lease *rlock.Lease, err error) {
		checks.between.Lock()
		defer checks.between.Unlock() // also if take panics, or ends the test
		s.remove(name)
		return take(context.Background())
	}
	for range 100 { // a waiter may be quicker
		var lease *rlock.Lease
		if lease, err = replace(); err == nil {
			s.check(name)
			return lease
		}
	}
	s.t.Fatalf("rlocktest: Steal: %v", err)
	return nil
}

// waker wakes the first waiter of a FairLock when a lease that Steal took is
// unlocked: waiters of a FairLock get no message of the releases of other types.
type waker struct{ s *Server }

func (waker) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (waker) AcquireEnd(context.Context, rlock.AcquireEvent)                       {}
func (waker) Lost(context.Context, rlock.LossEvent)                                {}

func (w waker) Unlocked(_ context.Context, e rlock.UnlockEvent) {
	queue, channel := "redisson_lock_queue:{"+e.Lock+"}", "redisson_lock__channel:{"+e.Lock+"}"
	if strings.Contains(e.Lock, "{") {
		queue, channel = "redisson_lock_queue:"+e.Lock, "redisson_lock__channel:"+e.Lock
	}
	if waiters, err := w.s.mini.List(queue); err == nil && len(waiters) > 0 {
		w.s.mini.Publish(channel+":"+waiters[0], "0")
	}
}

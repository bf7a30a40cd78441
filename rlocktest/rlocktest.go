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
//	rlock.ErrRefused      Fail, then Advance past the lease
//	rlock.ErrMaxHold      Advance past rlock.WithMaxHold
//
// When one of these methods has returned, the holder has been told: its
// lease's Done is closed and the contexts made by Lease.Context have ended.
//
// A RedLock, or a MultiLock over several deployments, needs servers that share a clock: NewServers.
// Each server that New makes has a clock of its own, which renews only the holds of its own clients.
//
// What runs on the clock of the test are leases, renewals and the polling of
// waiters. Contexts with a deadline, rlock.WithWait and the time-outs of single
// commands run in real time.
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
	mini  *miniredis.Miniredis
	first *rlock.Client
	raw   *redis.Client // Redis()

	failing atomic.Pointer[string] // what Fail has the server answer; nil: it works

	mu      sync.Mutex // guards the rest
	clients []*rlock.Client
	redises []*redis.Client
	other   *rlock.Client // owner of what Steal takes; nil: not needed yet
}

// checks has each client in the process ask about its holds of a lock: the client of
// a RedLock may belong to another server than the vote that is taken away.
var checks struct {
	mu       sync.Mutex // guards the rest
	byClient map[*rlock.Client]func(lock string)
}

func check(lock string) {
	checks.mu.Lock()
	all := slices.Collect(maps.Values(checks.byClient))
	checks.mu.Unlock()
	for _, fn := range all {
		fn(lock)
	}
}

// New starts a server that lasts until the end of the test, and makes a client
// with the options. At the end of the test, after the test's own clean-ups, all
// clients are shut down, and then the server. Holders are told by
// rlock.ErrClosed and get a moment to leave; what they still hold after it goes
// with the server, and is no error.
func New(t testing.TB, opts ...rlock.Option) *Server {
	t.Helper()
	return NewServers(t, 1, opts...)[0]
}

// dial makes a go-redis client that is closed with the server.
func (s *Server) dial() *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:            s.mini.Addr(),
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

// Client is the client that New made, for the code under test.
func (s *Server) Client() *rlock.Client { return s.first }

// NewClient makes one more client, with a connection of its own: to the server
// it is another process. The test ends at once if an option is wrong.
func (s *Server) NewClient(opts ...rlock.Option) *rlock.Client {
	s.t.Helper()
	rdb := s.dial()
	var checkHolds func(lock string)
	attach := func(check func(lock string)) { checkHolds = check }
	env := seam.Option(seam.Env{Clock: s.clock, Work: s.works.begin, Attach: attach}).(rlock.Option)
	c, err := rlock.New(rdb, append(slices.Clone(opts), env)...)
	if err != nil {
		s.t.Fatalf("rlocktest: %v", err)
	}
	checks.mu.Lock()
	if checks.byClient == nil {
		checks.byClient = map[*rlock.Client]func(string){}
	}
	checks.byClient[c] = checkHolds
	checks.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Redis is a go-redis client of the server, for a look at the keys or for what
// else the code under test keeps in Redis.
func (s *Server) Redis() *redis.Client { return s.raw }

// Addr is the server's host:port, for code that makes its own connections. An
// rlock.Client made by hand works too, but its leases run in real time only,
// while Redis goes along with the clock of the test.
func (s *Server) Addr() string { return s.mini.Addr() }

// Now is the time as the server's clients see it: the real time, plus what the
// test has let pass. Lease.Deadline is on this clock.
func (s *Server) Now() time.Time { return s.clock.Now() }

// Advance lets d pass in an ordinary way: step by step, from one thing that is
// due to the next, and each is done before time goes on. Holds that are renewed
// are renewed and survive, however long d is; fixed leases run out, first for
// their holder, then in Redis; waiters look at their lock when they would have.
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	s.check("Advance", d)
	s.moving.Lock()
	defer s.moving.Unlock()
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

// Pause lets d pass at once, as if every process that uses the server had been
// stopped for so long: a suspended machine, a debugger, a very long garbage
// collection. What could not be renewed in time is lost (rlock.ErrExpired), and
// anybody can have it.
func (s *Server) Pause(d time.Duration) {
	s.t.Helper()
	s.check("Pause", d)
	s.moving.Lock()
	defer s.moving.Unlock()
	s.settle()
	s.jump(s.clock.Now().Add(d))
	s.settle()
}

func (s *Server) check(method string, d time.Duration) {
	s.t.Helper()
	if d < 0 {
		s.t.Fatalf("rlocktest: %s(%v): time does not go back", method, d)
	}
}

// Remove makes a lock, of any type, vanish from Redis without a word, as a flush, an
// eviction or the restart of a server without persistence would. A MultiLock is lost
// with any of its members: remove one of those. The name is with
// the client's prefix, as lock.Name gives it. Waiters in a queue in Redis stay there.
// Of a RedLock it is the vote of this server that vanishes: the hold lasts until it
// has been removed from so many servers that the others are no quorum ([NewServers]).
// Semaphores lose their number of permits with it, latches their count, a Once its result, a
// CronJob all its runs;
// a barrier is lifted, without waking anybody.
//
// The holder is told at once (rlock.ErrRemoved), as if it had renewed its lease in
// this moment. No time passes, and other locks are left alone.
func (s *Server) Remove(name string) {
	s.t.Helper()
	s.moving.Lock()
	defer s.moving.Unlock()
	s.settle() // a renewal that is under way has not seen it yet
	s.remove(name)
	check(name)
	s.settle() // a MultiLock learns of its members' losses
}

// remove deletes what says that a lock is held, and what a type that is no lock consists of.
func (s *Server) remove(name string) {
	prefix := "{" + name + "}:"
	if strings.Contains(name, "{") {
		prefix = name + ":"
	}
	s.mini.Del(name)
	s.mini.Del(prefix + "timeout") // held permits
	// Types with keys of rlock's own.
	for _, what := range []string{"fairrw", "priority", "red", "election", "permits", "double", "once", "barrier"} {
		key := prefix + "rlock:" + what
		for _, part := range []string{"", ":ends", ":places", ":result"} {
			s.mini.Del(key + part)
		}
	}
	for _, key := range s.mini.Keys() { // a CronJob has one for each tick that runs
		if strings.HasPrefix(key, prefix+"rlock:cron") {
			s.mini.Del(key)
		}
	}
}

// Steal gives a lock to another owner, whoever has it now: a holder is told
// (rlock.ErrTakenOver), at once, as Remove describes. A free lock is simply taken. The other
// owner's lease is renewed; Unlock it to hand the lock back to those who wait.
//
// Steal takes a lock of type rlock.Lock, and of those that exclude it. For other
// types of locks there is StealWith, and StealBy for what is no lock.
func (s *Server) Steal(name string) *rlock.Lease {
	s.t.Helper()
	return s.StealWith(func(c *rlock.Client) rlock.Locker { return c.NewLock(name) })
}

// StealWith is Steal for any type of lock; of a MultiLock, take a member. It is called
// with a client that is not the holder's, and returns the lock to take, such as
// c.NewReadWriteLock("prices").Writer. The client has no prefix. A lock whose
// waiters have a queue in Redis can be taken only while nobody stands in it.
func (s *Server) StealWith(lock func(c *rlock.Client) rlock.Locker) *rlock.Lease {
	s.t.Helper()
	l := lock(s.thief())
	return s.steal(l.Name(), func(ctx context.Context) (*rlock.Lease, error) { return l.TryLock(ctx) })
}

// StealBy is Steal for what is no rlock.Locker: the leadership of an Election, permits, a
// place at a DoubleBarrier. take is called with a client that is not the holder's, after
// Remove of the name, perhaps several times, and must not wait: it has TryAcquire, or
// rlock.WithWait(0). Before it takes permits it has to set them again.
func (s *Server) StealBy(name string, take func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error)) *rlock.Lease {
	s.t.Helper()
	c := s.thief()
	return s.steal(name, func(ctx context.Context) (*rlock.Lease, error) { return take(ctx, c) })
}

// thief is the client of the other owner.
func (s *Server) thief() *rlock.Client {
	s.mu.Lock()
	other := s.other
	s.mu.Unlock()
	if other == nil {
		other = s.NewClient(rlock.WithObserver(waker{s: s}))
		s.mu.Lock()
		s.other = other
		s.mu.Unlock()
	}
	return other
}

func (s *Server) steal(name string, take func(ctx context.Context) (*rlock.Lease, error)) *rlock.Lease {
	s.t.Helper()
	s.moving.Lock()
	defer s.moving.Unlock()
	defer s.settle() // a MultiLock learns of its members' losses
	// A holder that renews between the two would find that nobody has the lock.
	release, held := func() {}, false
	for try := 0; try < 100 && !held; try++ {
		s.settle()
		release, held = s.clock.hold()
	}
	defer release()
	var err error
	for range 100 { // a waiter may be quicker
		s.remove(name)
		var lease *rlock.Lease
		if lease, err = take(context.Background()); err == nil {
			check(name)
			return lease
		}
	}
	s.t.Fatalf("rlocktest: Steal: %v", err)
	return nil
}

// waker tells the first waiter of a fair lock when a lease that Steal took is
// unlocked: those of a fair lock hear nothing of the releases of other types.
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

// Fail makes the server answer each command with an error, until Recover. The
// reply is what Redis would send: "LOADING Redis is loading the dataset in
// memory" is an outage that passes, which rlock bears and tries to outlast;
// "OOM command not allowed" or "NOPERM no permissions" are returned at once. A call
// that has failed so matches rlock.ErrRefused.
//
// How long a call tries is rlock.WithCommandTimeout, in real time: a test that
// waits for it should make it short.
func (s *Server) Fail(reply string) {
	s.t.Helper()
	if reply == "" || strings.ContainsAny(reply, "\r\n") {
		s.t.Fatalf("rlocktest: Fail(%q): need one line", reply)
	}
	s.failing.Store(&reply)
}

// Recover ends what Fail began. The data is as it was.
func (s *Server) Recover() { s.failing.Store(nil) }

// before comes before each command that the server runs, those of scripts too. It
// reports whether the command has been dealt with.
func (s *Server) before(p *server.Peer, _ string, _ ...string) bool {
	if reply := s.failing.Load(); reply != nil {
		p.WriteError(*reply)
		return true
	}
	// During a script the server is locked, by this goroutine too. Its time is that
	// of its beginning, as in Redis.
	if s.mini.TryLock() {
		s.mini.Unlock()
		s.clock.show(s.mini.SetTime)
	}
	return false
}

package rlocktest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// mostPoints bounds the rounds of LoseAt. It is far above what shows how code behaves.
const mostPoints = 1000

// LoseAt finds code that continues after it has lost its lock. It runs test many times, each time as
// a sub-test with a new server: first without a loss, then with a loss of the lock of that name (with
// its prefix) at the first point, then at the second point, and so on. The points are, while a client
// of the server holds the lock:
//
//   - an acquire has entered the lock, and is about to return, unless a MultiLock has called it;
//   - [Round.Write] or [Round.WriteFenced] is called;
//   - one of the two has written, and is about to return.
//
// In each round the lock is lost once. It vanishes, as by [Server.Remove], the holder is notified before
// the point is passed, and then the lock is free: code that tries again may get it. In test, make the
// server by [Round.New], let the code call Write where its writes take effect, and check what the code
// returns after a loss ([Round.Lost]). LoseAt itself reports each write without the lock.
//
// The sub-tests are "no loss", "loss at 1", "loss at 2" and so on. All points are tried if the code does
// the same in each round; a bubble of testing/synctest, begun in test, also makes goroutines and time
// repeatable. A round with more than 1,000 points fails. All types with leases work, except a RedLock,
// which has several servers: with one, LoseAt fails.
func LoseAt(t *testing.T, name string, test func(t *testing.T, r *Round)) {
	t.Helper()
	run := func(title string, r *Round) (ran bool) {
		t.Helper()
		over := false
		t.Run(title, func(t *testing.T) {
			ran = true
			defer func() { over = true }()
			test(t, r)
			r.check(t)
		})
		if ran && !over {
			t.Fatal("rlocktest: LoseAt: its rounds come one after the other: call t.Parallel before LoseAt, not in it")
		}
		return ran
	}
	first := &Round{name: name}
	whole := run("no loss", first) // false if -run has left it out
	if t.Failed() {
		return // rounds with a loss would prove nothing
	}
	for at := 1; at <= mostPoints; at++ {
		if whole && at > first.passed() {
			return
		}
		r := &Round{name: name, at: at}
		if run(fmt.Sprint("loss at ", at), r) && !whole && !r.Lost() {
			return
		}
	}
	if first.passed() > mostPoints {
		t.Errorf("rlocktest: LoseAt: %d points, of which %d were tried: have the code write less", first.passed(), mostPoints)
	}
}

// Round is one run of a test by LoseAt.
type Round struct {
	name string // name of the lock
	at   int    // point at which the lock is lost; 0 in the round without a loss

	srv  *Server
	turn turn // taken at a point: other goroutines wait until the holder has been notified

	mu      sync.Mutex // guards the rest; never held while waiting
	points  int
	held    bool // a client has held the lock
	lost    bool
	highest int64 // highest token
	stale   int64 // highest token when the lock was lost
}

// New is [New] for the server of a round; call it once. If the test begins a synctest bubble, call it
// there. An Observer of the round replaces the Observer of the options.
func (r *Round) New(t testing.TB, opts ...rlock.Option) *Server {
	t.Helper()
	if r.srv != nil {
		t.Fatal("rlocktest: New of a Round was called before")
	}
	r.turn = make(turn, 1)
	r.srv = newServers(t, 1, r, opts)[0]
	return r.srv
}

// check fails a test that cannot find anything.
func (r *Round) check(t *testing.T) {
	t.Helper()
	switch {
	case r.srv == nil:
		t.Error("rlocktest: LoseAt: the test has not made its server by New of the Round")
	case r.at == 0 && !r.hasHeld() && !t.Failed():
		t.Errorf("rlocktest: LoseAt: no client of the Round's server has held the lock %q", r.name)
	}
}

// hasHeld reports whether a client has held the lock.
func (r *Round) hasHeld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// passed returns the number of points so far.
func (r *Round) passed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.points
}

// server returns the server of the round.
func (r *Round) server() *Server {
	if r.srv == nil {
		panic("rlocktest: a Round writes before its New was called")
	}
	return r.srv
}

// Lost reports whether the lock has been taken away. The code has to return an error then, unless it
// had unlocked before, or has tried again.
func (r *Round) Lost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Write stands for a write to the protected resource that is refused once ctx has ended, like a write
// to a database. Call it with the context that the code under test passes to the write. If ctx has
// ended, it returns the cause. The test fails if ctx has not ended although the lock has been lost, or
// is free.
func (r *Round) Write(ctx context.Context) error {
	r.server().t.Helper()
	return r.write(func() error {
		r.srv.t.Helper()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if lease, ok := rlock.LeaseFrom(ctx); ok && errors.Is(lease.Err(), rlock.ErrLeaseLost) {
			r.srv.t.Errorf("rlocktest: %s writes after its lease was lost, with a context that does not end: %v", r.point(), lease.Err())
			return nil
		}
		r.judge()
		return nil
	})
}

// WriteFenced stands for a write that is refused if the resource has got a higher fencing token before:
// after a loss, the token of the next holder. The test fails if it accepts the token of a lease that is
// no longer valid.
func (r *Round) WriteFenced(token int64) error {
	r.server().t.Helper()
	return r.write(func() error {
		r.srv.t.Helper()
		r.mu.Lock()
		stale := r.stale
		r.mu.Unlock()
		if token <= stale {
			return fmt.Errorf("rlocktest: the fencing token %d is too old: the resource has seen a higher one than %d", token, stale)
		}
		r.judge()
		return nil
	})
}

func (r *Round) write(do func() error) error {
	r.srv.t.Helper()
	r.turn.take()
	defer r.turn.give()
	r.pass()
	if err := do(); err != nil {
		return err
	}
	r.pass()
	return nil
}

// judge is called when a write is accepted.
func (r *Round) judge() {
	r.srv.t.Helper()
	switch {
	case r.srv.holds(r.name):
	case r.Lost():
		r.srv.t.Errorf("rlocktest: %s writes after the lock %q was lost", r.point(), r.name)
	default:
		r.srv.t.Errorf("rlocktest: a write without the lock %q", r.name)
	}
}

func (r *Round) point() string { return fmt.Sprintf("the code that loses its lock at point %d", r.at) }

// pass is called at a point, by the goroutine that has the turn. When it returns, the holder has been notified.
func (r *Round) pass() {
	if !r.srv.holds(r.name) {
		return
	}
	r.mu.Lock()
	r.points++
	loses := r.points == r.at && !r.lost
	if loses {
		r.lost, r.stale = true, r.highest
	}
	r.mu.Unlock()
	if loses {
		r.srv.Remove(r.name)
	}
}

// holds reports whether a client of the code under test has the lock, as Redis says.
func (s *Server) holds(name string) bool {
	var ours []string // prefixes of the ids of these clients' holds and permits
	s.mu.Lock()
	for _, c := range s.clients {
		if c != s.other {
			permit, _ := hex.DecodeString(strings.ReplaceAll(c.ID(), "-", "")[:permitDigits])
			ours = append(ours, c.ID()+":", string(permit))
		}
	}
	s.mu.Unlock()
	s.clock.show(s.mini.SetTime)
	keys := holding(name)
	double := within(name) + "rlock:double"
	if s.mini.HGet(double, "generation") != "" { // otherwise no member has entered
		keys = append(keys, double+":places")
	}
	for _, key := range s.mini.Keys() { // a CronJob has one for each tick that runs
		if tick, is := strings.CutPrefix(key, within(name)+"rlock:cron:"); is && strings.Trim(tick, "0123456789") == "" {
			keys = append(keys, key)
		}
	}
	return slices.ContainsFunc(keys, func(key string) bool {
		return slices.ContainsFunc(s.words(key), func(word string) bool {
			return slices.ContainsFunc(ours, func(id string) bool { return strings.Contains(word, id) })
		})
	})
}

// permitDigits is how many digits of the client's id begin the id of a permit.
const permitDigits = 18

// words returns the contents of a key.
func (s *Server) words(key string) (said []string) {
	switch s.mini.Type(key) {
	case "hash":
		fields, _ := s.mini.HKeys(key)
		for _, f := range fields {
			said = append(said, f, s.mini.HGet(key, f))
		}
	case "zset":
		said, _ = s.mini.ZMembers(key)
	case "string":
		value, _ := s.mini.Get(key)
		said = append(said, value)
	}
	return said
}

// points is the Observer that makes acquires of the code under test points of a round.
type points struct{ round *Round }

func (points) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (points) Lost(context.Context, rlock.LossEvent)                                {}
func (points) Unlocked(context.Context, rlock.UnlockEvent)                          {}

func (p points) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	r := p.round
	if e.Err != nil || e.Lock != r.name {
		return
	}
	if e.Type == "RedLock" {
		r.srv.t.Errorf("rlocktest: LoseAt is not for a RedLock, which has several servers: %q", e.Lock)
	}
	r.turn.take()
	defer r.turn.give()
	r.mu.Lock()
	r.held, r.highest = true, max(r.highest, e.Token)
	r.mu.Unlock()
	if !seam.OfGroup(ctx) { // otherwise a MultiLock would continue, and try again
		r.pass()
	}
}

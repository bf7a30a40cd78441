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

// LoseAt finds code that goes on after it has lost its lock. It runs test again and again, each time
// as a sub-test with a new server, and takes the lock of that name, with its prefix, away at the first point at
// which the code under test has to do with it, at the second, and so on, after a round without a
// loss. The points are, while a client of the server holds the lock:
//
//   - an acquire has entered the lock, and is about to return, unless a MultiLock has called it;
//   - [Round.Write] or [Round.WriteFenced] is called;
//   - one of the two has written, and is about to return.
//
// In each round the lock is lost once. It vanishes, as by [Server.Remove], the holder is notified before
// the point is passed, and then the lock is free: code that tries again may have it. In test, make
// the server by [Round.New], have the code call Write where its writes take effect, and check what it
// returns: with a loss, see [Round.Lost]. LoseAt reports each write without the lock by itself.
//
// The sub-tests are "no loss", "loss at 1", "loss at 2" and so on. If the code does the same in each
// round, so do these, and all points are tried; a bubble of testing/synctest, begun in test, has
// goroutines and time in it too. A round that has more than 1,000 points fails. All types with leases
// can be lost so but a RedLock, which has more than one server: with one LoseAt fails.
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
	whole := run("no loss", first) // else -run has left it out
	if t.Failed() {
		return // what fails without a loss says nothing about one
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
	name string // of the lock
	at   int    // the point at which it is lost; 0: nowhere

	srv  *Server
	turn turn // of who is at a point: others wait until the holder has been told

	mu      sync.Mutex // guards the rest; never held while waiting
	points  int
	held    bool // somebody has had the lock
	lost    bool
	highest int64 // token
	stale   int64 // the highest token when the lock was lost
}

// New is [New] for the server of a round, of which there is one. If the test begins a synctest bubble,
// call it there. The clients of the server have an Observer of the round instead of that of the options.
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

// hasHeld reports whether somebody has had the lock.
func (r *Round) hasHeld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// passed is how many points there were.
func (r *Round) passed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.points
}

// server is that of the round.
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

// Write stands for a write, of whatever the lock protects, that is refused once ctx has ended, as
// those of a database are. Call it with the context that the code under test gives to the write. It
// returns the cause with which ctx has ended. The test fails if ctx has not ended although the lock
// has been lost, or nobody has it.
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

// WriteFenced stands for a write that is refused if the resource has seen a higher fencing token:
// after a loss it has seen that of the next holder. The test fails if the token is that of a lease
// that is valid no more and was not refused.
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

// pass is called at a point, by whoever has the turn. The holder has been told when it returns.
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
	var ours []string // how the id of a hold of theirs, and of a permit, begins
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
	if s.mini.HGet(double, "generation") != "" { // else nobody has entered who has a place
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

// permitDigits is how many digits of the id of its client the id of a permit begins with.
const permitDigits = 18

// words are what a key consists of.
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

// points tells a round of the acquires of the code under test.
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
	if !seam.OfGroup(ctx) { // else its MultiLock is not about to return, and would begin anew
		r.pass()
	}
}

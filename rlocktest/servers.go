package rlocktest

import (
	"context"
	"iter"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-rlock/rlock"
)

// common is shared by servers that were made together.
type common struct {
	t       testing.TB
	clock   *clock
	works   works // work of all clients
	servers []*Server
	bubble  testing.TB // test of the synctest bubble; nil outside of one

	moving turn         // taken while the clock is moved
	hung   map[int]bool // works that did not end in time; guarded by moving
}

// turn is a mutex whose waiters let the time of a synctest bubble pass.
type turn chan struct{}

func (t turn) take() { t <- struct{}{} }
func (t turn) give() { <-t }

// NewServers starts n servers that share a clock: the nodes of an rlock.RedLock, or the
// deployments of the members of an rlock.MultiLock. Each has separate data, clients and faults.
// Advance and Pause of any of them let time pass for all of them, once, also for holds on
// several servers. Otherwise each server is as if made by New.
func NewServers(t testing.TB, n int, opts ...rlock.Option) []*Server {
	t.Helper()
	if strconv.IntSize < 64 {
		t.Fatal("rlocktest: miniredis cuts the numbers that scripts return to 32 bits; run these tests on a platform of 64 bits")
	}
	return newServers(t, n, nil, opts)
}

// newServers makes servers, for a round of LoseAt if there is one.
func newServers(t testing.TB, n int, round *Round, opts []rlock.Option) []*Server {
	t.Helper()
	if n < 1 {
		t.Fatalf("rlocktest: NewServers(%d): need at least one", n)
	}
	c := &common{t: t, clock: newClock(), moving: make(turn, 1), hung: map[int]bool{}}
	if c.clock.bubble {
		if !ofBubble(t) {
			t.Fatal("rlocktest: New in a synctest bubble needs the *testing.T that the bubble was given, not that of the test around it: it cleans up in the bubble")
		}
		c.bubble = t
	}
	t.Cleanup(c.close)
	for range n {
		mini := miniredis.NewMiniRedis()
		idle, err := mini.Dial() // starts the server without a listener
		if err != nil {
			t.Fatalf("rlocktest: %v", err)
		}
		_ = idle.Close()
		// The TTLs, and the time in scripts, follow the clock of the clients.
		mini.ClockTTL(true)
		s := &Server{common: c, round: round, mini: mini, network: newNetwork(c.clock.bubble)}
		s.network.serve = mini.Server().ServeConn
		c.servers = append(c.servers, s)
		mini.Server().SetPreHook(s.before)
		s.raw = s.dial()
		s.first = s.NewClient(opts...)
	}
	return c.servers
}

func (c *common) close() {
	var clients []*rlock.Client
	for _, s := range c.servers {
		s.Recover() // so that holders can unlock
		s.mu.Lock()
		clients = append(clients, s.clients...)
		s.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() { _ = c.Shutdown(ctx) }) // a test may leave its locks held
	}
	wg.Wait()
	checks.mu.Lock()
	for _, c := range clients {
		delete(checks.byClient, c)
	}
	checks.mu.Unlock()
	for _, s := range c.servers {
		s.mu.Lock()
		redises := s.redises
		s.mu.Unlock()
		for _, rdb := range redises {
			_ = rdb.Close()
		}
		s.network.close()
		s.mini.Close()
	}
	if c.bubble != nil {
		time.Sleep(afterwards)
	}
}

// jump moves the clocks of the clients and of each Redis.
func (c *common) jump(to time.Time) {
	c.clock.jump(to, func(now time.Time) {
		for _, s := range c.servers {
			s.mini.SetTime(now)
		}
	})
}

const (
	// settleWithin bounds how long a step waits for the clients to do what was
	// due. It is far above what a busy machine needs.
	settleWithin = 30 * time.Second

	// leaveWithin is how long holders have to unlock at the end of the test.
	leaveWithin = 50 * time.Millisecond

	// settleFailing is that bound while a server fails or cannot be reached: a waiter then repeats
	// its command until its timeout, and time continues without it.
	settleFailing = 500 * time.Millisecond

	// settleHung is that bound while a server hangs: nothing ends before its timeout.
	settleHung = 100 * time.Millisecond

	// afterwards is how long a bubble waits for what go-redis leaves behind when it is closed, such
	// as a dial under way. It takes no real time.
	afterwards = time.Minute
)

// settle waits until all clients have done what is due, as they would have if time
// had passed at its usual pace. It does not wait for work that others begin
// meanwhile, or that did not end last time.
func (c *common) settle() {
	within, slow := settleWithin, false
	for _, s := range c.servers {
		state, _ := s.network.now()
		switch {
		case state.hung:
			within = min(within, settleHung)
		case s.fails() || state.cut:
			within = min(within, settleFailing)
		}
		slow = slow || state.slow > 0
	}
	if c.bubble != nil && (!slow || within < settleWithin) {
		time.Sleep(time.Nanosecond) // until all goroutines of the bubble wait
		return
	}
	end := time.Now().Add(within)
	for pause := range pauses(end) {
		if !c.clock.due() {
			break
		}
		time.Sleep(pause)
	}
	if !time.Now().Before(end) {
		c.clock.forget()
	}
	// A goroutine that has handled a timer has begun the commands that follow. Work may end when the goroutine that
	// continues it has only begun: a watchdog that got a hold has not set its timer yet. Hence twice more.
	for range 3 {
		if !c.await(end) {
			return
		}
	}
}

// await waits until the work under way has ended. It reports whether there was any, and all of it has ended.
func (c *common) await(end time.Time) bool {
	begun := c.works.underWay()
	maps.DeleteFunc(begun, func(n int, _ struct{}) bool { return c.hung[n] })
	if len(begun) == 0 {
		return false
	}
	for pause := range pauses(end) {
		time.Sleep(pause)
		still := c.works.underWay()
		maps.DeleteFunc(begun, func(n int, _ struct{}) bool { _, ok := still[n]; return !ok })
		if len(begun) == 0 {
			return true
		}
	}
	for n := range begun {
		c.hung[n] = true
	}
	return false
}

// pauses yields ever longer pauses, until end.
func pauses(end time.Time) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for d := 20 * time.Microsecond; time.Now().Before(end); d = min(2*d, time.Millisecond) {
			if !yield(d) {
				return
			}
		}
	}
}

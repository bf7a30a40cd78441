package rlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/timers"
)

// granting is the protocol of a lock that is always free, whose requests cost nothing.
type granting struct {
	others
	c       *Client
	entered protocol.Request[protocol.Entered]
	kept    protocol.Task

	renewals atomic.Int32 // sent
}

// others are the methods that are not called.
type others struct{ protocol.Protocol }

type answer[T any] struct {
	protocol.Task
	r protocol.Result[T]
}

func (a *answer[T]) Do(context.Context, time.Duration) protocol.Result[T] { return a.r }
func (a *answer[T]) Send(protocol.Dispatch)                               {}

func (g *granting) NewID() protocol.HoldID                                     { return g.c.newID() }
func (g *granting) Ready(context.Context) error                                { return nil }
func (g *granting) Enter(*protocol.Acquire) protocol.Request[protocol.Entered] { return g.entered }
func (g *granting) Release(string, int) protocol.Task                          { return g.kept }
func (g *granting) Renew(string, time.Duration) protocol.Task                  { g.renewals.Add(1); return g.kept }

func grantingLock(c *Client, name string) *core {
	l := c.NewLock(name).core
	l.asks = &granting{
		c:       c,
		entered: &answer[protocol.Entered]{r: protocol.Result[protocol.Entered]{Outcome: protocol.Entered{Verdict: protocol.Granted, Token: 1}}},
		kept:    &answer[protocol.Kept]{},
	}
	return l
}

// What a pair allocates above the requests: the attempt, the hold with its lease, and the id of
// the hold, for each request.
func TestAllocationsOfAPairAboveTheRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("counts allocations")
	}
	c := unserved(t)
	defer c.watchdog.Close()
	l := grantingLock(c, "a")
	for _, test := range []struct {
		name string
		ctx  context.Context
		most float64
	}{
		{"a context that never ends", context.Background(), 4},
		{"a context that may end", t.Context(), 5}, // Unlock outlives it
	} {
		pair := func() {
			lease, err := l.Lock(test.ctx)
			if err == nil {
				err = lease.Unlock(test.ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(1000, pair); n > test.most {
			t.Errorf("%s: a pair allocates %v times, want %v", test.name, n, test.most)
		}
	}
}

// A hold keeps its number only: the number must tell its id, whatever its type.
func TestNumberOfAHoldTellsItsID(t *testing.T) {
	c := unserved(t)
	defer c.watchdog.Close()
	for _, l := range []*core{c.NewLock("a").core, c.NewFencedLock("a").core, c.NewReadWriteLock("b").Reader.core, c.NewPriorityLock("c").core} {
		id := l.asks.NewID()
		if h := (&hold{core: l, number: id.Number}); h.id() != id.ID || c.numberOf(id.ID) != id.Number {
			t.Errorf("%T: the number of %s is %d, whose id is %s", l.asks, id.ID, c.numberOf(id.ID), h.id())
		}
	}
	if n := c.numberOf("another:1"); n != 0 {
		t.Errorf("the hold of another client has the number %d here", n)
	}
}

// The answer to a renewal allocates nothing if nobody is told of it.
func TestAllocationsOfAConfirmedRenewal(t *testing.T) {
	if testing.Short() {
		t.Skip("counts allocations")
	}
	c := unserved(t)
	defer c.watchdog.Close()
	h := &hold{core: grantingLock(c, "a"), number: 1, token: 1}
	lease := h.begin(c.now(), c.now(), acquireConfig{lease: c.cfg.watchdogLease})
	kept := protocol.Result[protocol.Kept]{Outcome: protocol.Done}
	n := testing.AllocsPerRun(1000, func() { h.Answered(timers.Do{}, c.now(), kept) })
	if n > 0 {
		t.Errorf("a confirmed renewal allocates %v times", n)
	}
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
}

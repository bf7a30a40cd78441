package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// granting is the protocol of a lock that is always free, whose requests cost nothing.
type granting struct {
	protocol.Protocol
	c       *Client
	entered protocol.Request[protocol.Entered]
	kept    protocol.Task
}

type answer[T any] struct {
	protocol.Task
	r protocol.Result[T]
}

func (a *answer[T]) Do(context.Context, time.Duration) protocol.Result[T] { return a.r }

func (g *granting) NewID() protocol.HoldID                                     { return g.c.newID() }
func (g *granting) Ready(context.Context) error                                { return nil }
func (g *granting) Enter(*protocol.Acquire) protocol.Request[protocol.Entered] { return g.entered }
func (g *granting) Release(string, int) protocol.Task                          { return g.kept }
func (g *granting) QueuedInRedis() bool                                        { return false }
func (g *granting) KeepsPlace() bool                                           { return false }
func (g *granting) Margin() time.Duration                                      { return 0 }
func (g *granting) LongestLease() time.Duration                                { return 0 }
func (g *granting) GuardsFixedLease() bool                                     { return false }

func grantingLock(c *Client, name string) *core {
	l := c.NewLock(name).core
	l.asks = &granting{
		c:       c,
		entered: &answer[protocol.Entered]{r: protocol.Result[protocol.Entered]{Outcome: protocol.Entered{Verdict: protocol.Granted, Token: 1}}},
		kept:    &answer[protocol.Kept]{},
	}
	return l
}

// What a pair allocates above the requests: the attempt, the id of the hold, and the hold with
// its lease.
func TestAllocationsOfAPairAboveTheRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("counts allocations")
	}
	c := unserved(t, WithObserver(NopObserver{}))
	defer c.watchdog.close()
	l := grantingLock(c, "a")
	for _, test := range []struct {
		name string
		ctx  context.Context
		most float64
	}{
		{"a context that never ends", context.Background(), 3},
		{"a context that may end", t.Context(), 4}, // Unlock outlives it
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
